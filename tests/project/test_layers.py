"""Imports go one way, in the order data flows; GPU libraries are fenced into their folders."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

# Left to right: a layer may import itself and what stands before it.
LAYERS = (
    "interrupted",
    "errors",
    "lazy",
    "records",
    "dtypes",
    "host",
    "ranks",
    "packed",
    "ir",
    "autodiff",
    "ops",
    "tree",
    "optim",
    "passes",
    "driver",
    "backends",
    "runtime",
    "formats",
    "onnx",
    "aten",
    "train",
    "models",
    "finetune",
    "serve",
    "bulk",
    "conformance",
    "cli",
)
RANK = {name: rank for rank, name in enumerate(LAYERS)}
# The package's own face, `python -m rlx` and names such as `rlx.onnx` stand above every layer.
TOP = {"__init__", "__main__", "fft", "linalg", "nn", "random", "signal", "splats"}
# What one backend may use of another: the GPU backends share `gpu`; `cpu` is also the host fallback of both.
BACKEND_USES = {"cpu": set(), "gpu": {"cpu"}, "cuda": {"gpu", "cpu"}, "vulkan": {"gpu", "cpu"}}
# Third-party packages and the only part of rlx that may import each.
FENCED = {
    "mpi4py": "rlx/ranks/mpi.py",
    "cupy": "rlx/backends/cuda/",
    "cupy_backends": "rlx/backends/cuda/",
    "nvmath": "nowhere",
    "cuda": "rlx/backends/cuda/",
    "vulkan": "nowhere",  # rlx/backends/vulkan/loader.py reads its declarations
    "onnx": "rlx/onnx/",
    "tokenizers": "rlx/formats/",
    "safetensors": "rlx/formats/",
    "llguidance": "rlx/models/language/grammar.py",
    "starlette": "rlx/serve/",
    "uvicorn": "rlx/serve/",
    "ray": "rlx/bulk.py",
    "torch": "rlx/aten/",
    "scipy": "nowhere",
    "onnxruntime": "rlx/cli/contenders.py",  # measured beside, never run
}

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted((ROOT / "rlx").rglob("*.py"))
assert MODULES, f"no Python files under {ROOT / 'rlx'}"
# Modules and packages, by their dotted names.
NAMES = {".".join(p.relative_to(ROOT).with_suffix("").parts) for m in MODULES for p in (m, m.parent)}


@cache
def imports(path: Path) -> list[tuple[int, str]]:
    """(line, dotted name) of everything a file imports, inside functions too.

    `from rlx.ir import graph` gives `rlx.ir.graph`: a name counts as a module where there is one.
    """
    package = path.relative_to(ROOT).with_suffix("").parts
    found = []
    for node in _statements(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: -node.level]) if node.level else []
            base += node.module.split(".") if node.module else []
            for alias in node.names:
                name = ".".join([*base, alias.name])
                found.append((node.lineno, name if name in NAMES else ".".join(base)))
    return found


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """The statements of a module, those inside others too. Expressions, which are many more, import nothing."""
    left = [tree]
    while left:
        node = left.pop()
        yield node
        for part in ("body", "orelse", "handlers", "finalbody", "cases"):
            left.extend(getattr(node, part, ()))


def layer_of(path: Path) -> str:
    return path.relative_to(ROOT / "rlx").parts[0].removesuffix(".py")


def test_imports_go_one_way() -> None:
    wrong = []
    for path in MODULES:
        own, place = layer_of(path), path.relative_to(ROOT).as_posix()
        if own in TOP:
            continue
        if own not in RANK:
            wrong.append(f"{place}: give the new layer {own!r} its place in LAYERS")
            continue
        for line, name in imports(path):
            parts = name.split(".")
            if parts[0] != "rlx":
                continue
            if len(parts) == 1 and path.name != "__main__.py":  # a program uses rlx as its users do
                wrong.append(f"{place}:{line} imports the package face; import the module that has the name")
            elif len(parts) > 1 and parts[1] not in RANK:
                wrong.append(f"{place}:{line}: {name} is in no layer")
            elif len(parts) > 1 and RANK[parts[1]] > RANK[own]:
                wrong.append(f"{place}:{line}: {own} may not import {name}")
    assert wrong == []


def test_third_party_libraries_stay_behind_their_fence() -> None:
    wrong = [
        f"{place}:{line}: {name} may be imported only in {FENCED[name.split('.')[0]]}"
        for path in MODULES
        for place in [path.relative_to(ROOT).as_posix()]
        for line, name in imports(path)
        if name.split(".")[0] in FENCED and not place.startswith(FENCED[name.split(".")[0]])
    ]
    assert wrong == []


@pytest.mark.parametrize("backend", sorted(BACKEND_USES))
def test_backends_do_not_reach_into_each_other(backend: str) -> None:
    wrong = []
    for path in sorted((ROOT / "rlx/backends" / backend).rglob("*.py")):
        for line, name in imports(path):
            parts = name.split(".")
            if parts[:2] != ["rlx", "backends"] or len(parts) < 3 or parts[2] not in BACKEND_USES:
                continue
            if parts[2] != backend and parts[2] not in BACKEND_USES[backend]:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert not wrong, "; ".join(wrong)


def _run_at_import(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when a module is imported: none in functions, none for type checkers alone."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            yield from _run_at_import(node.orelse)
            continue
        yield node
        for part in ("body", "orelse", "finalbody"):
            yield from _run_at_import(getattr(node, part, []))
        for handler in getattr(node, "handlers", []):
            yield from _run_at_import(handler.body)


def _module_imports(name: str, path: Path, modules: Mapping[str, Path]) -> set[str]:
    """The modules that one imports by name when it is imported itself."""
    found = set()
    for node in _run_at_import(ast.parse(path.read_text(encoding="utf-8"), str(path)).body):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno} imports by dots; name the module"
            base = node.module or ""
            found |= {n if (n := f"{base}.{alias.name}") in modules else base for alias in node.names}
    return (found & modules.keys()) - {name}


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import each other: what is left once modules are taken away that import none of those
    left, or that none of those left imports."""
    left = {name: set(to) for name, to in graph.items()}
    for turned in (False, True):
        edges = left if not turned else {n: {m for m in left if n in left[m]} for n in left}
        while ends := {n for n, to in edges.items() if not to & edges.keys()}:
            edges = {n: to for n, to in edges.items() if n not in ends}
        left = {n: graph[n] & edges.keys() for n in edges}
    groups = []
    while left:
        group, todo = set[str](), [min(left)]
        while todo:
            name = todo.pop()
            group.add(name)
            todo += left[name] - group
        groups.append(sorted(group))
        left = {n: to for n, to in left.items() if n not in group}
    return groups


def test_no_modules_import_each_other() -> None:
    names = (".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for p in MODULES)
    modules = dict(zip(names, MODULES, strict=True))
    found = circles({name: _module_imports(name, path, modules) for name, path in modules.items()})
    assert found == [], f"import one of these in a function, or move what they share: {found}"


def test_circles_are_noticed() -> None:
    graph = {"a": {"b"}, "b": {"c", "d"}, "c": {"b"}, "d": set(), "e": {"a"}, "f": {"g"}, "g": {"f"}}
    assert circles(graph) == [["b", "c"], ["f", "g"]]
    tree = ast.parse(
        "if TYPE_CHECKING:\n    import a\nelse:\n    import b\ndef f():\n    import c\nclass D:\n    import d"
    )
    assert [n.names[0].name for n in _run_at_import(tree.body) if isinstance(n, ast.Import)] == ["b", "d"]
