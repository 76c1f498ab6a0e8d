"""The committed results: they can be made again from their raw CSVs, and the README says what they say."""

from __future__ import annotations

import csv
import filecmp
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from halfstep.cli import app
from halfstep.kernel_kinds import OTHER, kind_of
from halfstep.records import one_per_run
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
    for variant in ("bf16-blocks", "native", "native-blocks", "torchao-blocks", "te-linears", "te-layers"):
        ratio = [float(speedups[variant][name]) for name in ("speedup", "speedup_low", "speedup_high")]
        assert "{} [{}, {}]".format(*(digits(number, 3) for number in ratio)) in readme
    pairs = {variant: row["pairs"] for variant, row in speedups.items()}
    assert pairs.pop("te-layers") == "4" and set(pairs.values()) == {"5"}
    assert "over 5 paired replicates, 4 for the whole layers" in readme
    runs = one_per_run(rows(H200 / "tables" / "runs.csv"))
    counts = Counter(row["status"] for row in runs)
    said = f"{counts['disturbed']} of their {len(runs)} runs are `disturbed` and {counts['missing']} is missing"
    assert said in readme
