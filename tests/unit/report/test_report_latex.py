r"""LaTeX fragments: the report's numbers, any name and reason as text, and a paper that compiles with them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from operator_runs import make_operators
from parity_runs import write_parity

from halfstep.report import latex
from halfstep.report.collect import collect
from halfstep.report.figures import plot
from halfstep.report.latex import Table, fragment, prose
from halfstep.report.results import load
from halfstep.study import validate

ROOT = Path(__file__).parents[3]
NASTY = (
    r"\input{/etc/passwd} \write18{rm} %comment $math$ {brace }_sub ^sup ~ # & \\ \end{document} "
    "<script>alert(1)</script> a--b 'c' \"d\" ?` !` |e| [f] *g* `code_%$#` é ß Ł 日本語 \u202e\x00\x1b[31m\nline 😀"
)


def compiled(document: Path) -> str:
    """The log of pdflatex, which must not fail."""
    if shutil.which("pdflatex") is None:
        pytest.skip(
            "pdflatex is not installed: Debian has it in texlive-latex-base, booktabs in texlive-latex-recommended"
        )
    for _ in range(2):  # the second time with the references
        command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", document.name]
        done = subprocess.run(
            command, cwd=document.parent, capture_output=True, text=True, errors="replace", check=False
        )
        assert done.returncode == 0, done.stdout[-3000:]
    return document.with_suffix(".log").read_text(encoding="utf-8", errors="replace")


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("1.24 [1.03, 1.50]", "1.24 [1.03, 1.50]"),
        ("`te_layers` of 47 %", r"\texttt{te\_layers} of 47 \%"),
        ("`--use-singularity`", r"\texttt{-{}-use-singularity}"),
        (r"\input{x} $y$ #1 & ~^", r"\textbackslash{}input\{x\} \$y\$ \#1 \& \textasciitilde{}\textasciicircum{}"),
        ("a < b > c | \"d\"", r"a \textless{} b \textgreater{} c \textbar{} \char34{}d\char34{}"),
        ("Größe – 3 × 4 µs", r"Gr\"{o}\ss{}e -- 3 \(\times\) 4 \(\mu\)s"),
        ("日\u202e\n\x00x", r"\texttt{U+65E5} x"),
        ("", "--"),
        ("~~1.3 [1.2, 1.4]~~", r"\setbox0=\hbox{1.3 [1.2, 1.4]}\rlap{\raisebox{0.5ex}{\rule{\wd0}{0.4pt}}}\box0{}"),
        ("~~a name~~", r"\textasciitilde{}\textasciitilde{}a name\textasciitilde{}\textasciitilde{}"),
    ],
)  # fmt: skip
def test_any_text_is_printed_as_it_is(text: str, printed: str) -> None:
    assert prose(text) == printed


def test_what_is_written_is_ascii_and_of_the_report(h200: Path) -> None:
    plot(h200)
    results = load(h200)
    latex.write_tables(results)
    found = {path.name: path.read_text(encoding="ascii") for path in (h200 / "tables").glob("*.tex")}
    assert found.keys() == {
        "environment.tex", "lm-proofs.tex", "lm-variants.tex", "not-run.tex", "vit-b128-proofs.tex",
        "vit-b128-variants.tex",
    }  # fmt: skip
    table = found["vit-b128-variants.tex"]
    assert r"\label{tab:halfstep-vit-b128-variants}" in table
    assert (
        "Speed-ups are ratios of throughput over \\texttt{eager}. Brackets hold 95 \\% intervals. NVIDIA H200." in table
    )
    report_line = next(line for line in (found["lm-variants.tex"]).splitlines() if "lm-graphs" in line)
    cells = [cell.strip() for cell in report_line.removesuffix(r"\\").split("&")]
    assert re.fullmatch(r"\d\.\d\d \[\d\.\d\d, \d\.\d\d\]", cells[4])
    assert "OutOfMemoryError: CUDA out of memory" in found["not-run.tex"]


def test_a_table_that_no_longer_belongs_there_is_removed(h200: Path, scopes: SimpleNamespace) -> None:
    latex.write_tables(load(h200))
    collect(h200, validate({**scopes.config, "comparisons": {"lm": scopes.config["comparisons"]["lm"]}}))
    latex.write_tables(load(h200))
    assert not list((h200 / "tables").glob("vit*.tex")) and list((h200 / "tables").glob("lm*.tex"))


def test_a_long_table_goes_over_several_pages() -> None:
    table = Table("x", "Many.", ["a", "n"], ["l", "r"], [[f"`v{n}`", str(n)] for n in range(85)])
    text = fragment(table, "h200")
    assert text.count(r"\begin{table*}") == 3
    assert [text.count(f"Many. ({page} of 3)") for page in (1, 2, 3)] == [1, 1, 1]
    assert all(rf"\texttt{{v{n}}}" in text for n in range(85))


def test_whatever_a_study_holds_the_tables_compile(tmp_path: Path, scopes: SimpleNamespace) -> None:
    config = {**scopes.config, "title": NASTY}
    config["comparisons"] = {
        name: {**comparison, "title": f"{name}: {NASTY}"} for name, comparison in scopes.config["comparisons"].items()
    }
    failing = {"status": "failed", "reason": NASTY}
    environment = {**scopes.environment, "[x": NASTY, "* y": "[z]"}
    study = validate(config)
    scopes.make(tmp_path / "h200", config, {**scopes.behaviour, "whole": failing, "lm-bf16": failing})
    for key in (("lm", "lm-fp32", 1), ("lm", "lm-graphs", 1)):
        scopes.write_run(tmp_path / "h200", study, key, scopes.behaviour[key[1]], environment=environment)
    collect(tmp_path / "h200", study)
    latex.write_tables(load(tmp_path / "h200"))
    tables = sorted((tmp_path / "h200" / "tables").glob("*.tex"))
    inputs = "\n".join(rf"\input{{h200/tables/{path.stem}}}" for path in tables)
    document = tmp_path / "document.tex"
    document.write_text(
        "\\documentclass{article}\n\\usepackage{booktabs,array}\n\\begin{document}\n" + inputs + "\n\\end{document}\n"
    )
    log = compiled(document)
    assert "root:" not in log and len(tables) > 4
    if shutil.which("pdftotext"):
        done = subprocess.run(
            ["pdftotext", "-layout", document.with_suffix(".pdf"), "-"], capture_output=True, text=True
        )
        assert "script" in done.stdout and "U+65E5" in done.stdout


def fit_on_their_pages(scope_dir: Path, width: str) -> dict[str, str]:
    """All tables of a scope, by name, once they have been printed without one that sticks out of the text."""
    latex.write_tables(load(scope_dir))
    tables = {path.stem: path.read_text() for path in sorted((scope_dir / "tables").glob("*.tex"))}
    inputs = "\n".join(rf"\input{{{scope_dir.name}/tables/{name}}}" for name in tables)
    document = scope_dir.with_name("document.tex")
    document.write_text(
        f"\\documentclass{{article}}\n\\usepackage[textwidth={width}]{{geometry}}\n\\usepackage{{booktabs,array}}\n"
        f"\\begin{{document}}\n{inputs}\n\\end{{document}}\n"
    )
    assert not re.findall(r"^(?:Overfull|LaTeX Warning).*", compiled(document), re.MULTILINE)
    return tables


def test_tables_of_operators_fit_on_their_pages(tmp_path: Path) -> None:
    make_operators(tmp_path / "h200")
    tables = fit_on_their_pages(tmp_path / "h200", "7in")
    assert {"dtypes-limit", "dtypes-value-of-the-sample", "dtypes-operation", "gemm-case"} <= tables.keys()


def test_tables_of_parity_fit_and_what_is_out_of_bounds_is_struck_out(tmp_path: Path, scopes: SimpleNamespace) -> None:
    study = scopes.make(tmp_path / "h200", scopes.config, scopes.behaviour)
    write_parity(tmp_path / "h200", study, outside=["bf16"])
    collect(tmp_path / "h200", study)
    tables = fit_on_their_pages(tmp_path / "h200", "7in")  # as wide as the figures over two columns
    lines = tables["vit_huge+adam_fused+layernorm-parity"].splitlines()
    assert [line for line in lines if line.strip().startswith(r"\texttt{bf16}") and line.endswith(r"outside \\")]
    struck = [line for line in tables["lm-variants"].splitlines() if r"\rule{\wd0}" in line]
    assert struck and all("out of bounds" in line or "outside" in line for line in struck), struck


def test_the_paper_compiles_and_nothing_sticks_out(tmp_path: Path) -> None:
    """With what it takes from results/reference/, at its place in the tree."""
    shutil.copytree(ROOT / "paper", tmp_path / "paper")
    shutil.copytree(ROOT / "results" / "reference", tmp_path / "results" / "reference")
    log = compiled(tmp_path / "paper" / "example.tex")
    assert not re.findall(r"^(?:Overfull|LaTeX Warning|! ).*", log, re.MULTILINE)
    if shutil.which("pdffonts"):
        pdf = tmp_path / "paper" / "example.pdf"
        fonts = subprocess.run(["pdffonts", pdf], capture_output=True, text=True, check=True).stdout.splitlines()[2:]
        assert fonts and all(re.search(r"\s(Type 1|CID TrueType)\s.*\s+yes yes \w+\s", font) for font in fonts), fonts


def test_figures_are_as_wide_as_one_column_or_two(h200: Path) -> None:
    plot(h200)
    widths = set()
    for path in (h200 / "figures").glob("*.pdf"):
        content = path.read_bytes()
        (box,) = re.findall(rb"/MediaBox \[ ?0 0 ([\d.]+) [\d.]+ ?\]", content)
        widths.add(round(float(box), 1))
        assert b"/FontFile2" in content and b"/Type3" not in content
    assert widths == {244.8, 504.0}  # 3.4 and 7 inches
