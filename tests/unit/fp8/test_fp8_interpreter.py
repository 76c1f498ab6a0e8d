"""The kernels in Triton's interpreter: in a process of its own, since Triton looks for it as it is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_the_kernels_in_tritons_interpreter() -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "interpreter", Path(__file__).parent],
        env={**kept, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr  # 5 where it found none
    assert "skipped" not in done.stdout.splitlines()[-1], done.stdout
