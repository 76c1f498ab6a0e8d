import os
import subprocess
import sys
import threading
from dataclasses import asdict, replace
from types import SimpleNamespace

import pynvml
import pytest

from halfstep import records
from halfstep.system import telemetry
from halfstep.system.gpu import visible_gpu
from halfstep.system.telemetry import POWER_CAP, Sampler, Telemetry

THERMAL = pynvml.nvmlClocksEventReasonSwThermalSlowdown
HOST_PID = 2**31 - 1  # no process here


@pytest.fixture
def card(new_card):
    return new_card(processes=[process(os.getpid(), 50)])


@pytest.fixture
def driver(install_driver, card, monkeypatch):
    monkeypatch.setattr(telemetry, "INTERVAL_S", 0)
    return install_driver(card)


def process(pid, gib):
    return SimpleNamespace(pid=pid, usedGpuMemory=None if gib is None else gib * 2**30)


def window(own_pid=None):
    with Sampler(visible_gpu(), os.getpid() if own_pid is None else own_pid) as sampler:
        sampler.start_window()
        return sampler.end_window()


def test_a_quiet_window(driver, card):
    seen = window()
    assert seen.samples >= 1 and seen.seconds > 0
    assert seen.energy_j == pytest.approx(5)
    assert seen.power_w_mean == pytest.approx(400)
    assert (seen.power_limit_w, seen.power_limit_default_w) == (pytest.approx(700), pytest.approx(700))
    assert (seen.sm_clock_mhz_mean, seen.temperature_c_max) == (1980, 61)
    assert (seen.power_capped_share, seen.slowdown_share, seen.others_memory_gib) == (0, 0, 0)
    assert seen.throttle_reasons == ()
    assert seen.disturbance() is None
    assert driver.opened == 0


def test_it_feeds_the_columns_of_the_summary():
    own = {"seconds", "samples", "energy_j", "power_limit_default_w", "throttle_reasons"}
    names = {field for field in Telemetry.__dataclass_fields__ if field not in own}
    assert names <= set(records.RESULT_COLUMNS)


def test_windows_follow_each_other(driver, card):
    with Sampler(visible_gpu(), os.getpid()) as sampler:
        for _ in range(2):
            sampler.start_window()
            assert sampler.end_window().energy_j == pytest.approx(5)
        with pytest.raises(RuntimeError, match="no window has been started"):
            sampler.end_window()
        sampler.start_window()
        with pytest.raises(RuntimeError, match="started already"):
            sampler.start_window()
    assert driver.opened == 0


def test_drawing_the_default_power_limit_is_no_disturbance(driver, card):
    card.reasons = POWER_CAP
    seen = window()
    assert (seen.power_capped_share, seen.slowdown_share) == (1, 0)
    assert seen.throttle_reasons == ("sw_power_cap",)
    assert seen.disturbance() is None


def test_a_lowered_power_limit(driver, card):
    card.limit_mw = 500_000
    assert window().disturbance() == "The power limit was 500 W, below the default of 700 W."


def test_a_slowdown_and_a_reason_without_a_name(driver, card):
    card.reasons = THERMAL | POWER_CAP | 0x8000
    seen = window()
    assert seen.throttle_reasons == ("0x8000", "sw_power_cap", "sw_thermal_slowdown")
    assert seen.disturbance() == "The GPU was slowed down in 100% of the samples (sw_thermal_slowdown)."


def test_another_process_on_the_gpu(driver, card):
    card.processes = [process(os.getpid(), 50), process(1, 3), process(HOST_PID, 0.5)]
    seen = window()
    assert seen.others_memory_gib == 3.5
    assert seen.disturbance() == "Other processes held 3.50 GiB of the GPU's memory."


def test_a_descendant_is_no_other(driver, card):
    # `cat` ends when its stdin does
    script = "import subprocess; child = subprocess.Popen(['cat']); print(child.pid, flush=True); child.wait()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        grandchild = int(child.stdout.readline())
        card.processes = [process(grandchild, 50)]
        assert window().others_memory_gib == 0
        card.processes.append(process(os.getppid(), 2))
        assert window(own_pid=child.pid).others_memory_gib == 2
        child.stdin.close()


@pytest.mark.parametrize(
    "processes",
    [
        [],  # a container that hides processes, ours among them
        [(HOST_PID, 50)],  # the host's number for ours, or another's: it cannot be told
        [(os.getpid(), 50), (1, None)],
    ],
)
def test_who_is_there_may_be_unknown(driver, card, processes):
    card.processes = [process(pid, gib) for pid, gib in processes]
    seen = window()
    assert seen.others_memory_gib is None
    assert seen.disturbance() is None


REFUSED = {
    "nvmlDeviceGetTotalEnergyConsumption": "energy_j",
    "nvmlDeviceGetPowerUsage": "power_w_mean",
    "nvmlDeviceGetEnforcedPowerLimit": "power_limit_w",
    "nvmlDeviceGetPowerManagementDefaultLimit": "power_limit_default_w",
    "nvmlDeviceGetClockInfo": "sm_clock_mhz_mean",
    "nvmlDeviceGetTemperature": "temperature_c_max",
    "nvmlDeviceGetComputeRunningProcesses_v3": "others_memory_gib",
}


@pytest.mark.parametrize(("question", "column"), REFUSED.items())
def test_one_refused_question_is_one_value_not_measured(driver, card, question, column):
    card.refused = {question}
    seen = asdict(window())
    assert [name for name, value in seen.items() if value is None] == [column]


def test_reasons_by_their_old_name_and_by_none(driver, card):
    card.reasons = THERMAL
    card.refused = {"nvmlDeviceGetCurrentClocksEventReasons"}
    assert window().slowdown_share == 1
    card.refused.add("nvmlDeviceGetCurrentClocksThrottleReasons")
    seen = window()
    assert (seen.slowdown_share, seen.power_capped_share, seen.throttle_reasons) == (None, None, ())
    assert seen.disturbance() is None


def test_a_driver_lost_in_the_window_keeps_what_was_seen_before(driver, card):
    driver.lose_after = 3
    with Sampler(visible_gpu(), os.getpid()) as sampler:
        sampler.start_window()
        assert driver.lost.wait(60)
        seen = sampler.end_window()
    assert seen.energy_j is None
    assert seen.power_w_mean == pytest.approx(400)
    assert seen.samples >= 4


def test_a_driver_lost_before_the_window(driver, card):
    gpu = visible_gpu()
    driver.lost.set()
    with Sampler(gpu, os.getpid()) as sampler:
        sampler.start_window()
        seen = sampler.end_window()
    known = {name for name, value in asdict(seen).items() if value not in (None, ())}
    assert known == {"seconds", "samples", "power_limit_default_w"}
    assert seen.disturbance() is None


def test_no_driver_at_all(driver, card, monkeypatch):
    gpu = visible_gpu()

    def refuse(*_):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)

    for name in ("nvmlInit", "nvmlShutdown", "nvmlDeviceGetHandleByUUID"):
        monkeypatch.setattr(pynvml, name, refuse)
    with Sampler(gpu, os.getpid()) as sampler:
        sampler.start_window()
        assert sampler.end_window().energy_j is None


@pytest.mark.parametrize("step_mj", [0, -5000])
def test_a_counter_that_stood_still_or_went_back_measured_nothing(driver, card, monkeypatch, step_mj):
    readings = iter([10_000, 10_000 + step_mj])
    monkeypatch.setattr(pynvml, "nvmlDeviceGetTotalEnergyConsumption", lambda card: next(readings))
    assert window().energy_j is None


def test_shares_and_means_are_over_the_samples_that_answered(driver):
    quiet = telemetry._Sample(300, 700, 1000, 50, 0, 0)
    samples = [
        quiet,
        replace(quiet, power_w=500, limit_w=650, sm_clock_mhz=2000, temperature_c=70, reasons=THERMAL, others_gib=2),
        replace(quiet, reasons=POWER_CAP, others_gib=None),
        replace(quiet, power_w=None, sm_clock_mhz=None, reasons=None),
    ]
    seen = telemetry._summarise(telemetry._Window(samples=samples, start_s=1, end_s=3), visible_gpu())
    assert (seen.seconds, seen.samples) == (2, 4)
    assert seen.power_w_mean == pytest.approx(1100 / 3)
    assert seen.sm_clock_mhz_mean == pytest.approx(4000 / 3)
    assert (seen.power_limit_w, seen.temperature_c_max, seen.others_memory_gib) == (650, 70, 2)
    assert (seen.slowdown_share, seen.power_capped_share) == (pytest.approx(1 / 3), pytest.approx(1 / 3))
    assert seen.disturbance() == (
        "Other processes held 2.00 GiB of the GPU's memory; the GPU was slowed down in 33% of the samples "
        "(sw_thermal_slowdown); the power limit was 650 W, below the default of 700 W."
    )


def test_a_driver_that_hangs_holds_nothing_up_for_long(driver, card, monkeypatch):
    release = threading.Event()
    monkeypatch.setattr(telemetry, "PATIENCE_S", 0.05)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetTotalEnergyConsumption", lambda card: release.wait(60))
    seen = window()
    release.set()
    assert (seen.energy_j, seen.samples) == (None, 0)
