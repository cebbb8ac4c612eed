"""Files that pages, docstrings and the Makefile name by their path in the repository exist."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

FOLDERS = ("benchmarks", "docs", "examples", "findings", "rlx", "shaders", "tests", "tools")
_PATH = re.compile(rf"(?<![\w/.<])(?:{'|'.join(FOLDERS)})/[\w./-]*\w\.(?:py|md|sh|comp|h|txt|json|toml)\b")
_MODULE = re.compile(r"python -m ((?:benchmarks|tests|rlx)(?:\.\w+)*)")


def named_files(text: str) -> set[str]:
    """The paths in a text, those of modules that `python -m` runs too."""
    modules = {f"{name.replace('.', '/')}" for name in _MODULE.findall(text)}
    return set(_PATH.findall(text)) | modules


def missing(text: str, repo: Path) -> list[str]:
    """Those of a text that are neither files nor modules or packages that can be run."""
    places = {n: (repo / n, repo / f"{n}.py", repo / n / "__main__.py") for n in named_files(text)}
    return sorted(n for n, (path, *runs) in places.items() if not path.is_file() and not any(r.is_file() for r in runs))


def test_named_files_exist(repo: Path) -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=repo, capture_output=True, text=True, check=False).stdout.split()
    if not listed:
        pytest.skip("no git repository, which says which files are the project's")
    pages = [n for n in listed if n.endswith(".md") or n == "Makefile" or n.startswith("benchmarks/")]
    wrong = {n: found for n in pages if (found := missing((repo / n).read_text(encoding="utf-8"), repo))}
    assert wrong == {}


def test_a_file_that_is_not_there_is_noticed(repo: Path) -> None:
    text = "`python benchmarks/nowhere.py`, `python -m tests.nowhere`, tests/conftest.py, `python -m rlx.conformance`"
    assert missing(text, repo) == ["benchmarks/nowhere.py", "tests/nowhere"]
