"""The command line. What a person did wrong ends in a sentence and exit code 2, never in a traceback."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from halfstep.mistakes import StudyError, nearest
from halfstep.parity.plan import ParityRun
from halfstep.registry import NEEDS_GPU, PARITY
from halfstep.runs import Run, Scope, at_scale
from halfstep.study import Study, validate

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

ScopeFolder = Annotated[Path, typer.Argument(help="the scope's folder, e.g. results/h200", metavar="RESULTS")]
LATEST, CONFIG = Path("results/latest"), Path("config.yaml")
StudyFile = Annotated[
    Path | None,
    typer.Option(
        "--study",
        metavar="FILE",
        help="judge the runs by this study, e.g. config.yaml, and the present code; else by RESULTS/study.json",
    ),
]


def fail(message: str) -> typer.Exit:
    """Say what was wrong; to be raised."""
    print(message, file=sys.stderr)
    return typer.Exit(2)


@app.command()
def run(
    resolved: Annotated[str, typer.Argument(metavar="RUN", help="the resolved run as JSON")],
    out: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="…/<comparison>/<variant>/rep<n>; of a parity run …/seed<n>")
    ],
    code: Annotated[str, typer.Option(help="fingerprint of the measuring code; computed if left out")] = "",
) -> None:
    """Measure one run in a process of its own and write its folder, whatever happens."""
    from halfstep.fingerprint import run_fingerprint
    from halfstep.measure import row, supervisor

    started = datetime.now(UTC)
    kind, place = (ParityRun, "<family>/<recipe>/seed") if PARITY in resolved else (Run, "<comparison>/<variant>/rep")
    try:
        the_run = kind.model_validate_json(resolved)
    except ValidationError as error:
        raise fail(f"RUN is not a resolved run: {error.errors()[0]['loc']}: {error.errors()[0]['msg']}") from error
    end = f"{place}{the_run.replicate}"
    if out.name != Path(end).name or len(out.parts) < 4:
        raise fail(f"FOLDER should end in {end}, and is {out}")
    title = f"{out.parents[1].name}/{out.parents[0].name} {out.name}"
    code = code or run_fingerprint(the_run.modules.values())
    cache = gpu = None
    try:
        cache = supervisor.prepare_cache(the_run, out)
        outcome, gpu = supervisor.supervise(the_run, out, title)
    except supervisor.Orphaned:
        raise fail(f"{title}: Snakemake is gone; the measurement was ended") from None
    except OSError as error:  # a compile cache that cannot be made, a full TMPDIR, no file descriptor left
        outcome = supervisor.Outcome("failed", f"the run could not be measured: {_told(error)}")
    if isinstance(the_run, ParityRun):
        row.write_parity(out, the_run, code, outcome, gpu, started)
    else:
        row.write(out, the_run, code, outcome, gpu, cache, started)
    print(f"{title}: {outcome.status}{': ' * bool(outcome.reason)}{outcome.reason}", file=sys.stderr)


def load_study(folder: Path, file: Path | None) -> tuple[Scope, Study]:
    """Scope and study: as the last `collect` left them in the folder, or the study given and the folder's own name."""
    from halfstep.config_file import read_config
    from halfstep.report import snapshot

    try:
        if file is None:
            return snapshot.read(folder)
        scope = snapshot.scope_by_name(folder)
        return scope, at_scale(validate(read_config(file), str(file)), scope)
    except StudyError as error:
        raise fail(str(error)) from error


@app.command()
def image(
    target: Annotated[str, typer.Argument(metavar="cpu|cuda", help="without or with what needs a GPU")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="where it goes, e.g. results/image/cuda")],
    study: Annotated[
        Path, typer.Option("--study", metavar="FILE", help="the study whose `container` says how")
    ] = CONFIG,
) -> None:
    """Build or fetch the image as one file for Apptainer, with its digest and its bill of materials."""
    from halfstep.config_file import read_config
    from halfstep.image.builders import TARGETS
    from halfstep.image.commands import ImageError
    from halfstep.image.make import make

    if target not in TARGETS:
        raise fail(f"the target {target!r} is unknown: {nearest(target, TARGETS)}")
    try:
        make(target, validate(read_config(study), str(study)).container, folder)
    except (StudyError, ImageError) as error:
        raise fail(str(error)) from error
    except OSError as error:  # a folder that may not be written to, a disk that is full
        raise fail(f"The image cannot be written: {_told(error)}") from error


@app.command()
def collect(folder: ScopeFolder = LATEST, study: StudyFile = None) -> None:
    """Gather the runs' CSVs into tables/."""
    from halfstep.current_code import current_code
    from halfstep.report.collect import collect as collect_runs

    scope, the_study = load_study(folder, study)
    collect_runs(folder, the_study, None if study is None else current_code(the_study, scope), scope)


@app.command()
def plot(folder: ScopeFolder = LATEST) -> None:
    """Draw figures/ from tables/."""
    from halfstep.report.figures import plot as plot_figures

    load_study(folder, None)  # it is there
    plot_figures(folder)


@app.command()
def report(
    folder: ScopeFolder = LATEST,
    study: StudyFile = None,
    text_only: Annotated[bool, typer.Option("--text-only", help="take tables/ and figures/ as they are")] = False,
) -> None:
    """Rebuild tables, figures and reports from the runs' raw CSVs; needs neither torch nor a GPU."""
    from halfstep.current_code import current_code
    from halfstep.report.last_line import last_line
    from halfstep.report.write import rebuild, write_report

    scope, the_study = load_study(folder, study)
    if text_only:
        write_report(folder)
    else:
        rebuild(folder, the_study, scope, None if study is None else current_code(the_study, scope))
    print(last_line(folder), file=sys.stderr)


@app.command()
def archive(
    folder: ScopeFolder = LATEST,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="else archive/halfstep-<scope>.zip in RESULTS")
    ] = None,
    keep_names: Annotated[
        bool, typer.Option("--keep-names", help="leave names of users and hosts and paths of homes where they are")
    ] = False,
) -> None:
    """Put results, tables, figures, report and source into one file that can be cited and verified."""
    from halfstep.archive.make import archive as make_archive

    scope, _ = load_study(folder, None)
    try:
        make_archive(folder, out or folder / "archive" / f"halfstep-{scope.name}.zip", keep_names)
    except StudyError as error:
        raise fail(str(error)) from error


@app.command()
def verify(file: Annotated[Path, typer.Argument(metavar="ARCHIVE", help="as `halfstep archive` makes it")]) -> None:
    """Check an archive: every file, every record, and all tables, figures and reports made again from the raw results.

    Exit code 0: all is right; 1: something differs, and is named; 2: it is no archive of ours, or might do harm.
    """
    from halfstep.archive.packing import Refused
    from halfstep.archive.verify import verify as verify_archive
    from halfstep.report.wording import one_line

    try:
        found = verify_archive(file)
    except Refused as error:
        raise fail(f"{file} {error}.") from error
    for sentence in (*found.right, *found.wrong):
        print(one_line(sentence))  # it may quote a stranger's file
    few = {0: "all is right", 1: "one thing is wrong"}
    print(f"{file}: {few.get(len(found.wrong), f'{len(found.wrong)} things are wrong')}")
    raise typer.Exit(1 if found.wrong else 0)


@app.command()
def claims(folder: ScopeFolder = LATEST) -> None:
    """Print the table of claims as Markdown, as it is in the report."""
    from halfstep.records import read_csv
    from halfstep.report import markdown
    from halfstep.report.claims import CLAIMS_COLUMNS

    load_study(folder, None)  # it is there
    print(markdown.claims(read_csv(folder / "tables" / "claims.csv", CLAIMS_COLUMNS)))


@app.command()
def doctor(
    as_json: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="write JSON there")] = None,
) -> None:
    """Say what this machine and environment can do, each thing proved by doing it."""
    from halfstep.records import write_json
    from halfstep.system.doctor import examine, print_table

    result = examine()
    if as_json:
        write_json(as_json, result)
    print_table(result)
    able = [row["name"] for row in result["capabilities"] if row["status"] == "available" and row["name"] in NEEDS_GPU]
    if able and result["machine"].get("gpu") is None:
        print(f"\nThis CPU can do it, but a study does it on a GPU only (`unsupported` here): {', '.join(able)}")


@app.command()
def schema() -> None:
    """Print the JSON Schema of config.yaml."""
    print(json.dumps(Study.model_json_schema(), indent=2))


@app.command()
def runs(
    folder: ScopeFolder = LATEST,
    status: Annotated[str, typer.Option(help="only runs of this status, e.g. unsupported, stale")] = "",
    comparison: Annotated[str, typer.Option(help="only runs of this comparison")] = "",
) -> None:
    """List the records of collected runs, one path a line, for `snakemake --forcerun`.

    Parity runs are of no comparison: with --comparison they are left out.
    """
    from halfstep.records import SUMMARY_COLUMNS, TABLE_STATUSES, RecordError, one_per_run, read_csv
    from halfstep.report.parity import PARITY_COLUMNS

    if status and status not in TABLE_STATUSES:
        raise fail(f"the status {status!r} is unknown: {nearest(status, TABLE_STATUSES)}")
    if folder.is_symlink():  # Snakemake knows the records by the scope's own folder
        folder = folder.parent / folder.readlink()
    try:
        rows = read_csv(folder / "tables" / "runs.csv", SUMMARY_COLUMNS)
        trained = read_csv(folder / "tables" / "parity.csv", PARITY_COLUMNS)
    except RecordError as error:
        raise fail(f"{folder}/tables: {error}; run the study first") from error
    names = list(dict.fromkeys(row["comparison"] for row in rows))
    if comparison and comparison not in names:
        raise fail(f"the comparison {comparison!r} is unknown: {nearest(comparison, names)}")
    for row in one_per_run(rows):
        if status in ("", row["status"]) and comparison in ("", row["comparison"]):
            print(folder / "runs" / row["comparison"] / row["variant"] / f"rep{row['replicate']}" / "record.json")
    for row in [] if comparison else trained:
        if status in ("", row["status"]):
            print(folder / "parity" / row["family"] / row["recipe"] / f"seed{row['seed']}" / "record.json")


def _told(error: OSError) -> str:
    """What the machine refuses, and where."""
    where = error.filename
    try:
        Path.cwd()
    except FileNotFoundError:
        where = where or "the folder that this was called in is gone"
    return ": ".join(str(part) for part in (where, error.strerror) if part) or str(error)


def main() -> None:
    from halfstep.records import RecordError

    try:
        app()
    except RecordError as error:
        message = f"{error}; `halfstep report` without --text-only makes tables and figures again"
    except OSError as error:  # a full disk, a folder that may not be written to
        message = _told(error)
    print(message, file=sys.stderr)
    sys.exit(2)
