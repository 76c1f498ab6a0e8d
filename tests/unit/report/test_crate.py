"""The archive as an RO-Crate: what the public validator says of it, and what it says of the runs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from archives import CONFIG, archived, make_small_scope, make_source, members
from parity_runs import write_parity

from halfstep.study import validate

VALIDATE = Path(__file__).parents[2] / "validator" / "validate.py"
VALIDATOR = Path(sys.prefix) / "validator" / "bin" / "python"
# recommended, and nothing that an archive knows by itself: who ran it, who publishes it, and where halfstep lies
UNKNOWN = {
    "process-run-crate-0.5_3.2": "The Application SHOULD have a url",
    "process-run-crate-0.5_8.6": "The Action SHOULD have an agent that is a Person or Organization",
    "ro-crate-1.1_22.3": "The `publisher` property of a `Root Data Entity` SHOULD be an `Organization`",
    "ro-crate-1.1_31.2": "The organization SHOULD have a URL.",
    "process-run-crate-0.5_13.2": "The ContainerImage SHOULD have a registry",  # one that was built has none
    # of the classes, not of anything in the crate
    "process-run-crate-0.5_5.1": "The SoftwareApplication id SHOULD be an absolute URI",
}


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory, scopes: SimpleNamespace) -> Path:
    """Of two sittings, one of them in an image, with a failure, parity runs and a doctor's report."""
    folder = tmp_path_factory.mktemp("crate")
    scope = make_small_scope(scopes, folder)
    for key in (("vit", "eager", 2), ("vit", "blocks", 2)):
        changes = {"sitting": "s2", "image": "sha256:abc", "ended": "2026-12-24T18:00:00+00:00"}
        scopes.write_run(scope, validate(CONFIG), key, scopes.behaviour[key[1]], **changes)
    write_parity(scope, validate(CONFIG), change=lambda key: {"sitting": "s1"})
    image = folder / "results" / "image" / "cuda"
    image.mkdir(parents=True)
    (image / "digest").write_text("sha256:abc\n")
    (image / "packages.json").write_text("{}\n")
    return archived(scope, make_source(folder / "source"), folder / "halfstep-h200.zip")


@pytest.fixture(scope="module")
def entities(archive: Path) -> dict[str, dict[str, Any]]:
    graph = json.loads(members(archive)["ro-crate-metadata.json"])["@graph"]
    return {entity["@id"]: entity for entity in graph}


def test_the_public_validator_finds_all_that_the_profile_requires(archive: Path, tmp_path: Path) -> None:
    if not VALIDATOR.exists():
        pytest.skip("the validator is not installed: make .venv/.validator")
    command = [VALIDATOR, VALIDATE, archive, tmp_path / "cache"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *issues, last = done.stdout.splitlines()
    found = {line.split(" ")[1]: line for line in issues}
    assert found.keys() == UNKNOWN.keys(), done.stdout
    assert all(line.startswith("RECOMMENDED") and line.endswith(UNKNOWN[check]) for check, line in found.items())
    assert int(re.fullmatch(r"(\d+) checks", last)[1]) > 100


def test_the_validator_would_find_what_is_missing(archive: Path, tmp_path: Path) -> None:
    if not VALIDATOR.exists():
        pytest.skip("the validator is not installed: make .venv/.validator")
    crate = tmp_path / "crate"
    for name, content in members(archive).items():
        (crate / name).parent.mkdir(parents=True, exist_ok=True)
        (crate / name).write_bytes(content)
    metadata = crate / "ro-crate-metadata.json"
    graph = json.loads(metadata.read_text())
    for entity in graph["@graph"]:
        entity.pop("programmingLanguage", None)
        entity.pop("instrument", None)
    metadata.write_text(json.dumps(graph))
    (crate / "results/h200/report.md").unlink()
    command = [VALIDATOR, VALIDATE, crate, tmp_path / "cache"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "REQUIRED process-run-crate-0.5" in found and "executed tool" in found
    assert "The Main Workflow must refer to its language" in found
    assert "does not include the Data Entity 'results/h200/report.md'" in found


def test_each_sitting_is_an_action_with_its_runs(entities: dict[str, dict[str, Any]]) -> None:
    sittings = [entity for name, entity in entities.items() if name.startswith("#sitting-")]
    assert [entity["name"] for entity in sittings] == ["Sitting s1", "Sitting s2"]
    results = [{result["@id"] for result in entity["result"]} for entity in sittings]
    assert results[1] == {f"results/h200/runs/vit/{name}/rep2/" for name in ("eager", "blocks")}
    assert len([name for name in results[0] if "/runs/" in name]) == 4
    assert len([name for name in results[0] if "/parity/" in name]) == len(results[0]) - 4 > 0
    assert sittings[1]["endTime"] == "2026-12-24T18:00:00+00:00"
    assert "containerImage" not in sittings[0]
    container = entities[sittings[1]["containerImage"]["@id"]]
    assert (container["@type"], container["sha256"]) == ("ContainerImage", "abc")
    assert entities["results/image/cuda/packages.json"]["about"] == {"@id": container["@id"]}
    assert entities["results/h200/runs/vit/fp32/rep1/"]["description"].startswith("out_of_memory: OutOfMemoryError")


def test_figures_say_what_there_is_to_see(entities: dict[str, dict[str, Any]]) -> None:
    figure = entities["results/h200/figures/vit-speedup.pdf"]
    assert figure["description"].startswith(
        "Speed-up over the baseline. `blocks` has the highest speed-up over `eager`"
    )
    assert figure["encodingFormat"] == "application/pdf"


def test_the_report_is_made_of_timed_and_parity_runs(entities: dict[str, dict[str, Any]]) -> None:
    used = {entity["@id"] for entity in entities["#report"]["object"]}
    assert used == {f"results/h200/{name}" for name in ("study.json", "runs/", "parity/")}
    assert used <= entities.keys()


def test_it_is_dated_by_its_last_run_and_licensed_as_it_is_cited(entities: dict[str, dict[str, Any]]) -> None:
    root = entities["./"]
    assert root["datePublished"] == "2026-12-24"
    assert root["license"] == {"@id": "https://spdx.org/licenses/Apache-2.0"}
    assert entities[root["author"]["@id"]]["name"] == "The halfstep developers"
    assert root["mainEntity"] == {"@id": "source/Snakefile"}
