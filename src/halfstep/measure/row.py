"""From what became of a run to the four files of its folder."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from halfstep.kernel_kinds import kind_of
from halfstep.measure.supervisor import Outcome, summaries
from halfstep.parity.plan import ParityRun
from halfstep.records import write_parity_run, write_run, write_text
from halfstep.runs import Run
from halfstep.system.environment import fingerprint, image
from halfstep.system.gpu import Gpu
from halfstep.system.peaks import stated_peak

TELEMETRY_COLUMNS = (
    "power_w_mean",
    "power_limit_w",
    "sm_clock_mhz_mean",
    "temperature_c_max",
    "power_capped_share",
    "slowdown_share",
    "others_memory_gib",
)
"""columns of summary.csv that are the telemetry's as they are"""


def write(
    out: Path, run: Run, code: str, outcome: Outcome, gpu: Gpu | None, cache: str | None, started: datetime
) -> None:
    """Write the run's four files and its log.txt under `out`, which ends in <comparison>/<variant>/rep<n>."""
    identity = {"comparison": out.parents[1].name, "variant": out.parents[0].name, "replicate": run.replicate}
    asked = run.model_dump(
        exclude={"protocol", "device", "scale", "replicate", "seed", "window", "timeout_s", "modules"}
    )
    verdict, provenance = _verdict(outcome), _provenance(run, code)
    record = {**identity, **_record(run, code, outcome, gpu, started)}
    summary = [
        {
            **identity,
            **asked,
            **found,
            # a case that is not ok says why itself
            **(verdict if found.get("status", "ok") == "ok" else {"reason": " ".join(found["reason"].split())}),
            **provenance,
            "compile_cache": cache if outcome.environment else None,
            "gpu_uuid": gpu.uuid if gpu else None,
            "environment": record["environment_hash"],
        }
        for found in results(outcome, gpu)
    ]
    write_text(out / "log.txt", outcome.log)
    kernels = [{"kind": kind_of(row["kernel"]), **row} for row in outcome.result.get("kernels", [])]
    write_run(out, record, summary, outcome.result.get("steps", []), kernels)


def write_parity(out: Path, run: ParityRun, code: str, outcome: Outcome, gpu: Gpu | None, started: datetime) -> None:
    """Write a parity run's two files and its log.txt under `out`, which ends in <family>/<recipe>/seed<n>."""
    identity = {"family": out.parents[1].name, "recipe": out.parents[0].name, "seed": run.replicate}
    write_text(out / "log.txt", outcome.log)
    record = {**identity, **_record(run, code, outcome, gpu, started)}
    write_parity_run(out, record, outcome.result.get("curve", []))


def _verdict(outcome: Outcome) -> dict[str, str]:
    return {"status": outcome.status, "reason": " ".join(outcome.reason.split())}


def _provenance(run: Run, code: str) -> dict[str, str]:
    return {
        "sitting": os.environ.get("HALFSTEP_SITTING", ""),
        "image": image(),
        "run_hash": run.hash(),
        "code_hash": code,
    }


def _record(run: Run, code: str, outcome: Outcome, gpu: Gpu | None, started: datetime) -> dict[str, Any]:
    """What record.json says beside which run it is of."""
    return {
        **_verdict(outcome),
        **_provenance(run, code),
        "run": run.model_dump(),
        "environment": outcome.environment,
        "environment_hash": fingerprint(outcome.environment) if outcome.environment else "",
        "gpu": vars(gpu) if gpu else None,
        "telemetry": vars(outcome.telemetry) if outcome.telemetry else None,
        # JSON has no infinity, which a recipe may well have applied
        "applied": json.loads(json.dumps(outcome.result.get("applied", {})), parse_constant=str),
        "threads": outcome.result.get("threads", {}),
        "started": started.isoformat(timespec="seconds"),
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def results(outcome: Outcome, gpu: Gpu | None) -> list[dict[str, Any]]:
    """The result columns of each row: the child's own, and those that follow from them and from the telemetry."""
    precision = outcome.result.get("applied", {}).get("gemm")
    peak = stated_peak(gpu.name, precision) if gpu and precision else None
    rows = [_derived(row, peak) for row in summaries(outcome.result)]
    telemetry = outcome.telemetry
    if telemetry and "summaries" not in outcome.result:  # of a window of equal steps; an operator's cases share theirs
        (row,) = rows
        row |= {column: getattr(telemetry, column) for column in TELEMETRY_COLUMNS}
        if telemetry.energy_j is not None and "steps" in row:  # its process may have died after the window
            row["energy_j_per_step"] = telemetry.energy_j / (row["steps"] + row["skipped_steps"])
    return rows


def _derived(found: Mapping[str, Any], peak: float | None) -> dict[str, Any]:
    row = dict(found)
    median = row.get("step_ms_median")
    if median:
        row["samples_per_s"] = row["samples_per_step"] / median * 1e3
        for amount, speed in (("model_tflop_per_step", "model_tflop_per_s"), ("gb_per_step", "gb_per_s")):
            if row.get(amount) is not None:
                row[speed] = row[amount] / median * 1e3
        if "kernel_ms" in row:
            row["idle_ms"] = median - row["kernel_ms"]
        if peak and "model_tflop_per_s" in row:
            row["peak_tflop_per_s"] = peak
            row["peak_share"] = row["model_tflop_per_s"] / peak
    return row
