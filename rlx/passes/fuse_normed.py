"""Fusion of a row's RMS norm into the product that reads it, and of the gate that follows: a model that makes one token
after the other takes as long for each of them as for a small product."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from rlx.ir import Graph, Node, Rewriter, node_of
from rlx.ops.matmul import ACTIVATIONS, activation_of
from rlx.passes.patterns import Call, Match, Pattern, Slot, matches
from rlx.passes.rewriting import SupportOf, native_everywhere, remove_dead, use_counts


def fuse_normed(graph: Graph, support: SupportOf = native_everywhere) -> Graph:
    """Fuses rms_norm, a matmul that alone reads it, and act(first half) · second half of that, into normed_linear.

    For devices where a node costs a launch. Only where x is one row: of many rows, each workgroup would norm all again.
    Nothing is rounded in between."""
    uses = Counter(use_counts(graph))
    new = Rewriter(graph)
    for node in graph.nodes:
        if len(node.outputs) != 1 or not _fuse(new, node, uses, support):
            new.keep(node)
    return remove_dead(new.finish())


def _fuse(new: Rewriter, node: Node, uses: Counter[int], support: SupportOf) -> bool:
    """Puts the fused node in the place of one that a pattern ends with."""
    for gate, pattern in _PATTERNS:
        for match in matches(pattern, node.output):
            inputs = tuple(match.slots[name] for name in ("x", "gamma", "weight"))
            attrs = {"eps": _norm(match).attrs["eps"], "gate": gate}
            fits = match.closed(uses) and node.output.dtype == inputs[0].dtype
            if fits and support(node_of("normed_linear", [t.type for t in inputs], attrs)) == "native":
                label = next((n.label for n in match.nodes if n.label), "")
                new.put(node.outputs, new.add("normed_linear", inputs, attrs, label))
                return True
    return False


def _norm(match: Match) -> Node:
    return next(n for n in match.nodes if n.op.summed is not None)


def _of_a_row(product: Node) -> bool:
    a, b = product.inputs
    attrs = product.attrs
    plain = attrs["transpose_b"] and not attrs["transpose_a"] and attrs["activation"] is None
    return plain and a.shape[:-1] == (1,) and b.ndim == 2


def _half(first: bool) -> Callable[[Node], bool]:
    """Whether a slice takes the first half, or the second, of its only row."""

    def takes(node: Node) -> bool:
        shape, attrs = node.inputs[0].shape, node.attrs
        if len(shape) != 2 or shape[1] % 2:
            return False
        half = shape[1] // 2
        start = 0 if first else half
        places = tuple(tuple(attrs[name]) for name in ("starts", "stops", "steps"))
        return places == ((0, start), (1, start + half), (1, 1))

    return takes


_PRODUCT = Call("matmul", (Call("rms_norm", (Slot("x"), Slot("gamma"))), Slot("weight")), _of_a_row)


def _gated(name: str) -> Pattern:
    gate = Call(ACTIVATIONS[name][0], (Call("slice", (_PRODUCT,), _half(True)),), lambda n: activation_of(n) == name)
    return Call("mul", (gate, Call("slice", (_PRODUCT,), _half(False))))


_PATTERNS: tuple[tuple[str | None, Pattern], ...] = (*((name, _gated(name)) for name in ACTIVATIONS), (None, _PRODUCT))
