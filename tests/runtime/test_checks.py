"""Indices of rows that a run writes into a cache: which are refused, when, and that no others are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.errors import CapacityExceeded, GraphError, ShapeError
from rlx.runtime import Session

ROWS = 4
CACHE = np.zeros((2, ROWS, 1, 8), np.float32)
TOKEN = np.ones((2, 1, 8), np.float32)


def keys(x: Any, cache: Any, position: Any, **how: Any) -> Any:
    """The cache of keys after a step."""
    return rlx.attention_step(x, x, x, cache, cache, position, **how)[1]


def rows(made: Any) -> list[list[int]]:
    """The rows of each sequence that a token was written to."""
    return [np.flatnonzero(one).tolist() for one in np.asarray(made)[:, :, 0, 0]]


def counted(session: Session) -> rlx.CompiledGraph:
    """A cache and the position of the next token as states: only the device knows that."""
    g = rlx.Graph("counted")
    at, k, v = g.state("at", (1,), "i32"), g.state("k", CACHE[:1].shape), g.state("v", CACHE[:1].shape)
    x = g.input("x", (1, 1, 8))
    y, new_k, new_v = rlx.attention_step(x, x, x, k, v, at)
    for name, t in (("at", at + 1), ("k", new_k), ("v", new_v)):
        g.update(name, t)
    g.output("y", y)
    return session.compile(g)


@pytest.mark.late("vulkan")
def test_positions_of_the_caller(session: Session) -> None:
    step = rlx.jit(keys, device=session)
    assert rows(step(TOKEN, CACHE, np.array([0, 3], np.int32))) == [[0], [3]]
    for position in (ROWS, -1, 2**31 - 1):
        with pytest.raises(CapacityExceeded, match=f"row 1 has index {position} .*0 to 3; the run was not begun"):
            step(TOKEN, CACHE, np.array([0, position], np.int32))
    wide = rlx.jit(keys, device="cpu")
    with pytest.raises(CapacityExceeded, match=f"row 0 has index {2**32} "):  # as an i32 it would be 0
        wide(TOKEN, CACHE, np.array([2**32, 0]))


def test_constant_positions() -> None:
    for position in (ROWS, -1):
        with pytest.raises(ShapeError, match=f"attention_step: row 1 has index {position} "):
            rlx.jit(lambda x, c, at=position: keys(x, c, np.array([0, at])), device="cpu")(TOKEN, CACHE)


def test_rings_take_every_position_from_0_on() -> None:
    step = rlx.jit(lambda x, c, at: keys(x, c, at, ring=True, window=2), device="cpu")
    assert rows(step(TOKEN, CACHE, np.array([5, 1000], np.int32))) == [[1], [0]]
    with pytest.raises(CapacityExceeded, match=r"row 0 has index -1 .*a ring; expected an index of at least 0"):
        step(TOKEN, CACHE, np.array([-1, 0], np.int32))

    def blocks(x: Any, codes: Any, scales: Any, at: Any) -> Any:
        return rlx.q8_0_update(x, codes, scales, at)[0]

    cache = np.zeros((1, ROWS, 1, 32), np.int8), np.zeros((1, ROWS, 1, 1), np.float16)
    update = rlx.jit(blocks, device="cpu")
    token = np.ones((1, 1, 32), np.float32)
    assert rows(update(token, *cache, np.array([9], np.int32))) == [[1]]
    with pytest.raises(CapacityExceeded, match="q8_0_update: row 0 has index -2 "):
        update(token, *cache, np.array([-2], np.int32))


def test_callers_that_know_better_pay_nothing() -> None:
    def step(x: Any, cache: Any, at: Any) -> Any:
        return keys(x, cache, at, checked=False)

    graph = rlx.jit(step, device="cpu").graph(TOKEN, CACHE, np.array([0, 9], np.int32))
    assert list(graph.outputs) == ["y0"]
    assert rows(rlx.jit(step, device="cpu")(TOKEN, CACHE, np.array([0, 9], np.int32))) == [[0], [3]]


def test_positions_in_a_state(session: Session) -> None:
    exe = counted(session)
    x = {"x": TOKEN[:1]}
    for _ in range(ROWS):
        assert list(exe.run(x)) == ["y"]
    with pytest.raises(CapacityExceeded, match=r"row 0 has index 4 .*results, and the states that it wrote, are void"):
        exe.run(x)
    exe.set_state("at", np.array([0], np.int32))
    np.testing.assert_array_equal(exe.run(x)["y"], TOKEN[:1])


def test_launches_that_write_states(session: Session) -> None:
    """A launch whose results nobody reads fails the next one that reads its states, or their reader."""
    exe = counted(session)
    x = {"x": TOKEN[:1]}
    launches = [exe.launch(x) for _ in range(ROWS + 2)]
    launches[ROWS - 1].wait()
    for late in launches[ROWS:]:
        with pytest.raises(CapacityExceeded, match="row 0 has index 4 "):
            late.wait()
    with pytest.raises(CapacityExceeded, match="row 0 has index 4 "):
        exe.get_state("k")
    assert exe.get_state("at").tolist() == [ROWS + 2]
    exe.set_state("at", np.array([ROWS], np.int32))
    exe.launch(x)
    exe.set_state("at", np.array([0], np.int32))
    with pytest.raises(CapacityExceeded, match="row 0 has index 4 "):
        exe.run(x)
    for _ in range(100):  # none is read: a launch waits for the checks of long ago
        exe.set_state("at", np.array([0], np.int32))
        exe.launch(x)
    exe.run(x)


def test_bound_cloned_and_saved_programs(session: Session, tmp_path: Path) -> None:
    exe = counted(session)
    exe.set_state("at", np.array([ROWS - 1], np.int32))
    with exe.clone() as twin, exe.bind() as bound:
        assert list(bound.outputs) == ["y"]
        bound.write("x", TOKEN[:1])
        bound.run()
        with pytest.raises(CapacityExceeded, match="row 0 has index 4 "):
            bound.run()
        twin.run({"x": TOKEN[:1]})
        with pytest.raises(CapacityExceeded, match="row 0 has index 4 "):
            twin.run({"x": TOKEN[:1]})
    exe.set_state("at", np.array([ROWS], np.int32))
    exe.save(tmp_path / "counted.rlx")
    loaded = rlx.load_program(tmp_path / "counted.rlx", session)
    with loaded, pytest.raises(CapacityExceeded, match="row 0 has index 4 "):
        loaded.run({"x": TOKEN[:1]})


def test_in_functions_of_control_ops(session: Session) -> None:
    def scanned(cache: Any, at: Any) -> Any:
        def tick(carry: Any, _: None) -> Any:
            cache, at = carry
            return (keys(TOKEN, cache, at), at + 1), at

        return rlx.scan(tick, (cache, at), length=3)[0][0]

    def repeated(cache: Any, at: Any, n: Any) -> Any:
        """Its positions return into the cache after they have left it."""
        def tick(carry: Any) -> Any:
            cache, at, i = carry
            return keys(TOKEN, cache, at), (at + 1) % (ROWS + 2), i + 1

        return rlx.while_loop(lambda carry: carry[2] < n, tick, (cache, at, 0 * n))[0]

    def chosen(cache: Any, at: Any, writes: Any) -> Any:
        return rlx.cond(writes, lambda: keys(TOKEN, cache, at), lambda: cache)

    at = np.array([0, 1], np.int32)
    scan, loop, cond = (rlx.jit(f, device=session) for f in (scanned, repeated, chosen))
    assert rows(scan(CACHE, at)) == [[0, 1, 2], [1, 2, 3]]
    assert rows(loop(CACHE, at, np.int32(3))) == [[0, 1, 2], [1, 2, 3]]
    assert rows(cond(CACHE, at + 9, np.bool_(False))) == [[], []]
    for run in (lambda: scan(CACHE, at + 1), lambda: loop(CACHE, at, np.int32(9))):
        with pytest.raises(CapacityExceeded, match=r"row [01] has index 4 "):
            run()
    with pytest.raises(CapacityExceeded, match="row 0 has index 9 "):
        cond(CACHE, at + 9, np.bool_(True))


def test_gradients_through_checked_steps() -> None:
    def loss(x: Any, cache: Any, at: Any) -> Any:
        def tick(carry: Any, _: None) -> Any:
            cache, at = carry
            return (keys(x, cache, at), at + 1), None

        return rlx.sum(rlx.scan(tick, (cache, at), length=2)[0][0])

    slope = rlx.grad(loss, device="cpu")
    np.testing.assert_allclose(slope(TOKEN, CACHE, np.array([0, 2], np.int32)), np.full_like(TOKEN, 2))
    with pytest.raises(CapacityExceeded, match="row 1 has index 4 "):
        slope(TOKEN, CACHE, np.array([0, 3], np.int32))


def test_names_of_hidden_outputs_are_taken() -> None:
    g = rlx.Graph("g")
    with pytest.raises(GraphError, match="names that begin with 'rlx checks ' are rlx's own"):
        g.output("rlx checks the index of x", g.input("x", (1,)))
