"""`halfstep verify`: whether an archive is what it says, found out from its raw results alone and without trusting it.

Nothing in it is executed, and nothing is written outside a temporary folder.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path, PurePosixPath

from PIL import Image, ImageChops

from halfstep.archive import about, packing
from halfstep.archive.contents import copy_raw, stale_runs
from halfstep.archive.layout import ABOUT, CONFIG, CRATE, README, RESULTS, SOURCE, SUMS, is_made
from halfstep.archive.packing import Refused
from halfstep.errors import describe
from halfstep.mistakes import StudyError
from halfstep.report import snapshot, wording
from halfstep.report.write import rebuild
from halfstep.runs import Scope
from halfstep.study import Study

REQUIRED = (ABOUT, CONFIG, CRATE, README, f"{SOURCE}/Snakefile", "LICENSE", "CITATION.cff")
MOST_RUNS = 100_000  # of a study, each of which is looked for
SUM = re.compile(r"([0-9a-f]{64})  (.+)")
SHOWN = 60  # characters of a line that differs


@dataclass
class Verdict:
    """What was found: a sentence for each thing that is as it should be, and for each that is not."""

    right: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def verify(archive: Path) -> Verdict:
    """Compare an archive with its checksums, its records with its study, and what is made of the runs with the runs.

    Raises:
        Refused: it is not an archive of ours, or holds what might do harm.
    """
    found = Verdict()
    with tempfile.TemporaryDirectory(prefix="halfstep-verify-") as work:
        folder = Path(work, "archive")
        folder.mkdir()
        damaged = packing.unpack(archive, folder)
        found.wrong += [f"{name} cannot be read: {why}" for name, why in damaged.items()]
        if SUMS not in damaged:
            _check_sums(folder, damaged, found)
        if damaged:
            return found
        again = Path(work, "again.zip")
        packing.pack(folder, again)
        if place := packing.first_difference(archive, again):
            found.wrong.append(f"The file is not as halfstep packs these members: it differs from {place} on.")
            return found
        scope, drawn_by = about.read(folder)
        results = folder / RESULTS / scope.name
        try:
            study = _study(results, scope)
        except StudyError as error:
            found.wrong.append(f"{RESULTS}/{scope.name}/{snapshot.FILE}: {error}")
        else:
            _check_made(results, Path(work, "made", scope.name), scope, study, found)
        if found.wrong and (others := _others(drawn_by)):
            found.right.append(f"Tables and figures were made by {others}: that alone can make some of them differ.")
    return found


def _check_sums(folder: Path, damaged: dict[str, str], found: Verdict) -> None:
    if not (folder / SUMS).is_file():
        raise Refused(f"lacks {SUMS}")
    listed: dict[str, str] = {}
    for number, line in enumerate((folder / SUMS).read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        parts = SUM.fullmatch(line)
        if parts is None:
            raise Refused(f"has a {SUMS} whose line {number} is no checksum")
        listed[parts[2]] = parts[1]
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} | damaged.keys()
    for name in sorted({*listed, *REQUIRED} - there):
        raise Refused(f"lacks {name}")
    folders = {str(parent) for name in listed for parent in PurePosixPath(name).parents}
    there |= {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_dir()} - folders
    for name in sorted(there - listed.keys() - {SUMS}):
        raise Refused(f"holds {name!r}, which {SUMS} does not list")
    changed = [
        name for name in sorted(there - damaged.keys() - {SUMS}) if packing.sha256(folder / name) != listed[name]
    ]
    found.wrong += [f"{name} is not the file that {SUMS} says" for name in changed]
    if not changed and not damaged:
        found.right.append(f"{len(listed)} files are those of {SUMS}.")


def _study(results: Path, scope: Scope) -> Study:
    said, study = snapshot.read(results)
    if said != scope:
        raise StudyError(f"it is of the scope {said.name}, and {ABOUT} says {scope.name}.")
    runs = sum(len(entry.variants) * (entry.replicates or study.replicates) for entry in study.comparisons.values())
    if runs > MOST_RUNS:
        raise StudyError(f"it asks for {runs:,} runs, and more than {MOST_RUNS:,} are not looked for.")
    return study


def _check_made(results: Path, again: Path, scope: Scope, study: Study, found: Verdict) -> None:
    """Make tables, figures and reports from the raw results and compare them with those of the archive."""
    copy_raw(results, again)
    try:
        rebuild(again, study, scope)
        stale = stale_runs(again)
    except Exception as error:  # whatever the results of a stranger may lead to
        found.wrong.append(f"Tables, figures and report cannot be made from these runs: {describe(error)}")
        return
    found.wrong += [f"The run {run} is not of the study" for run in stale]
    if not stale:
        found.right.append("Every record is of the study: the hash of its configuration is the same.")
    ours, theirs = ({name for name in _names(folder) if is_made(name)} for folder in (again, results))
    prefix = f"{RESULTS}/{scope.name}"
    found.wrong += [f"{prefix}/{name} follows from the runs and is not there" for name in sorted(ours - theirs)]
    found.wrong += [f"{prefix}/{name} does not follow from the runs" for name in sorted(theirs - ours)]
    same = dict.fromkeys((True, False), 0)
    for name in sorted(ours & theirs):
        figure = name.endswith(".png")
        why = (_other_pixels if figure else _other_bytes)(results / name, again / name)
        if why:
            found.wrong.append(f"{prefix}/{name} is not what the runs give: {why}")
        else:
            same[figure] += 1
    found.right.append(
        f"{same[False]} tables, reports and vector figures follow from the runs byte for byte, and {same[True]} "
        "figures pixel for pixel."
    )


def _names(folder: Path) -> Iterator[str]:
    return (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def _other_bytes(archived: Path, again: Path) -> str | None:
    """How two files differ: the first line that does, of text."""
    ours, theirs = archived.read_bytes(), again.read_bytes()
    if ours == theirs:
        return None
    lines = zip_longest(*(data.decode("utf-8", "replace").split("\n") for data in (ours, theirs)), fillvalue="")
    differing = [(number, here, there) for number, (here, there) in enumerate(lines, 1) if here != there]
    if not differing or archived.suffix == ".pdf":
        return "its bytes differ"
    number, here, there = differing[0]
    return f"line {number} is {_short(here)} and should be {_short(there)}"


def _other_pixels(archived: Path, again: Path) -> str | None:
    """How two images differ. The archived one is read only if it is as large as the other."""
    if archived.read_bytes() == again.read_bytes():
        return None
    try:
        with Image.open(archived, formats=["PNG"]) as ours, Image.open(again) as theirs:
            if ours.size != theirs.size or ours.mode != theirs.mode:
                return f"it has {ours.width}x{ours.height} pixels and should have {theirs.width}x{theirs.height}"
            box = ImageChops.difference(ours, theirs).getbbox(alpha_only=False)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        return f"it cannot be read as an image: {describe(error)}"
    return None if box is None else f"pixels differ between {box[:2]} and {box[2:]}"


def _short(line: str) -> str:
    return repr(line if len(line) <= SHOWN else f"{line[:SHOWN]} …")


def _others(drawn_by: dict[str, str]) -> str:
    """By which other versions than are here; empty where they are the same."""
    here = about.drawn_by()
    other = [f"{name} {drawn_by.get(name)} (here {ours})" for name, ours in here.items() if drawn_by.get(name) != ours]
    return wording.join(other)
