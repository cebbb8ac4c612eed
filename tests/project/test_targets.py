"""What both GPUs share, and the runtime, ask a field of the Target, never which backend it is: another one enters with
a Target."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import rlx

RLX = Path(rlx.__file__).parent
SHARED = (RLX / "backends/gpu", RLX / "runtime")
WORDS = {"cuda", "vulkan", "software"}


def _names_of_backends(text: str) -> Iterator[int]:
    """The lines that compare with, match or look up a string that names a backend or a kind of device."""
    for node in ast.walk(ast.parse(text)) if any(word in text for word in WORDS) else ():
        if isinstance(node, ast.Compare | ast.Match | ast.Subscript):
            found = [c.value for c in ast.walk(node) if isinstance(c, ast.Constant)]
            if any(isinstance(v, str) and v in WORDS for v in found):
                yield node.lineno


def test_nothing_that_gpus_share_asks_which_backend_it_is_on() -> None:
    found = [
        f"{path.relative_to(RLX)}:{line}"
        for folder in SHARED
        for path in sorted(folder.rglob("*.py"))
        for line in _names_of_backends(path.read_text(encoding="utf-8"))
    ]
    assert not found, "ask a field of the Target (program/target.py) instead of a name: " + ", ".join(found)


@pytest.mark.parametrize(
    "text", ['ctx.x == "cuda"', '"vulkan" != kind', 'name in ("a", "software")', '"cuda" in words', 'd["vulkan"]']
)
def test_each_way_to_ask_is_seen(text: str) -> None:
    assert list(_names_of_backends(text)) == [1]


def test_naming_a_backend_is_no_question() -> None:
    assert not list(_names_of_backends('f("cuda")\nx = "vulkan"\nx == "cuda kernels"'))
