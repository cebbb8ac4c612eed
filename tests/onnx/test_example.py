"""The example reads every digit on every device."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_digits(repo: Path, clean_env: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(repo / "examples/onnx_digits.py")],
        capture_output=True, text=True, env=clean_env, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and done.stderr == "", done.stderr
    lines = [line for line in done.stdout.splitlines() if ": [" in line]
    assert lines and all("[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]" in line for line in lines)
