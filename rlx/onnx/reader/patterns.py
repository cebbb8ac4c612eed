"""Recognizes ops that exporters write as several small operators: a product's bias and activation, a convolution's
normalization, and the patterns of `rlx.passes.recognize`.

Each rule gives the operators' result, rounded less often. Rules look at the graph built so far, node by node; nodes
that become unused are dropped with everything else that no result needs.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

import numpy as np

from rlx.ir import Graph, Node, Rewriter, Tensor, rebuild
from rlx.onnx.channel_scales import F64, scaled
from rlx.ops.matmul import activation_of
from rlx.passes import change_bodies, recognize
from rlx.passes.patterns import constant


def put_together(graph: Graph, scales: dict[str, F64]) -> Graph:
    """The graph with every matched pattern as one op, in the bodies of control ops too. For a weight that is an
    initializer with scaled channels, `scales` gets the scales by the weight's label, whose first line is the
    initializer's name."""
    graph = recognize(change_bodies(graph, lambda name, body: put_together(body, scales)))
    return rebuild(graph, _Rules(graph, scales).rewrite)


class _Rules:
    """One pass over a graph. `_uses` counts how often the original of a new tensor is read."""

    def __init__(self, graph: Graph, scales: dict[str, F64]) -> None:
        self._scales = scales
        self._old: Counter[int] = Counter(t.id for n in graph.nodes for t in n.inputs)
        self._old.update(t.id for t in graph.results())
        self._uses: dict[int, int] = {}

    def rewrite(self, new: Rewriter, node: Node, inputs: tuple[Tensor, ...]) -> Sequence[Tensor] | None:
        for old, fresh in zip(node.inputs, inputs, strict=True):
            self._uses[fresh.id] = self._old[old.id]
        tensor = None
        if node.op.adds:
            tensor = self._bias(new, inputs)
        elif node.op.name == "batch_norm":
            tensor = self._normalized(new, node, inputs)
        elif len(inputs) == 1:
            tensor = self._activation(new, node, inputs)
        return None if tensor is None else (tensor,)

    def _once(self, t: Tensor, axis: int) -> bool:
        """Whether t is a product whose bias lies along this axis, and which only the node at hand reads."""
        return t.node.op.epilogue == axis and self._uses.get(t.id, 1) == 1

    def _bias(self, new: Rewriter, inputs: Sequence[Tensor]) -> Tensor | None:
        """A product plus a vector."""
        for product, bias in (inputs, inputs[::-1]):
            if not self._once(product, -1) or not product.dtype.is_float or product.dtype != bias.dtype:
                continue
            node = product.node
            plain = len(node.inputs) == 2 and node.attrs["activation"] is None
            if plain and bias.shape == product.shape[-1:]:
                return new.add("matmul", (*node.inputs, bias), node.attrs)[0]
        return None

    def _activation(self, new: Rewriter, node: Node, inputs: Sequence[Tensor]) -> Tensor | None:
        """A product with a bias, and its activation."""
        (x,) = inputs
        if not self._once(x, -1) or x.node.attrs["activation"] is not None or not x.dtype.is_float:
            return None
        word = activation_of(node)
        if word is None:
            return None
        return new.add("matmul", x.node.inputs, {**x.node.attrs, "activation": word})[0]

    def _normalized(self, new: Rewriter, node: Node, inputs: Sequence[Tensor]) -> Tensor | None:
        """A convolution and the batch norm of its result, all weights known: with s = gamma / sqrt(var + eps) the
        convolution by w · s plus (bias - mean) · s + beta. Computed in f64 and rounded once."""
        x = inputs[0]
        if not self._once(x, 1) or x.node.attrs["activation"] is not None or x.dtype.is_half:
            return None
        image, weight, *bias = x.node.inputs
        values = [constant(t) for t in (weight, *inputs[1:], *bias)]
        if any(v is None for v in values):
            return None
        gamma, beta, mean, var, *b = (np.asarray(v, np.float64).reshape(-1) for v in values[1:])
        with np.errstate(all="ignore"):
            scale = gamma / np.sqrt(var + node.attrs["eps"])
            shift = ((b[0] if b else 0.0) - mean) * scale + beta
        arrays = scaled(np.asarray(values[0]), scale), shift.astype(x.dtype.np)
        if not all(np.isfinite(v).all() for v in arrays):
            return None
        label = weight.node.label
        if label:
            label += f"\ntimes {hashlib.blake2b(scale, digest_size=16).hexdigest()}"
            self._scales[label] = scale
        folded = []
        for value, name in zip(arrays, (label, ""), strict=True):
            value.flags.writeable = False
            folded.append(new.add("constant", (), {"value": value}, name)[0])
        return new.add("conv", (image, *folded), x.node.attrs)[0]
