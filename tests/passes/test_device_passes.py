"""Passes that fit a graph to a device: weights in half precision, legalization, f32-uniform storage, state results."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from rlx import ops
from rlx.dtypes import DType, bf16, bool_, f16, f32, i8, i32, u8
from rlx.errors import DTypeError, GraphError, UnsupportedOp
from rlx.ir import Graph, Node, verify
from rlx.passes import isolate_results, legalize, optimize, renew_last, set_param_dtypes, sink_casts, widen
from rlx.passes.rewriting import Support
from tests.passes.values import differences, names, results

# -- weights in half precision


def linear() -> Graph:
    g = Graph("linear")
    x, w = g.input("x", (4, 8)), g.param("w", (6, 8))
    g.output("y", ops.matmul(x, ops.transpose(w)))
    return g


def test_a_param_in_half_precision_is_cast() -> None:
    g = set_param_dtypes(linear(), {"w": bf16})
    verify(g)
    assert g.params["w"].dtype == bf16
    assert names(g) == ["cast", "transpose", "matmul"]
    assert g.outputs["y"].dtype == f32


def test_the_cast_vanishes_in_the_product() -> None:
    g = set_param_dtypes(linear(), {"w": bf16})
    after, _ = optimize(g)
    assert names(after) == ["matmul"]
    (node,) = (n for n in after.nodes if n.op.name == "matmul")
    assert [t.dtype for t in node.inputs] == [f32, bf16] and node.attrs["transpose_b"]
    rng = np.random.default_rng(0)
    feeds = {"x": rng.standard_normal((4, 8)), "w": rng.standard_normal((6, 8)).astype(ml_dtypes.bfloat16)}
    assert differences(g, results(g, feeds, True), results(after, feeds, True), {"f32": 1e-12}) == []


def test_rows_are_gathered_before_they_are_cast() -> None:
    g = Graph("embedding")
    table, ids = g.param("table", (100, 8)), g.input("ids", (3,), i32)
    g.output("y", ops.gather(table, ids, 0))
    after = sink_casts(set_param_dtypes(g, {"table": f16}))
    assert names(after) == ["gather", "cast"]
    assert after.nodes[-1].inputs[0].dtype == f16


def test_a_cast_stays_where_the_device_cannot_mix() -> None:
    def support(node: Node) -> Support:
        return "host" if node.op.name == "matmul" and node.inputs[1].dtype.is_half else "native"

    g = set_param_dtypes(linear(), {"w": bf16})
    assert "cast" in names(sink_casts(g, support))


def test_bias_and_norm_weights_are_read_as_they_are() -> None:
    g = Graph("norm")
    x, w, b = g.input("x", (4, 8)), g.param("w", (8, 6)), g.param("b", (6,))
    gamma, beta = g.param("gamma", (6,)), g.param("beta", (6,))
    g.output("y", ops.layer_norm(ops.matmul(x, w) + b, gamma, beta))
    after, _ = optimize(set_param_dtypes(g, {"w": bf16, "b": bf16, "gamma": f16}))
    assert names(after) == ["matmul", "layer_norm"]
    rng = np.random.default_rng(0)
    feeds = {
        n: rng.standard_normal(t.shape).astype(t.dtype.np) for n, t in (after.params | after.inputs).items()
    }
    assert differences(g, results(g, feeds, True), results(after, feeds, True), {"f32": 1e-12}) == []


def test_two_half_factors_stay_f32() -> None:
    g = Graph("both")
    a, b = g.param("a", (4, 8)), g.param("b", (8, 2))
    g.output("y", ops.matmul(a, b))
    after = sink_casts(set_param_dtypes(g, {"a": bf16, "b": bf16}))
    assert after.outputs["y"].dtype == f32
    assert names(after) == ["cast", "matmul"]


def test_bad_dtypes_are_refused() -> None:
    with pytest.raises(GraphError, match=r"no param 'v'; the params are \['w'\]"):
        set_param_dtypes(linear(), {"v": bf16})
    with pytest.raises(DTypeError, match=r"param 'w' is declared f32; both must be floats to keep it as i8"):
        set_param_dtypes(linear(), {"w": i8})


# -- legalization


def attention() -> Graph:
    g = Graph("attention")
    q, k, v = (g.input(n, (1, 2, 3, 4)) for n in "qkv")
    made = g.add("attention", (q, k, v), {"scale": 0.5, "causal": True}, "layer0.attention")
    g.output("y", ops.exp(made[0]))
    return g


def without(*ops_: str) -> object:
    def support(node: Node) -> Support:
        return "host" if node.op.name in ops_ else "native"

    return support


def test_native_nodes_stay() -> None:
    after, report = legalize(attention(), without())
    assert names(after) == ["attention", "exp"]
    assert report.native[0] == "layer0.attention" and len(report.native) == 2
    assert report.decomposed == report.host == []


def test_a_missing_kernel_is_decomposed_all_the_way_down() -> None:
    g = attention()
    after, report = legalize(g, without("attention", "softmax"))
    verify(after)
    assert "attention" not in names(after) and "softmax" not in names(after) and len(names(after)) > 5
    assert report.decomposed == ["layer0.attention"]
    assert {n.label for n in after.nodes if not n.op.leaf and n.op.name != "exp"} == {"layer0.attention"}
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal((1, 2, 3, 4)) for n in "qkv"}
    assert differences(g, results(g, feeds, True), results(after, feeds, True), {"f32": 1e-12}) == []


def test_pieces_are_told_apart_from_native_nodes_of_the_same_label() -> None:
    g = Graph("two")
    x = g.input("x", (2, 3))
    g.output("y", g.add("softmax", g.add("exp", (x,), {}, "one"), {"axis": 1}, "one")[0])
    _, report = legalize(g, without("softmax"))
    assert (report.native, report.decomposed) == (["one"], ["one: softmax"])


def test_what_has_no_decomposition_goes_to_the_host() -> None:
    after, report = legalize(attention(), without("attention", "matmul", "exp"))
    assert names(after) == ["attention", "exp"]
    assert report.host[0] == "layer0.attention" and report.native == []


def test_a_decomposition_counts_what_its_loops_hold() -> None:
    """No loop with a host step in each of its steps is made of a node."""
    g = Graph("scan")
    t = [g.input(n, shape) for n, shape in {"x": (1, 3, 2), "d": (1, 3, 2), "A": (2, 4), "B": (1, 3, 4)}.items()]
    g.output("y", ops.selective_scan(*t, t[-1])[0])
    made, _ = legalize(g, without("selective_scan"))
    assert "scan" in names(made) and "selective_scan" not in names(made)
    kept, report = legalize(g, without("selective_scan", "sum"))
    assert "selective_scan" in names(kept) and "scan" not in names(kept) and len(report.host) == 1


def test_host_nodes_can_be_refused() -> None:
    with pytest.raises(
        UnsupportedOp, match=r"no kernel for 2 nodes: layer0.attention: attention\(f32.*; exp"
    ):
        legalize(attention(), without("attention", "matmul", "exp"), "error")


def test_several_outputs_decompose() -> None:
    g = Graph("fused")
    x = g.input("x", (4,))
    a = ops.exp(x)
    g.output("a", a)
    g.output("b", ops.sin(a))
    fused, _ = optimize(g)
    assert names(fused) == ["fused"]
    after, report = legalize(fused, without("fused"))
    verify(after)
    assert sorted(names(after)) == ["exp", "sin"] and len(report.decomposed) == 1


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_a_mean_of_halves_does_not_overflow_midway(dtype: DType) -> None:
    """On a device that has a kernel only for the mean of f32: a sum of the numbers in f32 may be beyond its range."""

    def support(node: Node) -> Support:
        return "host" if node.op.name == "mean" and node.inputs[0].dtype == dtype else "native"

    largest = float(ml_dtypes.finfo(dtype.np).max)
    g = Graph("mean")
    g.output("y", ops.mean(g.input("x", (9,), dtype), 0))
    after, _ = optimize(g, support=support, verify=True)
    assert "mean" in names(after)
    assert float(results(after, {"x": np.full(9, largest, dtype.np)})["output", "y"]) == largest


def test_optimize_reports_and_counts() -> None:
    _, report = optimize(attention(), support=without("attention"), verify=True)
    assert [name for name, _ in report.nodes] == [
        "given", "simplify", "recognize", "sink_casts", "pad_classes", "legalize", "split_norms", "share_means",
        "simplify", "join_narrow", "fuse_epilogues", "keep_sums", "fuse_heads", "join_transpositions", "fuse_normed",
        "fuse_norms", "sink_casts", "sink_reshapes", "fuse_groups", "isolate_results", "meet_early", "renew_last",
    ]  # fmt: skip
    after, _ = optimize(attention(), fuse=False)
    assert names(after) == ["attention", "exp"]


# -- f32-uniform storage


def test_small_dtypes_are_held_in_f32() -> None:
    g = Graph("small")
    h, b, n = g.input("h", (4, 8), f16), g.input("b", (4, 8), bool_), g.input("n", (4, 8), i8)
    g.output("y", ops.where(b, h * 2 + 1, ops.softmax(h)))
    g.output("z", (n + n) * ops.cast(h, i8))
    g.output("m", ops.logical_not(b))
    g.output("s", ops.sum(b, 0))
    after = widen(g)
    verify(after)
    assert {t.dtype for t in after.tensors()} == {f32, i32}
    assert after.outputs["s"].dtype == i32
    rng = np.random.default_rng(0)
    feeds = {
        "h": rng.standard_normal((4, 8)).astype(np.float16),
        "b": rng.integers(0, 2, (4, 8)).astype(bool),
        "n": rng.integers(-128, 128, (4, 8)).astype(np.int8),
    }
    want, got = results(g, feeds), results(after, feeds)
    for key, value in want.items():
        assert value.tobytes() == got[key].astype(value.dtype).tobytes(), key
    assert differences(g, want, results(optimize(after)[0], feeds), {"f16": 0, "f32": 0}) == []


def test_rounding_is_kept() -> None:
    g = Graph("round")
    x = g.input("x", (256,))
    g.output("y", ops.cast(ops.cast(x, bf16), f32))
    after = widen(g)
    assert {t.dtype for t in after.tensors()} == {f32}
    x_ = np.linspace(-3, 3, 256).astype(np.float32)
    expected = x_.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert np.array_equal(results(after, {"x": x_})["output", "y"], expected)
    assert np.array_equal(results(optimize(after)[0], {"x": x_})["output", "y"], expected)


def test_masked_attention_keeps_empty_rows_zero() -> None:
    g = Graph("mask")
    q = g.input("q", (1, 1, 3, 4))
    m = g.input("m", (3, 3), bool_)
    g.output("y", ops.attention(q, q, q, mask=m))
    after = widen(g)
    assert {t.dtype for t in after.tensors()} == {f32}
    feeds = {"q": np.random.default_rng(0).standard_normal((1, 1, 3, 4)).astype(np.float32)}
    feeds["m"] = np.array([[1, 0, 1], [0, 0, 0], [1, 1, 1]], bool)
    got = results(after, feeds)["output", "y"]
    assert np.array_equal(got[0, 0, 1], np.zeros(4))
    assert differences(g, results(g, feeds), {("output", "y"): got}) == []


def test_stores_keep_their_dtypes() -> None:
    g = Graph("stores")
    w, s, x = g.param("w", (4,), bf16), g.state("s", (4,), u8), g.input("x", (4,), u8)
    g.output("y", ops.cast(x, bf16) * w)
    g.update("s", s + x)
    after = widen(g)
    verify(after)
    assert (after.params["w"].dtype, after.states["s"].dtype, after.inputs["x"].dtype) == (bf16, u8, f32)
    feeds = {"w": np.ones(4, ml_dtypes.bfloat16), "s": np.array([250, 1, 2, 3], np.uint8)}
    feeds["x"] = np.array([10, 1, 1, 255], np.uint8)
    assert differences(g, results(g, feeds), results(after, feeds)) == []


def test_an_unchanged_state_stays_itself() -> None:
    g = Graph("same")
    s = g.state("s", (4,), u8)
    g.update("s", s)
    g.output("y", s + s)
    after = widen(g)
    assert after.updates["s"] is after.states["s"]


# -- results that are states


def test_a_replaced_state_is_copied_where_it_is_a_result() -> None:
    g = Graph("swap")
    a, b, x = g.state("a", (4,)), g.state("b", (4,)), g.input("x", (4,))
    g.update("a", b)
    g.update("b", a)
    g.output("old", a)
    g.output("new", a + x)
    after = isolate_results(g)
    verify(after)
    assert sorted(names(after)) == ["add", "copy", "copy"]
    assert after.outputs["old"] is after.updates["b"]
    assert after.outputs["old"].node.op.name == "copy"
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal(4).astype(np.float32) for n in "abx"}
    assert differences(g, results(g, feeds), results(after, feeds), {"f32": 0}) == []


def test_a_state_that_stays_needs_no_copy() -> None:
    g = Graph("kept")
    s, t = g.state("s", (4,)), g.state("t", (4,))
    g.update("s", s)
    g.output("s", s)
    g.output("t", t)
    assert isolate_results(g) is g


# -- new values of states


def _lion(users: bool = False) -> Graph:
    """A new value of m is computed before that of p, which reads the old one."""
    g = Graph("lion")
    p, m, slope = g.state("p", (64,)), g.state("m", (64,)), g.input("slope", (64,))
    after = ops.maximum(m, slope)
    g.update("m", after)
    g.update("p", p - ops.sign(ops.cumsum(after if users else m)))
    return g


def test_a_states_new_value_is_computed_behind_the_last_read_of_the_old_one() -> None:
    g = _lion()
    late = renew_last(g)
    verify(late)
    places = {t.id: i for i, node in enumerate(late.nodes) for t in node.outputs}
    readers = [i for i, node in enumerate(late.nodes) for t in node.inputs if t is late.states["m"]]
    assert places[late.updates["m"].id] == max(readers)
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal(64).astype(np.float32) for n in ("p", "m", "slope")}
    assert differences(g, results(g, feeds), results(late, feeds), {"f32": 0}) == []
    assert renew_last(late) is late
    # Where another node needs the new value before that, it stays.
    used = _lion(users=True)
    assert renew_last(used) is used


def test_a_new_value_stays_where_its_inputs_would_take_more_memory() -> None:
    g = Graph("wide")
    s, x = g.state("s", (8,)), g.input("x", (1024, 8))
    g.update("s", ops.sum(ops.exp(x), axis=0))
    g.output("y", ops.sin(s))
    assert renew_last(g) is g
