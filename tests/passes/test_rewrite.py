"""The rewriter of graphs: what it keeps, what it makes anew, and that nothing is copied where nothing differs."""

from __future__ import annotations

import numpy as np
import pytest

from rlx import ops
from rlx.conformance.random_graphs import random_graph
from rlx.dtypes import f16, f32
from rlx.errors import ShapeError
from rlx.ir import Graph, Node, Rewriter, Tensor, TensorType, inline, node_of, rebuild, verify
from rlx.passes import change_bodies, fuse_epilogues, fuse_norms, hoist, optimize, remove_dead, simplify


def _graph() -> tuple[Graph, list[Tensor]]:
    g = Graph("g")
    x, w, s = g.input("x", (3, 4)), g.param("w", (4, 4)), g.state("s", (3, 4))
    y = ops.matmul(x, w)
    z = ops.exp(y + s)
    g.output("z", z)
    g.update("s", y)
    return g, [x, w, s, y, z]


def _kept(new: Rewriter, node: Node, inputs: tuple[Tensor, ...]) -> None:
    return None


def _turned(new: Rewriter, node: Node, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
    """A rewriting rule that swaps the operands of every sum."""
    return new.add(node.op, inputs[::-1], node.attrs) if node.op.adds else None


def test_a_graph_in_which_nothing_differs_is_not_copied() -> None:
    g, _ = _graph()
    assert rebuild(g, _kept) is g
    for run in (remove_dead, simplify, hoist, fuse_norms, lambda g: change_bodies(g, lambda name, body: body)):
        assert run(g) is g


def test_a_program_is_never_the_users_graph() -> None:
    """After compiling a graph, the user may go on building it."""
    g, (*_, z) = _graph()
    made, _ = optimize(g)
    before = len(made.nodes)
    g.output("more", ops.exp(z))
    assert made is not g and len(made.nodes) == before and list(made.outputs) == ["z"]


def test_what_is_kept_keeps_its_id_and_the_old_graph_stays_as_it_was() -> None:
    g, (x, w, s, y, z) = _graph()
    before = str(g)
    new = rebuild(g, _turned)
    verify(new)
    verify(g)
    assert str(g) == before and new is not g
    assert {t.id for t in (x, w, s, y, z)} <= {t.id for t in new.tensors()}
    assert new.inputs["x"].id == x.id and new.params["w"].id == w.id and new.states["s"].id == s.id
    assert new.updates["s"].id == y.id and new.outputs["z"].id == z.id
    (total,) = (n for n in new.nodes if n.op.adds)
    assert [t.id for t in total.inputs] == [s.id, y.id]
    assert total.output.id not in {t.id for t in g.tensors()}
    assert all(t.graph is new for n in new.nodes for t in (*n.inputs, *n.outputs))


def test_a_node_on_inputs_of_other_types_is_inferred_anew() -> None:
    g = Graph("g")
    x = g.input("x", (3,), f16)
    g.output("y", ops.exp(-x))

    def widened(new: Rewriter, node: Node, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        return (new.graph.input("x", (3,), f32),) if node.op.declared else None

    new = rebuild(g, widened)
    verify(new)
    assert new.outputs["y"].dtype == f32


def test_labels_of_what_is_added() -> None:
    g, (*_, y, z) = _graph()
    y.node.label, z.node.label = "product", "root"

    def rewrite(new: Rewriter, node: Node, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        if node is not z.node:
            return None
        (one,) = new.add("constant", (), {"value": np.float32(1).reshape(())})
        (twice,) = new.add("mul", (inputs[0], one))
        return new.add("exp", (twice,), label="mine")

    labels = [n.label for n in rebuild(g, rewrite).nodes][-4:]
    assert labels == ["", "", "root", "mine"]  # the sum, the constant, which belongs to no old node, and the two others


def test_nodes_may_change_places_and_be_left_out() -> None:
    g = Graph("g")
    x = g.input("x", (2,))
    a, b, c = ops.exp(x), ops.sin(x), ops.cos(x)
    g.output("y", a + c)
    new = Rewriter(g)
    for node in (x.node, c.node, a.node, *g.nodes[4:]):
        new.keep(node)
    made = new.finish()
    verify(made)
    assert [n.op.name for n in made.nodes] == ["input", "cos", "exp", "add"]
    assert b.id not in {t.id for t in made.tensors()}


def test_a_graph_in_another() -> None:
    body = Graph("body")
    p, q = body.input("p", (2,)), body.param("q", (2,))
    body.output("d", p - q)
    g = Graph("g")
    x, y = g.input("x", (2,)), g.input("y", (2,))
    (made,) = inline(body, g, (x, y), "part")
    assert made.node.op.name == "sub" and made.node.inputs == (x, y) and made.node.label == "part"


def test_a_node_in_no_graph_has_types_and_refuses_what_the_op_refuses() -> None:
    node = node_of("matmul", [TensorType((2, 3), f32), TensorType((3, 4), f32)],
                   {"transpose_a": False, "transpose_b": False, "activation": None})  # fmt: skip
    assert node.output.type == TensorType((2, 4), f32) and node.inputs[0].node.op.declared
    with pytest.raises(ShapeError, match="add"):
        node_of("add", [TensorType((2,), f32), TensorType((3,), f32)], {})


@pytest.mark.parametrize("seed", range(40))
def test_passes_leave_random_graphs_as_they_were(seed: int) -> None:
    g = random_graph(seed).graph
    before = str(g)
    for run in (simplify, fuse_epilogues, fuse_norms, remove_dead, lambda g: optimize(g, verify=True)[0]):
        verify(run(g))
    assert str(g) == before
