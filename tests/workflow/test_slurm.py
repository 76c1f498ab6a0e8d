"""The study through a real Slurm with profiles/slurm: what is asked for, in which order, and what becomes of a job that
Slurm ends. Needs a Slurm with a node of two cores, 4 GB and a GPU, which may be a make-believe one."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from small_image import DIGEST, with_small_image
from tree import LIMIT_S, NOTHING, REPORTING, Tree, jobs_in, report_line

from halfstep.runs import Scope, run_keys
from halfstep.study import validate

pytestmark = pytest.mark.slurm

SMOKE = ("--config", "device=cpu", "scale=smoke")
# asked often, since jobs are short, and by a command that needs no accounting
SLURM = (
    "--profile",
    "profiles/slurm",
    "--slurm-status-command",
    "squeue",
    "--slurm-init-seconds-before-status-checks",
    "1",
    "--seconds-between-status-checks",
    "1",
    "--latency-wait",
    "5",
)
CONFIG: dict[str, Any] = {
    "title": "A study",
    "replicates": 2,
    "comparisons": {
        "lm": {
            "workload": "lm",
            "baseline": "fp32",
            "variants": {"fp32": {"precision": "fp32"}, "bf16": {"precision": "bf16"}},
        },
        "vit": {"workload": "vit_huge", "baseline": "fp32", "variants": {"fp32": {"precision": "fp32"}}},
    },
}
RUNS = "results/cpu-smoke/tables/runs.csv"
SCOPE = "results/cpu-smoke"
REPORT = f"{SCOPE}/report.md"


def slurm_jobs(output: str) -> dict[str, str]:
    """Slurm's numbers of the jobs that Snakemake submitted, by group or rule."""
    found = re.findall(r"submitted with SLURM jobid (\d+) \(log: .*/slurm_logs/(?:group|rule)_([\w+]+)/", output)
    return {re.sub("_(measure_variant|train_recipe)$", "", name): number for number, name in found}


def asked(number: str) -> str:
    """What Slurm knows of a job."""
    call = subprocess.run(["scontrol", "-o", "show", "job", number], check=True, capture_output=True, text=True)
    return call.stdout


def queue() -> str:
    """The numbers of jobs that wait or run."""
    return subprocess.run(["squeue", "--noheader", "--format=%i"], check=True, capture_output=True, text=True).stdout


def records(tree: Tree) -> dict[tuple[str, str, int], dict[str, Any]]:
    found = [
        json.loads(path.read_text(encoding="utf-8")) for path in tree.root.glob("results/*/runs/*/*/*/record.json")
    ]
    return {(record["comparison"], record["variant"], record["replicate"]): record for record in found}


def parity_records(tree: Tree) -> list[dict[str, Any]]:
    return [
        json.loads(path.read_text(encoding="utf-8"))
        for path in tree.root.glob("results/*-smoke*/parity/*/*/*/record.json")
    ]


def statuses(tree: Tree) -> dict[str, str]:
    return {f"{row['comparison']}/{row['variant']}/{row['replicate']}": row["status"] for row in tree.rows(RUNS)}


def none_measures(tree: Tree) -> bool:
    """Whether supervisor and measuring process end with their job, if a moment after Slurm calls it ended."""
    ours = [process for process, command in tree.running().items() if " -m halfstep" in command]
    return psutil.wait_procs(ours, timeout=LIMIT_S)[1] == []


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tree, subprocess.CompletedProcess[str]]:
    """A tree after one complete call through Slurm, and that call. Only to be looked at or copied."""
    tree = Tree.make(tmp_path_factory.mktemp("slurm") / "tree", CONFIG, stand_in=True)
    return tree, tree.snakemake(*SLURM, *SMOKE)


@pytest.fixture
def tree(measured: tuple[Tree, subprocess.CompletedProcess[str]], tmp_path: Path) -> Tree:
    """A copy of the measured tree."""
    return measured[0].copy(tmp_path / "tree")


class Hang:
    """Where each run stops until it is told to go on, on whichever node it is; it says that it is there."""

    def __init__(self, fifo: Path) -> None:
        os.mkfifo(fifo)
        self.descriptor = os.open(fifo, os.O_RDWR)

    def next_run(self) -> psutil.Process:
        """The measuring process that has stopped here."""
        assert select.select([self.descriptor], [], [], LIMIT_S)[0], "no run got as far"
        return psutil.Process(int(os.read(self.descriptor, 100)))


@contextmanager
def hanging(tree: Tree) -> Iterator[Hang]:
    fifo = tree.root / "hang"
    hang = Hang(fifo)
    try:
        yield hang
    finally:
        fifo.unlink(missing_ok=True)
        os.close(hang.descriptor)
        # a Snakemake on a node may hang when it is told to end, and Slurm without cgroups loses sight of it
        for process in tree.running():
            with suppress(psutil.NoSuchProcess):
                process.kill()


def test_the_study_ends_well(measured: tuple[Tree, subprocess.CompletedProcess[str]]) -> None:
    tree, call = measured
    assert call.returncode == 0, call.stderr
    assert set(statuses(tree).values()) == {"ok"}
    assert set(jobs_in(call.stderr)) >= REPORTING
    assert call.stderr.splitlines()[-1] == report_line(SCOPE)


def test_one_job_per_comparison(measured: tuple[Tree, subprocess.CompletedProcess[str]]) -> None:
    _, call = measured
    jobs = slurm_jobs(call.stderr)
    assert set(jobs) == {"lm", "vit", "probe_system"}  # and none for what follows the measurements
    # of all its runs the time, and of one all else
    lm = asked(jobs["lm"])
    assert "TimeLimit=00:20:00" in lm and "NumCPUs=2" in lm and "mem=4000M" in lm and "gres:gpu" not in lm
    assert "TimeLimit=00:10:00" in asked(jobs["vit"])


def test_in_the_order_of_the_study_and_in_pairs(measured: tuple[Tree, subprocess.CompletedProcess[str]]) -> None:
    tree, _ = measured
    found = records(tree)
    keys = run_keys(validate(CONFIG), Scope("cpu", "smoke"))
    assert set(found) == set(keys)
    (_,) = {record["sitting"] for record in found.values()}
    for comparison in CONFIG["comparisons"]:
        ended = [found[key]["started"] for key in keys if key[0] == comparison]
        assert ended == sorted(ended)
    (bf16,) = (row for row in tree.rows("results/cpu-smoke/tables/speedups.csv") if row["variant"] == "bf16")
    assert (bf16["method"], bf16["pairs"]) == ("paired", "2")


def test_a_family_of_parity_runs_is_one_job(tmp_path: Path) -> None:
    """Asked for by themselves; their families are named as no comparison can be."""
    study = {**CONFIG, "parity": "always", "comparisons": {"lm": CONFIG["comparisons"]["lm"]}}
    tree = Tree.make(tmp_path / "tree", study, stand_in=True)
    done = tree.snakemake("parity", *SLURM, *SMOKE)
    assert done.returncode == 0, done.stderr
    jobs = slurm_jobs(done.stderr)
    assert set(jobs) == {"lm+adam_fused+layernorm"}
    job = asked(jobs["lm+adam_fused+layernorm"])
    assert "TimeLimit=00:30:00" in job and "NumCPUs=2" in job and "mem=4000M" in job and "gres:gpu" not in job
    found = sorted(parity_records(tree), key=lambda record: (record["recipe"], record["seed"]))
    made = [(record["recipe"], record["seed"], record["status"]) for record in found]
    assert made == [("bf16", 1, "ok"), *(("reference", seed, "ok") for seed in range(1, 6))]
    recipe, *references = (record["started"] for record in found)
    assert recipe >= max(references)
    assert tree.plan("parity", *SLURM, *SMOKE) == tree.plan("parity", *SMOKE) == set()


def test_nothing_again(tree: Tree) -> None:
    """Neither by the profile, nor without it, nor for other resources."""
    before = tree.contents()
    again = tree.snakemake(*SLURM, *SMOKE)
    assert again.returncode == 0 and NOTHING in again.stderr and not slurm_jobs(again.stderr)
    assert tree.contents() == before
    assert tree.plan(*SMOKE) == set()
    more = ("--set-resources", "measure_variant:mem_mb=1000", "measure_variant:runtime=9", "measure_variant:gpu=1")
    assert tree.plan(*SLURM, *SMOKE, *more) == set()


def test_a_job_that_slurm_ends(tree: Tree) -> None:
    """What it had finished stays, the rest is missing, older records too, and the next call measures just that."""
    study = {**CONFIG, "seed": 1, "comparisons": {"lm": CONFIG["comparisons"]["lm"]}}  # every older record is stale
    tree.configure(study)
    first, *others = ["/".join(map(str, key)) for key in run_keys(validate(study), Scope("cpu", "smoke"))]
    with hanging(tree) as hang, tree.started(*SLURM, *SMOKE, until="slurm_logs/group_lm", nodes=True) as call:
        hang.next_run().send_signal(signal.SIGUSR1)
        second = hang.next_run()
        subprocess.run(["scancel", slurm_jobs(call.last_line)["lm"]], check=True)
        assert psutil.wait_procs([second], timeout=LIMIT_S)[1] == []
        code, output = call.end()
        assert none_measures(tree)
    assert code == 1 and report_line(SCOPE, 1 + len(others), missing=len(others)) in output.splitlines()
    found = statuses(tree)
    assert found == {first: "ok", **dict.fromkeys(others, "missing")}
    assert f"### Missing: {len(others)} runs\n" in tree.read(REPORT)

    assert tree.run(*SMOKE)[: len(others)] == [f"measure_variant {name}" for name in others]  # here, for a change
    assert set(statuses(tree).values()) == {"ok"}
    (_, _) = {record["sitting"] for key, record in records(tree).items() if key[0] == "lm"}


def test_ctrl_c(tree: Tree) -> None:
    """Slurm's jobs go with the Snakemake that submitted them."""
    (tree.root / "results/cpu-smoke/runs/lm/bf16/rep1/record.json").unlink()
    with hanging(tree) as hang, tree.started(*SLURM, *SMOKE, until="slurm_logs/group_lm", nodes=True) as call:
        process = hang.next_run()
        call.signal_group(signal.SIGINT)
        code, output = call.end()
        assert psutil.wait_procs([process], timeout=LIMIT_S)[1] == []
        assert none_measures(tree)
    assert code == 1 and report_line(SCOPE, len(statuses(tree)), missing=1) in output.splitlines()
    assert slurm_jobs(call.last_line)["lm"] not in queue().split()
    assert {name for name, status in statuses(tree).items() if status == "missing"} == {"lm/bf16/1"}
    assert tree.plan(*SMOKE) == {"measure_variant lm/bf16/1"} | REPORTING


def test_a_gpu_is_asked_for(tmp_path: Path) -> None:
    """From here, where there is none, as on a login node; where a job then finds no such GPU, nothing is measured."""
    study = {**CONFIG, "parity": "always", "replicates": 1, "comparisons": {"vit": CONFIG["comparisons"]["vit"]}}
    tree = Tree.make(tmp_path / "tree", study, stand_in=True)
    tree.edit("profiles/slurm/device.yaml", "scale: full", "scale: smoke")
    done = tree.snakemake(*SLURM)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == report_line("results/h200-smoke", 1, unsupported=1)
    jobs = slurm_jobs(done.stderr)
    assert set(jobs) == {"vit", "probe_system", "vit_huge+adam_fused+layernorm"}
    assert all("gres:gpu:1" in asked(number) for number in jobs.values())
    reason = "asked to measure on 'h200', and no NVIDIA GPU is visible here"
    found = [(record["status"], record["reason"]) for record in (*records(tree).values(), *parity_records(tree))]
    assert found == [("unsupported", reason)] * 6


@pytest.mark.image
def test_in_the_image(base_image: str, tmp_path: Path) -> None:
    """It is built here, and the measurements on the nodes run in it, each part knowing what the others do."""
    tree = with_small_image(tmp_path / "tree", base_image, scale="smoke", parity="always")
    done = tree.snakemake(*SLURM, *SMOKE, "--use-singularity")
    assert done.returncode == 0, done.stderr
    assert set(slurm_jobs(done.stderr)) == {"lm", "probe_system", "lm+adam_fused+layernorm"}
    assert "localcheckpoint build_image:" in done.stderr.splitlines()
    digest = tree.read(DIGEST).strip()
    found = [*records(tree).values(), *parity_records(tree)]
    assert [(record["status"], record["image"]) for record in found] == [("ok", digest)] * 10
    assert tree.plan(*SLURM, *SMOKE, "--use-singularity") == set()
    assert tree.plan(*SMOKE, "--use-singularity") == set()
