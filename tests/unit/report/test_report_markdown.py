"""report.md: what it says first, what it lists, that nothing breaks it, and that it is the same each time."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from typer.testing import CliRunner

from halfstep.cli import app
from halfstep.records import write_json
from halfstep.report import snapshot
from halfstep.report.collect import collect
from halfstep.report.figures import plot
from halfstep.report.markdown import prose
from halfstep.report.results import load
from halfstep.report.wording import ratio
from halfstep.report.write import write_report
from halfstep.runs import Scope
from halfstep.study import validate

HOSTILE = (
    "boom | `rm` <script>alert(1)</script> **b**\n\n# head\n| a | b |\n![x](http://x) [y](z) $x$ \\| ``x ~~y~~ &lt;"
)


def report(scope_dir: Path) -> str:
    plot(scope_dir)
    write_report(scope_dir)
    return (scope_dir / "report.md").read_text()


def tables(text: str) -> list[list[list[str]]]:
    """The cells of each table, as a Markdown renderer sees them."""
    found: list[list[list[str]]] = []
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type == "table_open":
            found.append([])
        elif token.type == "tr_open":
            found[-1].append([])
        elif token.type == "inline" and token.level >= 4 and found:
            found[-1][-1].append(token.content)
    return found


def test_the_first_line_says_what_run_it_was(h200, unsaved):
    assert (
        report(h200).splitlines()[0]
        == "**Full study on one NVIDIA H200, 3 replicates per variant, not in a container image.**"
    )


def test_a_smoke_run_says_that_it_is_one(tmp_path, scopes, unsaved):
    behaviour = {
        "eager": {**scopes.vit, "ms": 60.0, "noise": 0.05},
        "blocks": {**scopes.vit, "ms": 59.0, "noise": 0.05},
    }
    scopes.make(tmp_path / "cpu-smoke", scopes.config, behaviour)
    text = report(tmp_path / "cpu-smoke")
    assert text.startswith("**Smoke run on a CPU (AMD EPYC 9B14): tiny models, 2 replicates; these figures test the")
    assert "A smoke run is not asked that; the sections below only show that the pipeline works." in text
    assert "measured fastest" not in text
    assert "## ViT-Huge, batch 128 (smoke: tiny model, batch 16)" in text


def test_answers_come_first(h200, unsaved):
    text = report(h200)
    answer = text[text.index("## What to use") : text.index("## ViT-Huge, batch 128")]
    assert "use `bf16-foreach`: 1.066 [" in answer and "and 1.33" in answer
    assert "use `lm-graphs`: 1.25" in answer and "and 9.0" in answer
    assert (
        "Loss parity is not checked (none of its 18 runs was made): these answers are about speed and memory" in answer
    )


def test_what_has_no_number_and_may_be_faster_is_named(h200, scopes, unsaved):
    """But not what this machine cannot do."""
    study = validate(scopes.config)
    disturbed = {**scopes.behaviour["lm-graphs"], "status": "disturbed", "reason": "it drifted"}
    for replicate in (1, 2, 3):
        scopes.write_run(h200, study, ("lm", "lm-graphs", replicate), disturbed)
    collect(h200, study)
    text = report(h200)
    (answer,) = [line for line in text.splitlines() if "use `lm-bf16`" in line]
    assert answer.endswith("Without a number, and perhaps faster: `lm-graphs` (disturbed).")


def test_a_tie_is_called_one(tmp_path, scopes, unsaved):
    behaviour = {name: {**scopes.behaviour[name], "noise": 0.02} for name in ("eager", "blocks", "whole")}
    scopes.make(tmp_path / "h200", scopes.config, behaviour)
    text = report(tmp_path / "h200")
    assert "measured fastest" in text
    assert "but cannot be told apart from `" in text
    assert "use `" not in text


@pytest.mark.parametrize("replicates", [2, 3])
def test_a_tie_for_lack_of_replicates_says_how_wide_its_interval_is(tmp_path, scopes, unsaved, replicates):
    """In the answer and in the figure's caption, of the baseline too; a pair more and the name is enough."""
    behaviour = {name: {**scopes.behaviour["eager"], "noise": 0.01} for name in ("eager", "blocks", "whole")}
    scopes.make(tmp_path / "h200", {**scopes.config, "replicates": replicates}, behaviour)
    text = report(tmp_path / "h200")
    comparison = load(tmp_path / "h200").comparisons[0]
    ties, few = comparison.ranking.ratios, replicates < 3
    assert len(comparison.ranking.tied) == 2
    shown = {n: f"`{n}` (only 2 pairs: {ratio(ties[n])})" if few else f"`{n}`" for n in comparison.ranking.tied}
    (answer,) = [line for line in text.splitlines() if "nothing clears the noise" in line]
    (other,) = [name for name in shown if name != "eager"]
    assert f"cannot be told apart from the baseline {shown['eager']}, nor from {shown[other]}." in answer
    (caption,) = [line for line in text.splitlines() if line.startswith("**Speed-up over the baseline.** `b")]
    assert f"It cannot be told apart from {shown[other]}." in caption
    best = comparison.ranking.best
    itself = f"`{best}` (only 2 pairs: {ratio(comparison[best].speedup)})" if few else f"`{best}`"
    assert f"Not to be told apart from the baseline: {itself}" in caption


def test_a_tie_with_the_baseline_says_that_nothing_clears_the_noise(tmp_path, scopes, unsaved):
    behaviour = {name: {**scopes.behaviour["eager"], "noise": 0.02} for name in ("eager", "blocks")}
    scopes.make(tmp_path / "h200", scopes.config, behaviour)
    assert "nothing clears the noise" in report(tmp_path / "h200")


def test_what_did_not_run_is_listed_with_its_reason_and_what_to_do(h200, scopes, unsaved):
    shutil.rmtree(h200 / "runs" / "lm" / "lm-bf16" / "rep3")
    shutil.copytree(
        h200 / "runs" / "lm" / "lm-graphs" / "rep1", h200 / "runs" / "lm" / "lm-bf16" / "rep2", dirs_exist_ok=True
    )
    collect(h200, validate(scopes.config))
    text = report(h200)
    section = text[text.index("## What did not run, and why") : text.index("## Environment")]
    headings = [line for line in section.splitlines() if line.startswith("### ")]
    assert headings == [
        "### Missing: 1 run",
        "### Stale: 1 run",
        "### Out of memory: 3 runs",
        "### Unsupported: 3 runs",
    ]
    assert "| `lm` | `lm-bf16` | 3 | no record" in section
    assert "| `lm` | `lm-bf16` | 2 | the record is of another run: lm/lm-graphs/1 |" in section
    assert "| `vit-b128` | `fp32` | 1–3 | OutOfMemoryError: CUDA out of memory." in section
    assert "`make remeasure STATUS=out_of_memory`" in section
    assert "| apex | missing | no module | see docs/apex.md |" in section


def test_a_hostile_reason_breaks_nothing(tmp_path, scopes, unsaved):
    config = json.loads(json.dumps(scopes.config))
    config["title"] = HOSTILE
    config["comparisons"]["lm"]["title"] = HOSTILE
    config["comparisons"]["lm"]["variants"]["lm-bf16"] = config["comparisons"]["lm"]["variants"].pop("lm-fp16")
    worst = "a__b--c.._" + "x" * 79 + "y"
    config["comparisons"]["lm"]["variants"][worst] = {"precision": "bf16"}
    behaviour = {
        **scopes.behaviour,
        "lm-bf16": {"status": "failed", "reason": HOSTILE},
        worst: scopes.behaviour["lm-bf16"],
    }
    scopes.make(tmp_path / "h200", config, behaviour)
    (tmp_path / "h200" / "system" / "doctor.json").write_text(
        json.dumps({"capabilities": [{"name": HOSTILE, "status": "x|y", "detail": HOSTILE, "remedy": HOSTILE}]})
    )
    text = report(tmp_path / "h200")
    for table in tables(text):
        assert {len(row) for row in table} == {len(table[0])}
    assert any(row[1] == f"`{worst}`" or row[0] == f"`{worst}`" for table in tables(text) for row in table)
    html = MarkdownIt("commonmark").enable("table").render(text)
    assert "<script" not in html
    assert "http://x" not in html.replace("(http://x)", "")
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert html.count("<h1>") == 1


@pytest.mark.parametrize("text", [HOSTILE, "``a``", "`a` b ` c", "\\`a`", "`a|b`", "a\x00\x1b[31mb", "[x]: y", "- a"])
def test_prose_shows_any_text_as_one_line(text):
    shown = MarkdownIt("commonmark").enable("table").render(f"| x {prose(text)} |\n| --- |\n| {prose(text)} |\n")
    assert shown.count("<td>") == shown.count("<th>") == 1
    for tag in ("<script", "<strong", "<em", "<a ", "<img", "<h1"):
        assert tag not in shown


def test_the_environment_is_in_it_and_two_of_them_are_both_in_it(h200, scopes, unsaved):
    text = report(h200)
    assert "| torch | 2.11.0+cu130 |" in text
    study = validate(scopes.config)
    other = {"environment": {**scopes.environment, "torch": "2.12.0"}, "environment_hash": "e2"}
    for replicate in (1, 2, 3):
        scopes.write_run(h200, study, ("vit-b128", "whole", replicate), scopes.behaviour["whole"], **other)
    collect(h200, study)
    text = report(h200)
    assert "| torch | 2.11.0+cu130 | 2.12.0 |" in text
    assert "`whole`: measured in another environment than the baseline: no ratio across two." in text


def test_a_bare_record_gives_dashes(h200, scopes, unsaved):
    """Keys that another version of the supervisor does not write are no reason to fail."""
    for path in h200.glob("runs/*/*/*/record.json"):
        record = json.loads(path.read_text())
        for key in ("environment", "environment_hash", "gpu", "threads", "image", "started", "ended", "sitting"):
            record.pop(key)
        path.write_text(json.dumps(record))
    assert report(h200).startswith("**Full study on one h200, 3 replicates per variant, not in a container image.**")


def test_nothing_measured_at_all_is_still_a_report(tmp_path, scopes, unsaved):
    scopes.make(tmp_path / "h200", scopes.config, {})
    text = report(tmp_path / "h200")
    assert text.startswith("**No run of this study has left a usable record for h200")
    assert "### Missing: 27 runs" in text


REBUILD = """
import sys
from pathlib import Path
from halfstep.report import snapshot, write
scope = Path(sys.argv[1])
the_scope, study = snapshot.read(scope)
write.rebuild(scope, study, the_scope)
print(sorted(name for name in sys.modules if name.split(".")[0] in ("torch", "triton", "timm")))
"""


def test_rebuilding_elsewhere_gives_the_same_bytes_without_torch(h200, tmp_path):
    """From the raw files and study.json alone, in another process, folder, time zone, locale and hash seed."""
    report(h200)
    other = tmp_path / "elsewhere" / "h200"
    for name in ("runs", "system"):
        shutil.copytree(h200 / name, other / name)
    shutil.copy(h200 / "study.json", other)
    environment = {**os.environ, "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo", "LC_ALL": "C", "SOURCE_DATE_EPOCH": "1"}
    done = subprocess.run(
        [sys.executable, "-c", REBUILD, str(other)], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
    before, after = (
        {path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        for root in (h200, other)
    )
    assert before.keys() == after.keys()
    assert [str(path) for path in before if before[path] != after[path]] == []


def halfstep(*arguments: object) -> None:
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == 0, result.output


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_scope_is_what_study_json_says_whatever_the_folder_is_called(h200, monkeypatch):
    """Nothing becomes stale, and every file comes out the same."""
    halfstep("report", h200)
    before = contents(h200)
    latest = h200.parent / "results" / "latest"
    latest.parent.mkdir()
    latest.symlink_to(h200, target_is_directory=True)
    renamed = h200.parent / "copy-image-smoke"
    shutil.copytree(h200, renamed)
    for command, folder, arguments in (
        ("report", latest, [latest]),
        ("report", renamed, [renamed]),
        ("collect", h200, [Path()]),
        ("report", h200, []),
    ):
        monkeypatch.chdir(h200 if arguments == [Path()] else h200.parent)
        halfstep(command, *arguments)
        assert contents(folder) == before


def test_with_a_study_given_the_folders_real_name_is_the_scope(h200, scopes, tmp_path):
    (tmp_path / "latest").symlink_to(h200, target_is_directory=True)
    (h200 / "study.json").unlink()
    study = validate(scopes.config)
    write_json(tmp_path / "given.json", study.model_dump(mode="json"))
    halfstep("collect", tmp_path / "latest", "--study", tmp_path / "given.json")
    assert snapshot.read(h200) == (Scope.parse("h200"), study)


@pytest.mark.parametrize("text", ["{", "[]", '{"comparisons": {}}', '{"scope": "h200"}'])
def test_a_study_json_that_does_not_name_its_scope_is_refused_and_nothing_is_destroyed(h200, text):
    (h200 / "study.json").write_text(text)
    before = contents(h200)
    result = CliRunner().invoke(app, ["report", str(h200)])
    assert result.exit_code == 2
    assert "study.json" in result.stderr
    assert contents(h200) == before


def test_the_answer_compares_with_the_next_best_as_ranking_csv_has_it(h200, unsaved):
    text = report(h200)
    ranking = load(h200).comparisons[0].ranking
    assert (ranking.best, ranking.next_best) == ("bf16-foreach", "blocks")
    assert f"use `bf16-foreach`: {ratio(ranking.ratios['blocks'])} times `blocks`, the next best, and 1.33" in text
    assert "times the baseline `eager`; " in text


def test_idle_gpus_unlike_replicates_power_and_settings_are_said(h200, scopes, unsaved):
    study = validate(scopes.config)
    slow = {**scopes.behaviour["eager"], "ms": 420.0}
    scopes.write_run(h200, study, ("vit-b128", "eager", 2), slow, applied={"parameters": 632304384})
    collect(h200, study)
    text = report(h200)
    assert "- Replicate 2 of `eager` ran 17 % slower than the others (4" in text
    assert "Replicate 1 of `eager`" not in text
    assert "precision `fp32` (`fp32`) and `bf16` (`eager`, `blocks`, `whole` and `bf16-foreach`), compile " in text
    assert ", weights `fp32`, optimizer `adam_fused` (" in text
    assert "norm `layernorm`, data `resident`, 632,304,384 parameters." in text
    assert "Host-bound: the GPU idles" in text
    assert "Seldom or never at the 700 W power limit in any run; mean SM clock 1890 MHz." in text
    assert "Model FLOPs: 0.9800 TFLOP per image. Stated dense peak in TFLOP/s: 989 for `eager`" in text
    assert "Stated dense peak in TFLOP/s: 67 for `lm-fp32` and 989 for `lm-bf16` and `lm-graphs`." in text


def test_the_doctors_table_is_there_only_for_unsupported_runs_with_equal_remedies_once(h200, scopes, unsaved):
    capabilities = [{"name": n, "status": "missing", "detail": "no module", "remedy": "see docs"} for n in "ab"]
    gone = {"name": "c", "status": "removed", "detail": "since 2025", "remedy": "use another"}
    (h200 / "system" / "doctor.json").write_text(json.dumps({"capabilities": [*capabilities, gone]}))
    assert "| a; b | missing | no module | see docs |" in report(h200)
    assert "use another" not in report(h200)
    config = json.loads(json.dumps(scopes.config))
    del config["comparisons"]["lm"]["variants"]["lm-fp16"]
    collect(h200, validate(config))
    assert "halfstep doctor` found" not in report(h200)
