import pynvml
import pytest

from halfstep.runs import Scope
from halfstep.scope import decide_scope
from halfstep.study import validate
from halfstep.system.gpu import GpuError

CPU, H200 = Scope("cpu", "smoke"), Scope("h200", "full")


def scope(**keys):
    study = {"comparisons": {"c": {"workload": "lm", "baseline": "a", "variants": {"a": {}}}}, **keys}
    return decide_scope(validate(study), image=False)


def nvml_says(monkeypatch, code):
    def refuse():
        raise pynvml.NVMLError(code)

    monkeypatch.setattr(pynvml, "nvmlInit", refuse)


def test_the_gpu_that_is_visible(install_driver, new_card, monkeypatch):
    install_driver(new_card())
    assert scope() == H200
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert scope() == CPU


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED])
def test_without_a_driver_it_is_the_cpu(monkeypatch, code):
    nvml_says(monkeypatch, code)
    assert scope() == CPU


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, pynvml.NVML_ERROR_UNKNOWN])
def test_a_driver_that_does_not_answer_is_no_reason_to_take_the_cpu(monkeypatch, code):
    nvml_says(monkeypatch, code)
    with pytest.raises(GpuError, match=r"^device is auto, and the .*`device: cpu` measures on the CPU all the same\.$"):
        scope()
    assert scope(device="cpu") == CPU
    assert scope(device="h200") == H200  # as a login node's profile says it
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert scope() == CPU
