"""Time of the casts and GELU's kernels by settings of launch.py: `python tests/gpu/fp8_sweep.py`.

The first setting of each group is what launch.py has, and what the results of all others have to equal. Each group is
printed with the best first: the time of its launches in a step of ViT-Huge, then each launch with its share of the
floor, as fp8_floors.py has them. Settings are compiled first, in as many processes as there are cores. A batch as the
first argument, 128 by default.
"""

from __future__ import annotations

import csv
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import torch
from fp8_floors import BLOCKS, Case, cases

from halfstep.fp8 import kernels, launch, operators

Setting = dict[str, Any]
"""values by the names of launch.py's constants"""


def varied(name: str, *changes: dict[str, int | None]) -> list[Setting]:
    return [{name: getattr(launch, name)._replace(**change)} for change in ({}, *changes)]


def gelu(block: int, warps: int, stages: int, programs: int) -> Setting:
    return {"GELU_BLOCK": block, "GELU_WARPS": warps, "GELU_STAGES": stages, "GELU_PROGRAMS": programs}


SETTINGS = {
    "cast": varied(
        "CAST",
        {"programs": 1056},
        {"programs": 4224},
        {"programs": 10**6},
        {"stages": 2},
        {"stages": 4},
        {"stages": 4, "programs": 4224},
        {"rows": 128, "warps": 8},
        {"rows": 128, "warps": 4, "registers": 255},
        {"rows": 32, "together": 4, "registers": 80},
        {"columns": 32, "rows": 128},
        {"registers": 168},
        {"columns": 128, "warps": 8, "stages": 4},
    ),
    "GELU backward": varied(
        "GELU_BACKWARD",
        {"programs": 528},
        {"programs": 2112},
        {"programs": 10**6},
        {"stages": 2},
        {"stages": 4},
        {"rows": 128, "columns": 32},
        {"rows": 32, "warps": 4},
        {"rows": 64, "warps": 4, "registers": 255},
        {"registers": 168},
        {"rows": 128, "columns": 64, "warps": 16},
        {"rows": 32, "columns": 128},
    ),
    "GELU": [
        gelu(launch.GELU_BLOCK, launch.GELU_WARPS, launch.GELU_STAGES, launch.GELU_PROGRAMS),
        gelu(4096, 4, 3, 1056),
        gelu(4096, 4, 3, 2112),
        gelu(4096, 4, 2, 2112),
        gelu(4096, 4, 4, 2112),
        gelu(2048, 4, 3, 4224),
        gelu(8192, 8, 3, 2112),
        gelu(8192, 8, 3, 1056),
    ],
}


def told(setting: Setting) -> str:
    """A setting as a person would write it in launch.py."""
    values = (value._asdict() if hasattr(value, "_asdict") else {name: value} for name, value in setting.items())
    return " ".join(f"{name.removeprefix('GELU_').lower()}={value}" for each in values for name, value in each.items())


def of_group(group: str, of: list[Case]) -> list[Case]:
    return [case for case in of if (case.name.startswith("cast") if group == "cast" else case.name == group)]


def apply(setting: Setting) -> None:
    for name, value in setting.items():
        setattr(launch, name, value)


def look_up_in_one_order() -> None:
    """Triton's key of a kernel in its cache hangs on which kernels it met before in the process."""
    for kernel in (kernels.fp8_cast_kernel, kernels.fp8_gelu_kernel, kernels.fp8_gelu_backward_kernel):
        assert kernel.cache_key


class Target:
    """All that Triton asks a driver before it launches: so a process that compiles takes nothing of the GPU."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_setting(group: str, setting: Setting, capability: int) -> str:
    """Into Triton's cache, where the process that measures finds it. Returns what went wrong, or nothing."""
    import triton

    def compile_only(kernel: Any, grid: Any) -> Callable[..., None]:
        return lambda *args, **options: kernel.run(*args, grid=grid, warmup=True, **options)

    triton.runtime.jit.JITFunction.__getitem__ = compile_only
    triton.runtime.driver.set_active(Target(capability))
    launch._need_triton = lambda tensor: None
    for name in ("cast", "gelu", "gelu_backward"):
        setattr(operators, name, getattr(launch, name))
    look_up_in_one_order()
    apply(setting)
    try:
        # of rows no more is compiled than that 16 divides them; the meta device has no memory
        for case in of_group(group, cases(4, "meta")):
            case.call()
    except Exception as error:  # whatever Triton, LLVM or ptxas make of a setting: the others are measured
        return f"{type(error).__name__}: {error}".strip().splitlines()[0]
    return ""


def compile_all(capability: int) -> dict[tuple[str, int], str]:
    """What went wrong, by group and number of the setting."""
    at = [(group, number) for group, settings in SETTINGS.items() for number in range(len(settings))]
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(compile_setting, group, SETTINGS[group][number], capability) for group, number in at]
        return {key: wrong for key, future in zip(at, futures, strict=True) if (wrong := future.result())}


def results(case: Case, amax: torch.Tensor) -> list[torch.Tensor]:
    found: Any = case.call()
    return [*found, amax.clone()]


def differs(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> str:
    """Sums, fp32 and more than one number, are added in another order; all else is equal to the bit."""
    for number, (one, other) in enumerate(zip(actual, expected, strict=True)):
        if one.dtype == torch.float32 and one.numel() > 1:
            equal = torch.allclose(one, other, rtol=1e-3, atol=1e-3 * float(other.abs().max()))
        else:
            equal = torch.equal(one.view(torch.uint8), other.view(torch.uint8))
        if not equal:
            return f"result {number} is not that of the first setting"
    return ""


def measure(
    of: list[Case], amax: torch.Tensor, wrong: dict[tuple[str, int], str], milliseconds: Callable[[Any], float]
) -> list[dict[str, Any]]:
    """A row for each setting: its times by case, or what went wrong."""
    rows = []
    for group, settings in SETTINGS.items():
        expected: dict[str, list[torch.Tensor]] = {}
        for number, setting in enumerate(settings):
            row: dict[str, Any] = {"group": group, "setting": told(setting), "ms": {}}
            row["wrong"] = wrong.get((group, number), "")
            apply(setting)
            for case in of_group(group, of):
                if row["wrong"]:
                    break
                try:
                    amax.zero_()
                    found = results(case, amax)
                    row["wrong"] = differs(found, expected.setdefault(case.name, found))
                    row["ms"][case.name] = milliseconds(case.call)
                except Exception as error:  # too much shared memory is seen as late as here
                    row["wrong"] = f"{type(error).__name__}: {error}".strip().splitlines()[0]
            rows.append(row)
        apply(settings[0])
    return rows


def show(rows: list[dict[str, Any]], of: list[Case], bandwidth: float) -> None:
    for group in SETTINGS:
        own = of_group(group, of)
        right = [row for row in rows if row["group"] == group and not row["wrong"]]
        for row in right:
            row["ms_a_step"] = sum(row["ms"][case.name] * case.per_block * BLOCKS for case in own)
        print(
            f"\n{group}: ms a step, and of " + ", ".join(case.name for case in own) + " the ms and share of the floor"
        )
        for row in sorted(right, key=lambda row: row["ms_a_step"]):
            shares = (f"{row['ms'][case.name]:.4f} {share(case, row['ms'][case.name], bandwidth):4.0%}" for case in own)
            print(f"{row['ms_a_step']:7.2f}  {'  '.join(shares)}  {row['setting']}")
        for row in rows:
            if row["group"] == group and row["wrong"]:
                print(f"      -  {row['setting']}: {row['wrong']}")


def share(case: Case, ms: float, bandwidth: float) -> float:
    """Of the floor."""
    return case.bytes / bandwidth * 1e3 / ms


def write(rows: list[dict[str, Any]], of: list[Case], bandwidth: float) -> None:
    """The lines of docs/fp8_sweep.csv, which puts the number of the sweep before each."""
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(["copy_tb_per_s", "kernel", "setting", "case", "ms", "share_of_floor"])
    by_name = {case.name: case for case in of}
    for row in rows:
        for name, ms in row["ms"].items():
            numbers = f"{ms:.4f}", f"{share(by_name[name], ms, bandwidth):.3f}"
            table.writerow([f"{bandwidth / 1e12:.3f}", row["group"], row["setting"], name, *numbers])


def main() -> None:
    from triton.testing import do_bench

    batch = int(sys.argv[1]) if len(sys.argv) > 1 else 128
    start = time.monotonic()
    look_up_in_one_order()
    major, minor = torch.cuda.get_device_capability()
    wrong = compile_all(10 * major + minor)
    compiled = time.monotonic()
    ends = torch.empty(2, 2**32, dtype=torch.uint8, device="cuda")
    bandwidth = ends.numel() / do_bench(lambda: ends[0].copy_(ends[1]), return_mode="median") * 1e3
    amax = torch.zeros(1, device="cuda")
    of = [case for case in cases(batch, "cuda", amax=amax) if not case.flops]
    rows = measure(of, amax, wrong, lambda call: do_bench(call, warmup=5, rep=30, return_mode="median"))
    print(f"{torch.cuda.get_device_name()}, batch {batch}; a copy moves {bandwidth / 1e12:.2f} TB/s")
    show(rows, of, bandwidth)
    print(f"\ncompiled in {compiled - start:.0f} s, measured in {time.monotonic() - compiled:.0f} s")
    write([row for row in rows if not row["wrong"]], of, bandwidth)


if __name__ == "__main__":
    main()
