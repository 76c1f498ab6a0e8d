"""Environment variables with which a shell could change what a measurement is.

TORCH_COMPILE_DISABLE=1 runs a compiled variant eagerly, NVIDIA_TF32_OVERRIDE=1 makes TF32 of strict fp32,
ONEDNN_DEFAULT_FPMATH_MODE=BF16 bf16 of it on a CPU, NVTE_FLASH_ATTN=0 takes another attention, and nothing in
the result would say so. What is measured is said by the run alone, so the measuring process gets none of them.
"""

from __future__ import annotations

from collections.abc import Mapping

PREFIXES = (
    "TORCH", "PYTORCH_", "CUBLAS", "CUDNN_", "NVIDIA_TF32_OVERRIDE", "DISABLE_ADDMM_CUDA_LT",
    "CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_MODULE_LOADING", "CUDA_FORCE_", "CUDA_DISABLE_",
    "NVTE_", "LIGER_", "TRITON_F32_DEFAULT", "TRITON_INTERPRET", "ATEN_", "ONEDNN_", "DNNL_", "OMP_", "GOMP_", "KMP_",
)  # fmt: skip


# a site's word on what its hardware must not do: it changes nothing of what one GPU measures, and stays
KEPT = ("TORCH_SYMM_MEM_",)


def switches(environment: Mapping[str, str]) -> list[str]:
    """The names of those that are set."""
    return sorted(name for name in environment if name.startswith(PREFIXES) and not name.startswith(KEPT))


def without_switches(environment: Mapping[str, str]) -> dict[str, str]:
    cleared = set(switches(environment))
    return {name: value for name, value in environment.items() if name not in cleared}
