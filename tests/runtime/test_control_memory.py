"""Bodies in a compiled graph: captures are not copied, all memory is freed, reports and refusals include the bodies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.gpu.program import executable
from rlx.conformance.runner import find_run_hazards
from rlx.errors import ArenaError, OutOfDeviceMemory, UnsupportedOp


def looped(n: int, steps: int = 3) -> rlx.Graph:
    """x → tanh(W x + x), repeated; W is captured."""
    g = rlx.Graph("looped")
    w, x = g.param("w", (n, n)), g.input("x", (n,))
    step = lambda c: (c[0] + 1, rlx.tanh(w @ c[1] + x))  # noqa: E731
    g.output("y", rlx.while_loop(lambda c: c[0] < steps, step, (0, x))[1])
    return g


def expected(w: np.ndarray, x: np.ndarray, steps: int = 3) -> np.ndarray:
    y = x = x.astype(np.float64)
    for _ in range(steps):
        y = np.tanh(w.astype(np.float64) @ y + x)
    return y


def values(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n)
    return (rng.standard_normal((n, n)) * 0.1).astype(np.float32), rng.standard_normal(n).astype(np.float32)


@pytest.mark.parametrize("kept", ["f32", "bf16"])
def test_a_captured_weight_takes_no_further_memory(session: rlx.Session, kept: str) -> None:
    n = 256
    w, x = values(n)
    with session.compile(looped(n)) as exe:
        exe.set_param("w", w, dtype=kept)
        rounded = w.astype(rlx.bf16.np).astype(np.float32) if kept == "bf16" else w
        np.testing.assert_allclose(exe.run({"x": x})["y"], expected(rounded, x), rtol=1e-4, atol=1e-5)
        assert exe.plan.total_bytes < n * n  # the weight takes four times that in f32, twice in bf16
        exe.set_param("w", 2 * w, dtype=kept)
        np.testing.assert_allclose(exe.run({"x": x})["y"], expected(2 * rounded, x), rtol=1e-3, atol=1e-4)


def test_captured_values_are_read_where_they_lie(session: rlx.Session) -> None:
    """A body inside a body captures a value of the graph, a state and a large constant."""
    g = rlx.Graph("around")
    x, s = g.input("x", (4096,)), g.state("s", (4096,))
    big = g.constant(np.arange(4096, dtype=np.float32))
    made = rlx.exp(x)
    inner = lambda c: rlx.cond(rlx.sum(c) > 0, lambda: c + made + s, lambda: c - big)  # noqa: E731
    last, _ = rlx.scan(lambda c, _: (inner(c), None), x, None, length=2)
    g.output("y", last)
    g.update("s", s + 1)
    with session.compile(g) as exe:
        feed = np.full(4096, 0.5, np.float32)
        for number in range(2):
            y = exe.run({"x": feed})["y"]
            np.testing.assert_allclose(y, feed + 2 * np.exp(np.float64(0.5)) + 2 * number, rtol=1e-5)
        np.testing.assert_allclose(exe.run({"x": -feed})["y"], -0.5 - 2 * np.arange(4096), rtol=1e-6)
        inside = exe.plan.total_bytes - sum(exe.plan.segments.values())
        assert (
            inside <= 4 * 4 * 4096
        )  # the values that the two bodies compute, and the carry of the inner one


def test_close_frees_the_bodies(session: rlx.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Any] = []
    acquire = session.device.acquire

    def counted(nbytes: int) -> Any:
        taken.append(acquire(nbytes))
        return taken[-1]

    monkeypatch.setattr(session.device, "acquire", counted)
    w, x = values(64)
    exe = session.compile(looped(64))
    exe.set_param("w", w)
    exe.run({"x": x})
    weights = len([b for b in taken if b.nbytes >= 1 << 14])
    exe.set_param("w", w, dtype="bf16")
    exe.run({"x": x})
    exe.close()
    exe.weights.close()
    exe.state.full.close()
    assert len(taken) > 4 and weights
    for buffer in taken:
        with pytest.raises(ArenaError):
            buffer.read(0, np.zeros(1, np.uint8))


def test_a_clone_runs_beside(session: rlx.Session) -> None:
    w, x = values(32)
    with session.compile(looped(32)) as exe:
        exe.set_param("w", w)
        exe.run({"x": x})
        with exe.clone() as twin:
            np.testing.assert_array_equal(twin.run({"x": -x})["y"], exe.run({"x": -x})["y"])


def test_memory_is_refused_for_what_only_a_body_needs(session: rlx.Session) -> None:
    g = rlx.Graph("huge")
    x = g.input("x", (1 << 20,))

    def wide(c: rlx.Tensor) -> rlx.Tensor:
        return rlx.sum(rlx.cumsum(rlx.expand(c, (1 << 20, 1 << 20)), 0), 0)

    g.output("y", rlx.while_loop(lambda c: rlx.any(c > 0), wide, x))
    with pytest.raises(OutOfDeviceMemory, match=r"(needs|allocates).*argest tensors.*f32\[1048576,1048576\]"):
        session.compile(g)


def test_the_report_lists_what_is_inside(session: rlx.Session) -> None:
    g = rlx.Graph("report")
    x = g.input("x", (8,))
    branch = lambda t: rlx.scan(lambda c, row: (rlx.sin(c) * row, rlx.softmax(c + x)), t[0], t)[1]  # noqa: E731
    g.output("y", rlx.cond(rlx.sum(x) > 0, branch, lambda t: rlx.exp(rlx.stack([x] * 8)), x))
    with session.compile(g) as exe:
        entries = {(d.op, d.how): d.node for d in exe.report()}
        assert entries["cond", "control"].startswith("cond%")
        name = entries["scan", "control"]
        assert name.startswith(f"{entries['cond', 'control']}/then/scan%")
        assert entries["softmax", "native"].startswith(f"{name}/")
        assert exe.report().host_nodes == []
        assert "scan" in str(exe.report()) and "scan" in str(exe.program)
        assert find_run_hazards(exe) == []


def test_host_nodes_inside_are_seen_run_and_refused(session: rlx.Session) -> None:
    if session.info.backend == "cpu":
        pytest.skip("the CPU runs every op itself")
    double = rlx.custom_op("doubled_on_the_host", lambda x: 2 * x, lambda types, attrs: types[0])
    try:
        g = rlx.Graph("host")
        x = g.input("x", (5,))
        last, ys = rlx.scan(lambda c, _: (double(rlx.abs(c)) + 1, double(c)), x, None, length=3)
        y = rlx.while_loop(lambda c: rlx.sum(c) < 1000, lambda c: double(c), last)
        g.output("y", y)
        g.output("ys", ys)
        with session.compile(g) as exe:
            got = exe.run({"x": np.float32([1, 2, 3, 4, 5])})
            assert len(exe.report().host_nodes) == 3
            c, rows = np.float32([1, 2, 3, 4, 5]), []
            for _ in range(3):
                rows.append(2 * c)
                c = 2 * np.abs(c) + 1
            while c.sum() < 1000:
                c = 2 * c
            np.testing.assert_array_equal(got["ys"], rows)
            np.testing.assert_array_equal(got["y"], c)
            if not session.options.timed:
                assert any("control:scan" in line for line in exe.executable.listing())
        with pytest.raises(UnsupportedOp, match="doubled_on_the_host"):
            rlx.Session(session.info.id, fallback="error").compile(g)
    finally:
        double.close()


@pytest.mark.parametrize("level", ["1", "2", "3", "4"])
def test_every_debug_level_shows_a_loop(
    session: rlx.Session, level: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RLX_DEBUG", level)
    w, x = values(16)
    with rlx.Session(session.info.id).compile(looped(16)) as exe:
        exe.set_param("w", w)
        np.testing.assert_allclose(exe.run({"x": x})["y"], expected(w, x), rtol=1e-4, atol=1e-5)
    said = capsys.readouterr().err
    assert "while_loop" in said and "/matmul%" in said
    assert level != "4" or "max error" in said


@pytest.mark.parametrize("planner", ["reuse", "bump"])
def test_outputs_of_a_control_op_lie_apart_from_what_it_reads(session: rlx.Session, planner: Any) -> None:
    g = rlx.Graph("apart")
    x = g.input("x", (100,))
    a, b = rlx.sin(x), rlx.cos(x)
    g.output("y", rlx.while_loop(lambda c: rlx.sum(c) < 50, lambda c: c + rlx.abs(b), a))
    with session.compile(g, planner=planner) as exe:
        (node,) = (n for n in exe.program.nodes if n.op.name == "while_loop")
        slots = exe.plan.slots
        for out in node.outputs:
            for t in node.inputs:
                p, q = slots[out.id], slots[t.id]
                assert p.segment != q.segment or p.end <= q.offset or q.end <= p.offset
        feed = np.linspace(0, 3, 100).astype(np.float32)
        want = np.sin(feed.astype(np.float64))
        while want.sum() < 50:
            want = want + np.abs(np.cos(feed.astype(np.float64)))
        np.testing.assert_allclose(exe.run({"x": feed})["y"], want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_in_one_recording_gives_the_bits_of_its_steps(
    session: rlx.Session, reverse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    g = rlx.Graph("rows")
    xs, w = g.input("xs", (37, 5)), g.param("w", (5, 5))
    step = lambda c, x: (rlx.tanh(c @ w + x), (c, rlx.cast(rlx.sum(x), "f16"), x[:0]))  # noqa: E731
    last, ys = rlx.scan(step, rlx.zeros_like(xs[0]), xs, reverse=reverse)
    for i, t in enumerate((last, *ys)):
        g.output(f"y{i}", t)
    rng = np.random.default_rng(2)
    feed, value = {"xs": rng.standard_normal((37, 5)).astype(np.float32)}, rng.standard_normal((5, 5))
    found = []
    for most in (executable.MAX_STEPS, 36):
        monkeypatch.setattr(executable, "MAX_STEPS", most)
        with session.compile(g) as exe:
            exe.set_param("w", value.astype(np.float32))
            found.append(exe.run(feed))
            assert find_run_hazards(exe) == []
    for name, rows in found[0].items():
        np.testing.assert_array_equal(rows, found[1][name])


def test_a_carry_is_updated_where_it_lies(session: rlx.Session) -> None:
    """Each step writes one row of a table of a megabyte, and none copies the table. Values still to be read are not
    overwritten."""
    n = 256
    g = rlx.Graph("table")
    x = g.input("x", (n, 1024))

    def step(c: Any) -> Any:
        i, table, sums = c
        fresh = rlx.dynamic_update_slice(table, rlx.exp(table[:1] * 0 + 1), [i, 0])
        return i + 1, fresh, sums + rlx.sum(fresh)

    _, table, sums = rlx.while_loop(
        lambda c: c[0] < 4, step, (g.constant(np.array(0, np.int32)), x, rlx.sum(x) * 0)
    )
    late = rlx.while_loop(lambda c: rlx.all(c < 9), lambda c: rlx.exp(c * 0) + c + rlx.flip(c, 0) * 0, x)
    for i, t in enumerate((table, sums, late)):
        g.output(f"y{i}", t)
    with session.compile(g) as exe:
        table, sums, late = exe.run({"x": np.full((n, 1024), 2, np.float32)}).values()
        first, second = (body.plan.max_live_bytes for body in exe.plan.bodies.values())
        assert first < 1 << 16 and second >= 1 << 20
    want = np.full((n, 1024), 2.0)
    total = 0.0
    for i in range(4):
        want[i] = np.e
        total += want.sum()
    np.testing.assert_allclose(table, want, rtol=1e-6)
    np.testing.assert_allclose(sums, total, rtol=1e-5)
    np.testing.assert_array_equal(late, 9)


def test_bodies_in_several_allocations(session: rlx.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no single allocation is large enough for a body, it has several of its own; the result is the same."""
    g = rlx.Graph("allocations")
    x = g.input("x", (1 << 14,))

    def step(c: rlx.Tensor, _: None) -> Any:
        a = rlx.flip(rlx.cumsum(c), 0)
        return rlx.cond(rlx.sum(c) > 0, lambda: rlx.flip(rlx.cumsum(rlx.tanh(a)), 0) * a, lambda: a), c

    last, ys = rlx.scan(step, x, None, length=3)
    g.output("last", last)
    g.output("ys", ys)
    feed = {"x": np.linspace(-1, 1.2, 1 << 14).astype(np.float32)}
    with session.compile(g) as exe:
        want = exe.run(feed)
        assert all(body.plan.arena_bytes == 0 for body in exe.plan.bodies.values())
    limits = session.device.limits._replace(max_alloc_bytes=3 << 16)
    monkeypatch.setattr(session.device, "limits", limits)
    with session.compile(g) as exe:
        assert any(body.plan.arena_bytes for body in exe.plan.bodies.values())
        for name, value in exe.run(feed).items():
            np.testing.assert_array_equal(value, want[name])
        assert find_run_hazards(exe) == []
