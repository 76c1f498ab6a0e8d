"""Parity runs on a GPU: what only happens there, scaled gradients, foreign optimizers, CUDA graphs; and its price."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch

from halfstep.parity import glyphs, text
from halfstep.parity.learnable import checksum
from halfstep.parity.plan import parity_keys, resolve_parity
from halfstep.recipes.precision.precision import set_tf32
from halfstep.runs import Scope
from halfstep.study import validate

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA GPU"),
]
STEPS = 30


@cache
def curve(workload: str, **settings: str) -> tuple[dict[str, Any], ...]:
    """The first steps of a recipe at smoke size, or a skipped test where this machine cannot do it.

    In a process of its own: apex.amp changes torch's functions for good.
    """
    comparison = {"workload": workload, "baseline": "it", "variants": {"it": settings}}
    study, scope = validate({"parity": "always", "comparisons": {"c": comparison}}), Scope("gpu", "smoke")
    key = [key for key in parity_keys(study, scope) if key.seed == 1][-1]
    run = resolve_parity(study, scope, key).model_copy(update={"steps": STEPS})
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, "-m", "halfstep.measure.child", run.canonical(), str(result)]
        subprocess.run(command, check=True, timeout=300, capture_output=True)
        found = json.loads(result.read_text(encoding="utf-8"))
    if found["status"] == "unsupported":
        pytest.skip(found["reason"])
    assert found["status"] == "ok", found["reason"]
    return tuple(found["curve"])


LM = [
    {"precision": "tf32"},
    {"precision": "fp16"},
    {"precision": "fp16", "optimizer": "adam_foreach"},
    {"precision": "fp16", "optimizer": "apex_adam"},
    {"precision": "fp16", "optimizer": "te_adam"},
    {"precision": "apex_amp_o0"},
    {"precision": "apex_amp_o1"},
    {"precision": "apex_amp_o2"},
    {"optimizer": "apex_adam"},
    {"optimizer": "te_adam"},
    {"norm": "apex_layernorm"},
    {"norm": "te_layernorm"},
    {"norm": "liger_layernorm"},
    {"precision": "bf16", "compile": "blocks"},
    {"precision": "bf16", "compile": "graphs"},
    {"precision": "native_delayed", "compile": "graphs"},
    {"precision": "bf16", "compile": "graphs", "optimizer": "apex_adam"},
    {"precision": "bf16", "compile": "graphs", "optimizer": "te_adam"},
    {"precision": "torchao_rowwise"},
    {"precision": "te_linears_delayed"},
    {"precision": "bf16", "weights": "bf16"},
]
VIT = [{"precision": "te_layers_delayed"}, {"precision": "native_delayed", "compile": "graphs"}]
CASES = [("lm", settings) for settings in LM] + [("vit_huge", settings) for settings in VIT]


@pytest.mark.parametrize(
    ("workload", "settings"), CASES, ids=lambda value: value if isinstance(value, str) else " ".join(value.values())
)
def test_it_sees_the_same_gradients_as_in_fp32(workload: str, settings: dict[str, str]) -> None:
    """Not multiplied by the loss's scale; and then it trains as fp32 does."""
    found, fp32 = curve(workload, **settings), curve(workload)
    assert [row["data"] for row in found] == [row["data"] for row in fp32]
    assert found[0]["loss"] == pytest.approx(fp32[0]["loss"], rel=0.02)
    assert sum(row["skipped"] for row in found) < STEPS / 2
    assert found[0]["gradient_norm"] == pytest.approx(fp32[0]["gradient_norm"], rel=0.1)
    late, late_fp32 = (fmean(row["loss"] for row in rows[-5:]) for rows in (found, fp32))
    assert late == pytest.approx(late_fp32, rel=0.05)
    assert late < 0.97 * found[0]["loss"] or workload == "vit_huge"


@pytest.mark.parametrize("workload", [glyphs.VIT_HUGE, text.LM], ids=["vit_huge", "lm"])
def test_tf32_changes_no_bit_of_the_data(workload: Any, keep_switches: None) -> None:
    sums = []
    for allowed in (False, True):
        set_tf32(allowed)
        generator = torch.Generator("cuda").manual_seed(0)
        batches = [workload.batch(4, index, generator, **workload.sizes["full"]) for index in range(3)]
        sums.append([int(checksum(*batch)) for batch in batches])
    assert sums[0] == sums[1]


@pytest.mark.parametrize(("workload", "n"), [(glyphs.VIT_HUGE, 16), (text.LM, 4)], ids=["vit_huge", "lm"])
def test_data_wait_for_nothing(workload: Any, n: int) -> None:
    """A synchronisation would make the host wait for the GPU in every step."""
    generator = torch.Generator("cuda").manual_seed(0)
    batch = workload.batch(n, 0, generator, **workload.sizes["full"])
    checksum(*batch)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        checksum(*workload.batch(n, 1, generator, **workload.sizes["full"]))
    finally:
        torch.cuda.set_sync_debug_mode("default")
