from __future__ import annotations

from pathlib import Path

import pytest

from halfstep.system import container
from halfstep.system.container import why_no_gpu_inside

NO_GPU = "no GPU is visible in the container; --nv is missing"


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APPTAINER_CONTAINER", "/x.sif")


def test_containers_by_their_own_signs(monkeypatch: pytest.MonkeyPatch, inside: None) -> None:
    assert container.container() == "apptainer"
    monkeypatch.delenv("APPTAINER_CONTAINER")
    monkeypatch.delenv("SINGULARITY_CONTAINER", raising=False)
    monkeypatch.setattr(Path, "exists", lambda path: False)
    assert container.container() == "host"
    monkeypatch.setattr(Path, "exists", lambda path: str(path) == "/.dockerenv")
    assert container.container() == "docker"


@pytest.mark.parametrize(
    ("driver", "reason"), [(True, NO_GPU), (False, f"{NO_GPU}, or this machine has no NVIDIA driver loaded")]
)
def test_no_libraries_of_the_driver(
    driver: bool, reason: str, inside: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container, "PASSED_IN", tmp_path)
    version = tmp_path / "version"
    if driver:
        version.touch()
    monkeypatch.setattr(container, "DRIVER", version)
    found = why_no_gpu_inside()
    assert found is not None and found[0] == reason
    (tmp_path / "libnvidia-ml.so.1").touch()
    assert why_no_gpu_inside() is None  # --nv was given, and the reason is another


def test_nothing_to_do_with_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("APPTAINER_CONTAINER", raising=False)
    monkeypatch.delenv("SINGULARITY_CONTAINER", raising=False)
    monkeypatch.setattr(container, "PASSED_IN", tmp_path)
    assert why_no_gpu_inside() is None
