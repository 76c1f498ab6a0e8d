"""A study with all that a report can have, and texts that would do harm if they were more than text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from made_up import BEHAVIOUR, BLOCKS_KERNELS, VIT, VIT_KERNELS, write_fixture_run
from made_up import CONFIG as TRAINED
from operator_runs import CONFIG as OPERATORS
from operator_runs import write_operator_run
from parity_runs import write_parity

from halfstep.records import write_json
from halfstep.report.write import rebuild
from halfstep.runs import Scope, resolve, run_keys
from halfstep.study import validate

SCRIPT = "<script>alert(1)</script>"
HOSTILE = f"{SCRIPT} \"'><img src=x onerror=alert(1)> `code` & &lt;\nline"
CONFIG: dict[str, Any] = {
    "title": f"Title {SCRIPT}",
    "comparisons": {
        "vit": {
            "workload": "vit_huge",
            "baseline": "bf16",
            "title": f"ViT {HOSTILE}",
            "variants": {
                "fp32": {"precision": "fp32", "batch": 128},
                "bf16": {"precision": "bf16", "batch": 128},
                "blocks": {"precision": "bf16", "compile": "blocks", "batch": 128},
                "te-linears": {"precision": "te_linears_delayed", "batch": 128},
                "shaky": {"precision": "bf16", "optimizer": "adam_foreach", "batch": 128},
                "broken": {"precision": "tf32", "batch": 128},
            },
        },
        "lm": TRAINED["comparisons"]["lm"],
        **{name: OPERATORS["comparisons"][name] for name in ("dtypes", "optimizer-step")},
    },
    "claims": {
        "fast": {
            "claim": f"Fast {SCRIPT}",
            "source": "x",
            "ratio": 1.2,
            "same_batch": {"comparison": "vit", "variant": "blocks", "over": ["bf16"]},
        }
    },
}
VIT_BEHAVIOUR: dict[str, dict[str, Any]] = {
    "fp32": {**VIT, "ms": 1000.0, "gib": 60.0, "kernels": VIT_KERNELS},
    "bf16": {**VIT, "ms": 360.0, "gib": 56.1, "kernels": VIT_KERNELS},
    "blocks": {**VIT, "ms": 288.0, "gib": 54.2, "kernels": BLOCKS_KERNELS},
    "te-linears": {**VIT, "ms": 230.0, "gib": 45.0, "kernels": VIT_KERNELS},
    "shaky": {**VIT, "ms": 333.0, "gib": 50.0, "kernels": VIT_KERNELS, "status": "disturbed", "reason": HOSTILE},
    "broken": {"status": "failed", "reason": HOSTILE},
}


def make_report(folder: Path) -> None:
    """Write the runs of training and of operators, parity with a recipe out of bounds, and all that is made of them."""
    study, scope = validate(CONFIG), Scope.parse("h200")
    for key in run_keys(study, scope):
        if key[0] in OPERATORS["comparisons"]:
            verdict = ("unsupported", HOSTILE) if key[1] == "te" else ("ok", "")
            write_operator_run(folder, resolve(study, scope, key), key, *verdict)
        else:
            write_fixture_run(folder, study, key, {**BEHAVIOUR, **VIT_BEHAVIOUR}[key[1]])
    capability = {"name": HOSTILE, "status": "missing", "detail": HOSTILE, "remedy": HOSTILE}
    write_json(folder / "system" / "doctor.json", {"capabilities": [capability]})
    write_parity(folder, study, outside=["te_linears_delayed"])
    rebuild(folder, study, scope)
