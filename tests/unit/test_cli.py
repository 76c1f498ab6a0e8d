"""The command line: what was wrong ends in a sentence and exit code 2; what became of a run never does."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from halfstep.cli import app
from halfstep.measure import row, supervisor
from halfstep.measure.supervisor import Orphaned, Outcome
from halfstep.records import STATUSES, SUMMARY_COLUMNS, read_record, write_csv, write_json
from halfstep.report.parity import PARITY_COLUMNS
from halfstep.runs import Run, Scope, resolve
from halfstep.study import validate

CONFIG: dict[str, Any] = {"comparisons": {"c": {"workload": "lm", "baseline": "a", "variants": {"a": {}, "b": {}}}}}
STUDY = validate(CONFIG)
RUN: Run = resolve(STUDY, Scope("cpu", "smoke"), ("c", "a", 1))


def halfstep(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refused(result: Result) -> str:
    """The sentence of a call that was refused."""
    assert result.exit_code == 2, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.stderr


def all_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def without(text: str, key: str) -> str:
    return json.dumps({name: value for name, value in json.loads(text).items() if name != key})


@pytest.mark.parametrize(
    ("run", "sentence"),
    [
        ("not json", "RUN is not a resolved run"),
        ("{}", "RUN is not a resolved run: ('workload',): Field required"),
        (without(RUN.canonical(), "window"), "RUN is not a resolved run: ('window',): Field required"),
        (RUN.canonical().replace('"batch":16', '"batch":-2'), "RUN is not a resolved run: ('batch',): Input should be"),
        (RUN.canonical().replace('"batch":16', '"bach":2'), "RUN is not a resolved run"),
    ],
)
def test_a_run_that_is_none_is_refused_and_nothing_is_written(tmp_path: Path, run: str, sentence: str) -> None:
    assert sentence in refused(halfstep("run", run, tmp_path / "runs/c/a/rep1"))
    assert all_below(tmp_path) == []


def test_a_folder_of_another_replicate_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    sentence = refused(halfstep("run", RUN.canonical(), tmp_path / "runs/c/a/rep2"))
    assert "FOLDER should end in <comparison>/<variant>/rep1" in sentence
    assert all_below(tmp_path) == []


@pytest.mark.parametrize("status", STATUSES)
def test_whatever_becomes_of_a_run_it_ends_well_with_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    monkeypatch.setattr(supervisor, "supervise", lambda run, out, title: (Outcome(status, "so it was"), None))
    out = tmp_path / "cpu-smoke/runs/c/a/rep1"
    result = halfstep("run", RUN.canonical(), out)
    assert result.exit_code == 0
    assert result.stderr == f"c/a rep1: {status}: so it was\n"
    record = read_record(out)
    assert (record["status"], record["run_hash"]) == (status, RUN.hash())
    assert len(record["code_hash"]) == 16


def test_a_run_whose_snakemake_is_gone_leaves_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def orphan(*_: Any) -> None:
        raise Orphaned

    monkeypatch.setattr(supervisor, "supervise", orphan)
    sentence = refused(halfstep("run", RUN.canonical(), tmp_path / "cpu-smoke/runs/c/a/rep1"))
    assert "Snakemake is gone; the measurement was ended" in sentence
    assert all_below(tmp_path) == []


@pytest.mark.parametrize("command", ["collect", "report"])
def test_a_folder_without_a_study_is_refused(tmp_path: Path, command: str) -> None:
    sentence = refused(halfstep(command, tmp_path / "h200"))
    assert "study.json is not there: name the folder of a scope, such as results/h200" in sentence
    assert list(tmp_path.iterdir()) == []


def test_a_study_that_does_not_validate_is_refused_and_changes_no_result(tmp_path: Path) -> None:
    folder = tmp_path / "cpu-smoke"
    write_json(folder / "study.json", STUDY.model_dump(mode="json"))
    before = (folder / "study.json").read_bytes()
    broken = json.dumps({"comparisons": {"c": {**CONFIG["comparisons"]["c"], "baseline": "x"}}})
    assert "names the baseline 'x'" in refused(halfstep("collect", folder, "--study", broken))
    refused(halfstep("collect", folder, "--study", "{"))
    assert all_below(tmp_path) == [folder / "study.json"]
    assert (folder / "study.json").read_bytes() == before


def test_the_schema_is_printed_as_json() -> None:
    result = halfstep("schema")
    assert result.exit_code == 0
    assert set(json.loads(result.stdout)["properties"]) == set(type(STUDY).model_fields)


@pytest.fixture
def collected(tmp_path: Path) -> Path:
    folder = tmp_path / "results" / "cpu-smoke"
    rows = [("c", "a", 1, "ok"), ("c", "a", 2, "unsupported"), ("c", "b", 1, "unsupported"), ("d", "a", 1, "stale")]
    names = ("comparison", "variant", "replicate", "status")
    write_csv(folder / "tables" / "runs.csv", SUMMARY_COLUMNS, [dict(zip(names, row, strict=True)) for row in rows])
    trained = [("lm+adam", "reference", 2, "ok"), ("lm+adam", "fp16", 1, "unsupported")]
    names = ("family", "recipe", "seed", "status")
    write_csv(folder / "tables" / "parity.csv", PARITY_COLUMNS, [dict(zip(names, row, strict=True)) for row in trained])
    (tmp_path / "results" / "latest").symlink_to("cpu-smoke")
    return folder


def listed(*arguments: str | Path) -> list[str]:
    result = halfstep("runs", *arguments)
    assert result.exit_code == 0
    return ["/".join(Path(line).parts[-4:-1]) for line in result.stdout.splitlines()]


def test_runs_are_listed_by_status_and_comparison(collected: Path) -> None:
    timed = ["c/a/rep1", "c/a/rep2", "c/b/rep1", "d/a/rep1"]
    assert listed(collected) == [*timed, "lm+adam/reference/seed2", "lm+adam/fp16/seed1"]
    assert listed(collected, "--status", "unsupported") == ["c/a/rep2", "c/b/rep1", "lm+adam/fp16/seed1"]
    assert listed(collected, "--comparison", "d") == ["d/a/rep1"]
    assert listed(collected, "--status", "ok", "--comparison", "d") == []


def test_runs_are_listed_by_the_scopes_own_folder(collected: Path) -> None:
    """Snakemake knows its outputs by that name and not by `latest`."""
    result = halfstep("runs", collected.parent / "latest", "--status", "ok")
    paths = ("runs/c/a/rep1", "parity/lm+adam/reference/seed2")
    assert result.stdout == "".join(f"{collected}/{path}/record.json\n" for path in paths)


def test_a_status_or_comparison_that_is_none_is_refused_with_the_nearest(collected: Path) -> None:
    assert "did you mean 'unsupported'?" in refused(halfstep("runs", collected, "--status", "unsuported"))
    sentence = refused(halfstep("runs", collected, "--comparison", "e"))
    assert "the comparison 'e' is unknown: choose from c, d" in sentence
    assert "run the study first" in refused(halfstep("runs", collected / "nothing"))


def test_what_drives_a_study_and_writes_its_report_imports_no_torch() -> None:
    modules = [
        "halfstep.config_file", "halfstep.cli", "halfstep.scope", "halfstep.fingerprint", "halfstep.docs_tables",
        "halfstep.measure.supervisor", "halfstep.measure.row", "halfstep.system.doctor", "halfstep.report.collect",
        "halfstep.report.write", "halfstep.archive.make", "halfstep.archive.verify",
    ]  # fmt: skip
    program = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_program_itself_ends_with_a_sentence_and_no_traceback() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "halfstep", "run", "{", "runs/c/a/rep1"], capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.startswith("RUN is not a resolved run") and len(found.stderr.splitlines()) == 1


def test_a_scope_is_judged_by_its_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """results/latest and `.` name no device: by their names every run would be of another configuration."""
    folder = tmp_path / "results" / "cpu-smoke"
    write_json(folder / "study.json", STUDY.model_dump(mode="json"))
    (tmp_path / "results" / "latest").symlink_to("cpu-smoke")
    outcome = Outcome("unsupported", "not here")
    for variant in ("a", "b"):
        for n in (1, 2):
            run = resolve(STUDY, Scope("cpu", "smoke"), ("c", variant, n))
            row.write(folder / f"runs/c/{variant}/rep{n}", run, "c0de", outcome, None, None, datetime.now(UTC))
    monkeypatch.chdir(folder)
    for name in (tmp_path / "results" / "latest", folder, Path(), Path("..") / "cpu-smoke", Path("runs") / ".."):
        assert halfstep("collect", name).exit_code == 0
        assert set(listed(name, "--status", "unsupported")) == {f"c/{v}/rep{n}" for v in "ab" for n in (1, 2)}


@pytest.mark.parametrize("command", [["collect"], ["plot"], ["report", "--text-only"]])
def test_what_the_machine_refuses_is_a_sentence(tmp_path: Path, command: list[str]) -> None:
    """A full disk, and tables that are not there: as for a limit on the size of files."""
    folder = tmp_path / "cpu-smoke"
    write_json(folder / "study.json", STUDY.model_dump(mode="json"))
    found = subprocess.run(
        [sys.executable, "-m", "halfstep", *command, folder],
        capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
    )  # fmt: skip
    assert (found.returncode, found.stdout) == (2, "")
    assert len(found.stderr.splitlines()) == 1
    assert ("tables/runs.csv: File too large" if command == ["collect"] else "runs.csv cannot be read") in found.stderr
