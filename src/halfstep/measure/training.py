"""One training run: build, apply the recipes, warm up, time the window, profile.

This module knows workloads and recipes only by what the run names.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from halfstep.errors import Unsupported
from halfstep.measure.clock import Clock
from halfstep.measure.flops import model_tflop_per_step
from halfstep.measure.linears import linears_of
from halfstep.measure.process import GIB, Emit, Result, compiler_counters, look_up, open_device, synchronize
from halfstep.measure.profile import profile_kernels
from halfstep.recipes.compilation import Captured
from halfstep.system.environment import environment
from halfstep.workloads.workload import Endless

RESIDENT_BATCHES = 4
WEIGHTS = {"fp32": torch.float32, "bf16": torch.bfloat16}


def feed(run: dict[str, Any], workload: Any, device: torch.device) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Endless batches on the device: a few resident ones in turn, or a DataLoader's, copied when asked for."""
    size = workload.sizes[run["scale"]]
    if run["data"] == "resident":
        generator = torch.Generator(device).manual_seed(run["seed"])
        batches = [workload.batch(run["batch"], index, generator, **size) for index in range(RESIDENT_BATCHES)]
        while True:
            yield from batches
    cuda = device.type == "cuda"
    workers = len(os.sched_getaffinity(0))
    loader = DataLoader(
        Endless(workload, run["scale"]), batch_size=run["batch"], num_workers=workers, pin_memory=cuda, drop_last=True
    )
    while True:
        for inputs, targets in loader:
            yield inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)


def build_step(run: dict[str, Any], device: torch.device) -> tuple[Callable[..., torch.Tensor], Any, Result]:
    """The training step with every recipe applied: (step, precision recipe, what was applied)."""
    modules = run["modules"]
    compilation = look_up(modules["compile"])
    compilation.check(device)
    precision = look_up(modules["precision"])(device, WEIGHTS[run["weights"]])
    if compilation.captured and precision.loss_scale() is not None:
        raise Unsupported("a step with GradScaler is not captured in a CUDA graph; use compile: blocks")
    workload = look_up(modules["workload"])
    precision.plan(linears_of(workload, run["scale"]), run["batch"])
    torch.manual_seed(run["seed"])
    with torch.device(device):
        model = workload.build(look_up(modules["norm"]), **workload.sizes[run["scale"]])
    model.to(precision.weights).train()
    applied = {"gemm": precision.gemm, **precision.prepare(model)}
    optimizer = look_up(modules["optimizer"])(model.parameters(), compilation.captured)
    precision.join(model, optimizer)
    parameters = list(model.parameters())
    applied["parameters"] = sum(parameter.numel() for parameter in parameters)
    applied["parameters_bf16"] = sum(parameter.numel() for parameter in parameters if parameter.dtype is torch.bfloat16)
    applied["compiled_modules"] = compilation.apply(model, workload.blocks(model))

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with precision.autocast():
            loss = workload.loss(model, precision.cast_inputs(inputs), targets)
        precision.backward(loss)
        precision.update(optimizer)
        optimizer.zero_grad()  # sets them to None: torch's default, and all that Apex's knows
        return loss.detach()

    return step, precision, applied


class Loop:
    """Runs steps between marks of a clock and keeps what they say in buffers on the device."""

    def __init__(self, step: Callable[..., torch.Tensor], batches: Iterator[Any], precision: Any, emit: Emit) -> None:
        self.step, self.batches, self.precision, self.emit = step, batches, precision, emit
        self.seconds = math.nan
        """wall clock of the last phase's steps, up to a synchronisation"""

    def run(
        self, phase: str, device: torch.device, steps: int, lead: int = 0, begin: Callable[[], None] = lambda: None
    ) -> list[Result]:
        """Rows of steps.csv. The device is waited for before the first and after the last step, never between.

        Args:
            phase: what the steps are called in their rows.
            device: where they run.
            steps: how many.
            lead: as many steps of warm-up go before, without a wait between them and the others.
            begin: called where the lead ends.
        """
        clock = Clock(device, lead + steps)
        losses = torch.full((lead + steps,), math.nan, device=device)
        scales = torch.ones(lead + steps + 1, device=device)
        self.keep_scale(scales[0])
        told = time.perf_counter()
        synchronize(device)
        for index in range(lead + steps):
            if index == lead:
                begin()
            clock.mark()
            losses[index].copy_(self.step(*next(self.batches)))
            self.keep_scale(scales[index + 1])
            if time.perf_counter() - told > 0.5:
                told = time.perf_counter()
                self.emit("progress", phase=phase, done=index + 1, total=lead + steps)
        clock.mark()
        synchronize(device)
        self.seconds = time.perf_counter() - clock.walls[lead]
        step_ms, wall_ms = clock.read()
        skipped = (scales[1:] < scales[:-1]).tolist()
        numbers = [("warmup", n) for n in range(lead)] + [(phase, n) for n in range(steps)]
        columns = zip(numbers, step_ms, wall_ms, losses.tolist(), skipped, strict=True)
        return [
            {"step": n, "phase": name, "step_ms": ms, "wall_ms": wall, "loss": loss, "skipped": int(skip)}
            for (name, n), ms, wall, loss, skip in columns
        ]

    def keep_scale(self, slot: torch.Tensor) -> None:
        scale = self.precision.loss_scale()
        if scale is not None:
            slot.fill_(scale)


def measure(run: dict[str, Any], emit: Emit) -> Result:
    """Measure a training run.

    Returns:
        status, reason, summary (columns of summary.csv), steps and kernels (rows of their CSVs), applied, threads.

    Raises:
        Unsupported, torch.OutOfMemoryError, or whatever else ends it; the caller makes a row of that.
    """
    emit("environment", environment=environment())
    emit("phase", phase="build")
    device = open_device(run)
    compilation = look_up(run["modules"]["compile"])
    step, precision, applied = build_step(run, device)
    workload = look_up(run["modules"]["workload"])
    batches = feed(run, workload, device)
    window = run["window"]

    emit("phase", phase="first step")
    synchronize(device)
    first_started = time.monotonic()
    loop = Loop(step, batches, precision, emit)
    first = loop.run("warmup", device, 1)
    first_step_s = time.monotonic() - first_started
    startup_s = first_started - float(os.environ.get("HALFSTEP_SPAWNED", first_started))

    emit("phase", phase="warm-up")
    if compilation.captured:
        applied["capture_s"] = capture_step(loop, device)
    warm: list[Result] = []
    lead, steps = max(1, window["warmup_steps"] - 1), window["min_steps"]
    if run["protocol"] == "fair":
        warm, lead = loop.run("warmup", device, lead), 0
        settled = [row["step_ms"] for row in warm[len(warm) // 2 :]]
        steps = max(steps, math.ceil(window["min_seconds"] * 1e3 / statistics.median(settled)))
    # else the article's: a wait before the window would let the host run ahead in it, and its clock read too low

    emit("phase", phase="window")
    if device.type == "cuda" and not compilation.captured:
        torch.cuda.reset_peak_memory_stats(device)
    compiled: Result = {}

    def begin() -> None:
        if compilation.compiles:
            compiled.update(compiler_counters())
        emit("window_start")

    rows = loop.run("window", device, steps, lead, begin)
    emit("window_end")
    warm, timed = [*warm, *rows[:lead]], rows[lead:]

    summary: Result = {
        "sample_unit": workload.unit,
        "samples_per_step": workload.samples(run["batch"], **workload.sizes[run["scale"]]),
        "wall_ms_mean": None if lead else loop.seconds * 1e3 / steps,
        "host_ms_mean": statistics.fmean(row["wall_ms"] for row in timed),
        "startup_s": startup_s,
        "first_step_s": first_step_s,
        **describe_steps(timed),
    }
    if compiled:
        summary["compile_s"], summary["graph_breaks"] = compiled["compile_s"], compiled["graph_breaks"]
        summary["recompiles"] = compiler_counters()["graphs"] - compiled["graphs"]
    if device.type == "cuda":
        summary["peak_allocated_gib"] = torch.cuda.max_memory_allocated(device) / GIB
        summary["peak_reserved_gib"] = torch.cuda.max_memory_reserved(device) / GIB
    status, reason = judge(summary, timed)
    kernels: list[Result] = []
    if device.type == "cuda":
        emit("phase", phase="profile")
        kernels, summary["kernel_ms"] = profile_kernels(lambda: loop.step(*next(batches)))
    emit("phase", phase="count FLOPs")
    summary["model_tflop_per_step"] = model_tflop_per_step(workload, run["scale"], run["batch"])
    for number, row in enumerate(warm):
        row["step"] = number + len(first)
    return {
        "status": status,
        "reason": reason,
        "summary": summary,
        "steps": [*first, *warm, *timed],
        "kernels": kernels,
        "applied": applied,
        "threads": {"torch": torch.get_num_threads(), "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS")},
    }


def capture_step(loop: Loop, device: torch.device) -> float:
    """Replace the loop's step by its CUDA graph; the seconds that took.

    The notes on CUDA graphs ask for some steps on a side stream before the capture, so that lazily made
    state (cuBLAS workspaces, the optimizer's) is not made inside it.
    """
    started = time.monotonic()
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(3):
            loop.step(*next(loop.batches))
    torch.cuda.current_stream(device).wait_stream(side)
    # a replay takes its memory from what the capture set aside, unseen by the counters of the window
    torch.cuda.reset_peak_memory_stats(device)
    loop.step = Captured(loop.step, *next(loop.batches))
    torch.cuda.synchronize(device)
    return time.monotonic() - started


def describe_steps(timed: list[Result]) -> Result:
    """Spread of the steps that count: those whose optimizer step was not skipped."""
    counted = [row["step_ms"] for row in timed if not row["skipped"]]
    described: Result = {
        "steps": len(counted),
        "skipped_steps": len(timed) - len(counted),
        "loss_first": timed[0]["loss"],
        "loss_last": timed[-1]["loss"],
    }
    if len(counted) > 1:
        cuts = statistics.quantiles(counted, n=20, method="inclusive")
        described |= {
            "step_ms_median": statistics.median(counted),
            "step_ms_mean": statistics.fmean(counted),
            "step_ms_p05": cuts[0],
            "step_ms_p95": cuts[-1],
        }
    return described


def judge(summary: Result, timed: list[Result]) -> tuple[str, str]:
    """Whether what ran is what was asked."""
    if summary.get("recompiles"):
        return "invalid", f"torch.compile compiled {summary['recompiles']} graphs inside the window"
    bad = sum(not math.isfinite(row["loss"]) for row in timed)
    if bad:
        return "invalid", f"the loss was not finite in {bad} of {len(timed)} timed steps"
    if summary["steps"] < 2:
        return "invalid", f"GradScaler skipped {summary['skipped_steps']} of {len(timed)} timed steps"
    return "ok", ""
