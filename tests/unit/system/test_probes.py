"""Probes in a process of their own, and what becomes of those that crash, hang or talk."""

import contextlib
import json
import os
import subprocess
import sys

import psutil
import pytest
import torch

from halfstep.system import capabilities_torch, checks, probes
from halfstep.system.capabilities import PROBES
from halfstep.system.children import run_probes
from halfstep.system.doctor import prove

PRINTS = """
import json, sys
def tell(name, detail="done", status="available"):
    print(json.dumps({"name": name, "status": status, "detail": detail, "remedy": None}), flush=True)
"""


def several(code, *names, time_limit_s=60.0):
    return run_probes([sys.executable, "-c", PRINTS + code], names, time_limit_s)


def python(code):
    return several(code, "x")["x"]


def test_a_line_of_json_is_the_outcome_whatever_else_is_printed():
    found = python("print('y' * 3_000_000); print('{}'); tell('x'); print('[1]', 5)")
    assert found == {"status": "available", "detail": "done", "remedy": None}


def test_one_that_crashes_takes_none_of_the_others_along():
    crash = """
import ctypes
for name in sys.argv[1:]:
    ctypes.string_at(0) if name == "b" else tell(name, str(len(sys.argv)))
"""
    found = several(crash, "a", "b", "c", "d")
    assert {name: row["detail"] for name, row in found.items()} == {
        "a": "5",
        "b": "died of SIGSEGV",
        "c": "3",
        "d": "3",
    }


def test_one_that_hangs_takes_none_of_the_others_along():
    hang = "import time\nfor name in sys.argv[1:]: time.sleep(1000) if name == 'b' else tell(name)"
    found = several(hang, "a", "b", "c", time_limit_s=2)
    assert [found[name]["status"] for name in "abc"] == ["available", "broken", "available"]


def test_after_a_broken_one_the_others_get_a_new_process_even_if_the_old_one_dies_of_it():
    spoilt = """
import os
for name in sys.argv[1:]:
    tell(name, str(len(sys.argv)), "broken" if name == "b" else "available")
    if name == "b":
        os.abort()
"""
    found = several(spoilt, "a", "b", "c")
    assert [(found[name]["status"], found[name]["detail"]) for name in "abc"] == [
        ("available", "4"),
        ("broken", "4"),
        ("available", "2"),
    ]


def test_a_crash_is_broken_by_the_name_of_its_signal():
    found = python("tell('x'); import ctypes; ctypes.string_at(0)")
    assert (found["status"], found["detail"]) == ("broken", "died of SIGSEGV")


def test_a_hang_is_broken_and_nothing_of_it_stays(tmp_path):
    pids = tmp_path / "pids"
    hang = ["sh", "-c", f"sleep 1000 & echo $! $$ > {pids}; wait"]
    found = run_probes(hang, ["x"], 2)["x"]
    assert (found["status"], found["detail"]) == ("broken", "did not end within 2 s, and was killed")
    started = [int(pid) for pid in pids.read_text().split()]
    assert len(started) == 2
    processes = [psutil.Process(pid) for pid in started if psutil.pid_exists(pid)]
    _, alive = psutil.wait_procs(processes, timeout=20)  # SIGKILL is sent, and takes a moment
    assert all(process.status() == psutil.STATUS_ZOMBIE for process in alive)


@pytest.mark.parametrize("code", ["", "print('hello')", "print('[]')", "print('{\"status\": 1}')"])
def test_no_outcome_is_broken(code):
    assert python(code)["detail"] == "exit code 0, no outcome"


def test_an_error_outside_the_probe_is_told():
    found = python("raise SystemExit('something is wrong')")
    assert (found["status"], found["detail"]) == ("broken", "exit code 1, no outcome: something is wrong")


def test_no_path_of_the_user_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setattr(sys, "prefix", "/opt/venv")
    monkeypatch.chdir(tmp_path)
    told = f"/home/ada/x /scratch/ada/y {tmp_path}/z /opt/venv/lib"
    assert python(f"tell('x', {told!r})")["detail"] == "~/x /scratch/<user>/y ./z <venv>/lib"
    assert python("import os; tell('x', os.environ['TMPDIR'])")["detail"] == "<tmp>"


def test_the_folder_of_legacy_amp_reaches_a_probe_and_a_switch_does_not(monkeypatch):
    monkeypatch.setenv("HALFSTEP_APEX_AMP", "/legacy")
    monkeypatch.setenv("NVTE_FLASH_ATTN", "0")
    sees = "import os; tell('x', str([os.environ.get(name) for name in ('HALFSTEP_APEX_AMP', 'NVTE_FLASH_ATTN')]))"
    assert python(sees)["detail"] == "['/legacy', None]"


def test_without_a_compiler_there_is_no_torch_compile(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    found = prove(["torch_compile"])["torch_compile"]
    assert found["status"] == "missing"
    assert "InvalidCxxCompiler" in found["detail"]
    assert found["remedy"] == "install a C++ compiler: apt install g++"


def test_a_torch_that_does_not_load_is_broken(monkeypatch, tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.13: cannot open shared object file')\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    found = prove(["bf16"])["bf16"]
    assert found["status"] == "broken"
    assert found["detail"] == "ImportError: libcudart.so.13: cannot open shared object file"
    assert found["remedy"].startswith("see the whole error with `python -m halfstep.system.probes bf16`")


def test_an_unknown_probe():
    done = subprocess.run([sys.executable, "-m", "halfstep.system.probes", "fp4"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "usage" in done.stderr and "scaled_mm_rowwise" in done.stderr


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [
        (RuntimeError("Failed to find C compiler. Please specify"), "missing", "apt install g++"),
        (RuntimeError("g++ -o x\nx.cpp:2: fatal error: Python.h: No such file\n1 error"), "missing", "python3-dev"),
        (ModuleNotFoundError("No module named 'setuptools'"), "missing", "make setup"),
        (RuntimeError("CUDA error: unknown"), "broken", None),
    ],
)
def test_what_an_exception_means(error, status, says):
    def probe():
        raise error

    found = probes.outcome(probe)
    assert found["status"] == status
    assert says is None or says in found["remedy"]
    if "Python.h" in str(error):
        assert found["detail"] == "RuntimeError: x.cpp:2: fatal error: Python.h: No such file"


def outcome(name):
    return probes.outcome(lambda: probes.run(PROBES[name]))


@pytest.mark.parametrize("name", ["tf32", "scaled_mm_rowwise", "cuda_graphs"])
def test_without_a_gpu_it_is_missing(monkeypatch, name):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert (outcome(name)["status"], outcome(name)["detail"]) == ("missing", "no CUDA GPU is visible")


@pytest.mark.parametrize(
    ("name", "has", "lacks", "needs"),
    [
        ("bf16", (7, 5), "bf16 and TF32 matrix units", "8.0"),
        ("tf32", (7, 5), "bf16 and TF32 matrix units", "8.0"),
        ("scaled_mm_tensorwise", (8, 6), "FP8 matrix units", "8.9"),
        ("scaled_mm_rowwise", (8, 6), "FP8 matrix units", "8.9"),
    ],
)
def test_a_gpu_that_is_too_old(gpu_of, name, has, lacks, needs):
    gpu_of(*has)
    found = outcome(name)
    assert found["status"] == "too old"
    assert found["detail"] == f"a GPU of compute capability {has[0]}.{has[1]} has no {lacks}"
    assert found["remedy"] == f"use a GPU of compute capability {needs} or newer"


def test_wrong_numbers_are_broken(monkeypatch):
    monkeypatch.setattr(torch, "autocast", lambda *_: contextlib.nullcontext())
    assert "instead of torch.bfloat16" in probes.outcome(capabilities_torch.bf16)["detail"]
    monkeypatch.undo()
    monkeypatch.setattr(checks, "relative_error", lambda *_: float("nan"))
    found = probes.outcome(capabilities_torch.bf16)
    assert (found["status"], found["detail"]) == ("broken", "a matrix product has a relative error of nan")


def test_nvml_needs_power_and_energy(install_driver, new_card):
    assert probes.outcome(capabilities_torch.nvml_queries)["status"] == "missing"
    card = new_card()
    driver = install_driver(card)
    assert probes.outcome(capabilities_torch.nvml_queries)["status"] == "available"
    card.refused = {"nvmlDeviceGetTotalEnergyConsumption"}
    assert "refuses the question for energy" in probes.outcome(capabilities_torch.nvml_queries)["detail"]
    driver.lost.set()
    assert probes.outcome(capabilities_torch.nvml_queries)["status"] == "missing"
    assert driver.opened == 0


def test_facts_are_json():
    assert json.loads(json.dumps(probes.facts()))["torch"] == torch.__version__
