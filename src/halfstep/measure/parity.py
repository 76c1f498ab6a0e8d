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
MOST_SKIPPED = 30
"""in a row: enough to halve a scale of 65536, with which both scalers begin, far below 1"""


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
    repeats: list[int] = []
    data = batches(run, workload, device)
    eager = beside(step, device) if compilation.captured else step

    emit("phase", phase="train")
    told = time.monotonic()
    for index in range(steps):
        inputs, targets = next(data)
        sums[index].copy_(checksum(inputs, targets))
        if compilation.captured and index == EAGER_STEPS:
            step = Captured(step, inputs, targets)
        taken = eager if 0 < index < EAGER_STEPS else step
        repeats.append(repeat(taken, inputs, targets, watch, losses[index]))
        norms[index].copy_(watch.norm)
        if time.monotonic() - told > 0.5:
            told = time.monotonic()
            emit("progress", phase="train", done=index + 1, total=steps)
    synchronize(device)

    if not watch.calls:
        raise Invalid("no optimizer of torch's kind took a step, so that there are no gradient norms")
    columns = zip(losses.tolist(), norms.tolist(), repeats, sums.tolist(), strict=True)
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
                "gradient_norm": norm,
                "skipped": skipped,
                "data": f"{total % 2**64:016x}",
            }
            for number, (loss, norm, skipped, total) in enumerate(columns)
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


def repeat(step: Step, inputs: torch.Tensor, targets: torch.Tensor, watch: Watch, loss: torch.Tensor) -> int:
    """Take a step until its update is made, fill in its `loss`, and say how often the update was skipped.

    GradScaler and apex.amp skip updates until they have found their scale. A run that went on with the next batch would
    be behind the reference by as many updates, and be judged for that.

    Raises:
        Invalid: it never does.
    """
    for skipped in range(MOST_SKIPPED + 1):
        before = loss_scale(watch.precision)
        watch.norm.fill_(math.nan)  # an update that is skipped may not ask for it
        loss.copy_(step(inputs, targets))
        after = loss_scale(watch.precision)
        if before is None or after is None or after >= before:
            return skipped
    raise Invalid(f"its update was skipped {MOST_SKIPPED + 1} times in a row, since its gradients were not finite")


def loss_scale(precision: Any) -> float | None:
    """Waits for the GPU where there is a scale: nothing is timed here."""
    scale = precision.loss_scale()
    return None if scale is None else float(scale)
