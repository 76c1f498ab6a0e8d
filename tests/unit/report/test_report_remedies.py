from __future__ import annotations

import pytest

from halfstep.report.problems import REMEDIES, problems

FLAG = "--use-singularity"


@pytest.mark.parametrize("status", REMEDIES)
def test_what_was_made_in_the_image_is_made_again_in_it(status: str) -> None:
    row = {"comparison": "lm", "variant": "bf16", "replicate": "1", "status": status, "reason": "so"}
    (host,), (image,) = problems([row]), problems([row], image=True)
    assert FLAG not in host.remedy
    commands = host.remedy.count("`snakemake --cores 1`") + host.remedy.count("make remeasure")
    assert image.remedy.count(FLAG) == commands > 0 or status == "out_of_memory"
    assert f"`snakemake --cores 1 {FLAG}`" in image.remedy or f"STATUS={status} ARGS={FLAG}`" in image.remedy
