"""The code that a run's fingerprint covers is the code that its measuring process imports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tree import clean_environment

from halfstep.fingerprint import closure, run_modules
from halfstep.parity.plan import parity_keys, resolve_parity
from halfstep.runs import Run, Scope, resolve
from halfstep.study import validate

# the measuring process's own `main`, with one thread as beside other work, then what of this package it has imported
MEASURE = """
import json, os, sys
from halfstep.measure import child
os.sched_getaffinity = lambda process: {0}
child.main()
print(json.dumps(sorted(name for name in sys.modules if name.partition(".")[0] == "halfstep")))
"""


@pytest.mark.parametrize(
    ("workload", "settings"),
    [
        ("lm", {"precision": "fp32", "data": "dataloader"}),
        ("vit_huge", {"precision": "bf16", "compile": "blocks", "norm": "rmsnorm"}),
        ("gemm", {"gemm": "fp8_tensorwise"}),
        ("norm", {"norm": "rmsnorm", "compile": "model"}),
        ("optimizer_step", {"optimizer": "adamw_fused"}),
        ("dtypes", {}),
    ],
)
def test_what_a_run_imports(workload: str, settings: dict[str, str], tmp_path: Path) -> None:
    comparison = {"workload": workload, "baseline": "it", "variants": {"it": settings}}
    study = validate({"comparisons": {"one": comparison}})
    imports_what_its_fingerprint_covers(resolve(study, Scope("cpu", "smoke"), ("one", "it", 1)), tmp_path)


@pytest.mark.parametrize("workload", ["lm", "vit_huge"])
def test_what_a_parity_run_imports(workload: str, tmp_path: Path) -> None:
    comparison = {"workload": workload, "baseline": "it", "variants": {"it": {"precision": "bf16"}}}
    study, scope = validate({"parity": "always", "comparisons": {"one": comparison}}), Scope("cpu", "smoke")
    key = parity_keys(study, scope)[-1]
    run = resolve_parity(study, scope, key)
    assert (key.recipe.name, run.precision) == ("bf16", "bf16")
    imports_what_its_fingerprint_covers(run.model_copy(update={"steps": 20}), tmp_path)


def imports_what_its_fingerprint_covers(run: Run, tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"), "TORCHINDUCTOR_VEC_ISA_OK": "0"}
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, run.canonical(), str(result)],
        cwd=tmp_path,
        env={**clean_environment(), **caches},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    measured = json.loads(result.read_text(encoding="utf-8"))
    assert (measured["status"], measured["reason"]) == ("ok", "")
    assert json.loads(done.stdout.splitlines()[-1]) == closure(run_modules(run.modules.values()))
