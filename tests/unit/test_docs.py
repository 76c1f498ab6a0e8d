"""The documentation says what the code does: its tables, its studies, its examples."""

from __future__ import annotations

import re
from collections import OrderedDict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from halfstep import docs_tables
from halfstep.fp8.linear import Float8Linear
from halfstep.measure import row
from halfstep.measure.supervisor import Outcome
from halfstep.recipes.precision.precision import Precision
from halfstep.records import STATUSES, read_record
from halfstep.runs import Scope, resolve
from halfstep.study import Settings, validate

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", *DOCS.glob("*.md")])
TEXTS = {path.name: path.read_text(encoding="utf-8") for path in PAGES}


@pytest.mark.parametrize("name", TEXTS)
def test_the_tables_are_those_of_the_code(name: str) -> None:
    assert docs_tables.fill(TEXTS[name]) == TEXTS[name], "run: python -m halfstep.docs_tables"


def test_every_table_stands_in_the_docs_once() -> None:
    found = [block[2] for text in TEXTS.values() for block in docs_tables.BLOCK.finditer(text)]
    assert sorted(found) == sorted(docs_tables.tables())


def test_the_command_writes_only_what_has_changed(tmp_path: Path) -> None:
    stale = "before\n<!-- table: window -->\nold\n<!-- end -->\nafter\n"
    (tmp_path / "a.md").write_text(stale)
    (tmp_path / "b.md").write_text("nothing to fill\n")
    docs_tables.main(tmp_path)
    filled = (tmp_path / "a.md").read_text()
    assert filled.startswith("before\n<!-- table: window -->\n| key |") and filled.endswith("<!-- end -->\nafter\n")
    assert "`min_steps`" in filled and "old" not in filled
    assert docs_tables.fill(filled) == filled
    assert (tmp_path / "b.md").read_text() == "nothing to fill\n"
    with pytest.raises(KeyError):
        docs_tables.fill("<!-- table: windw -->\n<!-- end -->\n")


def test_every_key_of_a_variant_has_its_choices_and_default_in_the_table() -> None:
    table = docs_tables.keys("Variant")
    assert all(f"| `{name}` |" in table for name in Settings.model_fields)
    assert "| `compile` | `none`, `blocks`, `model`, `graphs` | `none` |" in table
    assert "| `batch` | whole number above 0 | `16` |" in table
    assert "| `memory_cap_gib` | number above 0 or nothing | – |" in table


def blocks(language: str) -> list[tuple[str, str]]:
    found = re.compile(rf"^```{language}\n(.*?)^```", re.DOTALL | re.MULTILINE)
    return [(name, code) for name, text in TEXTS.items() for code in found.findall(text)]


@pytest.mark.parametrize(("name", "text"), blocks("yaml"))
def test_every_study_in_the_docs_is_valid(name: str, text: str) -> None:
    validate(yaml.safe_load(text), source=name)


def test_the_recipe_in_the_docs_is_whole_and_works_on_a_cpu() -> None:
    (code,) = (code for name, code in blocks("python") if name == "adding-a-variant.md")
    before = torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    scope: dict[str, Any] = {}
    exec(code, scope)
    made = [value for value in scope.values() if isinstance(value, type) and value.__module__ == "builtins"]
    (recipe_class,) = made
    assert issubclass(recipe_class, Precision)
    try:
        recipe, model = recipe_class(torch.device("cpu"), torch.float32), nn.Linear(4, 4)
        assert not torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
        with recipe.autocast():
            out = model(torch.ones(1, 4))
        recipe.backward(out.float().sum())
        recipe.update(torch.optim.SGD(model.parameters(), lr=0.1))
        assert out.dtype == torch.bfloat16
        assert f":{recipe_class.__name__}" in TEXTS["adding-a-variant.md"]
    finally:
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = before


def test_the_training_loop_in_the_docs_trains_in_fp8(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it stands but for the GPU, which this machine need not have."""
    (code,) = (code for name, code in blocks("python") if name == "fp8.md")
    monkeypatch.setattr(nn.Module, "cuda", lambda self: self)
    code, changed = re.subn(r"^(convert\(.*)\)$", r"\1, emulate=True)", code, flags=re.MULTILINE)
    assert changed == 1
    model = nn.Sequential(OrderedDict(body=nn.Linear(16, 16), head=nn.Linear(16, 10)))
    before = model.body.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    exec(code, {"model": model, "optimizer": optimizer, "batches": torch.ones(2, 16, 16)})
    assert (type(model.body), type(model.head)) == (Float8Linear, nn.Linear)
    assert not any(model.body.first_step.values())
    assert not torch.equal(model.body.weight, before)


def test_every_key_of_a_record_is_explained(tmp_path: Path) -> None:
    config = {"comparisons": {"c": {"workload": "lm", "baseline": "a", "variants": {"a": {}}}}}
    run = resolve(validate(config), Scope("cpu", "smoke"), ("c", "a", 1))
    out = tmp_path / "runs" / "c" / "a" / "rep1"
    row.write(out, run, "", Outcome("failed", "so"), None, None, datetime.now(UTC))
    section = TEXTS["results-schema.md"].partition("### record.json")[2].partition("\n## ")[0]
    explained = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| ([^|]*) \|", section, re.MULTILINE))))
    assert explained == set(read_record(out))


def test_the_readme_names_every_status() -> None:
    assert all(f"`{status}`" in TEXTS["README.md"] for status in (*STATUSES, "missing", "stale"))


def anchors(text: str) -> set[str]:
    """GitHub's anchors of a page's headings."""
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"(?<!!)\[[^\]]*\]\(([^)]+)\)", TEXTS[path.name]):
        file, _, anchor = target.partition("#")
        there = path.parent / file if file else path
        assert there.is_file(), f"{path.name}: {target}"
        assert not anchor or anchor in anchors(there.read_text(encoding="utf-8")), f"{path.name}: {target}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_files_that_are_named_are_there(path: Path) -> None:
    named = re.findall(r"`((?:[\w.-]+/)*[\w-]+\.py)`", TEXTS[path.name])
    example = re.search(r"recipes/precision/(\w+)\.py`:\n\n```python", TEXTS[path.name])
    for name in named:
        if example is None or example[1] not in name:
            assert any((folder / name).is_file() for folder in (ROOT, ROOT / "src" / "halfstep")), name
