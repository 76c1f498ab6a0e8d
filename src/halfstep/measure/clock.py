"""Two clocks for consecutive steps: marks between them, read when all is over."""

from __future__ import annotations

import time
from itertools import pairwise

import torch


class Clock:
    """Marks the borders of `steps` consecutive steps: CUDA events on a GPU, and the host's wall clock.

    A mark never waits for the device. The time of step i is the time between marks i and i+1, so the
    steps add up to the whole and a gap between two steps belongs to the first.
    """

    def __init__(self, device: torch.device, steps: int) -> None:
        self.cuda = device.type == "cuda"
        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)] if self.cuda else []
        self.walls: list[float] = []

    def mark(self) -> None:
        if self.cuda:
            self.events[len(self.walls)].record()
        self.walls.append(time.perf_counter())

    def read(self) -> tuple[list[float], list[float]]:
        """(device ms, wall ms) of each step; waits for the device. Without a GPU both are the wall clock."""
        wall_ms = [(after - before) * 1e3 for before, after in pairwise(self.walls)]
        if not self.cuda:
            return wall_ms, wall_ms
        torch.cuda.synchronize()
        events = self.events[: len(self.walls)]
        return [before.elapsed_time(after) for before, after in pairwise(events)], wall_ms
