"""Fusion of a row's RMS norm into the product that reads it, and of the gate that follows, each of which takes as long
as a small product in decoding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from rlx.ir import Graph, Node, Rewriter, Tensor, node_of
from rlx.ops.matmul import ACTIVATIONS, activation_of
from rlx.passes.patterns import Call, Either, Match, Pattern, Slot, matches, ops_of
from rlx.passes.rewriting import SupportOf, native_everywhere, remove_dead, use_counts


def fuse_normed(graph: Graph, support: SupportOf = native_everywhere) -> Graph:
    """Fuses rms_norm, a matmul that is its only reader, and the gate act(first half) · second half of the product into
    normed_linear. With a packed weight the result is packed_linear, which also takes a gate without a norm, and a bias
    vector.

    For devices where each node costs a launch, and only if x is one row: with many rows, each workgroup would compute
    all rows' norms again. The norm is not rounded before the product, nor the product before the gate."""
    there = {node.op.name for node in graph.nodes}
    patterns = [(gate, pattern) for gate, pattern in _PATTERNS if ops_of(pattern) <= there]
    if not patterns:
        return remove_dead(graph)
    uses = Counter(use_counts(graph))
    new = Rewriter(graph)
    for node in graph.nodes:
        if len(node.outputs) != 1 or not _fuse(new, node, patterns, uses, support):
            new.keep(node)
    return remove_dead(new.finish(), graph)


def _fuse(
    new: Rewriter, node: Node, patterns: Sequence[tuple[str | None, Pattern]], uses: Counter[int], support: SupportOf
) -> bool:
    """Replaces the last node of a matched pattern by the fused node."""
    for gate, pattern in patterns:
        for match in matches(pattern, node.output):
            if not match.closed(uses) or node.output.dtype != match.slots["x"].dtype:
                continue
            fused = _packed(new, match, gate) if "q" in match.slots else _plain(match, gate)
            if fused is not None and support(node_of(fused[0], [t.type for t in fused[1]], fused[2])) == "native":
                label = next((n.label for n in match.nodes if n.label), "")
                new.put(node.outputs, new.add(*fused, label))
                return True
    return False


_Found = tuple[str, tuple[Tensor, ...], dict[str, Any]]


def _plain(match: Match, gate: str | None) -> _Found:
    inputs = tuple(match.slots[name] for name in ("x", "gamma", "weight"))
    return "normed_linear", inputs, {"eps": _norm(match), "gate": gate}


def _packed(new: Rewriter, match: Match, gate: str | None) -> _Found | None:
    slots, eps = match.slots, _norm(match)
    inputs = [slots[name] for name in ("x", "q", "gamma") if name in slots]
    if "bias" in slots:
        n = slots["q"].shape[0]
        bias = slots["bias"]
        if bias.size != n or not bias.dtype.is_float:
            return None
        inputs.append(bias if bias.shape == (n,) else new.add("reshape", (bias,), {"shape": (n,)})[0])
    elif eps is None and gate is None:
        return None
    return "packed_linear", tuple(inputs), {"format": slots["q"].dtype, "eps": eps, "gate": gate}


def _norm(match: Match) -> float | None:
    """The eps of the match's norm, if it has one."""
    return next((n.attrs["eps"] for n in match.nodes if n.op.summed is not None), None)


def _of_a_row(product: Node) -> bool:
    a, b = product.inputs
    attrs = product.attrs
    plain = attrs["transpose_b"] and not attrs["transpose_a"] and attrs["activation"] is None
    return plain and a.shape[:-1] == (1,) and b.ndim == 2


def _packed_of_a_row(product: Node) -> bool:
    x = product.inputs[0]
    return bool(product.attrs["transpose_q"]) and x.ndim == 2 and x.shape[0] == 1


def _half(first: bool) -> Callable[[Node], bool]:
    """Whether a slice takes the first half (or the second) of its only row."""

    def takes(node: Node) -> bool:
        shape, attrs = node.inputs[0].shape, node.attrs
        if len(shape) != 2 or shape[1] % 2:
            return False
        half = shape[1] // 2
        start = 0 if first else half
        places = tuple(tuple(attrs[name]) for name in ("starts", "stops", "steps"))
        return places == ((0, start), (1, start + half), (1, 1))

    return takes


_NORM = Call("rms_norm", (Slot("x"), Slot("gamma")))
_PRODUCT = Call("matmul", (_NORM, Slot("weight")), _of_a_row)
_PACKED = Call("packed_matmul", (Either((_NORM, Slot("x"))), Slot("q")), _packed_of_a_row)


def _gated(product: Pattern, name: str) -> Pattern:
    gate = Call(ACTIVATIONS[name][0], (Call("slice", (product,), _half(True)),), lambda n: activation_of(n) == name)
    return Call("mul", (gate, Call("slice", (product,), _half(False))))


_PATTERNS: tuple[tuple[str | None, Pattern], ...] = (
    *((name, _gated(product, name)) for name in ACTIVATIONS for product in (_PRODUCT, _PACKED)),
    (None, Call("add", (_PACKED, Slot("bias")))),
    (None, _PRODUCT),
    (None, Call("packed_matmul", (_NORM, Slot("q")), _packed_of_a_row)),
)
