"""NumPy's names beside NumPy: values, shapes, gradients, sizes known and not, refusals; and the page of names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.conformance import names_page
from rlx.conformance.names import ARRAY_API, DIFFERENCES, NUMPY, OTHERS
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Graph, Tensor
from rlx.ops.composed.selecting import sized
from rlx.ops.interpret import evaluate
from tests.ops.names_cases import CASES, Case, M, N, V

Array = np.ndarray[Any, np.dtype[Any]]
# Functions that need no tensor and give arrays, or whose length the values decide: they are tried as they are called.
_NEEDS_VALUES = {n for n in ops.LATER if hasattr(getattr(getattr(ops, n), "__wrapped__", None), "sizes")}


def arrays(x: Any) -> list[Any]:
    return list(x) if isinstance(x, tuple | list) else [x]


def in_graph(name: str, *args: Any, **options: Any) -> list[Array]:
    """What a function gives of tensors of a graph, by the ops' references, each in its own dtype."""
    g, feeds = Graph(name), {}

    def placed(x: Any) -> Any:
        if isinstance(x, np.ndarray):
            feeds[f"x{len(feeds)}"] = x
            return g.input(f"x{len(feeds) - 1}", x.shape, x.dtype)
        return type(x)(map(placed, x)) if isinstance(x, tuple | list) else x

    made = arrays(getattr(rlx, name)(*placed(args), **options))
    values = evaluate(g, feeds, upcast=False)
    return [values[t.concrete().id] if isinstance(t, Tensor) else np.asarray(t) for t in made]


def agree(got: list[Any], wanted: Any) -> None:
    expected = [np.asarray(w) for w in arrays(wanted)]
    assert len(got) == len(expected)
    for one, other in zip(map(np.asarray, got), expected, strict=True):
        assert one.shape == other.shape
        assert one.dtype.kind == other.dtype.kind or {one.dtype.kind, other.dtype.kind} <= set("iuf")
        near = 1e-6 if one.dtype == np.float32 else 1e-10
        np.testing.assert_allclose(one.astype(float), other.astype(float), near, near * 1e-2)


def numbered(cases: list[Case]) -> list[Any]:
    return [pytest.param(c, id=f"{n}-{c.id}") for n, c in enumerate(cases)]


# Of unknown length only with a size; indices and shapes are values that arrays in a graph do not have.
_IN_GRAPH = [
    c for c in CASES
    if (c.name not in _NEEDS_VALUES or {"size", "length"} & set(c.options))
    and c.name not in ("tri", "identity", "empty")
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("c", numbered(_IN_GRAPH))
def test_in_a_graph_as_numpy(c: Case) -> None:
    agree(in_graph(c.name, *c.args, **c.options), c.judge(*c.args, **c.options))


@pytest.mark.parametrize("c", numbered([
    next(c for c in CASES if c.name == n) for n in ("nonzero", "unique", "bincount", "compress", "tri", "take")
]))  # fmt: skip
def test_outside_a_trace_as_numpy(c: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the length is not asked for: the values are known."""
    got = getattr(rlx, c.name)(*c.args, **c.options)
    agree(arrays(got), c.judge(*c.args, **c.options))


def test_every_function_has_a_case() -> None:
    """But for those that compute nothing, and the names of ops whose cases are the op's."""
    tried = {c.name for c in CASES}
    assert {n for n, module in ops.LATER.items() if module != "types"} <= tried


@pytest.mark.parametrize("call", [
    lambda x: rlx.nonzero(x), lambda x: rlx.unique(x), lambda x: rlx.where(x > 0), lambda x: rlx.argwhere(x),
    lambda x: rlx.compress(x > 0, x), lambda x: rlx.unique_all(x).values, lambda x: rlx.bincount(rlx.cast(x, "i32")),
    lambda x: rlx.setdiff1d(x, x), lambda x: x.nonzero(),
])  # fmt: skip
def test_of_a_traced_value_the_size_is_asked_for(call: Callable[[Tensor], Any]) -> None:
    x = Graph("traced").input("x", (4,), "f64")
    with pytest.raises(ShapeError, match=r"give (size|length)="):
        call(x)


def test_where_of_a_condition_alone_gives_indices() -> None:
    got = rlx.where(M > 0.5)
    agree(list(got), np.where(M > 0.5))
    with pytest.raises(ShapeError, match="expected cond, a and b"):
        rlx.where(M > 0, M)


@pytest.mark.parametrize(("call", "text"), [
    (lambda: rlx.quantile(M, 1.5), "expected numbers from 0 to 1"),
    (lambda: rlx.percentile(M, -1), "expected numbers from 0 to 100"),
    (lambda: rlx.quantile(M, 0.5, method="middle"), "expected one of linear"),
    (lambda: rlx.cross(M, M), "expected 3 and 3"), (lambda: rlx.tensordot(M, V, 1), "of equal lengths"),
    (lambda: rlx.searchsorted(M, V), "expected a sorted vector"), (lambda: rlx.diff(V, n=-1), "expected 0 or more"),
    (lambda: rlx.meshgrid(V, indexing="yx"), "expected 'xy' or 'ij'"), (lambda: rlx.hsplit(M, 3), "does not divide"),
    (lambda: rlx.take(M, [0], mode="fill"), "expected 'raise'"), (lambda: rlx.unique(M, axis=0), "single elements"),
    (lambda: rlx.histogram(V, "auto"), "depends on values"), (lambda: rlx.interp(V, V, V[:3]), "of one length"),
    (lambda: rlx.bincount(np.array([1, -1])), "expected none below 0"), (lambda: rlx.convolve(V, M), "two vectors"),
    (lambda: rlx.average(M, axis=0, weights=V), "expected x's shape, or a vector"),
    (lambda: rlx.delete(V, 9, axis=0), "expected indices in range"), (lambda: rlx.moveaxis(M, [0, 1], [1]), "as many"),
    (lambda: rlx.repeat(V, [1, 2]), "expected one for each"), (lambda: rlx.rot90(M, axes=(0, 0)), "two different"),
    (lambda: rlx.cumulative_sum(M), "give the axis"), (lambda: rlx.insert(V, 99, 1.0), "expected indices in range"),
])  # fmt: skip
def test_what_cannot_be_is_refused(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(ShapeError, match=text):
        call()


def test_dtypes_are_refused_by_name() -> None:
    for call in (lambda: rlx.convolve([True], [True]), lambda: rlx.finfo("i32"), lambda: rlx.iinfo("f32"),
                 lambda: rlx.isdtype("f32", "fractional"), lambda: rlx.unravel_index(V, (2, 3))):  # fmt: skip
        with pytest.raises(DTypeError):
            call()


def test_what_is_asked_of_dtypes() -> None:
    assert rlx.result_type(np.ones(1, np.int8), "u8") == rlx.i32 and rlx.result_type(rlx.f16, rlx.bf16) == rlx.f32
    assert rlx.can_cast("i8", "f32") and not rlx.can_cast("f32", "i32")
    assert rlx.isdtype("u8", "unsigned integer") and rlx.isdtype(rlx.bf16, ("integral", "real floating"))
    assert rlx.finfo("bf16").eps == 2.0**-7 and rlx.iinfo(np.int32).max == 2**31 - 1
    assert rlx.broadcast_shapes((3, 1), (4,)) == (3, 4)


GRADIENTS: dict[str, Callable[[Tensor], Tensor]] = {
    "quantile": lambda x: rlx.quantile(x, [0.2, 0.7], axis=1, method="hazen"),
    "median": lambda x: rlx.median(x, (0, 1)),
    "interp": lambda x: rlx.interp(x[0], [-2.0, -0.1, 0.4, 2.0], rlx.sort(x[1])), "kron": lambda x: rlx.kron(x, x[:2]),
    "tensordot": lambda x: rlx.tensordot(x, x, ([0], [0])), "cross": lambda x: rlx.cross(x[:, :3], x[:, 1:]),
    "convolve": lambda x: rlx.convolve(x[0], x[1]), "correlate": lambda x: rlx.correlate(x[0], x[1, :2], "same"),
    "cov": lambda x: rlx.cov(x), "corrcoef": lambda x: rlx.corrcoef(x), "trace": lambda x: rlx.trace(x),
    "average": lambda x: rlx.average(x, axis=1, weights=x[0] ** 2), "nanvar": lambda x: rlx.nanvar(x, axis=0),
    "take": lambda x: rlx.take(x, [0, 0, 5]), "diff": lambda x: rlx.diff(x, n=2), "diag": lambda x: rlx.diag(x[0], 1),
    "trapezoid": lambda x: rlx.trapezoid(x, rlx.cumsum(x[0] ** 2)), "sinc": lambda x: rlx.sinc(x),
    "logaddexp": lambda x: rlx.logaddexp(x, x[:1]), "compress": lambda x: rlx.compress(x[0] > 0, x, 1, size=3),
    "unique": lambda x: rlx.unique(x, size=9), "clip": lambda x: rlx.clip(x, x[:1] - 0.3, x[1:2] + 0.2),
    "bincount": lambda x: rlx.bincount(x.graph.constant(np.array([0, 1, 1, 3])), x[0], length=4),
    "ptp": lambda x: rlx.ptp(x, 0), "vander": lambda x: rlx.vander(x[0]), "insert": lambda x: rlx.insert(x, 1, x[0], 0),
    "roll": lambda x: rlx.rot90(rlx.moveaxis(x, [0, 1], [1, 0])), "repeat": lambda x: rlx.repeat(x, [2, 0, 1], 0),
    "fmax": lambda x: rlx.fmax(x, x[:1] * 0.5), "round": lambda x: x - rlx.stop_gradient(rlx.round(x, 1)),
    "choose": lambda x: rlx.choose(np.array([0, 1, 2, 1]), [x[0], x[1], x[2]]), "vecdot": lambda x: rlx.vecdot(x, x[0]),
}  # fmt: skip


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    g = Graph(name)
    x = g.input("x", M.shape, "f64")
    y = GRADIENTS[name](x)
    weights = np.cos(np.arange(y.size)).reshape(y.shape)
    total = rlx.sum(y * weights)
    (d,) = rlx.gradients(total, [x])
    slope = evaluate(g, {"x": M})[d.id]
    h = 1e-6
    for i in np.ndindex(M.shape):
        up, down = M.copy(), M.copy()
        up[i] += h
        down[i] -= h
        by = [float(evaluate(g, {"x": at})[total.id]) for at in (up, down)]
        assert abs((by[0] - by[1]) / (2 * h) - slope[i]) < 1e-7


def test_halves_are_computed_in_f32() -> None:
    x = N.astype(np.float16)
    (got,) = in_graph("nanmean", x)
    assert got.dtype == np.float16
    np.testing.assert_array_equal(got, np.float16(np.nanmean(x.astype(np.float64))))


def test_the_page_of_names_is_up_to_date_and_differences_are_of_names_there(repo: Path) -> None:
    assert (repo / names_page.PAGE).read_text(encoding="utf-8") == names_page.page(), f"run: {names_page.COMMAND}"
    words = " ".join([*NUMPY.values(), ARRAY_API, *(w for _, w in OTHERS.values())])
    theirs = {theirs for theirs, _ in names_page.entries(words)} | {"conv"}
    full = {f"{prefix}.{name}" for prefix, (_, some) in OTHERS.items() for name, _ in names_page.entries(some)}
    assert set(DIFFERENCES) <= theirs | full
    have, count = names_page.count("", ARRAY_API)
    assert have >= count - 4


def test_a_name_that_is_not_there_is_a_hole() -> None:
    assert names_page.ours("", "nowhere") == names_page.ours("signal", "nowhere") == names_page.ours("", "") == ""
    assert names_page.ours("signal", "welch") == "rlx.signal.welch"


def test_sizes_are_counted_where_values_are_known_alone() -> None:
    @sized(lambda x: len(x))
    def function(x: Any, *, size: int | None = None) -> Any:
        return size

    assert dict(function.sizes(([1, 2],), {})) == {"size": 2}
    assert function.sizes(([1, 2],), {"size": 5}) == {"size": 5}
    assert function.sizes((Graph("g").input("x", (2,)),), {}) == {}
