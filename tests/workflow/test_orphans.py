"""When Snakemake or the supervisor is ended, the measuring process goes too, nothing is half there, and the next call
goes on."""

from __future__ import annotations

import signal

import pytest
from tree import REPORTING, Tree, jobs_in, report_line

from halfstep.records import RUN_FILES

FOLDER = "results/cpu/runs/lm/bf16/rep1"
RECORD = f"{FOLDER}/record.json"
RUNS = "results/cpu/tables/runs.csv"
JOB = "measure_variant lm/bf16/1"
CHILD = "halfstep.measure.child"
SUPERVISOR = ("-m", "halfstep", "run")


@pytest.fixture
def hanging(tree: Tree) -> Tree:
    """A finished tree but for one run, which hangs when it is measured, until it gets SIGUSR1."""
    (tree.root / RECORD).unlink()
    tree.write("hang", "")
    return tree


def mend(tree: Tree) -> None:
    (tree.root / "hang").unlink()


def nothing_half_there(tree: Tree) -> bool:
    return not any((tree.root / FOLDER / name).exists() for name in RUN_FILES)


def status(tree: Tree) -> str:
    """What the table says of the run."""
    rows = tree.rows(RUNS)
    (found,) = (r["status"] for r in rows if (r["comparison"], r["variant"], r["replicate"]) == ("lm", "bf16", "1"))
    return found


def missing_in_report(tree: Tree) -> bool:
    report = tree.read("results/cpu/report.md")
    line = "| `lm` | `bf16` | 1 | no record: it has not run, or never ended by itself |"
    return "### Missing: 1 run\n" in report and line in report.splitlines()


@pytest.mark.parametrize("shell", ["host", "compound"])
def test_kill_nine_of_snakemake(shell: str, hanging: Tree) -> None:
    if shell == "compound":
        command = '"PYTHONPATH=src python3 -m halfstep run {params.run:q} {params.folder} --code {params.code}"'
        hanging.edit("rules/measure.smk", command, f'"( {command[1:-1]} ) && true"')
    with hanging.started(RECORD, until="hanging") as call:
        assert len({call.one(CHILD), call.one(*SUPERVISOR)}) == 2
        assert (len(call.family) > 2) == (shell == "compound")
        call.process.kill()
        call.process.wait()
        assert call.survivors() == []
    assert hanging.processes() == []
    assert nothing_half_there(hanging)

    locked = hanging.snakemake(RECORD)
    assert locked.returncode == 1
    assert "cannot be locked" in locked.stderr and "--unlock" in locked.stderr
    assert hanging.snakemake("--unlock").returncode == 0
    mend(hanging)
    if shell == "host":  # the other is another command, with which every run would be measured again
        assert hanging.plan() == {JOB} | REPORTING
    assert hanging.run(RECORD) == [JOB]


def test_kill_nine_as_a_run_begins(hanging: Tree) -> None:
    """Before the supervisor can have looked for its Snakemake."""
    with hanging.started(RECORD, until="localrule measure_variant:") as call:
        call.process.kill()
        call.process.wait()
        assert call.survivors() == []
    assert hanging.processes() == []
    assert nothing_half_there(hanging)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_to_all(number: signal.Signals, hanging: Tree) -> None:
    """Ctrl-C, or the end of a Slurm job: every process but the measuring one, which is in a group of its own."""
    with hanging.started(until="hanging") as call:
        call.signal_group(number)
        code, output = call.end()
        assert call.survivors() == []
    assert code == 1 and report_line("results/cpu", 10, unsupported=2, missing=1) in output.splitlines()
    assert hanging.processes() == []
    assert nothing_half_there(hanging)
    assert status(hanging) == "missing" and missing_in_report(hanging)
    mend(hanging)
    assert set(hanging.run(RECORD, RUNS)) == {JOB, "collect_runs"}


def test_sigterm_to_snakemake_alone(hanging: Tree) -> None:
    """Snakemake then lets the run that it has begun come to its end, and begins no other."""
    (hanging.root / "results/cpu/runs/lm/bf16/rep2/record.json").unlink()
    with hanging.started(until="hanging") as call:
        call.process.terminate()
        call.read_until("Will exit after finishing currently running jobs")
        call.one(CHILD).send_signal(signal.SIGUSR1)
        code, _ = call.end()
        assert call.survivors() == []
    assert code != 0
    assert (hanging.root / RECORD).exists()
    mend(hanging)
    assert hanging.plan() == {"measure_variant lm/bf16/2"} | REPORTING


def test_a_job_that_dies_without_a_record(hanging: Tree) -> None:
    """The others are measured, the report lists it, and the next call measures it."""
    (hanging.root / "results/cpu/runs/vit/bf16/rep1/record.json").unlink()
    with hanging.started(until="hanging") as call:
        mend(hanging)
        call.one(*SUPERVISOR).kill()
        code, output = call.end()
        assert call.survivors() == []
    assert code == 1 and report_line("results/cpu", 10, unsupported=2, missing=1) in output.splitlines()
    assert jobs_in(output) == ["measure_variant vit/bf16/1"]
    assert hanging.processes() == []
    assert nothing_half_there(hanging)
    assert status(hanging) == "missing" and missing_in_report(hanging)
    assert hanging.plan() == {JOB} | REPORTING
    assert set(hanging.run(RECORD, RUNS)) == {JOB, "collect_runs"}
    assert status(hanging) == "ok"


def test_kill_nine_while_tables_are_made(tree: Tree) -> None:
    """The command outlives Snakemake and ends well, but Snakemake never heard of it."""
    with tree.started("--forcerun", "collect_runs", until="localrule collect_runs:") as call:
        call.process.kill()
        call.process.wait()
        assert call.survivors() == []
    assert (tree.root / RUNS).exists()
    assert tree.snakemake("--unlock").returncode == 0
    assert tree.run(RUNS) in ([], ["collect_runs"])
    assert tree.plan() <= REPORTING
