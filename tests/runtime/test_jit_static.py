"""Static arguments of jit: values built into a program, values that it refuses, and static arguments by name."""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.errors import GraphError

X = np.arange(1, 4, dtype=np.float32)
jit = functools.partial(rlx.jit, device="cpu")


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclasses.dataclass(frozen=True)
class Config:
    heads: int
    scale: float = 0.5
    activation: Any = rlx.relu


STATIC: list[tuple[Any, Any]] = [
    (True, False), ("a", "b"), (b"a", b"b"), (None, "None"), (rlx.relu, rlx.exp), (np.exp, np.sin), (len, abs),
    (np.float32, np.float64), (rlx.bf16, rlx.f16), (np.dtype("f4"), np.dtype("f8")), (Level.LOW, Level.HIGH),
    (Config(1), Config(1, 0.25)), (Config(1), Config(True)), (Config(0), Config(1)), (Config(1, 0.0), Config(1, -0.0)),
    (("a", None, (True,)), ("a", None, (False,))), (slice(0, 2), slice(1, 3)), (math, np), (..., None),
    (functools.partial(rlx.leaky_relu, slope="a"), functools.partial(rlx.leaky_relu, slope="b")),
    (frozenset("ab"), frozenset("abc")), (1j, 2j), ("x".upper, "y".upper), (str.upper, str.lower),
    (np.ndarray.sum, np.ndarray.max), (int.__add__, int.__sub__), (dict.__dict__["fromkeys"], None),
    ((3).__add__, (4).__add__),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), STATIC, ids=[str(i) for i in range(len(STATIC))])
@pytest.mark.parametrize("nest", [lambda v: v, lambda v: {"k": [v]}], ids=["alone", "nested"])
def test_what_is_static_is_built_in_once_for_each_value(one: Any, other: Any, nest: Callable[[Any], Any]) -> None:
    seen = []
    f = jit(lambda x, v: (seen.append(v), x)[1])
    for value in (one, other, one, other):
        f(X, nest(value))
    assert len(seen) == 2
    assert [repr(v) for v in seen] == [repr(nest(one)), repr(nest(other))]


@pytest.mark.parametrize(
    "values",
    [
        (1, 1.0, True), (0.0, -0.0), ((1,), (True,), (1.0,)), ((0.0,), (-0.0,)), (math.nan, 1.0),
        (np.float32(1), np.int64(1)),
    ],
    ids=repr,
)  # fmt: skip
def test_static_values_that_compare_equal_are_not_confused(values: tuple[Any, ...]) -> None:
    seen = []
    f = jit(lambda x, v: (seen.append(repr(v)), x)[1], static_argnames="v")
    for _ in range(2):
        for value in values:
            f(X, value)
    assert seen == [repr(v) for v in values]


class Module:
    def __init__(self) -> None:
        self.w = np.ones(3, np.float32)

    def __call__(self, x: Any) -> Any:
        return x * self.w

    def method(self, x: Any) -> Any:
        return x * self.w


class WithItsId(Module):
    """A class like many of models: its hash and equality are those of the object's identity."""

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


class WithObjectsHash(WithItsId):
    def __hash__(self) -> int:
        return super(Module, self).__hash__()


@dataclasses.dataclass(frozen=True)
class Holds:
    inside: Any


@dataclasses.dataclass(frozen=True, eq=False)
class Anonymous:
    inside: Any


@pytest.mark.parametrize(
    "make",
    [
        Module, WithItsId, WithObjectsHash, object, lambda: Module().method, lambda: Module().__eq__,
        lambda: functools.partial(Module()), lambda: Holds(Module()),
        lambda: Anonymous(1), lambda: {"k": (Module(),)}, lambda: np.random.default_rng(0), threading.Lock,
        lambda: functools.partial(rlx.add, b=Module()),
    ],
)  # fmt: skip
def test_what_compares_by_identity_is_refused(make: Callable[[], Any]) -> None:
    value = make()
    f = jit(lambda m, x: x)
    said = r"argument 'm' is or holds a \w+, which is compared by identity.*static_argnames"
    with pytest.raises(GraphError, match=said):
        f(value, X)
    assert f.cache_info()["size"] == 0


@pytest.mark.parametrize("make", [Module, WithItsId, WithObjectsHash])
def test_an_object_that_never_changes_may_be_static(make: Callable[[], Any]) -> None:
    model = make()
    for options in ({"static_argnames": ["m"]}, {"static_argnums": 0}):
        f = jit(lambda m, x: m(x), **options)
        np.testing.assert_array_equal(f(model, X), X)
        np.testing.assert_array_equal(f(m=model, x=X), X)
        f(model, X + 1)
        assert f.cache_info()["size"] == 2  # by place and by name


@pytest.mark.parametrize(
    "value", [[1], {"a": 1}, np.ones(2), np.ones(2).__add__, {1, 2}, Holds(np.ones(2))], ids=lambda v: type(v).__name__
)
def test_a_static_argument_must_have_a_hash(value: Any) -> None:
    with pytest.raises(GraphError, match=r"a static argument cannot be hashed: a .* in argument 'n'"):
        jit(lambda x, n: x, static_argnames="n")(X, value)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"static_argnames": "m"}, r"has no argument 'm' to be static; it has \['n', 'x'\]"),
        ({"static_argnames": ("n", "m")}, "has no argument 'm'"),
        ({"static_argnums": 2}, "has no argument 2"),
        ({"static_argnums": (-3,)}, "has no argument -1"),
        ({"static_argnums": "n"}, "static_argnums is 'n'; expected places"),
        ({"static_argnames": 1}, "static_argnames is 1; expected names"),
        ({"static_argnums": True}, "static_argnums is True"),
    ],
)
def test_static_names_are_held_against_the_function(options: dict[str, Any], text: str) -> None:
    for make in (rlx.jit, rlx.grad):
        with pytest.raises(GraphError, match=text):
            make(lambda x, n: x, **options)  # type: ignore[operator]
    with pytest.raises(GraphError, match=text):
        rlx.jit(**options)(lambda x, n: x)


def test_names_of_keyword_arguments_may_be_static() -> None:
    f = jit(lambda x, **options: x.reshape(options["n"], -1), static_argnames="n")
    assert f(X, n=3).shape == (3, 1)
