"""Every op is native on CUDA and Vulkan: all conformance cases are lowered, which needs no device.

What devices of a kind offer is listed in `ops_page.KINDS`; tests on devices show that the launches also compute.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest

from rlx import dtypes
from rlx.backends.cuda.target import cuda_target
from rlx.backends.gpu.program import executable
from rlx.backends.gpu.program.executable import load_rules, lower_graph
from rlx.backends.gpu.program.lowering import LOWERINGS, runs_natively
from rlx.backends.gpu.program.steps import HostCall
from rlx.backends.gpu.program.target import Target
from rlx.backends.vulkan.target import vulkan_target
from rlx.conformance.case import cases_of
from rlx.conformance.ops_page import KINDS
from rlx.driver import Dispatch, Limits
from rlx.driver.device import Support
from rlx.driver.memory.planner import plan
from rlx.dtypes import DType
from rlx.errors import RlxError
from rlx.ir import NOT_DIFFERENTIABLE, REGISTRY, Graph, Node, Op
from rlx.passes.legalize import decomposition
from rlx.runtime.custom import FAMILY as CUSTOM
from tests.full import sampled

OPS = [op.name for op in REGISTRY.values() if not op.leaf and op.family != CUSTOM]
# Devices with matrix instructions and without have different kernels.
FEATURES = {**KINDS, "cuda (matrices)": KINDS["cuda"] | {"coopmat", "bf16_coopmat"}}
TARGETS = {
    kind: cuda_target(words, Limits()) if kind.startswith("cuda") else vulkan_target(words, Limits(), False)
    for kind, words in FEATURES.items()
}
# Of the ops that take f64 these only move elements, or order them by their bits: they need no f64 on the device.
F64_MOVED = {
    "argmax", "argmin", "argsort", "concat", "dynamic_slice", "dynamic_update_slice", "expand", "frame",
    "gather", "gather_elements", "im2col", "pad", "reshape", "resize", "slice", "sort", "top_k", "transpose",
}  # fmt: skip
# Ops that may be an alias of their input: nothing to launch.
SAME_BYTES = {"again", "cast", "concat", "copy", "expand", "reshape", "slice", "stop_gradient", "transpose"}
# Ops with kernels for one row, for heads of some sizes, or by matrix instructions. Devices run the decomposition of
# others.
OF_A_ROW = {
    "normed_linear", "packed_linear", "attention_step", "rope_update", "paged_attention", "attention_sums",
    "attention_sums_grad",
}  # fmt: skip
load_rules()  # tests that lower nothing ask for them too
# Ops with a kernel on the CPU alone, and those that are nothing but a decomposition. Devices run that.
DECOMPOSED = {"integer_conv"} | {
    op.name for op in REGISTRY.values()
    if op.decompose and not op.kernel and not op.elementwise and op.name not in LOWERINGS
}  # fmt: skip
TYPES = [
    t for t in vars(dtypes).values() if isinstance(t, DType) and t != dtypes.f64 and t not in dtypes.HOST_ONLY
]


def _dispatches(graph: Graph) -> Iterator[tuple[str, Dispatch]]:
    """The report's entry for the graph's one op on a device of each kind, checked against the steps."""
    planned = plan(graph, planner="bump")
    for kind, target in TARGETS.items():
        lowering, (entry, *inside) = lower_graph(graph, planned, target, "f32")
        assert (entry.how == "host") == any(isinstance(s, HostCall) for s in lowering.steps)
        if inside:  # the nodes of a control op's bodies
            assert entry.how == "control" and {e.how for e in inside} <= {"native", "alias", "control"}, kind
            entry = entry._replace(how="native")
        yield kind, entry


@pytest.mark.parametrize("op", [op for op in OPS if op not in DECOMPOSED])
def test_every_case_is_launches(op: str) -> None:
    cases = cases_of(op)
    assert cases
    for case in sampled((c for c in cases if not c.has_f64), most=6):  # some in f64 are decomposed: see below
        graph = case.graph()
        if op == "grouped_packed_matmul" and not case.attrs["transpose_q"]:
            continue  # only gradients need it: a product with the dequantized weights
        nothing = all(t.size == 0 for t in graph.outputs.values())
        for kind, entry in _dispatches(graph):
            if op in OF_A_ROW and _how(graph, FEATURES[kind]) == "decomposed":
                continue
            assert entry.how in ("native", "alias"), (case.id, kind)
            assert entry.steps or nothing or entry.how == "alias", (case.id, kind)
            assert entry.how == "native" or op in SAME_BYTES, (case.id, kind)


def _retyped(op: str, to: DType) -> Iterator[Graph]:
    """Graphs of the op on other dtypes, where it takes them: for each dtype of its first case, all inputs of that dtype
    become `to`."""
    case = cases_of(op)[0]
    for old in {s.dtype for s in case.inputs}:
        graph = Graph(op)
        types = [(s.shape, to if s.dtype == old else s.dtype) for s in case.inputs]
        ins = [graph.input(f"x{i}", shape, dtype) for i, (shape, dtype) in enumerate(types)]
        try:
            outs = graph.add(op, ins, case.attrs)
        except RlxError:
            continue  # not a dtype of this op
        for i, t in enumerate(outs):
            graph.output(f"y{i}", t)
        yield graph


@pytest.mark.parametrize("op", OPS)
def test_every_dtype_an_op_takes_is_native(op: str) -> None:
    """No dtype that an op accepts when the graph is built is silently left to the host."""
    for to in TYPES:
        for graph in _retyped(op, to):
            if op in DECOMPOSED:
                assert {_how(graph, words) for words in FEATURES.values()} == {"decomposed"}, (op, to.name)
                continue
            for kind, entry in _dispatches(graph):
                decomposed = op in OF_A_ROW and _how(graph, FEATURES[kind]) == "decomposed"
                assert decomposed or entry.how in ("native", "alias"), (op, to.name, kind)


@pytest.mark.parametrize("op", sorted(DECOMPOSED))
def test_every_case_is_decomposed(op: str) -> None:
    for case in cases_of(op):
        assert {_how(case.graph(), words) for words in FEATURES.values()} == {"decomposed"}, case.id


def _how(graph: Graph, features: frozenset[str]) -> str:
    """How the graph's op runs after legalization: "native" or "host"."""
    target = Target(features)

    def support(node: Node) -> Support:
        return "native" if node.op.leaf or runs_natively(node, target) else "host"

    (node,) = (n for n in graph.nodes if not n.op.leaf)
    if support(node) == "native":
        return "native"
    return "decomposed" if decomposition(node, support) else "host"


def test_f64_is_computed_on_the_device() -> None:
    """By a kernel of its own, or by ops of its decomposition that have kernels: nothing is left to the host."""
    for op in OPS:
        doubles = sampled((c for c in cases_of(op) if c.has_f64), most=3)
        for graph in [*_retyped(op, dtypes.f64), *(c.graph() for c in doubles)]:
            for kind, words in FEATURES.items():
                assert _how(graph, words) != "host", (op, kind)


def test_without_f64_it_is_computed_on_the_host_and_said_to_be() -> None:
    found: dict[str, set[str]] = {"native": set(), "host": set()}
    for op in OPS:
        for graph in _retyped(op, dtypes.f64):
            for words in FEATURES.values():
                for lacking in ({"f64"}, {"f64", "i64"}):
                    how = _how(graph, words - lacking)
                    found["host" if how == "host" else "native"].add(op)
    assert found["native"] - F64_MOVED == set()
    assert not found["native"] & found["host"]


def test_a_rule_of_a_module_that_is_being_imported_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module registers its rule before the rest of it has run: until then each call asks for the lock."""
    op = Op("of_a_module", "family", lambda types, attrs: types, lambda *arrays: arrays, "nobody", NOT_DIFFERENTIABLE)
    asked = 0

    class Lock(AbstractContextManager[None]):
        def __enter__(self) -> None:
            nonlocal asked
            asked += 1

        def __exit__(self, *error: object) -> None: ...

    def imported(family: str) -> None:
        monkeypatch.setitem(LOWERINGS, op.name, LOWERINGS["sum"])
        if asked == 1:
            executable.load_rule(op)  # by another thread

    monkeypatch.setattr(executable, "_loading", Lock())
    monkeypatch.setattr(executable, "_loaded", set())
    monkeypatch.setattr(executable, "_load_family", imported)
    executable.load_rule(op)
    assert asked == 2
    executable.load_rule(op)
    assert asked == 2
