"""The supervisor's part: the child's log, and the row that is written for whatever became of it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from halfstep.config_file import read_config
from halfstep.measure import row, supervisor
from halfstep.measure.supervisor import LOG_HEAD, LOG_TAIL, Log, Outcome
from halfstep.parity.plan import parity_keys, resolve_parity
from halfstep.records import KERNELS_COLUMNS, STEPS_COLUMNS, SUMMARY_COLUMNS, read_csv, read_record
from halfstep.runs import Run, Scope, resolve
from halfstep.study import validate
from halfstep.system.environment import fingerprint
from halfstep.system.gpu import Gpu, GpuError
from halfstep.system.telemetry import Telemetry

CONFIG = Path(__file__).parents[2] / "config.yaml"
H200 = Gpu(0, "GPU-1", "NVIDIA H200", "h200", 140.4, (9, 0), "580.159.04", "13.0", 700.0, 700.0)
ENVIRONMENT = {"torch": "2.11.0", "gpu": "NVIDIA H200"}
TELEMETRY = Telemetry(2.0, 10, 1200.0, 600.0, 700.0, 700.0, 1900.0, 60, 0.1, 0.0, None, ("sw_power_cap",))
SUMMARY = {
    "sample_unit": "images", "samples_per_step": 128, "steps": 3, "skipped_steps": 1, "step_ms_median": 400.0,
    "model_tflop_per_step": 128.0, "kernel_ms": 380.0, "loss_first": 7.0, "loss_last": 6.9,
}  # fmt: skip


def run_of(device: str = "h200", replicate: int = 1, **settings: Any) -> Run:
    comparison = {"workload": "vit_huge", "baseline": "a", "variants": {"a": settings}}
    study = validate({"comparisons": {"c": comparison}})
    return resolve(study, Scope(device, "full"), ("c", "a", replicate))


def measured(**summary: Any) -> dict[str, Any]:
    return {
        "summary": {**SUMMARY, **summary},
        "steps": [{"step": 0, "phase": "window", "step_ms": 400.0, "wall_ms": 1.0, "loss": 7.0, "skipped": 0}],
        "kernels": [{"kernel": "nvjet_sm90_tst_x", "calls_per_step": 2.0, "ms_per_step": 300.0}],
        "applied": {"gemm": "bf16", "parameters": 632304384},
        "threads": {"torch": 16, "OMP_NUM_THREADS": "16"},
    }


def written(folder: Path, outcome: Outcome, gpu: Gpu | None = H200, **settings: Any) -> tuple[dict[str, str], Any]:
    """The row and the record of an outcome."""
    out = folder / "h200" / "runs" / "c" / "a" / "rep1"
    row.write(out, run_of(**settings), "c0de", outcome, gpu, "cold", datetime(2026, 1, 2, tzinfo=UTC))
    (summary,) = read_csv(out / "summary.csv", SUMMARY_COLUMNS)
    return summary, read_record(out)


def test_a_row_of_what_was_measured(tmp_path: Path) -> None:
    outcome = Outcome("ok", "", measured(), ENVIRONMENT, TELEMETRY, "hello\n")
    summary, record = written(tmp_path, outcome, precision="bf16", batch=128, compile="blocks")
    assert (summary["comparison"], summary["variant"], summary["replicate"]) == ("c", "a", "1")
    assert (summary["status"], summary["reason"], summary["compile_cache"]) == ("ok", "", "cold")
    assert (summary["precision"], summary["batch"], summary["memory_cap_gib"]) == ("bf16", "128", "")
    assert float(summary["samples_per_s"]) == 320
    assert float(summary["model_tflop_per_s"]) == 320
    assert float(summary["peak_share"]) == pytest.approx(320 / 989.5, rel=1e-6)
    assert float(summary["idle_ms"]) == 20
    assert float(summary["energy_j_per_step"]) == 300  # over all four timed steps
    assert float(summary["power_w_mean"]) == 600
    assert summary["others_memory_gib"] == ""  # not known is not 0
    assert summary["environment"] == record["environment_hash"] == fingerprint(ENVIRONMENT)
    assert summary["run_hash"] == record["run_hash"] == run_of(precision="bf16", batch=128, compile="blocks").hash()
    folder = tmp_path / "h200" / "runs" / "c" / "a" / "rep1"
    assert (folder / "log.txt").read_text() == "hello\n"
    (kernel,) = read_csv(folder / "kernels.csv", KERNELS_COLUMNS)
    assert (kernel["kind"], kernel["kernel"]) == ("GEMM", "nvjet_sm90_tst_x")
    assert len(read_csv(folder / "steps.csv", STEPS_COLUMNS)) == 1
    assert record["applied"]["parameters"] == 632304384
    assert record["started"] == "2026-01-02T00:00:00+00:00"


def test_a_gpu_without_a_stated_peak_has_no_share_of_one(tmp_path: Path) -> None:
    unknown = Gpu(**{**vars(H200), "name": "NVIDIA H200 MIG 1g.18gb"})
    summary, _ = written(tmp_path, Outcome("ok", "", measured(), ENVIRONMENT, TELEMETRY), unknown)
    assert (summary["peak_share"], summary["peak_tflop_per_s"]) == ("", "")
    assert summary["model_tflop_per_s"]


def test_a_run_on_a_cpu_has_nothing_of_a_gpu(tmp_path: Path) -> None:
    result = measured()
    del result["summary"]["kernel_ms"]
    result["kernels"] = []
    summary, record = written(tmp_path, Outcome("ok", "", result, {"cpu": "x"}), None, device="cpu")
    for column in ("gpu_uuid", "peak_share", "idle_ms", "energy_j_per_step", "power_w_mean"):
        assert summary[column] == ""
    assert record["gpu"] is None and record["telemetry"] is None


@pytest.mark.parametrize("status", ["unsupported", "failed", "timeout", "out_of_memory"])
def test_a_run_without_a_result_is_a_row_with_its_reason(tmp_path: Path, status: str) -> None:
    summary, record = written(tmp_path, Outcome(status, 'because of "this", and that'))
    assert (summary["status"], summary["reason"]) == (status, 'because of "this", and that')
    assert (summary["step_ms_median"], summary["environment"], summary["compile_cache"]) == ("", "", "")
    assert record["status"] == status


@pytest.mark.parametrize("status", ["failed", "timeout", "out_of_memory"])
def test_a_run_that_ends_after_its_window_is_a_row_all_the_same(tmp_path: Path, status: str) -> None:
    """Its process dies while profiling: telemetry is there, and the result that it belongs to is not."""
    outcome = Outcome(status, "died", {"status": status, "reason": "died"}, ENVIRONMENT, TELEMETRY)
    summary, _ = written(tmp_path, outcome)
    assert (summary["status"], summary["energy_j_per_step"]) == (status, "")


def test_an_invalid_run_without_step_times_is_a_row(tmp_path: Path) -> None:
    result = measured(steps=1, skipped_steps=3)
    del result["summary"]["step_ms_median"]
    summary, _ = written(tmp_path, Outcome("invalid", "GradScaler skipped 3", result, ENVIRONMENT, TELEMETRY))
    assert (summary["samples_per_s"], summary["idle_ms"], summary["skipped_steps"]) == ("", "", "3")


# operators: a row per case

CASES = [
    {"case": "a", "status": "ok", "reason": "", "samples_per_step": 1, "steps": 9, "step_ms_median": 2.0,
     "model_tflop_per_step": 1.0, "gb_per_step": None, "kernel_ms": 1.5},
    {"case": "b", "status": "ok", "reason": "", "samples_per_step": 1, "steps": 9, "step_ms_median": 0.5,
     "model_tflop_per_step": None, "gb_per_step": 0.25},
    {"case": "c", "status": "out_of_memory", "reason": "OutOfMemoryError:\nTried"},
    {"case": "d", "status": "ok", "reason": "", "value": "works"},
]  # fmt: skip


def cases_written(folder: Path, outcome: Outcome) -> tuple[dict[str, dict[str, str]], Any]:
    comparison = {"workload": "gemm", "baseline": "a", "variants": {"a": {"gemm": "fp8_tensorwise"}}}
    run = resolve(validate({"comparisons": {"c": comparison}}), Scope("h200", "full"), ("c", "a", 1))
    out = folder / "h200" / "runs" / "c" / "a" / "rep1"
    row.write(out, run, "c0de", outcome, H200, None, datetime(2026, 1, 2, tzinfo=UTC))
    return {found["case"]: found for found in read_csv(out / "summary.csv", SUMMARY_COLUMNS)}, read_record(out)


def test_an_operator_has_a_row_per_case_with_its_own_status(tmp_path: Path) -> None:
    result = {"summaries": CASES, "applied": {"gemm": "fp8"}}
    rows, record = cases_written(tmp_path, Outcome("ok", "", result, ENVIRONMENT, TELEMETRY))
    assert [found["status"] for found in rows.values()] == ["ok", "ok", "out_of_memory", "ok"]
    assert record["status"] == "ok"
    assert (rows["a"]["model_tflop_per_s"], rows["a"]["idle_ms"], rows["a"]["samples_per_s"]) == ("500", "0.5", "500")
    assert float(rows["a"]["peak_share"]) == pytest.approx(500 / 1979, rel=1e-6)
    assert (rows["b"]["gb_per_s"], rows["b"]["peak_share"], rows["b"]["model_tflop_per_s"]) == ("500", "", "")
    assert rows["c"]["reason"] == "OutOfMemoryError: Tried"
    assert (rows["d"]["value"], rows["d"]["samples_per_s"]) == ("works", "")
    # what means nothing to the operator is empty; the telemetry is of all cases together
    assert {rows["a"][name] for name in ("precision", "batch", "norm", "power_w_mean", "energy_j_per_step")} == {""}
    assert rows["a"]["gemm"] == "fp8_tensorwise"
    assert record["telemetry"]["energy_j"] == 1200.0


def test_what_disturbs_an_operators_run_marks_the_cases_that_were_ok(tmp_path: Path) -> None:
    result = {"summaries": CASES, "applied": {"gemm": "fp8"}}
    rows, _ = cases_written(tmp_path, Outcome("disturbed", "another process", result, ENVIRONMENT, TELEMETRY))
    assert [found["status"] for found in rows.values()] == ["disturbed", "disturbed", "out_of_memory", "disturbed"]


def test_an_operators_run_that_says_nothing_is_one_row(tmp_path: Path) -> None:
    rows, _ = cases_written(tmp_path, Outcome("timeout", "too long"))
    assert list(rows) == [""] and rows[""]["status"] == "timeout"


# the log


@pytest.mark.parametrize("piece", [1, 4096, 65536, LOG_HEAD + LOG_TAIL + 1])
def test_a_log_keeps_its_beginning_and_its_end_within_bounds(piece: int) -> None:
    size = LOG_HEAD + 3 * LOG_TAIL if piece > 1 else LOG_HEAD + LOG_TAIL + 100
    data = bytes(97 + n % 23 for n in range(size))
    log = Log()
    for start in range(0, size, piece):
        log.add(data[start : start + piece])
        assert len(log.head) <= LOG_HEAD and len(log.tail) <= LOG_TAIL
    assert log.head == data[:LOG_HEAD]
    assert log.tail == data[-LOG_TAIL:]
    assert log.dropped == size - LOG_HEAD - LOG_TAIL
    assert f"[... {log.dropped} bytes left out ...]" in log.text()


def test_a_short_log_is_kept_whole() -> None:
    log = Log()
    for text in ("one\n", "two\n"):
        log.add(text.encode())
    assert log.text() == "one\ntwo\n"


def test_a_log_that_is_no_text_is_still_one() -> None:
    log = Log()
    log.add(b"\xff\xfe ok")
    assert log.text().endswith(" ok")


# the device


def test_a_run_for_another_gpu_is_unsupported_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "Child", pytest.fail)
    monkeypatch.setattr(supervisor, "visible_gpu", lambda: Gpu(**{**vars(H200), "slug": "l4", "name": "NVIDIA L4"}))
    outcome, gpu = supervisor.supervise(run_of(), tmp_path / "runs/c/a/rep1", "title")
    assert outcome.status == "unsupported" and gpu is not None
    assert outcome.reason == "asked to measure on 'h200', and the GPU here is 'l4' (NVIDIA L4)"
    monkeypatch.setattr(supervisor, "visible_gpu", lambda: None)
    outcome, gpu = supervisor.supervise(run_of(), tmp_path / "runs/c/a/rep1", "title")
    assert outcome.reason == "asked to measure on 'h200', and no NVIDIA GPU is visible here" and gpu is None


def environment_of(run: Run, gpu: Gpu | None) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        environment = supervisor.child_environment(run, gpu, Path(folder, "x/runs/c/a/rep1"), Path(folder), 7)
    return {name: value.replace(folder, "<folder>") for name, value in environment.items()}


def test_the_child_sees_one_gpu_all_cores_and_its_variants_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as Snakemake does
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2})
    found = environment_of(run_of(), H200)
    assert found["CUDA_VISIBLE_DEVICES"] == "GPU-1"
    assert found["OMP_NUM_THREADS"] == "3"
    assert found["TRITON_CACHE_DIR"].endswith("/x/cache/c/a/triton")
    assert environment_of(run_of("cpu"), None)["CUDA_VISIBLE_DEVICES"] == ""


def test_the_child_is_told_where_legacy_amp_lies_and_of_no_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HALFSTEP_APEX_AMP", "/legacy")
    monkeypatch.setenv("NVTE_FLASH_ATTN", "0")
    found = environment_of(run_of(), H200)
    assert found["HALFSTEP_APEX_AMP"] == "/legacy" and "NVTE_FLASH_ATTN" not in found


class FakeProcess:
    """A child that has ended."""

    def __init__(self, code: int) -> None:
        self.code = code

    def wait(self) -> int:
        return self.code


@pytest.fixture
def ended(tmp_path: Path) -> Callable[..., Outcome]:
    """ended(code, result, telemetry, run, **settings): what the supervisor makes of a child that ended so."""

    def conclude(
        code: int,
        result: dict[str, Any] | None = None,
        telemetry: Telemetry | None = None,
        run: Run | None = None,
        **settings: str,
    ) -> Outcome:
        child = supervisor.Child.__new__(supervisor.Child)
        child.run = run or run_of(**settings)
        child.outcome, child.log, child.phase = Outcome("failed", "", telemetry=telemetry), Log(), "window"
        child.result_file = tmp_path / "result.json"
        if result is not None:
            child.result_file.write_text(json.dumps(result))
        child.log.add(b"Traceback\nImportError: no module\n")
        child.conclude(code)
        return child.outcome

    return conclude


def test_how_a_child_ended_is_said_in_a_sentence(ended: Callable[..., Outcome]) -> None:
    assert ended(-11).reason == "the measuring process was killed by SIGSEGV; it was at: window"
    assert "the kernel does that when the host's memory runs out" in ended(-9).reason
    assert ended(1).reason.endswith("ended with exit code 1 and no result: ImportError: no module")
    assert ended(0).reason.endswith("exit code 0 and no result: ImportError: no module")
    assert {ended(code).status for code in (-11, -9, 1, 0)} == {"failed"}


ADAM = "multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4, (at::native::ADAM_MODE)0, false>>()"
OK = {"status": "ok", "reason": "", "kernels": [{"kernel": ADAM, "calls_per_step": 1, "ms_per_step": 5.0}]}


def test_a_run_without_a_sign_of_what_was_asked_is_invalid(ended: Callable[..., Outcome]) -> None:
    assert ended(0, OK).status == "ok"
    outcome = ended(0, OK, optimizer="apex_adam")
    assert outcome.status == "invalid"
    assert outcome.reason.startswith("optimizer is 'apex_adam', and none of its kernels ran in a profiled step")


def test_a_disturbed_window_marks_only_a_run_that_is_else_ok(ended: Callable[..., Outcome]) -> None:
    disturbed = Telemetry(**{**vars(TELEMETRY), "others_memory_gib": 3.0})
    assert ended(0, OK, TELEMETRY).status == "ok"
    outcome = ended(0, OK, disturbed)
    assert (outcome.status, outcome.reason) == ("disturbed", "Other processes held 3.00 GiB of the GPU's memory.")
    assert ended(0, {"status": "invalid", "reason": "nan"}, disturbed).reason == "nan"


def test_a_run_that_was_to_be_compiled_and_was_not_is_invalid(ended: Callable[..., Outcome]) -> None:
    eager = {**OK, "summary": {**SUMMARY, "compile_s": 0}}
    assert ended(0, eager).status == "ok"
    outcome = ended(0, eager, compile="blocks")
    assert (outcome.status, outcome.reason) == ("invalid", "compile is 'blocks', and torch.compile compiled nothing")
    compiled = {**eager, "summary": {**SUMMARY, "compile_s": 3.1}}
    assert ended(0, compiled, compile="blocks").status == "ok"


def test_a_parity_run_needs_no_kernels_but_its_compilation(ended: Callable[..., Outcome]) -> None:
    study, scope = validate(read_config(CONFIG)), Scope("h200", "full")
    wanted = ("lm", "native_delayed+blocks")
    keys = [key for key in parity_keys(study, scope) if (key.recipe.family.workload, key.recipe.name) == wanted]
    (run,) = (resolve_parity(study, scope, key) for key in keys)
    result = {"status": "ok", "reason": "", "curve": [], "applied": {"gemm": "fp8"}, "summary": {"compile_s": 3.1}}
    assert ended(0, result, run=run).status == "ok"
    outcome = ended(0, {**result, "summary": {}}, run=run)
    assert (outcome.status, outcome.reason) == ("invalid", "compile is 'blocks', and torch.compile compiled nothing")


# what a shell may have set, and what it would have done to the numbers
SWITCHES = {
    "TORCH_COMPILE_DISABLE": "1",  # compiled becomes eager
    "TORCHDYNAMO_DISABLE": "1",
    "TORCH_COMPILE_OVERRIDE_BACKENDS": "eager",
    "TORCHINDUCTOR_MAX_AUTOTUNE": "1",
    "NVIDIA_TF32_OVERRIDE": "1",  # fp32 becomes tf32
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1",
    "ONEDNN_DEFAULT_FPMATH_MODE": "BF16",
    "PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync",  # memory_cap_gib and the peaks mean something else
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
    "CUBLAS_WORKSPACE_CONFIG": ":16:8",
    "CUDA_LAUNCH_BLOCKING": "1",
    "OMP_PROC_BIND": "true",
}


def test_the_shell_does_not_say_what_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    before = environment_of(run_of(compile="blocks"), H200)
    for name, value in SWITCHES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/elsewhere")
    monkeypatch.setenv("CUDA_HOME", "/usr/local/cuda")
    found = environment_of(run_of(compile="blocks"), H200)
    del before["HALFSTEP_SPAWNED"], found["HALFSTEP_SPAWNED"]
    assert found == {**before, "CUDA_HOME": "/usr/local/cuda"}


def test_a_gpu_that_no_longer_says_what_it_is_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost() -> Gpu:
        raise GpuError("GPU 0 does not answer NVML's question for its name or UUID.")

    monkeypatch.setattr(supervisor, "Child", pytest.fail)
    monkeypatch.setattr(supervisor, "visible_gpu", lost)
    outcome, gpu = supervisor.supervise(run_of(), tmp_path / "runs/c/a/rep1", "title")
    assert (outcome.status, gpu) == ("unsupported", None)
    assert "does not answer" in outcome.reason


@pytest.mark.parametrize("reason", ["a\rb", "a\nb", "x\udcffy", 'a,"b\x85c'])
def test_any_reason_is_read_back_in_one_row(tmp_path: Path, reason: str) -> None:
    summary, record = written(tmp_path, Outcome("failed", reason))
    assert summary["status"] == record["status"] == "failed"
    assert len(summary["reason"].splitlines()) == 1 and summary["reason"][0] == reason[0]


def test_a_recipe_that_applied_infinity_leaves_its_record(tmp_path: Path) -> None:
    result = {**measured(), "applied": {"gemm": "bf16", "bound": float("inf")}}
    _, record = written(tmp_path, Outcome("ok", "", result))
    assert record["applied"] == {"gemm": "bf16", "bound": "Infinity"}


def test_a_time_limit_may_be_longer_than_epoll_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`timeout_s: 9999999` for "none": the child's end is seen, and the run has its row."""
    monkeypatch.setattr("sys.executable", "/bin/false")
    study = validate(
        {"timeout_s": 9_999_999, "comparisons": {"c": {"workload": "lm", "baseline": "a", "variants": {"a": {}}}}}
    )
    run = resolve(study, Scope("cpu", "full"), ("c", "a", 1))
    outcome, _ = supervisor.supervise(run, tmp_path / "cpu/runs/c/a/rep1", "title")
    assert (outcome.status, "exit code 1" in outcome.reason) == ("failed", True)
