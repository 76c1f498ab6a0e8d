"""Whether a run shows what was asked: kernels of its recipes, types of its products, drift."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from halfstep.config_file import read_config
from halfstep.parity.plan import parity_keys, resolve_parity
from halfstep.registry import NORMS, OPTIMIZERS
from halfstep.runs import Scope, resolve
from halfstep.study import validate
from halfstep.validity import MOST_DRIFT, NORM_KERNELS, OPTIMIZER_KERNELS, drift, operands_of, read_profile, verdict

ROOT = Path(__file__).parents[2]
REFERENCE, CONFIG = ROOT / "results" / "reference" / "h200", ROOT / "config.yaml"
# seen on an H200
NVJET = "nvjet_sm90_{}_128x256_64x4_4x2_h_bz_coopA_NTN"
BF16, FP16, FP8 = NVJET.format("tst"), NVJET.format("hsh"), NVJET.format("qrtst")
SIMT = "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x256_8x4_nt_align1>(Params)"
FP32 = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4"
TF32 = "sm90_xmma_gemm_f32f32_tf32f32_f32_nt_n_tilesize128x256x32_warpgroupsize2x1x1_execute_segment_k_off_kernel"
ADAM = (
    "void at::native::multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>, "
    "FusedAdamMathFunctor<float, 4, (at::native::ADAM_MODE){}, false>, float const*>()"
)
FOREACH = "void at::native::multi_tensor_apply_kernel<TensorListMetadata<4>, PointwiseOpScalarListFunctor<float, 4>>()"
APEX_ADAM = "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float, float, int>, float, float>()"
TE_ADAM = (
    "void transformer_engine::multi_tensor_adam::multi_tensor_apply_kernel<TensorListMetadata<4, false>, "
    "transformer_engine::multi_tensor_adam::AdamFunctor<float, float, float, int>>()"
)
APEX_LN = "void (anonymous namespace)::cuApplyLayerNorm<float, float, float>(float*, float*, float*)"
TORCH_LN = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float, false>(int, float)"


def run_of(**settings: Any) -> dict[str, Any]:
    """A resolved full-scale run of the language model on an H200."""
    comparison = {"workload": "lm", "baseline": "a", "variants": {"a": settings}}
    return resolve(validate({"comparisons": {"c": comparison}}), Scope("h200", "full"), ("c", "a", 1)).model_dump()


def rows(**ms: float) -> list[dict[str, Any]]:
    return [{"kernel": globals()[name], "ms_per_step": value} for name, value in ms.items()]


def adam(mode: int = 0) -> dict[str, Any]:
    return {"kernel": ADAM.format(mode), "ms_per_step": 5.0}


def steps(*times: float, skipped: int = 0) -> list[dict[str, Any]]:
    window = [{"phase": "window", "step_ms": ms, "loss": 7 - n / 100, "skipped": 0} for n, ms in enumerate(times)]
    return [{"phase": "warmup", "step_ms": 900.0, "loss": 8.0, "skipped": 0}, *window] + skipped * [
        {"phase": "window", "step_ms": 1e6, "loss": 6.5, "skipped": 1}
    ]


@pytest.mark.parametrize(
    ("kernel", "operands"),
    [
        (BF16, "bf16"),
        (FP16, "fp16"),
        (FP8, "fp8"),
        (SIMT, "fp32"),
        (FP32, "fp32"),
        (TF32, "tf32"),
        ("nvjet_sm90_sst_128x128_64x4", "unknown"),
        (
            "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816fprop_optimized_bf16_128x128>()",
            "bf16",
        ),
        ("ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_64x3_nn", "fp16"),
        ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_nn", "bf16"),
        ("cutlass_80_tensorop_s1688gemm_128x128_32x3_nn_align4", "tf32"),
        ("sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x32", "fp16"),
        ("triton_poi_fused_gelu_view_8", None),
        (ADAM, None),
    ],
)
def test_the_type_of_a_products_operands(kernel: str, operands: str | None) -> None:
    assert operands_of(kernel) == operands


def test_every_library_of_fused_kernels_is_known_by_its_kernels() -> None:
    libraries = ("apex_", "te_", "liger_")
    assert set(NORM_KERNELS) == {name for name in NORMS if name.startswith(libraries)}
    assert set(OPTIMIZER_KERNELS) == {
        name for name in OPTIMIZERS if name.startswith(libraries) or name.endswith("_fused")
    }


@pytest.mark.parametrize(
    ("settings", "gemm", "kernels"),
    [
        ({"precision": "fp32"}, "fp32", [*rows(FP32=300.0, SIMT=40.0), adam()]),
        ({"precision": "tf32"}, "tf32", [*rows(TF32=40.0, FP32=3.0), adam()]),
        ({"precision": "bf16"}, "bf16", [*rows(BF16=90.0, FP32=5.0), adam()]),
        ({"precision": "torchao_rowwise_with_gw_hp"}, "fp8", [*rows(BF16=60.0, FP8=55.0), adam()]),
        ({"optimizer": "adamw_fused"}, "fp32", [*rows(FP32=1.0), adam(1)]),
        ({"optimizer": "adamw_foreach"}, "fp32", rows(FP32=1.0, FOREACH=2.0)),
        ({"optimizer": "apex_adamw"}, "fp32", rows(FP32=1.0, APEX_ADAM=2.0)),
        ({"optimizer": "te_adam"}, "fp32", rows(FP32=1.0, TE_ADAM=2.0)),
        ({"norm": "apex_layernorm"}, "fp32", [*rows(FP32=1.0, APEX_LN=2.0), adam()]),
        # another GPU's names may say nothing of a type: that proves nothing against it
        ({"precision": "bf16"}, "bf16", [{"kernel": "gemm_of_another_vendor", "ms_per_step": 9.0}, adam()]),
    ],
)
def test_a_run_that_shows_what_was_asked_stays_ok(settings: Any, gemm: str, kernels: Any) -> None:
    assert verdict(run_of(**settings), {"gemm": gemm}, kernels, steps(*[10.0] * 30)) is None


@pytest.mark.parametrize(
    ("settings", "gemm", "kernels", "reason"),
    [
        (
            {"precision": "native_delayed"},
            "fp8",
            [*rows(BF16=90.0), adam()],
            "'native_delayed' was to run in FP8, and no FP8 kernel ran in a profiled step; matrix products by time: "
            "100% in bf16",
        ),
        (
            {"precision": "bf16"},
            "bf16",
            [*rows(FP32=90.0, BF16=10.0), adam()],
            "matrix products were to run in bf16, and a profiled step shows by time: 90% in fp32, 10% in bf16",
        ),
        ({"precision": "fp32"}, "fp32", [*rows(FP32=99.0, TF32=1.0), adam()], "shows by time: 99% in fp32, 1% in tf32"),
        ({"precision": "tf32"}, "tf32", [*rows(SIMT=9.0), adam()], "were to run in tf32"),
        (
            {"precision": "fp16"},
            "fp61",
            [*rows(FP32=9.0), adam()],
            "the recipe says `gemm = 'fp61'`, of which no",
        ),
        (
            {"optimizer": "apex_adam"},
            "fp32",
            [*rows(FP32=1.0), adam()],
            "optimizer is 'apex_adam', and none of its kernels ran in a profiled step, instead: void at::native::multi",
        ),
        ({"optimizer": "adam_fused"}, "fp32", rows(FP32=1.0, FOREACH=2.0), "optimizer is 'adam_fused'"),
        ({"optimizer": "adamw_fused"}, "fp32", [*rows(FP32=1.0), adam(0)], "optimizer is 'adamw_fused'"),
        ({"optimizer": "te_adamw"}, "fp32", rows(FP32=1.0, APEX_ADAM=2.0), "optimizer is 'te_adamw'"),
        (
            {"norm": "apex_layernorm"},
            "fp32",
            [*rows(FP32=1.0, TORCH_LN=2.0), adam()],
            "instead: void at::native::(an",
        ),
        ({"norm": "apex_rmsnorm"}, "fp32", [*rows(FP32=1.0, APEX_LN=2.0), adam()], "norm is 'apex_rmsnorm'"),
        ({"norm": "liger_rmsnorm"}, "fp32", [*rows(FP32=1.0), adam()], "and none of the kind 'norm'"),
        ({"precision": "bf16"}, "bf16", [], "a profiled step showed no kernel at all"),
    ],
)
def test_a_run_without_a_sign_of_what_was_asked_is_invalid(settings: Any, gemm: str, kernels: Any, reason: str) -> None:
    judged = verdict(run_of(**settings), {"gemm": gemm}, kernels, steps(*[10.0] * 30))
    assert judged is not None
    assert judged[0] == "invalid" and reason in judged[1]


def test_on_a_cpu_nothing_is_profiled_and_nothing_is_asked_of_it() -> None:
    run = run_of() | {"device": "cpu"}
    assert verdict(run, {"gemm": "fp32"}, [], steps(*[10.0] * 30)) is None


def test_of_a_parity_run_neither_a_profile_nor_a_window_is_asked() -> None:
    """Whatever it was to compute in."""
    study, scope = validate(read_config(CONFIG)), Scope("h200", "full")
    runs = [resolve_parity(study, scope, key).model_dump() for key in parity_keys(study, scope)]
    assert {"te_layers_delayed", "apex_amp_o2"} < {run["precision"] for run in runs}
    assert {"apex_adamw"} < {run["optimizer"] for run in runs} and "apex_layernorm" in {run["norm"] for run in runs}
    assert [verdict(run, {"gemm": gemm}, [], []) for run in runs for gemm in ("fp8", "fp32")] == [None] * 2 * len(runs)


@pytest.mark.parametrize("change", [1 + MOST_DRIFT + 0.01, 1 - MOST_DRIFT - 0.01])
def test_a_run_that_drifts_is_disturbed_at_full_scale(change: float) -> None:
    times = [10.0] * 10 + [10.0 * (1 + change) / 2] * 10 + [10.0 * change] * 10
    kernels = [*rows(FP32=1.0), adam()]
    judged = verdict(run_of(), {"gemm": "fp32"}, kernels, steps(*times, skipped=3))
    assert judged is not None
    assert judged[0] == "disturbed"
    assert f"6% {'slower' if change > 1 else 'faster'} than the first" in judged[1]
    assert verdict(run_of() | {"scale": "smoke"}, {"gemm": "fp32"}, kernels, steps(*times)) is None


def rounds(*losses: float) -> list[dict[str, Any]]:
    return [{"phase": "window", "step_ms": 10.0, "loss": loss, "skipped": 0} for loss in losses]


def test_a_run_whose_losses_come_round_again_is_invalid() -> None:
    """An optimizer that skips every step, whatever kernels it launches."""
    four = [6.9, 7.1, 7.0, 6.8]
    again = [loss * (1 + 1e-7) for loss in four]  # sums in another order
    run, kernels = run_of(), [*rows(FP32=1.0), adam()]
    judged = verdict(run, {"gemm": "fp32"}, kernels, rounds(*four, *again, *four[:2]))
    assert judged is not None
    assert judged[0] == "invalid" and judged[1].startswith("no update reached the weights")
    assert verdict(run | {"device": "cpu"}, {"gemm": "fp32"}, [], rounds(*four, *four)) == judged
    for learns in (rounds(*four, *again[:3]), rounds(*four, *four, 6.8), rounds(*four, 6.9, 7.1, 7.0, 6.7999)):
        assert verdict(run, {"gemm": "fp32"}, kernels, learns) is None
    # other batches each time, and so other losses: nothing can be said
    assert verdict(run | {"data": "dataloader"}, {"gemm": "fp32"}, kernels, rounds(*four, *four)) is None


def test_single_slow_steps_are_no_drift() -> None:
    times = [10.0] * 30
    times[3] = times[27] = 60.0
    assert drift(steps(*times)) == 0
    assert drift(steps(1.0, 2.0, 3.0, 4.0, 5.0)) is None, "too few steps to say"


def test_every_ok_run_of_the_reference_names_the_type_that_it_asked_for() -> None:
    with (REFERENCE / "tables" / "proofs.csv").open(encoding="utf-8", newline="") as stream:
        proofs = list(csv.DictReader(stream))
    assert {row["comparison"] for row in proofs if not row["asked"]} <= {"layernorm", "rmsnorm", "optimizer-step"}
    proofs = [row for row in proofs if row["asked"]]
    assert proofs
    for row in proofs:
        assert float(row[f"{row['asked']}_share"]) > (0 if row["asked"] == "fp8" else 0.9), row


def test_a_profile_says_which_share_of_the_products_had_which_type() -> None:
    profile = read_profile(run_of(), [*rows(FP8=30.0, BF16=10.0, TORCH_LN=99.0), adam()])
    assert profile.products == {"fp8": 0.75, "bf16": 0.25}
    assert profile.optimizer == ADAM.format(0) and profile.norm == ""
