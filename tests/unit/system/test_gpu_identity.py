import pynvml
import pytest

from halfstep import keys
from halfstep.runs import Scope
from halfstep.system.gpu import GpuError, slug, visible_gpu


@pytest.fixture
def two_gpus(install_driver, new_card):
    return install_driver(new_card(), new_card(uuid="GPU-1122bbbb", name="NVIDIA L4"))


def test_unset_means_the_first_gpu_with_all_that_nvml_says(two_gpus):
    gpu = visible_gpu()
    assert (gpu.index, gpu.uuid, gpu.name, gpu.slug) == (0, "GPU-1111aaaa", "NVIDIA H200", "h200")
    assert (gpu.memory_total_gib, gpu.compute_capability) == (140, (9, 0))
    assert (gpu.driver, gpu.cuda_driver) == ("580.159.04", "13.0")
    assert (gpu.power_limit_w, gpu.power_limit_default_w) == (pytest.approx(700), pytest.approx(700))
    assert two_gpus.opened == 0


@pytest.mark.parametrize(
    ("named", "uuid"),
    [("0", "GPU-1111aaaa"), ("1", "GPU-1122bbbb"), ("1,0", "GPU-1122bbbb"), ("GPU-112", "GPU-1122bbbb")],
)
def test_by_index_or_by_the_beginning_of_a_uuid(two_gpus, monkeypatch, named, uuid):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert visible_gpu().uuid == uuid


@pytest.mark.parametrize("named", ["", "-1", "NoDevFiles"])
def test_all_hidden(two_gpus, monkeypatch, named):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert visible_gpu() is None


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ("2", "names GPU 2, and this machine has 2"),
        ("GPU-9", "no GPU here has that UUID: GPU-1111aaaa, GPU-1122bbbb"),
        ("GPU-11", "several GPUs begin with that UUID"),
        ("MIG-1", "no GPU here has that UUID: none"),
        ("first", "no GPU here has that UUID"),
    ],
)
def test_a_named_gpu_that_is_not_here(two_gpus, monkeypatch, named, says):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    with pytest.raises(GpuError, match=says):
        visible_gpu()


def test_no_driver_no_gpu(monkeypatch, install_driver):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert visible_gpu() is None  # there is no driver
    install_driver()
    assert visible_gpu() is None  # there is one, and no GPU


def test_an_index_counts_only_gpus_that_this_job_may_open(two_gpus, monkeypatch):
    two_gpus.forbidden.add(0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert visible_gpu().name == "NVIDIA L4"


def test_refused_questions_are_none(install_driver, new_card):
    refused = {
        "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetCudaComputeCapability",
        "nvmlDeviceGetEnforcedPowerLimit",
        "nvmlDeviceGetPowerManagementDefaultLimit",
        "nvmlDeviceGetMigMode",
    }
    install_driver(new_card(refused=refused))
    gpu = visible_gpu()
    assert gpu.name == "NVIDIA H200"
    assert (gpu.memory_total_gib, gpu.compute_capability) == (None, None)
    assert (gpu.power_limit_w, gpu.power_limit_default_w) == (None, None)


def test_a_gpu_without_a_name_is_an_error(install_driver, new_card):
    install_driver(new_card(refused={"nvmlDeviceGetName"}))
    with pytest.raises(GpuError, match="does not answer"):
        visible_gpu()


@pytest.mark.parametrize(
    ("named", "uuid"), [(None, "MIG-a1"), ("0", "MIG-a1"), ("GPU-1111aaaa", "MIG-a1"), ("MIG-b", "MIG-b2")]
)
def test_mig_instances(install_driver, new_card, monkeypatch, named, uuid):
    limits = {"nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetPowerManagementDefaultLimit"}
    instances = [new_card(uuid=uuid, name="NVIDIA H200 MIG 1g.18gb", refused=limits) for uuid in ("MIG-a1", "MIG-b2")]
    install_driver(new_card(instances=instances))
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    gpu = visible_gpu()
    assert (gpu.uuid, gpu.slug, gpu.memory_total_gib) == (uuid, "h200-mig-1g.18gb", 18)
    assert (gpu.index, gpu.compute_capability, gpu.power_limit_w) == (0, (9, 0), None)


def test_mig_mode_without_an_instance(install_driver, new_card):
    install_driver(new_card(instances=[]))
    with pytest.raises(GpuError, match="MIG mode and has no instance"):
        visible_gpu()


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm4-80gb"),
        ("NVIDIA GeForce RTX 4090", "geforce-rtx-4090"),
        ("Quadro (R) P1000/x", "quadro-r-p1000-x"),
        ("NVIDIA Smoke", "smoke"),  # no suffix, so a name like any other
        ("NVIDIA X-Image", "x-image-gpu"),
        ("NVIDIA X Smoke", "x-smoke-gpu"),
        ("image", "image-gpu"),
        ("™", "gpu"),
    ],
)
def test_slug(name, short):
    assert slug(name) == short
    assert keys.NAME.fullmatch(short)
    for scale in ("full", "smoke"):
        for image in (False, True):
            scope = Scope(short, scale, image)
            assert Scope.parse(scope.name) == scope


def test_a_driver_that_breaks_off_is_no_gpu(install_driver, new_card, monkeypatch):
    install_driver(new_card())

    def refuse():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    monkeypatch.setattr(pynvml, "nvmlInit", refuse)
    assert visible_gpu() is None
