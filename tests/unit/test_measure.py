"""The measuring code on a CPU: the loop and its verdicts, clocks, FLOPs, batches, kernel times."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from halfstep.errors import Unsupported, classify, describe
from halfstep.measure.clock import Clock
from halfstep.measure.flops import model_tflop_per_step
from halfstep.measure.profile import STEPS, tabulate, union_ms
from halfstep.measure.training import Loop, build_step, describe_steps, feed, judge, look_up, measure, open_device
from halfstep.recipes.norms import layernorm
from halfstep.recipes.precision.precision import Precision
from halfstep.registry import COMPILES, WORKLOADS
from halfstep.runs import Scope, resolve
from halfstep.study import validate

CPU = torch.device("cpu")

pytestmark = pytest.mark.usefixtures("one_thread")


def run_of(workload: str = "lm", scope: Scope | None = None, **settings: Any) -> dict[str, Any]:
    """A resolved run as the measuring process is told it."""
    comparison = {"workload": workload, "baseline": "a", "variants": {"a": settings}}
    key = ("c", "a", 1)
    return resolve(validate({"comparisons": {"c": comparison}}), scope or Scope("cpu", "smoke"), key).model_dump()


def silent(event: str, **details: Any) -> None:
    """An emit that tells nobody."""


class FallingScale(Precision):
    """A loss scale that halves before each of the given steps, as GradScaler does when it skips one."""

    def __init__(self, skipped: set[int]) -> None:
        self.skipped, self.steps, self.scale = skipped, 0, torch.tensor(65536.0)

    def loss_scale(self) -> torch.Tensor:
        return self.scale

    def step(self, *_: Any) -> torch.Tensor:
        self.scale.mul_(0.5 if self.steps in self.skipped else 2 if self.steps == 5 else 1)
        self.steps += 1
        return torch.tensor(float(self.steps))


def loop_of(precision: FallingScale, emit: Callable[..., None] = silent) -> Loop:
    return Loop(precision.step, itertools.repeat((torch.zeros(1), torch.zeros(1))), precision, emit)


def test_the_loop_marks_the_steps_in_which_the_loss_scale_fell() -> None:
    rows = loop_of(FallingScale({0, 3, 6})).run("window", CPU, 7)
    assert [row["skipped"] for row in rows] == [1, 0, 0, 1, 0, 0, 1]  # and not the fifth, in which it grew
    assert [row["step"] for row in rows] == list(range(7))
    assert [row["loss"] for row in rows] == [1, 2, 3, 4, 5, 6, 7]
    assert {row["phase"] for row in rows} == {"window"}


def test_a_scale_that_fell_between_two_phases_skips_no_step_of_the_second() -> None:
    precision = FallingScale({1})
    loop = loop_of(precision)
    assert [row["skipped"] for row in loop.run("warmup", CPU, 2)] == [0, 1]
    assert [row["skipped"] for row in loop.run("window", CPU, 2)] == [0, 0]


def test_a_recipe_without_a_loss_scale_skips_nothing() -> None:
    steps = itertools.count(1.0)
    loop = Loop(
        lambda *_: torch.tensor(next(steps)), itertools.repeat((None, None)), Precision(CPU, torch.float32), silent
    )
    assert [row["skipped"] for row in loop.run("window", CPU, 3)] == [0, 0, 0]
    assert loop.seconds > 0


def test_a_lead_goes_before_the_window_without_a_wait_between_them() -> None:
    steps, begun = itertools.count(1.0), []
    fp32 = Precision(CPU, torch.float32)
    loop = Loop(lambda *_: torch.tensor(next(steps)), itertools.repeat((None, None)), fp32, silent)
    rows = loop.run("window", CPU, 3, lead=2, begin=lambda: begun.append(next(steps)))
    assert [(row["phase"], row["step"], row["loss"]) for row in rows] == [
        ("warmup", 0, 1.0),
        ("warmup", 1, 2.0),
        ("window", 0, 4.0),
        ("window", 1, 5.0),
        ("window", 2, 6.0),
    ]
    assert begun == [3.0]


def row(step_ms: float, skipped: int = 0, loss: float = 1.0) -> dict[str, Any]:
    return {"step_ms": step_ms, "skipped": skipped, "loss": loss}


def test_skipped_steps_are_counted_and_kept_out_of_every_step_time() -> None:
    timed = [row(ms) for ms in (10, 11, 12, 13, 30)] + [row(1000, skipped=1), row(0.1, skipped=1)]
    described = describe_steps(timed)
    assert (described["steps"], described["skipped_steps"]) == (5, 2)
    assert described["step_ms_median"] == 12
    assert described["step_ms_mean"] == pytest.approx(15.2)
    assert 10 <= described["step_ms_p05"] <= 12 <= described["step_ms_p95"] <= 30


def test_no_sample_that_counts_is_dropped() -> None:
    described = describe_steps([row(1), row(1), row(1), row(1e6)])
    assert described["step_ms_mean"] == pytest.approx(250000.75)


def test_losses_are_those_of_the_first_and_last_timed_step() -> None:
    described = describe_steps([row(1, 1, 7.0), row(1, 0, 6.0), row(1, 1, 5.0)])
    assert (described["loss_first"], described["loss_last"]) == (7.0, 5.0)


def test_without_two_steps_that_count_there_is_no_step_time() -> None:
    timed = [row(1, skipped=1), row(1, skipped=1), row(1)]
    described = describe_steps(timed)
    assert "step_ms_median" not in described
    assert judge(described, timed) == ("invalid", "GradScaler skipped 2 of 3 timed steps")


def test_judge_finds_what_was_not_as_asked() -> None:
    timed = [row(1), row(1)]
    fine = describe_steps(timed)
    assert judge(fine, timed) == ("ok", "")
    assert judge({**fine, "recompiles": 0}, timed) == ("ok", "")
    status, reason = judge({**fine, "recompiles": 2}, timed)
    assert status == "invalid" and "compiled 2 graphs inside the window" in reason
    for bad in (math.nan, math.inf):
        status, reason = judge(fine, [row(1), row(1, loss=bad)])
        assert status == "invalid" and "not finite in 1 of 2 timed steps" in reason


def test_the_clock_reads_one_time_per_step_that_add_up_to_the_whole() -> None:
    clock = Clock(CPU, 3)
    for _ in range(4):
        clock.mark()
    device_ms, wall_ms = clock.read()
    assert device_ms == wall_ms  # without a GPU there is one clock
    assert len(wall_ms) == 3 and min(wall_ms) >= 0
    assert sum(wall_ms) == pytest.approx((clock.walls[-1] - clock.walls[0]) * 1e3)


def test_a_window_that_ended_early_is_read_as_far_as_it_went() -> None:
    clock = Clock(CPU, 10)
    clock.mark()
    clock.mark()
    assert len(clock.read()[1]) == 1


# batches


def test_resident_batches_are_rotated_and_never_made_again() -> None:
    batches = feed(run_of(), look_up(WORKLOADS["lm"]), CPU)
    first = [next(batches) for _ in range(4)]
    again = [next(batches) for _ in range(4)]
    assert [one[0].data_ptr() for one in first] == [other[0].data_ptr() for other in again]
    assert len({one[0].data_ptr() for one in first}) == 4
    assert not torch.equal(first[0][0], first[1][0])


def test_resident_batches_come_from_the_runs_seed() -> None:
    workload = look_up(WORKLOADS["lm"])
    one, same = (next(feed(run_of(), workload, CPU))[0] for _ in range(2))
    other = next(feed({**run_of(), "seed": 5}, workload, CPU))[0]
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("data", ["resident", "dataloader"])
def test_vit_batches_have_the_shapes_and_labels_of_their_samples(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})  # one worker
    run = run_of("vit_huge", data=data)
    workload = look_up(WORKLOADS["vit_huge"])
    batches: Iterator[Any] = feed(run, workload, CPU)
    # more samples than classes, so that the labels come round
    taken = list(itertools.islice(batches, 4 if data == "resident" else 10))
    size = workload.sizes["smoke"]
    assert {tuple(images.shape) for images, _ in taken} == {(16, 3, size["img_size"], size["img_size"])}
    assert {(images.dtype, labels.dtype) for images, labels in taken} == {(torch.float32, torch.int64)}
    labels = torch.cat([labels for _, labels in taken])
    assert torch.equal(labels, torch.arange(len(labels)) % size["num_classes"])


def test_lm_batches_through_the_loader_have_the_shape_of_the_resident_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    workload = look_up(WORKLOADS["lm"])
    loaded, resident = (next(feed(run_of(data=data), workload, CPU)) for data in ("dataloader", "resident"))
    assert [tensor.shape for tensor in loaded] == [tensor.shape for tensor in resident]
    assert not torch.equal(loaded[0][0], loaded[0][1])


# FLOPs


def training_flops(parameters: int, tokens: int, width: int, depth: int) -> int:
    """By hand: 2 FLOPs per parameter and token forward, twice that backward; attention's two products likewise."""
    return 3 * (2 * parameters * tokens + depth * 4 * tokens * tokens * width)


def test_flops_of_vit_huge_at_full_size_are_those_of_the_formula() -> None:
    depth, width, tokens, classes = 32, 1280, 256, 1024
    blocks = training_flops(depth * 12 * width**2, tokens, width, depth)
    head = 3 * 2 * width * classes  # on the pooled token
    patches = 2 * 2 * tokens * (3 * 16 * 16) * width  # forward and its weights; pixels need no gradient
    counted = model_tflop_per_step(look_up(WORKLOADS["vit_huge"]), "full", 16)
    assert counted == pytest.approx(16 * (blocks + head + patches) / 1e12, rel=1e-9)
    # without attention it would be 3 % less, which is what torch counts on the CPU
    assert counted > 1.02 * 16 * (blocks + head + patches - 3 * depth * 4 * tokens**2 * width) / 1e12


def test_flops_of_the_language_model_at_full_size_are_those_of_the_formula() -> None:
    depth, width, tokens, vocabulary = 12, 1024, 1024, 32768
    expected = training_flops(depth * 12 * width**2 + vocabulary * width, tokens, width, depth)
    counted = model_tflop_per_step(look_up(WORKLOADS["lm"]), "full", 8)
    assert counted == pytest.approx(8 * expected / 1e12, rel=1e-9)  # causal attention in full


def test_vit_huge_has_the_parameters_that_its_name_stands_for() -> None:
    workload = look_up(WORKLOADS["vit_huge"])
    with torch.device("meta"):
        model = workload.build(layernorm, **workload.sizes["full"])
    assert sum(parameter.numel() for parameter in model.parameters()) == 632_304_384
    assert len(workload.blocks(model)) == 32


# kernel times


def test_overlapping_kernels_count_once() -> None:
    random.seed(0)
    for _ in range(50):
        starts = [random.randrange(200) for _ in range(random.randrange(1, 12))]
        intervals = [(float(start), float(start + random.randrange(1, 40))) for start in starts]
        busy = {tick for start, stop in intervals for tick in range(int(start), int(stop))}
        assert union_ms(intervals) == pytest.approx(len(busy) / STEPS / 1e3)
    assert union_ms([]) == 0


def test_kernels_are_summed_by_name_per_step_longest_first() -> None:
    events = [{"name": "b", "dur": 100.0}, {"name": "a", "dur": 300.0}, {"name": "b", "dur": 100.0}]
    events += [{"name": "c", "dur": 200.0}]
    assert tabulate(events) == [
        {"kernel": "a", "calls_per_step": 1 / STEPS, "ms_per_step": 0.3 / STEPS},
        {"kernel": "b", "calls_per_step": 2 / STEPS, "ms_per_step": 0.2 / STEPS},
        {"kernel": "c", "calls_per_step": 1 / STEPS, "ms_per_step": 0.2 / STEPS},
    ]


# what a run says of itself


def test_a_memory_cap_on_a_cpu_is_unsupported_and_not_ignored() -> None:
    with pytest.raises(Unsupported, match="memory_cap_gib caps torch's allocator on a GPU"):
        open_device(run_of(memory_cap_gib=8))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"precision": "fp16"}, "fp16 with GradScaler needs an NVIDIA GPU; this run is on the CPU"),
        ({"precision": "tf32"}, "tf32 needs an NVIDIA GPU; this run is on the CPU"),
        ({"compile": "graphs"}, "a CUDA graph needs an NVIDIA GPU; this run is on the CPU"),
    ],
)
def test_what_a_cpu_cannot_do_is_unsupported_with_a_sentence(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Unsupported, match=sentence) as caught:
        build_step(run_of(**settings), CPU)
    assert classify(caught.value) == ("unsupported", sentence)


@pytest.mark.parametrize("mode", ["blocks", "model"])
def test_compiling_without_a_compiler_is_unsupported(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(Unsupported, match=r"needs a C\+\+ compiler such as g\+\+"):
        look_up(COMPILES[mode]).check(CPU)
    look_up(COMPILES["none"]).check(CPU)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB.\nGPU 0 has"), "out_of_memory"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "out_of_memory"),
        (RuntimeError("CUDA error: out of memory"), "out_of_memory"),
        (MemoryError(), "out_of_memory"),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), "failed"),
        (ValueError("out of memory of former days"), "failed"),
        (KeyError("modules"), "failed"),
    ],
)
def test_an_error_becomes_a_status_with_its_first_line(error: Exception, status: str) -> None:
    found, reason = classify(error)
    assert found == status
    assert reason and "\n" not in reason


def test_a_long_error_is_cut() -> None:
    assert len(describe(RuntimeError("x" * 10_000))) == 500
    assert describe(RuntimeError("")) == "RuntimeError: "


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_run_on_the_cpu_measures_what_its_columns_say(workload: str) -> None:
    told: list[str] = []
    run = run_of(workload, precision="bf16")
    result = measure(run, lambda event, **details: told.append(details.get("phase", event)))
    assert (result["status"], result["reason"]) == ("ok", "")
    phases = [row["phase"] for row in result["steps"]]
    assert phases == ["warmup"] * run["window"]["warmup_steps"] + ["window"] * phases.count("window")
    assert phases.count("window") >= run["window"]["min_steps"]
    numbers = [row["step"] for row in result["steps"]]
    assert numbers == [*range(2), *range(phases.count("window"))]
    summary = result["summary"]
    assert summary["steps"] == phases.count("window")
    # empty on a CPU, and so not there: memory, kernels, compile times
    assert not {"peak_allocated_gib", "kernel_ms", "compile_s", "recompiles"} & set(summary)
    assert result["kernels"] == []
    assert result["applied"]["gemm"] == "bf16"
    assert [told.index(event) for event in ("build", "first step", "window_start", "window_end", "count FLOPs")] == (
        sorted(told.index(event) for event in ("build", "first step", "window_start", "window_end", "count FLOPs"))
    )


def test_training_on_one_batch_lowers_its_loss() -> None:
    run = run_of(optimizer="adamw_fused")
    step, _, applied = build_step(run, CPU)
    assert applied["parameters"] > 0 and applied["compiled_modules"] == 0
    batch = next(feed(run, look_up(WORKLOADS["lm"]), CPU))
    losses = [step(*batch).item() for _ in range(30)]
    assert losses[-1] < 0.9 * losses[0]


def test_the_same_seed_gives_the_same_losses() -> None:
    def losses() -> list[float]:
        run = run_of("vit_huge")
        step, _, _ = build_step(run, CPU)
        batches = feed(run, look_up(WORKLOADS["vit_huge"]), CPU)
        return [step(*next(batches)).item() for _ in range(3)]

    assert losses() == losses()
