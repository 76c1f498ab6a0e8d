"""One module in the place of another, with what people have set on it."""

from __future__ import annotations

import weakref
from collections.abc import Mapping

from torch import nn

OWN = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
"""of nn.Module's attributes those that a new module changes"""
CALL_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def take_over(new: nn.Module, old: nn.Module) -> None:
    """Give `new` all that `old` has: parameters, buffers, modules, hooks, and attributes of any name.

    Tensors and modules are the same ones. So are the tables of hooks: what registered a hook can still remove it.
    """
    for name, value in vars(old).items():
        new.__dict__[name] = value.copy() if name in OWN else value
    for hook in new._load_state_dict_pre_hooks.values():
        if getattr(hook, "with_module", False):  # torch binds these to their module
            hook.module = weakref.ref(new)  # type: ignore[attr-defined]


def put(model: nn.Module, new: Mapping[nn.Module, nn.Module]) -> None:
    """Replace modules of the model in all their places."""
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child is not None and child in new:
                setattr(parent, name, new[child])


def called_otherwise(module: nn.Module) -> str:
    """How a call of the module differs from its class's forward, as the end of a sentence; empty if it does not."""
    if "forward" in vars(module):
        return "has a forward of its own in place of its class's"
    return "is compiled already, and that would be lost" if module._compiled_call_impl is not None else ""


def has_call_hooks(module: nn.Module) -> bool:
    """Whether a call of the module, or its backward pass, calls hooks that are registered on it."""
    return any(getattr(module, hooks) for hooks in CALL_HOOKS)
