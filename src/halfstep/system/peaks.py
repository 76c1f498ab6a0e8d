"""The vendor's dense peak of each GPU: what a share of peak is printed against."""

from __future__ import annotations

import re

# Dense TFLOP/s: where a datasheet states the rate with sparsity (marked *), half of it. fp16 and fp8 are
# with fp32 accumulation. A GPU, or a precision, that is not here has no share of peak.
#
# Hopper. "NVIDIA H100 Tensor Core GPU" datasheet, SXM column: fp32 67, TF32 989*, bf16 and fp16 1979*, fp8 3958*;
# "NVIDIA H200 Tensor Core GPU" and "NVIDIA GH200 Grace Hopper Superchip" datasheets: the same.
_H100_SXM = {"fp32": 67.0, "tf32": 494.5, "bf16": 989.5, "fp16": 989.5, "fp8": 1979.0}
# The same two datasheets, NVL columns: fp32 60, TF32 835*, bf16 and fp16 1671*, fp8 3341*.
_HOPPER_NVL = {"fp32": 60.0, "tf32": 417.5, "bf16": 835.5, "fp16": 835.5, "fp8": 1670.5}
# "NVIDIA H100 Tensor Core GPU" datasheet of 2022 and 2023, PCIe column: fp32 51, TF32 756*, bf16 and fp16 1513*,
# fp8 3026*.
_H100_PCIE = {"fp32": 51.0, "tf32": 378.0, "bf16": 756.5, "fp16": 756.5, "fp8": 1513.0}
# "NVIDIA A100 Tensor Core GPU" datasheet, one column for all: fp32 19.5, TF32 156, bf16 and fp16 312.
_A100 = {"fp32": 19.5, "tf32": 156.0, "bf16": 312.0, "fp16": 312.0}
# "NVIDIA HGX B200" (eight GPUs): TF32 18 PFLOPS*, bf16 and fp16 36*, fp8 72*.
_B200 = {"tf32": 1125.0, "bf16": 2250.0, "fp16": 2250.0, "fp8": 4500.0}
# "NVIDIA L4 Tensor Core GPU" datasheet: fp32 30.3, TF32 120*, bf16 and fp16 242*, fp8 485*.
_L4 = {"fp32": 30.3, "tf32": 60.0, "bf16": 121.0, "fp16": 121.0, "fp8": 242.5}
# "NVIDIA L40S" datasheet: fp32 91.6, TF32 183, bf16 and fp16 362.05, fp8 733.
_L40S = {"fp32": 91.6, "tf32": 183.0, "bf16": 362.05, "fp16": 362.05, "fp8": 733.0}
# "NVIDIA Ada GPU Architecture" whitepaper, appendix A: fp32 82.6, TF32 82.6, bf16 165.2, fp16 165.2, fp8 330.3.
_RTX_4090 = {"fp32": 82.6, "tf32": 82.6, "bf16": 165.2, "fp16": 165.2, "fp8": 330.3}

# NVML's name, whole: "NVIDIA A100-SXM-64GB" is another chip than the A100 of the datasheet, and a MIG
# instance ("NVIDIA H200 MIG 1g.18gb") is a part of one.
_PEAKS: dict[str, dict[str, float]] = {
    r"NVIDIA H100 80GB HBM3": _H100_SXM,
    r"NVIDIA H200": _H100_SXM,
    r"NVIDIA GH200 (480GB|144G HBM3e)": _H100_SXM,
    r"NVIDIA H[12]00 NVL": _HOPPER_NVL,
    r"NVIDIA H100 PCIe": _H100_PCIE,
    r"NVIDIA A100-(SXM4|PCIE)-[48]0GB|NVIDIA A100 80GB PCIe": _A100,
    r"NVIDIA B200": _B200,
    r"NVIDIA L4": _L4,
    r"NVIDIA L40S": _L40S,
    r"NVIDIA GeForce RTX 4090": _RTX_4090,
}


def stated_peak(gpu_name: str, precision_of_gemms: str) -> float | None:
    """Dense peak of matrix products (TFLOP/s) of the GPU that NVML calls `gpu_name`; None if we are not sure of it.

    `precision_of_gemms` is fp32, tf32, bf16, fp16 or fp8.
    """
    for name, peaks in _PEAKS.items():
        if re.fullmatch(name, gpu_name):
            return peaks.get(precision_of_gemms)
    return None
