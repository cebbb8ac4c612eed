"""What the tracked files may not hold, and what the pages say beside what the code does."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

# Paths of one person's machine, hosts of registries, and references that mean nothing outside a tracker.
FOREIGN = {
    "path of one machine": re.compile(r"(?<![\w.$}])/(?:work|root|home/\w+)/"),
    "path outside the project": re.compile(r"\.\./shared/"),
    "package registry": re.compile(r"(?:pythonhosted|pypi|registry\.npmjs|deb\.debian)\.org"),
    "issue number": re.compile(r"\bissues?\s+#?\d+\b|\(#\d+\)", re.IGNORECASE),
}
SETTING = re.compile(r"\bRLX_[A-Z][A-Z0-9_]*[A-Z0-9]\b")
BINARY = {".spv", ".png", ".npy", ".npz", ".safetensors", ".gz"}


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
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            wrong += [
                f"{path.relative_to(repo)}:{number}: {what}"
                for what, rx in FOREIGN.items()
                if rx.search(line)
            ]
    assert not wrong, "\n".join(wrong)
