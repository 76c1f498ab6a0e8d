"""Model FLOPs of one training step."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


def model_tflop_per_step(workload: Any, scale: str, batch: int) -> float:
    """TFLOP of forward and backward of the plain fp32 model: matrix products, convolutions and attention.

    Counted by torch's FlopCounterMode on the `meta` device, where nothing is computed and attention is
    counted whatever kernel a real device would choose; on the CPU device the counter would drop it.
    One multiply-add is 2 FLOPs.
    """
    size = workload.sizes[scale]
    with torch.device("meta"):
        model = workload.build(nn.LayerNorm, **size)
    generator = torch.Generator()
    inputs, targets = (tensor.to("meta") for tensor in workload.batch(1, 0, generator, **size))
    with FlopCounterMode(display=False) as counter:
        workload.loss(model, inputs, targets).backward()
    return counter.get_total_flops() * batch / 1e12
