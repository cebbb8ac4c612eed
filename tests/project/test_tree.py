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


def test_source_files_stay_short(repo: Path, tracked: list[Path]) -> None:
    sources = [p for p in tracked if p.suffix in {".py", ".pyi", ".h", ".cu", ".glsl", ".comp", ".sh"}]
    for folder in ("rlx", "shaders", "tests", "benchmarks", "examples", "tools"):
        assert any(repo / folder in p.parents for p in sources), folder
    long = [f"{p.relative_to(repo)}" for p in sources if p.read_text(encoding="utf-8").count("\n") > 400]
    assert len(sources) > 500 and not long, "\n".join(long)


def test_no_built_thing_is_tracked(repo: Path, tracked: list[Path]) -> None:
    built = [
        p
        for p in tracked
        if p.suffix in {".pyc", ".so", ".whl"} or ".egg-info" in str(p) or ".venv" in p.parts
    ]
    assert not built


def test_every_setting_is_documented_and_every_documented_one_is_read(repo: Path) -> None:
    documented = set(SETTING.findall((repo / "docs/env.md").read_text(encoding="utf-8")))
    sources = [
        p for top in ("rlx", "examples", "benchmarks", "shaders", "tests") for p in (repo / top).rglob("*.py")
    ]
    read = {
        name
        for p in sources
        if "tests/project" not in p.as_posix()
        for name in SETTING.findall(p.read_text())
    }
    # C macros of the kernels share the prefix; a setting is what a Python string names.
    in_strings = {
        name
        for p in sources
        for name in re.findall(r"[\"'](RLX_[A-Z][A-Z0-9_]*)[\"']", p.read_text(encoding="utf-8"))
    }
    assert in_strings - documented == set(), "read by the code and absent from docs/env.md"
    assert documented - read == set(), "in docs/env.md and read by nothing"


def test_relative_links_of_the_pages_lead_somewhere(repo: Path, tracked: list[Path]) -> None:
    wrong = []
    for page in (p for p in tracked if p.suffix == ".md"):
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if (
                "://" not in target
                and not target.startswith("mailto:")
                and not (page.parent / target).exists()
            ):
                wrong.append(f"{page.relative_to(repo)}: {target}")
    assert not wrong, "\n".join(wrong)
