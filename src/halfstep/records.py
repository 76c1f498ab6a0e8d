"""The files of a run and their columns: the one writer and the one reader.

A run's folder `runs/<comparison>/<variant>/rep<n>/` holds `summary.csv` (one row, an operator one per
case), `steps.csv` (a row per training step), `kernels.csv` (kernel time by kind) and `record.json`.
Columns carry their unit. What was not measured is empty, never 0.
"""

from __future__ import annotations

import csv
import io
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

FORMAT = 1

STATUSES: dict[str, str] = {
    "ok": "measured as asked",
    "unsupported": "this machine or environment cannot do what was asked",
    "out_of_memory": "the device's memory, or the cap, did not suffice",
    "timeout": "did not end within `timeout_s`",
    "failed": "ended with an error or was killed",
    "invalid": "ran or would run, but not as asked: nothing to convert to FP8, no sign of the precision, optimizer or "
    "norm in a profiled step, recompiled inside the window, a loss that is not finite, no update of the weights",
    "disturbed": "right, but timed while another process, a slowdown or a lowered power limit interfered, or drifting",
}
# only in tables: what collect says of a run whose folder holds nothing usable
TABLE_STATUSES: dict[str, str] = {
    **STATUSES,
    "missing": "no record: the job never ended by itself",
    "stale": "the record was made by another configuration or version of the code",
}

IDENTITY_COLUMNS: dict[str, str] = {
    "comparison": "comparison in config.yaml",
    "variant": "variant in that comparison",
    "replicate": "replicate: one process",
    "status": "one of the statuses above",
    "reason": "the status in a sentence, empty for `ok`",
    "case": "what an operator was called on, or the value that was looked up; empty for training steps",
    "workload": "what was trained, or the operator; a setting below that means nothing to it is empty",
    "precision": "precision recipe",
    "weights": "type of the weights and the optimizer's state: fp32 or bf16",
    "compile": "what torch.compile saw",
    "optimizer": "optimizer implementation",
    "norm": "normalisation layer",
    "gemm": "matrix product",
    "data": "`resident` or `dataloader`",
    "memory_cap_gib": "cap of torch's allocator (GiB)",
    "batch": "images or sequences per step, as run",
}
RESULT_COLUMNS: dict[str, str] = {
    "sample_unit": "what a sample is: images or tokens; calls for an operator",
    "samples_per_step": "samples in one step; for an operator a step is one call",
    "steps": "timed steps that count (without skipped ones); of an operator on a CPU, blocks of calls",
    "skipped_steps": "timed steps whose optimizer step GradScaler skipped",
    "step_ms_median": "median of the timed steps (ms): CUDA events on a GPU, wall clock on a CPU",
    "step_ms_mean": "mean of the timed steps (ms)",
    "step_ms_p05": "5th percentile (ms)",
    "step_ms_p95": "95th percentile (ms)",
    "wall_ms_mean": "the window's wall clock, synchronised at both ends, by its steps (ms); not with `article`",
    "host_ms_mean": "mean of the timed steps on the host's clock, without a synchronisation: the article's step (ms)",
    "samples_per_s": "samples_per_step / step_ms_median",
    "startup_s": "from the start of the measuring process to its first step (s)",
    "first_step_s": "the first step, compilation included (s)",
    "compile_s": "time spent in torch.compile (s); empty without it",
    "compile_cache": "`cold` or `warm`: whether the compile cache held anything at the start",
    "graph_breaks": "graph breaks that torch.compile counted",
    "recompiles": "graphs compiled after the warm-up",
    "peak_allocated_gib": "most memory torch's allocator gave out after the warm-up (GiB)",
    "peak_reserved_gib": "most memory torch's allocator held after the warm-up (GiB)",
    "loss_first": "loss of the first timed step",
    "loss_last": "loss of the last timed step",
    "model_tflop_per_step": "model FLOPs of one step, counted on the plain fp32 model (TFLOP)",
    "model_tflop_per_s": "model_tflop_per_step / step_ms_median",
    "peak_tflop_per_s": "the vendor's dense peak for the precision of the matrix products (TFLOP/s)",
    "peak_share": "model_tflop_per_s / peak_tflop_per_s",
    "gb_per_step": "operators: bytes that one call has to read and write at least (decimal GB)",
    "gb_per_s": "gb_per_step / step_ms_median",
    "max_abs_error": "operators: largest difference from a float64 reference",
    "sqnr_db": "operators: power of the float64 reference over that of the difference (dB); empty for an exact result",
    "value": "operator dtypes: the value that the case names",
    "kernel_ms": "union of the kernels' intervals in one profiled step (ms)",
    "idle_ms": "step_ms_median - kernel_ms; a little below 0 where profiling slows the kernels (ms)",
    "power_w_mean": "mean of the board's power in the window (W)",
    "power_limit_w": "enforced power limit (W)",
    "energy_j_per_step": "the board's energy counter over the window, by its steps (J)",
    "sm_clock_mhz_mean": "mean SM clock in the window (MHz)",
    "temperature_c_max": "highest GPU temperature in the window (deg C)",
    "power_capped_share": "share of telemetry samples at the power limit",
    "slowdown_share": "share of telemetry samples under thermal or hardware slowdown",
    "others_memory_gib": "most GPU memory held by other processes in the window (GiB)",
}
PROVENANCE_COLUMNS: dict[str, str] = {
    "gpu_uuid": "the GPU's UUID; empty on a CPU",
    "sitting": "the Snakemake call that ran it",
    "environment": "hash of torch, CUDA, libraries, driver and device: ratios need equal ones",
    "image": "the image's digest, or `host`",
    "run_hash": "hash of the resolved run",
    "code_hash": "hash of the code that measured",
}
SUMMARY_COLUMNS: dict[str, str] = {**IDENTITY_COLUMNS, **RESULT_COLUMNS, **PROVENANCE_COLUMNS}
STEPS_COLUMNS: dict[str, str] = {
    "step": "number of the step in its phase, from 0",
    "phase": "`warmup` or `window`",
    "step_ms": "time on the device's clock from this step's start to the next one's (ms)",
    "wall_ms": "host clock over the same (ms); launches run ahead of the GPU, so single values only describe the host",
    "loss": "training loss",
    "skipped": "1 if GradScaler skipped the optimizer step",
}
KERNELS_COLUMNS: dict[str, str] = {
    "kind": "kind of kernel when it was measured; tables/ and figures go by the present table of kinds",
    "kernel": "the kernel's name",
    "calls_per_step": "launches in one step",
    "ms_per_step": "summed duration in one step (ms)",
}
RUN_FILES = ("summary.csv", "steps.csv", "kernels.csv", "record.json")
CURVE_COLUMNS: dict[str, str] = {
    "step": "number of the step, from 0",
    "loss": "training loss",
    "gradient_norm": "norm of all gradients together, as the optimizer took them",
    "skipped": "how often the update was skipped, since gradients overflowed, and the step repeated on its batch",
    "data": "checksum of the step's batch: equal where the data are, bit by bit (hexadecimal)",
}


def write_text(path: Path, text: str) -> None:
    """Write a file so that readers see the old content or the new, never a part.

    An error's text may hold bytes that are no text, as from a file's name: they are escaped.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace", newline="") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # a full disk does not say which file it has no room for
        raise


def write_csv(path: Path, columns: Mapping[str, str] | Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows under exactly these columns, None as empty.

    Raises:
        ValueError: a row has a column that is not among `columns`.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    write_text(path, text.getvalue())


def as_cell(value: Any) -> str:
    """The text that `write_csv` writes and `read_csv` reads."""
    return "" if value is None else str(_cell(value))


def _cell(value: Any) -> Any:
    """Seven significant digits: beyond any clock's resolution, and the same text after reading and writing again."""
    return format(value, ".7g") if isinstance(value, float) else value


def write_json(path: Path, value: Any) -> None:
    """Write JSON that is the same for the same content; NaN and infinity are refused."""
    write_text(path, json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n")


def write_run(
    folder: Path,
    record: Mapping[str, Any],
    summary: Sequence[Mapping[str, Any]],
    steps: Sequence[Mapping[str, Any]],
    kernels: Sequence[Mapping[str, Any]],
) -> None:
    """Write a run's four files, the record last: a folder with a record is whole."""
    write_csv(folder / "summary.csv", SUMMARY_COLUMNS, summary)
    write_csv(folder / "steps.csv", STEPS_COLUMNS, steps)
    write_csv(folder / "kernels.csv", KERNELS_COLUMNS, kernels)
    write_json(folder / "record.json", {"format": FORMAT, **record})


def write_parity_run(folder: Path, record: Mapping[str, Any], curve: Sequence[Mapping[str, Any]]) -> None:
    """Write a parity run's two files, the record last."""
    write_csv(folder / "curve.csv", CURVE_COLUMNS, curve)
    write_json(folder / "record.json", {"format": FORMAT, **record})


class RecordError(Exception):
    """A run's files are not there, not whole or not of this format; the message says which and why."""


def read_csv(path: Path, columns: Mapping[str, str]) -> list[dict[str, str]]:
    """The rows of one of our CSVs as text, an empty cell as "".

    Raises:
        RecordError: the file is missing, cut off, or has other columns.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{path.name} cannot be read") from error
    if not text.endswith("\n"):
        raise RecordError(f"{path.name} is cut off: its last line does not end")
    try:
        rows = list(csv.reader(io.StringIO(text)))
    except csv.Error as error:
        raise RecordError(f"{path.name} is no CSV: {error}") from error
    if not rows or rows[0] != list(columns):
        raise RecordError(f"{path.name} does not have the columns of this version of halfstep")
    if any(len(row) != len(columns) for row in rows):
        raise RecordError(f"{path.name} has a row of another length than its heading")
    return [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]


def one_per_run(rows: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """Of the rows of runs.csv one per run, which has its status: an operator's run has a row per case.

    It is ok if a case is; else the first case says what became of it.
    """
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("comparison", "variant", "replicate"))
        if key not in found or (row["status"] == "ok" and found[key]["status"] != "ok"):
            found[key] = row
    return list(found.values())


def read_record(folder: Path) -> dict[str, Any]:
    """A run's record.json.

    Raises:
        RecordError: missing, not JSON, or of another format version.
    """
    path = folder / "record.json"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError("record.json cannot be read") from error
    except (json.JSONDecodeError, RecursionError) as error:
        raise RecordError("record.json is not whole JSON") from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise RecordError(f"record.json is not of format {FORMAT}")
    return record
