"""Replaces a model's Transformer blocks by ones whose activations are cast by what computes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from halfstep.fp8.block import Parts, run_block
from halfstep.fp8.linear import Float8Linear
from halfstep.fp8.replace import called_otherwise, has_call_hooks, put, take_over

# timm's calls torch's function
NORMS = ("torch.nn.modules.normalization.LayerNorm", "timm.layers.norm.LayerNorm")


@dataclass(frozen=True)
class BlockKind:
    """Where the layers of a pre-norm block are: x + out(attention(qkv(norm1(x)))), then x + down(gelu(up(norm2(x)))).

    `types` names the classes that compute this, by their path in the block ("" is the block itself); `norm` to `down`
    are the paths of layers and `heads` that of an attribute. qkv's output holds queries, keys, values, each of all
    heads; attention divides by the root of a head's width, and with `causal` looks back only.
    """

    types: Mapping[str, str]
    norm1: str
    qkv: str
    out: str
    norm2: str
    up: str
    gelu: str
    down: str
    heads: str
    causal: bool


class FusedBlock(nn.Module):
    """Computes what the block did, and has its hooks, attributes and layers: the state dict stays as it was.

    The layers are not called, so a hook on one of them is refused.
    """

    def __init__(self, block: nn.Module, kind: BlockKind) -> None:
        super().__init__()
        take_over(self, block)
        self.paths = [kind.norm1, kind.qkv, kind.out, kind.norm2, kind.up, kind.down]
        self.heads, self.causal = _attribute(block, kind.heads), kind.causal

    def forward(self, x: Tensor) -> Tensor:
        """[batch, tokens, width] to the same, in x's dtype. See run_block.

        Raises:
            RuntimeError: a layer of the block has got a hook since.
        """
        if any(module is not self and has_call_hooks(module) for module in self.modules()):
            raise RuntimeError(
                "a layer of this fused block has got a hook, which would not be called, since a fused block does not "
                "call its layers: register hooks before fuse, which then leaves the block as it is"
            )
        layers: list[Any] = [self.get_submodule(path) for path in self.paths]
        return run_block(x, Parts(*layers), self.heads, self.causal)


def fuse(model: nn.Module, kinds: Sequence[BlockKind]) -> tuple[list[str], dict[str, str]]:
    """Replace the model's blocks in place, where their linear layers are Float8Linear and nothing else is in them.

    Returns:
        The names of the replaced blocks, and of those that are of such a class and stay, each with the reason.
    """
    known = {kind.types[""]: kind for kind in kinds}
    left: dict[str, str] = {}
    fused: list[str] = []
    new: dict[nn.Module, nn.Module] = {}
    for name, block in list(model.named_modules()):
        kind = known.get(_class(block))
        if kind is None:
            continue
        reason = why_not(block, kind) if name else "it is the model itself, which has no place to put the new one"
        if reason:
            left[name] = reason
            continue
        new[block] = FusedBlock(block, kind)
        fused.append(name)
    put(model, new)
    return fused, left


def why_not(block: nn.Module, kind: BlockKind) -> str:
    """What keeps the block from being the function of BlockKind; empty if it is."""
    modules = dict(block.named_modules())
    for path, wanted in kind.types.items():
        if path not in modules or _class(modules[path]) != wanted:
            return f"its {path or 'class'} is not {wanted}"
    for path, module in modules.items():
        if reason := called_otherwise(module):
            return f"{path or 'it'} {reason}"
        if path and has_call_hooks(module):
            return f"{path} has a hook, which a fused block would not call"
    for path in (kind.qkv, kind.out, kind.up, kind.down):
        if not isinstance(modules.get(path), Float8Linear):
            return f"{path} is not in FP8"
    for path in (kind.norm1, kind.norm2):
        norm = modules.get(path)
        if not isinstance(norm, nn.LayerNorm) or _class(norm) not in NORMS or norm.weight is None or norm.bias is None:
            return f"{path} is not torch's LayerNorm with weight and bias"
    gelu = modules.get(kind.gelu)
    if type(gelu) is not nn.GELU or gelu.approximate != "none":
        return f"{kind.gelu} is not torch's exact GELU"
    layers = [kind.norm1, kind.qkv, kind.out, kind.norm2, kind.up, kind.gelu, kind.down]
    for path, module in modules.items():
        idle = isinstance(module, nn.Identity) or (isinstance(module, nn.Dropout) and module.p == 0)
        if path not in layers and not idle and not next(module.children(), None):
            return f"it has {path}, a {type(module).__name__}, which is not part of a fused block"
    ours = {id(parameter) for path in layers for parameter in modules[path].parameters()}
    others = [name for name, parameter in block.named_parameters() if id(parameter) not in ours]
    return f"it has the parameter {others[0]}, which is not part of a fused block" if others else ""


def _class(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"


def _attribute(block: nn.Module, path: str) -> int:
    parent, _, name = path.rpartition(".")
    value: int = getattr(block.get_submodule(parent), name)
    return value
