"""What a Float8Linear has to compute, in float64 and without torch's FP8 types."""

from __future__ import annotations

from dataclasses import dataclass

import torch

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Format:
    """Bits of mantissa, exponent of the smallest normal number, largest number (the article's table A1)."""

    mantissa: int
    least_exponent: int
    largest: float

    def round(self, values: torch.Tensor) -> torch.Tensor:
        """Nearest, ties to even; beyond the largest, the largest. float64 to float64."""
        values = values.double().clamp(-self.largest, self.largest)
        exponent = values.abs().clamp(min=2.0**-1000).log2().floor().clamp(min=self.least_exponent)
        step = 2.0 ** (exponent - self.mantissa)
        return (values / step).round() * step

    def scale(self, amax: float | torch.Tensor) -> torch.Tensor:
        """fp32 [1]: one division, rounded once."""
        return torch.tensor([self.largest], dtype=torch.float32) / torch.as_tensor(amax, dtype=torch.float32)

    def held(self, values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """The values that FP8 holds, decoded: float64. The product with the scale is an fp32 one."""
        return self.round(values.detach().float() * scale.float()) / scale.double()


E4M3 = Format(mantissa=3, least_exponent=-6, largest=448.0)
E5M2 = Format(mantissa=2, least_exponent=-14, largest=57344.0)


def products(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, grad: torch.Tensor, scales: Tensors | None = None
) -> Tensors:
    """(out, gradients of x, weight and bias) in float64, of x [M, K], weight [N, K], bias [N], grad [M, N].

    Without scales (of x, weight and grad), each tensor's scale comes from the tensor itself.
    """
    if scales is None:
        formats = (E4M3, E4M3, E5M2)
        scales = tuple(f.scale(t.abs().max()) for f, t in zip(formats, (x, weight, grad), strict=True))
    x8, w8, g8 = E4M3.held(x, scales[0]), E4M3.held(weight, scales[1]), E5M2.held(grad, scales[2])
    out = x8 @ w8.t()
    if bias is not None:
        out = out + bias.detach().double()
    return out, g8 @ w8, g8.t() @ x8, grad.double().sum(0)


def assert_rounded(actual: torch.Tensor, exact: torch.Tensor) -> None:
    """Only what rounding the result to its own dtype does, and fp32's rounding inside the sum."""
    relative = {torch.bfloat16: 2.0**-8, torch.float32: 2.0**-20}[actual.dtype]
    bound = relative * exact.abs() + 1e-5 * exact.abs().max()
    worst = ((actual.double() - exact).abs() - bound).max()
    assert worst <= 0, f"off by {float(worst):.2e} more than {actual.dtype} has to be"
