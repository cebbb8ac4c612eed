"""Every pass keeps results: random graphs before and after, in their own dtypes and in float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from rlx import passes
from rlx.conformance.random_graphs import RandomGraph, random_graph
from rlx.dtypes import bool_, f32, f64, i8, i32, i64, u8
from rlx.ir import Graph, Node, verify
from rlx.passes.rewriting import Support
from tests.full import full
from tests.passes.values import Values, differences, results


def poor(node: Node) -> Support:
    """The `support` of a device that runs no op with a decomposition, except plain products and sums."""
    if node.op.name == "matmul":
        return "native" if len(node.inputs) == 2 and node.attrs["activation"] is None else "host"
    return "native" if node.op.decompose is None or node.op.name == "sum" else "host"


def lame(node: Node) -> Support:
    """The `support` of a device without half precision and without fused kernels."""
    return "host" if node.op.name == "fused" or any(t.dtype.is_half for t in node.inputs) else "native"


PASSES: dict[str, Callable[[Graph], Graph]] = {
    "remove_dead": passes.remove_dead,
    "simplify": passes.simplify,
    "sink_casts": passes.sink_casts,
    "fuse_epilogues": passes.fuse_epilogues,
    "fuse_groups": passes.fuse_groups,
    "isolate_results": passes.isolate_results,
    "renew_last": passes.renew_last,
    "widen": passes.widen,
    "optimize": lambda g: passes.optimize(g, verify=True)[0],
    "optimize as written": lambda g: passes.optimize(g, fuse=False, verify=True)[0],
    "optimize for a poor device": lambda g: passes.optimize(g, support=poor, verify=True)[0],
    "optimize for a lame device": lambda g: passes.optimize(g, support=lame, verify=True)[0],
    "widen and optimize": lambda g: passes.optimize(passes.widen(g), verify=True)[0],
    "optimize twice": lambda g: passes.optimize(passes.optimize(g)[0], verify=True)[0],
}


@cache
def given(seed: int, upcast: bool = False, **settings: Any) -> tuple[RandomGraph, Values]:
    """A random graph and its results, which each of the passes is to keep."""
    made = random_graph(seed, **settings)
    return made, results(made.graph, made.feeds, upcast)


@pytest.mark.parametrize("name", PASSES)
def test_smooth_graphs(name: str) -> None:
    for seed in range(150 if full() else 25):
        made, want = given(seed, smooth=True)
        after = PASSES[name](made.graph)
        verify(after)
        assert list(after.inputs) == list(made.graph.inputs)
        assert list(after.params) == list(made.graph.params)
        assert list(after.states) == list(made.graph.states)
        found = differences(made.graph, want, results(after, made.feeds))
        assert not found, f"seed {seed}: {found[0]}\n{made.graph}\n{after}"


def test_long_graphs() -> None:
    for seed in range(25 if full() else 8):
        made = random_graph(seed, nodes=250, smooth=True, dtypes=(f32, f32, f32, f32, i32))
        after = PASSES["optimize"](made.graph)
        found = differences(made.graph, results(made.graph, made.feeds), results(after, made.feeds))
        assert not found, f"seed {seed}: {found[0]}"


@pytest.mark.parametrize("name", PASSES)
def test_float_graphs_in_float64(name: str) -> None:
    for seed in range(100 if full() else 18):
        made, want = given(seed, upcast=True, smooth=True, dtypes=(f32, f32, f64))
        if any(t.dtype.is_half for t in made.graph.tensors()):
            continue  # 16-bit values may differ in their last bit, since an epilogue rounds once instead of twice
        got = results(PASSES[name](made.graph), made.feeds, True)
        # Constant folding rounds its results to the dtype; no other pass may lose a bit of a float64.
        folds = name == "simplify" or ("optimize" in name and "as written" not in name)
        found = differences(made.graph, want, got, {"f32": 1e-5 if folds else 1e-10, "f64": 1e-10})
        assert not found, f"seed {seed}: {found[0]}\n{made.graph}"


@pytest.mark.parametrize("name", PASSES)
def test_integer_graphs_keep_every_bit(name: str) -> None:
    checked = 0
    for seed in range(300 if full() else 100):
        made, want = given(seed, dtypes=(i32, i64, i8, u8, bool_))
        if any(t.dtype.is_float for t in made.graph.tensors()):
            continue
        checked += 1
        after = PASSES[name](made.graph)
        found = differences(made.graph, want, results(after, made.feeds))
        assert not found, f"seed {seed}: {found[0]}\n{made.graph}\n{after}"
    assert checked > (20 if full() else 6)


def test_passes_find_something_to_do() -> None:
    counts = dict.fromkeys(PASSES, 0)
    total = 0
    for seed in range(100 if full() else 30):
        graph = random_graph(seed, smooth=True).graph
        total += len(graph.nodes)
        for name in ("simplify", "fuse_groups", "optimize"):
            counts[name] += len(PASSES[name](graph).nodes)
    assert counts["optimize"] < counts["simplify"] < total
    assert counts["optimize"] < counts["fuse_groups"] < total
