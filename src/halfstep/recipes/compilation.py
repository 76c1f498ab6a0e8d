"""torch.compile over nothing, each block or the whole model, and the training step as one CUDA graph."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from halfstep.errors import Unsupported

Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Compilation:
    """What torch.compile sees, and whether the whole step is captured in a CUDA graph."""

    per_block: bool = False
    whole: bool = False
    captured: bool = False

    @property
    def compiles(self) -> bool:
        return self.per_block or self.whole

    def check(self, device: torch.device) -> None:
        """Raises: Unsupported, for a CUDA graph without a GPU or Inductor on a CPU without a C++ compiler."""
        if self.captured and device.type != "cuda":
            raise Unsupported("a CUDA graph needs an NVIDIA GPU; this run is on the CPU")
        if (
            self.compiles
            and device.type == "cpu"
            and not any(map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++")))
        ):
            raise Unsupported("torch.compile on a CPU needs a C++ compiler such as g++, and none is on the PATH")

    def apply(self, model: nn.Module, blocks: Sequence[nn.Module]) -> int:
        """Compile in place, for fixed shapes; how many modules."""
        modules = blocks if self.per_block else [model] if self.whole else []
        if not modules:
            return 0
        # past the limit torch would silently run the rest eagerly
        torch._dynamo.config.fail_on_recompile_limit_hit = True
        for module in modules:
            module.compile(dynamic=False)
        return len(modules)


none = Compilation()
blocks = Compilation(per_block=True)
model = Compilation(whole=True)
graphs = Compilation(per_block=True, captured=True)


class Captured:
    """A step as one CUDA graph: called, it copies its batch into the graph's and replays it.

    The step must have run before on a side stream (compiled, optimizer state made), must not wait for
    the GPU and must leave the gradients None, so that the graph's own memory holds them
    (torch.cuda.graph, "whole-network capture" in the CUDA graphs notes of PyTorch's documentation).
    """

    def __init__(self, step: Step, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        # the graph knows weights and optimizer state by address alone; the step is what keeps them allocated
        self.step = step
        self.inputs, self.targets = inputs.clone(), targets.clone()
        self.graph = torch.cuda.CUDAGraph()
        # thread_local: a DataLoader's thread may pin memory meanwhile, which a global capture would forbid it
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            self.loss = step(self.inputs, self.targets)

    def __call__(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.inputs.copy_(inputs, non_blocking=True)
        self.targets.copy_(targets, non_blocking=True)
        self.graph.replay()
        return self.loss
