"""What a study can name: each name maps to the `module:attribute` that provides it.

Adding a recipe or a workload is one line here and one file there. A run carries the looked-up
`module:attribute` strings, so the measuring process never imports this module and a new line here
makes no earlier measurement stale.
"""

TRAINING = "halfstep.measure.training:measure"

WORKLOADS: dict[str, str] = {
    "vit_huge": "halfstep.workloads.vit:VIT_HUGE",
    "lm": "halfstep.workloads.lm:LM",
}

PRECISIONS: dict[str, str] = {
    "fp32": "halfstep.recipes.precision.fp32:Fp32",
    "tf32": "halfstep.recipes.precision.tf32:Tf32",
    "bf16": "halfstep.recipes.precision.bf16:Bf16",
    "fp16": "halfstep.recipes.precision.fp16:Fp16GradScaler",
    "native_delayed": "halfstep.recipes.precision.native_delayed:NativeDelayed",
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
