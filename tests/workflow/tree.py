"""A copy of the working tree in which a test runs the real Snakemake."""

from __future__ import annotations

import csv
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import psutil
import pytest
import yaml

from halfstep.system.switches import without_switches

PROJECT = Path(__file__).resolve().parents[2]
STAND_IN = Path(__file__).with_name("stand_in.py")
# as src/sitecustomize.py of a tree that measures for real: the doctor would take as long as all else
NO_DOCTOR = """
import sys
from types import ModuleType

if "doctor" in sys.orig_argv:
    doctor = sys.modules["halfstep.system.doctor"] = ModuleType("doctor")
    doctor.examine = lambda: {"machine": {}, "capabilities": []}
    doctor.print_table = lambda result: None
"""
# at full scale settings count as they are written: at smoke scale batch and replicates are fixed
CONFIG: dict[str, Any] = {
    "title": "A study",
    "scale": "full",
    "parity": "never",  # tests/workflow/test_parity.py is about it
    "replicates": 2,
    "comparisons": {
        "lm": {
            "workload": "lm",
            "baseline": "fp32",
            "variants": {
                "fp32": {"precision": "fp32", "batch": 16},
                "bf16": {"precision": "bf16", "batch": 16},
                "tf32": {"precision": "tf32", "batch": 16},
            },
        },
        "vit": {
            "workload": "vit_huge",
            "baseline": "fp32",
            "variants": {
                "fp32": {"precision": "fp32", "compile": "blocks", "batch": 16},
                "bf16": {"precision": "bf16", "compile": "blocks", "batch": 16},
            },
        },
    },
}
REPORTING = {"collect_runs", "plot_figures", "write_report"}
NOTHING = "Nothing to be done (all requested files are present and up to date)."
LIMIT_S = 240  # a call that takes longer has hung


def clean_environment() -> dict[str, str]:
    """This process's, as a user's would be: this interpreter first, no GPU, nothing of ours or of torch's.

    Bytecode may be kept: without it importing torch takes twice as long.
    """
    ours = ("HALFSTEP_", "SNAKEMAKE_", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "PYTEST_")
    # an imported torch leaves some of its switches in the environment
    kept = {name: value for name, value in without_switches(os.environ).items() if not name.startswith(ours)}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**kept, "PATH": path, "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "200"}


def jobs_in(output: str) -> list[str]:
    """The jobs that Snakemake lists, in its order: `rule` or `measure_variant comparison/variant/n`."""
    jobs: list[str] = []
    for line in output.splitlines():
        if rule := re.fullmatch(r"(?:local)?(?:rule|checkpoint) (\w+):", line):
            jobs.append(rule[1])
        elif wildcards := re.fullmatch(r"    wildcards: (.+)", line):
            jobs[-1] += " " + "/".join(pair.partition("=")[2] for pair in wildcards[1].split(", "))
    return [job for job in jobs if job != "all"]


def runs(*names: str, replicates: int = 2) -> set[str]:
    """The measuring jobs of `comparison/variant` names."""
    return {f"measure_variant {name}/{n}" for name in names for n in range(1, replicates + 1)}


def report_line(scope_dir: str | Path, of: int = 0, **without: int) -> str:
    """The line that names the report: of so many timed runs, how many have no number, by status."""
    page = f"report: {scope_dir}/report.html (plain text: report.md); "
    if not without:
        return f"{page}every timed run has a number"
    counts = ", ".join(f"{n} {status}" for status, n in without.items())
    many = sum(without.values())
    return f"{page}{many} of {of} timed runs {'has' if many == 1 else 'have'} no number: {counts}"


@contextmanager
def side_by_side(
    request: pytest.FixtureRequest, parameter: str, work: Callable[[str], Any]
) -> Iterator[dict[str, Future[Any]]]:
    """By the values of a parameter in the chosen tests of a module, work that is done on all cores before its test."""
    params = (getattr(item, "callspec", None) for item in request.session.items if item.module is request.module)
    values = dict.fromkeys(spec.params[parameter] for spec in params if spec and parameter in spec.params)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        yield {value: pool.submit(work, value) for value in values}


class Tree:
    """Snakefile, rules and sources, config.yaml and what Snakemake made there."""

    limit_s: float = LIMIT_S

    def __init__(self, root: Path) -> None:
        self.root = root
        self.begun: list[str] = []
        """the jobs of the last `run`, in the order in which they began"""

    @classmethod
    def make(cls, root: Path, config: Mapping[str, Any], *, stand_in: bool) -> Self:
        """A fresh tree, which measures for real or by the stand-in."""
        root.mkdir(parents=True)
        names = ("Snakefile", "rules", "src", "profiles", "docker", ".dockerignore", "Makefile", "pyproject.toml")
        archived = ("README.md", "CITATION.cff", "LICENSE", "requirements.lock")
        for name in (*names, "requirements-train.lock", *archived):
            source = PROJECT / name
            if source.is_dir():
                shutil.copytree(source, root / name)
            elif source.exists():
                shutil.copy2(source, root / name)
        if stand_in:
            shutil.copy2(STAND_IN, root / "src" / "sitecustomize.py")
        tree = cls(root)
        tree.configure(config)
        return tree

    def copy(self, root: Path) -> Self:
        shutil.copytree(self.root, root, symlinks=True)
        return type(self)(root)

    def configure(self, config: Mapping[str, Any] | str) -> None:
        text = config if isinstance(config, str) else yaml.safe_dump(dict(config), sort_keys=False)
        self.write("config.yaml", text)

    def write(self, path: str, text: str) -> None:
        (self.root / path).write_text(text, encoding="utf-8")

    def read(self, path: str) -> str:
        return (self.root / path).read_text(encoding="utf-8")

    def edit(self, path: str, old: str, new: str) -> None:
        """Replace what stands exactly once in a file."""
        text = self.read(path)
        assert text.count(old) == 1, f"{path} holds {old!r} {text.count(old)} times"
        self.write(path, text.replace(old, new))

    def call(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the environment's in the tree's root."""
        return subprocess.run(
            command,
            cwd=self.root,
            env={**clean_environment(), **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=self.limit_s,
        )

    def snakemake(self, *arguments: str, cores: int = 1, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.call("snakemake", "--cores", str(cores), *arguments, **environment)

    def halfstep(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """`halfstep` from this tree; the installed script would take the working tree's."""
        return self.call("python3", "-m", "halfstep", *arguments, **{"PYTHONPATH": "src", **environment})

    def run(self, *arguments: str, cores: int = 1, **environment: str) -> list[str]:
        """The jobs of a call that succeeds, in the order in which they began."""
        done = self.snakemake(*arguments, cores=cores, **environment)
        assert done.returncode == 0, done.stderr
        self.begun = jobs_in(done.stderr)
        return self.begun

    def plan(self, *arguments: str) -> set[str]:
        """The jobs that the next call would run; a dry run."""
        done = self.snakemake("--dry-run", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        text = done.stdout + done.stderr
        jobs = jobs_in(text)
        assert bool(jobs) != (NOTHING in text), text
        assert len(jobs) == len(set(jobs)), jobs
        return set(jobs)

    def rows(self, path: str) -> list[dict[str, str]]:
        """Rows of a CSV of ours, as text."""
        with (self.root / path).open(encoding="utf-8", newline="") as stream:
            return list(csv.DictReader(stream))

    def contents(self) -> dict[str, tuple[int, bytes]]:
        """Every file's time and bytes, but for Snakemake's logs, which it opens first, and Python's bytecode."""
        return {
            str(path.relative_to(self.root)): (path.stat().st_mtime_ns, path.read_bytes())
            for path in sorted(self.root.rglob("*"))
            if path.is_file() and "__pycache__" not in path.parts and path.parent != self.root / ".snakemake" / "log"
        }

    def running(self) -> dict[psutil.Process, str]:
        """All processes that work in this tree, with their commands."""
        found = {}
        for process in psutil.process_iter():
            try:
                if Path(process.cwd()).is_relative_to(self.root):
                    found[process] = " ".join(process.cmdline())
            except psutil.Error:  # gone, or a zombie
                continue
        return found

    def processes(self) -> list[str]:
        return list(self.running().values())

    @contextmanager
    def started(self, *arguments: str, until: str, nodes: bool = False, **environment: str) -> Iterator[Call]:
        """Snakemake in a session of its own, as from a terminal, once a line of its output holds `until`.

        With `nodes` its jobs are not below it.
        """
        process = subprocess.Popen(
            ["snakemake", "--cores", "1", *arguments],
            cwd=self.root,
            env={**clean_environment(), **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            # tests that run in the background have Ctrl-C ignored, which children inherit
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        call = Call(process)
        watchdog = threading.Timer(LIMIT_S, call.kill)
        watchdog.start()
        try:
            call.last_line = call.read_until(until)
            if not nodes:
                call.note_family()
            yield call
        finally:
            watchdog.cancel()
            call.kill()


class Call:
    """A running Snakemake."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.family: list[psutil.Process] = []
        self.last_line = ""

    def read_until(self, text: str) -> str:
        assert self.process.stdout is not None
        seen = []
        for line in self.process.stdout:
            seen.append(line)
            if text in line:
                return line
        raise AssertionError(f"Snakemake ended before {text!r}:\n{''.join(seen)}")

    def note_family(self) -> None:
        """Remember all processes below Snakemake, once there are any: a job that it has announced is about to start."""
        while not self.family and self.process.poll() is None:
            self.family = psutil.Process(self.process.pid).children(recursive=True)

    def one(self, *words: str) -> psutil.Process:
        """The one process of the family whose command holds these words in a row."""
        found = [process for process in self.family if holds(process.cmdline(), words)]
        assert len(found) == 1, [process.cmdline() for process in self.family]
        return found[0]

    def signal_group(self, number: signal.Signals) -> None:
        """As a terminal does for Ctrl-C, and Slurm when it ends a job."""
        os.killpg(self.process.pid, number)

    def end(self) -> tuple[int, str]:
        """Exit code and the rest of the output, once Snakemake is gone."""
        output, _ = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, output

    def survivors(self, seconds: float = 20) -> list[psutil.Process]:
        """Who of the family is still there after at most so many seconds; a zombie is not."""
        _, alive = psutil.wait_procs(self.family, timeout=seconds)
        return [process for process in alive if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]

    def kill(self) -> None:
        """End whatever is left; for the end of a test."""
        for process in (*self.family, self.process):
            try:
                process.kill()
            except (psutil.NoSuchProcess, ProcessLookupError):
                continue
        if self.process.stdout:
            self.process.stdout.close()
        self.process.wait()


def holds(command: list[str], words: tuple[str, ...]) -> bool:
    return any(tuple(command[place : place + len(words)]) == words for place in range(len(command)))
