"""Where things lie in an archive."""

from __future__ import annotations

SOURCE = "source"  # the folder of the Snakefile
DIFF = "source.diff"  # from the commit to what it was when the archive was made
CONFIG = "config.yaml"
RESULTS = "results"
IMAGE = "results/image"
SUMS = "SHA256SUMS"
ABOUT = "archive.json"
CRATE = "ro-crate-metadata.json"
README = "README.md"
BESIDE_SOURCE = ("CITATION.cff", "LICENSE")  # of the source, where one looks for them

FORMAT = 1

MADE = ("tables", "figures", "report.md", "report.html")
"""what a scope's folder holds that follows from the rest of it"""


def is_made(name: str) -> bool:
    """Whether a file of a scope's folder follows from the others there; `name` is relative to it."""
    return name.split("/")[0] in MADE
