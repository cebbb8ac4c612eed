"""cond, while_loop and scan on each device, against plain NumPy loops in float64: nested, empty, on many threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.autodiff import gradients
from rlx.conformance.oracle import evaluate
from rlx.driver.control import step_budget
from rlx.errors import StepLimitExceeded
from tests.threads import at_once

Feeds = dict[str, np.ndarray]


def run(session: rlx.Session, build: Callable[..., Any], feeds: Feeds, **options: Any) -> list[np.ndarray]:
    """The results of `build`, called with inputs of these names and values."""
    g = rlx.Graph("control")
    made = build(*(g.input(n, a.shape, a.dtype) for n, a in feeds.items()))
    for i, t in enumerate(made if isinstance(made, tuple) else (made,)):
        g.output(f"y{i}", t)
    with session.compile(g, **options) as exe:
        first, again = exe.run(feeds), exe.run(feeds)
        for name in first:
            np.testing.assert_array_equal(first[name], again[name])
        return list(first.values())


def test_fibonacci(session: rlx.Session) -> None:
    def build(n: rlx.Tensor) -> Any:
        def step(c: Any) -> Any:
            i, a, b = c
            return i + 1, b, a + b

        return rlx.while_loop(lambda c: c[0] < n, step, (n * 0, 0, 1))[1]

    for n, want in ((0, 0), (1, 1), (10, 55), (60, 1548008755920)):
        assert run(session, build, {"n": np.array(n, np.int64)})[0] == want


def test_newtons_square_root_stops_when_it_is_there(session: rlx.Session) -> None:
    def build(x: rlx.Tensor) -> Any:
        far = lambda c: rlx.any(rlx.abs(c[0] * c[0] - x) > 1e-5 * x)  # noqa: E731
        return rlx.while_loop(far, lambda c: ((c[0] + x / c[0]) * 0.5, c[1] + 1), (x, 0))

    x = np.float32([2.0, 9.0, 1e4])
    root, steps = run(session, build, {"x": x})
    np.testing.assert_allclose(root, np.sqrt(x.astype(np.float64)), rtol=1e-5)
    assert 5 < steps < 20


@pytest.mark.sample(vulkan=0)
def test_power_iteration_finds_the_largest_eigenvalue(session: rlx.Session) -> None:
    rng = np.random.default_rng(3)
    basis, _ = np.linalg.qr(rng.standard_normal((12, 12)))
    a = ((basis * np.r_[5.0, np.linspace(0.1, 2, 11)]) @ basis.T).astype(np.float32)

    def build(a: rlx.Tensor, v: rlx.Tensor) -> Any:
        def step(v: rlx.Tensor, _: None) -> Any:
            w = a @ v
            size = rlx.sqrt(rlx.sum(w * w))
            return w / size, size

        return rlx.scan(step, v, None, length=40)[1]

    (sizes,) = run(session, build, {"a": a, "v": np.ones(12, np.float32)})
    assert sizes.shape == (40,)
    np.testing.assert_allclose(sizes[-1], np.max(np.linalg.eigvalsh(a.astype(np.float64))), rtol=1e-5)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.sample(vulkan=1)
def test_a_recurrent_network_is_the_loop_over_its_cells(session: rlx.Session, reverse: bool) -> None:
    rng = np.random.default_rng(1)
    xs, h = rng.standard_normal((20, 3, 8)), rng.standard_normal((3, 16)) * 0.1
    w, u = rng.standard_normal((8, 16)) * 0.3, rng.standard_normal((16, 16)) * 0.3
    feeds = {n: a.astype(np.float32) for n, a in (("xs", xs), ("h", h), ("w", w), ("u", u))}

    def build(xs: rlx.Tensor, h: rlx.Tensor, w: rlx.Tensor, u: rlx.Tensor) -> Any:
        def cell(h: rlx.Tensor, x: rlx.Tensor) -> Any:
            h = rlx.tanh(x @ w + h @ u)
            return h, h

        return rlx.scan(cell, h, xs, reverse=reverse)

    last, ys = run(session, build, feeds)
    wide = {n: a.astype(np.float64) for n, a in feeds.items()}
    state, want = wide["h"], np.zeros((20, 3, 16))
    for i in reversed(range(20)) if reverse else range(20):
        state = want[i] = np.tanh(wide["xs"][i] @ wide["w"] + state @ wide["u"])
    np.testing.assert_allclose(last, state, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(ys, want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("truth", [True, False])
def test_only_the_branch_taken_runs(session: rlx.Session, truth: bool) -> None:
    """The branch not taken would never end."""

    def build(p: rlx.Tensor, x: rlx.Tensor) -> Any:
        for_ever = lambda t: rlx.while_loop(lambda c: rlx.all(c > -1e30), lambda c: rlx.abs(c), t)  # noqa: E731
        branches = (lambda t: t + 1, for_ever) if truth else (for_ever, lambda t: t + 1)
        return rlx.cond(p, *branches, x)

    (y,) = run(session, build, {"p": np.array(truth), "x": np.float32([1, 2])})
    np.testing.assert_array_equal(y, [2, 3])


def test_what_swaps_and_what_stays_is_not_mixed_up(session: rlx.Session) -> None:
    def build(a: rlx.Tensor, b: rlx.Tensor) -> Any:
        def step(c: Any) -> Any:
            i, a, b, _, kept = c
            return i + 1, b, a, a, kept

        return rlx.while_loop(lambda c: c[0] < 3, step, (0, a, b, a, b))[1:]

    a, b = np.arange(5, dtype=np.float32), -np.ones(5, np.float32)
    got = run(session, build, {"a": a, "b": b})
    for value, want in zip(got, (b, a, a, b), strict=True):
        np.testing.assert_array_equal(value, want)


def test_nested_loops_and_branches(session: rlx.Session) -> None:
    """Each row is halved while it is even, then tripled; captures reach through three levels."""

    def build(xs: rlx.Tensor, limit: rlx.Tensor) -> Any:
        def row(total: rlx.Tensor, x: rlx.Tensor) -> Any:
            even = lambda c: (c[0] % 2 == 0) & (c[1] < limit)  # noqa: E731
            x, n = rlx.while_loop(even, lambda c: (c[0] // 2, c[1] + 1), (x, 0))
            x = rlx.cond(n < limit, lambda: x * 3, lambda: x)
            return total + x, (x, n)

        total, (ys, ns) = rlx.scan(row, rlx.zeros_like(xs[0]), xs)
        return total, ys, ns

    xs = np.array([40, 7, 1024, 96, 0], np.int32)
    want = []
    for x in xs.tolist():
        n = 0
        while x % 2 == 0 and n < 6:
            x, n = x // 2, n + 1
        want.append((x * 3 if n < 6 else x, n))
    total, ys, ns = run(session, build, {"xs": xs, "limit": np.array(6, np.int64)})
    assert [*zip(ys.tolist(), ns.tolist(), strict=True)] == want
    assert total == sum(x for x, _ in want)


def test_no_step_at_all(session: rlx.Session) -> None:
    def build(x: rlx.Tensor, rows: rlx.Tensor) -> Any:
        y = rlx.while_loop(lambda c: rlx.all(c > 1e9), lambda c: c + 1, x)
        last, ys = rlx.scan(lambda c, row: (c + row, (c, row)), x, rows)
        return y, last, *ys

    x = np.float32([1, 2, 3])
    y, last, ys, zs = run(session, build, {"x": x, "rows": np.zeros((0, 3), np.float32)})
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(last, x)
    assert ys.shape == zs.shape == (0, 3)


def test_empty_carries(session: rlx.Session) -> None:
    def build(x: rlx.Tensor, n: rlx.Tensor) -> Any:
        return rlx.while_loop(lambda c: c[1] < n, lambda c: (c[0] * 2, c[1] + 1), (x, 0))

    x, n = run(session, build, {"x": np.zeros((0, 4), np.float32), "n": np.array(3, np.int64)})
    assert x.shape == (0, 4) and n == 3


@pytest.mark.parametrize("storage", ["typed", "f32"])
@pytest.mark.parametrize("planner", ["reuse", "bump"])
@pytest.mark.parametrize("optimize", [True, False])
def test_every_way_to_compile_agrees(
    session: rlx.Session, storage: str, planner: str, optimize: bool
) -> None:
    def build(x: rlx.Tensor, flags: rlx.Tensor, small: rlx.Tensor) -> Any:
        def step(c: Any, flag: rlx.Tensor) -> Any:
            n, x, any_yet = c
            x = rlx.cond(flag, lambda t: t * 1.5, lambda t: t - small, x)
            return (n + 1, x, any_yet | flag), (x, any_yet, n)

        (n, x, seen), (xs, yet, ns) = rlx.scan(step, (rlx.cast(0 * small[0], "u8"), x, flags[0]), flags)
        return n, x, seen, xs, yet, ns

    flags = np.array([False, False, True, False, True])
    x, small = np.array([1.0, -2.0], np.float16), np.array([0.5, 0.25], np.float16)
    feeds = {"x": x, "flags": flags, "small": small}
    n, last, seen, xs, yet, ns = run(
        session, build, feeds, storage=storage, planner=planner, optimize=optimize
    )
    want, rows = x, []
    for flag in flags:
        want = (want * np.float16(1.5)) if flag else want - small
        rows.append(want)
    np.testing.assert_array_equal(xs, rows)
    np.testing.assert_array_equal(last, want)
    assert (n, bool(seen), n.dtype) == (5, True, np.uint8)
    assert yet.tolist() == [False, False, False, True, True] and ns.tolist() == [0, 1, 2, 3, 4]


def test_under_jit_and_grad(session: rlx.Session) -> None:
    name = session.info.id

    def loss(xs: Any, w: Any) -> Any:
        last, ys = rlx.scan(lambda h, x: (rlx.tanh(x + h @ w), h), rlx.zeros_like(xs[0]), xs)
        return rlx.sum(last * last) + rlx.cond(rlx.sum(ys) > 0, lambda: rlx.sum(ys), lambda: -rlx.sum(ys))

    rng = np.random.default_rng(0)
    xs, w = (rng.standard_normal(s).astype(np.float32) for s in ((6, 4), (4, 4)))
    dx, dw = rlx.grad(loss, argnums=(0, 1), device=name)(xs, w)
    g = rlx.Graph()
    a, b = g.input("xs", xs.shape, "f64"), g.input("w", w.shape, "f64")
    grads = gradients(loss(a, b), [a, b])
    wide = evaluate(g, {"xs": xs, "w": w})
    np.testing.assert_allclose(dx, wide[grads[0].id], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(dw, wide[grads[1].id], rtol=1e-4, atol=1e-6)
    jitted = rlx.jit(lambda n: rlx.while_loop(lambda c: c < 100, lambda c: c * c, n), device=name)
    assert jitted(np.float32(3.0)) == 6561


def test_loops_in_loops_share_a_budget_of_steps(session: rlx.Session) -> None:
    g = rlx.Graph("control")

    def step(total: Any, x: Any) -> Any:
        return rlx.while_loop(lambda c: c < x, lambda c: c + 1, total), None

    g.output("y", rlx.scan(step, g.input("start", (), "i32"), g.input("xs", (3,), "i32"))[0])
    feeds = {"start": np.int32(0), "xs": np.array([2, 5, 6], np.int32)}
    with session.compile(g) as exe:
        for _ in range(2):
            with step_budget(3 + 6):
                assert exe.run(feeds)["y"] == 6
        with step_budget(3 + 5), pytest.raises(StepLimitExceeded, match="together"):
            exe.run(feeds)
        assert exe.run(feeds)["y"] == 6


def test_a_loop_that_does_not_end_stops_at_its_limit(session: rlx.Session) -> None:
    g = rlx.Graph("endless")
    x = g.input("x", ())
    g.output("y", rlx.while_loop(lambda c: c < 10, lambda c: c + x, rlx.zeros_like(x), max_steps=20))
    with session.compile(g) as exe:
        assert exe.run({"x": np.float32(1)})["y"] == 10
        with pytest.raises(StepLimitExceeded, match=r"while_loop.*max_steps = 20"):
            exe.run({"x": np.float32(0)})
        assert exe.run({"x": np.float32(0.5)})["y"] == 10


def test_threads_on_one_executable(session: rlx.Session) -> None:
    g = rlx.Graph("threads")
    n, x = g.input("n", (), "i32"), g.input("x", (64,))
    g.output("y", rlx.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, rlx.sin(c[1]) + x), (n * 0, x))[1])
    with session.compile(g) as exe:
        feeds = [{"n": np.array(i % 7, np.int32), "x": np.full(64, i, np.float32)} for i in range(32)]
        alone = [exe.run(f)["y"] for f in feeds]
        made = at_once(32, lambda i: [exe.run(feeds[i])["y"] for _ in range(3)])
    for several, one in zip(made, alone, strict=True):
        assert all(np.array_equal(y, one) for y in several)
