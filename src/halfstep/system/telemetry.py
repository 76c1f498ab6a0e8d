"""What the GPU did while a run was timed: power, clocks, temperature, slowdowns, and who else was there.

It runs beside the measuring process, in its supervisor, so that it takes nothing from the timed steps.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import psutil
import pynvml

from halfstep.system.gpu import GIB, Gpu, ask, scaled

INTERVAL_S = 0.2
PATIENCE_S = 5.0  # for a driver that no longer returns from a call

# what NVML puts into an unsigned field that it cannot fill (nvml.h, NVML_VALUE_NOT_AVAILABLE)
NOT_AVAILABLE = (2**32 - 1, 2**64 - 1)

POWER_CAP = pynvml.nvmlClocksEventReasonSwPowerCap
# The bits of NVML's "clocks event reasons" (nvml.h), which older drivers call throttle reasons.
REASONS: dict[int, str] = {
    pynvml.nvmlClocksEventReasonGpuIdle: "idle",
    pynvml.nvmlClocksEventReasonApplicationsClocksSetting: "applications_clocks",
    POWER_CAP: "sw_power_cap",
    pynvml.nvmlClocksEventReasonHwSlowdown: "hw_slowdown",
    pynvml.nvmlClocksEventReasonSyncBoost: "sync_boost",
    pynvml.nvmlClocksEventReasonSwThermalSlowdown: "sw_thermal_slowdown",
    pynvml.nvmlClocksEventReasonHwThermalSlowdown: "hw_thermal_slowdown",
    pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown: "hw_power_brake",
    pynvml.nvmlClocksEventReasonDisplayClockSetting: "display_clocks",
}
# Drawing the power limit (sw_power_cap) is how a GPU runs a big matrix product, so it is none of these.
SLOWDOWNS = (
    pynvml.nvmlClocksEventReasonHwSlowdown
    | pynvml.nvmlClocksEventReasonSwThermalSlowdown
    | pynvml.nvmlClocksEventReasonHwThermalSlowdown
    | pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown
)


@dataclass(frozen=True)
class Telemetry:
    """One window. None is "not measured": NVML refused, or the driver was lost."""

    seconds: float
    samples: int
    energy_j: float | None  # the board's counter at the end minus at the start
    power_w_mean: float | None  # NVML's reading is itself an average over up to a second on recent GPUs
    power_limit_w: float | None  # the lowest that was enforced
    power_limit_default_w: float | None
    sm_clock_mhz_mean: float | None
    temperature_c_max: float | None
    power_capped_share: float | None  # of the samples
    slowdown_share: float | None  # of the samples
    others_memory_gib: float | None  # the most that other processes held
    throttle_reasons: tuple[str, ...]  # seen in any sample, sorted

    def disturbance(self) -> str | None:
        """Why the window's times are not the machine's own, in a sentence; None if nothing is known against them."""
        found = []
        if self.others_memory_gib:
            found.append(f"other processes held {self.others_memory_gib:.2f} GiB of the GPU's memory")
        if self.slowdown_share:
            names = {name for bit, name in REASONS.items() if bit & SLOWDOWNS}
            seen = ", ".join(name for name in self.throttle_reasons if name in names)
            found.append(f"the GPU was slowed down in {self.slowdown_share:.0%} of the samples ({seen})")
        limit, default = self.power_limit_w, self.power_limit_default_w
        if limit is not None and default is not None and limit < default - 1:  # NVML may round by less than a watt
            found.append(f"the power limit was {limit:.0f} W, below the default of {default:.0f} W")
        if not found:
            return None
        sentence = "; ".join(found)
        return f"{sentence[0].upper()}{sentence[1:]}."


@dataclass(frozen=True)
class _Sample:
    power_w: float | None
    limit_w: float | None
    sm_clock_mhz: float | None
    temperature_c: float | None
    reasons: int | None
    others_gib: float | None


@dataclass
class _Window:
    """What the thread writes: a window of its own, so that a thread stuck in the driver cannot touch the next one."""

    stop: threading.Event = field(default_factory=threading.Event)
    begun: threading.Event = field(default_factory=threading.Event)
    samples: list[_Sample] = field(default_factory=list)
    energy_start_mj: int | None = None
    energy_end_mj: int | None = None
    start_s: float = field(default_factory=time.perf_counter)
    end_s: float | None = None


class Sampler:
    """Samples one GPU in a daemon thread, from `start_window` to `end_window`, as often as needed until `close`.

    No NVML error leaves it, and a driver that hangs holds it up for `PATIENCE_S` at each end of a window.
    """

    def __init__(self, gpu: Gpu, own_pid: int) -> None:
        """`own_pid`: the process whose memory, and whose descendants' memory, is not another's."""
        self._gpu = gpu
        self._own_pid = own_pid
        self._window: _Window | None = None
        self._thread: threading.Thread | None = None
        ask(pynvml.nvmlInit)
        self._handle = ask(pynvml.nvmlDeviceGetHandleByUUID, gpu.uuid)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End an open window, if there is one, and let go of NVML."""
        if self._window is not None:
            self.end_window()
        ask(pynvml.nvmlShutdown)

    def start_window(self) -> None:
        """Begin a window. Returns once the energy counter has been read.

        Raises:
            RuntimeError: a window is open.
        """
        if self._window is not None:
            raise RuntimeError("the window has been started already")
        self._window = _Window()
        self._thread = threading.Thread(target=self._watch, args=(self._window,), name="telemetry", daemon=True)
        self._thread.start()
        self._window.begun.wait(PATIENCE_S)

    def end_window(self) -> Telemetry:
        """End the window and say what was seen in it.

        Raises:
            RuntimeError: no window is open.
        """
        if self._window is None or self._thread is None:
            raise RuntimeError("no window has been started")
        window = self._window
        window.stop.set()
        self._thread.join(PATIENCE_S)
        self._window = self._thread = None
        return _summarise(window, self._gpu)

    def _watch(self, window: _Window) -> None:
        window.energy_start_mj = self._ask(pynvml.nvmlDeviceGetTotalEnergyConsumption)
        window.start_s = time.perf_counter()
        window.begun.set()
        while True:
            window.samples.append(self._sample())
            if window.stop.wait(INTERVAL_S):
                break
        window.energy_end_mj = self._ask(pynvml.nvmlDeviceGetTotalEnergyConsumption)
        window.end_s = time.perf_counter()

    def _ask(self, query: Any, *arguments: Any) -> Any:
        answer = None if self._handle is None else ask(query, self._handle, *arguments)
        return None if answer in NOT_AVAILABLE else answer

    def _sample(self) -> _Sample:
        reasons = self._ask(pynvml.nvmlDeviceGetCurrentClocksEventReasons)
        if reasons is None:  # drivers before 535 know it by its old name only
            reasons = self._ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons)
        return _Sample(
            power_w=scaled(self._ask(pynvml.nvmlDeviceGetPowerUsage), 1e-3),
            limit_w=scaled(self._ask(pynvml.nvmlDeviceGetEnforcedPowerLimit), 1e-3),
            sm_clock_mhz=self._ask(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM),
            temperature_c=self._ask(pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU),
            reasons=reasons,
            others_gib=_others_gib(self._ask(pynvml.nvmlDeviceGetComputeRunningProcesses_v3), self._own_pid),
        )


def _others_gib(processes: list[Any] | None, own_pid: int) -> float | None:
    """Memory that processes with a compute context hold, but for own_pid and its descendants (GiB).

    In a window our own process holds a context, so a list without it cannot be trusted: in a container with
    a PID namespace NVML may hide processes, or give the host's numbers for them, ours among them. Then it is
    not known who the others are, and the answer is None. A display server has no compute context: it is
    there all the time on a workstation, and does not count.
    """
    if processes is None:
        return None
    others = [process for process in processes if not _descends(process.pid, own_pid)]
    if len(others) == len(processes) or any(process.usedGpuMemory is None for process in others):
        return None
    return sum(process.usedGpuMemory for process in others) / GIB


def _descends(pid: int, ancestor: int) -> bool:
    if pid == ancestor:
        return True
    try:
        return any(parent.pid == ancestor for parent in psutil.Process(pid).parents())
    except (psutil.Error, OSError, ValueError):
        return False


def _summarise(window: _Window, gpu: Gpu) -> Telemetry:
    samples = list(window.samples)  # a stuck thread may still add one
    reasons = [sample.reasons for sample in samples if sample.reasons is not None]
    seen = 0
    for bits in reasons:
        seen |= bits
    names = {name for bit, name in REASONS.items() if bit & seen}
    unnamed = seen & ~sum(REASONS)
    energy_mj = None
    if window.energy_start_mj is not None and window.energy_end_mj is not None:
        energy_mj = window.energy_end_mj - window.energy_start_mj
    return Telemetry(
        seconds=(window.end_s or time.perf_counter()) - window.start_s,
        samples=len(samples),
        # a counter that stood still, or was set back by a reloaded driver, measured nothing
        energy_j=energy_mj / 1000 if energy_mj is not None and energy_mj > 0 else None,
        power_w_mean=_mean(sample.power_w for sample in samples),
        power_limit_w=min(_known(sample.limit_w for sample in samples), default=None),
        power_limit_default_w=gpu.power_limit_default_w,
        sm_clock_mhz_mean=_mean(sample.sm_clock_mhz for sample in samples),
        temperature_c_max=max(_known(sample.temperature_c for sample in samples), default=None),
        power_capped_share=_mean(bool(bits & POWER_CAP) for bits in reasons),
        slowdown_share=_mean(bool(bits & SLOWDOWNS) for bits in reasons),
        others_memory_gib=max(_known(sample.others_gib for sample in samples), default=None),
        throttle_reasons=tuple(sorted(names | ({hex(unnamed)} if unnamed else set()))),
    )


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _mean(values: Iterable[float | None]) -> float | None:
    known = _known(values)
    return math.fsum(known) / len(known) if known else None
