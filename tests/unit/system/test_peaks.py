import pytest

from halfstep.system.peaks import stated_peak


@pytest.mark.parametrize(
    ("name", "precision", "peak"),
    [
        ("NVIDIA H200", "bf16", 989.5),
        ("NVIDIA H200", "fp8", 1979),
        ("NVIDIA H100 80GB HBM3", "tf32", 494.5),
        ("NVIDIA H100 PCIe", "bf16", 756.5),
        ("NVIDIA H200 NVL", "fp16", 835.5),
        ("NVIDIA A100-SXM4-80GB", "tf32", 156),
        ("NVIDIA A100 80GB PCIe", "bf16", 312),
        ("NVIDIA L4", "fp8", 242.5),
        ("NVIDIA L40S", "fp32", 91.6),
        ("NVIDIA GeForce RTX 4090", "fp16", 165.2),
    ],
)
def test_dense_peaks(name, precision, peak):
    assert stated_peak(name, precision) == peak


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("NVIDIA A100-SXM4-40GB", "fp8"),  # has no such unit
        ("NVIDIA H200 MIG 1g.18gb", "bf16"),  # a part of one
        ("NVIDIA A100-SXM-64GB", "bf16"),  # another chip
        ("NVIDIA B200", "fp32"),  # not sure of it
        ("NVIDIA T1000", "fp32"),
        ("NVIDIA H200", "int8"),
        ("AMD EPYC", "fp32"),
    ],
)
def test_no_peak_where_none_is_known(name, precision):
    assert stated_peak(name, precision) is None
