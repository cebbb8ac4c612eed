"""Ops on Arrays outside a trace, which compute at once: results beside NumPy's, devices, errors, and what they keep."""

from __future__ import annotations

import gc
import threading
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.errors import ArenaError, DTypeError, GraphError, RlxError, ShapeError
from rlx.runtime import Session, eager
from tests.devices import device_here

X = np.arange(12, dtype=np.float32).reshape(3, 4) - 4
Y = np.linspace(0.5, 2, 12, dtype=np.float32).reshape(3, 4)


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> eager.Cache:
    """A cache of the test's own."""
    monkeypatch.setattr(eager, "CACHE", eager.Cache())
    return eager.CACHE


def both(function: Callable[[Any, Any], Any], session: Session) -> None:
    """Computes with Arrays, twice, since the second call takes the program of the first; and with NumPy's arrays."""
    x, y = (rlx.array(a, device=session) for a in (X, Y))
    wanted = np.asarray(function(X, Y))
    for _ in range(2):
        made = function(x, y)
        assert isinstance(made, rlx.Array) and made.device is session.device
        np.testing.assert_allclose(made.numpy(), wanted, rtol=1e-6, atol=1e-6)


OPERATORS: list[Callable[[Any, Any], Any]] = [
    lambda x, y: x + y, lambda x, y: x - 1, lambda x, y: 2.5 * x, lambda x, y: x / y, lambda x, y: 1 / y,
    lambda x, y: y**2, lambda x, y: x % y, lambda x, y: x // y, lambda x, y: -x, lambda x, y: abs(x),
    lambda x, y: x @ y.T, lambda x, y: (x > 0) & (y < 1), lambda x, y: ~(x == y), lambda x, y: x != 3,
    lambda x, y: x.sum(), lambda x, y: x.sum(1), lambda x, y: x.max(axis=0), lambda x, y: x.reshape(4, 3),
    lambda x, y: x.T, lambda x, y: x.mean(axis=1, keepdims=True), lambda x, y: x + Y, lambda x, y: Y * x,
    lambda x, y: np.float32(3) * x, lambda x, y: x - np.float64(0.5), lambda x, y: x.argmax(1), lambda x, y: +x,
]  # fmt: skip


@pytest.mark.parametrize("function", OPERATORS, ids=map(str, range(len(OPERATORS))))
def test_operators_and_methods_as_numpy_has_them(session: Session, function: Any) -> None:
    both(function, session)


KEYS: list[Any] = [
    1, -1, (1, 2), slice(1, 3), slice(None, None, -2), (slice(None), 1), (..., slice(0, 2)), (None, 2, None), ...,
    np.array([0, 2, 2]), [2, -1], (slice(None), np.array([[0, 3], [1, 1]])), (np.array([0, 2]), np.array([3, 1])),
    X > 0, (X[:, 0] > -2), (slice(None), np.array([True, False, True, False])), (np.int64(1), slice(0, 3, 2)),
    (slice(2, 2),),
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS, ids=map(str, range(len(KEYS))))
def test_indices_as_numpy_has_them(session: Session, key: Any) -> None:
    held = rlx.array(X, device=session)
    for _ in range(2):
        made = held[key]
        assert isinstance(made, rlx.Array)
        np.testing.assert_array_equal(made.numpy(), X[key], strict=True)
    of_arrays = tuple(rlx.array(k, device=session) if isinstance(k, np.ndarray) else k
                      for k in (key if isinstance(key, tuple) else (key,)))  # fmt: skip
    np.testing.assert_array_equal(held[of_arrays].numpy(), X[key])


def test_parts_that_were_taken_before_are_found_by_their_key(session: Session) -> None:
    for values in (np.arange(24, dtype=np.float32).reshape(4, 6), np.arange(24, dtype=np.int32).reshape(4, 6)):
        x = rlx.array(values, device=session)
        for _ in range(2):
            for key in ((1,), (slice(1, 3),), (slice(1, 3), 0), (-1,), (slice(None, None, 2),), (None, 1), (..., 1)):
                np.testing.assert_array_equal(x[key].numpy(), values[key])
            np.testing.assert_array_equal(x[np.int64(1) :].numpy(), values[1:])
        with pytest.raises((RlxError, TypeError)):
            x[1.0:3]  # type: ignore[misc]  # equal to a key that is known
        with pytest.raises(RlxError):
            x[7]
    row = rlx.array(np.arange(24, dtype=np.float32), device=session)
    np.testing.assert_array_equal(row[1:3].numpy(), [1, 2])


def test_functions_of_several_arrays_and_results(session: Session) -> None:
    x, y = (rlx.array(a, device=session) for a in (X, Y))
    np.testing.assert_array_equal(rlx.concat([x, Y], 1).numpy(), np.concatenate([X, Y], 1))
    np.testing.assert_array_equal(rlx.where(x > 0, y, 0.0).numpy(), np.where(X > 0, Y, 0))
    values, places = rlx.top_k(x, 2)
    np.testing.assert_array_equal(values.numpy(), np.sort(X, 1)[:, :1:-1])
    np.testing.assert_array_equal(places.numpy(), np.argsort(-X, 1)[:, :2])
    assert [part.shape for part in rlx.split(x, 2, axis=1)] == [(3, 2), (3, 2)]
    assert rlx.reshape(x, np.array([2, 6])).shape == (2, 6)  # an array that has to be known is built in
    assert rlx.reshape(x, np.array([6, 2])).shape == (6, 2)


def test_control_flow_and_keys(session: Session) -> None:
    x = rlx.array(X, device=session)
    last, sums = rlx.scan(lambda c, row: (c + row, c.sum()), x[0] * 0, x)
    np.testing.assert_array_equal(last.numpy(), X.sum(0))
    np.testing.assert_array_equal(sums.numpy(), [0, X[0].sum(), X[:2].sum()])
    assert rlx.while_loop(lambda n: n < 100, lambda n: n * 2, rlx.array(3, device=session)).item() == 192
    assert rlx.cond(x.sum() > 0, lambda v: v + 1, lambda v: v - 1, x)[0, 0].item() == -3
    key = rlx.array(rlx.random.key(3), device=session)
    drawn = rlx.random.uniform(key, (1000,))
    assert 0.4 < drawn.mean().item() < 0.6 and drawn.shape == (1000,)
    assert (rlx.random.fold_in(key, 5) != rlx.random.fold_in(key, 6)).any().item()


def test_numbers_in_and_out(session: Session) -> None:
    x = rlx.array(X, device=session)
    assert [float(x[0, 1]), int(x[1, 2]), bool(x[0, 0] < 0)] == [-3.0, 2, True]
    assert f"{x[0, 1]:.2f}" == "-3.00" and 7.0 in x and 8.5 not in x
    assert [row.shape for row in x] == [(4,)] * 3
    assert list(range(3))[rlx.array(2, device=session)] == 2
    with pytest.raises(TypeError, match=r"f32\[\] is no index"):
        range(x[0, 0])
    with pytest.raises(TypeError, match=r"never changes.*x\.at\[key\]\.set"):
        x[0] = 1


def test_numpys_functions_give_numpys_arrays() -> None:
    x: Any = rlx.array(X, device="cpu")
    calls: list[Callable[[Any], Any]] = [
        np.sum, np.exp, lambda a: np.mean(a, axis=0), lambda a: np.reshape(a, (4, 3)), lambda a: np.concatenate([a, a]),
        lambda a: np.clip(a, 0, 1), lambda a: np.linalg.norm(a, axis=1), lambda a: np.where(a > 0, a, 0), np.argmax,
        lambda a: np.einsum("ij->j", a), lambda a: np.squeeze(a[:1]), np.shape, np.add.reduce, np.round,
    ]  # fmt: skip
    for call in calls:
        made, wanted = call(x), call(X)
        assert type(made) is type(wanted)
        np.testing.assert_array_equal(made, wanted)


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16", "i32", "i64", "u8", "bool"])
def test_dtypes_stay(dtype: str) -> None:
    kind = rlx.array(0, dtype).dtype.np
    values = np.array([0, 1, 1, 0]).astype(kind)
    x = rlx.array(values, device="cpu")
    made = [x, rlx.flip(x, 0), rlx.where(values != 0, x, values)]  # NumPy's arrays keep their dtypes too
    assert {str(array.dtype) for array in made} == {dtype}
    if dtype in ("f32", "f64", "f16", "bf16"):
        assert [(x * 0.5).dtype, (x + 1).dtype, (np.float64(2) * x).dtype] == [x.dtype] * 3  # numbers adapt


def test_numpy_alone_and_numbers_alone_compute_on_the_default_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_DEVICE", "cpu")
    made = rlx.sum(X.astype(np.float64))
    assert isinstance(made, rlx.Array) and made.dtype == rlx.f64 and made.device.info.id == "cpu"
    assert made.item() == X.sum() and abs(rlx.exp(1.0).item() - np.e) < 1e-6
    assert rlx.one_hot(np.array([2, 0]), 3).tolist() == [[0, 0, 1], [1, 0, 0]]
    assert isinstance(rlx.zeros(3), np.ndarray)  # what numbers alone make is NumPy's, as before


def test_a_gpu_says_once_that_it_computes_in_f64(cache: eager.Cache) -> None:
    device = device_here("vulkan")
    x = rlx.array(X, device=device)
    with pytest.warns(UserWarning, match=r"computes in f64.*astype\(np.float32\).*test_eager.py"):
        made = x + X.astype(np.float64)
    assert made.dtype == rlx.f64
    x * X.astype(np.float64)  # a second warning would fail the test


def test_two_devices_are_an_error() -> None:
    here, there = rlx.array(X, device="cpu"), rlx.array(X, device=device_here("vulkan"))
    with pytest.raises(GraphError, match=r'add: an argument is on cpu, another on vulkan:0; .*\.to\("cpu"\)'):
        here + there
    np.testing.assert_array_equal((here + there.to("cpu")).numpy(), X + X)


def test_nothing_is_eager_inside_a_trace(cache: eager.Cache) -> None:
    held = rlx.array(X, device="cpu")

    @rlx.jit(device="cpu")
    def f(x: Any) -> Any:
        inner = rlx.jit(lambda v: v * 2, device="cpu")
        assert all(isinstance(t, rlx.Tensor) for t in (held + held, held[0], held.sum(), rlx.exp(Y), inner(X)))
        return x * held + (held + held).sum() + inner(Y)

    np.testing.assert_allclose(f(Y), Y * X + 2 * X.sum() + 2 * Y, rtol=1e-6)
    assert not cache.programs


def test_a_graph_built_by_hand_takes_arrays_as_constants(cache: eager.Cache) -> None:
    held = rlx.array(X, device="cpu")
    g = rlx.Graph()
    x = g.input("x", (3, 4))
    g.output("y", rlx.maximum(held, x) + held + rlx.concat([held, x], 0)[:3])
    assert not cache.programs
    made = Session("cpu").compile(g).run({"x": Y})["y"]
    np.testing.assert_array_equal(made, np.maximum(X, Y) + X + X)


def test_results_are_memory_of_their_own(session: Session) -> None:
    x = rlx.array(X, device=session)
    copies = [x.reshape(12), x[:], x[0:2], +x * 1, rlx.stop_gradient(x), x.astype("f32")]
    step = rlx.jit(lambda a: a + 1, device=session.device.info.id, out="device", donate="a")
    after = step(x)
    with pytest.raises(ArenaError, match="donated"):
        x + 1
    for made in copies:
        np.testing.assert_array_equal(made.numpy().reshape(-1), X.reshape(-1)[: made.size])
    copies[0].close()
    assert float(copies[1][0, 0]) == -4 and float(after[0, 0]) == -3


def test_numbers_and_numpy_indices_compile_once(cache: eager.Cache) -> None:
    x = rlx.array(X, device="cpu")
    for n in range(1, 20):
        np.testing.assert_allclose((x * (n / 7) + n).numpy(), X * np.float32(n / 7) + n, rtol=1e-6)
        np.testing.assert_array_equal(x[np.array([n % 3, 0])].numpy(), X[[n % 3, 0]])
        assert float(x[n % 3, n % 4]) == X[n % 3, n % 4]
    assert len(cache.programs) <= 4
    assert (x * -0.0).numpy().tobytes() == (X * np.float32(-0.0)).tobytes()
    with pytest.raises(DTypeError, match="300"):
        rlx.array(X.astype(np.uint8), device="cpu") + 300


def test_the_cache_is_bounded(cache: eager.Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eager, "PROGRAMS", 8)
    first = rlx.array(np.ones(1, np.float32), device="cpu")
    for n in range(1, 24):
        x = rlx.array(np.ones(n, np.float32), device="cpu")
        assert (x + x).sum().item() == 2 * n and (first + first).item() == 2
        assert eager.cache_info()["size"] <= 8
    assert any(((1,), "f32") in key for key in cache.programs)  # type: ignore[operator]  # what is in use stays
    monkeypatch.setattr(eager, "PROGRAM_BYTES", 1 << 10)
    for n in range(4):
        big = rlx.array(np.ones((100 + n, 100), np.float32), device="cpu")
        assert float((big + big)[0, 0]) == 2
    assert eager.cache_info()["size"] <= 2  # a program that is larger than all may be is kept until the next
    del big
    gc.collect()


def test_threads_share_programs(cache: eager.Cache) -> None:
    wrong: list[Any] = []

    def work(seed: int) -> None:
        values = np.full((8, 8), float(seed), np.float32)
        x = rlx.array(values, device="cpu")
        for n in range(60):
            made = ((x + n) @ x)[0, 0].item()
            if made != 8 * (seed + n) * seed:
                wrong.append((seed, n, made))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and len(cache.programs) <= 3


def test_memory_of_results_is_counted() -> None:
    x = rlx.array(np.ones(1000, np.float32), device="cpu")
    before = x.device.taken_bytes()
    y = x + x
    more = x.device.taken_bytes() - before
    del y
    assert more >= 4000 and x.device.taken_bytes() < before + more


@pytest.mark.parametrize(
    "use, kind, text",
    [
        (lambda x: x + np.ones(7, np.float32), ShapeError, r"add: shapes \(3, 4\), \(7,\) do not broadcast"),
        (lambda x: x[3], ShapeError, r"index: 3 is out of range for axis 0 of shape \(3, 4\)"),
        (lambda x: x[0, 0, 0], ShapeError, "index"),
        (lambda x: x[np.array([0, 5])], ShapeError, "indices from 0 to 5 leave axis 0"),
        (lambda x: x[[0], [9]], ShapeError, "indices from 9 to 9 leave an axis of 4"),
        (lambda x: x[np.array([True, False])], ShapeError, r"a mask of shape \(2,\).*expected \(3,\)"),
        (lambda x: x[0.5], (ShapeError, DTypeError), "index"),
        (lambda x: rlx.gather(x, [4], 1), ShapeError, "indices from 4 to 4 leave axis 1"),
        (lambda x: rlx.sum(x, axis=2), ShapeError, "sum"),
        (lambda x: rlx.reshape(x, (5, 5)), ShapeError, "reshape"),
        (lambda x: x & x, DTypeError, "takes bools or integers, got f32"),
        (lambda x: rlx.sum(x, keepdim=True), TypeError, "did you mean 'keepdims'"),
    ],
)
def test_errors_come_at_once_and_show_the_line(use: Any, kind: Any, text: str) -> None:
    x = rlx.array(X, device="cpu")
    with pytest.raises(kind, match=text) as caught:
        use(x)
    assert any(f.filename == __file__ and "lambda x" in (f.line or "") for f in traceback.extract_tb(caught.tb))
    assert (x + x).shape == (3, 4)  # the next call works


def test_a_users_op_computes_at_once() -> None:
    def infer(types: Any, attrs: Any) -> Any:
        return types[0]

    with rlx.custom_op("thrice", lambda x, *, by: x * by, infer) as thrice:
        x = rlx.array(X, device="cpu")
        np.testing.assert_array_equal(thrice(x, by=3).numpy(), 3 * X)  # type: ignore[union-attr]
        np.testing.assert_array_equal(thrice(thrice(X, by=2), by=2).numpy(), 4 * X)  # type: ignore[union-attr]


# -- in a trace, ops of arrays alone


W = np.linspace(-1, 1, 6).reshape(2, 3)
CONSTANTS: list[tuple[Callable[[], Any], Any]] = [
    (lambda: rlx.sum(W), W.sum()),
    (lambda: rlx.add(W, 1.5), W + 1.5),
    (lambda: rlx.maximum(W, W.astype(np.float32)), W),
    (lambda: rlx.exp(2.0), np.float32(np.exp(2.0))),
    (lambda: rlx.one_hot(np.array([2, 0]), 3), np.eye(3, dtype=np.float32)[[2, 0]]),
    (lambda: rlx.concat([W, W], 0), np.concatenate([W, W])),
    (lambda: rlx.where(W > 0, W, 0.0), np.where(W > 0, W, 0)),
    (lambda: rlx.scan(lambda c, x: (c + x, c), np.zeros(3), W)[0], W.sum(0)),
    (lambda: rlx.scan(lambda c, x: (c + x * W[0], None), np.zeros(3), np.arange(4.0))[0], 6 * W[0]),
    (lambda: rlx.while_loop(lambda c: rlx.sum(c) < 50, lambda c: c * 2, np.ones(3)), np.full(3, 32.0)),
    (lambda: rlx.cond(np.array(True), lambda w: w + 1, lambda w: w, W), W + 1),
    (lambda: rlx.fft.power(rlx.fft.rfft(W)), np.abs(np.fft.rfft(W)) ** 2),
    (lambda: rlx.dynamic_update_slice(W, np.zeros((1, 3)), [1, 0]), np.stack([W[0], 0 * W[0]])),
    (lambda: rlx.random.normal(rlx.random.key(0), (3,)) * 0, np.zeros(3, np.float32)),
    (lambda: rlx.random.permutation(rlx.random.key(0), 5).sum(), 10),
    (lambda: rlx.random.permutation(rlx.random.key(0), W[0]).sum(), W[0].sum()),
]


@pytest.mark.parametrize("build, wanted", CONSTANTS, ids=map(str, range(len(CONSTANTS))))
def test_ops_of_arrays_alone_take_the_graph_being_traced(build: Any, wanted: Any) -> None:
    made = rlx.jit(lambda x: (x, build()), device="cpu")(np.float32(0))[1]
    np.testing.assert_allclose(made, wanted, rtol=1e-5, atol=1e-12)
    assert made.dtype.kind != "f" or made.dtype == np.asarray(wanted).dtype
    body = rlx.jit(lambda x: rlx.scan(lambda c, _: (c, build()), x, length=2)[1], device="cpu")(np.float32(0))
    np.testing.assert_allclose(body[1], wanted, rtol=1e-5, atol=1e-12)
    loss = rlx.grad(lambda x: x * x + rlx.sum(rlx.cast(build(), "f32")), device="cpu")
    assert float(loss(np.float32(3))) == 6
