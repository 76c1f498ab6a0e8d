"""What a study can name: each name maps to the `module:attribute` that provides it.

Adding a recipe or a workload is one line here and one file there. A run carries the looked-up
`module:attribute` strings, so the measuring process never imports this module and a new line here
makes no earlier measurement stale.
"""

WORKLOADS: dict[str, str] = {
    "vit_huge": "halfstep.workloads.vit:VIT_HUGE",
    "lm": "halfstep.workloads.lm:LM",
}

PRECISIONS: dict[str, str] = {
    "fp32": "halfstep.recipes.precision.fp32:Fp32",
    "tf32": "halfstep.recipes.precision.tf32:Tf32",
    "bf16": "halfstep.recipes.precision.bf16:Bf16Autocast",
    "bf16_weights": "halfstep.recipes.precision.bf16_weights:Bf16Weights",
    "fp16": "halfstep.recipes.precision.fp16:Fp16GradScaler",
    "native_delayed": "halfstep.recipes.precision.native_delayed:NativeDelayed",
}

NORMS: dict[str, str] = {
    "layernorm": "halfstep.recipes.norms:layernorm",
    "rmsnorm": "halfstep.recipes.norms:rmsnorm",
}

OPTIMIZERS: dict[str, str] = {
    "adam_forloop": "halfstep.recipes.optimizers:adam_forloop",
    "adam_foreach": "halfstep.recipes.optimizers:adam_foreach",
    "adam_fused": "halfstep.recipes.optimizers:adam_fused",
    "adamw_forloop": "halfstep.recipes.optimizers:adamw_forloop",
    "adamw_foreach": "halfstep.recipes.optimizers:adamw_foreach",
    "adamw_fused": "halfstep.recipes.optimizers:adamw_fused",
}

COMPILES: dict[str, str] = {
    "none": "halfstep.recipes.compilation:none",
    "blocks": "halfstep.recipes.compilation:blocks",
    "model": "halfstep.recipes.compilation:model",
    "graphs": "halfstep.recipes.compilation:graphs",
}
