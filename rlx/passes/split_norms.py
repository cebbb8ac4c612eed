"""split_norms: the deviation of a batch's channels is inverted once a channel, not once an element."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlx.dtypes import DType, f32, promote
from rlx.ir import Graph, Node, Rewriter, Tensor, get_op, rebuild
from rlx.passes.rewriting import SupportOf, remove_dead


def split_norms(graph: Graph, support: SupportOf) -> Graph:
    """batch_norm of a variance that the graph computes, as in training, becomes elementwise nodes: rsqrt then is not in
    the launch over all elements, and the gradient finds it."""
    norm = get_op("batch_norm")
    if not any(node.op is norm for node in graph.nodes):
        return graph

    def rewrite(new: Rewriter, node: Node, inputs: tuple[Tensor, ...]) -> Sequence[Tensor] | None:
        if node.op is not norm or support(node) != "native" or not _made(inputs[4]):
            return None
        work = promote(inputs[0].dtype, f32)

        def cast(t: Tensor, dtype: DType) -> Tensor:
            return t if t.dtype == dtype else new.add("cast", (t,), {"dtype": dtype}, node.label)[0]

        def call(op: str, *operands: Tensor) -> Tensor:
            return new.add(op, operands, {}, node.label)[0]

        x, gamma, beta, mean, var = (cast(t, work) for t in inputs)
        eps = new.add("constant", (), {"value": np.asarray(node.attrs["eps"], work.np)}, node.label)[0]
        scale = call("mul", gamma, call("rsqrt", call("add", var, eps)))
        # Not x - mean, which the gradient computes too: a shared difference would be kept, as an image in f32.
        y = call("mul", call("add", x, call("neg", mean)), scale)
        return [cast(call("add", y, beta), inputs[0].dtype)]

    return remove_dead(rebuild(graph, rewrite), graph)


def _made(t: Tensor) -> bool:
    while t.node.op.reshapes or t.node.op.converts:
        t = t.node.inputs[0]
    return t.node.op.leaf is None
