"""What Triton and ptxas make of the kernels for a Hopper GPU: the calls of launch.py, compiled here without one."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from triton.backends import nvidia
from triton.backends.compiler import GPUTarget

from halfstep.fp8 import kernels, launch

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
ROWS, WIDTH, HIDDEN = 1024, 1280, 5120  # ViT-Huge's, but for the rows


class Hopper:
    """All that Triton asks a driver before it launches."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 1000  # under which Triton keeps what it compiled: no GPU of this machine gets it

    def get_current_stream(self, device: int) -> int:
        return 0


def calls() -> dict[str, Callable[[], object]]:
    x, scale, amax = torch.ones(ROWS, WIDTH), torch.ones(1), torch.zeros(1)
    half, wide = x.bfloat16(), torch.ones(ROWS, HIDDEN).bfloat16()
    row, column = torch.ones(WIDTH), torch.ones(ROWS)
    return {
        "cast of an activation": lambda: launch.cast([half], scale, amax, E4M3, False),
        "cast of a weight": lambda: launch.cast([x], scale, amax, E4M3, False),
        "cast of a gradient": lambda: launch.cast([x], scale, amax, E5M2, True),
        "cast of three gradients": lambda: launch.cast([half, half, half], scale, amax, E5M2, True),
        "transpose": lambda: launch.transpose(x.to(E4M3)),
        "norm": lambda: launch.norm(x, None, row, row, 1e-6, scale, amax, E4M3),
        "norm of a sum": lambda: launch.norm(x, half, row, row, 1e-6, scale, amax, E4M3),
        "norm of a sum in bf16": lambda: launch.norm(half, half, row, row, 1e-6, scale, amax, E4M3),
        "norm backward": lambda: launch.norm_backward(x, column, column, row, half, x),
        "norm backward in bf16": lambda: launch.norm_backward(half, column, column, row, half, half),
        "gelu": lambda: launch.gelu(wide, scale, amax, E4M3),
        "gelu backward": lambda: launch.gelu_backward(wide, wide, scale, amax, E5M2, scale, E4M3),
    }


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[Any]]:
    """From a call to the kernels it would launch, compiled."""
    made: list[Any] = []

    def compile_only(kernel: Any, grid: Any) -> Callable[..., None]:
        return lambda *args, **options: made.append(kernel.run(*args, grid=grid, warmup=True, **options))

    def by_name(name: str) -> list[Any]:
        made.clear()
        calls()[name]()
        return list(made)

    monkeypatch.setattr(triton.runtime.jit.JITFunction, "__getitem__", compile_only)
    monkeypatch.setattr(launch, "_need_triton", lambda tensor: None)
    monkeypatch.setattr(triton.runtime.driver, "_active", Hopper())
    return by_name


def usage(kernel: Any) -> dict[str, int]:
    """Registers of a thread, and the bytes of its stack, where what does not fit in registers goes."""
    tool = Path(nvidia.__file__).parent / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile() as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        told = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    return {key: int(value) for key, value in re.findall(r"\b(REG|STACK):(\d+)", told)}


def test_every_kernel_is_launched(compiled: Any) -> None:
    launched = {kernel.metadata.name for name in calls() for kernel in compiled(name)}
    assert launched == {name for name in vars(kernels) if name.endswith("_kernel")}


@pytest.mark.parametrize("name", calls())
def test_no_register_is_spilled_and_memory_is_read_and_written_in_large_pieces(compiled: Any, name: str) -> None:
    for kernel in compiled(name):
        used, threads = usage(kernel), 32 * kernel.metadata.num_warps
        assert used["STACK"] == 0
        # a multiprocessor's registers and shared memory, 228 KB with 1 a program for the system, are enough for two
        assert used["REG"] * threads <= 65536 // 2
        assert kernel.metadata.shared + 1024 <= 228 * 1024 // 2
        accesses = re.findall(r"\b(ld|st)\.global(?:\.\w+)*?((?:\.v\d)?\.[bsuf]\d+) ", kernel.asm["ptx"])
        # GELU stores 8 bytes by a thread, as many values as it reads by 16
        wide = [kind for kind, width in accesses if width in (".v4.b32", ".v2.b64", *[".v2.b32"] * (name == "gelu"))]
        # tiles and rows that are on their way to shared memory are read by copies
        assert set(wide) >= {"st"} if copies(kernel) else {"ld", "st"}
        assert not [access for access in accesses if re.fullmatch(r"\.[bsu](8|16)", access[1])]
        # 4 bytes by a thread, 128 by a warp: the norm's result, beside an input of 16 (see _columns), GELU's
        # gradient; and what is one number: scales, their reciprocals, a row's mean and deviation, sums of columns
        limit = {"norm": 20, "norm of a sum": 20, "norm of a sum in bf16": 20, "gelu backward": 8}.get(name, 6)
        assert sum(width == ".b32" for _, width in accesses) <= limit


def copies(kernel: Any) -> set[int]:
    """Bytes that a thread has copied to shared memory at once, without a wait."""
    return {int(size, 16) for size in re.findall(r"cp\.async\.\w+\.shared\.global .*?, (0x\w+),", kernel.asm["ptx"])}


@pytest.mark.parametrize("name", [name for name in calls() if name.startswith(("cast", "gelu"))])
def test_the_next_tile_is_on_its_way_while_one_is_in_work(compiled: Any, name: str) -> None:
    for kernel in compiled(name):
        # GELU's backward: 4 columns of bf16 to a thread, whose registers are not enough for 8
        assert copies(kernel) == {8 if name == "gelu backward" else 16}


@pytest.mark.parametrize("name", [name for name in calls() if name.startswith(("cast", "gelu backward"))])
def test_four_rows_of_a_column_change_threads_in_one_piece(compiled: Any, name: str) -> None:
    """A layout that changed before the cast would be read from shared memory value by value, and cast twice."""
    for kernel in compiled(name):
        tiling, results = (launch.GELU_BACKWARD, 2) if name == "gelu backward" else (launch.CAST, 1)
        values = tiling.rows * tiling.columns // (32 * tiling.warps)
        assert kernel.asm["ptx"].count("satfinite") == results * values // 2
        assert not re.search(r"(ld|st)\.shared\.b(8|16) ", kernel.asm["ptx"])


@pytest.mark.parametrize(("name", "format"), [("gelu", "e4m3x2"), ("cast of a gradient", "e5m2x2")])
def test_the_casts_are_the_hardwares(compiled: Any, name: str, format: str) -> None:
    assert f"cvt.rn.satfinite.{format}.f32" in compiled(name)[0].asm["ptx"]


@pytest.mark.parametrize("name", calls())
def test_no_byte_is_taken_from_a_pair_that_the_hardware_cast(compiled: Any, name: str) -> None:
    """ptxas takes such bytes from a register not yet written (see kernels.py): only whole fours leave a cast."""
    for kernel in compiled(name):
        casts = re.findall(r"cvt\.rn\.satfinite\.e\dm\dx2\.f32\s+(\S+),", kernel.asm["ptx"])
        assert set(casts) <= {"low", "high"}  # registers of the assembly's own, which are joined in it


def test_nothing_is_computed_in_fp64(compiled: Any) -> None:
    """A Python float that reached a kernel as fp64 would halve its speed (Liger-Kernel's issue 1350)."""
    assert not any(re.search(r"\.f64\b", kernel.asm["ptx"]) for name in calls() for kernel in compiled(name))


def test_noting_an_amax_waits_for_nothing(compiled: Any) -> None:
    """An atomic that also orders memory, Triton's default, waits for all writes and empties the L1 cache."""
    ptx = "".join(kernel.asm["ptx"] for name in calls() for kernel in compiled(name))
    assert "atom.global.gpu.relaxed.max.s32" in ptx
    assert "acq_rel" not in ptx
