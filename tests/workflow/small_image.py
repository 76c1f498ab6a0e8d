"""A small image instead of the real one: what `halfstep run` needs, and no torch, for the stand-in to measure in."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

from tree import CONFIG, Tree

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


def with_small_image(root: Path, base_image: str, **keys: Any) -> Tree:
    """A tree whose image is the small one, with these keys in its study."""
    study = {**CONFIG, **keys, "container": {"build_args": {"BASE_IMAGE": base_image}}}
    tree = Tree.make(root, study, stand_in=True)
    (tree.root / "docker").mkdir(exist_ok=True)
    tree.write("docker/Dockerfile", DOCKERFILE)
    return tree
