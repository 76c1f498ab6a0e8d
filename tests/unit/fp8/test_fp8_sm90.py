"""What Triton and ptxas make of the kernels for a Hopper GPU, compiled here without one."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from triton.backends import nvidia
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from halfstep.fp8 import kernels, launch

E4M3, E5M2 = "*fp8e4nv", "*fp8e5"
TILE = {"BM": launch.BM, "BN": launch.BN}

# kernel: types of its arguments that are no pointers to fp32, constants, options
CASES: dict[str, tuple[str, dict[str, str], dict[str, Any], dict[str, int]]] = {
    "cast of an activation": (
        "fp8_cast_kernel",
        {"x": "*bf16", "plain": E4M3, "transposed": E4M3},
        {"x_column": 1, "LARGEST": 448.0, "SUMS": False, **TILE},
        {},
    ),
    "cast of a gradient": (
        "fp8_cast_kernel",
        {"plain": E5M2, "transposed": E5M2},
        {"x_column": 1, "LARGEST": 57344.0, "SUMS": True, **TILE},
        {},
    ),
    "transpose": ("fp8_transpose_kernel", {"x": "*u8", "transposed": "*u8"}, TILE, {}),
    "norm": (
        "fp8_layer_norm_kernel",
        {"added": "*bf16", "plain": E4M3},
        {"LARGEST": 448.0, "ADD": True, "R": launch.NORM_BLOCK // 2048, "W": 2048},
        {"num_warps": launch.NORM_WARPS},
    ),
    "norm backward": (
        "layer_norm_backward_kernel",
        {"grad": "*bf16"},
        {"ROWS": launch.NORM_ROWS, "W": 2048, "STAGES": launch.NORM_STAGES},
        {"num_warps": launch.norm_warps(2048)},
    ),
    "gelu": ("fp8_gelu_kernel", {"h": "*bf16", "plain": E4M3}, {"LARGEST": 448.0, "BLOCK": launch.GELU_BLOCK}, {}),
    "gelu backward": (
        "fp8_gelu_backward_kernel",
        {"grad": "*bf16", "h": "*bf16", "plain": E5M2, "transposed": E5M2, "out_transposed": E4M3},
        {"LARGEST": 57344.0, "LARGEST_OUT": 448.0, **TILE},
        {"maxnreg": launch.GELU_BACKWARD_REGISTERS},
    ),
}
SIZES = ("rows", "columns", "width", "size", "x_row", "plain_row")


def compiled(case: str) -> tuple[str, dict[str, int]]:
    """PTX, and the registers and bytes of stack of a thread."""
    name, types, constants, options = CASES[case]
    kernel = getattr(kernels, name)
    signature, attributes = {}, {}
    for place, argument in enumerate(kernel.arg_names):
        if argument in constants:
            signature[argument] = "constexpr"
            continue
        size = argument in SIZES
        special = {"epsilon": "fp32", "slot": "*i32"}
        signature[argument] = "i32" if size else types.get(argument, special.get(argument, "*fp32"))
        if argument != "epsilon":
            attributes[(place,)] = [["tt.divisibility", 16]]
    places = {(kernel.arg_names.index(argument),): value for argument, value in constants.items()}
    source = ASTSource(fn=kernel, signature=signature, constexprs=places, attrs=attributes)
    made = compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": launch.WARPS, **options})
    return made.asm["ptx"], usage(made.asm["cubin"])


def usage(cubin: bytes) -> dict[str, int]:
    tool = Path(nvidia.__file__).parent / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile() as file:
        file.write(cubin)
        file.flush()
        told = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    return {key: int(value) for key, value in re.findall(r"\b(REG|STACK):(\d+)", told)}


def test_every_kernel_has_a_case() -> None:
    named = {name for name in vars(kernels) if name.endswith("_kernel")}
    assert {name for name, *_ in CASES.values()} == named


@pytest.mark.parametrize("case", CASES)
def test_no_register_is_spilled_and_memory_is_read_and_written_in_large_pieces(case: str) -> None:
    ptx, used = compiled(case)
    assert used["STACK"] == 0
    assert used["REG"] <= 128  # so that a multiprocessor's 65536 are enough for two programs of 256 threads
    accesses = re.findall(r"\b(ld|st)\.global(?:\.\w+)*?((?:\.v\d)?\.[bsuf]\d+) ", ptx)
    wide = [kind for kind, width in accesses if width in (".v4.b32", ".v2.b64")]
    assert set(wide) == {"ld", "st"}
    assert not [access for access in accesses if re.fullmatch(r"\.[bsu](8|16)", access[1])]
    # 4 bytes by a thread: the norm's result, beside an input of 16 (_columns), and what is one number: scales, their
    # reciprocals, a row's mean and deviation, sums of columns
    assert sum(width == ".b32" for _, width in accesses) <= {"norm": 20}.get(case, 6)


def test_the_casts_are_the_hardwares() -> None:
    for case, wanted in (("cast of an activation", "e4m3x2"), ("cast of a gradient", "e5m2x2"), ("gelu", "e4m3x2")):
        assert f"cvt.rn.satfinite.{wanted}.f32" in compiled(case)[0]


def test_what_a_float_argument_is() -> None:
    """A Python float that reached a kernel as fp64 would halve its speed (Liger-Kernel's issue 1350)."""
    assert not any(re.search(r"\.f64\b", compiled(case)[0]) for case in CASES)
