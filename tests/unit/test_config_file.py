"""What a YAML file holds, or why it holds no study."""

from __future__ import annotations

from pathlib import Path

import pytest

from halfstep.config_file import read_config
from halfstep.mistakes import StudyError


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("title: a\ntitle: b\n", "the key 'title' is there twice (line 2)."),
        ("comparisons:\n  c:\n    baseline: a\n    baseline: b\n", "the key 'baseline' is there twice (line 4)."),
        ("title: [\n", "is not YAML: line 2, column 1: expected the node content"),
        ("title: !!python/object:os.system {}\n", "is not YAML: line 1, column 8: could not determine a constructor"),
        ("- 1\n", "should hold keys such as 'comparisons:', and is a list."),
        ("", "is empty: it should hold keys such as 'comparisons:'."),
        ("? [1]\n: 2\n", "is not YAML"),
        ("title: 2026-13-45\n", "is not YAML"),
        ("title: \xff\n".encode("latin-1"), "cannot be read: it is not UTF-8 text."),
        (None, "cannot be read: No such file or directory."),
    ],
)
def test_a_file_that_holds_no_study_is_named_in_a_sentence(
    tmp_path: Path, text: str | bytes | None, sentence: str
) -> None:
    path = tmp_path / "study.yaml"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(StudyError) as caught:
        read_config(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert sentence in str(caught.value)


def test_yaml_merge_keys_may_be_overridden(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text("a: &a {batch: 16, precision: bf16}\nb: {<<: *a, batch: 32}\n")
    assert read_config(path)["b"] == {"batch": 32, "precision": "bf16"}
