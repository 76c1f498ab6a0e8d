"""Claims from the runs to the report, and comparisons by the article's protocol."""

from __future__ import annotations

import copy
import csv
import json
import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from typer.testing import CliRunner

from halfstep.cli import app
from halfstep.records import SUMMARY_COLUMNS, read_csv, write_csv
from halfstep.report.claims import claim_rows
from halfstep.report.collect import collect
from halfstep.report.figures import plot
from halfstep.report.results import load
from halfstep.report.write import write_report
from halfstep.study import Study, validate

VIT = {"samples": 32, "unit": "images", "tflop": 32.0, "peak": 989.0}
BEHAVIOUR = {
    "bf16": {**VIT, "ms": 100.0, "gib": 20.0, "kernels": {"GEMM": 60.0, "pointwise": 30.0, "cast/scale": 5.0}},
    "bf16-blocks": {**VIT, "ms": 80.0, "gib": 19.0, "kernels": {"GEMM": 60.0, "pointwise": 18.0}},
    "fp8": {**VIT, "ms": 120.0, "gib": 18.0, "kernels": {"GEMM": 30.0, "cast/scale": 40.0, "pointwise": 30.0}},
    "fp8-blocks": {
        **VIT, "ms": 66.0, "gib": 18.0, "host": 0.9, "graph_breaks": 3,
        "kernels": {"GEMM": 30.0, "cast/scale": 15.0, "pointwise": 18.0},
    },
    "torchao": {"status": "unsupported", "reason": "torchao is not installed; run `halfstep doctor`."},
    "cap-bf16-16": VIT | {"ms": 50.0},
    "cap-bf16-32": {"status": "out_of_memory", "reason": "OutOfMemoryError"},
    "cap-fp8-16": VIT | {"ms": 50.0},
    "cap-fp8-32": VIT | {"ms": 90.0},
}  # fmt: skip
GRID = {
    "bf16": {"precision": "bf16", "batch": 32},
    "bf16-blocks": {"precision": "bf16", "compile": "blocks", "batch": 32},
    "fp8": {"precision": "te_linears_delayed", "batch": 32},
    "fp8-blocks": {"precision": "te_linears_delayed", "compile": "blocks", "batch": 32},
    "torchao": {"precision": "torchao_tensorwise", "compile": "blocks", "batch": 32},
}
CAP = {
    f"cap-{name}-{batch}": {"precision": precision, "batch": batch, "memory_cap_gib": 22}
    for name, precision in (("bf16", "bf16"), ("fp8", "te_linears_delayed"))
    for batch in (16, 32)
}


def sides(comparison: str, variant: str, over: str | list[str]) -> dict[str, object]:
    return {"comparison": comparison, "variant": variant, "over": over}


D = sides("fair", "fp8-blocks", ["fp8", "torchao"])
CONFIG = {
    "comparisons": {
        "fair": {"workload": "vit_huge", "baseline": "bf16", "variants": GRID},
        "article": {"workload": "vit_huge", "baseline": "bf16", "protocol": "article", "variants": GRID},
        "cap": {"workload": "vit_huge", "baseline": "cap-bf16-16", "variants": CAP},
    },
    "claims": {
        "a": {
            "claim": "FP8 linears raise the throughput by 47 %",
            "source": "article 1",
            "ratio": 1.47,
            "article": sides("article", "fp8-blocks", "bf16"),
            "same_batch": sides("fair", "fp8-blocks", "bf16"),
            "both_compiled": sides("fair", "fp8-blocks", "bf16-blocks"),
        },
        "f": {"claim": "x | y", "source": "z", "ratio": 1.72, "same_batch": sides("fair", "fp8-blocks", "bf16")},
        "b": {"claim": "x", "source": "z", "order": True, "same_batch": sides("fair", "bf16", "fp8")},
        "c": {"claim": "x", "source": "z", "order": True, "same_batch": sides("fair", "fp8", ["bf16", "bf16-blocks"])},
        "d": {"claim": "x", "source": "z", "order": True, "same_batch": D},
        "e": {"claim": "x", "source": "z", "graph_breaks": {"comparison": "fair", "variant": "fp8-blocks"}},
        "g": {
            "claim": "x",
            "source": "z",
            "ratio": 2,
            "fits": {
                "comparison": "cap",
                "variants": ["cap-fp8-16", "cap-fp8-32"],
                "over": ["cap-bf16-16", "cap-bf16-32"],
            },
        },
        "q": {"claim": "x?", "source": "z", "same_batch": sides("fair", "fp8", "bf16-blocks")},
    },
}  # fmt: skip


@pytest.fixture
def scope(tmp_path: Path, scopes) -> Path:
    scopes.make(tmp_path / "h200", CONFIG, BEHAVIOUR)
    return tmp_path / "h200"


def table(folder: Path, name: str = "claims") -> dict[str, dict[str, str]]:
    with (folder / "tables" / f"{name}.csv").open(encoding="utf-8", newline="") as stream:
        return {row["claim"]: row for row in csv.DictReader(stream)}


def test_each_claim_has_its_verdict(scope):
    verdicts = {name: row["verdict"] for name, row in table(scope).items()}
    assert verdicts == {
        "a": "holds here",
        "f": "weaker here",
        "b": "holds here",
        "c": "does not hold here",
        "d": "not measurable here",
        "e": "holds here",
        "g": "holds here",
        "q": "slower",
    }


def test_three_ratios_their_sides_and_why(scope):
    row = table(scope)["a"]
    assert float(row["same_batch"]) == pytest.approx(100 / 66, rel=0.01)
    assert float(row["both_compiled"]) == pytest.approx(80 / 66, rel=0.01)
    assert float(row["same_batch_low"]) < float(row["same_batch"]) < float(row["same_batch_high"])
    assert (row["same_batch_pairs"], row["same_batch_method"]) == ("3", "paired")
    assert row["article_sides"] == "`fp8-blocks` over `bf16` (article)"
    assert row["why"].startswith("From `bf16` to `fp8-blocks` the step goes from 99.8 to 66.0 ms: GEMM from ")
    assert "GEMM from 60.0 to 30.0 ms" in row["why"]
    assert row["why"].endswith(".") and row["why"].count(".\n") == 0


def test_of_several_rivals_the_closest_is_shown(scope):
    row = table(scope)["c"]
    assert row["same_batch_sides"] == "`fp8` over `bf16-blocks`, the closest of `bf16` and `bf16-blocks` (fair)"
    assert float(row["same_batch"]) == pytest.approx(80 / 120, rel=0.01)


@pytest.mark.parametrize(
    ("over", "verdict", "said"),
    [
        (["fp8", "bf16-blocks"], "depends", r" Over `fp8` the ratio is 1\.\d+ \[1\.\d+, 1\.\d+\]\."),
        # what is faster, not what cannot be told, though its ratio is greater
        (["torchao", "fp8", "bf16-blocks"], "depends", r" Over `fp8` the ratio is 1\.\d+ \[1\.\d+, 1\.\d+\]\."),
        (["bf16-blocks", "torchao"], "not decided", r" Over `torchao` the ratio is 1\.\d+ \[0\.\d+, \d\.\d+\]\."),
        (["bf16-blocks"], "slower", ""),
        (["fp8", "bf16"], "faster", ""),
        (["torchao"], "not decided", ""),
    ],
)
def test_why_names_the_other_side_that_a_verdict_hangs_on(tmp_path, scopes, unsaved, over, verdict, said):
    """In the cell of the table itself, which is all that LaTeX and the README have."""
    behaviour = BEHAVIOUR | {"fp8-blocks": {**BEHAVIOUR["fp8-blocks"], "ms": 100.0}, "bf16": VIT | {"ms": 130.0}}
    behaviour["torchao"] = {**BEHAVIOUR["fp8"], "ms": 140.0, "noise": 0.3}
    config = {
        **CONFIG,
        "claims": {"q": {"claim": "x?", "source": "z", "same_batch": sides("fair", "fp8-blocks", over)}},
    }
    scopes.make(tmp_path / "h200", config, behaviour)
    row = table(tmp_path / "h200")["q"]
    assert row["verdict"] == verdict
    least = next(name for name in ("bf16-blocks", "fp8", "torchao") if name in over)
    assert row["why"].startswith(f"From `{least}` to `fp8-blocks` the step goes from ")
    assert re.search(rf"\.{said}$", row["why"]), row["why"]


def test_why_not_measurable_is_the_statuss_reason(scope):
    row = table(scope)["d"]
    assert row["why"] == "`torchao` is unsupported: torchao is not installed; run `halfstep doctor`."
    assert row["same_batch"] == ""


def test_why_of_batches_and_graph_breaks(scope):
    rows = table(scope)
    assert (
        rows["g"]["why"]
        == "With 22 GiB `bf16` fits batch 16 of 16 and 32 and `te_linears_delayed` fits batch 32 of 16 and 32."
    )
    assert rows["e"]["why"] == "torch.compile counted 3 graph breaks in `fp8-blocks`."


@pytest.mark.parametrize(
    ("larger", "cell"), [(True, "at least 2.00 times the batch, a count"), (False, "1.00 times the batch, a count")]
)
def test_the_ratio_of_batches_is_printed_as_a_count(tmp_path, scopes, unsaved, larger, cell):
    """In every form of the table; on the page not below `same batch`."""
    behaviour = BEHAVIOUR if larger else BEHAVIOUR | {"cap-fp8-32": BEHAVIOUR["cap-bf16-32"]}
    scope = tmp_path / "h200"
    scopes.make(scope, CONFIG, behaviour)
    row = table(scope)["g"]
    largest = 32 if larger else 16
    assert (float(row["batches"]), row["batches_at_least"]) == (largest / 16, str(int(larger)))
    assert row["batches_sides"] == f"{largest} of `te_linears_delayed` over 16 of `bf16` (cap)"
    assert not any(row[name] for name in ("same_batch", "same_batch_low", "same_batch_pairs"))
    text = report(scope)
    assert f"| 2.00 | – | {cell} | – | " in text
    assert "\n- `g`: largest batch that fits: " in text and "a count, so it has no interval." in text
    assert f" & {cell} & " in (scope / "tables" / "claims.tex").read_text()
    page = (scope / "report.html").read_text()
    assert f"<dt>largest batch that fits</dt><dd>{cell}</dd>" in page


def test_only_where_batches_are_claimed_the_legend_speaks_of_them(tmp_path, scopes, unsaved):
    config = {**CONFIG, "claims": {"b": CONFIG["claims"]["b"]}}
    scopes.make(tmp_path / "h200", config, BEHAVIOUR)
    assert "a count" not in report(tmp_path / "h200")


def test_without_kernel_times_why_is_the_two_step_times(tmp_path, scopes):
    behaviour = {name: {k: v for k, v in found.items() if k != "kernels"} for name, found in BEHAVIOUR.items()}
    scopes.make(tmp_path / "cpu", CONFIG, behaviour)
    assert table(tmp_path / "cpu")["b"]["why"].startswith("`bf16` takes 99.8 ms, `fp8` 12")


def test_one_replicate_is_not_decided(tmp_path, scopes):
    scopes.make(tmp_path / "h200", {**CONFIG, "replicates": 1}, BEHAVIOUR)
    row = table(tmp_path / "h200")["a"]
    assert (row["verdict"], row["same_batch_method"], row["same_batch_low"]) == ("not decided", "single", "")
    assert row["same_batch"]


@pytest.mark.parametrize("folder", ["h200", "cpu-smoke"])
def test_one_replicate_is_said_with_what_helps(tmp_path, scopes, folder, unsaved):
    scopes.make(tmp_path / folder, {**CONFIG, "replicates": 1}, BEHAVIOUR)
    plot(tmp_path / folder)
    write_report(tmp_path / folder)
    text = (tmp_path / folder / "report.md").read_text()
    assert "1 replicate" in text.splitlines()[0]
    assert "- `fp8`: one pair of replicates: no interval. It takes `replicates: 2` or more." in text
    assert "make remeasure COMPARISON=" not in text


def test_a_smoke_run_judges_no_claim(tmp_path, scopes, unsaved):
    scopes.make(tmp_path / "cpu-smoke", CONFIG, BEHAVIOUR)
    rows = table(tmp_path / "cpu-smoke")
    assert {row["verdict"] for row in rows.values()} == {"not measurable here"}
    assert {row["why"] for row in rows.values()} == {"A smoke run judges no claim."}
    assert rows["a"]["same_batch"]
    plot(tmp_path / "cpu-smoke")
    write_report(tmp_path / "cpu-smoke")
    text = (tmp_path / "cpu-smoke" / "report.md").read_text()
    assert "A smoke run judges no claim: its ratios only show that the table works." in text
    assert "mean of 5 steps on the host's clock" in text


def test_the_articles_protocol_goes_by_the_hosts_clock_everywhere(scope, unsaved):
    results = load(scope)
    fair, article = results.comparisons[:2]
    assert (fair.clock, article.clock) == ("", "mean of 41 steps on the host's clock")
    runs = [run for run in results.runs if (run["comparison"], run["variant"]) == ("article", "fp8-blocks")]
    host = [float(run["host_ms_mean"]) for run in runs]
    found = article["fp8-blocks"]
    assert found["step_ms"] == pytest.approx((host[0] * host[1] * host[2]) ** (1 / 3), rel=1e-5)
    assert found["samples_per_s"] == pytest.approx(32e3 / found["step_ms"], rel=1e-5)
    assert found["model_tflop_per_s"] == pytest.approx(32e3 / found["step_ms"], rel=1e-5)
    assert sum(found.kernels.values()) == pytest.approx(sum(host) / 3, rel=1e-5)
    # its clock runs 0.9 of the device's time, the baseline's 0.99
    assert found.speedup.value == pytest.approx(fair["fp8-blocks"].speedup.value * 0.99 / 0.9, rel=0.02)
    assert article.ranking.best == "fp8-blocks"
    plot(scope)
    captions = json.loads((scope / "figures" / "captions.json").read_text())
    assert all("mean of 41 steps on the host's clock" in figure["caption"] for figure in captions["article"].values())
    assert not any("host's clock" in figure["caption"] for figure in captions["fair"].values())
    assert "Means of replicates differ" in captions["article"]["spread"]["caption"]


def test_a_run_of_the_articles_protocol_without_its_time_is_stale(scope):
    path = scope / "runs" / "article" / "bf16" / "rep1" / "summary.csv"
    (row,) = read_csv(path, SUMMARY_COLUMNS)
    write_csv(path, SUMMARY_COLUMNS, [{**row, "host_ms_mean": ""}])
    collect(scope, validate(CONFIG))
    assert [run["reason"] for run in load(scope).runs if run["status"] == "stale"] == [
        "summary.csv says ok, and its host_ms_mean is empty"
    ]


def report(scope: Path) -> str:
    plot(scope)
    write_report(scope)
    return (scope / "report.md").read_text()


def test_claims_are_the_reports_second_table(scope, unsaved):
    text = report(scope)
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert headings[:2] == ["## What to use", "## Claims"]
    html = MarkdownIt("commonmark").enable("table").render(text)
    section = html[html.index("<h2>Claims</h2>") : html.index("<h2>fair</h2>")]
    assert section.count("<tr>") == 1 + len(CONFIG["claims"])
    assert "x | y (z)" in section
    assert "- `a`: by the article's protocol: `fp8-blocks` over `bf16` (article); same batch: `fp8-blocks`" in text


def test_what_to_use_does_not_go_by_the_articles_protocol(scope, unsaved):
    text = report(scope)
    answers = text[: text.index("## Claims")]
    assert "- **fair**: " in answers and "- **article**: " not in answers
    assert "Not asked here, since they go by the article's protocol: `article`." in answers
    assert "| mean step ms |" in text and "| run time s | final loss |" in text


def test_without_claims_there_is_no_section(h200, unsaved):
    assert "## Claims" not in report(h200)


def test_the_command_prints_the_reports_table(scope, unsaved):
    printed = CliRunner().invoke(app, ["claims", str(scope)])
    assert printed.exit_code == 0
    assert printed.stdout.startswith("| claim | expected |")
    assert printed.stdout in report(scope)


def test_a_changed_claim_needs_no_run(scope):
    config = copy.deepcopy(CONFIG)
    config["claims"]["a"]["ratio"] = 3.0
    collect(scope, validate(config))
    assert table(scope)["a"]["verdict"] == "weaker here"
    assert not [run for run in load(scope).runs if run["status"] == "stale"]


def operator_rows(variant: str, times: dict[str, float], status: str = "ok") -> dict[str, list[dict[str, str]]]:
    """Rows by case, three replicates each, as collect hands them on."""
    return {
        case: [
            {
                "comparison": "fair", "variant": variant, "case": case, "replicate": str(n), "gpu_uuid": "g",
                "sitting": "s", "environment": "e", "status": status, "reason": "no kernel" * (status != "ok"),
                "step_ms": str(ms * (1 + n / 1e4)), "samples_per_step": "1", "compile": "none",
                "kernel_ms": str(0.5 * ms) if variant == "fp8" else "",
            }
            for n in (1, 2, 3)
        ]
        for case, ms in times.items()
    }  # fmt: skip


def products(**sides: object) -> Study:
    """A study whose one claim is a question about shapes."""
    variants = {"bf16-blocks": {}, "fp8": {"gemm": "te"}}
    claim = copy.deepcopy(CONFIG["claims"]["q"])
    claim["same_batch"] |= sides
    fair = {"workload": "gemm", "baseline": "bf16-blocks", "variants": variants}
    return validate({"comparisons": {"fair": fair}, "claims": {"q": claim}})


@pytest.mark.parametrize(
    ("ours", "case", "verdict", "sides"),
    [
        (
            {"small": 1.0, "large": 8.0},
            None,
            "faster",
            "`fp8` over `bf16-blocks` at large, the least of 2 shapes (fair)",
        ),
        (
            {"small": 3.0, "large": 8.0},
            None,
            "depends",
            "`fp8` over `bf16-blocks` at small, the least of 2 shapes (fair)",
        ),
        ({"small": 3.0, "large": 8.0}, "large", "faster", "`fp8` over `bf16-blocks` at large (fair)"),
        ({"small": 1.0}, "lagre", "not measurable here", "`fp8` over `bf16-blocks` at lagre (fair)"),
    ],
)
def test_a_claim_over_shapes(ours, case, verdict, sides):
    theirs = operator_rows("bf16-blocks", {"small": 2.0, "large": 9.0})
    runs = {("fair", "fp8"): operator_rows("fp8", ours), ("fair", "bf16-blocks"): theirs}
    (row,) = claim_rows(products(case=case), runs, [], {}, smoke=False)
    assert (row["verdict"], row["same_batch_sides"]) == (verdict, sides)
    if verdict == "depends":
        assert row["why"] == (
            "`fp8` takes 3.00 ms, its kernels 1.50 ms, `bf16-blocks` 2.00 ms at small; over all 2 the ratio goes from "
            "0.667 to 1.12. At large the ratio is 1.125 [1.125, 1.125]."
        )
    if verdict == "not measurable here":
        assert row["why"] == "No run has the shape lagre."


def test_a_variant_that_failed_has_no_shapes_of_its_own():
    runs = {
        ("fair", "fp8"): operator_rows("fp8", {"": 1.0}, "unsupported"),
        ("fair", "bf16-blocks"): operator_rows("bf16-blocks", {"small": 2.0, "large": 9.0}),
    }
    (row,) = claim_rows(products(), runs, [], {}, smoke=False)
    assert (row["verdict"], row["why"]) == ("not measurable here", "`fp8` is unsupported: no kernel.")


@pytest.mark.parametrize(("order", "verdict"), [(True, "does not hold here"), (False, "not measurable here")])
def test_a_refuted_claim_shows_the_ratio_that_refutes_it(tmp_path, scopes, order, verdict):
    """Though another of the rivals could not be measured."""
    config = copy.deepcopy(CONFIG)
    versus = sides("fair", "fp8", ["torchao", "bf16-blocks"])
    config["claims"] = {"d": {"claim": "x", "source": "z", "order": order, "same_batch": versus}}
    scopes.make(tmp_path / "h200", config, BEHAVIOUR)
    row = table(tmp_path / "h200")["d"]
    assert row["verdict"] == verdict
    assert row["why"].startswith("From `bf16-blocks` to `fp8`" if order else "`torchao` is unsupported: ")
    assert bool(row["same_batch"]) == order


def test_a_batch_fits_if_it_does_in_one_of_the_variants(tmp_path, scopes):
    config = copy.deepcopy(CONFIG)
    twin = {"precision": "te_linears_delayed", "compile": "blocks", "batch": 32, "memory_cap_gib": 22}
    config["comparisons"]["cap"]["variants"]["cap-fp8-32-blocks"] = twin
    config["claims"] = {"g": config["claims"]["g"]}
    config["claims"]["g"]["fits"]["variants"].append("cap-fp8-32-blocks")
    without_memory = {"status": "out_of_memory", "reason": "OutOfMemoryError"}
    for name, (one, other) in {
        "one": ("cap-fp8-32", "cap-fp8-32-blocks"),
        "other": ("cap-fp8-32-blocks", "cap-fp8-32"),
    }.items():
        scopes.make(tmp_path / name / "h200", config, BEHAVIOUR | {one: VIT | {"ms": 90.0}, other: without_memory})
        row = table(tmp_path / name / "h200")["g"]
        assert row["verdict"] == "holds here"
        assert "`te_linears_delayed` fits batch 32 of 16 and 32" in row["why"]
