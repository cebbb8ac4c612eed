"""What the tracked files may not hold, and what the pages say beside what the code does."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

# Paths of one person's machine, hosts of registries, and references that mean nothing outside a tracker.
FOREIGN = {
    "path of one machine": re.compile(r"(?<![\w.$}])/(?:work|root|home/\w+)/"),
    "path outside the project": re.compile(r"\.\./shared/"),
    "package registry": re.compile(r"(?:pythonhosted|pypi|registry\.npmjs|deb\.debian)\.org"),
    "issue number": re.compile(r"\bissues?\s+#?\d+\b|\(#\d+\)", re.IGNORECASE),
}
BINARY = {".spv", ".ply", ".png", ".npy", ".npz", ".safetensors", ".gz"}


@pytest.fixture(scope="module")
def tracked(repo: Path) -> list[Path]:
    if not (repo / ".git").exists():
        pytest.skip("not a git checkout")
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=repo, capture_output=True, text=True, check=True
    ).stdout
    return [repo / name for name in names.split("\0") if name and (repo / name).is_file()]


def test_no_tracked_file_names_a_machine_a_registry_or_a_tracker(repo: Path, tracked: list[Path]) -> None:
    wrong = []
    for path in tracked:
        if path.suffix in BINARY or path == Path(__file__).resolve():
            continue
        text = path.read_text(encoding="utf-8")
        for what, pattern in FOREIGN.items():
            for hit in pattern.finditer(text):
                wrong.append(f"{path.relative_to(repo)}:{text.count(chr(10), 0, hit.start()) + 1}: {what}")
    assert not wrong, "\n".join(wrong)


def test_collecting_needs_no_package_beside_those_of_the_test_extra(repo: Path) -> None:
    """A test that needs another one imports it itself, and skips by its name: one that is missing would else end the
    collection of all."""
    project = tomllib.loads((repo / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    listed = [*project["dependencies"], *(line for extra in ("test", "hf", "serve") for line in extras[extra])]
    installed = {re.split(r"[\[<>=~!; ]", line)[0].replace("-", "_") for line in listed}
    allowed = installed | sys.stdlib_module_names | {"rlx", "tests", "examples", "_pytest"}
    pattern = re.compile(r"^(?:from|import) (\w+)((?:\.\w+)*)(?: import \(?([\w, \n]*))?", re.MULTILINE)
    left = [*(repo / "tests").rglob("test_*.py"), repo / "tests/conftest.py"]
    read, wrong = set(left), []
    while left:
        file = left.pop()
        for package, rest, names in pattern.findall(file.read_text(encoding="utf-8")):
            if package not in allowed:
                wrong.append(f"{file.relative_to(repo)}: {package}")
            module = repo / "/".join([package, *rest.split(".")[1:]])
            beside = [module, *(module / name.strip() for name in names.split(","))] if package == "tests" else []
            new = {path.with_suffix(".py") for path in beside if path.with_suffix(".py").exists()} - read
            read |= new
            left += new
    assert wrong == [] and len(read) > 300
