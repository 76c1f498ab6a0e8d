"""One parity run: the training step of a recipe on data that can be learnt, each step's loss and gradient norm kept.

Nothing is timed. The step is the one that the timed runs build, and is looked at from outside.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from halfstep.errors import Invalid
from halfstep.measure.process import Emit, Result, compiler_counters, look_up, open_device, synchronize
from halfstep.measure.training import build_step
from halfstep.parity.learnable import Learnable, checksum
from halfstep.recipes.compilation import Captured, Step
from halfstep.system.environment import environment

EAGER_STEPS = 4
"""steps before a CUDA graph is captured, all but the first on a side stream, as torch's notes on CUDA graphs ask for"""


class Watch:
    """Called by every torch optimizer just before its step: sets the learning rate once, reads the gradients each time.

    What it computes is captured with the step in a CUDA graph, which writes into the same buffer at each replay.
    """

    def __init__(self, learning_rate: float, device: torch.device) -> None:
        self.learning_rate = learning_rate
        self.norm = torch.full((), math.nan, device=device)
        """of all gradients together, as the optimizer takes them: without the loss's scale"""
        self.calls = 0
        self.parameters = self.with_gradient = 0
        self.precision: Any = None

    def __call__(self, optimizer: torch.optim.Optimizer, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        groups = optimizer.param_groups
        parameters = [parameter for group in groups for parameter in group["params"]]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if not self.calls:
            for group in groups:
                if isinstance(group["lr"], torch.Tensor):  # of fused optimizers that a CUDA graph can hold
                    group["lr"].fill_(self.learning_rate)
                else:
                    group["lr"] = self.learning_rate
            self.parameters = sum(parameter.numel() for parameter in parameters)
            self.with_gradient = sum(gradient.numel() for gradient in gradients)
        self.calls += 1
        norms = [torch.linalg.vector_norm(gradient, dtype=torch.float32) for gradient in gradients]
        norm = torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros_like(self.norm)
        self.norm.copy_(norm / self.scale(optimizer, named))

    def scale(self, optimizer: torch.optim.Optimizer, named: Mapping[str, Any]) -> torch.Tensor | float:
        """By what the gradients are still multiplied.

        GradScaler leaves the division to optimizers that say they can do it, and tells them so in one of two ways
        (torch.amp.GradScaler.step). Else it, or apex.amp, has divided already.
        """
        told = getattr(optimizer, "grad_scale", None) is not None or named.get("grad_scaler") is not None
        scale = self.precision.loss_scale() if told and self.precision else None
        return 1.0 if scale is None else scale


def batches(
    run: Mapping[str, Any], workload: Learnable, device: torch.device
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The same batches in the same order for every run with this seed of the data."""
    generator = torch.Generator(device).manual_seed(run["data_seed"])
    index = 0
    while True:
        yield workload.batch(run["batch"], index, generator, **workload.sizes[run["scale"]])
        index += 1


def measure(run: dict[str, Any], emit: Emit) -> Result:
    """Train for `run["steps"]` steps.

    Returns:
        status, reason, curve (rows of curve.csv), summary (what the compiler did), applied, threads.

    Raises:
        Unsupported, Invalid, torch.OutOfMemoryError, or whatever else ends it; the caller makes a row of that.
    """
    emit("environment", environment=environment())
    emit("phase", phase="build")
    device = open_device(run)
    watch = Watch(run["learning_rate"], device)
    handle = register_optimizer_step_pre_hook(watch)
    try:
        return train(run, device, watch, emit)
    finally:
        handle.remove()


def train(run: Mapping[str, Any], device: torch.device, watch: Watch, emit: Emit) -> Result:
    workload: Learnable = look_up(run["modules"]["workload"])
    source = workload.source()
    step, watch.precision, applied = build_step(dict(run), device)
    compilation = look_up(run["modules"]["compile"])
    steps = run["steps"]
    losses, norms = (torch.full((steps,), math.nan, device=device) for _ in range(2))
    sums = torch.zeros(steps, dtype=torch.int64, device=device)
    scales = torch.ones(steps + 1, device=device)
    keep_scale(watch.precision, scales[0])
    data = batches(run, workload, device)
    eager = beside(step, device) if compilation.captured else step

    emit("phase", phase="train")
    told = time.monotonic()
    for index in range(steps):
        inputs, targets = next(data)
        sums[index].copy_(checksum(inputs, targets))
        watch.norm.fill_(math.nan)  # an update that is skipped may not ask for it
        if compilation.captured and index == EAGER_STEPS:
            step = Captured(step, inputs, targets)
        losses[index].copy_((eager if 0 < index < EAGER_STEPS else step)(inputs, targets))
        norms[index].copy_(watch.norm)
        keep_scale(watch.precision, scales[index + 1])
        if time.monotonic() - told > 0.5:
            told = time.monotonic()
            emit("progress", phase="train", done=index + 1, total=steps)
    synchronize(device)

    if not watch.calls:
        raise Invalid("no optimizer of torch's kind took a step, so that there are no gradient norms")
    skipped = (scales[1:] < scales[:-1]).tolist()
    columns = zip(losses.tolist(), norms.tolist(), skipped, sums.tolist(), strict=True)
    compiled = compiler_counters() if compilation.compiles else {}
    applied |= {
        "data_source": source,
        "parameters_trained": watch.with_gradient,
        "parameters_optimized": watch.parameters,
    }
    return {
        "status": "ok",
        "reason": "",
        "summary": {name: compiled[name] for name in ("compile_s", "graph_breaks") if name in compiled},
        "curve": [
            {
                "step": number,
                "loss": loss,
                "gradient_norm": None if skip else norm,
                "skipped": int(skip),
                "data": f"{total % 2**64:016x}",
            }
            for number, (loss, norm, skip, total) in enumerate(columns)
        ],
        "applied": applied,
        "threads": {"torch": torch.get_num_threads(), "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS")},
    }


def beside(step: Step, device: torch.device) -> Step:
    """The step on a stream of its own, which the current one waits for."""
    stream = torch.cuda.Stream(device)

    def run(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        current = torch.cuda.current_stream(device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            loss = step(inputs, targets)
        current.wait_stream(stream)
        return loss

    return run


def keep_scale(precision: Any, slot: torch.Tensor) -> None:
    scale = precision.loss_scale()
    if scale is not None:
        slot.fill_(scale)
