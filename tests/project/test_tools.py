"""The set-up scripts say what is missing, and the suite cannot pass without Vulkan when it must have it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

FEW_PLUGINS = ("-p", "no:cacheprovider")


@pytest.fixture
def copied(repo: Path, tmp_path: Path) -> Path:
    """A folder with the scripts of its own, so that nothing of the checkout is touched."""
    shutil.copytree(repo / "tools", tmp_path / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(repo / "pyproject.toml", tmp_path)
    return tmp_path


def test_no_suitable_python_is_said(copied: Path) -> None:
    env = {**os.environ, "PYTHON": "/nonexistent/python"}
    done = subprocess.run(
        ["bash", "tools/venv.sh", "dev"], cwd=copied, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "Python 3.11 or newer" in done.stderr and "/nonexistent/python" in done.stderr
    assert not (copied / ".venv").exists()


def test_a_driver_list_that_names_no_driver_is_said_and_nothing_is_installed(copied: Path) -> None:
    (copied / ".venv/bin").mkdir(parents=True)
    (copied / ".venv/bin/python").symlink_to(sys.executable)
    env = {**os.environ, "VK_DRIVER_FILES": "/nonexistent.json", "VK_ICD_FILENAMES": "/nonexistent.json"}
    done = subprocess.run(
        ["bash", "tools/system.sh", "vulkan"],
        cwd=copied,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "VK_DRIVER_FILES" in done.stderr
    assert "installing" not in done.stdout


SKIPS = """
import pytest

pytest.importorskip({module!r}, reason="judged by it, which `make judges` installs")

@pytest.mark.judged
def test_marked():
    pytest.skip("judged by torch, which `make judges` installs")

@{mark}
def test_other():
    pytest.skip("judged by torch, which `make judges` installs")
"""


@pytest.mark.parametrize(
    ("setting", "counts"),
    [
        ("0", {"judged": "skipped skipped", "other": "skipped failed", "missing": "skipped"}),
        ("1", {"judged": "failed failed", "other": "failed failed", "missing": "error"}),
    ],
)
@pytest.mark.late
def test_a_skip_fails_where_judges_are_required_and_where_they_would_not_be_missed(
    repo: Path, tmp_path: Path, setting: str, counts: dict[str, str]
) -> None:
    shutil.copy(repo / "tests/conftest.py", tmp_path)
    for name, module, mark in (
        ("judged", "pytest", "judged"), ("other", "pytest", "vulkan"), ("missing", "no_such_module", "judged")
    ):  # fmt: skip
        text = SKIPS.format(module=module, mark=f"pytest.mark.{mark}")
        (tmp_path / f"test_{name}.py").write_text(text, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    judged: x\n    vulkan: x\n", encoding="utf-8")
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "RLX_"))}
    report = tmp_path / "report.xml"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--continue-on-collection-errors", f"--junitxml={report}", *FEW_PLUGINS],
        cwd=tmp_path,
        env=env | {"RLX_REQUIRE_JUDGES": setting, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    found: dict[str, list[str]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        file = (case.get("classname") or case.get("name") or "").removeprefix("test_")
        found.setdefault(file, []).extend(result.tag.replace("failure", "failed") for result in case)
    assert {file: " ".join(results) for file, results in found.items()} == counts, done.stdout


@pytest.mark.parametrize("workers", [(), ("-p", "xdist", "-n", "1")], ids=["one process", "worker"])
@pytest.mark.parametrize(("setting", "status"), [("1", 1), ("0", 0)])
@pytest.mark.sample(1)
@pytest.mark.late
def test_a_run_without_vulkan_fails_when_vulkan_is_required(
    repo: Path, tmp_path: Path, setting: str, status: int, workers: tuple[str, ...]
) -> None:
    shutil.copy(repo / "tests/conftest.py", tmp_path)
    text = "import pytest\n@pytest.mark.parametrize('n', range(60))\ndef test_nothing(n):\n    pass\n"
    (tmp_path / "test_none.py").write_text(text, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = vulkan: x\n", encoding="utf-8")
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")} | {
        "RLX_REQUIRE_VULKAN": setting
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *FEW_PLUGINS, *workers],
        cwd=tmp_path,
        env=env | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stdout
    assert ("Vulkan was not exercised" in done.stdout) == bool(status)
    assert done.stdout.splitlines()[-1].startswith("60 passed")
