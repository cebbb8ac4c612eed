"""What is asked of an op is a trait on its record; outside `rlx/ops` few places may still know an op by name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from rlx.ir import REGISTRY

ROOT = Path(__file__).resolve().parents[2]
# Comparisons that are left, by folder of rlx. A number may only become smaller.
LEFT = {"backends": 4, "conformance": 1, "onnx": 6}
# Tables that rules enter themselves into, each beside its code.
RULES = {
    "BINDERS", "COMPOSITIONS", "ENGINE_BINDERS", "HOST", "IMAGES", "LOWERINGS", "OVERRIDES", "PADDINGS", "REGISTRY",
    "WRITERS",
}  # fmt: skip
# Names under which code holds the name of an op.
HOLDERS = {"_name", "kind", "name", "op"}
_MAY_ASK = re.compile(r"\bop\s*\.\s*name\b|\b_name\b|\bop\b[\s)]*(?:[=!]=|in\b|not\b)|(?:[=!]=|\bin)[\s(]*op\b")


def _is_op_name(e: ast.AST) -> bool:
    """Whether an expression is `….op.name`."""
    return isinstance(e, ast.Attribute) and e.attr == "name" and getattr(e.value, "attr", "") == "op"


def _strings(e: ast.AST) -> list[str]:
    return [c.value for c in ast.walk(e) if isinstance(c, ast.Constant) and isinstance(c.value, str)]


def _rules(e: ast.AST) -> bool:
    return any(isinstance(n, ast.Name) and n.id in RULES for n in ast.walk(e))


def _looks_up(e: ast.AST) -> bool:
    """Whether an expression is `table[….op.name]` or `table.get(….op.name)`."""
    if isinstance(e, ast.Subscript):
        return _is_op_name(e.slice)
    return isinstance(e, ast.Call) and getattr(e.func, "attr", "") == "get" and any(map(_is_op_name, e.args))


def _comparisons(text: str) -> Iterator[int]:
    """The lines that compare an op's name with others, or look it up in a table of names."""
    if not _MAY_ASK.search(text):  # most files: walking over their trees takes seconds
        return
    nodes = list(ast.walk(ast.parse(text)))
    held = HOLDERS if any(map(_is_op_name, nodes)) else {"_name", "op"}
    for node in nodes:
        if isinstance(node, ast.Compare) and not _rules(node):
            sides = (node.left, *node.comparators)
            names = any(isinstance(s, ast.Name) and s.id in held for s in sides)
            known = [s for side in sides for s in _strings(side)]
            if any(map(_is_op_name, sides)) or (names and known and all(s in REGISTRY for s in known)):
                yield node.lineno
        elif _looks_up(node) and not _rules(node):
            yield node.lineno


def _found() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "rlx").rglob("*.py")):
        folder = path.relative_to(ROOT / "rlx").parts[0]
        if folder != "ops":
            lines = _comparisons(path.read_text(encoding="utf-8"))
            found.setdefault(folder, []).extend(f"{path.relative_to(ROOT)}:{line}" for line in lines)
    return {folder: lines for folder, lines in found.items() if lines}


def test_few_places_compare_the_names_of_ops() -> None:
    found = _found()
    print(f"comparisons with op names outside rlx/ops: {sum(map(len, found.values()))}")
    more = [line for folder, lines in found.items() if len(lines) > LEFT.get(folder, 0) for line in lines]
    assert not more, "ask a trait of the op's record (rlx/ir/op.py) instead of its name: " + ", ".join(more)
    fewer = {folder: len(found.get(folder, ())) for folder, n in LEFT.items() if len(found.get(folder, ())) < n}
    assert not fewer, f"fewer are left than LEFT says; write down {fewer}"


def test_the_count_sees_each_way_to_compare() -> None:
    seen = """
if node.op.name == "add": pass
if t.node.op.name in ("add", "mul"): pass
name = node.op.name
if name == "add": pass
{"add": 1}[node.op.name]
TABLE.get(node.op.name)
if op == "add": pass
if a.op.name == b.op.name: pass
"""
    unseen = """
BINDERS[node.op.name]
LOWERINGS.get(node.op.name)
if node.op.adds: pass
if mode == "constant": pass
if REGISTRY.get(node.op.name) is not node.op: pass
"""
    assert len(list(_comparisons(seen))) == 7
    assert not list(_comparisons(unseen))


def test_traits_name_what_there_is() -> None:
    for op in REGISTRY.values():
        assert op.summed is None or op.summed in REGISTRY, op.name
        assert not (op.moves_data and op.picks), f"{op.name}: what moves data picks no element"
        assert (op.control is not None) == (op.family == "control"), op.name
        assert not op.broadcasts or op.moves_data, op.name
        assert op.epilogue is None or op.contracts, op.name
