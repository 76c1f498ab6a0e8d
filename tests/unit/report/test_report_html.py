"""report.html: one file that is whole, says what report.md says, and shows any text as text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest
from made_up import make_scope
from markdown_it import MarkdownIt
from operator_runs import make_operators
from parity_runs import write_parity

from halfstep.report.chart_data import Axis, around
from halfstep.report.collect import collect
from halfstep.report.figures import plot
from halfstep.report.html import prose
from halfstep.report.write import write_report
from halfstep.study import validate

VOID = {"meta", "img", "input", "br"}
NASTY = (
    "boom <script>alert(1)</script> \"'><img src=x onerror=alert(1)> &lt; ~~x~~ ``y`` {{ 7 }} \x00\x1b[31m\u202e\nline"
)


class Page(HTMLParser):
    """Tags with their attributes, the text of each, and whether all is nested as it should be."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.texts: dict[str, list[str]] = {}
        self.text = ""
        self.open: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attributes]
        assert len(names) == len(set(names)), (tag, names)
        self.tags.append((tag, {name: value or "" for name, value in attributes}))
        if tag not in VOID:
            self.open.append((tag, ""))

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attributes}))

    def handle_endtag(self, tag: str) -> None:
        opened, text = self.open.pop()
        assert opened == tag, self.getpos()
        self.texts.setdefault(tag, []).append(" ".join(text.split()))

    def handle_data(self, data: str) -> None:
        self.open = [(tag, text + data) for tag, text in self.open]
        if self.open[-1:] and self.open[-1][0] not in ("script", "style"):
            self.text += data

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.tags if name == tag]


def written(scope_dir: Path) -> Page:
    plot(scope_dir)
    write_report(scope_dir)
    return Page((scope_dir / "report.html").read_text(encoding="utf-8"))


def trained(folder: Path, scopes: SimpleNamespace) -> Path:
    """Variants in and out of bounds, one disturbed run, one unpaired variant."""
    study = make_scope(folder)
    write_parity(folder, study, outside=["adam_foreach"])
    worse = {**scopes.behaviour["whole"], "status": "disturbed", "reason": "its steps slow down by 7 %"}
    scopes.write_run(folder, study, ("vit-b128", "whole", 2), worse)
    for replicate in (1, 2, 3):
        scopes.write_run(folder, study, ("vit-b128", "blocks", replicate), scopes.behaviour["blocks"], sitting="s2")
    collect(folder, study)
    return folder


def article(folder: Path, scopes: SimpleNamespace) -> Path:
    config = json.loads(json.dumps(scopes.config))
    config["comparisons"]["lm"]["protocol"] = "article"
    make_scope(folder, config)
    return folder


def smoke(folder: Path, scopes: SimpleNamespace) -> Path:
    make_scope(folder.with_name("cpu-smoke"), scopes.config, {"eager": scopes.vit | {"ms": 60.0}})
    return folder.with_name("cpu-smoke")


def nothing(folder: Path, scopes: SimpleNamespace) -> Path:
    make_scope(folder, scopes.config, {})
    return folder


def operators(folder: Path, scopes: SimpleNamespace) -> Path:
    make_operators(folder)
    return folder


@pytest.fixture(params=[trained, article, smoke, nothing, operators], ids=lambda make: make.__name__)
def scope_dir(request: pytest.FixtureRequest, tmp_path: Path, scopes: SimpleNamespace) -> Path:
    return request.param(tmp_path / "h200", scopes)


def test_any_study_makes_a_page_that_is_whole(scope_dir: Path, unsaved: None) -> None:
    page = written(scope_dir)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert [name for name, n in Counter(ids).items() if n > 1] == []
    targets = [value for _, attributes in page.tags for name, value in attributes.items() if name in ("href", "src")]
    assert {target for target in targets if not target.startswith(("#", "data:image/svg+xml;base64,"))} == set()
    assert {target[1:] for target in targets if target.startswith("#")} <= set(ids)
    fills = re.findall(r"url\(#([^)]+)\)", " ".join(a.get("fill", "") for a in page.all("rect")))
    assert set(fills) <= set(ids)
    assert all(attributes["scope"] in ("col", "row", "rowgroup") for attributes in page.all("th"))
    asked = [attributes for _, attributes in page.tags if "tabindex" in attributes]
    assert all(attributes["aria-label"] for attributes in asked)
    assert [attributes for _, attributes in page.tags if "style" in attributes] == []


def test_it_says_all_that_the_markdown_says(scope_dir: Path, unsaved: None) -> None:
    """But for the spread of steps, which the page draws otherwise."""
    shown = " ".join(written(scope_dir).text.split())
    markdown = (scope_dir / "report.md").read_text(encoding="utf-8")
    blocks = Page(MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(markdown)).texts
    found = [text for tag in ("h1", "h2", "h3", "p", "li", "td", "th") for text in blocks.get(tag, []) if text]
    # a list's items begin with a name that the page has as a heading
    not_there = [text for text in found if text not in shown and text.partition(": ")[2] not in shown]
    assert [text for text in not_there if not text.startswith("Step-time spread.")] == []
    assert len(found) > 40


def test_the_policy_lets_its_own_style_and_script_in_and_nothing_else(h200: Path, unsaved: None) -> None:
    page = written(h200)
    (policy,) = [meta["content"] for meta in page.all("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    allowed = dict(part.split(" ", 1) for part in policy.split("; "))
    assert allowed["default-src"] == allowed["base-uri"] == allowed["form-action"] == "'none'"
    source = (h200 / "report.html").read_text(encoding="utf-8")
    for tag, directive in (("style", "style-src"), ("script", "script-src")):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", source, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert allowed[directive] == f"'sha256-{digest}'"
    assert allowed["img-src"] == "data:"


def test_titles_reasons_and_the_doctors_words_are_text(tmp_path: Path, scopes: SimpleNamespace, unsaved: None) -> None:
    config = json.loads(json.dumps(scopes.config))
    config["title"] = NASTY
    config["comparisons"]["lm"]["title"] = NASTY
    behaviour = {**scopes.behaviour, "lm-bf16": {"status": "failed", "reason": NASTY}}
    make_scope(tmp_path / "h200", config, behaviour)
    doctor = {"capabilities": [{"name": NASTY, "status": "missing", "detail": NASTY, "remedy": NASTY}]}
    (tmp_path / "h200" / "system" / "doctor.json").write_text(json.dumps(doctor))
    page = written(tmp_path / "h200")
    shown = "boom <script>alert(1)</script> \"'><img src=x onerror=alert(1)> &lt; ~~x~~ ``y`` {{ 7 }} [31m line"
    assert page.texts["title"] == page.texts["h1"] == [shown]
    assert shown in page.texts["h2"] and page.texts["td"].count(shown) >= 3 and page.texts["th"].count(shown) == 1
    assert len(page.all("script")) == 1 and page.all("img") == []
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]


def test_what_is_struck_out_and_what_is_code() -> None:
    assert prose("a<b, `a-b` ~~1.57 [1.55, 1.59]~~, ~~x~~, ``y``") == (
        "a&lt;b, <code>a-b</code> <s>1.57 [1.55, 1.59]</s>, ~~x~~, ``y``"
    )


def test_what_must_not_be_used_is_struck_out_and_still_there(
    tmp_path: Path, scopes: SimpleNamespace, unsaved: None
) -> None:
    page = written(trained(tmp_path / "h200", scopes))
    struck = [text for text in page.texts["s"] if "[" in text]
    assert len(struck) >= 2 and len(set(struck)) == 1  # the ratio of what trains out of bounds: table and chart
    assert any(re.fullmatch(r"2[89]\d\.\d", text) for text in page.texts["s"])  # the time of the disturbed run
    labels = [attributes["aria-label"] for _, attributes in page.tags if attributes.get("role") == "img"]
    assert any(re.search(r"2: 2[89]\d\.\d \(disturbed\)", label) for label in labels)
    crosses = [use for use in page.all("use") if "cross" in use.get("class", "").split()]
    assert len(crosses) > 3


def test_the_same_bytes_each_time_and_another_report_is_another_page(h200: Path, unsaved: None) -> None:
    written(h200)
    before = (h200 / "report.html").read_bytes()
    written(h200)
    assert (h200 / "report.html").read_bytes() == before
    shutil.rmtree(h200 / "runs" / "lm" / "lm-bf16" / "rep3")
    collect(h200, validate(json.loads((h200 / "study.json").read_text())["study"]))
    written(h200)
    assert (h200 / "report.html").read_bytes() != before


@pytest.mark.parametrize("values", [[1.0], [0.0, 0.0], [1e-9, 2e-9], [3.0, 4e6], [-5.0, 7.0]])
def test_an_axis_holds_its_values_and_has_ticks(values: list[float]) -> None:
    axis = around(values, "x")
    assert all(0 < float(axis.at(value)) < 100 for value in values)
    assert 1 < len(axis.ticks) < 8 and all(0 <= float(at) <= 100 for at, _ in axis.ticks)
    assert len({text for _, text in axis.ticks}) == len(axis.ticks)


def test_places_on_an_axis() -> None:
    axis = Axis(0, 400, "ms")
    assert [axis.at(value) for value in (0, 100, 400)] == ["0.00", "25.00", "100.00"]
    assert axis.ticks[1] == ("25.00", "100")
