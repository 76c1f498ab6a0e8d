from __future__ import annotations

import pytest

from halfstep.report.problems import REMEDIES, problems

FLAG = "--use-singularity"


def run(status: str, **numbers: str) -> dict[str, str]:
    named = {"comparison": "lm", "variant": "bf16", "replicate": "1", "status": status, "reason": "so"}
    return {"idle_ms": "", "step_ms_mean": "", **named, **numbers}


@pytest.mark.parametrize("status", REMEDIES)
def test_what_was_made_in_the_image_is_made_again_in_it(status: str) -> None:
    row = run(status)
    (host,), (image,) = problems([row]), problems([row], image=True)
    assert FLAG not in host.remedy
    commands = host.remedy.count("`snakemake --cores 1`") + host.remedy.count("make remeasure")
    assert image.remedy.count(FLAG) == commands > 0 or status == "out_of_memory"
    assert f"`snakemake --cores 1 {FLAG}`" in image.remedy or f"STATUS={status} ARGS={FLAG}`" in image.remedy


def test_what_drifted_while_the_gpu_waited_for_the_cpu_is_told_so() -> None:
    waited = run("disturbed", idle_ms="20.5", step_ms_mean="100")
    others = [run("disturbed", idle_ms="3", step_ms_mean="100"), run("disturbed"), {**waited, "status": "ok"}]
    (told,), (not_told,) = problems([waited, *others]), problems(others)
    assert "In 1 run of these the GPU idled for over 10 % of the step" in told.remedy
    assert "CPU" not in not_told.remedy
