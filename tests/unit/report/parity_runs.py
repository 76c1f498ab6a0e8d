"""Parity runs as `halfstep run` would leave them, of curves that fall as training does."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from halfstep.parity.plan import ParityKey, parity_keys, resolve_parity
from halfstep.records import write_parity_run
from halfstep.runs import Scope
from halfstep.study import Study

Changes = dict[str, Any]


def write_parity(
    scope_dir: Path,
    study: Study,
    *,
    outside: Collection[str] = (),
    change: Callable[[ParityKey], Changes | None] = lambda key: {},
) -> None:
    """Write the folders of all parity runs of a study.

    Args:
        scope_dir: the scope's folder.
        study: the study.
        outside: recipes whose loss ends far above the others'.
        change: what differs in one run's record, and its `curve`; None: it left no record.
    """
    scope = Scope.parse(scope_dir.name)
    for key in parity_keys(study, scope):
        changes = change(key)
        if changes is not None:
            folder = scope_dir / "parity" / key.folder
            rows = changes.pop("curve", curve(key, worse=1.5 if key.recipe.name in outside else 1.0))
            write_parity_run(folder, {**record(study, scope, key), **changes}, rows)


def record(study: Study, scope: Scope, key: ParityKey) -> dict[str, Any]:
    run = resolve_parity(study, scope, key)
    return {
        "family": key.recipe.family.name,
        "recipe": key.recipe.name,
        "seed": key.seed,
        "status": "ok",
        "reason": "",
        "run": run.model_dump(),
        "run_hash": run.hash(),
        "code_hash": "c0de",
        "environment": {"gpu": "NVIDIA H200"},
        "environment_hash": "e1",
        "gpu": None,
        "applied": {"parameters_trained": 1000, "data_source": "da7a"},
    }


def curve(key: ParityKey, worse: float = 1.0, data: str = "d") -> list[dict[str, Any]]:
    """Each seed a little better or worse; a recipe with almost the curve of its own seed."""
    noise = random.Random(key.seed)
    offset = noise.gauss(0, 0.02)
    rounding = 0.0 if key.recipe.is_reference else 1e-4
    return [
        {
            "step": step,
            "loss": (1 + 3 * math.exp(-step / 30)) * (1 + offset + noise.gauss(0, 0.03) + rounding) * worse,
            "gradient_norm": 2 * math.exp(offset + noise.gauss(0, 0.05)),
            "skipped": 0,
            "data": f"{data}{step}",
        }
        for step in range(key.recipe.steps)
    ]
