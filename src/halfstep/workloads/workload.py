"""What a training workload is to the code that measures it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

NormFactory = Callable[[int], nn.Module]
Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Workload:
    """A model with the data it is trained on, at full and at smoke size.

    `sizes` maps a scale to the keyword arguments of the four functions:
    `build(norm, **size)` makes the model on the current default device, in fp32;
    `blocks(model)` lists its repeated blocks;
    `batch(n, index, generator, **size)` makes the random batch number `index` of n samples on the
    generator's device; `loss(model, inputs, targets)` is the forward pass with its scalar loss (fp32);
    `samples(n, **size)` is how many `unit`s a batch of n holds.
    """

    unit: str
    sizes: Mapping[str, Mapping[str, Any]]
    build: Callable[..., nn.Module]
    blocks: Callable[[nn.Module], Sequence[nn.Module]]
    batch: Callable[..., Batch]
    loss: Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]
    samples: Callable[..., int]


class Endless(Dataset[Batch]):
    """A million random samples, made when asked for: the dataset behind `data: dataloader`."""

    def __init__(self, workload: Workload, scale: str) -> None:
        self.workload, self.scale = workload, scale

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> Batch:
        generator = torch.Generator().manual_seed(index)
        inputs, targets = self.workload.batch(1, index, generator, **self.workload.sizes[self.scale])
        return inputs[0], targets[0]
