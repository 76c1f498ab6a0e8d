"""What a study can name: each name maps to the `module:attribute` that provides it.

Adding a recipe or a workload is one line here and one file there. A run carries the looked-up
`module:attribute` strings, so the measuring process never imports this module and a new line here
makes no earlier measurement stale.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

TRAINING = "halfstep.measure.training:measure"
OPERATOR = "halfstep.measure.operators:measure"
PARITY = "halfstep.measure.parity:measure"

WORKLOADS: dict[str, str] = {
    "vit_huge": "halfstep.workloads.vit:VIT_HUGE",
    "lm": "halfstep.workloads.lm:LM",
    "lm_wide": "halfstep.workloads.lm_wide:LM_WIDE",
}

PRECISIONS: dict[str, str] = {
    "fp32": "halfstep.recipes.precision.fp32:Fp32",
    "tf32": "halfstep.recipes.precision.tf32:Tf32",
    "bf16": "halfstep.recipes.precision.bf16:Bf16",
    "fp16": "halfstep.recipes.precision.fp16:Fp16GradScaler",
    "native_delayed": "halfstep.recipes.precision.native_delayed:NativeDelayed",
    "native_delayed_linears": "halfstep.recipes.precision.native_delayed:NativeDelayedLinears",
    "native_delayed_no_init": "halfstep.recipes.precision.native_delayed:NativeDelayedNoInit",
    "torchao_tensorwise": "halfstep.recipes.precision.torchao:TorchaoTensorwise",
    "torchao_rowwise": "halfstep.recipes.precision.torchao:TorchaoRowwise",
    "torchao_rowwise_with_gw_hp": "halfstep.recipes.precision.torchao:TorchaoRowwiseWithGwHp",
    "te_linears_delayed": "halfstep.recipes.precision.te_linears:TeLinearsDelayed",
    "te_linears_current": "halfstep.recipes.precision.te_linears:TeLinearsCurrent",
    "te_linears_block": "halfstep.recipes.precision.te_linears:TeLinearsBlock",
    "te_layers_delayed": "halfstep.recipes.precision.te_layers:TeLayersDelayed",
    "apex_amp_o0": "halfstep.recipes.precision.apex_amp:ApexAmpO0",
    "apex_amp_o1": "halfstep.recipes.precision.apex_amp:ApexAmpO1",
    "apex_amp_o2": "halfstep.recipes.precision.apex_amp:ApexAmpO2",
}
NO_BF16_WEIGHTS = ("fp32", "tf32", "fp16", "apex_amp_o0", "apex_amp_o1", "apex_amp_o2")
"""precisions that do not compute in bf16"""

NORMS: dict[str, str] = {
    "layernorm": "halfstep.recipes.norms:layernorm",
    "rmsnorm": "halfstep.recipes.norms:rmsnorm",
    "apex_layernorm": "halfstep.recipes.norms:apex_layernorm",
    "apex_rmsnorm": "halfstep.recipes.norms:apex_rmsnorm",
    "te_layernorm": "halfstep.recipes.norms:te_layernorm",
    "te_rmsnorm": "halfstep.recipes.norms:te_rmsnorm",
    "liger_layernorm": "halfstep.recipes.norms:liger_layernorm",
    "liger_rmsnorm": "halfstep.recipes.norms:liger_rmsnorm",
}

OPTIMIZERS: dict[str, str] = {
    "adam_forloop": "halfstep.recipes.optimizers:adam_forloop",
    "adam_foreach": "halfstep.recipes.optimizers:adam_foreach",
    "adam_fused": "halfstep.recipes.optimizers:adam_fused",
    "adamw_forloop": "halfstep.recipes.optimizers:adamw_forloop",
    "adamw_foreach": "halfstep.recipes.optimizers:adamw_foreach",
    "adamw_fused": "halfstep.recipes.optimizers:adamw_fused",
    "apex_adam": "halfstep.recipes.optimizers:apex_adam",
    "apex_adamw": "halfstep.recipes.optimizers:apex_adamw",
    "te_adam": "halfstep.recipes.optimizers:te_adam",
    "te_adamw": "halfstep.recipes.optimizers:te_adamw",
}

COMPILES: dict[str, str] = {
    "none": "halfstep.recipes.compilation:none",
    "blocks": "halfstep.recipes.compilation:blocks",
    "model": "halfstep.recipes.compilation:model",
    "graphs": "halfstep.recipes.compilation:graphs",
}

GEMMS: dict[str, str] = {
    "bf16": "halfstep.recipes.gemms:bf16",
    "fp8_tensorwise": "halfstep.recipes.gemms:fp8_tensorwise",
    "fp8_tensorwise_fast": "halfstep.recipes.gemms:fp8_tensorwise_fast",
    "fp8_rowwise": "halfstep.recipes.gemms:fp8_rowwise",
    "fp8_rowwise_fast": "halfstep.recipes.gemms:fp8_rowwise_fast",
    "te": "halfstep.recipes.gemms:te",
}

RECIPES: dict[str, dict[str, str]] = {
    "precision": PRECISIONS,
    "compile": COMPILES,
    "optimizer": OPTIMIZERS,
    "norm": NORMS,
    "gemm": GEMMS,
}
"""the keys of a variant that name a recipe"""


class Operator(NamedTuple):
    """A workload that times calls, not training steps."""

    reference: str
    keys: Mapping[str, Collection[str]]
    """the keys of a variant that mean something to it, each with its choices"""


OPERATORS: dict[str, Operator] = {
    "dtypes": Operator("halfstep.workloads.dtypes:DTYPES", {}),
    "gemm": Operator("halfstep.workloads.gemm:GEMM", {"gemm": GEMMS}),
    "optimizer_step": Operator("halfstep.workloads.optimizer_step:OPTIMIZER_STEP", {"optimizer": OPTIMIZERS}),
    "norm": Operator("halfstep.workloads.norm:NORM", {"norm": NORMS, "compile": ("none", "model")}),
}


class Learnable(NamedTuple):
    """What the parity runs of a training workload learn from, by scale at which batch and learning rate."""

    reference: str
    batch: Mapping[str, int]
    learning_rate: Mapping[str, float]


LEARNABLE: dict[str, Learnable] = {
    "vit_huge": Learnable("halfstep.parity.glyphs:VIT_HUGE", {"full": 16, "smoke": 16}, {"full": 5e-5, "smoke": 1e-3}),
    "lm": Learnable("halfstep.parity.text:LM", {"full": 4, "smoke": 4}, {"full": 2e-4, "smoke": 1e-3}),
}
"""A workload that is not here has no parity runs."""

REFERENCE_OPTIMIZERS = {"adam": "adam_fused", "adamw": "adamw_fused"}
"""algorithm, as it stands in an optimizer's name: the one that parity compares with; any other is its own reference"""
REFERENCE_NORMS = ("layernorm", "rmsnorm")
"""the same of norms"""

NEEDS_GPU = frozenset(
    name
    for names in (PRECISIONS, NORMS, OPTIMIZERS, COMPILES, GEMMS)
    for name in names
    if name.startswith(("te_", "apex_", "liger_"))
) | {"tf32", "fp16", "graphs", "torchao_rowwise", "torchao_rowwise_with_gw_hp", "fp8_rowwise", "fp8_rowwise_fast", "te"}
"""what no CPU can do; each says so itself too, but a run need not import torch to learn it"""
