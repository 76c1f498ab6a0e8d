"""A small image instead of the real one: what `halfstep run` needs, and no torch, for the stand-in to measure in."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path
from typing import Any

from tree import CONFIG, Tree, clean_environment

PACKAGES = ("grimp", "nvidia-ml-py", "psutil", "pydantic", "pyyaml", "rich", "typer")
# The user's own packages are let in here, as they are not in the real image: that is left to the rules.
DOCKERFILE = f"""
ARG BASE_IMAGE
FROM ${{BASE_IMAGE}} AS cpu
ENV PATH=/opt/venv/bin:$PATH
RUN python3 -m venv --system-site-packages /opt/venv && pip install --quiet --no-cache-dir \
    {" ".join(f"{name}=={importlib.metadata.version(name)}" for name in PACKAGES)}
FROM cpu AS cuda
LABEL target=cuda
"""
SIF = "results/image/cpu/halfstep.sif"
DIGEST = "results/image/cpu/digest"
KEPT = "results/image/cpu/kept/halfstep.sif"


COMPARISON = CONFIG["comparisons"]["lm"]
STUDY = {
    **CONFIG,
    "comparisons": {
        "lm": {**COMPARISON, "variants": {name: COMPARISON["variants"][name] for name in ("fp32", "bf16")}}
    },
}


def with_small_image(root: Path, base_image: str, **keys: Any) -> Tree:
    """A tree whose image is the small one, with these keys in its study."""
    study = {**STUDY, **keys, "container": {"build_args": {"BASE_IMAGE": base_image}}}
    tree = Tree.make(root, study, stand_in=True)
    (tree.root / "docker").mkdir(exist_ok=True)
    tree.write("docker/Dockerfile", DOCKERFILE)
    return tree


def path_without(folder: Path, *names: str) -> str:
    """A PATH with all of this one's commands but these: Python's as they are, the others by links in a new folder."""
    folder.mkdir()
    ours = str(Path(sys.executable).parent)
    for place in clean_environment()["PATH"].split(":"):
        for command in Path(place).glob("*") if place != ours else ():
            if command.name not in names and not (folder / command.name).is_symlink():
                (folder / command.name).symlink_to(command)
    return f"{ours}:{folder}"
