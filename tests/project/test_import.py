"""`import rlx` needs no GPU library, loads none, nor what only a program or a file needs, and warns of nothing."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from importlib import metadata
from types import ModuleType

import pytest

from rlx.dtypes import DType

OPTIONAL = ("cupy", "vulkan", "onnx", "nvmath", "tokenizers", "safetensors", "torch", "scipy")

# Modules that take long to load, and that nothing needs before a graph is compiled, a file read or an error raised.
LATER = {
    "asyncio", "base64", "concurrent.futures", "decimal", "difflib", "email", "fractions", "hashlib", "http",
    "importlib.metadata", "logging", "multiprocessing", "pathlib", "subprocess", "tempfile", "traceback", "unittest",
    "urllib.parse", "zlib",
    "rlx.backends", "rlx.cli", "rlx.conformance", "rlx.driver.memory.planner", "rlx.formats", "rlx.models", "rlx.onnx",
    "rlx.ops.composed.aliases", "rlx.ops.composed.arranging", "rlx.ops.composed.selecting",
    "rlx.ops.composed.statistics", "rlx.passes",
}  # fmt: skip

PROBE = """
import importlib.abc, json, sys, time

class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BLOCKED:
            raise ImportError(f"{name} is not installed here")

BLOCKED = set(json.loads(sys.argv[1]))
sys.meta_path.insert(0, Refuse())
import numpy
given = set(sys.modules)
start = time.perf_counter()
import rlx
seconds = time.perf_counter() - start
loaded = sorted({name.split(".")[0] for name in sys.modules})
"""


def run(code: str, blocked: tuple[str, ...], env: dict[str, str]) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROBE + code, json.dumps(blocked)],
        capture_output=True,
        text=True,
        env=env,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(answer, dict)
    return answer


@pytest.mark.parametrize("blocked", [OPTIONAL, ()], ids=["not installed", "installed"])
def test_import_loads_no_optional_library(
    blocked: tuple[str, ...], clean_env: dict[str, str], record_property: pytest.RecordProperty
) -> None:
    answer = run("print(json.dumps({'loaded': loaded, 'seconds': seconds}))", blocked, clean_env)
    loaded = answer["loaded"]
    assert isinstance(loaded, list)
    assert not set(OPTIONAL) & set(loaded)
    record_property("import_seconds_after_numpy", answer["seconds"])
    print(f"import rlx after NumPy: {answer['seconds']:.3f} s")


def test_import_loads_nothing_that_only_a_program_a_file_or_an_error_needs(clean_env: dict[str, str]) -> None:
    loaded = run("print(json.dumps({'loaded': sorted(set(sys.modules) - given)}))", (), clean_env)["loaded"]
    assert isinstance(loaded, list)
    assert not LATER & set(loaded)


def test_dir_names_what_loads_when_first_used_and_the_version_is_the_projects(
    clean_env: dict[str, str],
) -> None:
    answer = run("print(json.dumps({'names': dir(rlx), 'version': rlx.__version__}))", OPTIONAL, clean_env)
    names = answer["names"]
    assert isinstance(names, list)
    assert {"Graph", "jit", "models", "onnx", "conformance"} <= set(names)
    assert not {"importlib", "Any"} & set(names)
    assert answer["version"] == metadata.version("rlx")


@pytest.mark.parametrize(
    "module", ["", ".bulk", ".fft", ".linalg", ".models", ".nn", ".onnx", ".optim", ".random", ".tree"]
)
def test_completion_shows_what_a_module_has_and_not_what_it_uses(module: str) -> None:
    from importlib import import_module

    found = import_module(f"rlx{module}")
    listed = {name for name in dir(found) if name[:1] != "_"}
    assert {*getattr(found, "__all__", ())} <= listed
    assert not {name for name in listed if str(getattr(getattr(found, name), "__module__", "rlx"))[:3] != "rlx"}
    assert not {"np", "ops", "math", "TYPE_CHECKING", "DTypeError"} & listed


def test_every_public_name_says_in_one_line_what_it_is() -> None:
    import rlx

    for name in rlx.__all__:
        value = getattr(rlx, name)
        if isinstance(value, DType | ModuleType):
            continue
        text = inspect.getdoc(value)
        assert text, f"rlx.{name} has no docstring"
        first, *rest = text.splitlines()
        assert first and (not rest or rest[0] == ""), f"rlx.{name} begins with more than one line: {first}"


def test_onnx_goes_by_the_name_programs_write() -> None:
    import rlx
    import rlx.onnx
    from rlx.onnx import load

    assert load is rlx.onnx.load is rlx.onnx.load
    assert set(rlx.onnx.__all__) <= set(dir(rlx.onnx))


def test_a_graph_runs_where_no_optional_library_is_installed(clean_env: dict[str, str]) -> None:
    code = """
g = rlx.Graph("bare")
x = g.input("x", (2, 3))
g.output("y", x + x)
y = rlx.Session(device="cpu").compile(g).run({"x": numpy.ones((2, 3), numpy.float32)})["y"]
print(json.dumps({"y": y.tolist()}))
"""
    assert run(code, OPTIONAL, clean_env)["y"] == [[2.0] * 3] * 2


def test_devices_gives_the_reason_for_each_missing_library(clean_env: dict[str, str]) -> None:
    code = """
from rlx.driver.registry import probe_all
found, reasons = probe_all()
print(json.dumps({"found": [d.id for d in found], "reasons": reasons}))
"""
    answer = run(code, OPTIONAL, clean_env)
    assert answer["found"] == ["cpu"]
    reasons = answer["reasons"]
    assert isinstance(reasons, dict)
    assert set(reasons) == {"cuda", "vulkan"}
    assert "pip install" in reasons["cuda"] and reasons["vulkan"]


def test_an_onnx_package_that_is_too_old_is_named(clean_env: dict[str, str]) -> None:
    code = """
from importlib.machinery import ModuleSpec
from types import ModuleType
old = sys.modules["onnx"] = ModuleType("onnx")
old.__spec__, old.__version__ = ModuleSpec("onnx", None), "1.9.0"
try:
    import rlx.onnx
except ImportError as error:
    print(json.dumps({"said": str(error)}))
"""
    said = run(code, (), clean_env)["said"]
    assert said == "reading ONNX models needs onnx 1.20 or newer, 1.9.0 is installed: pip install -U onnx"
