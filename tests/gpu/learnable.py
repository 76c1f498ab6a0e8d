"""Both workloads at a size that trains in seconds, on data that can be learnt."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from halfstep.workloads.lm import LM
from halfstep.workloads.vit import VIT_HUGE

CLASSES, VOCABULARY = 16, 256


def patterned_images(n: int, index: int, generator: torch.Generator, *, img_size: int, **_: Any) -> Any:
    """Images [n, 3, img_size, img_size] fp32: each its class's pattern under five times as much noise."""
    device = generator.device
    patterns = torch.randn(CLASSES, 3, img_size, img_size, generator=torch.Generator().manual_seed(0)).to(device)
    labels = (torch.arange(n, device=device) + n * index) % CLASSES
    noise = torch.randn(n, 3, img_size, img_size, generator=generator, device=device)
    return 0.2 * patterns[labels] + noise, labels


def successive_tokens(n: int, index: int, generator: torch.Generator, *, context: int, **_: Any) -> Any:
    """Tokens [n, context] int64, each three times its predecessor and one, and the successors as targets."""
    tokens = [torch.randint(VOCABULARY, (n,), generator=generator, device=generator.device)]
    for _step in range(context):
        tokens.append((3 * tokens[-1] + 1) % VOCABULARY)
    sequence = torch.stack(tokens, dim=1)
    return sequence[:, :-1].contiguous(), sequence[:, 1:].contiguous()


VIT = replace(
    VIT_HUGE,
    batch=patterned_images,
    sizes={"smoke": {"img_size": 64, "embed_dim": 256, "num_classes": CLASSES, "depth": 2, "num_heads": 4}},
)
LANGUAGE_MODEL = replace(
    LM,
    batch=successive_tokens,
    sizes={"smoke": {"vocabulary": VOCABULARY, "context": 64, "width": 256, "depth": 2, "heads": 4}},
)
WORKLOADS = {"vit_huge": "learnable:VIT", "lm": "learnable:LANGUAGE_MODEL"}
