"""The tables in docs/, generated from the models and the schemas: `python -m halfstep.docs_tables`.

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; what is between them is replaced.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from halfstep.kernel_kinds import KINDS
from halfstep.records import (
    CURVE_COLUMNS,
    IDENTITY_COLUMNS,
    KERNELS_COLUMNS,
    PROVENANCE_COLUMNS,
    RESULT_COLUMNS,
    STATUSES,
    STEPS_COLUMNS,
    TABLE_STATUSES,
    write_text,
)
from halfstep.report.bands import VERDICTS as PARITY_VERDICTS
from halfstep.report.claims import CLAIMS_COLUMNS
from halfstep.report.parity import PARITY_COLUMNS
from halfstep.report.proofs import PROOFS_COLUMNS
from halfstep.report.tables import KERNELS_TABLE_COLUMNS, RANKING_COLUMNS, SPEEDUPS_COLUMNS, VARIANTS_COLUMNS
from halfstep.report.verdicts import VERDICTS
from halfstep.study import Study
from halfstep.system.capabilities import PROBES
from halfstep.system.probing import STATUSES as CAPABILITY_STATUSES
from halfstep.system.probing import Probe

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def markdown(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [headings, ["---"] * len(headings), *([text.replace("|", "\\|") for text in line] for line in lines)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def columns(found: Mapping[str, str], heading: str = "column") -> str:
    return markdown([heading, "meaning"], ([f"`{name}`", meaning] for name, meaning in found.items()))


def keys(model: str | None) -> str:
    """The keys of one model of the study, by its name in the JSON Schema; None for the study itself."""
    schema = Study.model_json_schema()
    found = schema if model is None else schema["$defs"][model]
    return markdown(
        ["key", "value", "default", "meaning"],
        (
            [f"`{name}`", _value(field), _default(field, name in found.get("required", ())), field["description"]]
            for name, field in found["properties"].items()
        ),
    )


def _value(field: Mapping[str, Any]) -> str:
    if "enum" in field:
        return ", ".join(f"`{choice}`" for choice in field["enum"])
    if "anyOf" in field:
        return " or ".join(_value(option) for option in field["anyOf"])
    if "patternProperties" in field:
        return f"{'one or more ' * ('minProperties' in field)}names, each with its keys"
    if "$ref" in field:
        return "keys of its own"
    if field["type"] == "array":
        return "list of names"
    kind = {
        "boolean": "`true`, `false`",
        "string": "text",
        "integer": "whole number",
        "null": "nothing",
        "object": "keys of a variant",
    }.get(field["type"], field["type"])
    bounds = {"exclusiveMinimum": "above", "minimum": "at least"}
    limits = [f"{words} {field[bound]}" for bound, words in bounds.items() if bound in field]
    return " ".join([kind if "pattern" not in field else "name", *limits])


def _default(field: Mapping[str, Any], required: bool) -> str:
    if required:
        return "required"
    value = field.get("default")
    if value is None or value == {}:
        return "–"
    if isinstance(value, dict):
        return "as below"
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"  # as YAML has it


def _capability(entry: tuple[str, Probe]) -> list[str]:
    name, probe = entry
    oldest = ".".join(map(str, probe.compute_capability or ())) or "any"
    gpu = oldest if probe.cuda or name == "nvml" else "none needed" if oldest == "any" else f"none, or {oldest}"
    return [f"`{name}`", (probe.prove.__doc__ or "").splitlines()[0].rstrip("."), gpu]


def tables() -> dict[str, str]:
    return {
        "study": keys(None),
        "comparison": keys("Comparison"),
        "variant": keys("Variant"),
        "window": keys("Window"),
        "claim": keys("Claim"),
        "versus": keys("Versus"),
        "fits": keys("Fits"),
        "graph-breaks": keys("GraphBreaks"),
        "container": keys("Container"),
        "build-args": keys("BuildArgs"),
        "statuses": columns(STATUSES, "status"),
        "table-statuses": columns({k: v for k, v in TABLE_STATUSES.items() if k not in STATUSES}, "status"),
        "capability-statuses": columns(CAPABILITY_STATUSES, "status"),
        "capabilities": markdown(["capability", "proved by", "GPU"], map(_capability, PROBES.items())),
        "summary-identity": columns(IDENTITY_COLUMNS),
        "summary-results": columns(RESULT_COLUMNS),
        "summary-provenance": columns(PROVENANCE_COLUMNS),
        "steps": columns(STEPS_COLUMNS),
        "kernels": columns(KERNELS_COLUMNS),
        "curve": columns(CURVE_COLUMNS),
        "kinds": ", ".join(f"`{kind}`" for kind in KINDS) + "\n",
        "variants": columns(VARIANTS_COLUMNS),
        "speedups": columns(SPEEDUPS_COLUMNS),
        "ranking": columns(RANKING_COLUMNS),
        "kernels-table": columns(KERNELS_TABLE_COLUMNS),
        "parity": columns(PARITY_COLUMNS),
        "parity-verdicts": columns(PARITY_VERDICTS, "verdict"),
        "proofs": columns(PROOFS_COLUMNS),
        "verdicts": columns(VERDICTS, "verdict"),
        "claims": columns(CLAIMS_COLUMNS),
    }


def fill(text: str) -> str:
    """The page with each marked table made anew.

    Raises:
        KeyError: a marker names no table.
    """
    made = tables()
    return BLOCK.sub(lambda block: f"{block[1]}{made[block[2]]}{block[3]}", text)


def main(folder: Path = DOCS) -> None:
    for path in sorted(folder.glob("*.md")):
        old = path.read_text(encoding="utf-8")
        new = fill(old)
        if new != old:
            write_text(path, new)
            print(path, file=sys.stderr)


if __name__ == "__main__":
    main()
