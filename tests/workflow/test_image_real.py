"""The image of docker/Dockerfile, target cpu, and real measurements in it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from tree import REPORTING, Tree, runs

from halfstep.parity import glyphs

pytestmark = pytest.mark.image
FLAG = "--use-singularity"
SCOPE = "results/cpu-smoke-image"
VARIANTS = ("lm/fp32", "lm/bf16")
STUDY: dict[str, Any] = {
    "scale": "smoke",
    "replicates": 1,
    "comparisons": {
        "lm": {
            "workload": "lm",
            "baseline": "fp32",
            "variants": {"fp32": {"precision": "fp32"}, "bf16": {"precision": "bf16", "compile": "blocks"}},
        }
    },
}
# imported first by each Python process of the rules
WHICH_TORCH = """
import atexit, os, sys
if "halfstep.measure.child" in sys.orig_argv:
    atexit.register(lambda: print(f"torch: {sys.modules['torch'].__file__}, planted: {'planted' in sys.modules}"))
"""
PLANTED = "raise SystemExit('a torch from ~/.local was imported')"


@pytest.fixture(scope="module")
def measured(base_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    """A tree after one call, with a home in which another torch lies. Only to be looked at; the image is not kept.

    HALFSTEP_TEST_IMAGE may name the folder of an image that is built already (results/image/cpu).
    """
    tree = Tree.make(
        tmp_path_factory.mktemp("real") / "tree",
        {**STUDY, "container": {"build_args": {"BASE_IMAGE": base_image}}},
        stand_in=False,
    )
    tree.limit_s = 3000  # the image is 6 GB
    tree.write("src/sitecustomize.py", WHICH_TORCH)
    home = tree.root.parent / "home"
    for folder in (home, tree.root):
        site = folder / ".local/lib/python3.11/site-packages"
        (site / "torch").mkdir(parents=True)
        (site / "torch/__init__.py").write_text(PLANTED)
        (site / "usercustomize.py").write_text("import planted")
        (site / "planted.py").touch()
    expected = runs(*VARIANTS, replicates=1) | {"probe_system"} | REPORTING
    if built := os.environ.get("HALFSTEP_TEST_IMAGE"):
        # in the order in which they were made, by which Snakemake goes
        (tree.root / "results/image/cpu").mkdir(parents=True)
        for name in ("halfstep.sif", "packages.json", "digest"):
            shutil.copy(Path(built, name), tree.root / "results/image/cpu" / name)
    else:
        expected.add("build_image")
    site = home / ".local/lib/python3.11/site-packages"
    assert set(tree.run(FLAG, HOME=str(home), PYTHONPATH=str(site))) == expected
    yield tree
    shutil.rmtree(tree.root)


def test_measured_in_the_image(measured: Tree) -> None:
    digest = measured.read("results/image/cpu/digest").strip()
    for name in VARIANTS:
        record = json.loads(measured.read(f"{SCOPE}/runs/{name}/rep1/record.json"))
        assert (record["status"], record["reason"], record["image"]) == ("ok", "", digest)


def test_torch_is_the_images(measured: Tree) -> None:
    """The host has one as well, and another lies in ~/.local."""
    import torch

    inside = "/opt/venv/lib/python3.11/site-packages/torch/__init__.py"
    assert torch.__file__ != inside
    for name in VARIANTS:
        log = measured.read(f"{SCOPE}/runs/{name}/rep1/log.txt")
        assert f"torch: {inside}, planted: False" in log
    packages = json.loads(measured.read("results/image/cpu/packages.json"))
    record = json.loads(measured.read(f"{SCOPE}/runs/lm/fp32/rep1/record.json"))
    assert record["environment"]["torch"].partition("+")[0] == packages["python"]["torch"].partition("+")[0]
    assert record["environment"]["cuda"] == packages["cuda"]
    assert packages["tools"]["g++"].startswith("g++")


def test_parity_runs_have_their_data_in_the_image(measured: Tree, tmp_path: Path) -> None:
    """The sources of its own Python; and the fonts and the renderer of the lock, which draw what they draw here."""
    record = f"{SCOPE}/parity/lm+adam_fused+layernorm/bf16/seed1/record.json"
    assert measured.run(record, FLAG, "--config", "parity=always") == ["train_recipe lm+adam_fused+layernorm/bf16/1"]
    found = json.loads(measured.read(record))
    assert (found["status"], found["reason"]) == ("ok", "")
    losses = [float(row["loss"]) for row in measured.rows(record.replace("record.json", "curve.csv"))]
    assert losses[0] > 5 and fmean(losses[-30:]) < 3
    ask = "from halfstep.parity import glyphs, text; print(glyphs.source(), text.source())"
    sif = "results/image/cpu/halfstep.sif"
    variables = f"PYTHONPATH=src,MPLCONFIGDIR={tmp_path}"
    inside = measured.call("apptainer", "exec", "--cleanenv", "--env", variables, sif, "python3", "-c", ask)
    assert inside.stdout.split() == [glyphs.source(), found["applied"]["data_source"]], inside.stderr


def test_the_probe_ran_in_the_image(measured: Tree) -> None:
    doctor = json.loads(measured.read(f"{SCOPE}/system/doctor.json"))
    assert doctor["machine"]["container"] == "apptainer"
    found = {capability["name"]: capability for capability in doctor["capabilities"]}
    assert found["torch_compile"]["status"] == found["bf16"]["status"] == "available"


def test_caches_stay_among_the_results(measured: Tree) -> None:
    allowed = {".snakemake", "results", ".local", "src", "rules", "profiles", "docker"}
    assert {path.name for path in measured.root.iterdir() if path.is_dir()} == allowed
    assert list((measured.root / f"{SCOPE}/cache/lm/bf16/inductor").iterdir())
    home = measured.root.parent / "home"
    assert {path.name for path in home.iterdir()} <= {".local", ".apptainer", ".cache", ".config"}
    assert {path.name for path in (measured.root / ".local").iterdir()} == {"lib"}
