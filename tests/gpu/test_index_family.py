"""The families select, scan and index: native on a GPU, right by the CUDA sources too, and never outside a slot."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from rlx.autodiff import gradients
from rlx.backends.gpu.program.executable import load_rules
from rlx.backends.gpu.program.lowering import runs_natively
from rlx.backends.gpu.program.target import Target
from rlx.conformance.case import Case, cases_of
from rlx.conformance.fuzz import PlanVariant, run
from rlx.conformance.oracle import evaluate
from rlx.conformance.random_graphs import RandomGraph
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Graph
from tests.devices import device_here, session_here
from tests.full import sampled
from tests.gpu import cuda_host
from tests.gpu.lowered import outputs

OPS = (
    "argmax", "argmin", "sort", "argsort", "top_k", "cumsum", "cumprod", "log_softmax", "logsumexp", "gather",
    "gather_elements", "scatter", "scatter_elements", "dynamic_slice", "dynamic_update_slice", "one_hot",
)  # fmt: skip


@pytest.fixture(scope="module", params=["vulkan", "cuda"])
def session(request: pytest.FixtureRequest) -> rlx.Session:
    return session_here(request.param, fallback="error")


@pytest.mark.parametrize("op", OPS)
def test_native(session: rlx.Session, op: str) -> None:
    """Every op runs as launches of its own, whatever the shape, dtype and attributes of its cases."""
    for case in sampled(cases_of(op), most=4):
        if case.has_f64 and op in ("log_softmax", "logsumexp"):
            continue  # decomposed into other ops
        # An empty result needs no launch.
        (node,) = [n for n in case.graph().nodes if not n.op.leaf]
        with session.compile(case.graph()) as compiled:
            (entry,) = [d for d in compiled.report() if d.op == op]
            assert entry.how == "native", case.id
            assert entry.steps or all(t.size == 0 for t in node.outputs), case.id


def through_cuda(case: Case) -> dict[str, np.ndarray]:
    """The outputs of a case by the CUDA kernels, which run on the CPU."""
    return outputs(case.op, case.arrays(), dict(case.attrs), "cuda")


# Cases for the branches of each op's kernels: short and long lines, lines across memory, wide elements.
_CUDA = (
    "argmax-f32-20011-axis0-normal", "argmin-i64-9x130-axis1-any", "argmax-f16-130x9-axis0-special-last",
    "sort-f32-5003-axis0-holes", "sort-i64-2x4097x2-axis1-any-down", "argsort-bf16-9x130-axis1-special",
    "sort-bool-70x3-axis0-ties-down", "top_k-f32-2x4099-axis1-k50-any", "top_k-i64-20011-axis0-k300-ties-smallest",
    "top_k-i64-40000-axis0-k600-any", "top_k-f32-2x4099-axis1-k2100-any", "cumsum-i32-9001-axis0-any-exclusive-reverse",
    "cumsum-i32-5000x3-axis0-any-reverse", "cumprod-f16-9x130-axis1-near_one", "cumsum-i64-9001-axis0-any-exclusive",
    "cumsum-bf16-2x5330-axis1-long-exclusive", "log_softmax-f32-2x4099-axis1-normal",
    "log_softmax-f16-9x130-axis0-holes", "logsumexp-f32-33x65-axis1-masked", "logsumexp-bf16-2x12x16-axis2-normal",
    "gather_elements-i64-i64-9x33-5-axis1-wild", "scatter-none-u8-i64-9x12-17-axis0-wild-any",
    "scatter-add-f32-i32-700x2-2500-axis0-index-normal", "scatter-max-i64-i64-5x33-17-axis1-wild-any",
    "scatter-mul-i8-i64-5x33-17-axis1-wild-any", "scatter_elements-add-f16-i64-5x33-17-axis1-wild-normal",
    "scatter_elements-none-f32-i64-9x4-64-axis0-any-normal", "scatter_elements-add-f32-i32-3x2-2500-axis1-index-normal",
    "dynamic_slice-f32-i64-2x2x2x2x3-1x2x1x2x2-any", "dynamic_update_slice-u8-i64-9x12-4x8-wild",
)  # fmt: skip


def _case(name: str) -> Case:
    (case,) = [c for op in OPS for c in cases_of(op) if c.id == name]
    return case


_CASES = [*map(_case, _CUDA)]
_KEPT = sampled(_CASES, 12)
_FIRST = {case.op: case for case in reversed(_KEPT)}


@pytest.mark.skipif(cuda_host.compiler() is None, reason="no C++ compiler here")
@pytest.mark.parametrize("case", _CASES, ids=lambda c: c.id)
@pytest.mark.full(case=lambda case: case not in _KEPT)
@pytest.mark.late(case=lambda case: case is not _FIRST.get(case.op))
def test_cuda_sources(case: Case) -> None:
    verdict = case.check(through_cuda(case))
    assert verdict.ok, verdict.message


_FAR = np.array(
    [-(2**63), 2**63 - 1, -(2**31), 2**31 - 1, 2**32, -(2**32) - 1, 10**6, -(10**6), 0, -1, 5, -6, 6, -7]
)


def _reads_and_writes(graph: Graph, index: str) -> None:
    """Adds every op that takes indices, with indices that are inputs."""
    x, u = graph.input("x", (6, 5)), graph.input("u", (14, 5))
    i, starts = graph.input("i", (14,), index), graph.input("starts", (2,), index)
    each = graph.input("each", (14, 5), index)
    graph.output("rows", rlx.gather(x, i))  # an embedding
    graph.output("columns", rlx.gather(x, i, axis=1))
    graph.output("each", rlx.gather_elements(x, each))
    graph.output("nd", rlx.gather_nd(x, rlx.reshape(i, (7, 2))))
    for reduction in ("none", "add", "mul", "min", "max"):
        graph.output(f"scatter {reduction}", rlx.scatter(x, i, u, reduction=reduction))
        graph.output(f"each {reduction}", rlx.scatter_elements(x, each, u, reduction=reduction))
    graph.output("sums", rlx.segment_sum(u, i, 6))
    graph.output("tuples", rlx.scatter_nd(x, rlx.reshape(i, (7, 2)), u[:7, 0], "add"))
    graph.output("window", rlx.dynamic_slice(x, starts, (2, 3)))
    graph.output("update", rlx.dynamic_update_slice(x, u[:4, :2], starts))
    graph.output("hot", rlx.one_hot(i, 6))


@pytest.mark.parametrize("device", ["cpu", "vulkan", "cuda"])
@pytest.mark.parametrize("index", ["i32", "i64"])
@pytest.mark.sample(vulkan=1)
def test_far_indices_stay_inside_their_slots(device: str, index: str) -> None:
    """Guard bytes around every slot stay as they were, and the results are the reference's."""
    opened = device_here(device)
    graph = Graph("far")
    _reads_and_writes(graph, index)
    rng = np.random.default_rng(3)
    info = np.iinfo(np.int32 if index == "i32" else np.int64)
    far = np.clip(_FAR, info.min, info.max).astype(info.dtype)
    for round_ in range(6):
        feeds = {
            "x": rng.standard_normal((6, 5)).astype(np.float32),
            "u": rng.standard_normal((14, 5)).astype(np.float32),
            "i": rng.permutation(far),
            "starts": rng.choice(far, 2),
            "each": rng.choice(far, (14, 5)),
        }
        results, stray = run(graph, RandomGraph(round_, graph, feeds), opened, PlanVariant("bump", guard=4096))
        assert stray == []
        expected = evaluate(graph, feeds)
        for name, t in graph.outputs.items():
            got = results[1][f"output {name}"].view(t.dtype.np).reshape(t.shape)
            np.testing.assert_allclose(got, expected[t.id], rtol=1e-5, atol=1e-6, err_msg=name)


def test_sums_have_the_same_bits_every_run(session: rlx.Session) -> None:
    graph = Graph("sums")
    u, i = graph.input("u", (3000, 7)), graph.input("i", (3000,), "i32")
    graph.output("y", rlx.segment_sum(u, i, 11))
    rng = np.random.default_rng(0)
    feeds = {
        "u": rng.standard_normal((3000, 7)).astype(np.float32),
        "i": rng.integers(0, 11, 3000).astype(np.int32),
    }
    with session.compile(graph) as compiled:
        runs = {compiled.run(feeds)["y"].tobytes() for _ in range(5)}
    assert len(runs) == 1


def test_gathers_gradient_adds_up_without_a_product(session: rlx.Session) -> None:
    """The gradient of an embedding is a scatter: no matrix of all words by all tokens."""
    graph = Graph("embedding")
    table, tokens = graph.input("table", (50, 8)), graph.input("tokens", (2, 9), "i64")
    d = graph.input("d", (2, 9, 8))
    (made,) = gradients(rlx.gather(table, tokens), [table], d)
    graph.output("table", made)
    rng = np.random.default_rng(1)
    feeds = {
        "table": np.zeros((50, 8), np.float32),
        "tokens": rng.integers(-60, 60, (2, 9)),
        "d": rng.standard_normal((2, 9, 8)).astype(np.float32),
    }
    with session.compile(graph) as compiled:
        assert "matmul" not in {entry.op for entry in compiled.report()}
        got = compiled.run(feeds)["table"]
    want = np.zeros((50, 8))
    places = np.clip(np.where(feeds["tokens"] < 0, feeds["tokens"] + 50, feeds["tokens"]), 0, 49)
    np.add.at(want, places, feeds["d"])
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_a_cache_is_updated_where_it_lies(session: rlx.Session) -> None:
    """A row is written into a cache of rows, in place, at an index that is an input; the other rows stay."""
    graph = Graph("cache")
    cache, row, at = graph.state("cache", (16, 4)), graph.input("row", (1, 4)), graph.input("at", (), "i32")
    graph.update("cache", rlx.dynamic_update_slice(cache, row, (at, 0)))
    graph.output("sum", rlx.sum(cache))
    with session.compile(graph) as compiled:
        for k in (3, 0, 15, 99):
            compiled.run({"row": np.full((1, 4), k + 1.0, np.float32), "at": np.int32(k)})
        cached = compiled.get_state("cache")
    want = np.zeros((16, 4))
    want[[3, 0, 15]] = np.array([[4.0], [1.0], [100.0]])
    np.testing.assert_array_equal(cached, want)


def test_a_window_whose_start_is_known_needs_no_launch(session: rlx.Session) -> None:
    """Its start is clamped there too; a window of several rows that are not whole is none."""
    x = np.arange(96, dtype=np.float32).reshape(6, 4, 4)
    for starts, sizes, view in (
        ((1, 0, 0), (2, 4, 4), True), ((9, -1, 0), (2, 4, 4), True), ((2, 5, 0), (1, 2, 4), True),
        ((2, 1, 1), (1, 2, 2), False),
    ):  # fmt: skip
        graph = Graph("window")
        window = rlx.dynamic_slice(graph.input("x", x.shape, "f32") * 2.0, starts, sizes)
        graph.output("y", window + 1.0)
        first = [min(max(s, 0), n - k) for s, n, k in zip(starts, x.shape, sizes, strict=True)]
        want = x[tuple(slice(s, s + k) for s, k in zip(first, sizes, strict=True))] * 2 + 1
        with session.compile(graph) as compiled:
            np.testing.assert_array_equal(compiled.run({"x": x})["y"], want)
            how = [d.how for d in compiled.executable.dispatch if d.op == "dynamic_slice"]
        assert (how == ["alias"]) == view


def test_without_64_bit_integers() -> None:
    """i64 indices are read as two words; only scatters and one_hot, which compute with them, go to the host then."""
    load_rules()
    target = Target(frozenset({"16bit_storage", "8bit_storage"}))
    needs = {}
    for op in OPS:
        nodes = [n for case in cases_of(op) for n in case.graph().nodes if n.op.name == op]
        wide = [n for n in nodes if any(t.dtype.name == "i64" for t in n.inputs)]
        needs[op] = {runs_natively(n, target) for n in wide}
    host = {op for op, found in needs.items() if False in found}
    assert host == {"scatter", "scatter_elements", "one_hot", "cumsum", "cumprod"}


def _x() -> rlx.Tensor:
    return Graph().input("x", (3, 4))


_BAD: list[tuple[Any, type[Exception], str]] = [
    (lambda: rlx.argmax(_x(), 2), ShapeError, "argmax: axis 2 is out of range"),
    (lambda: rlx.argmin(Graph().input("x", (3, 0)), 1), ShapeError, "axis 1 of .3, 0. has no elements"),
    (lambda: rlx.sort(_x(), -3), ShapeError, "sort: axis -3"),
    (lambda: rlx.argsort(Graph().input("x", ()), 0), ShapeError, "argsort: axis 0"),
    (lambda: rlx.top_k(_x(), 5), ShapeError, "top_k: k is 5; expected an int from 0 to 4"),
    (lambda: rlx.top_k(_x(), 1.5), ShapeError, "top_k: k is 1.5"),
    (lambda: rlx.cumsum(_x(), -3), ShapeError, "cumsum: axis -3"),
    (lambda: rlx.cumprod(_x(), 2), ShapeError, "cumprod: axis 2"),
    (lambda: rlx.log_softmax(_x(), 3), ShapeError, "log_softmax: axis 3"),
    (lambda: rlx.logsumexp(_x(), (0, 0)), ShapeError, "logsumexp: axes"),
    (lambda: rlx.gather(_x(), [0.5]), DTypeError, "gather: the indices are"),
    (lambda: rlx.gather(_x(), [3]), ShapeError, "gather: indices from 3 to 3 leave axis 0"),
    (lambda: rlx.gather_elements(_x(), [1, 2]), ShapeError, "gather_elements: indices .2,. beside x .3, 4."),
    (lambda: rlx.gather_elements(_x(), [[4]], 1), ShapeError, "leave axis 1"),
    (lambda: rlx.take_along_axis(_x(), [[0, 1], [0, 1]], 1), ShapeError, "do not broadcast"),
    (lambda: rlx.gather_nd(_x(), [[0, 0, 0]]), ShapeError, "gather_nd: indices .1, 3."),
    (lambda: rlx.scatter(_x(), [0, 3], np.zeros((2, 4), np.float32)), ShapeError, "scatter: indices from 0 to 3"),
    (lambda: rlx.scatter(_x(), [0], np.zeros((2, 4), np.float32)), ShapeError, "scatter: updates .2, 4."),
    (lambda: rlx.scatter(_x(), [0], np.zeros((1, 4), np.int32)), DTypeError, "scatter: updates are i32 and x is f32"),
    (lambda: rlx.scatter(_x(), [0], 1.0, reduction="sum"), DTypeError, "scatter: reduction is 'sum'; expected one of"),
    (lambda: rlx.scatter_elements(_x(), [[0]], np.zeros((1, 2), np.float32)), ShapeError, "expected one shape"),
    (lambda: rlx.scatter_nd(_x(), [[0, 9]], np.zeros(1, np.float32)), ShapeError, "scatter_nd: indices from 9 to 9"),
    (lambda: rlx.segment_sum(_x(), [0, 1, 7], 3), ShapeError, "segment_sum: indices from 0 to 7 leave 3 segments"),
    (lambda: rlx.scatter(Graph().input("x", (2,), "bool"), [0], [True], reduction="max"), DTypeError, "of bool"),
    (lambda: rlx.dynamic_slice(_x(), (0, 0), (4, 1)), ShapeError, "dynamic_slice: sizes .4, 1."),
    (lambda: rlx.dynamic_slice(_x(), (0,), (1, 1)), ShapeError, "dynamic_slice: starts .1,."),
    (lambda: rlx.dynamic_slice(_x(), (0.5, 0), (1, 1)), DTypeError, "dynamic_slice: starts are"),
    (lambda: rlx.dynamic_update_slice(_x(), np.zeros((1, 5), np.float32), (0, 0)), ShapeError, "an update of .1, 5."),
    (lambda: rlx.one_hot(Graph().input("i", (3,), "i32"), -1), ShapeError, "one_hot: depth is -1"),
    (lambda: rlx.one_hot(Graph().input("i", (3,), "i32"), 4, on=0.5, dtype="i32"), DTypeError, "one_hot: on is 0.5"),
    (lambda: rlx.one_hot(_x(), 4), DTypeError, "one_hot: the indices are f32"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(_BAD)))
def test_bad_arguments_are_refused_when_the_graph_is_built(number: int) -> None:
    call, error, match = _BAD[number]
    with pytest.raises(error, match=match):
        call()
