"""Transformer Engine's whole `te.TransformerLayer` in place of timm's block: the same function and weights.

Up to its GELU, which is the tanh approximation where timm's is exact: they differ by less than 5e-4 (Hendrycks and
Gimpel 2016, "Gaussian Error Linear Units", section 2), below a bf16 rounding of values near 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from timm.models.vision_transformer import Block
from torch import nn

from halfstep.errors import Invalid
from halfstep.recipes.linears import LinearUse, plan_linears
from halfstep.recipes.precision.fp8_linears import replace
from halfstep.recipes.precision.te_linears import TransformerEngine, delayed_scaling


class TeLayersDelayed(TransformerEngine):
    def make_scaling(self, recipes: Any) -> Any:
        return delayed_scaling(recipes)

    def plan(self, linears: Sequence[LinearUse], batch: int) -> None:
        """The batch must suit every linear layer, although the head stays as it is: so all variants take the same."""
        plan_linears(linears, batch)

    def prepare(self, model: nn.Module) -> dict[str, Any]:
        blocks = {name: module for name, module in model.named_modules() if isinstance(module, Block)}
        if not blocks:
            raise Invalid("the model has no block of timm's Vision Transformer, which te.TransformerLayer replaces")
        for name, block in blocks.items():
            replace(model, name, self.layer_like(block))
        outside = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
        return {
            "layers_converted": list(blocks),
            "linears_skipped": dict.fromkeys(outside, "not inside a block"),
            "differs": "GELU by its tanh approximation",
        }

    def layer_like(self, block: Any) -> nn.Module:
        """The block as one te.TransformerLayer.

        Raises:
            Invalid: the block does what the layer cannot, so that it would be another function.
        """
        width, heads = block.attn.qkv.in_features, block.attn.num_heads
        norms = (block.norm1, block.norm2)
        if not all(isinstance(norm, nn.LayerNorm) for norm in norms):
            raise Invalid("te.TransformerLayer replaces blocks with torch's LayerNorm only: norm: layernorm")
        extras = (block.attn.q_norm, block.attn.k_norm, block.ls1, block.ls2, block.drop_path1, block.mlp.norm)
        if not all(isinstance(module, nn.Identity) for module in extras) or not isinstance(block.mlp.act, nn.GELU):
            raise Invalid("timm's block has a part that te.TransformerLayer lacks: query norms, layer scale, drop path")
        layer = self.te.TransformerLayer(
            width,
            block.mlp.fc1.out_features,
            heads,
            layernorm_epsilon=block.norm1.eps,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            self_attn_mask_type="no_mask",
            attn_input_format="bshd",
            fuse_qkv_params=True,
            qkv_weight_interleaved=False,  # [query, key, value] one after the other, as timm has them
            params_dtype=self.weights,
            device=self.device,
        )
        attention, mlp = layer.self_attention, layer.layernorm_mlp
        pairs = [
            (attention.layernorm_qkv.layer_norm_weight, block.norm1.weight),
            (attention.layernorm_qkv.layer_norm_bias, block.norm1.bias),
            (attention.layernorm_qkv.weight, block.attn.qkv.weight),
            (attention.layernorm_qkv.bias, block.attn.qkv.bias),
            (attention.proj.weight, block.attn.proj.weight),
            (attention.proj.bias, block.attn.proj.bias),
            (mlp.layer_norm_weight, block.norm2.weight),
            (mlp.layer_norm_bias, block.norm2.bias),
            (mlp.fc1_weight, block.mlp.fc1.weight),
            (mlp.fc1_bias, block.mlp.fc1.bias),
            (mlp.fc2_weight, block.mlp.fc2.weight),
            (mlp.fc2_bias, block.mlp.fc2.bias),
        ]
        with torch.no_grad():
            for target, source in pairs:
                target.copy_(source)
        if sum(parameter.numel() for parameter in layer.parameters()) != sum(source.numel() for _, source in pairs):
            raise Invalid("te.TransformerLayer has parameters that timm's block has not")
        return layer
