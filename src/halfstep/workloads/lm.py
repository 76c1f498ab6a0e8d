"""A small Transformer language model: embeddings, attention blocks, feed-forward, norms.

At full size 12 blocks of width 1024 with 16 heads over 1024 tokens and a vocabulary of 32768:
219 M parameters, 151 M of them in the blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional

from halfstep.workloads.workload import Batch, NormFactory, Workload


class Attention(nn.Module):
    """Causal self-attention: [batch, tokens, width] to the same."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        qkv = self.qkv(x).view(batch, tokens, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))


class Block(nn.Module):
    """A pre-norm Transformer block: [batch, tokens, width] to the same."""

    def __init__(self, width: int, heads: int, norm: NormFactory) -> None:
        super().__init__()
        self.norm1 = norm(width)
        self.attention = Attention(width, heads)
        self.norm2 = norm(width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.feed_forward(self.norm2(x))


class Transformer(nn.Module):
    """Tokens [batch, tokens] int64 to logits [batch, tokens, vocabulary]."""

    def __init__(self, norm: NormFactory, vocabulary: int, context: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, norm) for _ in range(depth))
        self.norm = norm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        # as GPT-2 begins; torch's own embeddings have deviation 1, with which the loss starts far from ln(vocabulary)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def build(norm: NormFactory, **size: Any) -> nn.Module:
    return Transformer(norm, **size)


def blocks(model: nn.Module) -> Sequence[nn.Module]:
    return list(cast(nn.ModuleList, model.blocks))


def batch(n: int, index: int, generator: torch.Generator, *, vocabulary: int, context: int, **_: Any) -> Batch:
    """Random tokens [n, context] int64, and each one's successor as its target."""
    tokens = torch.randint(vocabulary, (n, context + 1), generator=generator, device=generator.device)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def loss(model: nn.Module, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross-entropy per token, in fp32 as autocast does it."""
    return functional.cross_entropy(model(tokens).flatten(0, 1).float(), targets.flatten())


def samples(n: int, *, context: int, **_: Any) -> int:
    return n * context


LM = Workload(
    unit="tokens",
    sizes={
        "full": {"vocabulary": 32768, "context": 1024, "width": 1024, "depth": 12, "heads": 16},
        "smoke": {"vocabulary": 256, "context": 64, "width": 64, "depth": 2, "heads": 2},
    },
    build=build,
    blocks=blocks,
    batch=batch,
    loss=loss,
    samples=samples,
)
