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
    places = dict.fromkeys(str(place.resolve()) for place in (results.parent, results) if place.is_dir())
    binds = [place for place in places if not Path(place).is_relative_to(Path.cwd())]
    if gpu:
        binds.append(str(lock_folder()))
    prefix = apptainer().upper()
    # Apptainer heeds a site's older name as well, but not beside its own
    given = os.environ.get(f"{prefix}_BIND") or os.environ.get("SINGULARITY_BIND", "")
    bound = ",".join(dict.fromkeys(filter(None, [*given.split(","), *binds])))
    # not by an argument alone, which another --singularity-args or --workflow-profile replaces
    own = {f"{prefix}_CLEANENV": "1", **({f"{prefix}_BIND": bound} if bound else {})}
    return {**passed_in(variables), **own}


def passed_in(variables: Mapping[str, str]) -> dict[str, str]:
    """The same variables under the names by which Apptainer hands them on.

    Raises:
        ImageError: there is no apptainer or singularity.
    """
    prefix = f"{apptainer().upper()}ENV_"
    return {f"{prefix}{name}": value for name, value in variables.items()}
