"""A mistake ends at once: exit code 2, a sentence, nothing imported that takes long, nothing written, nothing lost."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from small_image import path_without
from tree import CONFIG, Tree, side_by_side

Config = dict[str, Any]
SNAKEMAKE = ("snakemake", "--cores", "1")
HALFSTEP = ("python3", "-m", "halfstep")
BF16 = ("comparisons", "lm", "variants", "bf16")
SIDES = {"comparison": "lm", "variant": "bf16", "over": "fp32"}
CLAIM = {"claim": "bf16 is faster", "source": "a paper", "same_batch": SIDES}


def put(value: Any, *keys: str) -> Callable[[Config], Config]:
    """The study with a value at this place."""

    def change(config: Config) -> Config:
        place = config
        for key in keys[:-1]:
            place = place.setdefault(key, {})
        place[keys[-1]] = value
        return config

    return change


# what is wrong: the change, and what the sentence has to say
CONFIGS: dict[str, tuple[Callable[[Config], Config], tuple[str, ...]]] = {
    "unknown key": (put(1, "replicate"), ("key replicate is unknown", "seed", "did you mean 'replicates'?")),
    "unknown key of a comparison": (
        put("fp32", "comparisons", "lm", "base_line"),
        ("key comparisons.lm.base_line is unknown", "workload", "did you mean 'baseline'?"),
    ),
    "unknown key of a variant": (
        put("bf16", *BF16, "precison"),
        ("key comparisons.lm.variants.bf16.precison is unknown", "optimizer", "did you mean 'precision'?"),
    ),
    "unknown key of the window": (
        put(3, "window", "min_step"),
        ("key window.min_step is unknown", "warmup_steps", "did you mean 'min_steps'?"),
    ),
    "unknown key of the defaults": (
        put(3, "defaults", "bach"),
        ("key defaults.bach is unknown", "precision", "did you mean 'batch'?"),
    ),
    "unknown precision": (
        put("bf61", *BF16, "precision"),
        ("comparisons.lm.variants.bf16.precision = 'bf61' is unknown", "fp32, tf32", "did you mean 'bf16'?"),
    ),
    "unknown precision among the defaults": (
        put("bf61", "defaults", "precision"),
        ("defaults.precision = 'bf61' is unknown", "fp32, tf32", "did you mean 'bf16'?"),
    ),
    "unknown scale": (put("smok", "scale"), ("scale = 'smok' is unknown", "auto, full", "did you mean 'smoke'?")),
    "device that is no name": (put("h200/0", "device"), ("device = 'h200/0'", "letters, digits")),
    "missing baseline": (
        put("bf61", "comparisons", "lm", "baseline"),
        ("comparisons.lm", "'bf61', which is not one of its variants", "tf32", "did you mean 'bf16'?"),
    ),
    "no baseline": (
        lambda config: {**config, "comparisons": {"lm": {"workload": "lm", "variants": {"fp32": {}}}}},
        ("key comparisons.lm.baseline is missing",),
    ),
    "negative batch": (put(-16, *BF16, "batch"), ("comparisons.lm.variants.bf16.batch = -16", "above 0")),
    "batch: yes": (put(True, *BF16, "batch"), ("comparisons.lm.variants.bf16.batch = True", "should be a number")),
    "empty comparison": (put({}, "comparisons", "lm", "variants"), ("comparisons.lm.variants is empty",)),
    "no comparisons": (put({}, "comparisons"), ("comparisons is empty",)),
    "variants as a list": (
        put(["fp32", "bf16"], "comparisons", "lm", "variants"),
        ("comparisons.lm.variants should hold keys",),
    ),
    "claim about no comparison": (
        put({**CLAIM, "same_batch": {**SIDES, "comparison": "lmm"}}, "claims", "a"),
        ("claims.a.same_batch.comparison = 'lmm' is unknown", "did you mean 'lm'?"),
    ),
    "claim about a variant and itself": (
        put({**CLAIM, "same_batch": {**SIDES, "over": "bf16"}}, "claims", "a"),
        ("claims.a.same_batch names 'bf16' twice",),
    ),
    "claim about the shape of a training step": (
        put({**CLAIM, "same_batch": {**SIDES, "case": "64x64x64"}}, "claims", "a"),
        ("claims.a.same_batch.case = '64x64x64'", "only operators have shapes"),
    ),
    "blank source": (put({**CLAIM, "source": " "}, "claims", "a"), ("claims.a.source = ' ' is blank",)),
    "one heading twice": (put("vit", "comparisons", "lm", "title"), ("comparisons.vit and comparisons.lm", "'vit'")),
    "default weights that no fp32 takes": (
        lambda config: {
            **config,
            "defaults": {"weights": "bf16"},
            "comparisons": {"lm": {"workload": "lm", "baseline": "fp32", "variants": {"fp32": {}}}},
        },
        ("comparisons.lm.variants.fp32 has weights: bf16 with precision: fp32",),
    ),
    "product of a training step": (put("te", *BF16, "gemm"), ("variants.bf16.gemm", "does not know")),
    "article's protocol for an operator": (
        put(
            {"workload": "dtypes", "baseline": "a", "variants": {"a": {}}, "protocol": "article"},
            "comparisons",
            "types",
        ),
        ("comparisons.types sets protocol = 'article'", "operator"),
    ),
    "nothing left for a smoke run": (
        lambda config: {
            **config,
            "scale": "smoke",
            "comparisons": {name: {**found, "smoke": False} for name, found in config["comparisons"].items()},
        },
        ("a smoke run has nothing to do",),
    ),
    "slash in a variant's name": (
        put({}, "comparisons", "lm", "variants", "bf16/blocks"),
        ("the name 'bf16/blocks' in comparisons.lm.variants is not", "letters, digits"),
    ),
    "space in a variant's name": (
        put({}, "comparisons", "lm", "variants", "bf16 blocks"),
        ("the name 'bf16 blocks' in comparisons.lm.variants is not", "letters, digits"),
    ),
}
# the whole of config.yaml, and what the sentence has to say
TEXTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "not YAML": ("comparisons: [\n", ("is not YAML", "line 2")),
    "tabs": ("comparisons:\n\tlm: 3\n", ("is not YAML", "line 2")),
    "Python object": ("title: !!python/name:os.system\n", ("is not YAML", "os.system")),
    "key twice": ("title: a\nseed: 1\ntitle: b\n", ("'title' is there twice", "line 3")),
    "key that is a list": ("? [a, b]\n: 3\n", ("line 1",)),
    "a list": ("- lm\n- vit\n", ("should hold keys such as 'comparisons:'", "list")),
    "a word": ("lm\n", ("should hold keys such as 'comparisons:'",)),
    "nothing": ("", ("should hold keys such as 'comparisons:'",)),
}
# of a call with --config on a study without a mistake
OPTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "unknown key": ("sclae=full", ("key sclae is unknown", "did you mean 'scale'?")),
    "unknown value": ("scale=smok", ("scale = 'smok' is unknown", "did you mean 'smoke'?")),
    "no number": ("replicates=three", ("replicates = 'three'", "whole number")),
    "nested": (
        "comparisons={lm: {variants: {bf16: {precision: bf61}}}}",
        ("comparisons.lm.variants.bf16.precision = 'bf61' is unknown", "did you mean 'bf16'?"),
    ),
    "no mapping": ("comparisons=3", ("comparisons = 3",)),
}


# a command of halfstep, and what its sentence has to say
COMMANDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "study that is not there": (("collect", "results/cpu", "--study", "x.yaml"), ("x.yaml: cannot be read: No such",)),
    "report of no scope": (("report", "results/h100"), ("results/h100", "not there")),
    "plot of no scope": (("plot", "results/h100"), ("results/h100", "not there")),
    "text of no scope": (("report", "results/h100", "--text-only"), ("results/h100", "not there")),
    "runs of no scope": (("runs", "results/h100"), ("results/h100",)),
    "unknown status": (("runs", "results/cpu", "--status", "unsuported"), ("did you mean 'unsupported'?", "stale")),
    "unknown comparison": (("runs", "results/cpu", "--comparison", "lmm"), ("did you mean 'lm'?", "vit")),
    "run that is no JSON": (("run", "{", "x/lm/fp32/rep1"), ("RUN", "JSON")),
    "run without settings": (("run", "{}", "x/lm/fp32/rep1"), ("RUN", "workload")),
}


# one mistake each: what is changed in the finished tree, the command, and what its sentence has to say
Case = tuple[Callable[[Tree], None], tuple[str, ...], tuple[str, ...]]


def config_case(change: Callable[[Config], Config], parts: tuple[str, ...]) -> Case:
    return lambda tree: tree.configure(change(deepcopy(CONFIG))), SNAKEMAKE, ("config.yaml: ", *parts)


def text_case(text: str, parts: tuple[str, ...]) -> Case:
    return lambda tree: tree.configure(text), SNAKEMAKE, ("config.yaml: ", *parts)


def call_case(command: tuple[str, ...], parts: tuple[str, ...]) -> Case:
    return lambda tree: None, command, parts


def study_case(change: Callable[[Config], Config], parts: tuple[str, ...]) -> Case:
    """The same mistakes in a file that `halfstep` is given."""
    command = (*HALFSTEP, "report", "results/cpu", "--study", "other.json")
    text = json.dumps(change(deepcopy(CONFIG)))
    return (
        lambda tree: (tree.root / "other.json").write_text(text, encoding="utf-8"),
        command,
        ("other.json: ", *parts),
    )


CASES: dict[str, Case] = {
    **{f"config: {name}": config_case(*case) for name, case in CONFIGS.items()},
    **{f"text: {name}": text_case(*case) for name, case in TEXTS.items()},
    **{
        f"--config: {name}": call_case((*SNAKEMAKE, "--config", text), ("with --config and --configfile: ", *parts))
        for name, (text, parts) in OPTIONS.items()
    },
    **{f"--study: {name}": study_case(*CONFIGS[name]) for name in ("unknown key", "unknown precision", "no baseline")},
    **{f"halfstep: {name}": call_case((*HALFSTEP, *words), parts) for name, (words, parts) in COMMANDS.items()},
    "registry: no such file": (
        lambda tree: tree.edit("src/halfstep/registry.py", "precision.bf16:Bf16", "precision.bff16:Bf16"),
        SNAKEMAKE,
        ("src/halfstep/registry.py: 'bf16' names 'halfstep.recipes.precision.bff16:Bf16'", "did you mean 'bf16'?"),
    ),
    "registry: no such class": (
        lambda tree: tree.edit("src/halfstep/registry.py", "precision.bf16:Bf16", "precision.bf16:Bf61"),
        SNAKEMAKE,
        ("src/halfstep/registry.py: 'bf16' names", "bf16.py does not define that", "did you mean 'Bf16'?"),
    ),
    "registry: no Python": (
        lambda tree: tree.write("src/halfstep/recipes/precision/bf16.py", "class Bf16(:\n"),
        SNAKEMAKE,
        ("src/halfstep/recipes/precision/bf16.py, line 1: ",),
    ),
    "no config.yaml": (
        lambda tree: (tree.root / "config.yaml").unlink(),
        SNAKEMAKE,
        ("config.yaml: cannot be read", "No such file"),
    ),
}


def refuse(tree: Tree, *command: str) -> list[str]:
    """The sentences of a command that has to be refused, without torch and without a trace."""
    before = tree.contents()
    torch = tree.root.with_name(f"{tree.root.name}-torch") / "torch"
    torch.mkdir(parents=True)
    imported = torch / "imported"
    text = f"open({str(imported)!r}, 'w').close()\nraise RuntimeError('torch was imported')\n"
    (torch / "__init__.py").write_text(text, encoding="utf-8")
    path = str(torch.parent) if "snakemake" in command else f"{torch.parent}:src"
    done = tree.call(*command, PYTHONPATH=path)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert not imported.exists()
    assert tree.contents() == before
    assert done.stdout == ""
    return [line for line in done.stderr.splitlines() if not line.startswith("Using workflow specific profile")]


@pytest.fixture(scope="module")
def refusals(
    request: pytest.FixtureRequest, finished: Tree, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[list[str]]]]:
    """What is said to each mistake, in a copy of a finished tree."""
    folder = tmp_path_factory.mktemp("mistakes")

    def refusal(case: str) -> list[str]:
        tree = finished.copy(folder / str(list(CASES).index(case)))
        change, command, _ = CASES[case]
        change(tree)
        return refuse(tree, *command)

    with side_by_side(request, "case", refusal) as refusals:
        yield refusals


@pytest.mark.parametrize("case", CASES)
def test_one_sentence(case: str, refusals: dict[str, Future[list[str]]]) -> None:
    (sentence,) = refusals[case].result()
    for part in CASES[case][2]:
        assert part in sentence


def test_an_image_without_apptainer(finished: Tree, tmp_path: Path) -> None:
    path = path_without(tmp_path / "bin", "apptainer", "singularity")
    command = ("env", f"PATH={path}", *SNAKEMAKE, "--use-singularity")
    (sentence,) = refuse(finished.copy(tmp_path / "tree"), *command)
    assert "neither apptainer nor singularity is on the PATH" in sentence and "runs on the host" in sentence


def test_the_planted_torch_would_be_noticed(finished: Tree, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="torch was imported"):
        refuse(finished.copy(tmp_path / "tree"), "python3", "-c", "import torch")


def test_every_mistake_has_its_sentence(tree: Tree, config: Config) -> None:
    mistakes: dict[tuple[str, ...], tuple[Any, str]] = {
        ("replicates",): (0, "above 0"),
        ("seed",): (-1, "at least 0"),
        ("window", "min_seconds"): (float("inf"), "finite"),
        ("comparisons", "lm", "workload"): ("vit", "vit_huge, lm"),
        ("comparisons", "lm", "replicates"): ("few", "whole number"),
        (*BF16, "compile"): ("block", "did you mean 'blocks'?"),
        (*BF16, "optimizer"): ("adam", "adamw_fused"),
        (*BF16, "norm"): ("rms_norm", "did you mean 'rmsnorm'?"),
        (*BF16, "data"): ("disk", "resident, dataloader"),
        (*BF16, "batch"): (16.5, "whole number"),
        (*BF16, "memory_cap_gib"): (0, "above 0"),
    }
    for keys, (value, _) in mistakes.items():
        put(value, *keys)(config)
    tree.configure(config)
    sentences = refuse(tree, *SNAKEMAKE)
    assert len(sentences) == len(mistakes)
    for keys, (value, part) in mistakes.items():
        begin = f"config.yaml: {'.'.join(keys)} = {value!r} "
        assert [part in sentence for sentence in sentences if sentence.startswith(begin)] == [True], sentences


def test_nothing_is_begun_in_a_fresh_tree(tmp_path: Path, config: Config) -> None:
    tree = Tree.make(tmp_path / "tree", put(-16, *BF16, "batch")(config), stand_in=True)
    refuse(tree, *SNAKEMAKE)
    assert not (tree.root / "results").exists()


def test_halfstep_run_needs_the_folder_of_its_run(tree: Tree) -> None:
    record = json.loads(tree.read("results/cpu/runs/lm/fp32/rep2/record.json"))
    (sentence,) = refuse(tree, *HALFSTEP, "run", json.dumps(record["run"]), "results/cpu/runs/lm/fp32/rep1")
    assert "rep2" in sentence and "rep1" in sentence
