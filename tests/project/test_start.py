"""What each start imports: `import rlx`, a saved program, an ONNX model, `rlx run` and `rlx generate`.

`start.json` lists the modules of rlx, and the packages of others, that each may bring along; what is imported besides
makes every start slower, so that it is a decision: `python -m tests.project.test_start` writes the lists anew.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import rlx
from tests.models.language import tiny

LISTS = Path(__file__).with_name("start.json")
# Modules of Python that take a millisecond and more, and that no start needs but typer's.
HEAVY = {
    "asyncio", "concurrent.futures", "dataclasses", "email", "hashlib", "importlib.metadata", "importlib.resources",
    "pathlib", "pkgutil", "secrets", "tempfile", "unittest", "urllib", "zipfile",
}  # fmt: skip
COMMAND = "import sys\nfrom rlx.cli import main\nsys.argv = ['rlx', *{!r}]\ntry: main()\nexcept SystemExit: pass"
STARTS = {
    "import rlx": ("import rlx", "compiled"),
    "load_program": ("import rlx\nrlx.load_program('net.rlx').run({'x': numpy.ones((2, 8), 'f4')})", "compiled"),
    "onnx.load": (
        "import rlx\nrlx.onnx.load('net.onnx').run({'x': numpy.ones((2, 8), 'f4')}, device='cpu')", "compiled"
    ),
    "rlx run": (COMMAND.format(["run", "net.rlx"]), "compiled"),
    "rlx generate": (COMMAND.format(["generate", "tiny", "-p", "ab", "-n", "1", "--device", "cpu"]), "numpy"),
}
SAID = "\nprint(); print(json.dumps(sorted(set(sys.modules) - before)))"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("start"))


def write_files(folder: Path) -> Path:
    """A saved program, the folder of a tiny language model, and kernels in a cache."""
    graph = rlx.Graph("net")
    weight = graph.param("w", (8, 4))
    graph.output("y", rlx.relu(graph.input("x", (2, 8)) @ weight))
    with rlx.Session("cpu", engine="compiled").compile(graph) as program:
        program.set_param("w", np.ones((8, 4), np.float32))
        program.save(folder / "net.rlx")
    if find_spec("onnx") is not None:
        rlx.onnx.save(graph, folder / "net.onnx", weights={"w": np.ones((8, 4), np.float32)})
        started("onnx.load", folder)
    tiny.write_language_model(folder / "tiny", {**tiny.LLAMA, "vocab_size": 300}, text=True)
    started("load_program", folder)  # compiles the kernels
    return folder


def started(name: str, folder: Path) -> list[str]:
    """The modules that a start imports beyond NumPy's, in a process of its own."""
    text, engine = STARTS[name]
    env = {**os.environ, "RLX_CPU": engine, "RLX_CACHE_DIR": str(folder / "cache")}
    env["PYTHONPATH"] = str(Path(rlx.__file__).parents[1])
    code = f"import json, sys, numpy, numpy.random\nbefore = set(sys.modules)\n{text}{SAID}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, env=env, check=True)
    modules: list[str] = json.loads(done.stdout.splitlines()[-1])
    return modules


def packages(modules: list[str]) -> list[str]:
    """The modules of rlx, and the names of other packages that are not Python's."""
    others = {m.partition(".")[0] for m in modules} - sys.stdlib_module_names - {"rlx"}
    return sorted({m for m in modules if m.partition(".")[0] == "rlx"} | {o for o in others if not o.startswith("_")})


@pytest.mark.parametrize("name", STARTS)
def test_a_start_imports_what_is_listed(name: str, folder: Path) -> None:
    if name == "onnx.load":
        pytest.importorskip("onnx")
    modules = started(name, folder)
    assert "typer" in modules or not HEAVY & set(modules)
    listed = json.loads(LISTS.read_text())[name]
    beyond = sorted(set(packages(modules)) - set(listed))
    assert not beyond, f"{name} imports these too; import them where they are used, or list them: {beyond}"
    if name == "import rlx":
        assert packages(modules) == listed


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = write_files(Path(name))
        LISTS.write_text(json.dumps({s: packages(started(s, folder)) for s in STARTS}, indent=1) + "\n")


if __name__ == "__main__":
    main()
