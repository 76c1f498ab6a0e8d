import importlib.metadata
import platform
import sys

from halfstep.system.environment import PACKAGES, environment, fingerprint, image


def test_on_a_cpu_it_names_versions_and_the_cpu():
    found = environment()
    assert found["python"] == platform.python_version()
    assert found["torch"].split("+")[0] == importlib.metadata.version("torch").split("+")[0]
    assert found["timm"] == importlib.metadata.version("timm")
    assert found["cpu"]
    assert "gpu" not in found and "driver" not in found
    assert all(isinstance(value, str) and value for value in found.values())


def test_on_a_gpu_it_names_the_gpu_and_the_driver(install_driver, new_card):
    install_driver(new_card())
    found = environment()
    assert (found["gpu"], found["driver"]) == ("NVIDIA H200", "580.159.04")
    assert "cpu" not in found


def test_what_is_not_installed_is_left_out(monkeypatch):
    def absent(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert set(environment()) == {"python", "platform", "cpu"}
    assert not set(PACKAGES) & set(environment())


def test_fingerprint_is_of_the_content():
    one = fingerprint({"torch": "2.11.0", "gpu": "NVIDIA H200"})
    assert one == fingerprint({"gpu": "NVIDIA H200", "torch": "2.11.0"})
    assert one != fingerprint({"torch": "2.12.0", "gpu": "NVIDIA H200"})
    assert len(one) == 16 and int(one, 16) >= 0


def test_image(monkeypatch):
    monkeypatch.delenv("HALFSTEP_IMAGE", raising=False)
    assert image() == "host"
    monkeypatch.setenv("HALFSTEP_IMAGE", "sha256:12ab")
    assert image() == "sha256:12ab"
