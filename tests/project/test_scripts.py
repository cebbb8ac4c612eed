"""Files that are run by their path still fit the package: what they take from it is there, also what a function of
theirs takes."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

FOLDERS = ("benchmarks", "examples", "shaders", "tools")
OURS = {"rlx", *FOLDERS, "tests"}


def names_taken(source: str) -> set[tuple[str, str]]:
    """(module, name) of each import from the project, wherever it stands; the name is empty for a whole module."""
    taken: set[tuple[str, str]] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            taken |= {(alias.name, "") for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            taken |= {(node.module, alias.name) for alias in node.names}
    return {(module, name) for module, name in taken if module.partition(".")[0] in OURS}


def lacking(source: str) -> list[str]:
    """The imports that fail."""
    wrong = []
    for module, name in sorted(names_taken(source)):
        try:
            held = importlib.import_module(module)
            if name and not hasattr(held, name):
                importlib.import_module(f"{module}.{name}")
        except ModuleNotFoundError as error:
            if error.name is not None and error.name.partition(".")[0] in OURS:
                wrong.append(f"{module} {name}".strip())
    return wrong


def test_what_files_take_from_the_package_is_there(repo: Path) -> None:
    files = [f for folder in FOLDERS for f in sorted((repo / folder).rglob("*.py"))]
    assert len(files) > 50
    wrong = {f.relative_to(repo).as_posix(): w for f in files if (w := lacking(f.read_text(encoding="utf-8")))}
    assert wrong == {}


def test_a_name_that_is_gone_is_noticed() -> None:
    taken = "from rlx.formats.tokenizer.language import LanguageTokenizer, nothing"
    wrong = lacking(f"def f():\n    {taken}\n    import rlx.nowhere")
    assert wrong == ["rlx.formats.tokenizer.language nothing", "rlx.nowhere"]
