"""The wheel holds what a user needs and runs a graph on Vulkan from its own environment; the sdist is complete."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlx.backends.gpu.modules import Modules

INSTALLED = 20 * 2**20  # what the wheel's own files may take, bytes, without bytecode
USE = """
import json, sys
from pathlib import Path
import numpy as np
import rlx

assert Path(rlx.__file__).is_relative_to(sys.prefix), f"{rlx.__file__} is not the installed wheel"
rng = np.random.default_rng(7)
x, w, b = (rng.standard_normal(s).astype(np.float32) for s in ((5, 33), (33, 18), (18,)))
g = rlx.Graph("wheel")
g.output("y", rlx.relu(g.input("x", x.shape) @ g.param("w", w.shape) + g.param("b", b.shape)))
exe = rlx.Session(device="vulkan").compile(g)
exe.set_param("w", w)
exe.set_param("b", b)
y = exe.run({"x": x})["y"]
expected = np.maximum(x.astype(np.float64) @ w.astype(np.float64) + b, 0)
error = np.abs(y - expected).max() / np.abs(expected).max()
print(json.dumps({"error": float(error), "dtype": str(y.dtype)}))
"""


def checked(*command: str | Path, cwd: Path, env: dict[str, str]) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("build", "hatchling"):
        pytest.importorskip(package, reason=f"{package}, which makes the wheel, is not installed")
    out = tmp_path_factory.mktemp("dist")
    built = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, repo],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = out.glob("rlx-*.whl")
    return path


@pytest.mark.late
def test_the_wheel_holds_all_that_is_read_at_run_time_and_nothing_else(repo: Path, wheel: Path) -> None:
    entries = zipfile.ZipFile(wheel).infolist()
    names = {entry.filename for entry in entries}
    package = {
        p.relative_to(repo).as_posix()
        for p in (repo / "rlx").rglob("*")
        if p.suffix in {".py", ".typed", ".cu", ".h", ".inc", ".html"}
    }
    assert package - names == set(), "in the source tree and missing from the wheel"
    assert any(n.startswith("rlx/backends/device_code/bodies/") for n in names)
    assert "rlx/backends/vulkan/spirv.pack" in names and not [n for n in names if "/spirv/" in n]
    assert sum(entry.file_size for entry in entries) <= INSTALLED
    assert {n.split("/")[0] for n in names} == {"rlx", f"{wheel.name.split('-py3')[0]}.dist-info"}
    assert any(n.endswith("licenses/LICENSE") for n in names)


@pytest.mark.late
def test_the_wheels_archive_holds_every_module(repo: Path, wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extract("rlx/backends/vulkan/spirv.pack", tmp_path)
    packed = Modules(tmp_path / "rlx/backends/vulkan")
    files = sorted((repo / "rlx/backends/vulkan/spirv").glob("*.spv"))
    assert len(files) > 500
    assert [file.name for file in files if packed.read(file.stem) != file.read_bytes()] == []


@pytest.fixture
def hooks(repo: Path) -> Any:
    """tools/build_hook.py."""
    pytest.importorskip("hatchling", reason="hatchling is not installed")
    spec = importlib.util.spec_from_file_location("build_hook", repo / "tools/build_hook.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def metadata(repo: Path, hooks: Any, monkeypatch: pytest.MonkeyPatch, address: str) -> dict[str, Any]:
    monkeypatch.setattr(hooks._address, "repository", lambda: address)
    made: dict[str, Any] = {}
    hooks.Addresses(str(repo), {}).update(made)
    return made


def test_links_of_the_page_of_an_index_are_absolute(repo: Path, hooks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "https://a.b/c"
    made = metadata(repo, hooks, monkeypatch, source)
    assert made["urls"] == {"Source": source, "Documentation": f"{source}/blob/HEAD/docs/index.md",
                            "Changelog": f"{source}/blob/HEAD/CHANGELOG.md"}  # fmt: skip
    links = re.findall(r"\]\(([^)\s]+)\)", made["readme"]["text"])
    assert f"{source}/raw/HEAD/docs/flow.svg" in links and len(links) > 20
    for link in links:
        place = re.fullmatch(rf"{re.escape(source)}/(?:raw|blob)/HEAD/([^#]+)(?:#.*)?", link)
        assert (place and (repo / place[1]).exists()) or link.startswith("https://"), link


def test_without_an_address_there_are_no_links_and_the_build_says_so(
    repo: Path, hooks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = metadata(repo, hooks, monkeypatch, "")
    text = (repo / "README.md").read_text("utf-8")
    assert made["urls"] == {} and "[the design](docs/design.md)" in text
    assert not re.findall(r"\]\((?!https:)", made["readme"]["text"]) and "the design." in made["readme"]["text"]
    packed = SimpleNamespace(ARCHIVE="spirv.pack", pack=lambda folder: b"")  # packing takes seconds
    monkeypatch.setattr(hooks, "_module", lambda path: packed)
    for address, warnings in (("", 1), ("https://a.b/c", 0)):
        monkeypatch.setattr(hooks._address, "repository", lambda address=address: address)
        said: list[str] = []
        hook = hooks.PackedModules(str(repo), {}, None, None, "", "wheel", SimpleNamespace(display_warning=said.append))
        hook.initialize("standard", {"force_include": {}})
        hook.finalize("standard", {}, "")
        assert ["no project URLs" in s and "[tool.rlx]" in s for s in said] == [True] * warnings


def test_the_sdist_holds_what_a_contributor_needs(repo: Path) -> None:
    builder = pytest.importorskip("hatchling.builders.sdist", reason="hatchling is not installed")
    names = {file.distribution_path for file in builder.SdistBuilder(str(repo)).recurse_included_files()}
    called = set(
        re.findall(
            r"\b(?:\w+/)+[\w.-]+\.(?:sh|py|json|md)\b", (repo / "Makefile").read_text(encoding="utf-8")
        )
    )
    assert len(called) > 5
    assert (
        called | {"Makefile", "LICENSE", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "docs/pictures/plan.svg",
                "tools/build_hook.py", "tools/repository.py", "tests/conftest.py", "tools/vulkan_probe.py"}
        <= names
    )


@pytest.mark.vulkan
@pytest.mark.late
def test_a_graph_runs_on_vulkan_from_the_installed_wheel(
    wheel: Path, tmp_path: Path, clean_env: dict[str, str]
) -> None:
    env_dir = tmp_path / "env"
    checked(sys.executable, "-m", "venv", "--without-pip", env_dir, cwd=tmp_path, env=clean_env)
    python = env_dir / "bin/python"
    # rlx comes from the wheel, its dependencies from the environment that runs the tests: no network.
    # A .pth inside a folder that a .pth names is not read: the editable rlx of the tests stays out.
    site = Path(
        checked(
            python,
            "-c",
            "import sysconfig; print(sysconfig.get_path('purelib'))",
            cwd=tmp_path,
            env=clean_env,
        ).strip()
    )
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site / "dependencies.pth").write_text("\n".join(sorted(paths)) + "\n", encoding="utf-8")
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--no-compile",
        wheel,
    ]
    checked(*install, cwd=tmp_path, env=clean_env)
    (tmp_path / "use.py").write_text(USE, encoding="utf-8")
    answer = json.loads(
        checked(python, "-W", "error", "use.py", cwd=tmp_path, env=clean_env).splitlines()[-1]
    )
    assert answer["dtype"] == "float32"
    assert answer["error"] <= 1e-6

    command = env_dir / "bin/rlx"
    assert "vulkan" in checked(command, "devices", cwd=tmp_path, env=clean_env).lower()
