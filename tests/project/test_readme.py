"""The README's example runs as printed, and the commands it lists exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


def code_blocks(repo: Path, language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```", (repo / "README.md").read_text(encoding="utf-8"), re.M | re.S
    )


def test_the_example_runs(repo: Path, clean_env: dict[str, str]) -> None:
    (example,) = code_blocks(repo, "python")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", example],
        capture_output=True,
        text=True,
        env=clean_env,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), "the example prints its answer"


def test_the_commands_exist(repo: Path, clean_env: dict[str, str]) -> None:
    text = "\n".join(code_blocks(repo, "sh"))
    commands = set(re.findall(r"^rlx (\w+)", text, re.M))
    assert commands
    code = """
import sys
from rlx.cli import main
for command in sys.argv[1:]:
    sys.argv = ["rlx", command, "--help"]
    try:
        status = main()
    except SystemExit as end:
        status = end.code
    if status:
        sys.exit(f"rlx {command} --help: status {status}")
"""
    done = subprocess.run(
        [sys.executable, "-c", code, *sorted(commands)],
        capture_output=True,
        text=True,
        env=clean_env,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("Usage:") == len(commands)


def test_the_make_targets_exist(repo: Path) -> None:
    text = (repo / "README.md").read_text(encoding="utf-8") + (repo / "CONTRIBUTING.md").read_text(
        encoding="utf-8"
    )
    named = set(re.findall(r"\bmake (\w+)(?=[`\s]*(?:#|\n|`))", text))
    defined = set(re.findall(r"^(\w+):", (repo / "Makefile").read_text(encoding="utf-8"), re.M))
    assert named and named <= defined, f"not in the Makefile: {sorted(named - defined)}"
