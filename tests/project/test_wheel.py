"""The wheel holds what a user needs and runs a graph on Vulkan from its own environment; the sdist is complete."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path
from types import SimpleNamespace

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


def test_links_of_the_page_of_an_index_are_absolute(repo: Path) -> None:
    core = pytest.importorskip("hatchling.metadata.core", reason="hatchling is not installed")
    manager = pytest.importorskip("hatchling.plugin.manager").PluginManager()
    metadata = core.ProjectMetadata(str(repo), manager).core
    assert {"Documentation", "Source", "Changelog"} <= set(metadata.urls)
    links = re.findall(r"\]\(([^)\s]+)\)", metadata.readme)
    source = metadata.urls["Source"]
    assert f"{source}/raw/HEAD/docs/flow.svg" in links and len(links) > 20
    for link in links:
        place = re.fullmatch(rf"{re.escape(source)}/(?:raw|blob)/HEAD/([^#]+)(?:#.*)?", link)
        assert (place and (repo / place[1]).exists()) or link.startswith("https://"), link


def test_the_repositorys_address_stands_in_one_place(repo: Path) -> None:
    address = tomllib.loads((repo / "pyproject.toml").read_text("utf-8"))["tool"]["rlx"]["repository"]
    host = address.split("/")[2]
    folders = ("rlx", "docs", "examples", "tools", "tests")
    files = [p for name in folders for p in (repo / name).rglob("*") if p.suffix in {".md", ".py", ".sh", ".svg"}]
    files += [repo / "pyproject.toml", *repo.glob("*.md"), repo / "Makefile"]
    named = [p.name for p in files if "generated" not in p.parts for _ in range(p.read_text("utf-8").count(host))]
    assert sorted(named) == ["CONTRIBUTING.md", "pyproject.toml"]


@pytest.mark.parametrize(
    ("address", "told"),
    [("https://code.invalid/rlx", True), ("https://example.org/a/b", True), ("http://localhost:80/rlx", True),
     ("https://code.example-team.org/rlx", False), ("https://git.contest/a", False)],
)  # fmt: skip
def test_no_release_is_built_with_a_placeholder(
    repo: Path, monkeypatch: pytest.MonkeyPatch, address: str, told: bool
) -> None:
    pytest.importorskip("hatchling", reason="hatchling is not installed")
    spec = importlib.util.spec_from_file_location("build_hook", repo / "tools/build_hook.py")
    assert spec and spec.loader
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    monkeypatch.setattr(hooks._address, "repository", lambda: address)
    empty = SimpleNamespace(ARCHIVE="spirv.pack", pack=lambda folder: b"")
    monkeypatch.setattr(hooks, "_module", lambda path: empty)  # packing takes seconds
    said: list[str] = []
    app = SimpleNamespace(abort=lambda text: said.append(f"abort {text}"), display_warning=said.append)
    for target in ("sdist", "wheel"):
        hook = hooks.PackedModules(str(repo), {}, None, None, "", target, app)
        hook.initialize("standard", {"force_include": {}})
        hook.finalize("standard", {}, "")
    wanted = [f"a placeholder, {address}, "] * 2 if told else []
    assert len(said) == len(wanted) and all(w in s for w, s in zip(wanted, said, strict=True))
    assert not told or (said[0].startswith("abort rlx: no sdist is built") and said[1].startswith("rlx: "))


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
