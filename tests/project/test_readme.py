"""The commands that README lists exist; its example is examples/hello.py, which tests/cli/test_examples.py runs."""

from __future__ import annotations

import itertools
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import typer
from typer.main import get_command

from rlx.cli.app import app
from rlx.errors import RlxError


def code_blocks(repo: Path, language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```", (repo / "README.md").read_text(encoding="utf-8"), re.M | re.S
    )


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


def test_every_command_line_of_the_pages_parses(repo: Path) -> None:
    """Its options exist and take such values; nothing is run."""
    wrong, seen = [], 0
    group: Any = get_command(app)
    usage_error = typer.BadParameter.__base__  # typer has click's classes, its own copies in newer versions
    assert usage_error is not None and usage_error.__name__ == "UsageError"
    for page in [repo / "README.md", *(repo / "docs").glob("*.md"), *(repo / "docs/tutorials").glob("*.md")]:
        for block in re.findall(r"^```sh\n(.*?)^```", page.read_text("utf-8"), re.M | re.S):
            for line in re.findall(r"^rlx (?!--).*", block.replace("\\\n", " "), re.M):
                words = [*itertools.takewhile(lambda word: word[0] not in "<>|&", shlex.split(line, comments=True))]
                seen += 1
                try:
                    command = group.get_command(None, words[1])
                    assert command is not None, f"there is no rlx {words[1]}"
                    command.make_context(words[1], words[2:])
                except (AssertionError, usage_error, RlxError) as error:
                    wrong.append(f"{page.name}: {line}: {getattr(error, 'message', error)}")
    assert wrong == [] and seen > 50


def test_the_make_targets_exist(repo: Path) -> None:
    text = (repo / "README.md").read_text(encoding="utf-8") + (repo / "CONTRIBUTING.md").read_text(
        encoding="utf-8"
    )
    named = set(re.findall(r"\bmake (\w+)(?=[`\s]*(?:#|\n|`))", text))
    defined = set(re.findall(r"^(\w+):", (repo / "Makefile").read_text(encoding="utf-8"), re.M))
    assert named and named <= defined, f"not in the Makefile: {sorted(named - defined)}"
