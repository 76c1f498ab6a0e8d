"""What can be wrong around a command: it says so in a sentence, and no result is lost.

Each on a copy of a finished study, by the real commands.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import yaml
from tree import Tree, report_line, side_by_side

HERE = Path(__file__).parent
CONFIG: dict[str, Any] = {
    "scale": "full",
    "replicates": 1,
    "comparisons": {
        "lm": {
            "workload": "lm",
            "baseline": "fp32",
            "variants": {"fp32": {"batch": 16}, "bf16": {"precision": "bf16", "batch": 16}},
        }
    },
}
SCOPE = "results/cpu"
TABLES = f"{SCOPE}/tables"
DOCTOR = f"{SCOPE}/system/doctor.json"
RECORD = f"{SCOPE}/runs/lm/bf16/rep1/record.json"
AGAIN = "`halfstep report` without --text-only makes tables and figures again"
SNAKEMAKE = ("snakemake", "--cores", "1")
Change = Callable[[Tree], Any]


def halfstep(*words: str) -> tuple[str, ...]:
    return "python3", "-m", "halfstep", *words


def under(limit: str, *words: str) -> tuple[str, ...]:
    """The command with a limit of the shell's `ulimit`."""
    return "sh", "-c", f'ulimit {limit}; exec "$@"', "sh", *halfstep(*words)


def nothing(tree: Tree) -> None:
    """The tree as it is."""


def remove(path: str) -> Change:
    return lambda tree: (tree.root / path).unlink()


def write(path: str, text: str) -> Change:
    return lambda tree: tree.write(path, text)


def cut(path: str) -> Change:
    return lambda tree: tree.write(path, tree.read(path)[:-3])


def decimal_commas(path: str) -> Change:
    """As a program saves it whose locale has them; it quotes such numbers."""

    def change(tree: Tree) -> None:
        cells = (cell.replace(".", ",") for cell in tree.read(path).split(","))
        tree.write(path, ",".join(f'"{cell}"' if "," in cell else cell for cell in cells))

    return change


def elsewhere(path: str) -> Change:
    """A folder in which nobody can make a file, not even root."""

    def change(tree: Tree) -> None:
        shutil.rmtree(tree.root / path)
        (tree.root / path).symlink_to("/sys/kernel")

    return change


def from_the_future(tree: Tree) -> None:
    later = (tree.root / RECORD).stat().st_mtime + 86_400
    os.utime(tree.root / RECORD, (later, later))


def copied_without_metadata(tree: Tree) -> None:
    shutil.rmtree(tree.root / ".snakemake")
    config = yaml.safe_load(tree.read("config.yaml"))
    config["comparisons"]["lm"]["variants"]["bf16"]["batch"] = 8
    tree.configure(config)


GONE = 'mkdir gone && cd gone && rmdir ../gone && exec "$@"'
# fault: what is changed in the finished tree, the command, its environment, its exit code, and what it has to say
Case = tuple[Change, tuple[str, ...], Mapping[str, str], int, tuple[str, ...]]
FAULTS: dict[str, Case] = {
    "results without .snakemake/, of another configuration": (
        copied_without_metadata, SNAKEMAKE, {}, 0,
        ("Nothing to be done", "code: 1 of the records in results/cpu/.", "--forcerun collect_runs"),
    ),
    "a record from the future, of a machine whose clock was wrong": (
        from_the_future, SNAKEMAKE, {}, 0, ("Nothing to be done",)
    ),
    "the disk is full when tables are made": (
        nothing, under("-f 0", "collect", SCOPE), {}, 2, (f"{TABLES}/runs.csv: File too large",)
    ),
    "a results folder that cannot be written to": (
        elsewhere(TABLES), halfstep("collect", SCOPE), {}, 2, (f"{TABLES}/.runs.csv.",)
    ),
    "a table is cut off": (
        cut(f"{TABLES}/runs.csv"), halfstep("report", SCOPE, "--text-only"), {}, 2, ("runs.csv is cut off", AGAIN)
    ),
    "a table was saved with decimal commas": (
        decimal_commas(f"{TABLES}/variants.csv"), halfstep("plot", SCOPE), {}, 2,
        ("variants.csv: ", " is not a number: ", AGAIN),
    ),
    "a record that the tables know is gone": (
        remove(RECORD), halfstep("report", SCOPE, "--text-only"), {}, 2, ("record.json cannot be read", AGAIN)
    ),
    "study.json is cut off": (
        cut(f"{SCOPE}/study.json"), halfstep("collect", SCOPE), {}, 2, (f"{SCOPE}/study.json cannot be read as JSON",)
    ),
    "doctor.json is not there": (remove(DOCTOR), halfstep("report", SCOPE, "--text-only"), {}, 0, ("report: ",)),
    "doctor.json is cut off": (write(DOCTOR, "{"), halfstep("report", SCOPE, "--text-only"), {}, 0, ("report: ",)),
    "results/latest leads nowhere": (
        lambda tree: shutil.rmtree(tree.root / SCOPE), halfstep("report"), {}, 2,
        ("results/latest/study.json is not there", "name the folder of a scope"),
    ),
    "the folder of the call is gone": (
        nothing, ("sh", "-c", GONE, "sh", *halfstep("collect", ".", "--study", "config.yaml")), {}, 2,
        ("the folder that this was called in is gone",),
    ),
    "a driver that does not answer": (
        nothing, SNAKEMAKE, {"CUDA_VISIBLE_DEVICES": "0", "NVML_FAULT": "driver-mismatch"}, 2,
        ("device is auto, and the loaded NVIDIA driver and its library differ in version: reboot", "`device: cpu`"),
    ),
    "a GPU that is not here": (
        nothing, SNAKEMAKE, {"CUDA_VISIBLE_DEVICES": "7"}, 2, ("names GPU 7, and this machine has 1",)
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """A finished study on the CPU of a machine with a GPU that is hidden. Only to be copied."""
    tree = Tree.make(tmp_path_factory.mktemp("calls") / "tree", CONFIG, stand_in=True)
    shutil.copy(HERE / "made_up_nvml.py", tree.root / "src" / "pynvml.py")
    tree.write("uuid", "GPU-of-no-run")
    tree.run(cores=2)
    return tree


@pytest.fixture(scope="module")
def calls(
    request: pytest.FixtureRequest, finished: Tree, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[tuple[subprocess.CompletedProcess[str], set[str]]]]]:
    """By fault: how its command ended, and which of the records are not as they were."""
    folder = tmp_path_factory.mktemp("faults")

    def call(fault: str) -> tuple[subprocess.CompletedProcess[str], set[str]]:
        change, command, environment, *_ = FAULTS[fault]
        tree = finished.copy(folder / str(list(FAULTS).index(fault)))
        change(tree)
        before = records(tree)
        done = tree.call(*command, **{"PYTHONPATH": str(tree.root / "src"), **environment})
        after = records(tree)
        return done, {path for path in before | after if before.get(path) != after.get(path)}

    with side_by_side(request, "fault", call) as calls:
        yield calls


def records(tree: Tree) -> dict[str, tuple[int, bytes]]:
    return {path: file for path, file in tree.contents().items() if path.startswith(f"{SCOPE}/runs/")}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault(fault: str, calls: dict[str, Future[tuple[subprocess.CompletedProcess[str], set[str]]]]) -> None:
    *_, code, parts = FAULTS[fault]
    done, lost = calls[fault].result()
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert [part for part in parts if part not in done.stderr] == [], done.stderr
    lines = [line for line in done.stderr.splitlines() if not line.startswith("Using workflow specific profile")]
    assert code == 0 or len(lines) == 1, done.stderr
    assert lost == set()


def test_two_calls_at_once(finished: Tree, tmp_path: Path) -> None:
    """The second one is refused, and the first one's run comes to its end."""
    tree = finished.copy(tmp_path / "tree")
    (tree.root / RECORD).unlink()
    tree.write("hang", "")
    with tree.started(RECORD, until="hanging") as first:
        second = tree.snakemake(RECORD)
        assert second.returncode == 1 and "cannot be locked" in second.stderr
        first.one("halfstep.measure.child").send_signal(signal.SIGUSR1)
        code, output = first.end()
    assert code == 0, output
    assert '"status": "ok"' in tree.read(RECORD)


def test_a_locale_with_decimal_commas(finished: Tree, tmp_path: Path, decimal_commas_here: dict[str, str]) -> None:
    """Even where a library sets the process's locale to the user's, tables, figures and report are the same bytes."""
    tree = finished.copy(tmp_path / "tree")
    before = {path: data for path, (_, data) in tree.contents().items() if path.startswith(SCOPE)}
    tree.write(
        "src/sitecustomize.py",
        'import locale\nlocale.setlocale(locale.LC_NUMERIC, "")\nassert locale.str(1.5) == "1,5"\n',
    )
    done = tree.halfstep("report", SCOPE, **decimal_commas_here)
    assert (done.returncode, done.stderr) == (0, f"{report_line(SCOPE)}\n")
    assert {path: data for path, (_, data) in tree.contents().items() if path.startswith(SCOPE)} == before
