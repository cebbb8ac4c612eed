"""Wrong keywords are answered with those there are and the nearest; a memory plan says what it is."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

import rlx


def graph() -> rlx.Graph:
    g = rlx.Graph("one")
    g.output("y", rlx.exp(g.input("x", (3,))))
    return g


@pytest.mark.parametrize(
    "call, what, wrong, meant",
    [
        (lambda: rlx.jit(devise="cpu"), "jit", "devise", "device"),  # type: ignore[call-overload]
        (lambda: rlx.jit(rlx.exp, static_argname="x"), "jit", "static_argname", "static_argnames"),
        (lambda: rlx.grad(rlx.sum, argnum=1), "grad", "argnum", "argnums"),  # type: ignore[call-arg]
        (lambda: rlx.Session("cpu", thread=1), "Session", "thread", "threads"),  # type: ignore[call-arg]
        (lambda: rlx.Session("cpu").compile(graph(), weight=None), "Session.compile", "weight", "weights"),  # type: ignore[call-arg]
        (lambda: rlx.models.load("folder", contxt=8), "load", "contxt", "context"),  # type: ignore[call-arg]
    ],
)
def test_a_wrong_keyword_is_answered_with_the_right_one(
    call: Callable[[], Any], what: str, wrong: str, meant: str
) -> None:
    said = re.escape(f"{what}: there is no argument {wrong!r} (did you mean {meant!r}?); it takes ")
    with pytest.raises(TypeError, match=said):
        call()


def test_functions_that_check_keywords_keep_their_face() -> None:
    assert [*inspect.signature(rlx.Session).parameters][:2] == ["device", "precision"]
    assert "static_argnums" in inspect.signature(rlx.jit).parameters and (rlx.jit.__doc__ or "").startswith("Compiles")


def test_a_memory_plan_is_one_line() -> None:
    with rlx.Session("cpu").compile(graph()) as exe:
        said = repr(exe.plan)
    assert re.fullmatch(r"MemoryPlan\('reuse': 2 tensors, \d in another's slot; bytes: arena0 [\d,]+, .*\)", said)
