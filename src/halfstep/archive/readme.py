"""README.md of an archive: for a reviewer who has nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from statistics import median

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from halfstep.archive.contents import Recorded
from halfstep.archive.layout import IMAGE, RESULTS
from halfstep.archive.source import Source
from halfstep.report import answers, problems, wording
from halfstep.report.markdown import prose
from halfstep.report.results import Results

KNOWN = ("runs", "tables", "figures", "system")


def write(folder: Path, results: Results, runs: Sequence[Recorded], source: Source, notes: Sequence[str]) -> str:
    """The text, for the archive whose files lie in `folder`. `notes` say what is not as one would expect."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    scope_dir = folder / RESULTS / results.scope.name
    return environment.get_template("readme.md.j2").render(
        title=prose(results.study.title),
        first_line=prose(answers.first_line(results)),
        ok=sum(row["status"] == "ok" for row in results.one_per_run),
        runs=results.one_per_run,
        name=results.scope.name,
        scope=f"{RESULTS}/{results.scope.name}",
        others=[path.name for path in sorted(scope_dir.iterdir()) if path.is_dir() and path.name not in KNOWN],
        doctor=(scope_dir / "system" / "doctor.json").exists(),
        images=[path.relative_to(folder).as_posix() for path in sorted((folder / IMAGE).glob("*"))],
        source=prose(source.words),
        changed=bool(source.diff),
        notes=[prose(note) for note in notes],
        command=problems.SNAKEMAKE + problems.IN_IMAGE * results.scope.image,
        machine=prose(results.machine),
        took=duration(sum((run.took for run in runs), timedelta())),
        in_image=results.scope.image,
        tolerance=prose(tolerance(results)),
    )


def duration(time: timedelta) -> str:
    minutes = round(time.total_seconds() / 60)
    if minutes < 1:
        return f"{time.total_seconds():.0f} s"
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest:02} min" if hours else f"{rest} min"


def tolerance(results: Results) -> str:
    """How far replicates were apart here, which is what a further one can be expected to be off by."""
    apart = {
        f"`{variant.name}` of {comparison.name}": variant.require("step_ms_max") / variant.require("step_ms_min") - 1
        for comparison in results.comparisons
        for variant in comparison.measured
        if int(variant.row["ok"]) > 1
    }
    if not apart:
        return (
            "No variant of a training step has two replicates, so nothing here says how far a further one would be off."
        )
    widest = max(apart, key=lambda name: apart[name])
    return (
        f"The step times of one variant's replicates differ here by {wording.percent(median(apart.values()))} in the "
        f"median over the variants, and by at most {wording.percent(apart[widest])} ({widest}): a further replicate on "
        "the same GPU and versions should lie no farther off. The interval of a speed-up that is measured again should "
        "overlap with the one in `tables/speedups.csv`, and which variant is the faster one should not change where "
        "that lies wholly above or below 1."
    )
