"""A linear layer whose three matrix products run in FP8 with delayed scaling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from halfstep.fp8.products import (
    Scaling,
    cast_e4m3,
    cast_gradient,
    forward_product,
    input_gradient,
    weight_gradient,
)
from halfstep.fp8.scaling import E4M3, E5M2

TENSORS = ("x", "w", "g")
"""what is cast: the input, the weight, the gradient of the output"""
FORMATS = {"x": E4M3, "w": E4M3, "g": E5M2}
MULTIPLE = 16
"""all sizes of an FP8 matrix product divide by it: torch._scaled_mm's checks on CUDA, after cuBLASLt's FP8 kernels"""


class Fp8MatrixProducts(torch.autograd.Function):
    """x @ weight.T + bias and its gradients. Saved for backward are the transposed casts, a byte an element."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        *scaling: Any,
    ) -> torch.Tensor:
        """From x [M, K], weight [N, K] and a Scaling's fields to [M, N] in x's dtype."""
        scales = Scaling(*scaling)
        cast_x = cast_e4m3(x, scales.scale_x, scales.amax_x, scales.first_x)
        cast_w = cast_e4m3(weight, scales.scale_w, scales.amax_w, scales.first_w)
        ctx.save_for_backward(cast_x.columns, cast_w.columns, cast_x.inverse, cast_w.inverse, scales.scale_g)
        # not saved by autograd: that would forbid a second backward pass before the next synchronisation
        ctx.amax_g, ctx.first_g = scales.amax_g, scales.first_g
        ctx.dtypes = x.dtype, weight.dtype, None if bias is None else bias.dtype
        return forward_product(cast_x.rows, cast_x.inverse, cast_w, bias, x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Gradients of x, weight and bias in their dtypes; the bias's from the gradient as it came."""
        x, weight, inverse_x, inverse_w, scale_g = ctx.saved_tensors
        x_dtype, weight_dtype, bias_dtype = ctx.dtypes
        need_x, need_weight, need_bias = ctx.needs_input_grad[:3]
        cast, grad_bias = cast_gradient([grad], scale_g, ctx.amax_g, ctx.first_g, bias_dtype if need_bias else None)
        grad_x = input_gradient(cast, weight, inverse_w, x_dtype) if need_x else None
        grad_weight = weight_gradient(cast, x, inverse_x, weight_dtype) if need_weight else None
        return (grad_x, grad_weight, grad_bias, *(None for _ in Scaling._fields))


class Float8Linear(nn.Linear):
    """An nn.Linear that casts its input and weight to e4m3 and its output's gradient to e5m2, with delayed scales.

    Each of the three has two buffers, fp32 [1] and no part of the state dict: `scale_*`, by which it is
    cast, and `amax_*`, its largest magnitude since the last synchronisation. `Synchroniser` makes the one
    from the other, once per step between backward and optimizer. The weight is cast anew in every forward pass.

    torch.compile sees no graph break. Ending the first step flips Python flags, so each piece of code is
    compiled a second time, once, however many layers run it (not at all with amax_init=False).
    """

    scale_x: torch.Tensor
    scale_w: torch.Tensor
    scale_g: torch.Tensor
    amax_x: torch.Tensor
    amax_w: torch.Tensor
    amax_g: torch.Tensor
    first_step: dict[str, bool]
    """of each tensor: whether it is cast by its own scale"""
    synchronised: bool

    def __init__(self, linear: nn.Linear, *, amax_init: bool = True, pre_and_post_forward: bool = False) -> None:
        """Take over the linear's parameters; they are shared, not copied.

        The two flags are those of float8_experimental's config.py (2024), the origin of torchao.float8.

        Args:
            linear: the layer to replace.
            amax_init: until the first synchronisation each tensor's scale comes from the tensor itself, so the
                first step is right. False is `enable_amax_init=False`: the first step casts with the scale 1,
                which clips what is larger than the format, and flushes small gradients to zero.
            pre_and_post_forward: a training forward pass raises unless all was synchronised since the last one
                (`enable_pre_and_post_forward`). There it also ended the first step; here synchronising does.

        Raises:
            ValueError: in_features or out_features do not divide by 16.
        """
        if linear.in_features % MULTIPLE or linear.out_features % MULTIPLE:
            raise ValueError(
                f"FP8 matrix products need features that divide by {MULTIPLE}; "
                f"this layer has {linear.in_features} in and {linear.out_features} out"
            )
        super().__init__(linear.in_features, linear.out_features, bias=False, device="meta")
        self.weight, self.bias = linear.weight, linear.bias
        self.train(linear.training)
        for tensor in TENSORS:
            self.register_buffer(f"scale_{tensor}", torch.ones(1, device=linear.weight.device), persistent=False)
            self.register_buffer(f"amax_{tensor}", torch.zeros(1, device=linear.weight.device), persistent=False)
        self.pre_and_post_forward = pre_and_post_forward
        self.begin_step(dict.fromkeys(TENSORS, amax_init))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Input [..., in] to [..., out], in autocast's dtype under autocast, else in the input's.

        Raises:
            ValueError: the rows of the input (all sizes but the last, multiplied) do not divide by 16.
            RuntimeError: with pre_and_post_forward, the last step was not synchronised.
        """
        if torch.is_autocast_enabled(input.device.type):
            input = input.to(torch.get_autocast_dtype(input.device.type))
        x = input.reshape(-1, self.in_features)
        check_rows(x.shape[0])
        out = Fp8MatrixProducts.apply(x, self.weight, self.bias, *self.begin_forward())
        return out.reshape(*input.shape[:-1], self.out_features)

    def begin_forward(self) -> Scaling:
        """What a forward pass casts with. Amaxes are noted where gradients are computed, for those alone train.

        Raises:
            RuntimeError: with pre_and_post_forward, the last step was not synchronised.
        """
        training = torch.is_grad_enabled()
        if self.pre_and_post_forward and training:
            if not self.synchronised:
                raise RuntimeError("FP8 scales were not synchronised since the last forward pass: call Synchroniser")
            self.synchronised = False
        amaxes = self.amax_x, self.amax_w, self.amax_g
        if not training:
            amaxes = torch.zeros_like(self.amax_x), torch.zeros_like(self.amax_w), self.amax_g
        return Scaling(self.scale_x, self.scale_w, self.scale_g, *amaxes, *self.first_step.values())

    def begin_step(self, first_step: dict[str, bool]) -> None:
        """The amaxes are 0, and what `first_step` says of each tensor is true: that it is cast by its own scale."""
        self.first_step = first_step
        self.synchronised = True
        self._watch(dict.fromkeys(TENSORS, False))

    def first_steps_left(self) -> dict[str, bool]:
        """Those of tensors that were not noted: of a branch that was not taken, or of which no gradient was asked."""
        return {tensor: first and not self.noted(tensor) for tensor, first in self.first_step.items()}

    def noted(self, tensor: str) -> bool:
        """Whether an amax was noted since the last step: without a look at its value, which would wait for the GPU.

        Whatever writes a tensor counts its version up, compiled code too.
        """
        return getattr(self, f"amax_{tensor}")._version != self._versions[tensor]

    def _watch(self, noted: dict[str, bool]) -> None:
        self._versions = {tensor: getattr(self, f"amax_{tensor}")._version - was for tensor, was in noted.items()}

    def __getstate__(self) -> dict[str, Any]:
        """A copy's tensors have versions of their own."""
        return {**super().__getstate__(), "_versions": {tensor: self.noted(tensor) for tensor in TENSORS}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._watch(self._versions)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Float8Linear:
        """Scales and amaxes move with the model, and stay fp32 when it changes its dtype."""
        before, noted = dict(self._buffers), {tensor: self.noted(tensor) for tensor in TENSORS}
        super()._apply(fn, recurse)
        for name, buffer in before.items():
            after = self._buffers[name]
            if buffer is not None and after is not None and after.dtype != buffer.dtype:
                self._buffers[name] = buffer.to(after.device)
        self._watch(noted)
        return self


def check_rows(rows: int) -> None:
    """Raises: ValueError, where FP8 products cannot take as many."""
    if rows % MULTIPLE:
        raise ValueError(f"FP8 matrix products need rows that divide by {MULTIPLE}; this input has {rows}")


def convert(
    model: nn.Module,
    chosen: Callable[[str, nn.Linear], bool],
    *,
    amax_init: bool = True,
    pre_and_post_forward: bool = False,
) -> list[str]:
    """Replace linear layers of the model, in place, by Float8Linear with the same parameters.

    Only layers that are nn.Linear itself: a subclass may be one whose owner never calls it, as in
    nn.MultiheadAttention. A layer that is used in several places stays one layer.

    Args:
        model: holds the layers; a lone nn.Linear has no place to put the new one.
        chosen: of a layer's qualified name and the layer, whether to replace it.
        amax_init: see Float8Linear.
        pre_and_post_forward: see Float8Linear.

    Returns:
        The names of the replaced layers, in the order of model.named_modules().

    Raises:
        ValueError: the model is itself an nn.Linear, or a chosen layer's features do not divide by 16.
    """
    if isinstance(model, nn.Linear):
        raise ValueError("a lone linear layer cannot be replaced in place; make a Float8Linear of it")
    flags = {"amax_init": amax_init, "pre_and_post_forward": pre_and_post_forward}
    names: list[str] = []
    new: dict[nn.Module, Float8Linear] = {}
    for name, module in model.named_modules():
        if type(module) is nn.Linear and chosen(name, module):
            names.append(name)
            new[module] = Float8Linear(module, **flags)
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child in new:
                setattr(parent, name, new[child])
    return names
