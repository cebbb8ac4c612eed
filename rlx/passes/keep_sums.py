"""Attention that keeps its rows' softmax sums for its gradient, where the program computes both; and both read and
write (batch, tokens, heads · size), as the products around them do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlx.dtypes import f32
from rlx.ir import Graph, Node, Rewriter, Tensor, TensorType, get_op, node_of
from rlx.ops.attention.parts import ALL_TOKENS, NO_TOKENS, ByToken
from rlx.passes.rewriting import SupportOf, native_everywhere, remove_dead

_PERM = (0, 2, 1, 3)
_Key = tuple[tuple[int, ...], tuple[Any, ...]]


@dataclass
class _Pair:
    """An attention and its gradient, and the operands and attributes of the nodes that replace them."""

    attention: Node
    gradient: Node
    operands: list[Tensor]
    attrs: dict[str, Any]
    joint: Node | None = None  # the concatenation of the three gradients, where the operands are parts of one
    results: tuple[Tensor, ...] = ()
    between: set[int] = field(default_factory=set)  # nodes between the gradient and `joint`


def keep_sums(graph: Graph, support: SupportOf = native_everywhere, precision: str = "f32") -> Graph:
    """Replaces attention and attention_grad of the same operands by attention_sums and attention_sums_grad, where the
    device has kernels for both: the gradient then need not compute scores twice to know the sums of their weights.
    Those kernels compute f32 as f32, so it stays as it is in sessions of another precision.

    Transpositions of heads around the two go, and so do the slices by which q, k and v are taken out of one product,
    and the concatenation of their gradients."""
    forward, gradient = get_op("attention"), get_op("attention_grad")
    if not any(node.op is gradient for node in graph.nodes):
        return graph
    attentions: dict[_Key, Node] = {}
    pairs: list[_Pair] = []
    readers: dict[int, list[Node]] = {}
    for node in graph.nodes:
        for t in node.inputs:
            readers.setdefault(t.id, []).append(node)
    results = {t.id for t in graph.results()}
    for node in graph.nodes:
        if node.op is forward and not node.attrs.get("tokens"):
            attentions.setdefault(_key(node, node.inputs), node)
        elif node.op is gradient and (node.outputs[0].dtype != f32 or precision == "f32"):
            attention = attentions.pop(_key(node, node.inputs[1:]), None)
            pair = None if attention is None else _pair(attention, node, readers, results, support)
            pairs += [] if pair is None else [pair]
    return remove_dead(_replaced(graph, pairs), graph) if pairs else graph


def _key(node: Node, operands: tuple[Tensor, ...]) -> _Key:
    """A key that is equal for an attention and its gradient."""
    names = ("scale", "causal", "window", "softcap")
    return tuple(t.id for t in operands), tuple(node.attrs.get(name) for name in names)


def _turns(node: Node) -> bool:
    return node.op is get_op("transpose") and tuple(node.attrs["perm"]) == _PERM


def _pair(
    attention: Node, gradient: Node, readers: Mapping[int, list[Node]], results: set[int], support: SupportOf
) -> _Pair | None:
    """The replacement of an attention and its gradient; None where the device has no kernels for it."""
    tokens, operands = NO_TOKENS, list(attention.inputs)
    for i, one in zip(range(3), ByToken, strict=False):
        if _turns(operands[i].node):
            tokens, operands[i] = tokens | one, operands[i].node.inputs[0]
    if _turns(gradient.inputs[0].node) or any(_turns(node) for node in readers.get(attention.output.id, ())):
        tokens |= ByToken.Y
    attrs = {**attention.attrs, "tokens": tokens, "binary": attention.output.dtype.is_half}
    if tokens == ALL_TOKENS:
        pair = _joined(_Pair(attention, gradient, operands, dict(attrs)), readers, results)
        if pair is not None and _runs(pair, support):
            return pair
    pair = _Pair(attention, gradient, operands, attrs)
    return pair if _runs(pair, support) else None


def _joined(pair: _Pair, readers: Mapping[int, list[Node]], results: set[int]) -> _Pair | None:
    """The pair with q, k and v as one operand, if they are consecutive parts of one tensor's rows and their gradients
    are read only by a concatenation to that tensor's gradient. Else None."""
    start, parts = 0, pair.operands[:3]
    whole: Tensor | None = None
    for part in parts:
        cut = part.node.inputs[0].node if part.node.op is get_op("reshape") else part.node
        b, n, heads, d = part.shape
        if cut.op is not get_op("slice") or any(step != 1 for step in cut.attrs["steps"]):
            return None
        x, stop = cut.inputs[0], start + heads * d
        if x.shape[:-1] != (b, n) or tuple(cut.attrs["starts"]) != (0, 0, start):
            return None
        if tuple(cut.attrs["stops"]) != (b, n, stop) or (whole is not None and x is not whole):
            return None
        whole, start = x, stop
    if whole is None or start != whole.shape[-1]:
        return None
    ends: list[Tensor] = []
    for t in pair.gradient.outputs:
        for wanted in ("transpose", "reshape"):
            after = readers.get(t.id, [])
            if len(after) != 1 or after[0].op is not get_op(wanted) or t.id in results:
                return None
            if wanted == "transpose" and not _turns(after[0]):
                return None
            pair.between.add(id(after[0]))
            t = after[0].output
        ends.append(t)
    joint = readers.get(ends[0].id, [])
    if len(joint) != 1 or joint[0].op is not get_op("concat") or list(joint[0].inputs) != ends:
        return None
    if joint[0].output.shape != whole.shape or any(len(readers[t.id]) != 1 or t.id in results for t in ends):
        return None
    pair.joint, pair.operands = joint[0], [whole, *pair.operands[3:]]
    pair.attrs["kv_heads"] = parts[1].shape[2]
    return pair


def _runs(pair: _Pair, support: SupportOf) -> bool:
    """Whether the device has kernels for both replacements."""
    types = [t.type for t in pair.operands]
    if pair.joint is not None:
        b, h, n, d = pair.attention.inputs[0].shape
        rows = (b, n, h + 2 * pair.attrs["kv_heads"], d)
        types[0] = TensorType(rows, types[0].dtype)
    one = node_of("attention_sums", types, pair.attrs)
    y, sums = (t.type for t in one.outputs)
    return support(one) == support(node_of("attention_sums_grad", [y, y, sums, *types], pair.attrs)) == "native"


def _replaced(graph: Graph, pairs: Sequence[_Pair]) -> Graph:
    new = Rewriter(graph)
    of_attention = {id(pair.attention): pair for pair in pairs}
    of_gradient = {id(pair.gradient): pair for pair in pairs}
    of_joint = {id(pair.joint): pair for pair in pairs if pair.joint is not None}
    between = {i for pair in pairs for i in pair.between} if of_joint else set()
    by_token: dict[int, Tensor] = {}  # id of a tensor in the order of heads -> the same in rows of tokens
    for node in graph.nodes:
        if id(node) in of_attention:
            _attention(new, of_attention[id(node)], by_token)
        elif id(node) in of_gradient:
            _gradient(new, of_gradient[id(node)], by_token)
        elif id(node) in of_joint:
            pair = of_joint[id(node)]
            new.put(node.outputs, new.add("reshape", pair.results[:1], {"shape": node.output.shape}, node.label))
        elif id(node) in between:
            continue
        elif _turns(node) and node.inputs[0].id in by_token:
            new.put(node.outputs, (by_token[node.inputs[0].id],))
        else:
            new.keep(node)
    return new.finish()


def _attention(new: Rewriter, pair: _Pair, by_token: dict[int, Tensor]) -> None:
    node = pair.attention
    if pair.joint is not None:
        b, h, n, d = node.inputs[0].shape
        rows = {"shape": (b, n, h + 2 * pair.attrs["kv_heads"], d)}
        pair.operands[0] = new.add("reshape", pair.operands[:1], rows, node.label)[0]
    pair.results = new.add("attention_sums", pair.operands, pair.attrs, node.label)
    _put(new, node.output, pair.results[0], ByToken.Y in pair.attrs["tokens"], by_token)


def _gradient(new: Rewriter, pair: _Pair, by_token: dict[int, Tensor]) -> None:
    node, tokens = pair.gradient, pair.attrs["tokens"]
    dy = node.inputs[0]
    if ByToken.Y in tokens:
        dy = dy.node.inputs[0] if _turns(dy.node) else new.add("transpose", (dy,), {"perm": _PERM}, node.label)[0]
    inputs = (dy, *pair.results, *pair.operands)
    pair.results = new.add("attention_sums_grad", inputs, pair.attrs, node.label)
    if pair.joint is None:
        for one, old, result in zip(ByToken, node.outputs, pair.results, strict=False):
            _put(new, old, result, one in tokens, by_token)


def _put(new: Rewriter, old: Tensor, result: Tensor, turned: bool, by_token: dict[int, Tensor]) -> None:
    """Puts a result in the place of the old one. `turned`: the result is in rows of tokens, and is transposed back to
    (batch, heads, tokens, size) for readers that are not replaced."""
    if turned:
        by_token[old.id] = result
        result = new.add("transpose", (result,), {"perm": _PERM})[0]
    new.put((old,), (result,))
