"""A linear layer whose three matrix products run in FP8 with delayed scaling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import nn

from halfstep.fp8.scaling import E4M3, E5M2, largest_magnitude, new_scale, saturating_cast

TENSORS: tuple[Literal["x"], Literal["w"], Literal["g"]] = ("x", "w", "g")
"""what is cast: the input, the weight, the gradient of the output"""
FORMATS = {"x": E4M3, "w": E4M3, "g": E5M2}
MULTIPLE = 16
"""all sizes of an FP8 matrix product divide by it: torch._scaled_mm's checks on CUDA, after cuBLASLt's FP8 kernels"""


def columns(matrix: torch.Tensor) -> torch.Tensor:
    """The same matrix, column-major: what the hardware wants as the second operand of an FP8 product."""
    return matrix.t().contiguous().t()


def scaled_product(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    dtype: torch.dtype,
    *,
    bias: torch.Tensor | None = None,
    fast_accumulation: bool = False,
) -> torch.Tensor:
    """(a / scale_a) @ (b / scale_b) + bias, [M, N] in dtype.

    Args:
        a: FP8 [M, K], row-major.
        b: FP8 [K, N], column-major.
        scale_a: by what a was multiplied before its cast, fp32 [1].
        scale_b: the same for b.
        dtype: bf16, fp16 or fp32.
        bias: [N]; not with fp32, with which torch takes none on CUDA.
        fast_accumulation: sum in the tensor cores' own accumulator, which keeps fewer bits than fp32.
    """
    # torch's implementation for the CPU multiplies the decoded matrices, which autocast would round to bf16
    with torch.autocast(a.device.type, enabled=False):
        return torch._scaled_mm(
            a,
            b,
            scale_a=scale_a.reciprocal(),
            scale_b=scale_b.reciprocal(),
            bias=None if bias is None else bias.to(dtype),
            out_dtype=dtype,
            use_fast_accum=fast_accumulation,
        )


class Fp8MatrixProducts(torch.autograd.Function):
    """x @ weight.T + bias and its gradients, from casts with given scales.

    Saved for backward are the FP8 casts, a byte an element. Transformer Engine, like float8_experimental,
    sums the forward product in the tensor cores' fast accumulator and those of backward in fp32
    (_2X_ACC_FPROP = False, _2X_ACC_DGRAD = _2X_ACC_WGRAD = True in its pytorch/module/base.py).
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        scale_x: torch.Tensor,
        scale_w: torch.Tensor,
        scale_g: torch.Tensor,
        amax_g: torch.Tensor,
        first_step: bool,
    ) -> torch.Tensor:
        """From x [M, K] and weight [N, K] to [M, N] in x's dtype.

        With first_step, scale_g only serves where the gradient has no scale of its own (all zero, not finite).
        amax_g fp32 [1] becomes at least the gradient's largest magnitude, in backward.
        """
        x8 = saturating_cast(x, scale_x, E4M3)
        w8 = saturating_cast(weight, scale_w, E4M3)
        fused_bias = None if x.dtype == torch.float32 else bias
        out = scaled_product(x8, w8.t(), scale_x, scale_w, x.dtype, bias=fused_bias, fast_accumulation=True)
        if bias is not None and fused_bias is None:
            out = out + bias
        ctx.save_for_backward(x8, w8, scale_x, scale_w, scale_g)
        # not saved by autograd: that would forbid a second backward pass before the next synchronisation
        ctx.amax_g = amax_g
        ctx.first_step = first_step
        ctx.dtypes = x.dtype, weight.dtype, None if bias is None else bias.dtype
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Gradients of x, weight and bias in their dtypes; the bias's from the gradient as it came."""
        x8, w8, scale_x, scale_w, scale_g = ctx.saved_tensors
        x_dtype, weight_dtype, bias_dtype = ctx.dtypes
        need_x, need_weight, need_bias = ctx.needs_input_grad[:3]
        amax = largest_magnitude(grad)
        ctx.amax_g.copy_(torch.maximum(ctx.amax_g, amax))
        if ctx.first_step:
            scale_g = new_scale(amax, torch.finfo(E5M2).max, scale_g)
        g8 = saturating_cast(grad, scale_g, E5M2)
        grad_x = grad_weight = grad_bias = None
        if need_x:
            grad_x = scaled_product(g8, columns(w8), scale_g, scale_w, x_dtype)
        if need_weight:
            # straight into the weight's dtype: an fp32 gradient is not rounded to bf16 on its way
            grad_weight = scaled_product(g8.t().contiguous(), columns(x8), scale_g, scale_x, weight_dtype)
        if need_bias:
            grad_bias = grad.sum(0, dtype=bias_dtype)
        return grad_x, grad_weight, grad_bias, None, None, None, None, None


class Float8Linear(nn.Linear):
    """An nn.Linear that casts its input and weight to e4m3 and its output's gradient to e5m2, with delayed scales.

    Each of the three has two buffers, fp32 [1] and no part of the state dict: `scale_*`, by which it is
    cast, and `amax_*`, its largest magnitude since the last synchronisation. `Synchroniser` makes the one
    from the other, once per step between backward and optimizer. The weight is cast anew in every forward pass.

    torch.compile sees no graph break. Ending the first step flips a Python flag, so each piece of code is
    compiled a second time, once, however many layers run it (not at all with amax_init=False).
    """

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
        self.first_step = amax_init
        self.pre_and_post_forward = pre_and_post_forward
        self.synchronised = True

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Input [..., in] to [..., out], in autocast's dtype under autocast, else in the input's.

        Raises:
            ValueError: the rows of the input (all sizes but the last, multiplied) do not divide by 16.
            RuntimeError: with pre_and_post_forward, the last step was not synchronised.
        """
        training = torch.is_grad_enabled()
        if self.pre_and_post_forward and training:
            if not self.synchronised:
                raise RuntimeError("FP8 scales were not synchronised since the last forward pass: call Synchroniser")
            self.synchronised = False
        if torch.is_autocast_enabled(input.device.type):
            input = input.to(torch.get_autocast_dtype(input.device.type))
        x = input.reshape(-1, self.in_features)
        if x.shape[0] % MULTIPLE:
            raise ValueError(f"FP8 matrix products need rows that divide by {MULTIPLE}; this input has {x.shape[0]}")
        out = Fp8MatrixProducts.apply(
            x,
            self.weight,
            self.bias,
            self._scale("x", x.detach(), record=training),
            self._scale("w", self.weight.detach(), record=training),
            self.scale_g,
            self.amax_g,
            self.first_step,
        )
        return out.reshape(*input.shape[:-1], self.out_features)

    def _scale(self, name: Literal["x", "w"], tensor: torch.Tensor, record: bool) -> torch.Tensor:
        """By what to cast the tensor, fp32 [1]; notes its largest magnitude for the next synchronisation."""
        scale: torch.Tensor = getattr(self, f"scale_{name}")
        if not record and not self.first_step:
            return scale
        amax = largest_magnitude(tensor)
        if record:
            recorded: torch.Tensor = getattr(self, f"amax_{name}")
            recorded.copy_(torch.maximum(recorded, amax))
        return new_scale(amax, torch.finfo(FORMATS[name]).max, scale) if self.first_step else scale

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Float8Linear:
        """Scales and amaxes move with the model, and stay fp32 when it changes its dtype."""
        before = dict(self._buffers)
        super()._apply(fn, recurse)
        for name, buffer in before.items():
            after = self._buffers[name]
            if buffer is not None and after is not None and after.dtype != buffer.dtype:
                self._buffers[name] = buffer.to(after.device)
        return self


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
