"""What a process in the container is told: Apptainer starts it with an environment of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from halfstep.image.sif import apptainer
from halfstep.system.gpu_lock import lock_folder


def environment(results: Path, gpu: bool) -> dict[str, str]:
    """Variables for Apptainer, so that the commands of the rules have inside what they need of the host's.

    `results` is the scope's folder, which all caches stay in; `gpu` says whether a GPU is to be measured, whose lock
    is shared with the host.

    Raises:
        ImageError: there is no apptainer or singularity.
        OSError: the folder of the locks cannot be made.
    """
    cache = results.resolve() / "cache"
    variables = {
        "PYTHONNOUSERSITE": "1",
        "XDG_CACHE_HOME": str(cache / "xdg"),
        "CUDA_CACHE_PATH": str(cache / "cuda"),
        "MPLCONFIGDIR": str(cache / "matplotlib"),
    }
    for name in ("HALFSTEP_SITTING", "HALFSTEP_SNAKEMAKE", "CUDA_VISIBLE_DEVICES"):
        if name in os.environ:
            variables[name] = os.environ[name]
    # this folder is bound by Snakemake, and nothing beside it that a link in it leads to
    root = results.parent.resolve()
    binds = [str(root)] if root.is_dir() and not root.is_relative_to(Path.cwd()) else []
    if gpu:
        binds.append(str(lock_folder()))
    name = f"{apptainer().upper()}_BIND"
    bound = ",".join(filter(None, [os.environ.get(name, ""), *binds]))
    return {**passed_in(variables), **({name: bound} if bound else {})}


def passed_in(variables: Mapping[str, str]) -> dict[str, str]:
    """The same variables under the names by which Apptainer hands them on.

    Raises:
        ImageError: there is no apptainer or singularity.
    """
    prefix = f"{apptainer().upper()}ENV_"
    return {f"{prefix}{name}": value for name, value in variables.items()}
