"""Indices that are inputs, negative and as large as their dtype allows: results follow the documented rule, and no byte
outside a slot changes.

Reads clamp after counting from the end, writes out of range are dropped, windows are moved inside. The judge is plain
Python over each index; slots lie 4 KiB apart in memory filled with NaN, whose bytes must stay.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlx
from rlx.conformance.fuzz import PlanVariant, run
from rlx.conformance.random_graphs import RandomGraph
from rlx.passes import optimize
from tests.devices import device_here
from tests.hypothesis_strategies import Array, far_indices

DEVICES = ("cpu", "vulkan", "cuda")
EXAMPLES = 15
GUARD = 4096
Index = type[np.signedinteger[Any]]


def guarded(device: Any, graph: rlx.Graph, feeds: dict[str, Array]) -> dict[str, Array]:
    """The outputs of a graph run twice between guard bytes; checks that no guard byte changed and both runs agree."""
    prepared, _ = optimize(graph, support=device.support)
    (first, second), stray = run(
        prepared, RandomGraph(0, prepared, feeds), device, PlanVariant("bump", inplace=False, guard=GUARD)
    )
    assert stray == []
    results = {}
    for name, t in graph.outputs.items():
        assert first[f"output {name}"].tobytes() == second[f"output {name}"].tobytes()
        results[name] = second[f"output {name}"].view(t.dtype.np).reshape(t.shape)
    return results


def read_place(i: int, n: int) -> int:
    """The rule of reads: a negative index counts from the end, then the index is clamped into range."""
    return min(max(i + n if i < 0 else i, 0), n - 1)


def write_place(i: int, n: int) -> int | None:
    """The rule of writes: a negative index counts from the end; None where it is out of range, and dropped."""
    return i % n if -n <= i < n else None


@st.composite
def places(draw: st.DrawFn) -> tuple[int, int, int, Index]:
    """The length of the axis, the number of indices, the elements of each slice, and the dtype of the indices."""
    n, m, wide = (draw(st.sampled_from(sides)) for sides in ((1, 2, 7, 33), (1, 5, 40, 257), (1, 3, 4, 16)))
    return n, m, wide, draw(st.sampled_from((np.int32, np.int64)))


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_reads(device: str, data: st.DataObject) -> None:
    opened = device_here(device)
    n, m, wide, dtype = data.draw(places())
    x = np.arange(n * wide, dtype=np.float32).reshape(n, wide)
    rows, each = data.draw(far_indices((m,), n, dtype)), data.draw(far_indices((m, wide), n, dtype))
    graph = rlx.Graph("reads")
    t, i, e = graph.input("x", x.shape), graph.input("i", rows.shape, dtype), graph.input("e", each.shape, dtype)
    graph.output("rows", rlx.gather(t, i))
    graph.output("columns", rlx.gather(rlx.transpose(t, (1, 0)), i, axis=1))
    graph.output("each", rlx.gather_elements(t, e, axis=0))
    got = guarded(opened, graph, {"x": x, "i": rows, "e": each})
    want = np.stack([x[read_place(int(v), n)] for v in rows])
    np.testing.assert_array_equal(got["rows"], want)
    np.testing.assert_array_equal(got["columns"], want.T)
    want = np.array([[x[read_place(int(v), n), c] for c, v in enumerate(line)] for line in each], np.float32)
    np.testing.assert_array_equal(got["each"], want)


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_writes(device: str, data: st.DataObject) -> None:
    opened = device_here(device)
    n, m, wide, dtype = data.draw(places())
    rows, each = data.draw(far_indices((m,), n, dtype)), data.draw(far_indices((m, wide), n, dtype))
    x = np.arange(n * wide, dtype=np.float32).reshape(n, wide)
    u = 1000 + np.arange(m * wide, dtype=np.float32).reshape(m, wide)
    graph = rlx.Graph("writes")
    t, v = graph.input("x", x.shape), graph.input("u", u.shape)
    i, e = graph.input("i", rows.shape, dtype), graph.input("e", each.shape, dtype)
    want = {name: x.copy() for name in ("set", "add", "max", "each set", "each add")}
    for j, index in enumerate(rows):
        place = write_place(int(index), n)
        if place is not None:
            want["set"][place] = u[j]
            want["add"][place] += u[j]
            want["max"][place] = np.maximum(want["max"][place], u[j])
    for (j, c), index in np.ndenumerate(each):
        place = write_place(int(index), n)
        if place is not None:
            want["each set"][place, c] = u[j, c]
            want["each add"][place, c] += u[j, c]
    graph.output("set", rlx.scatter(t, i, v))
    graph.output("add", rlx.scatter(t, i, v, reduction="add"))
    graph.output("max", rlx.scatter(t, i, v, reduction="max"))
    graph.output("each set", rlx.scatter_elements(t, e, v))
    graph.output("each add", rlx.scatter_elements(t, e, v, reduction="add"))
    got = guarded(opened, graph, {"x": x, "u": u, "i": rows, "e": each})
    for name, expected in want.items():  # whole numbers below 2^24: sums are exact in any order
        np.testing.assert_array_equal(got[name], expected, err_msg=name)


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_windows(device: str, data: st.DataObject) -> None:
    opened = device_here(device)
    shape = tuple(data.draw(st.lists(st.sampled_from((1, 2, 5, 9)), min_size=1, max_size=4)))
    sizes = tuple(data.draw(st.integers(1, n)) for n in shape)
    dtype = data.draw(st.sampled_from((np.int32, np.int64)))
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    update = -1 - np.arange(np.prod(sizes), dtype=np.float32).reshape(sizes)
    starts = data.draw(far_indices((len(shape),), max(shape), dtype))
    graph = rlx.Graph("windows")
    t, u = graph.input("x", shape), graph.input("u", sizes)
    s = graph.input("s", starts.shape, dtype)
    graph.output("slice", rlx.dynamic_slice(t, s, sizes))
    graph.output("update", rlx.dynamic_update_slice(t, u, s))
    got = guarded(opened, graph, {"x": x, "u": update, "s": starts})
    first = [min(max(int(a), 0), n - size) for a, n, size in zip(starts, shape, sizes, strict=True)]
    window = tuple(slice(a, a + size) for a, size in zip(first, sizes, strict=True))
    changed = x.copy()
    changed[window] = update
    np.testing.assert_array_equal(got["slice"], x[window])
    np.testing.assert_array_equal(got["update"], changed)
