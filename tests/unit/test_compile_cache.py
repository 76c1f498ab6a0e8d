"""What a run's compilers leave, and who reads it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from halfstep.measure import supervisor
from halfstep.measure.supervisor import cache_folder, headers_folder, prepare_cache
from halfstep.runs import Run, Scope, resolve
from halfstep.study import validate


def run_of(device: str, replicate: int = 1, **settings: Any) -> Run:
    comparison = {"workload": "vit_huge", "baseline": "a", "variants": {"a": settings}}
    return resolve(validate({"comparisons": {"c": comparison}}), Scope(device, "full"), ("c", "a", replicate))


def test_replicates_of_a_variant_share_a_cache_that_the_first_one_empties(tmp_path: Path) -> None:
    out = tmp_path / "h200" / "runs" / "c" / "a"
    first, second = run_of("h200", compile="blocks"), run_of("h200", replicate=2, compile="blocks")
    assert cache_folder(out / "rep1") == cache_folder(out / "rep2") == tmp_path / "h200" / "cache" / "c" / "a"
    assert cache_folder(tmp_path / "h200/runs/c/b/rep1") != cache_folder(out / "rep1")
    assert prepare_cache(first, out / "rep1") == "cold"
    (cache_folder(out / "rep1") / "kernel").write_text("")
    assert prepare_cache(second, out / "rep2") == "warm"
    assert prepare_cache(first, out / "rep1") == "cold"
    assert prepare_cache(second, out / "rep2") == "cold"
    assert prepare_cache(run_of("h200"), out / "rep1") is None


KILLED_COMPILING = """#!/bin/bash
headers=$TMPDIR/torchinductor_$LOGNAME/precompiled_headers
mkdir -p "$headers" "$TORCHINDUCTOR_CACHE_DIR"
touch "$headers"/half.h "$headers"/half.h.gch "$TORCHINDUCTOR_CACHE_DIR"/half.so
kill -KILL $$
"""


def test_a_killed_run_leaves_nothing_half_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler takes a header's compiled form for whole, and Inductor a library: each later run would fail."""
    compiler = tmp_path / "compiler"
    compiler.write_text(KILLED_COMPILING)
    compiler.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(compiler))
    run, out = run_of("cpu", compile="blocks"), tmp_path / "cpu/runs/c/a/rep1"
    outcome, _ = supervisor.supervise(run, out, "title")
    assert (outcome.status, "killed by SIGKILL" in outcome.reason) == ("failed", True)
    assert [path.name for path in headers_folder(out).rglob("half*")] == ["half.h"]
    assert not cache_folder(out).exists()
    assert prepare_cache(run_of("cpu", replicate=2, compile="blocks"), out.with_name("rep2")) == "cold"


def test_inductor_keeps_compiled_headers_with_the_scopes_caches(tmp_path: Path) -> None:
    out, temporary = tmp_path / "cpu/runs/c/a/rep1", tmp_path / "temporary"
    temporary.mkdir()
    environment = supervisor.child_environment(run_of("cpu"), None, out, temporary, 7)
    command = [sys.executable, "-c", "from torch._inductor.codecache import _HEADER_DIR as found; print(found)"]
    found = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.strip()
    assert Path(found).resolve() == headers_folder(out) / "precompiled_headers"
