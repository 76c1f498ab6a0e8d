"""How figures look, and how they are saved so that the same data give the same bytes."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from halfstep.kernel_kinds import KINDS
from halfstep.report.tables import IDLE

COLUMN_IN, FULL_IN = 3.4, 7.0  # widths of one and of two columns on paper
LABEL_CHARACTERS = 20  # of a variant's name in one line
LINE_IN = 0.125  # height of one line of a label
DPI = 200
GREY, DARK = "0.45", "0.15"

# seaborn's "colorblind". seaborn is imported where something is drawn alone: it takes as long as writing a report.
PALETTE = (
    "#0173b2", "#de8f05", "#029e73", "#d55e00", "#cc78bc", "#ca9161", "#fbafe4", "#949494", "#ece133", "#56b4e9",
)  # fmt: skip
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "<", ">", "p", "*")
# fixed for every study: a kind looks the same in all figures, in grey too (by its hatch)
KIND_STYLES: dict[str, tuple[str, str]] = dict(
    zip(
        (*KINDS, IDLE),
        (
            (PALETTE[0], ""),
            (PALETTE[9], "////"),
            (PALETTE[2], "..."),
            (PALETTE[8], "||"),
            (PALETTE[1], ""),
            (PALETTE[3], "\\\\\\\\"),
            (PALETTE[4], "xx"),
            (PALETTE[5], "--"),
            (PALETTE[6], "oo"),
            (PALETTE[7], "++"),
            ("white", ""),
        ),
        strict=True,
    )
)

RC = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same on every machine
    "font.size": 7.5,
    "axes.labelsize": 8,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "legend.fontsize": 7.5,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "xtick.major.size": 3,
    "ytick.major.width": 0.6,
    "grid.linewidth": 0.5,
    "hatch.linewidth": 0.5,
    "lines.linewidth": 1.1,
    "text.parse_math": False,  # a `$` in a unit is a `$`
    "figure.constrained_layout.use": True,
    "figure.dpi": DPI,  # at which figures are laid out
    "pdf.fonttype": 42,  # TrueType, embedded: what publishers ask for
    "pdf.compression": 0,  # or the bytes hang on the build of zlib
    "svg.hashsalt": "halfstep",  # or ids are random
}


def settings() -> dict[Any, Any]:
    """Of matplotlib, for all figures."""
    import seaborn as sns

    return {**sns.axes_style("ticks"), **RC}


def despine(figure: Figure, left: bool = False) -> None:
    """Take the frame away but for the axes, or but for the lower one."""
    import seaborn as sns

    sns.despine(figure, left=left)


def shades(count: int) -> list[tuple[float, float, float]]:
    """From light to the palette's first colour."""
    import seaborn as sns

    return list(sns.light_palette(PALETTE[0], n_colors=count + 1)[1:])


def wrap(name: str, width: int = LABEL_CHARACTERS) -> str:
    """A variant's name over as many lines as it needs, broken where it has a hyphen, dot or underscore."""
    if "\n" in name:
        return "\n".join(wrap(line, width) for line in name.split("\n"))
    breakable = name.replace("_", "_\u200b").replace(".", ".\u200b").replace("-", "-\u200b")
    lines, line = [], ""
    for part in breakable.split("\u200b"):
        if line and len(line) + len(part) > width:
            lines.append(line)
            line = ""
        line += part
    return "\n".join(piece for line in [*lines, line] for piece in textwrap.wrap(line, width, break_on_hyphens=False))


def save(figure: Figure, stem: Path) -> None:
    """Write svg, pdf and png beside each other, without dates and atomically."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    # laid out once for all three; an engine that is left, even "none", lets matplotlib draw each of them twice
    figure.draw_without_rendering()
    with plt.rc_context({"figure.constrained_layout.use": False}):
        figure.set_layout_engine(None)
        for suffix, metadata in (("svg", {"Date": None}), ("pdf", {"CreationDate": None}), ("png", {"Software": None})):
            path = stem.with_name(f"{stem.name}.{suffix}")
            temporary = path.with_name(f".{path.name}")
            figure.savefig(temporary, format=suffix, dpi=DPI, metadata=metadata)
            temporary.replace(path)
