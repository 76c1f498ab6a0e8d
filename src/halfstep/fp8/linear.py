"""A linear layer whose three matrix products run in FP8 with delayed scaling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrize import type_before_parametrizations

from halfstep.fp8.device import need_fp8
from halfstep.fp8.products import (
    Scaling,
    cast_e4m3,
    cast_gradient,
    forward_product,
    input_gradient,
    refuse_second_derivative,
    weight_gradient,
)
from halfstep.fp8.replace import called_otherwise, put, take_over
from halfstep.fp8.scaling import E4M3, E5M2

TENSORS = ("x", "w", "g")
"""what is cast: the input, the weight, the gradient of the output"""
FORMATS = {"x": E4M3, "w": E4M3, "g": E5M2}
DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
"""of inputs and weights: what torch._scaled_mm returns"""
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
        ctx.emulate = scales.emulate
        cast_x = cast_e4m3(x, scales.scale_x, scales.amax_x, scales.first_x, scales.emulate)
        cast_w = cast_e4m3(weight, scales.scale_w, scales.amax_w, scales.first_w, scales.emulate)
        ctx.save_for_backward(cast_x.columns, cast_w.columns, cast_x.inverse, cast_w.inverse, scales.scale_g)
        # not saved by autograd: that would forbid a second backward pass before the next synchronisation
        ctx.amax_g, ctx.first_g = scales.amax_g, scales.first_g
        ctx.dtypes = x.dtype, weight.dtype, None if bias is None else bias.dtype
        return forward_product(cast_x.rows, cast_x.inverse, cast_w, bias, x.dtype, scales.emulate)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Gradients of x, weight and bias in their dtypes; the bias's from the gradient as it came."""
        refuse_second_derivative()
        x, weight, inverse_x, inverse_w, scale_g = ctx.saved_tensors
        x_dtype, weight_dtype, bias_dtype = ctx.dtypes
        need_x, need_weight, need_bias = ctx.needs_input_grad[:3]
        cast, grad_bias = cast_gradient(
            [grad], scale_g, ctx.amax_g, ctx.first_g, ctx.emulate, bias_dtype if need_bias else None
        )
        grad_x = input_gradient(cast, weight, inverse_w, x_dtype, ctx.emulate) if need_x else None
        grad_weight = weight_gradient(cast, x, inverse_x, weight_dtype, ctx.emulate) if need_weight else None
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

    def __init__(
        self, linear: nn.Linear, *, amax_init: bool = True, pre_and_post_forward: bool = False, emulate: bool = False
    ) -> None:
        """Take over the linear's parameters, hooks and attributes; they are shared, not copied.

        The two flags are those of float8_experimental's config.py (2024), the origin of torchao.float8.

        Args:
            linear: the layer to replace.
            amax_init: until the first synchronisation each tensor's scale comes from the tensor itself, so the
                first step is right. False is `enable_amax_init=False`: the first step casts with the scale 1,
                which clips what is larger than the format, and flushes small gradients to zero.
            pre_and_post_forward: a training forward pass raises unless all was synchronised since the last one
                (`enable_pre_and_post_forward`). There it also ended the first step; here synchronising does.
            emulate: compute the same in plain torch, on any device.

        Raises:
            ValueError: in_features or out_features do not divide by 16, or the layer is not as torch made it: its
                weight is computed or split, a call of it does something else, or it is in FP8 already.
            RuntimeError: it is on a device without FP8, and not to be emulated.
        """
        if reason := _why_not(linear):
            raise ValueError(reason)
        need_fp8(linear.weight.device, emulate)
        super().__init__(linear.in_features, linear.out_features, bias=False, device="meta")
        take_over(self, linear)
        for tensor in TENSORS:
            self.register_buffer(f"scale_{tensor}", None, persistent=False)
            self.register_buffer(f"amax_{tensor}", None, persistent=False)
        self.amax_init, self.pre_and_post_forward, self.emulate = amax_init, pre_and_post_forward, emulate
        self._start(linear.weight.device)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Input [..., in] to [..., out], in autocast's dtype under autocast, else in the input's.

        Raises:
            ValueError: the input's last size is not in_features, or its rows (all other sizes, multiplied) are none or
                do not divide by 16.
            TypeError: input or weight are not in fp32, bf16 or fp16.
            RuntimeError: with pre_and_post_forward, the last step was not synchronised; or the device has no FP8.
        """
        check_input(input, self.in_features)
        if torch.is_autocast_enabled(input.device.type):
            input = input.to(torch.get_autocast_dtype(input.device.type))
        x = input.reshape(-1, self.in_features)
        out = Fp8MatrixProducts.apply(x, self.weight, self.bias, *self.begin_forward())
        return out.reshape(*input.shape[:-1], self.out_features)

    def begin_forward(self) -> Scaling:
        """What a forward pass casts with. Amaxes are noted where gradients are computed, for those alone train.

        Raises:
            TypeError: the weight is not in fp32, bf16 or fp16.
            RuntimeError: with pre_and_post_forward, the last step was not synchronised.
        """
        _check_dtype("weight", self.weight)
        training = torch.is_grad_enabled()
        if self.pre_and_post_forward and training:
            if not self.synchronised and not _recomputing():
                raise RuntimeError("FP8 scales were not synchronised since the last forward pass: call Synchroniser")
            self.synchronised = False
        amaxes = self.amax_x, self.amax_w, self.amax_g
        if not training:
            amaxes = torch.zeros_like(self.amax_x), torch.zeros_like(self.amax_w), self.amax_g
        first = self.first_step
        return Scaling(
            self.scale_x, self.scale_w, self.scale_g, *amaxes, first["x"], first["w"], first["g"], self.emulate
        )

    def _start(self, device: torch.device) -> None:
        """Nothing was seen yet."""
        with torch.inference_mode(False):  # whose tensors no training could write
            for tensor in TENSORS:
                setattr(self, f"scale_{tensor}", torch.ones(1, device=device))
                setattr(self, f"amax_{tensor}", torch.zeros(1, device=device))
        self.begin_step(dict.fromkeys(TENSORS, self.amax_init))

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
        return bool(getattr(self, f"amax_{tensor}")._version != self._versions[tensor])

    def _watch(self, noted: dict[str, bool]) -> None:
        self._versions = {tensor: getattr(self, f"amax_{tensor}")._version - was for tensor, was in noted.items()}

    def __getstate__(self) -> dict[str, Any]:
        """A copy's tensors have versions of their own."""
        return {**super().__getstate__(), "_versions": {tensor: self.noted(tensor) for tensor in TENSORS}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._watch(self._versions)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Float8Linear:
        """Scales and amaxes follow the weight to its device, with their values: as fp32, and out of `to_empty` too."""
        names = [f"{kind}_{tensor}" for kind in ("scale", "amax") for tensor in TENSORS]
        before, noted = {name: getattr(self, name) for name in names}, {name: self.noted(name) for name in TENSORS}
        super()._apply(fn, recurse)
        device = self.amax_x.device
        if before["amax_x"].is_meta and device.type != "meta":
            self._start(device)
            return self
        for name, tensor in before.items():
            if getattr(self, name) is not tensor:  # share_memory() changes it in place
                setattr(self, name, tensor.to(device))
        self._watch(noted)
        return self

    def _load_from_state_dict(self, *arguments: Any, **options: Any) -> None:
        """With assign=True it puts weights in the place of those on the meta device."""
        super()._load_from_state_dict(*arguments, **options)
        if self.amax_x.is_meta and not self.weight.is_meta:
            self._start(self.weight.device)

    def _replicate_for_data_parallel(self) -> Float8Linear:
        raise RuntimeError(
            "nn.DataParallel would lose the amaxes of all GPUs but the first: use DistributedDataParallel"
        )


def check_input(x: torch.Tensor, features: int) -> None:
    """Raises: TypeError for its dtype, ValueError for its sizes, where FP8 products cannot take it."""
    _check_dtype("input", x)
    if x.shape[-1:] != (features,):
        raise ValueError(f"the last size of the input has to be {features}; its sizes are {list(x.shape)}")
    rows = x.numel() // features
    if not rows or rows % MULTIPLE:
        raise ValueError(f"FP8 matrix products need rows that divide by {MULTIPLE}; this input has {rows}")


def _check_dtype(what: str, tensor: torch.Tensor) -> None:
    if tensor.dtype not in DTYPES:
        known = ", ".join(DTYPES.values())
        raise TypeError(f"FP8 matrix products take an input and a weight in {known}; this {what} is {tensor.dtype}")


def _recomputing() -> bool:
    """Whether this is a forward pass within a backward pass: that of activation checkpointing."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


def _why_not(linear: nn.Linear) -> str:
    """Why the layer cannot be in FP8; empty if it can."""
    if isinstance(linear, Float8Linear):
        return "this layer is in FP8 already: convert it once"
    sizes = linear.in_features, linear.out_features
    if any(not size or size % MULTIPLE for size in sizes):
        return (
            f"FP8 matrix products need features that divide by {MULTIPLE}; "
            f"this layer has {sizes[0]} in and {sizes[1]} out"
        )
    if "weight" not in linear._parameters:
        return (
            "the weight of this layer is computed before each forward pass (a parametrization, weight norm, spectral "
            "norm or pruning), and an FP8 layer needs it as a parameter: leave the layer out, or remove that first"
        )
    if hasattr(linear.weight, "device_mesh"):
        return (
            "the weight of this layer is a DTensor, split over ranks: convert the model before fully_shard, and leave "
            "layers out that are split by tensor parallelism"
        )
    if reason := called_otherwise(linear):
        return f"this layer {reason}: convert it before"
    return ""


def convert(
    model: nn.Module,
    chosen: Callable[[str, nn.Linear], bool],
    *,
    amax_init: bool = True,
    pre_and_post_forward: bool = False,
    emulate: bool = False,
) -> list[str]:
    """Replace linear layers of the model, in place, by Float8Linear with the same parameters, hooks and attributes.

    Only layers that are nn.Linear itself: a subclass may be one whose owner never calls it, as in
    nn.MultiheadAttention. A layer that is used in several places stays one layer.

    Args:
        model: holds the layers; a lone nn.Linear has no place to put the new one.
        chosen: of a layer's qualified name and the layer, whether to replace it. It is also asked of layers that are
            in FP8 already or have a parametrization, which are refused.
        amax_init: see Float8Linear.
        pre_and_post_forward: see Float8Linear.
        emulate: see Float8Linear.

    Returns:
        The names of the replaced layers, in the order of model.named_modules().

    Raises:
        ValueError: the model is itself an nn.Linear, or a chosen layer cannot be converted; nothing is changed then.
        RuntimeError: a chosen layer is on a device without FP8, and not to be emulated; likewise.
    """
    if isinstance(model, nn.Linear):
        raise ValueError("a lone linear layer cannot be replaced in place; make a Float8Linear of it")
    layers: dict[str, nn.Linear] = {}
    for name, module in model.named_modules():
        if type_before_parametrizations(module) in (nn.Linear, Float8Linear) and chosen(name, module):
            layers[name] = module
    for name, layer in layers.items():
        if reason := _why_not(layer):
            raise ValueError(f"{name}: {reason}")
        need_fp8(layer.weight.device, emulate)
    flags = {"amax_init": amax_init, "pre_and_post_forward": pre_and_post_forward, "emulate": emulate}
    put(model, {layer: Float8Linear(layer, **flags) for layer in layers.values()})
    return list(layers)
