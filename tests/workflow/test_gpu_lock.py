"""Two studies on one GPU take turns, run by run; whoever holds it lets go however it ends."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from tree import CONFIG, Call, Tree

from halfstep.system.gpu_lock import FOLDER, GpuLock

FOLDER_OF_RUN = "results/h200/runs/lm/bf16/rep1"
RECORD = f"{FOLDER_OF_RUN}/record.json"
PARITY = "vit_huge+adam_fused+layernorm/bf16+blocks"
CHILD = "halfstep.measure.child"
SUPERVISOR = ("-m", "halfstep", "run")


@pytest.fixture
def uuid() -> Iterator[str]:
    """A GPU of this test alone."""
    name = f"GPU-{uuid4()}"
    yield name
    (FOLDER / f"{name}.lock").unlink()


@pytest.fixture
def study(tmp_path: Path, uuid: str) -> Callable[[str], Tree]:
    """A tree that measures on the made-up GPU by the stand-in."""

    def make(name: str) -> Tree:
        tree = Tree.make(tmp_path / name, {**CONFIG, "device": "h200"}, stand_in=True)
        tree.write("gpu", uuid)
        return tree

    return make


def waits(call: Call, run: str = "lm/bf16 rep1") -> None:
    """Until it says that it does, and for whom."""
    call.read_until(f"{run}: waits for the GPU, which lm/bf16 rep1 (process ")


def test_they_take_turns(study: Callable[[str], Tree]) -> None:
    first, second = study("first"), study("second")
    first.write("hang", "")
    with first.started(RECORD, until="hanging") as holder, second.started(RECORD, until="localrule") as waiter:
        waits(waiter)
        assert not (second.root / RECORD).exists()
        holder.one(CHILD).send_signal(signal.SIGUSR1)
        assert holder.end()[0] == 0
        code, output = waiter.end()
    assert code == 0, output
    assert "lm/bf16 rep1: ok" in output


def test_a_parity_run_takes_its_turn(study: Callable[[str], Tree], uuid: str) -> None:
    """And it is ok at full scale: of what was not to be timed neither a profile nor a steady window is asked."""
    first, second = study("first"), study("second")
    second.configure({**CONFIG, "device": "h200", "parity": "always"})
    first.write("hang", "")
    record = f"results/h200/parity/{PARITY}/seed1/record.json"
    with first.started(RECORD, until="hanging") as holder, second.started(record, until="localrule") as waiter:
        waits(waiter, f"{PARITY} seed1")
        assert not (second.root / record).exists()
        holder.one(CHILD).send_signal(signal.SIGUSR1)
        assert holder.end()[0] == 0
        code, output = waiter.end()
    assert code == 0, output
    found = json.loads(second.read(record))
    assert (found["status"], found["reason"], found["gpu"]["uuid"]) == ("ok", "", uuid)
    assert (found["run"]["precision"], found["run"]["compile"], found["run"]["scale"]) == ("bf16", "blocks", "full")


@pytest.mark.parametrize("who", [CHILD, "supervisor", "snakemake"])
def test_who_is_killed_lets_go(who: str, study: Callable[[str], Tree]) -> None:
    first, second = study("first"), study("second")
    first.write("hang", "")
    with first.started(RECORD, until="hanging") as holder, second.started(RECORD, until="localrule") as waiter:
        waits(waiter)
        victim = {"supervisor": lambda: holder.one(*SUPERVISOR), "snakemake": lambda: holder.process}
        victim.get(who, lambda: holder.one(CHILD))().kill()
        code, output = waiter.end()
    assert code == 0, output


def test_who_waits_is_not_left_behind(study: Callable[[str], Tree]) -> None:
    first, second = study("first"), study("second")
    first.write("hang", "")
    with first.started(RECORD, until="hanging"), second.started(RECORD, until="localrule") as waiter:
        waits(waiter)
        waiter.process.kill()
        waiter.process.wait()
        assert waiter.survivors() == []
        assert second.processes() == []


def test_another_gpu_is_not_waited_for(study: Callable[[str], Tree], uuid: str) -> None:
    tree = study("tree")
    lock = GpuLock(f"{uuid}-another", "something else")
    try:
        assert lock.acquire()
        assert tree.run(RECORD) == ["measure_variant lm/bf16/1"]
    finally:
        lock.release()
        lock.path.unlink()
