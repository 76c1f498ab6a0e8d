from __future__ import annotations

import subprocess

import pytest

COMMA = """
LC_NUMERIC
decimal_point "<U002C>"
thousands_sep "<U002E>"
grouping 3;3
END LC_NUMERIC
"""


@pytest.fixture(scope="session")
def decimal_commas_here(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a user whose locale has decimal commas; made here, since few machines have such a locale."""
    folder = tmp_path_factory.mktemp("locales")
    (folder / "comma.src").write_text(COMMA, encoding="utf-8")
    # --force: what the source leaves out is left out
    command = ["localedef", "--force", "--charmap=ANSI_X3.4-1968", "--inputfile=comma.src", "./comma"]
    subprocess.run(command, cwd=folder, capture_output=True, check=False)
    return {"LOCPATH": str(folder), "LC_NUMERIC": "comma"}
