"""Comments behind code say something by themselves, and variables have names that say what they hold.

Both counts may only fall: lower a limit when the count has fallen."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FRAGMENTS, BINDINGS = 2, 298
# A fragment begins with what refers to the code before it: a preposition or a relative pronoun. What stands behind a
# colon or a semicolon is not asked.
_OPENINGS = frozenset(
    "of in by for from with to on at than behind beside between among per without within around over under about whose "
    "which where".split()
)
VAGUE = frozenset({"made", "found", "given"})
_TOOLS = re.compile(r"(noqa|type:|fmt:|mypy:|pragma)")


def trailing_comments(source: str) -> Iterator[tuple[int, str]]:
    """(line, text) of each comment behind code on its line."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and token.line[: token.start[1]].strip():
            yield token.start[0], token.string.lstrip("# ")


def is_fragment(comment: str) -> bool:
    return not _TOOLS.match(comment) and re.split(r"[^\w]", comment, maxsplit=1)[0] in _OPENINGS


def vague_bindings(source: str) -> Iterator[int]:
    """The lines at which a vague name is bound: assigned, a loop's or comprehension's, an argument, a function."""
    for node in ast.walk(ast.parse(source)):
        name = node.id if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else ""
        if isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            name = node.name
        if name in VAGUE:
            yield node.lineno


def _sources() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "rlx").rglob("*.py")):
        yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def test_comments_are_no_fragments() -> None:
    found = [
        f"{place}:{line}: {text}"
        for place, source in _sources()
        for line, text in trailing_comments(source)
        if is_fragment(text)
    ]
    assert len(found) <= FRAGMENTS, "\n".join([f"{len(found)} fragments; FRAGMENTS is {FRAGMENTS}", *found])


def test_names_say_what_variables_hold() -> None:
    count = sum(1 for _, source in _sources() for _ in vague_bindings(source))
    assert count <= BINDINGS, f"made, found and given are bound {count} times, at most {BINDINGS}: use the thing's noun"


def test_what_is_counted() -> None:
    source = "a = 1  # of an element\nb = 2  # rows: of a tile\nc = 3  # noqa: E501\n# in front\nd = 4  # In a tile.\n"
    assert [line for line, text in trailing_comments(source) if is_fragment(text)] == [1]
    source = "made = 1\ndef found(given, x=made):\n    return [made for made in given]\nx.made = made\n"
    assert sorted(vague_bindings(source)) == [1, 2, 2, 3]
