"""FP8 with delayed scaling on a real GPU: the values, the kernels, the compiler, the CUDA graph.

The kernels by themselves: `pytest -m gpu tests/unit/fp8/test_fp8_kernels.py`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fp8_floors import cases
from timm.models.vision_transformer import Block as TimmBlock
from torch import nn

from halfstep.fp8.fuse import fuse
from halfstep.fp8.linear import Float8Linear, convert
from halfstep.fp8.synchronise import Synchroniser
from halfstep.kernel_kinds import kind_of
from halfstep.measure.profile import profile_kernels
from halfstep.measure.training import Loop, build_step, capture_step, feed, look_up
from halfstep.recipes.norms import layernorm
from halfstep.recipes.precision.native_delayed import LM_BLOCK, TIMM_BLOCK
from halfstep.runs import Scope, resolve
from halfstep.study import validate
from halfstep.workloads.lm import Block as LmBlock

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("keep_switches"),
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9),
        reason="torch sees no CUDA GPU with FP8 matrix units",
    ),
]

M, K, N = 128, 256, 512
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
CASES = {
    "fp32 weights under autocast": (torch.float32, True),
    "bf16 weights": (torch.bfloat16, False),
    "fp32": (torch.float32, False),
}


def held(tensor: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The values that FP8 holds, decoded to float64."""
    largest = torch.finfo(dtype).max
    return (tensor.detach().float() * scale).clamp(-largest, largest).to(dtype).double() / scale.double()


def own_scale(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    amax = tensor.detach().abs().max().float().reshape(1)
    return torch.full_like(amax, torch.finfo(dtype).max) / amax


def error(actual: torch.Tensor, exact: torch.Tensor) -> float:
    return float((actual.detach().double() - exact).norm() / exact.norm())


def step(linear: Float8Linear, x: torch.Tensor, grad: torch.Tensor, autocast: bool) -> list[torch.Tensor]:
    """Output and gradients of x, weight and bias."""
    x = x.clone().requires_grad_()
    with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
        out = linear(x)
    return [out, *torch.autograd.grad(out, (x, linear.weight, linear.bias), grad)]


@pytest.mark.parametrize("case", CASES)
def test_the_values_are_those_of_the_decoded_operands(case: str, device: torch.device) -> None:
    dtype, autocast = CASES[case]
    torch.manual_seed(0)
    linear = Float8Linear(nn.Linear(K, N, device=device, dtype=dtype))
    synchronise = Synchroniser(nn.Sequential(linear))
    seen = torch.bfloat16 if autocast else dtype
    x = torch.randn(M, K, device=device).to(seen)
    grad = 1e-4 * torch.randn(M, N, device=device).to(seen)
    scales = own_scale(x, E4M3), own_scale(linear.weight, E4M3), own_scale(grad, E5M2)
    # the first step with each tensor's own scale, the second with those scales, delayed, on tensors that clip
    for spread in (1.0, 3.0):
        x, grad = spread * x, spread * grad
        results = step(linear, x, grad, autocast)
        x8, w8, g8 = held(x, scales[0], E4M3), held(linear.weight, scales[1], E4M3), held(grad, scales[2], E5M2)
        exact = [x8 @ w8.t() + linear.bias.to(seen).double(), g8 @ w8, g8.t() @ x8, grad.double().sum(0)]
        # bf16 rounds by 2e-3; the sums of the tensor cores keep fewer bits than fp32, the fast ones fewest
        for result, expected in zip(results, exact, strict=True):
            assert error(result, expected) < 5e-3
        # straight from the product in fp32: not rounded to bf16 on its way
        assert results[2].dtype == dtype
        synchronise()
        if spread == 1.0:
            assert torch.equal(torch.cat([linear.scale_x, linear.scale_w, linear.scale_g]), torch.cat(scales))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(K), nn.Linear(K, 4 * K), nn.Linear(4 * K, K)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Blocks(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.stem = nn.Linear(K, K)
        self.blocks = nn.ModuleList(Block() for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return x


def train(device: torch.device, compiled: bool, steps: int, depth: int) -> tuple[list[float], list[torch.Tensor]]:
    """Losses; the gradients of the last step."""
    torch.manual_seed(0)
    model = Blocks(depth).to(device)
    convert(model, lambda *_: True)
    synchronise = Synchroniser(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    if compiled:
        for block in model.blocks:
            block.compile(dynamic=False, fullgraph=True)
    x = torch.randn(M, K, device=device)
    losses, gradients = [], []
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            out = model(x)
        loss = (out.float() - x.roll(1, 1)).square().mean()
        loss.backward()
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        synchronise()
        optimizer.step()
        losses.append(float(loss))
    return losses, gradients


def test_blocks_compiled_by_inductor_equal_eager_ones(device: torch.device) -> None:
    import torch._dynamo

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        # more blocks than the recompile limit of 8
        losses, gradients = train(device, compiled=True, steps=4, depth=12)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2  # the first step's and that of all others
    expected, _ = train(device, compiled=False, steps=4, depth=12)
    assert losses == pytest.approx(expected, rel=2e-2)

    # After one step, so that nothing has diverged. Inductor keeps fp32 between operations where eager rounds to bf16,
    # and a value near the middle of two FP8 values then falls on the other side: 3 to 5 % of a gradient on the CPU.
    _, gradients = train(device, compiled=True, steps=1, depth=1)
    _, expected_gradients = train(device, compiled=False, steps=1, depth=1)
    for gradient, eager in zip(gradients, expected_gradients, strict=True):
        assert error(gradient, eager.double()) < 0.1


BLOCKS = {
    "timm": lambda: TimmBlock(K, 4, qkv_bias=True, norm_layer=nn.LayerNorm),
    "lm": lambda: LmBlock(K, 4, layernorm),
}
MODES = {"fp32 weights under autocast": (torch.float32, True), "bf16 weights": (torch.bfloat16, False)}


def fused(
    kind: str, depth: int, device: torch.device, dtype: torch.dtype = torch.float32, emulate: bool = False
) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(*(BLOCKS[kind]() for _ in range(depth)))
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.05)
    convert(model.to(device, dtype), lambda *_: True, emulate=emulate)
    assert len(fuse(model, [TIMM_BLOCK, LM_BLOCK])[0]) == depth
    return model


def all_of_a_step(model: nn.Module, x: torch.Tensor, grad: torch.Tensor, autocast: bool) -> dict[str, torch.Tensor]:
    """Output, gradients and amaxes, on the CPU."""
    model.zero_grad()
    x = x.detach().clone().requires_grad_()
    with torch.autocast(x.device.type, torch.bfloat16, enabled=autocast):
        out = model(x)
    out.backward(grad)
    gradients = {name: p.grad for name, p in model.named_parameters() if "qkv.bias" not in name}
    amaxes = {name: buffer for name, buffer in model.named_buffers() if "amax" in name}
    return {name: t.detach().cpu().clone() for name, t in {"out": out, "x": x.grad, **gradients, **amaxes}.items()}


MOVED = 8
"""twins of a step whose input is off by a rounding: a maximum is one number, which one of them may not move at all"""


def assert_near(
    actual: dict[str, torch.Tensor],
    expected: dict[str, torch.Tensor],
    unmoved: dict[str, torch.Tensor],
    moved: list[dict[str, torch.Tensor]],
) -> None:
    """`actual` is off by no more than twice what a step is whose input is `moved` by a bf16 rounding.

    Products are bf16 and summed in another order, and what is then on the other side of the middle of two FP8 values is
    off by a step of that format: of the gradients of the norm before attention up to a tenth, by norm, on the CPU too.
    """
    off = {name: error(value, expected[name].double()) for name, value in actual.items()}
    allowed = {
        name: 2 * max(error(twin[name], value.double()) for twin in moved) + 5e-3 for name, value in unmoved.items()
    }
    assert {name: (off[name], allowed[name]) for name in off if not off[name] < allowed[name]} == {}


def by_a_rounding(x: torch.Tensor) -> torch.Tensor:
    return (x.float() * (1 + 2**-8 * torch.randn_like(x.float()).sign())).to(x.dtype)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", BLOCKS)
def test_a_fused_block_is_its_definition_on_the_cpu(kind: str, mode: str, device: torch.device) -> None:
    dtype, autocast = MODES[mode]
    cpu = torch.device("cpu")
    on_cpu, on_gpu = fused(kind, 1, cpu, dtype, emulate=True), fused(kind, 1, device, dtype)
    # in plain torch too, but where that is fast
    emulated, *moved = (fused(kind, 1, device, dtype, emulate=True) for _ in range(1 + MOVED))
    synchronise = [Synchroniser(model) for model in (on_cpu, on_gpu, emulated, *moved)]
    x = torch.randn(4, 64, K).to(dtype)
    grad = 1e-3 * torch.randn(4, 64, K).to(dtype)
    # by each tensor's own scale, then by those, which clip
    for spread in (1.0, 3.0):
        expected = all_of_a_step(on_cpu, spread * x, spread * grad, autocast)
        there, grad_there = (spread * x).to(device), (spread * grad).to(device)
        actual, unmoved, *near = (
            all_of_a_step(model, inputs, grad_there, autocast)
            for model, inputs in [(on_gpu, there), (emulated, there), *((twin, by_a_rounding(there)) for twin in moved)]
        )
        assert_near(actual, expected, unmoved, near)
        for each in synchronise:
            each()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", BLOCKS)
def test_an_emulated_block_is_the_real_one(kind: str, mode: str, device: torch.device) -> None:
    """On the GPU, in plain torch, as one without FP8 would run it; no kernel of ours and no FP8 product is launched."""
    dtype, autocast = MODES[mode]
    real = fused(kind, 1, device, dtype)
    emulated, *moved = (fused(kind, 1, device, dtype, emulate=True) for _ in range(1 + MOVED))
    synchronise = [Synchroniser(model) for model in (real, *moved, emulated)]
    x, grad = torch.randn(4, 64, K, device=device).to(dtype), 1e-3 * torch.randn(4, 64, K, device=device).to(dtype)
    for _ in range(2):
        expected, actual, *near = (
            all_of_a_step(model, inputs, grad, autocast)
            for model, inputs in [(real, x), (emulated, x), *((twin, by_a_rounding(x)) for twin in moved)]
        )
        assert_near(actual, expected, actual, near)
        for each in synchronise:
            each()
    kernels, _ = profile_kernels(lambda: all_of_a_step(emulated, x, grad, autocast))
    assert [row["kernel"] for row in kernels if "fp8_" in row["kernel"] or kind_of(row["kernel"]) == "FP8 GEMM"] == []


def test_branches_of_a_captured_step_have_their_first_steps_before(device: torch.device) -> None:
    """Of compiled layers; what was not run when the others' first step ended keeps its own."""
    model = nn.ModuleList(nn.Linear(K, K, device=device) for _ in range(2))
    convert(model, lambda *_: True)
    synchronise = Synchroniser(model)
    for layer in model:
        layer.compile(dynamic=False, fullgraph=True)
    x = torch.randn(M, K, device=device)
    for taken in (0, 0, 1, 1):
        (1e-6 * model[taken](x)).sum().backward()
        synchronise()
        assert not any(model[taken].first_step.values())
        assert all(model[1].first_step.values()) == (taken == 0)
    graph = torch.cuda.CUDAGraph()
    for parameter in model.parameters():
        parameter.grad = None
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for layer in model:
            (1e-6 * layer(x)).sum().backward()
        synchronise()
    torch.cuda.current_stream().wait_stream(stream)
    for parameter in model.parameters():
        parameter.grad = None
    with torch.cuda.graph(graph):
        for layer in model:
            (1e-6 * layer(x)).sum().backward()
        synchronise()
    graph.replay()
    assert all(bool(layer.weight.grad.any()) for layer in model)


def test_a_fused_block_compiled_by_inductor_is_the_eager_one(device: torch.device) -> None:
    import torch._dynamo

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    eager, compiled, *moved = (fused("timm", 10, device) for _ in range(2 + MOVED))
    for block in compiled:
        block.compile(dynamic=False, fullgraph=True)
    synchronise = [Synchroniser(model) for model in (eager, compiled, *moved)]
    x, grad = torch.randn(4, 64, K, device=device), 1e-3 * torch.randn(4, 64, K, device=device)
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        for _ in range(2):
            # the same kernels in the same order; Inductor's own are the last addition and the casts of biases
            expected, actual, *near = (
                all_of_a_step(model, inputs, grad, autocast=True)
                for model, inputs in [(eager, x), (compiled, x), *((twin, by_a_rounding(x)) for twin in moved)]
            )
            assert_near(actual, expected, expected, near)
            for each in synchronise:
                each()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2


def test_two_steps_of_fused_blocks_on_the_same_data_have_the_same_bits(device: torch.device) -> None:
    model = fused("timm", 2, device)
    synchronise = Synchroniser(model)
    x, grad = torch.randn(4, 64, K, device=device), 1e-3 * torch.randn(4, 64, K, device=device)
    all_of_a_step(model, x, grad, autocast=True)
    synchronise()
    # attention's backward pass of cuDNN adds in any order; the one in plain products does not
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        first, second = (all_of_a_step(model, x, grad, autocast=True) for _ in range(2))
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


def test_the_kernels_of_a_fused_block(device: torch.device) -> None:
    """In docs/fp8.md's order; four of the casts are those of the weights."""
    model = fused("timm", 1, device)
    synchronise = Synchroniser(model)
    x, grad = torch.randn(4, 64, K, device=device), torch.randn(4, 64, K, device=device)
    all_of_a_step(model, x, grad, autocast=True)
    synchronise()
    kernels, _ = profile_kernels(lambda: all_of_a_step(model, x, grad, autocast=True))
    ours = {row["kernel"]: round(row["calls_per_step"]) for row in kernels if row["kernel"].endswith("_kernel")}
    assert {name: calls for name, calls in ours.items() if "fp8_" in name or "layer_norm_backward" in name} == {
        "fp8_layer_norm_kernel": 2,
        "fp8_cast_kernel": 4 + 1 + 2 + 3,  # weights; attention's output; gradients: two, and one of three parts
        "fp8_gelu_kernel": 1,
        "fp8_gelu_backward_kernel": 1,
        "fp8_transpose_kernel": 2,
        "layer_norm_backward_kernel": 2,
    }


def test_every_kernel_of_the_table_of_floors_runs(device: torch.device) -> None:
    for case in cases(1, "cuda"):
        case.call()


def loop_of(device: torch.device, **settings: Any) -> Loop:
    variant = {"precision": "native_delayed", **settings}
    comparison = {"workload": "lm", "baseline": "a", "variants": {"a": variant}}
    run = resolve(validate({"comparisons": {"c": comparison}}), Scope("gpu", "smoke"), ("c", "a", 1)).model_dump()
    built, precision, _ = build_step(run, device)
    return Loop(built, feed(run, look_up(run["modules"]["workload"]), device), precision, lambda event, **details: None)


@pytest.mark.parametrize("compile", ["none", "blocks"])
def test_the_products_of_a_step_are_fp8_kernels(compile: str, device: torch.device) -> None:
    loop = loop_of(device, compile=compile)
    loop.run("warmup", device, 3)
    kernels, _ = profile_kernels(lambda: loop.step(*next(loop.batches)))
    products = {row["kernel"]: row["calls_per_step"] for row in kernels if "GEMM" in kind_of(row["kernel"])}
    fp8 = {name: calls for name, calls in products.items() if kind_of(name) == "FP8 GEMM"}
    # 9 linear layers with three products each; what else multiplies is attention, which is a kind of its own
    assert sum(fp8.values()) >= 27, products
    assert [name for name in products if name not in fp8 and "splitK" not in name] == []


def test_a_captured_step_gives_the_losses_of_the_step_launched_one_by_one(device: torch.device) -> None:
    """Forward, backward, synchronisation and optimizer in one CUDA graph over compiled blocks."""
    plain = loop_of(device, compile="blocks", optimizer="adam_fused")
    plain.run("warmup", device, 4)
    next(plain.batches)  # the captured loop's batch during the capture, in which nothing is computed
    expected = [row["loss"] for row in plain.run("window", device, 8)]
    history = plain.precision.synchronise.history.clone()

    captured = loop_of(device, compile="graphs", optimizer="adam_fused")
    captured.run("warmup", device, 1)
    capture_step(captured, device)  # three more steps, and the capture
    losses = [row["loss"] for row in captured.run("window", device, 8)]
    assert len({round(loss, 6) for loss in losses}) == 8
    # a fused optimizer with its state on the GPU rounds another way, and FP8 amplifies a last bit now and then
    assert losses == pytest.approx(expected, rel=2e-3)
    # the amaxes of every replayed step went through the graph
    assert (captured.precision.synchronise.history > 0).sum(dim=1).tolist() == [27] * 12 + [0] * 4
    torch.testing.assert_close(captured.precision.synchronise.history, history, rtol=0.1, atol=0)
