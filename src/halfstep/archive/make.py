"""`halfstep archive`: a scope's results, what made them and what follows from them, as one file."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import halfstep
from halfstep.archive import about, crate, packing, readme
from halfstep.archive.citation import read_citation
from halfstep.archive.contents import copy_image, copy_raw, left_out, recorded, stale_runs
from halfstep.archive.layout import BESIDE_SOURCE, CONFIG, CRATE, DIFF, README, RESULTS, SOURCE, SUMS
from halfstep.archive.names import Names
from halfstep.archive.source import Source, find_source
from halfstep.config_file import read_config
from halfstep.current_code import current_code
from halfstep.mistakes import StudyError
from halfstep.parity.plan import ParityKey, parity_keys
from halfstep.records import write_text
from halfstep.report import snapshot, wording
from halfstep.report.results import load
from halfstep.report.write import rebuild
from halfstep.runs import RunKey, Scope, at_scale, run_keys
from halfstep.study import Study, validate

ROOT = Path(halfstep.__file__).parents[2]
SHOWN = 5  # places or runs that a sentence names
MIB = 1024**2


def archive(scope_dir: Path, out: Path, keep_names: bool = False) -> None:
    """Write the archive of a scope's folder. Nothing is measured, and the folder is only read.

    Args:
        scope_dir: the scope's folder, after a study has run.
        out: the archive, a zip file.
        keep_names: leave names of users and hosts and paths of homes where they are.

    Raises:
        StudyError: there is nothing to archive, results are not of the study, or a file that a person wrote holds the
            path of their home.
    """
    scope, study = snapshot.read(scope_dir)
    source = find_source(ROOT)
    citation = read_citation(ROOT / "CITATION.cff")
    names = None if keep_names else Names.here()
    with tempfile.TemporaryDirectory(prefix="halfstep-archive-") as work:
        folder = Path(work, "archive")
        results_dir = folder / RESULTS / scope.name
        copy_raw(scope_dir, results_dir)
        images = {str(run.record.get("image") or "host") for run in recorded(results_dir)} - {"host"}
        lost = copy_image((scope_dir.resolve().parent / "image", ROOT / "results" / "image"), images, folder)
        if names:
            for path in sorted((folder / RESULTS).rglob("*")):
                if path.is_file() and path.name != snapshot.FILE:
                    names.clean(path, of_run=path.parent.joinpath("record.json").exists())
        # again, since what was taken out of the raw results is to be nowhere
        rebuild(results_dir, study, scope)
        _all_of_the_study(results_dir)
        _copy_source(source, folder)
        if names:
            _no_homes(folder, names)
        results, runs = load(results_dir), recorded(results_dir)
        notes = [*_config_notes(study, scope), *_code_notes(results_dir, study, scope), *map(_lost_image, lost)]
        write_text(folder / README, readme.write(folder, results, runs, source, notes))
        about.write(folder, scope, source)
        write_text(folder / CRATE, crate.describe(folder, results, citation, runs))
        write_text(folder / SUMS, packing.sums(folder))
        packed = Path(work, "packed.zip")
        packing.pack(folder, packed)
        out.parent.mkdir(parents=True, exist_ok=True)
        beside = out.with_name(f".{out.name}")
        shutil.copyfile(packed, beside)
        beside.replace(out)
    for note in notes:
        print(f"archive: {note}", file=sys.stderr)
    if strange := left_out(scope_dir):
        print(f"archive: left out, since they are no results of a study: {_some(strange)}", file=sys.stderr)
    print(f"archive: {out} ({out.stat().st_size / MIB:.1f} MiB)", file=sys.stderr)


def _all_of_the_study(results_dir: Path) -> None:
    stale = stale_runs(results_dir)
    if stale:
        raise StudyError(
            f"{wording.count(len(stale), 'run')} cannot be archived as results of this study: {_some(stale, '; ')}. "
            "`make remeasure STATUS=stale` measures them again; without their folders they count as missing."
        )


def _copy_source(source: Source, folder: Path) -> None:
    (folder / SOURCE).mkdir()
    source.write(folder / SOURCE)
    for name in (CONFIG, *BESIDE_SOURCE):
        shutil.copyfile(ROOT / name, folder / name)
    if source.diff:
        (folder / DIFF).write_bytes(source.diff)


def _no_homes(folder: Path, names: Names) -> None:
    written = [folder / name for name in (CONFIG, DIFF) if (folder / name).exists()]
    written += [path for path in sorted((folder / SOURCE).rglob("*")) if path.is_file()]
    written += sorted((folder / RESULTS).glob(f"*/{snapshot.FILE}"))
    places = [f"{path.relative_to(folder)}, line {line}" for path in written for line in names.homes_in(path)]
    if places:
        raise StudyError(
            f"The path of your home stands in {_some(places, '; ')}: write another one there, or say --keep-names to "
            "`halfstep archive`, and it is archived as it is."
        )


def _config_notes(study: Study, scope: Scope) -> list[str]:
    """Where config.yaml does not say what was measured."""
    try:
        written = at_scale(validate(read_config(ROOT / CONFIG)), scope)
    except StudyError as error:
        return [f"config.yaml is not the study that was measured, which is in study.json: {error}"]
    ours, theirs = (one.model_dump(exclude={"container", "device", "scale"}) for one in (study, written))
    keys = [".".join(key) for key in _differing(ours, theirs)]
    if not keys:
        return []
    return [
        "config.yaml, as it lay beside the source, is not quite the study that was measured, which is in study.json: "
        f"they differ in {_some(keys)}."
    ]


def _differing(ours: Any, theirs: Any) -> list[tuple[str, ...]]:
    """The keys, down to comparisons, variants and claims, under which two studies differ."""
    if not isinstance(ours, Mapping) or not isinstance(theirs, Mapping):
        return [()] if ours != theirs else []
    return [(key, *rest) for key in {**ours, **theirs} for rest in _differing(ours.get(key), theirs.get(key))]


def _code_notes(results_dir: Path, study: Study, scope: Scope) -> list[str]:
    """How many runs another version of the code measured than the one that is archived."""
    places: dict[str, RunKey | ParityKey] = {f"runs/{c}/{v}/rep{n}": (c, v, n) for c, v, n in run_keys(study, scope)}
    places |= {f"parity/{key.folder}": key for key in parity_keys(study, scope)}
    codes = current_code(study, scope)
    found = [run for run in recorded(results_dir) if run.folder in places]
    other = [run for run in found if run.record.get("code_hash") != codes[places[run.folder]]]
    if not other:
        return []
    return [
        f"{len(other)} of {wording.count(len(found), 'run')} were measured by another version of the code than the one "
        "in source/: code_hash in their records tells them apart."
    ]


def _lost_image(digest: str) -> str:
    return f"Runs were made in the image {digest}, which lies in results/image/ no more: what was in it is unknown."


def _some(items: list[str], separator: str = ", ") -> str:
    more = f"{separator}and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
    return separator.join(items[:SHOWN]) + more
