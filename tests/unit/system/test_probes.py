"""Probes in a process of their own, and what becomes of those that crash, hang or talk."""

import contextlib
import json
import os
import subprocess
import sys

import psutil
import pytest
import torch

from halfstep.system import capabilities, probes
from halfstep.system.children import run_probe
from halfstep.system.doctor import prove

PRINTS = "import json, sys; print(json.dumps({'status': 'available', 'detail': sys.argv[1], 'remedy': None}))"


def python(code, *arguments, time_limit_s=60.0):
    return run_probe([sys.executable, "-c", code, *arguments], time_limit_s)


def test_the_last_line_is_the_outcome():
    found = python("print('x' * 3_000_000); print('{}');" + PRINTS, "done")
    assert found == {"status": "available", "detail": "done", "remedy": None}


def test_a_crash_is_broken_by_the_name_of_its_signal():
    found = python(PRINTS + "; sys.stdout.flush(); import ctypes; ctypes.string_at(0)", "done")
    assert (found["status"], found["detail"]) == ("broken", "died of SIGSEGV")


def test_a_hang_is_broken_and_nothing_of_it_stays(tmp_path):
    pids = tmp_path / "pids"
    hang = ["sh", "-c", f"sleep 1000 & echo $! $$ > {pids}; wait"]
    found = run_probe(hang, 2)
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
    assert python(PRINTS, told)["detail"] == "~/x /scratch/<user>/y ./z <venv>/lib"
    assert python("import os;" + PRINTS.replace("sys.argv[1]", "os.environ['TMPDIR']"))["detail"] == "<tmp>"


def test_without_a_compiler_there_is_no_torch_compile(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    found = prove("torch_compile")
    assert found["status"] == "missing"
    assert "InvalidCxxCompiler" in found["detail"]
    assert found["remedy"] == "install a C++ compiler: apt install g++"


def test_a_torch_that_does_not_load_is_broken(monkeypatch, tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.13: cannot open shared object file')\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    found = prove("bf16")
    assert found["status"] == "broken"
    assert found["detail"] == "ImportError: libcudart.so.13: cannot open shared object file"
    assert found["remedy"].startswith("see the whole error with `python -m halfstep.system.probes bf16`")


def test_an_unknown_probe():
    done = subprocess.run([sys.executable, "-m", "halfstep.system.probes", "fp4"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "usage" in done.stderr and "fp8_matmul" in done.stderr


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


def test_a_probe_says_what_is_missing(monkeypatch):
    assert probes.outcome(capabilities.tf32)["status"] == "missing"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 6))
    found = probes.outcome(capabilities.fp8_matmul)
    assert found["detail"] == "a GPU of compute capability 8.6 has no FP8 matrix units"
    assert found["remedy"] == "use a GPU of compute capability 8.9 or newer"


def test_wrong_numbers_are_broken(monkeypatch):
    monkeypatch.setattr(torch, "autocast", lambda *_: contextlib.nullcontext())
    assert "instead of torch.bfloat16" in probes.outcome(capabilities.bf16)["detail"]
    monkeypatch.undo()
    monkeypatch.setattr(capabilities, "_error", lambda *_: float("nan"))
    found = probes.outcome(capabilities.bf16)
    assert (found["status"], found["detail"]) == ("broken", "a matrix product has a relative error of nan")


def test_nvml_needs_power_and_energy(install_driver, new_card):
    assert probes.outcome(capabilities.nvml_queries)["status"] == "missing"
    card = new_card()
    driver = install_driver(card)
    assert probes.outcome(capabilities.nvml_queries)["status"] == "available"
    card.refused = {"nvmlDeviceGetTotalEnergyConsumption"}
    assert "refuses the question for energy" in probes.outcome(capabilities.nvml_queries)["detail"]
    driver.lost.set()
    assert probes.outcome(capabilities.nvml_queries)["status"] == "missing"
    assert driver.opened == 0


def test_facts_are_json():
    assert json.loads(json.dumps(probes.facts()))["torch"] == torch.__version__
