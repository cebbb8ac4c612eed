"""Python's operators on Tensors mean what they mean on NumPy arrays, and bad use raises errors that say so."""

from __future__ import annotations

import ast
import importlib
import operator
import pkgutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlx.ir
import rlx.ops as ops
from rlx.conformance.oracle import evaluate
from rlx.dtypes import bf16, bool_, f16, f32, f64, i8, i32, i64, u8
from rlx.errors import DTypeError, GraphError, RlxError, ShapeError, TracedValueError
from rlx.ir import Graph, Tensor, apply
from rlx.ops import places

X = np.linspace(-2, 3, 12).reshape(3, 4)
Y = np.linspace(0.5, 4, 4)


def run(build: Callable[..., Any], *arrays: np.ndarray, dtype: Any = None) -> np.ndarray:
    """The value of build(tensors) in float64."""
    g = Graph()
    xs = [g.input(f"x{i}", np.shape(a), dtype or np.asarray(a).dtype) for i, a in enumerate(arrays)]
    out = build(*xs)
    return evaluate(g, {f"x{i}": a for i, a in enumerate(arrays)})[out.id]


@pytest.mark.parametrize("op", ["add", "sub", "mul", "truediv", "pow", "eq", "ne", "lt", "le", "gt", "ge"])
def test_binary_operators_with_tensors_scalars_and_arrays_on_either_side(op: str) -> None:
    fn = getattr(operator, op)
    x = np.abs(X) + 0.25
    np.testing.assert_allclose(run(fn, x, Y), fn(x, Y), rtol=1e-15)
    np.testing.assert_allclose(run(lambda t: fn(t, 2.0), x), fn(x, 2.0), rtol=1e-15)
    np.testing.assert_allclose(run(lambda t: fn(2, t), x), fn(2, x), rtol=1e-15)
    np.testing.assert_allclose(run(lambda t: fn(Y, t), x), fn(Y, x), rtol=1e-15)
    np.testing.assert_allclose(run(lambda t: fn(t, Y), x), fn(x, Y), rtol=1e-15)


def test_matmul_and_unary_operators() -> None:
    w = np.arange(20.0).reshape(4, 5)
    np.testing.assert_allclose(run(operator.matmul, X, w), X @ w)
    np.testing.assert_allclose(run(lambda t: X @ t, w), X @ w)
    np.testing.assert_allclose(run(lambda t: t @ Y, X), X @ Y)
    np.testing.assert_array_equal(run(lambda t: -t + abs(+t), X), -X + abs(X))


def test_logic_of_bools_and_bits_of_integers() -> None:
    a, b = X > 0, X < 1
    np.testing.assert_array_equal(run(lambda p, q: ~p & q | (p ^ True), a, b), ~a & b | (a ^ True))
    n, m = np.arange(-6, 6, dtype=np.int32), np.arange(12, dtype=np.uint8)
    wanted = ~n & m | (5 ^ n) & 3 | (n > 0)
    np.testing.assert_array_equal(run(lambda p, q: ~p & q | (5 ^ p) & 3 | (p > 0), n, m), wanted)
    x = Graph().input("x", (3,))
    for use in (lambda: x & x, lambda: ~x, lambda: (x > 0) & 1.0, lambda: (x > 0) | np.ones(3)):
        with pytest.raises(DTypeError, match="takes bools or integers, got f"):
            use()


def test_equality_is_elementwise_and_the_hash_is_identity() -> None:
    x = Graph().input("x", (3,))
    assert (x == x).dtype == bool_
    assert len({x, x}) == 1
    assert hash(x) == hash(x)
    assert operator.eq(x, "text") is False


@pytest.mark.parametrize(
    "use, word",
    [
        (bool, "rlx.where"), (bool, "rlx.cond"), (lambda t: [*t], "rlx.split"), (lambda t: 1.0 in t, "rlx.any"),
        (float, "rlx.cast"), (int, "rlx.cast"), (np.asarray, "Graph.output"), (lambda t: [1, 2][t], "rlx.gather"),
        (lambda t: f"{t:.2f}", "Graph.output"),
    ],
)  # fmt: skip
def test_use_as_a_value_names_the_way_out_and_the_line(use: Callable[[Any], Any], word: str) -> None:
    x = Graph().input("x", (3,))
    with pytest.raises(TracedValueError, match=word) as caught:
        use(x)
    assert isinstance(caught.value, TypeError) and isinstance(caught.value, GraphError)
    assert "test_operators.py:" in str(caught.value)


def test_methods() -> None:
    x = X.reshape(3, 2, 2)
    cases: list[tuple[Callable[[Any], Any], np.ndarray]] = [
        (lambda t: t.reshape(2, 6), x.reshape(2, 6)),
        (lambda t: t.reshape((2, -1)), x.reshape(2, -1)),
        (lambda t: t.reshape(-1), x.reshape(-1)),
        (lambda t: t.transpose(2, 0, 1), x.transpose(2, 0, 1)),
        (lambda t: t.transpose((1, 0, 2)), x.transpose(1, 0, 2)),
        (lambda t: t.transpose(), x.T),
        (lambda t: t.T, x.T),
        (lambda t: t.mT, np.swapaxes(x, 1, 2)),
        (lambda t: t.flatten(), x.ravel()),
        (lambda t: t[:, :1].squeeze(1), x[:, 0]),
        (lambda t: t.sum((0, 2)), x.sum((0, 2))),
        (lambda t: t.mean(-1, keepdims=True), x.mean(-1, keepdims=True)),
        (lambda t: t.prod(0), x.prod(0)),
        (lambda t: t.max(), x.max()),
        (lambda t: t.min(1), x.min(1)),
        (lambda t: t.var(1), x.var(1)),
        (lambda t: t.std((0, 1), correction=1), x.std((0, 1), ddof=1)),
        (lambda t: (t > 0).any(0), (x > 0).any(0)),
        (lambda t: (t > -1).all((1, 2)), (x > -1).all((1, 2))),
        (lambda t: t.clip(-1, 1), x.clip(-1, 1)),
        (lambda t: t.astype("i32"), x.astype(np.int32)),
    ]
    for build, want in cases:
        np.testing.assert_allclose(run(build, x), want, rtol=1e-14, atol=1e-15)


_end = st.one_of(st.none(), st.integers(-5, 5))
_part = st.one_of(
    st.integers(-3, 2),
    st.builds(
        slice,
        *[st.one_of(st.none(), st.integers(-5, 5))] * 2,
        st.one_of(st.none(), st.integers(-3, 3).filter(bool)),
    ),
    st.none(),
    st.just(Ellipsis),
)


@given(st.lists(_part, max_size=5))
def test_indexing_is_numpys(parts: list[Any]) -> None:
    x = np.arange(60.0).reshape(3, 4, 5)
    key = tuple(parts)
    try:
        want = x[key]
    except IndexError:
        with pytest.raises(ShapeError):
            Graph().input("x", x.shape)[key]
        return
    got = run(lambda t: t[key], x)
    np.testing.assert_array_equal(got, want)


def test_indexing_with_anything_else_says_what_to_use() -> None:
    t = Graph().input("x", (3, 4))
    for key in (True, 1.5, "a", (slice(0.5, 2),), (slice(None, None, 0),)):
        with pytest.raises(ShapeError, match="index"):
            t[key]


@pytest.mark.parametrize(
    "left, right, want",
    [
        (f32, 2, f32), (f16, 2.5, f16), (bf16, 1, bf16), (i32, 2, i32), (i32, 2.5, f32), (u8, 1, u8), (i64, 1.5, f32),
        (bool_, 1, i32), (bool_, 1.0, f32), (f64, 1, f64),
    ],
)  # fmt: skip
def test_python_scalars_are_weak(left: Any, right: Any, want: Any) -> None:
    x = Graph().input("x", (2,), left)
    assert (x + right).dtype == want
    assert (right * x).dtype == want


@pytest.mark.parametrize(
    "left, right, want",
    [(f32, i64, f32), (f16, bf16, f32), (u8, i8, i32), (i32, i64, i64), (f16, i32, f16), (f32, f64, f64)],
)
def test_promotion(left: Any, right: Any, want: Any) -> None:
    g = Graph()
    x, y = g.input("x", (2,), left), g.input("y", (2,), right)
    assert (x + y).dtype == want
    assert ops.concat([x, y]).dtype == want
    assert ops.where(x > 0, x, y).dtype == want
    assert ops.div(x, y).dtype == (want if want.is_float else f32)


def test_integers_become_floats_where_the_function_needs_them() -> None:
    x = Graph().input("x", (2, 3), i32)
    for fn in (ops.exp, ops.sqrt, ops.gelu, ops.mean, ops.softmax, ops.var):
        assert fn(x).dtype == f32
    for fn in (ops.floor, ops.round, ops.ceil):
        assert fn(x) is x
    assert ops.sum(ops.cast(x, i8)).dtype == i32
    assert ops.matmul(ops.cast(x, u8), x.T).dtype == i32
    assert ops.clip(x, 0.5).dtype == f32 and ops.clip(x, 0, 2).dtype == i32


def test_clip_bounds_beyond_the_dtype_are_its_ends() -> None:
    x = np.array([0, 7, 255], np.uint8)
    np.testing.assert_array_equal(run(lambda t: ops.clip(t, -5, 300), x), x)


BAD: list[tuple[Callable[[Tensor], Any], type[Exception], str]] = [
    (lambda x: x + np.ones(5, np.float32), ShapeError, "add.*broadcast"),
    (lambda x: (x > 0) + (x > 0), DTypeError, "add.*bool"),
    (lambda x: -(x > 0), DTypeError, "neg"),
    (lambda x: ops.cast(x, u8) + 300, DTypeError, "add.*300"),
    (lambda x: x.reshape(5, 2), ShapeError, "reshape.*12.*10"),
    (lambda x: x.reshape(-1, 5), ShapeError, "reshape.*-1"),
    (lambda x: x.reshape(-1, -1), ShapeError, "reshape"),
    (lambda x: x.transpose(0, 0), ShapeError, "transpose"),
    (lambda x: x.transpose(0, 2), ShapeError, "transpose.*axis 2"),
    (lambda x: ops.expand(x, (3, 5)), ShapeError, "expand"),
    (lambda x: ops.expand(x, (4,)), ShapeError, "expand"),
    (lambda x: ops.concat([x, x[0]]), ShapeError, "concat"),
    (lambda x: ops.concat([x[0, 0]]), ShapeError, "stack"),
    (lambda x: ops.concat([x], 2), ShapeError, "concat.*axis 2"),
    (lambda x: ops.concat([]), GraphError, "concat: an empty list"),
    (lambda x: ops.stack([]), GraphError, "an empty list"),
    (lambda x: ops.stack([x, x[:2]]), ShapeError, "stack"),
    (lambda x: ops.split(x, 5), ShapeError, "split"),
    (lambda x: ops.split(x, [1, 1]), ShapeError, "split"),
    (lambda x: ops.squeeze(x, 0), ShapeError, "squeeze"),
    (lambda x: x.sum(3), ShapeError, "sum.*axis 3"),
    (lambda x: x.sum((0, 0)), ShapeError, "sum.*twice"),
    (lambda x: x[:0].max(0), ShapeError, "max"),
    (lambda x: x @ x, ShapeError, "matmul.*4 and 3"),
    (lambda x: x @ x[0, 0], ShapeError, "matmul"),
    (lambda x: ops.matmul(x, x.T, activation="swish"), ShapeError, "matmul.*swish"),
    (lambda x: ops.matmul(x, x.T, np.ones(4, np.float32)), ShapeError, "matmul.*bias"),
    (lambda x: ops.matmul(x, x[0], transpose_b=True), ShapeError, "matmul"),
    (lambda x: ops.softmax(x, 2), ShapeError, "softmax"),
    (lambda x: ops.layer_norm(x, x[0], x[:, 0]), ShapeError, "layer_norm.*beta"),
    (lambda x: ops.rms_norm(x, x), ShapeError, "rms_norm.*gamma"),
    (lambda x: ops.rms_norm(x, x[0], eps=-1.0), DTypeError, "rms_norm.*eps"),
    (lambda x: ops.attention(x, x, x), ShapeError, "attention"),
    (lambda x: ops.gather(x, [3]), ShapeError, "gather.*3"),
    (lambda x: ops.gather(x, [-4]), ShapeError, "gather.*-4"),
    (lambda x: ops.gather(x, x), DTypeError, "gather"),
    (lambda x: ops.gather(x, [0], axis=2), ShapeError, "gather.*axis 2"),
    (lambda x: ops.clip(x, "low"), DTypeError, "clip"),  # type: ignore[arg-type]
    (lambda x: ops.clip(x, float("nan")), ShapeError, "clip.*NaN"),
    (lambda x: ops.cast(x, "q7"), DTypeError, "q7"),
    (lambda x: x.graph.constant(2.5, "i32"), DTypeError, "constant.*2.5"),
    (lambda x: x.graph.constant([1, 1 << 40], "i32"), DTypeError, "constant.*1099511627776"),
    (lambda x: ops.gelu(x, "fast"), ShapeError, "gelu.*fast"),  # type: ignore[arg-type]
    (lambda x: apply("exp", ops.cast(x, i32)), DTypeError, "exp.*i32"),
    (lambda x: apply("div", ops.cast(x, i32), 2), DTypeError, "div"),
    (lambda x: apply("where", x, x, x), DTypeError, "where.*bool"),
    (lambda x: apply("add", x), ShapeError, "add.*2 inputs"),
    (lambda x: apply("sum", x, axes=(1, 0), keepdims=False), ShapeError, "sum.*normalized"),
    (lambda x: apply("slice", x, starts=(0, 0), stops=(4, 4), steps=(1, 1)), ShapeError, "slice"),
    (
        lambda x: apply("matmul", x, x[0], transpose_a=False, transpose_b=False, activation=None),
        ShapeError,
        "rank 2",
    ),
]


@pytest.mark.parametrize("number", range(len(BAD)))
def test_bad_input_names_the_op_and_what_came(number: int) -> None:
    build, error, words = BAD[number]
    with pytest.raises(error, match=f"(?s){words}"):
        build(Graph().input("x", (3, 4)))


def test_attention_refuses_what_does_not_fit() -> None:
    g = Graph()
    q, k = g.input("q", (2, 4, 5, 8)), g.input("k", (2, 2, 6, 8))
    for args, words in (
        ((q, k, k[:, :, :3]), "k and v"),
        ((q, k[:1], k[:1]), "batch"),
        ((q, ops.concat([k, k[:, :1]], 1), ops.concat([k, k[:, :1]], 1)), "multiple of 3"),
        ((q, k, k, np.ones((5, 7), bool)), "broadcast"),
    ):
        with pytest.raises(ShapeError, match=f"attention.*{words}"):
            ops.attention(*args)
    with pytest.raises(DTypeError, match="attention"):
        ops.attention(ops.cast(q, i32), ops.cast(k, i32), ops.cast(k, i32))


def test_tensors_of_two_graphs_do_not_mix() -> None:
    with pytest.raises(GraphError, match="belongs to graph 'b'"):
        Graph("a").input("x", (2,)) + Graph("b").input("y", (2,))


@pytest.mark.parametrize(
    "value, dtype, text",
    [
        (300, "u8", "300 is not a value of u8"),
        (0.5, "i32", "0.5 is not a value of i32"),
        (1e30, "f16", r"1e\+30 is beyond f16"),
        (np.array([1.0, -1e39]), "f32", r"-1e\+39 is beyond f32"),
    ],
)
def test_constants_that_their_dtype_does_not_hold_are_refused(value: object, dtype: str, text: str) -> None:
    with pytest.raises(DTypeError, match=text):
        Graph("constants").constant(value, dtype)


def test_infinite_constants_are_held() -> None:
    held = Graph("constants").constant([np.inf, -np.inf, np.nan, 65504.0], "f16").node.attrs["value"]
    np.testing.assert_array_equal(held, np.array([np.inf, -np.inf, np.nan, 65504.0], np.float16))


def test_type_checkers_know_every_operator_and_method() -> None:
    stub = Path(rlx.ir.__file__).with_name("methods.pyi").read_text(encoding="utf-8")
    (declared,) = (node for node in ast.parse(stub).body if isinstance(node, ast.ClassDef))
    known = {node.name for node in declared.body if isinstance(node, ast.FunctionDef)}
    refused = {"bool", "iter", "contains", "setitem", "int", "float", "index", "format"}
    array = {"array", "array_ufunc", "array_function"}
    methods = {*places.OPERATORS, *places.METHODS, *places.LATER_METHODS}
    assert methods - {f"__{name}__" for name in refused | array} - {"item", "tolist"} == known  # refused too


def test_every_operator_and_method_is_attached_when_it_is_used() -> None:
    """In a process of its own, since a test before may have used some."""
    code = """
import rlx
from rlx.lazy import _Attached
from rlx.ops import places
from rlx.ops.operators import TENSOR_METHODS
assert {"at", *TENSOR_METHODS} == set(places.OPERATORS)
for kind in (rlx.Tensor, rlx.Array):
    for name in (*places.OPERATORS, *places.METHODS, *places.LATER_METHODS):
        getattr(kind, name, None)
        assert type(kind.__dict__.get(name)) is not _Attached, (kind, name)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_each_public_function_is_listed_by_one_module() -> None:
    modules = [importlib.import_module(m.name) for m in pkgutil.walk_packages(ops.__path__, "rlx.ops.")]
    listed = [name for module in modules for name in getattr(module, "__all__", ())]
    assert sorted(listed) == sorted([*ops.__all__, *ops.LATER])
    named = {n: m.__name__ for m in modules for n in getattr(m, "__all__", ()) if "composed" not in m.__name__}
    assert named == ops.FUNCTIONS
    assert {*ops.__all__, *ops.LATER} < set(rlx.__all__)


@pytest.mark.parametrize("a, b, text", [((4, 4), (5,), r"\(4, 4\) @ \(5,\)"), ((3,), (4, 2), r"\(3,\) @ \(4, 2\)")])
def test_a_product_names_the_shapes_that_were_given(a: Any, b: Any, text: str) -> None:
    g = Graph("product")
    with pytest.raises(ShapeError, match=text + ": the inner dimensions"):
        g.input("a", a) @ g.input("b", b)


_X = np.random.default_rng(5).standard_normal((2, 3, 4))
_ROW, _TWO = np.array([True, False, True]), np.random.default_rng(6).random((2, 3)) < 0.5


@pytest.mark.parametrize("key", [
    _X > 0, _TWO, (slice(None), _ROW), (..., _X[0, 0] > 0), (0, _ROW), (_TWO, 0), (_TWO, slice(2)), (None, _TWO),
    (0, _ROW, [0, 1]), [True, False], (slice(None), [True, False, True]), (..., _X[0] > 0), np.zeros(2, bool),
    (slice(None), None, _ROW), (np.array([1, 0]), _ROW),
])  # fmt: skip
def test_masks_that_are_known_select_in_a_trace(key: Any) -> None:
    want = _X[key]
    got = rlx.jit(lambda x: x[key])(_X)
    assert got.shape == want.shape and np.array_equal(got, want)
    slope = np.zeros_like(_X)
    np.add.at(slope, key, np.cos(want))
    np.testing.assert_allclose(rlx.grad(lambda x: rlx.sum(rlx.sin(x[key])))(_X), slope, rtol=1e-12)


def test_masks_that_do_not_fit_are_refused() -> None:
    for key in (_ROW, (..., _ROW), (0, 0, 0, _ROW)):
        with pytest.raises(RlxError, match=r"index: a mask of \(3,\)|too many"):
            rlx.jit(lambda x, key=key: x[key])(_X)
    with pytest.raises(DTypeError, match="a mask selects a number of elements that is known only in a run"):
        rlx.jit(lambda x: x[x > 0])(_X)
