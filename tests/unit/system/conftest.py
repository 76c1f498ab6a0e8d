"""GPUs that are not there: NVML answers from a list of made-up ones, and torch tells of one."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from types import SimpleNamespace

import pynvml
import pytest
import torch


@dataclass(eq=False)
class Card:
    uuid: str = "GPU-1111aaaa"
    name: str = "NVIDIA H200"
    instances: list[Card] | None = None  # of a GPU in MIG mode
    refused: set[str] = field(default_factory=set)
    processes: list[SimpleNamespace] = field(default_factory=list)
    reasons: int = 0
    limit_mw: int = 700_000
    energy_mj: int = 0
    parent: Card | None = None

    def __post_init__(self):
        for instance in self.instances or []:
            instance.parent = self


class Driver:
    """Any question in a card's `refused` is not supported; after `lose_after` power readings the GPU is lost."""

    def __init__(self, *cards: Card) -> None:
        self.cards = list(cards)
        self.lose_after: int | None = None
        self.lost = threading.Event()
        self.forbidden: set[int] = set()
        self.opened = 0

    def answer(self, question, value):
        def query(card, *arguments):
            if self.lost.is_set():
                raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
            if question in card.refused:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            return value(card, *arguments)

        return query

    def power(self, card):
        if self.lose_after is not None:
            self.lose_after -= 1
            if self.lose_after < 0:
                self.lost.set()
                raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return 400_000

    def energy(self, card):
        card.energy_mj += 5_000
        return card.energy_mj

    def by_uuid(self, uuid):
        for card in self.cards:
            for known in (card, *(card.instances or [])):
                if known.uuid == uuid:
                    return known
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def by_index(self, index):
        if index in self.forbidden:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)
        return self.cards[index]

    def mig_instance(self, card, place):
        if place >= len(card.instances):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return card.instances[place]

    def open(self, step):
        self.opened += step

    def install(self, monkeypatch):
        about_a_card = {
            "nvmlDeviceGetUUID": lambda card: card.uuid,
            "nvmlDeviceGetName": lambda card: card.name,
            "nvmlDeviceGetMigMode": lambda card: [int(card.instances is not None), 0],
            "nvmlDeviceGetMaxMigDeviceCount": lambda card: 7,
            "nvmlDeviceGetMigDeviceHandleByIndex": self.mig_instance,
            "nvmlDeviceGetMemoryInfo": lambda card: SimpleNamespace(total=(18 if card.parent else 140) * 2**30),
            "nvmlDeviceGetCudaComputeCapability": lambda card: (9, 0),
            "nvmlDeviceGetEnforcedPowerLimit": lambda card: card.limit_mw,
            "nvmlDeviceGetPowerManagementDefaultLimit": lambda card: 700_000,
            "nvmlDeviceGetPowerUsage": self.power,
            "nvmlDeviceGetTotalEnergyConsumption": self.energy,
            "nvmlDeviceGetClockInfo": lambda card, clock: 1980,
            "nvmlDeviceGetTemperature": lambda card, sensor: 61,
            "nvmlDeviceGetCurrentClocksEventReasons": lambda card: card.reasons,
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda card: card.reasons,
            "nvmlDeviceGetComputeRunningProcesses_v3": lambda card: card.processes,
        }
        for name, value in about_a_card.items():
            monkeypatch.setattr(pynvml, name, self.answer(name, value))
        monkeypatch.setattr(pynvml, "nvmlInit", lambda: self.open(1))
        monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: self.open(-1))
        monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: len(self.cards))
        monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", self.by_index)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", self.by_uuid)
        monkeypatch.setattr(pynvml, "nvmlSystemGetDriverVersion", lambda: "580.159.04")
        monkeypatch.setattr(pynvml, "nvmlSystemGetCudaDriverVersion_v2", lambda: 13000)


@pytest.fixture
def new_card():
    return Card


@pytest.fixture
def install_driver(monkeypatch):
    """install_driver(card, …) puts a driver with these GPUs there."""

    def install(*cards):
        driver = Driver(*cards)
        driver.install(monkeypatch)
        return driver

    return install


@pytest.fixture(autouse=True)
def no_driver(monkeypatch):
    """None unless a test installs one, wherever the tests run."""

    def refuse():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", refuse)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def gpu_of(monkeypatch):
    """gpu_of(8, 6) plants a GPU of that compute capability."""

    def plant(major, minor):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (major, minor))

    return plant
