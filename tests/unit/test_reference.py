"""The committed results: they can be made again from their raw CSVs, and the README says what they say."""

from __future__ import annotations

import csv
import filecmp
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from halfstep.cli import app
from halfstep.kernel_kinds import OTHER, kind_of
from halfstep.records import one_per_run
from halfstep.report.last_line import last_line
from halfstep.report.wording import digits

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "results" / "reference"
SCOPES = sorted(path for path in REFERENCE.iterdir() if path.is_dir())
H200 = REFERENCE / "h200"


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def files(folder: Path) -> Iterator[str]:
    return (str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_file())


@pytest.mark.parametrize("scope", SCOPES, ids=lambda path: path.name)
def test_tables_figures_and_report_are_made_again_byte_for_byte(scope: Path, tmp_path: Path) -> None:
    again = tmp_path / scope.name
    shutil.copytree(scope, again)
    for made in ("tables", "figures"):
        shutil.rmtree(again / made)
    for report in ("report.md", "report.html"):
        (again / report).unlink()
    assert CliRunner().invoke(app, ["report", str(again)]).exit_code == 0
    assert list(files(again)) == list(files(scope))
    _, different, unreadable = filecmp.cmpfiles(scope, again, files(scope), shallow=False)
    assert (different, unreadable) == ([], [])


@pytest.mark.parametrize("scope", SCOPES, ids=lambda path: path.name)
def test_nearly_all_kernel_time_has_a_kind(scope: Path) -> None:
    for path in scope.glob("runs/*/*/rep*/kernels.csv"):
        times = [(kind_of(row["kernel"]), float(row["ms_per_step"])) for row in rows(path)]
        unknown = sum(ms for kind, ms in times if kind == OTHER)
        assert unknown <= 0.02 * sum(ms for _, ms in times), path


@pytest.mark.parametrize("scope", SCOPES, ids=lambda path: path.name)
def test_plain_fp32_casts_nothing(scope: Path) -> None:
    found = sorted(scope.glob("runs/*/fp32/rep*/kernels.csv"))
    assert found
    for path in found:
        assert not [row["kernel"] for row in rows(path) if kind_of(row["kernel"]) == "cast/scale"], path


def test_the_readmes_table_of_claims_is_that_of_the_csv() -> None:
    """Between `<!-- claims: SCOPE -->` and `<!-- end -->` stands what `halfstep claims` prints for that scope."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for scope, block in re.findall(r"<!-- claims: (\S+) -->\n(.*?)<!-- end -->", readme, re.DOTALL):
        assert block == CliRunner().invoke(app, ["claims", str(REFERENCE / scope)]).stdout


def test_the_readme_says_what_the_csvs_say() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    speedups = {
        row["variant"]: row for row in rows(H200 / "tables" / "speedups.csv") if row["comparison"] == "vit-b128"
    }
    for variant in ("bf16-blocks", "native", "native-linears-blocks", "torchao-blocks", "te-linears", "te-layers"):
        ratio = [float(speedups[variant][name]) for name in ("speedup", "speedup_low", "speedup_high")]
        assert "{} [{}, {}]".format(*(digits(number, 3) for number in ratio)) in readme
    pairs = {variant: row["pairs"] for variant, row in speedups.items()}
    assert {pairs[variant] for variant in ("torchao-blocks", "te-linears")} == {"5"}
    assert {pairs[variant] for variant in ("bf16-blocks", "te-layers")} == {"4"}
    assert "over 5 paired replicates, 4 for `bf16-blocks` and the whole layers" in readme
    assert [pairs[variant] for variant in ("native", "native-blocks", "native-linears-blocks")] == ["2", "1", "2"]
    assert "(`native`, 2 pairs)" in readme and "(`native-blocks`, one pair, and so without an interval)" in readme
    said = digits(float(speedups["native-blocks"]["speedup"]), 3)
    (speed,) = (
        row["samples_per_s"]
        for row in rows(H200 / "tables" / "variants.csv")
        if (row["comparison"], row["variant"]) == ("vit-b128", "native-blocks")
    )
    assert f"to {said} times, {digits(float(speed), 3)} images/s" in readme
    runs = one_per_run(rows(H200 / "tables" / "runs.csv"))
    counts = Counter(row["status"] for row in runs)
    planned = len(yaml.safe_load((ROOT / "config.yaml").read_text(encoding="utf-8"))["comparisons"])
    measured = len({row["comparison"] for row in runs if row["status"] != "missing"})
    assert f"one of the {planned} comparisons of config.yaml, of which {measured} were measured, " in readme
    assert (
        f"{counts['ok']} of {len(runs)} runs are `ok`, {counts['missing']} are not made yet, "
        f"and {counts['disturbed']} are `disturbed`, "
    ) in readme
    native = [row for row in runs if row["precision"].startswith("native") and row["status"] != "missing"]
    assert {row["comparison"] for row in native} == {"vit-b128"}
    assert len(native) == 7 and "`native_delayed` the committed results hold seven runs at batch 128" in readme


def test_the_last_line_of_a_call_says_what_the_report_says(tmp_path: Path) -> None:
    """And a script finds the page by it, in whichever folder."""
    folder = tmp_path / "a copy (2)" / "h200"
    shutil.copytree(H200, folder)
    (line,) = CliRunner().invoke(app, ["report", str(folder), "--text-only"]).stderr.splitlines()
    runs = one_per_run(rows(H200 / "tables" / "runs.csv"))
    counts = Counter(row["status"] for row in runs if row["status"] != "ok")
    assert f"{len(runs) - counts.total()} of {len(runs)} runs are ok." in (folder / "report.md").read_text("utf-8")
    head, _, said = line.partition("; ")
    assert said.startswith(f"{counts.total()} of {len(runs)} timed runs have no number: ")
    assert sorted(said.partition(": ")[2].split(", ")) == sorted(f"{n} {status}" for status, n in counts.items())
    script = ["sed", "-n", r"s/^report: \(.*\) (plain text: .*/\1/p"]
    assert subprocess.run(script, input=line, capture_output=True, text=True).stdout == str(folder / "report.html")
    assert head == f"report: {folder / 'report.html'} (plain text: report.md)"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda table: table.unlink(), "its runs cannot be counted: runs.csv cannot be read"),
        (lambda table: table.write_text("a,b\n"), "its runs cannot be counted: runs.csv does not have the columns"),
    ],
)
def test_runs_that_cannot_be_counted_are_said_to_be(tmp_path: Path, change: Callable[[Path], Any], said: str) -> None:
    """Snakemake names the report however a call ends, though its tables be damaged."""
    shutil.copytree(H200 / "tables", tmp_path / "tables")
    change(tmp_path / "tables" / "runs.csv")
    assert last_line(tmp_path).partition("; ")[2].startswith(said)
