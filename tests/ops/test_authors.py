"""What authors of models reach for first: creation, indexing by arrays, einsum, losses, recurrent layers, methods."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.conformance.oracle import evaluate
from rlx.errors import DTypeError, ShapeError, TracedValueError
from rlx.ir import Graph, Tensor
from tests.full import full
from tests.outside import outside

Array = np.ndarray[Any, np.dtype[Any]]
rng = np.random.default_rng(0)
A, B = rng.standard_normal((3, 4)), rng.standard_normal((3, 4))
P, Y = rng.uniform(0.01, 0.99, (3, 4)), rng.uniform(0, 1, (3, 4))
INF, NAN = math.inf, math.nan


def run(build: Callable[..., Any], *arrays: Array) -> Array:
    """The value of build(tensors) in float64."""
    g = Graph()
    out = build(*(g.input(f"x{i}", a.shape, a.dtype) for i, a in enumerate(arrays)))
    return evaluate(g, {f"x{i}": a for i, a in enumerate(arrays)})[out.id]


# -- creation


def test_creation_gives_arrays_and_in_a_traced_function_tensors_of_the_same_values() -> None:
    made: list[tuple[Callable[[], Any], Array]] = [
        (lambda: rlx.zeros(3), np.zeros(3, np.float32)), (lambda: rlx.ones((2, 1), "i32"), np.ones((2, 1), np.int32)),
        (lambda: rlx.full((2, 2), 3), np.full((2, 2), 3)), (lambda: rlx.full(2, 0.5), np.full(2, 0.5, np.float32)),
        (lambda: rlx.full((), True), np.array(True)), (lambda: rlx.arange(4), np.arange(4)),
        (lambda: rlx.arange(1, 2, 0.25), np.arange(1, 2, 0.25, np.float32)),
        (lambda: rlx.arange(5, 0, -2, "u8"), np.arange(5, 0, -2).astype(np.uint8)),
        (lambda: rlx.linspace(0, 1, 5), np.linspace(0, 1, 5, dtype=np.float32)),
        (lambda: rlx.linspace(0, 1, 4, endpoint=False, dtype="f64"), np.linspace(0, 1, 4, endpoint=False)),
        (lambda: rlx.eye(2, 3, 1), np.eye(2, 3, 1, np.float32)),
        (lambda: rlx.eye(3, dtype="i64"), np.eye(3, dtype=int)),
    ]  # fmt: skip
    for create, want in made:
        array = create()
        assert isinstance(array, np.ndarray) and array.dtype == want.dtype
        np.testing.assert_array_equal(array, want)
    traced = rlx.jit(lambda: [create() for create, _ in made], device="cpu")()
    for tensor, (_, want) in zip(traced, made, strict=True):
        assert tensor.dtype == want.dtype
        np.testing.assert_array_equal(tensor, want)


def test_creation_belongs_to_the_function_being_traced() -> None:
    def rows(x: Tensor) -> Any:
        inner = rlx.jit(lambda: rlx.arange(3), device="cpu")()  # traced by itself, so of no tensor
        return rlx.scan(lambda c, row: (c + rlx.ones(3) * row, rlx.full((), c[0])), rlx.zeros(3), x), inner + x

    (carry, firsts), more = rlx.jit(rows, device="cpu")(np.ones((4, 3), np.float32))
    np.testing.assert_array_equal(carry, [4, 4, 4])
    np.testing.assert_array_equal(firsts, [0, 1, 2, 3])
    np.testing.assert_array_equal(more, np.ones((4, 3)) + np.arange(3))
    with pytest.raises(RuntimeError, match="by itself"):
        rlx.jit(_failing, device="cpu")(np.ones(3))
    assert isinstance(rlx.zeros(1), np.ndarray)  # a failed trace leaves nothing behind


def _failing(x: Tensor) -> Tensor:
    raise RuntimeError("by itself")


def test_creation_refuses_what_does_not_fit() -> None:
    with pytest.raises(ShapeError, match="step is 0"):
        rlx.arange(0, 3, 0)
    for endless in (NAN, INF, 1e30):
        with pytest.raises(ShapeError, match=r"arange: .* finite"):
            rlx.arange(endless)
    for wrong in (np.arange(3), "3", 1j, 2**70, [1]):
        with pytest.raises(DTypeError, match=r"arange: (stop is|an argument is complex)"):
            rlx.arange(0, wrong)  # type: ignore[arg-type]
    with pytest.raises(DTypeError):
        rlx.full(2, 300, "u8")
    with pytest.raises(ShapeError, match="negative"):
        rlx.zeros(-1)
    with pytest.raises(TracedValueError, match="static"):
        rlx.jit(lambda n, x: x + rlx.arange(n), device="cpu")(3, np.ones(3))


# -- indexing


def test_indexing_by_arrays_is_numpys() -> None:
    x = np.arange(120.0).reshape(2, 3, 4, 5)
    parts: list[Any] = [
        np.array([0, -1]), np.array([[1], [0]]), [1, 0], 0, -1, slice(None), slice(0, 2), None, Ellipsis
    ]  # fmt: skip
    keys = [
        key for length in (1, 2, 3, 4) for key in itertools.product(parts, repeat=length)
        if any(isinstance(k, list | np.ndarray) for k in key)
    ]  # fmt: skip
    kept = len(keys) if full() else 150
    for i in rng.permutation(len(keys))[:kept]:
        key = keys[i]
        arrays = [np.asarray(k) for k in key if isinstance(k, list | np.ndarray)]

        def traced(t: Tensor, *given: Tensor, key: Any = key) -> Tensor:
            rest = iter(given)
            return t[tuple(next(rest) if isinstance(k, list | np.ndarray) else k for k in key)]

        try:
            want = x[key]
        except IndexError:
            with pytest.raises(ShapeError):
                Graph().input("x", x.shape)[key]
            continue
        for got in (run(lambda t, key=key: t[key], x), run(traced, x, *arrays)):
            assert got.shape == want.shape, key
            np.testing.assert_array_equal(got, want)


def test_indexing_by_arrays_adds_gradients_and_masks_are_values_that_are_known() -> None:
    g = Graph()
    x = g.input("x", (3, 4), "f64")
    (d,) = rlx.gradients(rlx.sum(x[[0, 0, 2], [1, 1, -1]]), [x])
    want = np.zeros((3, 4))
    want[0, 1], want[2, 3] = 2, 1
    np.testing.assert_array_equal(evaluate(g, {"x": np.zeros((3, 4))})[d.id], want)
    with pytest.raises(DTypeError, match=r"rlx\.where"):
        x[x > 0]
    assert x[np.ones((3, 4), bool)].shape == (12,) and x[[True, False, True]].shape == (2, 4)
    with pytest.raises(ShapeError, match="leave"):
        x[[0, 3]]
    assert x[[]].shape == (0, 4)


# -- einsum


@pytest.mark.parametrize(
    "subscripts, shapes",
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]), ("ij,jk,kl->il", [(2, 30), (30, 4), (4, 5)]), ("ii->i", [(3, 3)]),
        ("ii", [(3, 3)]), ("ij->", [(3, 4)]), ("i,j", [(3,), (4,)]), ("...ij,...jk", [(2, 1, 2, 3), (5, 3, 4)]),
        ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)]), ("abc,cd,de,ef->abf", [(2, 3, 4), (4, 5), (5, 6), (6, 2)]),
        ("iij,jk->ik", [(3, 3, 2), (2, 4)]), ("a b, c d ->", [(2, 3), (4, 5)]),
        ("bi,bj,bk->ijk", [(5, 2), (5, 3), (5, 4)]),
        ("...->...", [(2, 3)]), (",ij->ij", [(), (2, 3)]), ("ij,ij->ij", [(2, 3), (2, 1)]), ("ijk->kj", [(2, 3, 4)]),
    ],
)  # fmt: skip
def test_einsum_is_numpys_with_its_gradient(subscripts: str, shapes: list[tuple[int, ...]]) -> None:
    given = [rng.standard_normal(s) for s in shapes]
    want = np.einsum(subscripts, *given)
    np.testing.assert_allclose(run(lambda *t: rlx.einsum(subscripts, *t), *given), want, rtol=1e-12, atol=1e-14)
    # einsum is linear in each operand: the gradient along a direction is its value with the direction in the place.
    g = Graph()
    xs = [g.input(f"x{i}", s, "f64") for i, s in enumerate(shapes)]
    weights = rng.standard_normal(want.shape)
    grads = rlx.gradients(rlx.sum(rlx.einsum(subscripts, *xs) * g.constant(weights)), xs)
    values = evaluate(g, {f"x{i}": a for i, a in enumerate(given)})
    for i, d in enumerate(grads):
        other = [*given]
        other[i] = rng.standard_normal(shapes[i])
        along = np.sum(np.einsum(subscripts, *other) * weights)
        np.testing.assert_allclose(np.sum(values[d.id] * other[i]), along, rtol=1e-11, atol=1e-12)


def test_einsum_refuses_subscripts_that_do_not_fit() -> None:
    x = Graph().input("x", (2, 3))
    for bad in ("i", "ij,jk", "ijk->i", "ij->ii", "ij->k", "ii", "i1->i", "ij->i->j"):
        with pytest.raises(ShapeError, match="einsum"):
            rlx.einsum(bad, x)
    for operands in ((x,), (x, x, x)):
        with pytest.raises(ShapeError, match="letters a to z"):
            rlx.einsum(",".join(["αβ"] * len(operands)), *operands)
    with pytest.raises(ShapeError, match=r"'j' is 2 and 3"):
        rlx.einsum("ij,jk", x, x)


@pytest.mark.parametrize("subscripts", ["i,j->ij", "i,i->", "i,i->i", "i,i,i->i"])
def test_einsum_has_one_dtype_on_all_paths(subscripts: str) -> None:
    x = np.array([100, 100, 3])
    for dtypes, want in (("bb", "i4"), ("B?", "i4"), ("??", "i4"), ("bq", "i8"), ("ef", "f4"), ("be", "f2")):
        each = [*dtypes, dtypes[0]][: subscripts.count(",") + 1]
        given = [np.minimum(x, 5).astype(d) if want == "f2" else x.astype(d) for d in each]
        g = Graph()
        made = rlx.einsum(subscripts, *(g.input(f"x{i}", a.shape, a.dtype) for i, a in enumerate(given)))
        assert made.dtype.np == want, (subscripts, dtypes)
        got = evaluate(g, {f"x{i}": a for i, a in enumerate(given)})[made.id]
        np.testing.assert_array_equal(got, np.einsum(subscripts, *(a.astype(float) for a in given)))


# -- functions


S = np.array([0.0, -0.0, INF, -INF, NAN, 1, -1, 5e-324, 1e300, -1e300])


def test_functions_of_floats_are_numpys_at_special_values() -> None:
    a, b = np.meshgrid(S, S)
    with np.errstate(all="ignore"):
        for mine, theirs in (
            (rlx.hypot, np.hypot), (rlx.isclose, np.isclose),
            (lambda a, b: rlx.isclose(a, b, equal_nan=True), lambda a, b: np.isclose(a, b, equal_nan=True)),
            (rlx.copysign, lambda a, b: np.copysign(a, np.where(np.isnan(b), 1, b))),
        ):  # fmt: skip
            got, want = run(mine, a, b), theirs(a, b)
            np.testing.assert_allclose(got, want, rtol=1e-15)
            if want.dtype.kind == "f":
                np.testing.assert_array_equal(np.signbit(got)[want == want], np.signbit(want)[want == want])
    np.testing.assert_array_equal(run(rlx.signbit, S), np.signbit(S))
    np.testing.assert_array_equal(run(rlx.nan_to_num, S), np.nan_to_num(S))
    replaced = run(lambda x: rlx.nan_to_num(x, 1.5, posinf=2.0, neginf=-3.0), S)
    np.testing.assert_array_equal(replaced, np.nan_to_num(S, nan=1.5, posinf=2.0, neginf=-3.0))


def test_isclose_of_integers_is_exact() -> None:
    near = rlx.jit(lambda a, b: rlx.isclose(a, b, 0, 0), device="cpu")
    least, most = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    a, b = np.array([2**24, 2**24, most, most, 5]), np.array([2**24 + 1, 2**24, most - 1, least, 5])
    np.testing.assert_array_equal(near(a, b), a == b)
    np.testing.assert_array_equal(near(a[:2].astype(np.int32), b[:2].astype(np.int32)), [False, True])


def test_digamma_has_the_pole_on_the_side_of_its_zero() -> None:
    np.testing.assert_array_equal(run(rlx.digamma, np.array([0.0, -0.0, -1.0])), [-INF, INF, NAN])


def test_adaptive_pools_take_integers_of_numpy_and_no_bools() -> None:
    x = Graph().input("x", (1, 2, 4, 6))
    assert rlx.adaptive_avg_pool(x, np.int64(2)).shape == (1, 2, 2, 2)
    for bad in (True, (True, 2), 0, 2.0):
        with pytest.raises(ShapeError, match="adaptive_avg_pool"):
            rlx.adaptive_avg_pool(x, bad)


@pytest.mark.parametrize("n", [1, 4, 5])
def test_median_is_numpys(n: int) -> None:
    x = rng.standard_normal((3, n))
    x[1, 0] = NAN
    for axis, keep in ((1, False), (0, True), (None, True)):
        want = np.median(x, axis, keepdims=keep)
        np.testing.assert_array_equal(run(lambda t, a=axis, k=keep: rlx.median(t, a, k), x), want)
    far = np.array([1.7e308, 1.6e308])
    assert np.isfinite(run(rlx.median, far))
    tiny, most = np.finfo(np.float32).smallest_subnormal, np.finfo(np.float16).max
    for pair in (np.array([tiny, tiny]), np.array([most, most]), np.array([INF, INF], np.float32)):
        got = rlx.jit(rlx.median, device="cpu")(pair)
        assert got.dtype == pair.dtype and got == pair[0]


def test_running_extremes_are_numpys() -> None:
    x = rng.integers(-3, 4, (3, 9)).astype(float)
    x[1, 4] = NAN
    np.testing.assert_array_equal(run(lambda t: rlx.cummax(t, 1), x), np.maximum.accumulate(x, 1))
    np.testing.assert_array_equal(run(lambda t: rlx.cummin(t, 0), x), np.minimum.accumulate(x, 0))
    back = np.maximum.accumulate(x[:, ::-1], 1)[:, ::-1]
    np.testing.assert_array_equal(run(lambda t: rlx.cummax(t, 1, reverse=True), x), back)
    whole = rng.integers(-128, 128, 20).astype(np.int8)
    np.testing.assert_array_equal(run(rlx.cummax, whole), np.maximum.accumulate(whole))


def test_outer_and_embedding() -> None:
    np.testing.assert_array_equal(run(rlx.outer, A, B[0]), np.outer(A, B[0]))
    ids = np.array([[0, 2], [1, 1]])
    np.testing.assert_array_equal(run(rlx.embedding, A, ids), A[ids])


def test_embedding_names_torchs_order() -> None:
    g = Graph()
    with pytest.raises(DTypeError, match=r"embedding: .* the table comes first"):
        rlx.embedding(g.input("ids", (2,), "i64"), g.input("table", (3, 4)))


# -- beside torch: values and gradients

Pair = tuple[Callable[..., Any], Callable[..., Any], tuple[Array, ...]]


def _beside_torch() -> dict[str, Pair]:
    x, logs = rng.standard_normal((2, 3, 7, 10)), np.log(P)
    running = rng.integers(-3, 4, (3, 9)).astype(float)
    labels, zero = np.array([1, -100, 3]), np.array([0.0, 1.0, -2.0, 3.0])
    weight = np.array([0.5, 1, 2, 3])
    found: dict[str, Pair] = {
        "hypot": (rlx.hypot, lambda f, a, b: f.torch.hypot(a, b), (A * 100, B)),
        "copysign": (rlx.copysign, lambda f, a, b: f.torch.copysign(a, b), (A, B)),
        "cummax": (lambda t: rlx.cummax(t, 1), lambda f, t: f.torch.cummax(t, 1)[0], (running,)),
        "cummin": (lambda t: rlx.cummin(t, 1), lambda f, t: f.torch.cummin(t, 1)[0], (running,)),
        "digamma": (rlx.digamma, lambda f, t: f.torch.polygamma(0, t), (np.abs(A) + 2,)),
        "instance_norm": (
            lambda t: rlx.instance_norm(rlx.cast(t, "f64")), lambda f, t: f.instance_norm(t), (x,)
        ),
        "pixel_shuffle": (
            lambda t: rlx.pixel_shuffle(t, 2), lambda f, t: f.pixel_shuffle(t, 2), (rng.standard_normal((2, 8, 3, 5)),)
        ),
        "pixel_unshuffle": (
            lambda t: rlx.pixel_unshuffle(t, 2), lambda f, t: f.pixel_unshuffle(t, 2), (rng.standard_normal((2, 4, 6)),)
        ),
        "pos_weight": (
            lambda a, b: rlx.binary_cross_entropy_with_logits(a, b, weight),
            lambda f, a, b: f.binary_cross_entropy_with_logits(a, b, pos_weight=f.torch.tensor(weight)), (A * 30, Y),
        ),
        "bce_at_its_ends": (
            lambda a, b: rlx.stop_gradient(rlx.binary_cross_entropy(a, b, "none")),
            lambda f, a, b: f.binary_cross_entropy(a, b, reduction="none").detach(),
            (np.array([0.0, 0, 1, 1]), np.array([0.0, 1, 0, 1])),
        ),
        "kl_batchmean": (
            lambda a, b: rlx.kl_div(a, b, reduction="batchmean"),
            lambda f, a, b: f.kl_div(a, b, reduction="batchmean"), (logs, Y),
        ),
        "kl_log_target": (
            lambda a, b: rlx.kl_div(a, b, True, "sum"),
            lambda f, a, b: f.kl_div(a, b, log_target=True, reduction="sum"), (logs, np.log(Y)),
        ),
        "nll_along_channels": (
            lambda a, b: rlx.nll_loss(a, b, axis=1), lambda f, a, b: f.nll_loss(a, b),
            (rng.standard_normal((2, 3, 4)), rng.integers(0, 3, (2, 4))),
        ),
        "huber_kinks": (
            lambda a: rlx.huber_loss(a, np.zeros(4), reduction="sum"),
            lambda f, a: f.huber_loss(a, f.torch.zeros(4).double(), reduction="sum"), (zero,),
        ),
    }  # fmt: skip
    for size in ((3, 4), (7, 5), (1, 1), (None, 3), 5):
        found[f"adaptive_avg_pool-{size}"] = (
            lambda t, s=size: rlx.adaptive_avg_pool(t, s), lambda f, t, s=size: f.adaptive_avg_pool2d(t, s), (x,)
        )  # fmt: skip
    for red in ("mean", "sum", "none"):
        for name, given, more in (
            ("mse_loss", (A, B), {}), ("l1_loss", (A, B), {}), ("huber_loss", (A, B), {"delta": 0.7}),
            ("smooth_l1_loss", (A, B), {"beta": 0.7}), ("binary_cross_entropy", (P, Y), {}),
            ("binary_cross_entropy_with_logits", (A * 30, Y), {}), ("kl_div", (logs, Y), {}),
            ("nll_loss", (logs, labels), {}),
        ):  # fmt: skip
            found[f"{name}-{red}"] = (
                lambda *t, n=name, m=more, r=red: getattr(rlx, n)(*t, reduction=r, **m),
                lambda f, *t, n=name, m=more, r=red: getattr(f, n)(*t, reduction=r, **m), given,
            )  # fmt: skip
    for steps in (3, 20):
        for reverse in (False, True):
            found[f"lstm-{steps}-{reverse}"] = _recurrent("lstm", steps, reverse)
            found[f"gru-{steps}-{reverse}"] = _recurrent("gru", steps, reverse)
    return found


def _recurrent(kind: str, steps: int, reverse: bool) -> Pair:
    """The results of all steps and the last state side by side, from weights, biases and a first state."""
    gates, hidden, batch, inputs = (4 if kind == "lstm" else 3), 3, 2, 4
    shapes = [(steps, batch, inputs), (gates * hidden, inputs), (gates * hidden, hidden), (gates * hidden,),
              (gates * hidden,), *[(batch, hidden)] * (2 if kind == "lstm" else 1)]  # fmt: skip

    def mine(x: Tensor, wi: Tensor, wh: Tensor, bi: Tensor, bh: Tensor, *state: Tensor) -> Tensor:
        first: Any = state if kind == "lstm" else state[0]
        ys, end = getattr(rlx, kind)(x, wi, wh, bi, bh, first, reverse=reverse)
        ends = end if isinstance(end, tuple) else (end,)
        return rlx.concat([ys, *(rlx.expand_dims(e, 0) for e in ends)])

    def theirs(f: Any, x: Any, wi: Any, wh: Any, bi: Any, bh: Any, *state: Any) -> Any:
        first = tuple(s[None] for s in state) if kind == "lstm" else state[0][None]
        run_layer = getattr(f.torch._VF, kind)
        ys, *ends = run_layer(x.flip(0) if reverse else x, first, [wi, wh, bi, bh], True, 1, 0.0, True, False, False)
        return f.torch.cat([ys.flip(0) if reverse else ys, *ends])

    return mine, theirs, tuple(rng.standard_normal(s) for s in shapes)


BESIDE_TORCH = _beside_torch()


@pytest.mark.judged
@pytest.mark.filterwarnings("ignore:reduction")
@pytest.mark.parametrize("name", BESIDE_TORCH)
def test_value_and_gradient_are_torchs(name: str) -> None:
    torch = outside("torch")
    functional = torch.nn.functional
    functional.torch = torch
    mine, theirs, given = BESIDE_TORCH[name]
    g = Graph()
    xs = [g.input(f"x{i}", a.shape, a.dtype) for i, a in enumerate(given)]
    floats = [x for x in xs if x.dtype.is_float]
    out = mine(*xs)
    weights = np.random.default_rng(1).standard_normal(out.shape)
    grads = rlx.gradients(rlx.sum(out * g.constant(weights)), floats)
    values = evaluate(g, {f"x{i}": a for i, a in enumerate(given)})
    leaves = [torch.tensor(a, requires_grad=a.dtype.kind == "f") for a in given]
    want = theirs(functional, *leaves)
    np.testing.assert_allclose(values[out.id], want.detach().numpy(), rtol=1e-9, atol=1e-12)
    if not want.requires_grad:
        return
    (want * torch.tensor(weights)).sum().backward()
    for d, leaf in zip(grads, (t for t in leaves if t.requires_grad), strict=True):
        wanted = np.zeros(leaf.shape) if leaf.grad is None else leaf.grad.numpy()
        np.testing.assert_allclose(values[d.id], wanted, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_recurrent_layers_promote_at_every_length(kind: str) -> None:
    for steps in (3, 20):
        mine, _, given = _recurrent(kind, steps, False)
        want = run(mine, *given)
        for dtypes in ("fdff", "effe", "eeef", "feee"):  # of x, w_ih, w_hh and all others
            cast = [a.astype(dtypes[min(i, 3)]) for i, a in enumerate(given)]
            g = Graph()
            made = mine(*(g.input(f"x{i}", a.shape, a.dtype) for i, a in enumerate(cast)))
            assert made.dtype.np == np.result_type(*dtypes)
            got = evaluate(g, {f"x{i}": a for i, a in enumerate(cast)})[made.id]
            np.testing.assert_allclose(got, want, atol=0.02)


def test_losses_are_stable_where_plain_formulas_are_not() -> None:
    x, y = np.array([50.0, -50, 800, -800]), np.array([1.0, 0, 1, 0])
    sure = run(lambda a, b: rlx.binary_cross_entropy_with_logits(a, b, reduction="none"), x, y)
    np.testing.assert_allclose(sure, np.exp(-np.abs(x)), rtol=1e-12)
    gone = run(lambda a, b: rlx.kl_div(a, b, reduction="none"), np.array([-INF, -1.0]), np.array([0.0, 0.5]))
    np.testing.assert_allclose(gone, [0, 0.5 * (math.log(0.5) + 1)], rtol=1e-12)
    small, one = np.array([0.0, 1e-300, 1e-40]), np.ones(3)
    clamped = run(lambda a, b: rlx.binary_cross_entropy(a, b, reduction="none"), small, one)
    np.testing.assert_allclose(clamped, [100, 100, -math.log(1e-40)], rtol=1e-12)
    g = Graph()
    p, q = g.input("p", (2,), "f64"), g.input("q", (2,), "f64")
    (d,) = rlx.gradients(rlx.sum(rlx.binary_cross_entropy(p, q)), [p])
    assert np.isfinite(evaluate(g, {"p": np.array([0.0, 1.0]), "q": np.array([1.0, 0.5])})[d.id]).all()
    h = Graph()
    a, b = h.input("a", (2,), "f64"), h.input("b", (2,), "f64")
    both = rlx.gradients(rlx.sum(rlx.hypot(a, b)), [a, b])
    at = evaluate(h, {"a": np.array([0.0, 3e200]), "b": np.array([0.0, 4e200])})
    np.testing.assert_allclose([at[d.id] for d in both], [[0, 0.6], [0, 0.8]], rtol=1e-14)


def test_losses_refuse_shapes_that_would_broadcast_and_unknown_reductions() -> None:
    g = Graph()
    column, row = g.input("column", (3, 1)), g.input("row", (3,))
    with pytest.raises(ShapeError, match="one shape"):
        rlx.mse_loss(column, row)
    with pytest.raises(DTypeError, match="batchmean"):
        rlx.kl_div(row, row, reduction="average")
    with pytest.raises(ShapeError, match="none of the 3 classes"):
        rlx.nll_loss(row, 3)
    with pytest.raises(ShapeError, match="labels are"):
        rlx.nll_loss(column, np.array([0, 0]))


# -- value_and_grad


def test_value_and_grad_gives_both_and_what_comes_beside() -> None:
    def loss(w: Any, x: Any) -> Any:
        y = x @ w
        return rlx.sum(y * y), {"y": y}

    w, x = np.ones(3, np.float32), np.full((2, 3), 2, np.float32)
    (value, aux), d = rlx.value_and_grad(loss, has_aux=True, device="cpu")(w, x)
    assert value == 72
    np.testing.assert_array_equal(aux["y"], [6, 6])
    np.testing.assert_array_equal(d, [48, 48, 48])
    d, aux = rlx.grad(loss, has_aux=True, device="cpu")(w, x)
    np.testing.assert_array_equal(d, [48, 48, 48])
    value, both = rlx.value_and_grad(lambda a, b: rlx.sum(a * rlx.stop_gradient(b)), (0, 1), device="cpu")(w, w)
    assert value == 3
    np.testing.assert_array_equal(both, [[1, 1, 1], [0, 0, 0]])
    with pytest.raises(ShapeError, match="has_aux"):
        rlx.value_and_grad(loss, device="cpu")(w, x)
    with pytest.raises(ShapeError, match="two things"):
        rlx.grad(lambda w: rlx.sum(w), has_aux=True, device="cpu")(w)


# -- methods


def test_a_method_is_the_function_of_its_name() -> None:
    g = Graph()
    x = g.input("x", (3, 4), "f64")
    pairs = [(x.exp(), rlx.exp(x)), (x.argmax(1), rlx.argmax(x, 1)), (x.softmax(axis=0), rlx.softmax(x, axis=0))]
    values = evaluate(g, {"x": A})
    for method, function in pairs:
        np.testing.assert_array_equal(values[method.id], values[function.id])
