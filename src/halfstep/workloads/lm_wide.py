"""The Transformer language model four times as wide, where matrix products outweigh all else by more.

At full size 12 blocks of width 4096 with 64 heads, which are as wide as the small model's, over the same tokens:
2.69 billion parameters, 2.42 of them in the blocks. With fp32 weights and Adam they take 43 GB before any activation.
"""

from __future__ import annotations

from dataclasses import replace

from halfstep.workloads.lm import LM

LM_WIDE = replace(
    LM,
    sizes={scale: {**size, "width": 4 * size["width"], "heads": 4 * size["heads"]} for scale, size in LM.sizes.items()},
)
