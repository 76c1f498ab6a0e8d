import json
import sys
from pathlib import Path

import pynvml
import pytest
import torch
from typer.testing import CliRunner

from halfstep import records
from halfstep.cli import app
from halfstep.errors import Unsupported
from halfstep.recipes.precision.fp16 import Fp16GradScaler
from halfstep.system import doctor
from halfstep.system.absence import why_no_cuda, why_no_gpu
from halfstep.system.capabilities import CAPABILITIES
from halfstep.system.doctor import examine, print_table
from halfstep.system.gpu import visible_gpu
from halfstep.system.probing import STATUSES

CUDA_13 = {"torch": "2.11.0+cu130", "cuda": "13.0", "problem": "RuntimeError: CUDA unknown error"}


def by_name(result):
    return {row["name"]: row for row in result["capabilities"]}


@pytest.fixture(scope="module")
def on_a_cpu():
    """The doctor's whole answer, with every GPU hidden."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        return examine()


def test_a_cpu_proves_what_it_can(on_a_cpu):
    rows = by_name(on_a_cpu)
    assert tuple(rows) == CAPABILITIES
    for name in ("bf16", "fp16", "torch_compile"):
        assert (rows[name]["status"], rows[name]["remedy"]) == ("available", None), rows[name]
    assert "C++ kernel" in rows["torch_compile"]["detail"]
    for name in ("tf32", "scaled_mm_tensorwise", "scaled_mm_rowwise", "cuda_graphs", "nvml"):
        assert rows[name]["status"] == "missing"
        assert "CUDA_VISIBLE_DEVICES='' hides them all" in rows[name]["detail"]
        assert "unset CUDA_VISIBLE_DEVICES" in rows[name]["remedy"]


@pytest.mark.parametrize(("gpu", "said"), [(None, True), ("NVIDIA H200", False)])
def test_what_a_cpu_can_and_no_study_does_there_is_said(on_a_cpu, monkeypatch, gpu, said):
    """fp16, whose recipe asks for a GPU: `available` would have a reader wait for its number."""
    answer = {**on_a_cpu, "machine": {**on_a_cpu["machine"], "gpu": gpu}}
    monkeypatch.setattr(doctor, "examine", lambda: answer)
    printed = CliRunner().invoke(app, ["doctor"])
    assert printed.exit_code == 0
    line = "This CPU can do it, but a study does it on a GPU only (`unsupported` here): fp16"
    assert (printed.stdout.splitlines()[-1] == line) == ("(`unsupported` here)" in printed.stdout) == said
    with pytest.raises(Unsupported, match="needs an NVIDIA GPU"):
        Fp16GradScaler(torch.device("cpu"), torch.float32)


def test_the_machine(on_a_cpu):
    machine = on_a_cpu["machine"]
    assert machine["gpu"] is None and machine["driver"] is None
    assert machine["torch"] and machine["cpu"] and machine["python"]
    assert machine["cores"] >= 1


def test_the_answer_is_the_same_again_and_tells_no_paths(on_a_cpu, tmp_path):
    records.write_json(tmp_path / "doctor.json", on_a_cpu)
    text = (tmp_path / "doctor.json").read_text()
    assert json.loads(text) == on_a_cpu
    assert str(Path.home()) not in text and str(Path.cwd()) not in text and "/tmp" not in text
    assert {"name": "bf16", **doctor.prove(["bf16"])["bf16"]} == by_name(on_a_cpu)["bf16"]


def test_the_table_is_plain_in_a_log(on_a_cpu, capsys):
    rows = [
        *on_a_cpu["capabilities"],
        {"name": "x", "status": "broken", "detail": "[red]tag[/x]", "remedy": "fix [it]"},
        *({"name": status, "status": status, "detail": "", "remedy": None} for status in STATUSES),
    ]
    print_table({"machine": on_a_cpu["machine"], "capabilities": rows})
    printed = capsys.readouterr().out
    assert all(name in printed for name in CAPABILITIES)
    assert "[red]tag[/x]" in printed and "fix [it]" in printed
    assert "\x1b" not in printed
    assert all(len(line) <= 160 for line in printed.splitlines())


def no_children(*_):
    raise AssertionError("a probe was started")


def test_without_torch_nothing_is_started(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(doctor, "run_probes", no_children)
    rows = by_name(examine())
    for name in CAPABILITIES:
        if name != "nvml":
            assert (rows[name]["status"], rows[name]["detail"]) == ("missing", "PyTorch is not installed")
            assert "make setup" in rows[name]["remedy"]
    assert "there is no NVIDIA driver" in rows["nvml"]["detail"]


def test_a_torch_that_does_not_load_breaks_all_but_nvml(monkeypatch, install_driver, new_card):
    install_driver(new_card())
    fail = {"status": "broken", "detail": "died of SIGSEGV", "remedy": None}
    fine = {"status": "available", "detail": "answers", "remedy": None}

    def run(command, names, _):
        return {name: dict(fine if name == "nvml" else fail) for name in names}

    monkeypatch.setattr(doctor, "run_probes", run)
    result = examine()
    rows = by_name(result)
    assert rows["nvml"]["status"] == "available"
    assert rows["cuda_graphs"]["detail"] == "PyTorch does not load: died of SIGSEGV"
    assert "python -m halfstep.system.probes facts" in rows["cuda_graphs"]["remedy"]
    assert (result["machine"]["gpu"], result["machine"]["device"]) == ("NVIDIA H200", "h200")


def answers(monkeypatch, facts):
    """Every probe succeeds, and torch says `facts` of itself."""
    started = []

    def run(command, names, _):
        started.extend(names)
        details = {name: facts if name == "facts" else "done" for name in names}
        return {name: {"status": "available", "detail": detail, "remedy": None} for name, detail in details.items()}

    monkeypatch.setattr(doctor, "run_probes", run)
    monkeypatch.setattr(doctor, "locate", lambda module: None)
    return started


def test_a_gpu_that_torch_cannot_use(monkeypatch, install_driver, new_card):
    install_driver(new_card())
    monkeypatch.setattr(pynvml, "nvmlSystemGetCudaDriverVersion_v2", lambda: 12040)
    started = answers(monkeypatch, CUDA_13)
    rows = by_name(examine())
    assert rows["tf32"]["detail"] == (
        "no CUDA GPU is visible: driver 580.159.04 serves CUDA 12.4 at most, and torch 2.11.0+cu130 needs CUDA 13.0"
    )
    assert rows["tf32"]["remedy"] == "install an NVIDIA driver of at least 580"
    assert sorted(started) == ["bf16", "facts", "fp16", "nvml", "torch_compile", "torchao_delayed"]


def test_a_gpu_that_torch_uses_and_nvml_does_not_know(monkeypatch):
    facts = {**CUDA_13, "problem": None, "gpu": "NVIDIA L4", "compute_capability": [8, 9], "memory_gib": 22.5}
    started = answers(monkeypatch, facts)
    result = examine()
    assert by_name(result)["scaled_mm_rowwise"]["status"] == "available"
    assert by_name(result)["nvml"]["status"] == "missing"
    assert set(started) == {"facts", *CAPABILITIES} - {"nvml"}
    machine = result["machine"]
    assert (machine["gpu"], machine["compute_capability"], machine["memory_gib"]) == ("NVIDIA L4", "8.9", 22.5)


def test_a_named_gpu_that_is_not_here(monkeypatch, install_driver, new_card):
    install_driver(new_card())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    answers(monkeypatch, CUDA_13)
    for name in ("cuda_graphs", "nvml"):
        row = by_name(examine())[name]
        assert row["detail"].endswith("CUDA_VISIBLE_DEVICES names GPU 3, and this machine has 1, from 0")
        assert "nvidia-smi -L" in row["remedy"]


@pytest.mark.parametrize(
    ("facts", "says", "do"),
    [
        ({"torch": "2.11.0+cpu"}, "torch 2.11.0+cpu is a build for the CPU", "make setup"),
        (CUDA_13, "NVML sees NVIDIA H200 and torch does not: RuntimeError: CUDA unknown error", "nvidia-uvm"),
    ],
)
def test_why_torch_has_no_gpu(install_driver, new_card, facts, says, do):
    install_driver(new_card())
    detail, remedy = why_no_cuda(visible_gpu(), facts, "make setup")
    assert detail == says
    assert do in remedy


@pytest.mark.parametrize(
    ("code", "says", "do"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "there is no NVIDIA driver", "--nv with Apptainer"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "is not loaded", "reboot"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "differ in version", "reboot"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "does not answer: Insufficient Permissions", "nvidia-smi"),
    ],
)
def test_why_nvml_has_no_gpu(monkeypatch, code, says, do):
    def refuse():
        raise pynvml.NVMLError(code)

    monkeypatch.setattr(pynvml, "nvmlInit", refuse)
    detail, remedy = why_no_gpu()
    assert says in detail
    assert do in remedy


def test_a_driver_without_a_gpu(install_driver):
    install_driver()
    assert why_no_gpu()[0] == "the NVIDIA driver lists no GPU"
