"""Our times beside others': a plain script's training step, torch.utils.benchmark, Transformer Engine's own way.

Each is taken in turns with ours, so that both meet the same GPU at the same temperature, and the medians are compared.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.benchmark import Timer

from halfstep.errors import Unsupported
from halfstep.measure.benchmark import WINDOW_MS, benchmark
from halfstep.recipes import gemms
from halfstep.recipes.norms import layernorm
from halfstep.recipes.optimizers import adam_fused
from halfstep.records import SUMMARY_COLUMNS, read_csv
from halfstep.runs import Scope, resolve
from halfstep.study import Window, validate
from halfstep.system.gpu import visible_gpu
from halfstep.workloads.optimizer_step import vit_shapes

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA GPU"),
]

AGREE = 0.02
ROUNDS = 3
BATCH = 64  # large enough that the GPU and not the host decides
SOURCE = Path(__file__).parents[2] / "src"
PLAIN = Path(__file__).with_name("plain_step.py")


def agree(ours: list[float], theirs: list[float]) -> None:
    print(f"ours {ours}, theirs {theirs} ms: {median(ours) / median(theirs) - 1:+.2%}")
    assert median(ours) == pytest.approx(median(theirs), rel=AGREE)


def plain_step_ms() -> float:
    done = subprocess.run([sys.executable, str(PLAIN), str(BATCH)], capture_output=True, text=True, check=True)
    return float(done.stdout)


def our_step_ms(out: Path) -> float:
    """The median step of the real command's run of the same step."""
    gpu = visible_gpu()
    assert gpu is not None
    variant = {"precision": "bf16", "batch": BATCH}
    study = validate({"comparisons": {"c": {"workload": "vit_huge", "baseline": "a", "variants": {"a": variant}}}})
    run = resolve(study, Scope(gpu.slug, "full"), ("c", "a", 1))
    # as many steps as the plain script takes
    run = run.model_copy(update={"window": Window(warmup_steps=8, min_steps=20, min_seconds=0.001)})
    command = [sys.executable, "-m", "halfstep", "run", run.canonical(), str(out)]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": str(SOURCE)}, check=True)
    (summary,) = read_csv(out / "summary.csv", SUMMARY_COLUMNS)
    assert summary["status"] == "ok", summary["reason"]
    return float(summary["step_ms_median"])


def test_a_training_step_takes_what_a_plain_script_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    ours, theirs = [], []
    for turn in range(ROUNDS):
        theirs.append(plain_step_ms())
        ours.append(our_step_ms(tmp_path / str(turn) / "runs" / "c" / "a" / "rep1"))
    agree(ours, theirs)


# operators


def by_torch(call: Callable[[], Any]) -> float:
    """torch.utils.benchmark: blocks of calls on the host's clock, each with a wait for the GPU at its end."""
    timer = Timer("call()", globals={"call": call})
    return timer.blocked_autorange(min_run_time=WINDOW_MS / 1e3).median * 1e3


def by_transformer_engine(call: Callable[[], Any]) -> float:
    """As Transformer Engine's benchmarks/gemm/benchmark_gemm.py does it with `--timing cuda-events`.

    One pair of events around 100 calls in a row, behind a large product, under which the host gets ahead.
    """
    lead = [torch.randn(4096, 4096, dtype=torch.bfloat16, device="cuda") for _ in range(2)]
    for _ in range(10):
        call()
    torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.matmul(*lead)
    start.record()
    for _ in range(100):
        call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 100


# Larger than the study's where the second-level cache, which only our helper empties, would count
def product(make: Callable[[torch.device], gemms.Gemm], device: torch.device) -> Callable[[], Any]:
    gemm = make(device)
    operands = gemm.cast(*(torch.randn(8192, 8192, device=device, dtype=torch.bfloat16) for _ in "ab"))
    return partial(gemm.multiply, operands)


def norm_forward(device: torch.device) -> Callable[[], Any]:
    with torch.device(device):
        module = layernorm(8192).bfloat16()
        x = torch.randn(2**17, 8192, dtype=torch.bfloat16)

    def call() -> torch.Tensor:
        with torch.no_grad():
            return module(x)

    return call


def optimizer_step(device: torch.device) -> Callable[[], Any]:
    parameters = [nn.Parameter(torch.randn(shape, device=device)) for shape in vit_shapes("full")]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer = adam_fused(parameters, False)
    optimizer.step()
    return optimizer.step


CALLS: dict[str, Callable[[torch.device], Callable[[], Any]]] = {
    "bf16 product": partial(product, gemms.bf16),
    "FP8 product": partial(product, gemms.fp8_tensorwise_fast),
    "Transformer Engine's FP8 product": partial(product, gemms.te),
    "LayerNorm": norm_forward,
    "fused Adam": optimizer_step,
}


@pytest.fixture
def call(request: pytest.FixtureRequest, device: torch.device) -> Iterator[Callable[[], Any]]:
    torch.manual_seed(0)
    try:
        yield CALLS[request.param](device)
    except Unsupported as error:
        pytest.skip(str(error))
    finally:
        torch.cuda.empty_cache()


@pytest.mark.parametrize("others", [by_torch, by_transformer_engine])
@pytest.mark.parametrize("call", CALLS, indirect=True)
def test_an_operator_takes_what_others_say(
    call: Callable[[], Any], others: Callable[[Callable[[], Any]], float], device: torch.device
) -> None:
    ours, theirs = [], []
    for _ in range(ROUNDS):
        ours.append(benchmark(call, device).median)
        theirs.append(others(call))
    agree(ours, theirs)
