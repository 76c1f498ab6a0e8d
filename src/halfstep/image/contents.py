"""Run inside the image by its own Python, with the standard library alone: prints as JSON what is in it."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import shutil
import subprocess

TOOLS = ("gcc", "g++", "nvcc", "ld")


def said(*command: str) -> str:
    """What a command prints; nothing where there is no such command."""
    if shutil.which(command[0]) is None:
        return ""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def version(tool: str) -> str | None:
    """The line that says it: nvcc's speaks of a release, the others' is their first."""
    lines = [line for line in said(tool, "--version").splitlines() if line.strip()]
    return next((line for line in lines if "release" in line), lines[0] if lines else None)


def distributions() -> tuple[dict[str, str], dict[str, str]]:
    """Python packages by name; the commit too where pip wrote down the repository that it built from (PEP 610)."""
    packages, commits = {}, {}
    for found in importlib.metadata.distributions():
        name = found.metadata["Name"]
        packages[name] = found.version
        origin = json.loads(found.read_text("direct_url.json") or "{}")
        if "commit_id" in origin.get("vcs_info", {}):
            commits[name] = origin["vcs_info"]["commit_id"]
    return packages, commits


def cuda() -> str | None:
    """The CUDA that torch was built with."""
    try:
        import torch
    except ImportError:
        return None
    return torch.version.cuda


packages, commits = distributions()
debian = said("dpkg-query", "--show", "--showformat", "${Package} ${Version}\n").split("\n")
print(
    json.dumps(
        {
            "distribution": platform.freedesktop_os_release()["PRETTY_NAME"],
            "python_version": platform.python_version(),
            "cuda": cuda(),
            "tools": {tool: version(tool) for tool in TOOLS},
            "python": packages,
            "commits": commits,
            "debian": dict(line.split(" ", 1) for line in debian if line),
        }
    )
)
