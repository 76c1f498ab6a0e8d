"""Fingerprints of code: what a result depends on, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from halfstep import fingerprint
from halfstep.fingerprint import CHILD, SOURCE, closure, run_fingerprint, run_modules, source_hash
from halfstep.registry import COMPILES, GEMMS, NORMS, OPERATOR, OPERATORS, OPTIMIZERS, PRECISIONS, TRAINING, WORKLOADS
from halfstep.runs import Scope, resolve
from halfstep.study import validate

NATIVE = {"native_delayed", "native_delayed_linears", "native_delayed_no_init"}
FUNCTION = '''
"""A module."""

import os  # why


def double(x: int, *, twice: bool = False) -> int:
    """Doubles."""
    if twice:
        return 4 * x
    return 2 * x


class Thing:
    size: int = 3
    """its size"""
'''


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  # why", ""),
        ('"""A module."""', '"""Another docstring."""'),
        ('"""A module."""\n', ""),
        ('    """Doubles."""\n', ""),
        ('    """its size"""\n', ""),
        ("\n\n\nclass", "\n\n\n\n\n# a comment\nclass"),
        ("    if twice:\n        return 4 * x", "    if twice: return (4 * x)"),
        ("x: int, *, twice: bool = False", "x: int,\n    *,\n    twice: bool = False,\n"),
    ],
)
def test_comments_docstrings_and_layout_do_not_count(old: str, new: str) -> None:
    assert old in FUNCTION
    assert source_hash(FUNCTION.replace(old, new)) == source_hash(FUNCTION)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("2 * x", "3 * x"),
        ("2 * x", "2.0 * x"),
        ("2 * x", "x * 2"),
        ("bool = False", "bool = True"),
        ("import os", "import sys"),
        ("double", "triple"),
        ("    if twice:\n        return 4 * x\n", ""),
        ("return 4 * x", 'return "4 * x"'),
    ],
)
def test_code_counts(old: str, new: str) -> None:
    assert old in FUNCTION
    assert source_hash(FUNCTION.replace(old, new)) != source_hash(FUNCTION)


def other_pythons() -> list[str]:
    """Interpreters of the other versions that we support, where they really start."""
    found = []
    for minor in (11, 12, 13):
        path = shutil.which(f"python3.{minor}")
        if path and minor != sys.version_info.minor:
            probe = subprocess.run([path, "-c", "import sys; print(sys.version_info[1])"], capture_output=True)
            found += [path] if probe.stdout.strip() == str(minor).encode() else []
    return found


def test_all_python_versions_hash_a_source_alike(tmp_path: Path) -> None:
    pythons = other_pythons()
    if not pythons:
        pytest.skip("no second Python from 3.11 to 3.13 is here")
    # the functions alone, since the module imports grimp, which only our own interpreter has
    text = Path(fingerprint.__file__).read_text(encoding="utf-8").replace("import grimp\n", "grimp = None\n")
    (tmp_path / "hashing.py").write_text(text.replace("grimp.ImportGraph", "object"), encoding="utf-8")
    sources = sorted(SOURCE.rglob("*.py"))
    program = (
        "import sys; from pathlib import Path; from hashing import source_hash\n"
        "for name in sys.argv[1:]: print(source_hash(Path(name).read_text(encoding='utf-8')))"
    )
    here = [source_hash(path.read_text(encoding="utf-8")) for path in sources]
    for python in pythons:
        there = subprocess.run(
            [python, "-c", program, *map(str, sources)], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert there.stdout.split() == here, python


def test_a_run_hangs_on_its_own_recipes_and_not_on_other_ones() -> None:
    eager = closure(run_modules([TRAINING, PRECISIONS["bf16"], WORKLOADS["lm"]]))
    assert {CHILD, "halfstep.measure.training", "halfstep.recipes.precision.precision"} <= set(eager)
    assert {"halfstep.recipes.precision.bf16", "halfstep.workloads.lm"} <= set(eager)
    others = {"halfstep.recipes.precision.fp16", "halfstep.workloads.vit", "halfstep.workloads.lm_wide"}
    assert not others & set(eager)


@pytest.mark.parametrize(
    ("module", "precisions"),
    [
        ("halfstep.fp8.linear", NATIVE),
        ("halfstep.fp8.kernels", NATIVE),
        ("halfstep.recipes.precision.native_delayed", NATIVE),
        (
            "halfstep.recipes.precision.te_linears",
            {"te_linears_delayed", "te_linears_current", "te_linears_block", "te_layers_delayed"},
        ),
        (
            "halfstep.recipes.precision.torchao",
            {"torchao_tensorwise", "torchao_rowwise", "torchao_rowwise_with_gw_hp"},
        ),
    ],
)
def test_an_fp8_recipe_is_code_of_the_variants_that_use_it_and_of_no_others(module: str, precisions: set[str]) -> None:
    """Whether or not this machine can do them."""
    found = {
        name
        for name, reference in PRECISIONS.items()
        if module in closure(run_modules([TRAINING, reference, WORKLOADS["lm"]]))
    }
    assert found == precisions


def test_an_operator_hangs_on_no_training_loop_and_training_on_no_operator() -> None:
    product = closure(run_modules([OPERATOR, OPERATORS["gemm"].reference, GEMMS["bf16"]]))
    assert {CHILD, "halfstep.measure.benchmark", "halfstep.workloads.gemm", "halfstep.recipes.gemms"} <= set(product)
    assert not [name for name in product if name in ("halfstep.measure.training", "halfstep.workloads.vit")]
    trained = closure(run_modules([TRAINING, PRECISIONS["bf16"], WORKLOADS["lm"]]))
    assert not [name for name in trained if "operator" in name or name.endswith((".benchmark", ".gemms"))]


def test_no_run_hangs_on_what_does_not_measure() -> None:
    """So that an edit of the study's models, the supervisor, the report or the registry measures nothing again."""
    everything = [
        TRAINING,
        *WORKLOADS.values(),
        *PRECISIONS.values(),
        *COMPILES.values(),
        *NORMS.values(),
        *OPTIMIZERS.values(),
        OPERATOR,
        *(operator.reference for operator in OPERATORS.values()),
        *GEMMS.values(),
    ]
    found = closure(run_modules(everything))
    outside = (
        "halfstep.config_file",
        "halfstep.study",
        "halfstep.runs",
        "halfstep.registry",
        "halfstep.cli",
        "halfstep.records",
        "halfstep.kernel_kinds",
    )
    supervising = ("halfstep.measure.supervisor", "halfstep.measure.row", "halfstep.system.telemetry")
    assert not set(outside + supervising) & set(found)
    assert not [module for module in found if module.startswith("halfstep.report")]


def test_the_report_hangs_on_no_recipe() -> None:
    found = closure(["halfstep.report.write", "halfstep.archive.make", "halfstep.archive.verify"])
    assert not [module for module in found if module.startswith(("halfstep.recipes.", "halfstep.workloads."))]
    assert not [module for module in found if module.startswith("halfstep.measure")]


def test_recipes_and_workloads_do_not_import_each_other() -> None:
    recipes = closure(
        [reference.partition(":")[0] for reference in (*PRECISIONS.values(), *COMPILES.values(), *GEMMS.values())]
    )
    assert not [module for module in recipes if module.startswith("halfstep.workloads")]
    operators = (operator.reference for operator in OPERATORS.values())
    workloads = closure([reference.partition(":")[0] for reference in (*WORKLOADS.values(), *operators)])
    assert not [module for module in workloads if module.startswith("halfstep.recipes")]


def test_the_fingerprint_of_a_run_is_of_its_modules_in_any_order() -> None:
    one = [PRECISIONS["bf16"], WORKLOADS["lm"], COMPILES["none"]]
    assert run_fingerprint(one) == run_fingerprint(reversed(one))
    # another attribute of the same module is the same code
    assert run_fingerprint(one) == run_fingerprint([*one[:2], COMPILES["graphs"]])
    assert run_fingerprint(one) != run_fingerprint([PRECISIONS["fp16"], *one[1:]])


def test_the_closure_of_a_run_is_what_its_process_imports(tmp_path: Path) -> None:
    """One that lacked a module would leave results as they are when that module is edited."""
    comparison = {"workload": "lm", "baseline": "a", "variants": {"a": {"precision": "bf16", "weights": "bf16"}}}
    run = resolve(validate({"comparisons": {"c": comparison}}), Scope("cpu", "smoke"), ("c", "a", 1))
    result = tmp_path / "result.json"
    program = (
        "import sys; from halfstep.measure import child; child.main()\n"
        "print(*sorted(name for name in sys.modules if name.partition('.')[0] == 'halfstep'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, run.canonical(), str(result)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    assert json.loads(result.read_text())["status"] == "ok", done.stderr
    assert done.stdout.splitlines()[-1].split() == closure(run_modules(run.modules.values()))
