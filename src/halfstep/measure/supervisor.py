"""`halfstep run`: measures in a child process and writes the run's folder for whatever the child does.

It imports no torch, so that nothing the measured code does (a crash, a hang, running out of memory,
endless output) can keep the row from being written.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from halfstep.measure.ancestor import snakemake_pidfd
from halfstep.measure.progress import Progress
from halfstep.registry import NEEDS_GPU
from halfstep.runs import Run
from halfstep.system.container import why_no_gpu_inside
from halfstep.system.gpu import Gpu, GpuError, hidden, visible_gpu
from halfstep.system.gpu_lock import GpuLock
from halfstep.system.switches import switches, without_switches
from halfstep.system.telemetry import Sampler, Telemetry
from halfstep.validity import verdict

LOG_HEAD, LOG_TAIL = 64 * 1024, 256 * 1024
LOCK_WAIT_S = 1.0  # between two tries to take the GPU's lock
LONGEST_WAIT_S = 3600.0  # epoll takes no more than 24 days, and timeout_s may be more


class Orphaned(Exception):
    """Snakemake is gone, and so is the reason to go on."""


@dataclass
class Log:
    """The child's output: its beginning and its end, however much it prints."""

    head: bytearray = field(default_factory=bytearray)
    tail: bytearray = field(default_factory=bytearray)
    dropped: int = 0

    def add(self, data: bytes) -> None:
        room = max(0, LOG_HEAD - len(self.head))
        self.head += data[:room]
        self.tail += data[room:]
        surplus = len(self.tail) - LOG_TAIL
        if surplus > 0:
            self.dropped += surplus
            del self.tail[:surplus]

    def text(self) -> str:
        gap = f"\n[... {self.dropped} bytes left out ...]\n".encode() if self.dropped else b""
        return bytes(self.head + gap + self.tail).decode("utf-8", "replace")


@dataclass
class Outcome:
    """What became of the child."""

    status: str
    reason: str
    result: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    telemetry: Telemetry | None = None
    log: str = ""


def cache_folder(out: Path) -> Path:
    """The compile cache that all replicates of the run's variant share: <scope>/cache/<comparison>/<variant>."""
    return out.parents[3] / "cache" / out.parents[1].name / out.parents[0].name


def prepare_cache(run: Run, out: Path) -> str | None:
    """Empty the cache for replicate 1; say whether what the child finds is `cold` or `warm` (None: not compiled)."""
    cache = cache_folder(out)
    if run.replicate == 1:
        shutil.rmtree(cache, ignore_errors=True)
    warm = cache.is_dir() and any(cache.iterdir())
    cache.mkdir(parents=True, exist_ok=True)
    return ("warm" if warm else "cold") if run.compiles else None


def headers_folder(out: Path) -> Path:
    """What all variants of a scope share: C++ headers that Inductor has compiled, 100 MB and 8 s of a CPU each."""
    return out.parents[3] / "cache" / ".headers"


def forget_compiled(out: Path) -> None:
    """Delete what a compiler may have left half written, which every later run would take for whole.

    Of the headers only the compiled form, without which a compiler reads the text: another run may use them now.
    """
    shutil.rmtree(cache_folder(out), ignore_errors=True)
    for compiled in headers_folder(out).rglob("*.gch"):
        compiled.unlink(missing_ok=True)


def child_environment(run: Run, gpu: Gpu | None, out: Path, temporary: Path, events: int) -> dict[str, str]:
    """The child's. Inductor keeps compiled headers in TMPDIR, by the user's name, whatever its cache folder is."""
    cache, headers = cache_folder(out).resolve(), headers_folder(out).resolve()
    headers.mkdir(parents=True, exist_ok=True)
    (temporary / "torchinductor_halfstep").symlink_to(headers)
    # Inductor would prove each vector extension of a CPU in a Python process that imports torch: 10 s at every start,
    # most of a smoke run, whose C++ kernels may as well be scalar
    smoke = {"TORCHINDUCTOR_VEC_ISA_OK": "0"} if run.device == "cpu" and run.scale == "smoke" else {}
    return {
        **without_switches(os.environ),
        **smoke,
        "HALFSTEP_EVENTS": str(events),
        "HALFSTEP_SUPERVISOR": str(os.getpid()),
        "HALFSTEP_SPAWNED": repr(time.monotonic()),
        "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))),  # Snakemake sets it to the rule's one core
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": gpu.uuid if gpu else "",
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "TMPDIR": str(temporary),
        "LOGNAME": "halfstep",
    }


def needs_gpu(run: Run) -> list[str]:
    """What in this run no CPU can do."""
    settings = (run.precision, run.compile, run.optimizer, run.norm, run.gemm)
    cap = ["memory_cap_gib"] if run.memory_cap_gib is not None else []
    return [name for name in settings if name in NEEDS_GPU] + cap


def supervise(run: Run, out: Path, title: str) -> tuple[Outcome, Gpu | None]:
    """Measure `run` in a child process.

    Raises:
        Orphaned: the Snakemake that started us ended; the child is dead.
        OSError: the GPU's lock cannot be made or opened.
    """
    try:
        gpu = None if run.device == "cpu" else visible_gpu()
    except GpuError as error:  # lost since Snakemake looked, or another node's CUDA_VISIBLE_DEVICES
        return Outcome("unsupported", str(error)), None
    if run.device != "cpu" and gpu is None and not hidden() and (reason := why_no_gpu_inside()):
        return Outcome("unsupported", reason[0]), None
    if run.device != "cpu" and (gpu is None or gpu.slug != run.device):
        there = f"the GPU here is {gpu.slug!r} ({gpu.name})" if gpu else "no NVIDIA GPU is visible here"
        return Outcome("unsupported", f"asked to measure on {run.device!r}, and {there}"), gpu
    if run.device == "cpu" and (names := needs_gpu(run)):
        return Outcome("unsupported", f"{names[0]} needs an NVIDIA GPU; this run is on the CPU"), None
    # Snakemake itself sets OMP_NUM_THREADS
    note = ", ".join(name for name in switches(os.environ) if name != "OMP_NUM_THREADS")
    if note:
        note = f"kept from the measuring process, which is told by its run alone: {note}\n"
        print(f"{title}: {note}", end="", file=sys.stderr)
    with (
        locked(gpu, title),
        # what a killed child has started may still write there
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        Progress(title) as progress,
    ):
        child = Child(run, gpu, out, Path(folder))
        try:
            outcome = child.watch(progress)
            outcome.log = note + outcome.log
            return outcome, gpu
        finally:
            child.kill()
            if child.process.returncode:
                forget_compiled(out)


@contextlib.contextmanager
def locked(gpu: Gpu | None, title: str) -> Iterator[None]:
    """The GPU for us alone, as far as others ask for it too; waits for those who had it before.

    Raises:
        Orphaned: Snakemake ended while we waited.
        OSError: the lock cannot be made or opened.
    """
    if gpu is None:
        yield
        return
    lock = GpuLock(gpu.uuid, title)
    try:
        told = ""
        while not lock.acquire():
            if (holder := lock.holder()) != told:
                print(f"{title}: waits for the GPU, which {holder} has", file=sys.stderr, flush=True)
                told = holder
            rest(LOCK_WAIT_S)
        yield
    finally:
        lock.release()


def rest(seconds: float) -> None:
    """Wait, unless Snakemake is gone.

    Raises:
        Orphaned: it is.
    """
    try:
        ancestor = snakemake_pidfd()
    except ProcessLookupError:
        raise Orphaned from None
    if ancestor is None:
        time.sleep(seconds)
        return
    try:
        if select.select([ancestor], [], [], seconds)[0]:
            raise Orphaned
    finally:
        os.close(ancestor)


def summaries(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A result's rows of summary.csv: one of a training step, one per case of an operator."""
    return result.get("summaries") or [result.get("summary", {})]


class Child:
    """The measuring process, its output and its messages."""

    def __init__(self, run: Run, gpu: Gpu | None, out: Path, temporary: Path) -> None:
        self.run, self.result_file = run, temporary / "result.json"
        self.outcome = Outcome("failed", "")
        self.log, self.messages, self.phase = Log(), bytearray(), "start"
        self.events, events_child = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "halfstep.measure.child", run.canonical(), str(self.result_file)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=child_environment(run, gpu, out, temporary, events_child),
            pass_fds=[events_child],
            start_new_session=True,
        )
        os.close(events_child)
        self.sampler = Sampler(gpu, self.process.pid) if gpu else None

    def kill(self) -> None:
        """End the child with all it started; it leads a process group of its own."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.events)

    def watch(self, progress: Progress) -> Outcome:
        assert self.process.stdout is not None
        deadline = time.monotonic() + self.run.timeout_s
        try:
            ancestor = snakemake_pidfd()
        except ProcessLookupError:
            raise Orphaned from None
        exited = os.pidfd_open(self.process.pid)
        with selectors.DefaultSelector() as selector:
            for descriptor in (self.process.stdout.fileno(), self.events, exited, ancestor):
                if descriptor is not None:
                    selector.register(descriptor, selectors.EVENT_READ)
            while True:
                wait_s = min(LONGEST_WAIT_S, max(0.0, deadline - time.monotonic()))
                ready = {key.fd for key, _ in selector.select(wait_s)}
                if ancestor in ready:
                    raise Orphaned
                if self.process.stdout.fileno() in ready:
                    data = os.read(self.process.stdout.fileno(), 1 << 16)
                    self.log.add(data)
                    if not data:
                        selector.unregister(self.process.stdout.fileno())
                if self.events in ready:
                    data = os.read(self.events, 1 << 16)
                    self.receive(data, progress)
                    if not data:
                        selector.unregister(self.events)
                if ready == {exited}:  # and nothing is left to read
                    self.conclude(self.process.wait())
                    break
                if time.monotonic() >= deadline:
                    self.outcome.status = "timeout"
                    self.outcome.reason = f"did not end within {self.run.timeout_s} s; it was at: {self.phase}"
                    break
        os.close(exited)
        if self.sampler:
            self.sampler.close()
        self.outcome.log = self.log.text()
        return self.outcome

    def receive(self, data: bytes, progress: Progress) -> None:
        *lines, rest = bytes(self.messages + data).split(b"\n")
        self.messages = bytearray(rest)
        for line in lines:
            message = json.loads(line)
            match message["event"]:
                case "phase":
                    self.phase = message["phase"]
                    progress.phase(self.phase)
                case "progress":
                    progress.steps(message["done"], message["total"])
                case "environment":
                    self.outcome.environment = message["environment"]
                    if self.run.device == "cpu":  # there they are the device
                        self.outcome.environment["cores"] = str(len(os.sched_getaffinity(0)))
                case "window_start" if self.sampler:
                    self.sampler.start_window()
                case "window_end" if self.sampler:
                    self.outcome.telemetry = self.sampler.end_window()

    def conclude(self, returncode: int) -> None:
        if returncode < 0:
            name = signal.Signals(-returncode).name
            hint = " (the kernel does that when the host's memory runs out)" if name == "SIGKILL" else ""
            self.outcome.reason = f"the measuring process was killed by {name}{hint}; it was at: {self.phase}"
        elif returncode > 0 or not self.result_file.exists():
            last = (self.log.text().strip().splitlines() or ["it printed nothing"])[-1]
            self.outcome.reason = f"the measuring process ended with exit code {returncode} and no result: {last[:300]}"
        else:
            self.outcome.result = json.loads(self.result_file.read_text(encoding="utf-8"))
            self.outcome.status, self.outcome.reason = self.outcome.result["status"], self.outcome.result["reason"]
            done = [row for row in summaries(self.outcome.result) if row.get("status", "ok") == "ok"]
            if self.outcome.status == "ok" and self.run.compiles and not all(row.get("compile_s") for row in done):
                self.outcome.status = "invalid"
                self.outcome.reason = f"compile is {self.run.compile!r}, and torch.compile compiled nothing"
            result = self.outcome.result
            judged = verdict(
                self.run.model_dump(), result.get("applied", {}), result.get("kernels", []), result.get("steps", [])
            )
            if self.outcome.status == "ok" and judged:
                self.outcome.status, self.outcome.reason = judged
            disturbance = self.outcome.telemetry.disturbance() if self.outcome.telemetry else None
            if self.outcome.status == "ok" and disturbance:
                self.outcome.status, self.outcome.reason = "disturbed", disturbance
