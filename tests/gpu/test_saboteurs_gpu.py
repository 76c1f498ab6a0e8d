"""Runs that must not count: recipes that do something else than they say, and a GPU that another program uses too."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from halfstep.records import read_record
from halfstep.runs import Run, Scope, resolve
from halfstep.study import Window, validate
from halfstep.system.gpu import visible_gpu

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA GPU"),
]
HERE = Path(__file__).parent
COMMAND = (sys.executable, "-m", "halfstep", "run")


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": f"{HERE.parents[1] / 'src'}{os.pathsep}{HERE}",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }


def run_of(scale: str = "smoke", **settings: Any) -> Run:
    gpu = visible_gpu()
    assert gpu is not None
    study = validate({"comparisons": {"c": {"workload": "lm", "baseline": "a", "variants": {"a": settings}}}})
    return resolve(study, Scope(gpu.slug, scale), ("c", "a", 1))


# what the run asks for, the saboteur that stands in its place, and what the sentence has to say
SABOTEURS: dict[str, tuple[dict[str, str], dict[str, str], str]] = {
    "Apex's norm does nothing": (
        {"norm": "apex_layernorm"},
        {"norm": "saboteurs:identity"},
        "norm is 'apex_layernorm', and none of its kernels ran in a profiled step",
    ),
    "the optimizer skips every step": (
        {"optimizer": "adam_fused"},
        {"optimizer": "saboteurs:skips_every_step"},
        "optimizer is 'adam_fused', and none of its kernels ran in a profiled step",
    ),
    "the optimizer moves nothing": (
        {"optimizer": "adam_fused"},
        {"optimizer": "saboteurs:moves_nothing"},
        "no update reached the weights: ",
    ),
    "FP8 that stays in bf16": (
        {"precision": "native_delayed"},
        {"precision": "saboteurs:StaysInBf16"},
        "'native_delayed' was to run in FP8, and no FP8 kernel ran in a profiled step; matrix products by time: ",
    ),
    "FP8 whose scales are broken": (
        {"precision": "native_delayed"},
        {"precision": "saboteurs:BrokenScales"},
        "the loss was not finite in",
    ),
}


@pytest.mark.parametrize("name", SABOTEURS)
def test_a_saboteur_is_invalid(name: str, tmp_path: Path) -> None:
    settings, modules, sentence = SABOTEURS[name]
    if "precision" in modules and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("no FP8 matrix units")
    run = run_of(**settings)
    # as many steps as show a batch again
    window = Window(warmup_steps=2, min_steps=12, min_seconds=0.001)
    run = run.model_copy(update={"modules": {**run.modules, **modules}, "window": window})
    out = tmp_path / "runs" / "c" / "a" / "rep1"
    # saboteurs.py is no part of the package, and so has no fingerprint
    subprocess.run([*COMMAND, run.canonical(), str(out), "--code", "none"], env=environment(), check=True)
    record = read_record(out)
    assert record["status"] == "invalid", record["reason"]
    assert record["reason"].startswith(sentence), record["reason"]


# Works on the GPU for as many seconds as a line on its input says, is idle then, and ends with its input.
NEIGHBOUR = """
import sys, time, torch
x = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
(x @ x).sum().item()
print("ready", flush=True)
end = time.monotonic() + float(sys.stdin.readline())
while time.monotonic() < end:
    for _ in range(20):
        x @ x
    torch.cuda.synchronize()
sys.stdin.read()
"""


@contextmanager
def neighbour() -> Iterator[subprocess.Popen[str]]:
    """Another program that has begun to use the GPU."""
    command = [sys.executable, "-c", NEIGHBOUR]
    with subprocess.Popen(
        command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_run_beside_another_program_is_disturbed(tmp_path: Path) -> None:
    """It works during the first half of the window and is idle in the second: by drift, if NVML does not show it."""
    seconds = 6.0
    run = run_of("full", precision="bf16", batch=8)
    run = run.model_copy(update={"window": Window(warmup_steps=8, min_steps=60, min_seconds=seconds)})
    out = tmp_path / "runs" / "c" / "a" / "rep1"
    with neighbour() as other:
        command = [*COMMAND, run.canonical(), str(out)]
        with subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True) as measuring:
            assert measuring.stderr is not None and other.stdin is not None
            for line in measuring.stderr:
                if line.endswith(": window\n"):
                    print(seconds / 2, file=other.stdin, flush=True)
    record = read_record(out)
    print(record["status"], record["reason"], record["telemetry"])
    assert record["status"] == "disturbed", record["reason"]
    assert record["telemetry"]["others_memory_gib"] is None or record["telemetry"]["others_memory_gib"] > 0


def test_a_run_beside_an_idle_program_is_disturbed_where_nvml_shows_it(tmp_path: Path) -> None:
    out = tmp_path / "runs" / "c" / "a" / "rep1"
    with neighbour():
        subprocess.run([*COMMAND, run_of(precision="bf16").canonical(), str(out)], env=environment(), check=True)
    record = read_record(out)
    if record["telemetry"]["others_memory_gib"] is None:
        pytest.skip("NVML shows no process here, as in a container with its own process numbers")
    assert record["status"] == "disturbed"
    assert record["reason"].startswith("Other processes held ")
