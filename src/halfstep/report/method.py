"""The report's last words: how was measured, and how to do it again."""

from __future__ import annotations

from halfstep.report import answers, provenance
from halfstep.report.problems import IN_IMAGE, SNAKEMAKE
from halfstep.report.results import Results
from halfstep.runs import SMOKE_WINDOW


def paragraphs(results: Results) -> list[tuple[str, str]]:
    """Of each: what it is about, and its sentences."""
    smoke, cpu = results.scope.scale == "smoke", results.scope.device == "cpu"
    window = SMOKE_WINDOW if smoke else results.study.window
    as_many = f", or as many as fill {window.min_seconds:g} s at the warm-up's pace if that is more"
    article = (
        "; in a comparison by the article's protocol it is the mean of the window's steps on the host's clock, which "
        "is not waited for at the window's end"
    ) * bool(answers.clocked(results))
    found = [
        (
            "Replicates.",
            "A replicate is one process that builds the model, warms up and times a window of steps. Within a "
            "comparison the variants of one replicate run one after the other in a seeded shuffle, so that a variant "
            "meets its baseline on the same GPU in the same sitting.",
        ),
        (
            "Window.",
            f"Fixed beforehand: {window.warmup_steps} warm-up steps, then {window.min_steps} steps"
            f"{'' if smoke else as_many}. It is never extended for its result and no sample is dropped; steps that "
            "GradScaler skipped are counted apart.",
        ),
        (
            "Clock.",
            f"{'The wall clock' if cpu else 'CUDA events between steps, and the wall clock over the whole window'}, "
            "without a synchronisation of ours inside the window. A replicate's step time is the median of its "
            f"steps{article}. Random batches {'of tiny models ' * smoke}lie on the device unless the variant says "
            "otherwise.",
        ),
        (
            "Statistics.",
            "Replicates are the unit; steps only describe the spread. A speed-up is the geometric mean over paired "
            "replicates (same number, GPU, sitting and environment) of the baseline's time per sample over the "
            "variant's. Its interval is Student's t at 95 % on the log ratios. Where fewer than two pairs are left it "
            "is Welch's t on the logs, marked `unpaired`. No ratio crosses two environments. A winner is named only "
            "where its interval against every other variant lies above 1; these intervals are not corrected for how "
            "many there are.",
        ),
        (
            "Memory",
            "(GPU only). The highest peak of torch's allocator after the warm-up, over all replicates. What the CUDA "
            "context and other libraries hold is not in it.",
        ),
    ]
    if results.operators:
        timer = (
            "by `torch.utils.benchmark` in blocks, caches warm"
            if cpu
            else "by Triton's `do_bench`: CUDA events around each call, the L2 cache overwritten before it"
        )
        found.append(
            (
                "Operators.",
                f"Calls are timed {timer}, in a window of their own. A replicate's time is the median. Differences and "
                "SQNR are those from a float64 computation on the same operands, of a product before its casts.",
            )
        )
    return [
        *found,
        ("Energy", "(GPU only). The board's own energy counter over the window, by its steps."),
        (
            "Kernels",
            "(GPU only). Summed duration by kind in profiled steps outside the window; a fused kernel has one kind. "
            "Idle time is the unprofiled median less the union of the kernels' intervals.",
        ),
        (
            "FLOPs.",
            "Counted once per workload and batch on the plain fp32 model and used for every variant. A share of peak "
            "is given only against a stated peak for the precision of the matrix products.",
        ),
        (
            "Compilation.",
            "The first step and the time that went into compiling are those of replicates that reused no compile "
            "cache. Both lie outside the window. A recipe whose first step differs from the others compiles once more "
            "in the second, so compiling can take longer than the first step.",
        ),
    ]


def command(results: Results) -> str:
    """The one that makes these results."""
    return SNAKEMAKE + IN_IMAGE * results.scope.image


def conditions(results: Results) -> str:
    """What that command was called for, when, and with which code."""
    study, scope = results.study, results.scope
    return (
        f"{answers.replicates(results)} per variant, seed {study.seed} (replicate n uses seed + n), device "
        f"`{scope.device}`, {scope.scale} scale; {provenance.sittings(results)}. Code that measured: "
        f"{provenance.code_versions(results)}."
    )


def remake(results: Results) -> str:
    """How tables, figures and the reports are made from the runs."""
    return (
        f"`halfstep report results/{results.scope.name}` makes tables, figures and this page again from the raw CSVs, "
        "without a GPU and without torch."
    )
