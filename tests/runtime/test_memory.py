"""Programs that need more memory than there is are refused before anything is acquired; smaller ones still work."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

import rlx
from rlx.driver.memory.chunked_buffer import ChunkedBuffer
from rlx.dtypes import f32
from rlx.errors import OutOfDeviceMemory, ShapeError
from rlx.runtime.store import State, Weights

HUGE = (1 << 24, 1 << 20)  # 64 TiB of f32


def of_input(g: rlx.Graph) -> rlx.Tensor:
    return rlx.exp(g.input("big", HUGE))


def of_param(g: rlx.Graph) -> rlx.Tensor:
    return g.input("x", (1, 1)) * g.param("big", HUGE)


def of_state(g: rlx.Graph) -> rlx.Tensor:
    big = g.state("big", HUGE)
    g.update("big", big + g.input("x", (1, 1)))
    return big


def of_result(g: rlx.Graph) -> rlx.Tensor:
    return rlx.matmul(g.input("x", (HUGE[0], 1)), g.input("y", (1, HUGE[1])))


def of_what_passes_rewrite(g: rlx.Graph) -> rlx.Tensor:
    """An op that devices without an f64 kernel of it decompose, with constants as long as the rows."""
    logits, labels = g.input("big", (2, 1 << 44), "f64"), g.input("labels", (2,), "i32")
    return rlx.cross_entropy(logits, labels)


@pytest.mark.parametrize("make", [of_input, of_param, of_state, of_result, of_what_passes_rewrite])
def test_the_message_says_need_free_and_largest_and_a_smaller_graph_works(
    session: rlx.Session, make: Callable[[rlx.Graph], rlx.Tensor]
) -> None:
    g = rlx.Graph("huge")
    g.output("y", make(g))
    small = rlx.Graph("small")
    w, s = small.param("big", (3,)), small.state("big of the small one", (3,))
    small.update("big of the small one", s + 1)
    small.output("y", small.input("x", (3,)) * w + s)
    weights, state = Weights(session.device), State(session.device)
    with pytest.raises(OutOfDeviceMemory) as caught:
        session.compile(g, weights=weights, state=state)
    message = str(caught.value)
    assert re.search(
        r"needs [\d,]+ bytes on \S+, [\d,]+ are free|is .*, \d+ bytes; the device allocates at most", message
    )
    largest = max(g.tensors(), key=lambda t: t.type.nbytes)
    assert "argest tensors" in message and str(largest.type) in message
    # The stores know nothing of the graph that did not fit, not even its names.
    with session.compile(small, weights=weights, state=state) as exe:
        exe.set_param("big", np.float32([1, 2, 3]))
        for k in range(2):
            assert exe.run({"x": np.float32([1, 1, 1])})["y"].tolist() == [1 + k, 2 + k, 3 + k]
    assert weights.nbytes < 1 << 20
    weights.close()
    state.close()


def test_memory_that_others_took_meanwhile(session: rlx.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    g = rlx.Graph("late")
    g.output("y", g.input("x", (3, 5)) @ g.input("w", (5, 7)))
    feeds = {"x": np.ones((3, 5), np.float32), "w": np.ones((5, 7), np.float32)}
    with session.compile(g) as exe:

        def full(plan: object, bound: object = None) -> None:
            raise OutOfDeviceMemory("nothing left")

        with monkeypatch.context() as patch:
            patch.setattr(session.device, "arena", full)
            with pytest.raises(
                OutOfDeviceMemory, match=r"'late' needs [\d,]+ bytes.*nothing left.*f32\[5,7\] 140"
            ):
                exe.run(feeds)
        np.testing.assert_array_equal(exe.run(feeds)["y"], np.full((3, 7), 5.0))


def test_weights_that_others_leave_no_room_for(
    session: rlx.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    g = rlx.Graph("weights")
    g.output("y", g.input("x", (3, 64)) @ g.param("w", (64, 64)) + g.param("b", (64,)))
    with session.compile(g) as exe:
        feed, w, b = np.ones((3, 64), np.float32), np.ones((64, 64), np.float32), np.ones(64, np.float32)

        def full(nbytes: int) -> None:
            raise OutOfDeviceMemory(f"{nbytes:,} bytes asked for, 7 free")

        with monkeypatch.context() as patch:
            patch.setattr(exe.weights.full, "_acquire", full)
            said = r"weight 'b' .*asked for, 7 free.*Largest tensors: w f32\[64,64\]"
            with pytest.raises(OutOfDeviceMemory, match=said):
                exe.set_param("b", b)
        exe.set_params({"w": w, "b": b})
        np.testing.assert_array_equal(exe.run({"x": feed})["y"], np.full((3, 64), 65.0))


def test_stores_stay_within_the_largest_allocation(
    session: rlx.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights and states several times as large as the device's largest allocation, kept in f32 and in bf16."""
    limit = 1 << 18
    monkeypatch.setattr(session.device, "limits", session.device.limits._replace(max_alloc_bytes=limit))
    taken: list[int] = []
    acquire = session.device.acquire
    monkeypatch.setattr(session.device, "acquire", lambda n: taken.append(n) or acquire(n))  # type: ignore[func-returns-value]
    g = rlx.Graph("many")
    x = total = g.input("x", (128,))
    for i in range(12):
        total = rlx.tanh(total) @ g.param(f"w{i}", (128, 128)) + x
        s = g.state(f"s{i}", (200, 128))
        g.update(f"s{i}", s + total)
    g.output("y", total)
    rng = np.random.default_rng(5)
    values = {f"w{i}": rng.standard_normal((128, 128), np.float32) / 12 for i in range(12)}
    feed = rng.standard_normal(128, np.float32)
    expected = feed.astype(np.float64)
    with session.compile(g) as exe:
        for i, (name, value) in enumerate(values.items()):
            value = value if i % 2 else np.round(value * 64) / 64
            exe.set_param(name, value, dtype=None if i % 2 else "bf16")
            expected = np.tanh(expected) @ value.astype(np.float64) + feed
        np.testing.assert_allclose(exe.run({"x": feed})["y"], expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(exe.get_state("s11")[0], expected, rtol=1e-4, atol=1e-5)
    assert max(taken) <= limit


def test_a_region_takes_few_chunks_and_none_too_large() -> None:
    class Memory:
        def __init__(self, nbytes: int) -> None:
            self.nbytes = nbytes

    made: list[int] = []

    def acquire(nbytes: int) -> Memory:
        made.append(nbytes)
        return Memory(nbytes)

    region = ChunkedBuffer("r", acquire, 1 << 20)  # type: ignore[arg-type]
    region.expect(10 * 300_032)
    for i in range(10):
        region.reserve(i, f32, 300_000)
    assert made == [1 << 20] * 4
    region.reserve("larger than the device allows", f32, 3 << 20)
    assert made[-1] == 3 << 20  # a device would refuse this with its own error


def test_a_store_refuses_another_type_and_stays_as_it_was(session: rlx.Session) -> None:
    first, second = rlx.Graph("first"), rlx.Graph("second")
    first.output("y", first.param("w", (2,)) + first.state("s", (2,)))
    second.output("y", second.param("new", (3,)) + second.param("w", (3,)) + second.state("s", (3,)))
    weights, state = Weights(session.device), State(session.device)
    with session.compile(first, weights=weights, state=state) as exe:
        with pytest.raises(ShapeError, match=r"weight 'w' is f32\[2\] in the shared store, but f32\[3\]"):
            session.compile(second, weights=weights)
        with pytest.raises(ShapeError, match=r"state 's' is f32\[2\] in the shared store, but f32\[3\]"):
            session.compile(second, state=state)
        third = rlx.Graph("third")
        third.output("y", third.param("new", (5,)) * 2)
        with session.compile(third, weights=weights) as other:
            other.set_param("new", np.ones(5, np.float32))
            assert other.run()["y"].tolist() == [2] * 5
        exe.set_param("w", np.ones(2, np.float32))
        assert exe.run()["y"].tolist() == [1, 1]
