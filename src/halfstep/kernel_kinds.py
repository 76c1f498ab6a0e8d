"""The kind of a GPU kernel, from its name: one table, the first pattern that matches decides.

A fused kernel has one kind: what Inductor fuses around a normalisation or a cast counts as pointwise.
The measuring process does not import this, so a better table needs no new measurement.
"""

from __future__ import annotations

import re
from functools import cache

OTHER = "other"
# in the order in which tables list and figures stack them
KINDS = (
    "GEMM", "FP8 GEMM", "attention", "norm", "pointwise", "cast/scale", "optimizer", "copy", "communication", OTHER,
)  # fmt: skip
PATTERNS: tuple[tuple[str, str], ...] = (
    # before all others: Inductor names a kernel after what it fuses, matrix products and attention around it too
    ("pointwise", r"^triton_(poi|per|red|for|spl)_"),
    ("communication", r"nccl|all_?reduce|all_?gather|reduce_scatter"),
    (
        "copy",
        r"^Memcpy|^Memset|multi_tensor_apply.*(Copy|Zero)Functor|roll_cuda|CatArrayBatchedCopy|nchwToNhwc|nhwcToNchw|"
        r"impl_nocast<.*direct_copy",
    ),
    ("optimizer", r"multi_tensor_apply|FusedAdam|fused_adam|FusedOptimizer"),
    ("attention", r"flash|fmha|sdpa|attention|fused_attn|cudnn::fusion::(compute_dot_do_o|convert_dq)"),
    (
        "FP8 GEMM",
        r"nvjet(_sm\d+)?_[qor][qor]|(gemm|GEMM|xmma|cutlass|nvjet).*(e4m3|e5m2|float_e4m3|float_e5m2|fp8|_qq)",
    ),
    ("GEMM", r"nvjet|gemm|GEMM|xmma|cutlass|cublas|gemv|splitK|dgrad|wgrad|fprop|conv|_mm_|triton_tem_"),
    ("norm", r"layer_?norm|rms_?norm|GammaBeta|welford|(?-i:LayerNorm|RMSNorm)|ln_(fwd|bwd)"),
    ("cast/scale", r"copy_kernel|float8|fp8|cast_transpose|amax|amp_(foreach_non_finite|update_scale)|unscale"),
    (
        "pointwise",
        r"elementwise|vectorized|unrolled|reduce_kernel|softmax|nll_loss|gelu|embedding|index|gather|scatter|"
        r"fill|distribution|arange|cunn_|SoftMax|catArray|radix|sort|scan|compute_(grad|num)|krn_partial|"
        r"sum_and_scatter|reduce_dbias",
    ),
)
_COMPILED = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in PATTERNS)


@cache  # a study asks for the same few names again and again
def kind_of(kernel: str) -> str:
    """One of KINDS; `other` when no pattern knows the name."""
    return next((kind for kind, pattern in _COMPILED if pattern.search(kernel)), OTHER)
