"""Each way in which an optional library is not there, planted and told apart."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import subprocess
import sys

import pytest
import torch

from halfstep.system import doctor, probes
from halfstep.system.capabilities import PROBES
from halfstep.system.libraries import LIBRARIES, LibraryError, load, load_apex_amp, locate

# what PyPI's package of that name holds
WEB_TOOLKIT = {
    "apex/__init__.py": "from pyramid.security import NO_PERMISSION_REQUIRED\n",
    "apex/models.py": "",
    "apex/views.py": "",
    "apex/lib/__init__.py": "",
}
PYTHON_ONLY = {
    "apex/__init__.py": "import torch\nfrom . import normalization, optimizers\n",
    "apex/normalization/__init__.py": "",
    "apex/optimizers/__init__.py": "",
}
WITH_AMP = {**PYTHON_ONLY, "apex/amp/__init__.py": "from apex.optimizers import __file__ as beside\n"}
CLASH = "transformer-engine v2.20.2, and transformer-engine-cu13 v2.19.0"
APEX_CAPABILITIES = [name for name in PROBES if name.startswith("apex_")]


def raises(error: str) -> dict[str, str]:
    return {"amp_C.py": f"raise {error}\n"}


def te(error: str) -> dict[str, str]:
    """Like the real one, it hides from its own import why its part for PyTorch does not load."""
    hiding = "try:\n    from . import pytorch\nexcept ImportError:\n    pass\n"
    return {"transformer_engine/__init__.py": hiding, "transformer_engine/pytorch/__init__.py": f"raise {error}\n"}


@pytest.fixture
def plant(tmp_path, monkeypatch):
    """plant(files) puts packages first on the path, of this process and its children; no other library is there."""
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in LIBRARIES}
    for name in before:
        del sys.modules[name]
    path = list(sys.path)
    monkeypatch.delenv("HALFSTEP_APEX_AMP", raising=False)

    def put(files, folder="site", first=True):
        for name, text in files.items():
            file = tmp_path / folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        if first:
            sys.path.insert(0, str(tmp_path / folder))
        importlib.invalidate_caches()
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        planted = {name.split("/")[0].partition(".")[0] for name in files}
        for library in set(LIBRARIES) - planted:
            sys.modules[library] = None  # not to be found, as if it were not installed
        return tmp_path / folder

    yield put
    sys.path[:] = path
    for name in [name for name in sys.modules if name.partition(".")[0] in LIBRARIES]:
        del sys.modules[name]
    sys.modules.update(before)


def outcome(name):
    found = probes.outcome(lambda: probes.run(PROBES[name]))
    return found["status"], found["detail"], found["remedy"]


def why_not(module):
    with pytest.raises(LibraryError) as found:
        load(module)
    assert str(found.value) == f"{found.value.detail}; {found.value.remedy}"
    return found.value.status, found.value.detail, found.value.remedy


@pytest.mark.parametrize(
    ("module", "name", "remedy"),
    [
        ("amp_C", "NVIDIA Apex", "APEX_CUDA_EXT=1"),
        ("apex.optimizers", "NVIDIA Apex", "APEX_CUDA_EXT=1"),
        ("transformer_engine.pytorch", "Transformer Engine", "pip install"),
        ("torchao.float8", "torchao", "make setup"),
        ("liger_kernel.transformers", "Liger", "make setup"),
    ],
)
def test_missing(plant, module, name, remedy):
    plant({})
    status, detail, do = why_not(module)
    assert (status, detail) == ("missing", f"{name} is not installed")
    assert remedy in do


def test_what_is_there_is_loaded(plant):
    plant({**PYTHON_ONLY, "amp_C.py": "here = 1\n"})
    assert load("amp_C").here == 1
    assert load("apex.optimizers").__name__ == "apex.optimizers"
    locate("apex.normalization")


@pytest.mark.parametrize("module", ["amp_C", "apex.optimizers", "apex.normalization", "apex.amp"])
def test_the_unrelated_package_called_apex(plant, module):
    plant(WEB_TOOLKIT)
    status, detail, remedy = why_not(module)
    assert status == "unrelated"
    assert "a package called `apex` is found, and it is not NVIDIA's" in detail and "web toolkit" in detail
    assert remedy.startswith("pip uninstall apex")


def test_a_folder_that_is_called_apex(plant):
    plant({"apex/setup.py": "", "apex/apex/__init__.py": ""})
    status, detail, _ = why_not("amp_C")
    assert status == "unrelated" and detail.startswith("a folder called `apex` is found")


@pytest.mark.parametrize("module", ["amp_C", "fused_layer_norm_cuda"])
def test_apex_without_its_kernels(plant, module):
    plant(PYTHON_ONLY)
    assert load("apex.optimizers").__name__ == "apex.optimizers"
    status, detail, remedy = why_not(module)
    assert (status, detail) == ("python-only", f"NVIDIA Apex is installed without its kernels: no {module}")
    assert "APEX_CPP_EXT=1 APEX_CUDA_EXT=1" in remedy


@pytest.mark.skipif(shutil.which("gcc") is None, reason="compiles an extension")
def test_an_extension_of_another_torch(plant, gpu_of):
    """A real one, which asks the dynamic linker for what no library has."""
    site = plant(
        {"amp_C.c": "extern void _ZN3c104GoneEv(void); void *PyInit_amp_C(void) { _ZN3c104GoneEv(); return 0; }\n"}
    )
    built = [shutil.which("gcc"), "-shared", "-fPIC", "-Wl,-z,now", "-o", str(site / "amp_C.so"), str(site / "amp_C.c")]
    subprocess.run(built, check=True)
    gpu_of(9, 0)
    status, detail, remedy = outcome("apex_fused_adam")
    assert status == "broken"
    assert detail == "amp_C does not load: undefined symbol _ZN3c104GoneEv, so it was built for another torch"
    assert remedy.startswith(f"for the installed torch {torch.__version__}, build NVIDIA Apex from source")


@pytest.mark.parametrize(
    ("error", "status", "detail"),
    [
        ("ImportError('/x/amp_C.so: undefined symbol: cublasGone')", "broken", "other versions of the libraries under"),
        ("ImportError('/x.so: undefined symbol: _ZNK2at10TensorBase4GoneEv')", "broken", "built for another torch"),
        ("ImportError('libc10.so: cannot open shared object file')", "broken", "ImportError: libc10.so: cannot open"),
        ("ImportError('libcuda.so.1: cannot open shared object file')", "missing", "the NVIDIA driver's libcuda.so.1"),
        ("ModuleNotFoundError('No module named x', name='x.y')", "missing", "needs the module x.y"),
        ("ImportError(\"cannot import name 'gone' from 'torch.amp'\")", "broken", "asks torch for gone, which torch"),
        ("AttributeError(\"module 'torch._C' has no attribute '_gone'\")", "broken", "asks torch for _gone, which"),
        ("ValueError()", "broken", "amp_C does not load: ValueError"),
    ],
)
def test_what_an_exception_from_an_import_means(plant, error, status, detail):
    plant(raises(error))
    found = why_not("amp_C")
    assert found[0] == status and detail in found[1]


def test_built_for_another_cuda(plant, monkeypatch):
    plant(raises("ImportError('libcudart.so.12: cannot open shared object file: No such file')"))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    status, detail, _ = why_not("amp_C")
    assert status == "broken"
    assert detail == f"amp_C does not load: built for CUDA 12, and torch {torch.__version__} brings CUDA 13.0"


def test_transformer_engine_whose_parts_differ_in_version(plant, gpu_of):
    plant(te(f"AssertionError('Transformer Engine package version mismatch. Found {CLASH}.')"))
    gpu_of(9, 0)
    status, detail, remedy = outcome("te_linear_delayed")
    assert status == "broken" and CLASH in detail
    assert "pip install --no-build-isolation" in remedy


def test_transformer_engine_of_another_torch_though_it_hides_that(plant):
    plant(te("ImportError('transformer_engine_torch.so: undefined symbol: _ZN5torch4goneEv')"))
    status, detail, _ = why_not("transformer_engine.pytorch")
    assert status == "broken" and "undefined symbol _ZN5torch4goneEv" in detail


@pytest.mark.parametrize(
    "error",
    [
        "FileNotFoundError('Could not find shared object file for Transformer Engine torch lib.')",
        "RuntimeError('Found empty `transformer-engine` meta package installed.')",
    ],
)
def test_transformer_engine_without_its_kernels(plant, error):
    plant(te(error))
    status, detail, _ = why_not("transformer_engine.pytorch")
    assert (status, detail) == ("python-only", "Transformer Engine is installed without its kernels for PyTorch")


def test_removed_amp(plant):
    plant({**PYTHON_ONLY, "amp_C.py": ""})
    status, detail, remedy = why_not("apex.amp")
    assert (status, detail) == ("removed", "NVIDIA Apex has no apex.amp since 2025-05-08")
    assert "torch.amp" in remedy and "HALFSTEP_APEX_AMP" in remedy and "25.05" in remedy


def test_amp_without_any_apex(plant):
    plant({})
    status, detail, remedy = why_not("apex.amp")
    assert (status, detail) == ("missing", "NVIDIA Apex is not installed, and has no amp since 2025-05-08")
    assert "HALFSTEP_APEX_AMP" in remedy


def test_an_old_apex_has_its_own_amp(plant):
    site = plant(WITH_AMP)
    assert load_apex_amp().beside == str(site / "apex/optimizers/__init__.py")


def test_amp_from_a_folder_of_its_own(plant, monkeypatch):
    plant(PYTHON_ONLY)
    legacy = plant(WITH_AMP, folder="legacy", first=False)
    monkeypatch.setenv("HALFSTEP_APEX_AMP", str(legacy))
    locate("apex.amp")
    assert load_apex_amp().beside == str(legacy / "apex/optimizers/__init__.py")
    assert load_apex_amp() is sys.modules["apex.amp"]


def test_amp_after_another_apex(plant, monkeypatch):
    plant(PYTHON_ONLY)
    load("apex.optimizers")
    monkeypatch.setenv("HALFSTEP_APEX_AMP", str(plant(WITH_AMP, folder="legacy", first=False)))
    assert why_not("apex.amp")[:2] == ("broken", "another Apex was imported before apex.amp")


def test_a_folder_without_amp(plant, monkeypatch, tmp_path):
    plant(PYTHON_ONLY)
    monkeypatch.setenv("HALFSTEP_APEX_AMP", str(tmp_path))
    status, detail, _ = why_not("apex.amp")
    assert (status, detail) == ("missing", "HALFSTEP_APEX_AMP names a folder without apex/amp")


def test_delayed_scaling_of_torchao_is_removed_also_without_a_gpu(plant, monkeypatch):
    plant(
        {
            "torchao/__init__.py": "",
            "torchao/float8/__init__.py": "",
            "torchao/float8/config.py": "class ScalingType: DYNAMIC = 1\n",
        }
    )
    monkeypatch.setattr(importlib.metadata, "version", {"torchao": "0.17.0"}.__getitem__)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    status, detail, remedy = outcome("torchao_delayed")
    assert status == "removed" and "2025-02-22" in detail and "native_delayed" in remedy
    assert outcome("torchao_rowwise")[:2] == ("missing", "no CUDA GPU is visible")


@pytest.mark.parametrize(
    ("name", "has", "needs"),
    [
        ("te_linear_delayed", (8, 6), "8.9"),
        ("te_linear_block", (8, 9), "9.0"),
        ("te_linear_mxfp8", (9, 0), "10.0"),
        ("te_linear_nvfp4", (9, 0), "10.0"),
        ("te_layer", (8, 0), "8.9"),
        ("torchao_tensorwise", (8, 6), "8.9"),
        ("torchao_rowwise_with_gw_hp", (8, 6), "8.9"),
    ],
)
def test_a_gpu_that_is_too_old(plant, gpu_of, name, has, needs):
    plant({"transformer_engine/__init__.py": "", "torchao/__init__.py": ""})
    gpu_of(*has)
    status, detail, remedy = outcome(name)
    assert status == "too old" and f"compute capability {has[0]}.{has[1]} has no" in detail
    assert remedy == f"use a GPU of compute capability {needs} or newer"


@pytest.mark.skipif(importlib.util.find_spec("amp_C") is not None, reason="Apex's kernels are installed")
@pytest.mark.parametrize(
    ("files", "status", "of_amp"),
    [(WEB_TOOLKIT, "unrelated", "unrelated"), (PYTHON_ONLY, "python-only", "removed")],
)
def test_the_doctor_and_its_children_agree_and_import_no_torch_for_it(plant, monkeypatch, files, status, of_amp):
    plant({**files, "torch.py": "raise AssertionError('torch was imported')\n"})
    sys.modules.pop("amp_C"), sys.modules.pop("fused_layer_norm_cuda")
    asked = {name: doctor._library_or_reason(PROBES[name]) for name in APEX_CAPABILITIES}
    assert {name: row["status"] for name, row in asked.items()} == {
        **dict.fromkeys(APEX_CAPABILITIES, status),
        "apex_amp": of_amp,
    }
    assert doctor.prove(APEX_CAPABILITIES) == asked
