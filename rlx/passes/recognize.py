"""recognize: gelu, norms, attention and products with dequantized weights that are written in small ops are replaced by
the one op that has a kernel.

The op computes what the small ops compute, with fewer roundings. The constants must be those of the function; numbers
that may vary (eps, scale, softcap) become attributes, and nothing else may read the intermediate results. Attention
skips values that are masked away, so a NaN among those of v is not spread by a product with zero.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from rlx.ir import Attrs, Graph, Node, Rewriter, Tensor, get_op, node_of, rebuild
from rlx.ops.elementwise.unary import GELU_TANH_CUBE, GELU_TANH_SCALE
from rlx.passes.patterns import Call, Either, Match, Number, Pattern, Slot, constant, matches, ops_of
from rlx.passes.rewriting import SupportOf, native_everywhere, remove_dead
from rlx.records import Record


class Found(Record):
    """The op that replaces a match's root.

    `hidden` is a mask that may hide all keys from a query: there the small ops give NaN and the op zeros, so the NaN
    must be restored."""

    op: str
    inputs: tuple[Tensor, ...]
    attrs: Attrs
    hidden: Tensor | None = None


Rule = Callable[[Rewriter, Match], "Found | None"]


def recognize(graph: Graph, support: SupportOf = native_everywhere) -> Graph:
    """Replaces each function that a rule recognizes by its op, where the device has a kernel for that op."""
    rules = _Rules(graph, support)
    return remove_dead(rebuild(graph, rules.rewrite) if rules.any else graph, graph)


class _Rules:
    """The rules applied to one graph. `_uses` counts a tensor's readers; a replacement takes over the readers."""

    def __init__(self, graph: Graph, support: SupportOf) -> None:
        self._support = support
        there = {node.op.name for node in graph.nodes} | _MAKES
        self._rules = {
            get_op(op): tuple((pattern, rule) for pattern, rule in rules if ops_of(pattern) <= there)
            for op, rules in _RULES.items()
        }
        self.any = any(self._rules.values())
        self._uses = Counter(t.id for n in graph.nodes for t in n.inputs)
        self._uses.update(t.id for t in graph.results())

    def rewrite(self, new: Rewriter, node: Node, inputs: tuple[Tensor, ...]) -> Sequence[Tensor] | None:
        for old, fresh in zip(node.inputs, inputs, strict=True):
            self._uses[fresh.id] = self._uses[old.id]
        rules = self._rules.get(node.op)
        if not rules:
            return None
        root = Node(node.op, inputs, node.attrs)
        y = Tensor(inputs[0].graph, node.output.id, node.output.type, root, 0)
        for pattern, rule in rules:
            for match in matches(pattern, y):
                fused = rule(new, match) if match.closed(self._uses) else None
                if fused is not None and self._runs(fused, y):
                    self._uses.subtract(match.reads())
                    self._uses.update(t.id for t in fused.inputs)
                    results = new.add(fused.op, fused.inputs, fused.attrs)
                    return results if fused.hidden is None else (_nan_where_hidden(new, results[0], fused.hidden),)
        return None

    def _runs(self, fused: Found, y: Tensor) -> bool:
        node = node_of(fused.op, [t.type for t in fused.inputs], fused.attrs)
        return node.output.type == y.type and self._support(node) == "native"


def _call(op: str, *inputs: Pattern, **attrs: object) -> Call:
    """A call whose node has these attributes; its other attributes may have any value."""
    return Call(op, inputs, lambda node: all(node.attrs[k] == v for k, v in attrs.items()))


def _last_mean(x: Pattern) -> Call:
    """A pattern for the mean over the last axis, with keepdims."""
    return Call("mean", (x,), lambda n: n.attrs["axes"] == (n.inputs[0].ndim - 1,) and n.attrs["keepdims"])


# -- gelu

_X = Slot("x")


def _product(a: Pattern, b: Pattern, c: Pattern) -> Either:
    """a · b · c, multiplied in any order."""
    return Either(tuple(_call("mul", _call("mul", p, q), r) for p, q, r in ((a, b, c), (a, c, b), (b, c, a))))


def _gelu_of(inner: Pattern) -> Either:
    return _product(Number(0.5), _X, _call("add", Number(1.0), inner))


_SCALED = Either((_call("div", _X, Number(math.sqrt(2))), _call("mul", _X, Number(math.sqrt(0.5)))))
_CUBE = Either((_call("pow", _X, Number(3.0)), _call("mul", _call("mul", _X, _X), _X)))
_BENT = _call("add", _X, _call("mul", Number(GELU_TANH_CUBE), _CUBE))


def _gelu(approximate: str) -> Rule:
    return lambda new, m: Found("gelu", (m.slots["x"],), {"approximate": approximate})


# -- norms


def _normalized(x: Pattern) -> Either:
    """x / √(mean x² + eps)."""
    square = Either((_call("mul", x, x), _call("pow", x, Number(2.0))))
    variance = _call("add", _last_mean(square), Number(name="eps"))
    root = _call("sqrt", variance)
    inverse = Either((_call("reciprocal", root), _call("div", Number(1.0), root), _call("rsqrt", variance)))
    return Either((_call("div", x, root), _call("mul", x, inverse)))


_RMS = _call("mul", _normalized(_X), Slot("gamma"))
# The part before the bias has become an rms_norm by the time the add of the bias is visited.
_LAYER = _call("add", _call("rms_norm", _call("sub", _X, _last_mean(_X)), Slot("gamma")), Slot("beta"))


def _norm(op: str, *weights: str) -> Rule:
    def rule(new: Rewriter, m: Match) -> Found | None:
        x, weights_of = m.slots["x"], [m.slots[name] for name in weights]
        fits = all(t.shape == x.shape[-1:] and t.dtype == x.dtype for t in weights_of)
        eps = m.numbers["eps"] if "eps" in m.numbers else m.nodes[1].attrs["eps"]
        return Found(op, (x, *weights_of), {"eps": eps}) if fits and x.dtype.is_float and eps >= 0 else None

    return rule


# -- attention: softmax(q · kᵀ · scale + mask) · v over (batch, heads, length, size), scaled at q, k or the scores


def _times(x: Pattern, name: str) -> Either:
    return Either((_call("mul", x, Number(name=name)), x))


_FACTORS = _times(Slot("q"), "at_q"), _times(Slot("k"), "at_k")
_SCORES: Pattern = _call("matmul", *_FACTORS, transpose_a=False, activation=None)
_SCORES = Either((_call("mul", _SCORES, Number(name="scale")), _call("div", _SCORES, Number(name="over")), _SCORES))
_CAPPED = _call("mul", _call("tanh", _call("div", _SCORES, Number(name="cap"))), Number(name="cap"))
_SCORES = Either((_CAPPED, _SCORES))
_HIDDEN = _call("where", Slot("mask"), _SCORES, Number(-math.inf))
_MASKED = _call("add", _SCORES, Slot("mask"))
# Swin adds a bias to the scores, then each window's mask, which has an axis of length 1 for the images.
_WINDOWS = _call("reshape", _call("add", _call("reshape", _MASKED), Slot("windows")))
_SCORES = Either((_HIDDEN, _MASKED, _WINDOWS, _SCORES))
_SOFTMAX = Call("softmax", (_SCORES,), lambda n: n.attrs["axis"] == n.output.ndim - 1 == 3)
_BEST = Call("max", (_SCORES,), lambda n: n.attrs["axes"] == (n.inputs[0].ndim - 1,) and n.attrs["keepdims"])
# Zeros in wholly masked rows, as in the attention op: such rows are found by their NaN or by their largest score.
_GUARDED = Either((
    _call("where", _call("isnan", _SOFTMAX), Number(0.0), _SOFTMAX),
    _call("where", _call("equal", _BEST, Number(-math.inf)), Number(0.0), _SOFTMAX),
))  # fmt: skip


def _attention_of(rows: Pattern) -> Call:
    return _call("matmul", rows, Slot("v"), transpose_a=False, transpose_b=False, activation=None)


def _attention(guarded: bool) -> Rule:
    def rule(new: Rewriter, m: Match) -> Found | None:
        q, k, v = (m.slots[name] for name in "qkv")
        mask, numbers = m.slots.get("mask"), m.numbers
        if any(t.ndim != 4 or not t.dtype.is_float or t.dtype != q.dtype for t in (q, k, v)):
            return None
        if any(value <= 0 for value in numbers.values() if math.isfinite(value)) or not (q.size and k.size):
            return None
        scores = next(n for n in m.nodes[1:] if n.op.contracts)
        if mask is not None and (mask.ndim > 4 or (mask.dtype != q.dtype and mask.dtype.kind != "b")):
            return None
        if scores.output.shape != m.nodes[0].inputs[0].shape:  # the mask broadcast the scores to more
            return None
        if "windows" in m.slots:
            mask = _both(new, mask, m.slots["windows"], scores.output.shape)
            if mask is None:
                return None
        if not scores.attrs["transpose_b"]:
            k = _transposed(new, k)
        if not (q.shape[:2] == k.shape[:2] == v.shape[:2] and k.shape == v.shape and q.shape[3] == k.shape[3]):
            return None
        few, fewer = _ungrouped(k), _ungrouped(v)
        if few is not None and fewer is not None and few.shape == fewer.shape:
            k, v = few, fewer
        scale = math.prod(numbers.get(name, 1.0) for name in ("scale", "at_q", "at_k")) / numbers.get("over", 1.0)
        attrs = {"scale": scale, "causal": False, "window": None, "softcap": numbers.get("cap")}
        operands = (q, k, v) if mask is None else (q, k, v, mask)
        hides = mask is not None and not guarded and _may_hide(mask)
        return Found("attention", operands, attrs, mask if hides else None)

    return rule


def _both(new: Rewriter, mask: Tensor | None, windows: Tensor, shape: Sequence[int]) -> Tensor | None:
    """The sum of two masks that are added to scores of this shape; the second may have leading axes of length 1."""
    lead = max(0, windows.ndim - len(shape))
    if mask is None or windows.dtype != mask.dtype or not mask.dtype.is_float or set(windows.shape[:lead]) - {1}:
        return None
    if lead:
        windows = new.add("reshape", (windows,), {"shape": windows.shape[lead:]})[0]
    if np.broadcast_shapes(mask.shape, windows.shape, tuple(shape)) != tuple(shape):
        return None
    return new.add("add", (mask, windows), {})[0]


def _may_hide(mask: Tensor) -> bool:
    """Whether a mask may hide all keys from a query. It cannot if its value is known and hides none, nor if it is
    computed from finite numbers, such as 0 and 1 times the least float (that the product may overflow is ignored)."""
    value = constant(mask)
    if value is not None:
        hidden = ~value if value.dtype.kind == "b" else value == -math.inf
        return bool(np.atleast_1d(hidden).all(-1).any())
    if not mask.dtype.is_float:
        return mask.dtype.kind == "b"
    op, inputs = mask.node.op, mask.node.inputs
    if op.converts:
        return inputs[0].dtype.is_float and _may_hide(inputs[0])
    if op.moves_data:
        return _may_hide(inputs[0])
    finite = {get_op(name) for name in ("add", "sub", "mul", "where")}
    return op not in finite or any(_may_hide(t) for t in inputs if t.dtype.is_float)


def _nan_where_hidden(new: Rewriter, result: Tensor, mask: Tensor) -> Tensor:
    """The output of attention with NaN in rows that see no key, where the op gives zeros and a softmax 0 / 0."""

    def scalar(value: float, like: Tensor) -> Tensor:
        return new.add("constant", (), {"value": np.asarray(value, like.dtype.np)})[0]

    if mask.dtype.kind == "b":
        mask = new.add("where", (mask, scalar(0.0, result), scalar(-math.inf, result)), {})[0]
    best = new.add("max", (mask,), {"axes": (mask.ndim - 1,), "keepdims": True})[0]
    seen = new.add("greater", (best, scalar(-math.inf, mask)), {})[0]
    return new.add("where", (seen, result, scalar(math.nan, result)), {})[0]


def _ungrouped(t: Tensor) -> Tensor | None:
    """The heads that t repeats, each equally often and consecutively (grouped-query attention), else None."""
    wide = t
    while wide.node.op.reshapes:
        wide = wide.node.inputs[0]
    if not wide.node.op.broadcasts or wide.ndim != 5 or t.ndim != 4:
        return None
    one = wide.node.inputs[0]
    batch, heads, times, length, size = wide.shape
    if one.shape != (batch, heads, 1, length, size) or t.shape != (batch, heads * times, length, size):
        return None
    held = one.node.inputs[0] if one.node.op.reshapes else one
    return held if held.shape == (batch, heads, length, size) else None


def _transposed(new: Rewriter, t: Tensor) -> Tensor:
    """t with its last two axes exchanged; if t is a transposition, its source where that fits."""
    perm = (*range(t.ndim - 2), t.ndim - 1, t.ndim - 2)
    flat = t.node.inputs[0] if t.node.op.reshapes else t
    if t.ndim == 4 and flat.node.attrs.get("perm") == (0, 2, 1):
        rows, wanted = flat.node.inputs[0], tuple(t.shape[i] for i in perm)
        if rows.shape[1:] == wanted[2:]:  # torch exports a 4-D transposition as a 3-D one
            return new.add("reshape", (rows,), {"shape": wanted})[0]
    inner = t.node.attrs.get("perm")
    if inner is not None:
        perm = tuple(int(inner[i]) for i in perm)
        t = t.node.inputs[0]
    return t if perm == tuple(np.arange(t.ndim)) else new.add("transpose", (t,), {"perm": perm})[0]


# -- products with packed weights: the dequantized weight, which others may read too, is no part of the match


def _dequantized(t: Tensor) -> bool:
    return t.node.op is get_op("dequantize")


def _turned(t: Tensor) -> bool:
    """Whether t is a dequantized matrix, transposed."""
    perm = t.node.attrs.get("perm")
    return perm == (1, 0) and _dequantized(t.node.inputs[0])


def _packed(new: Rewriter, m: Match) -> Found | None:
    x, w = m.slots["x"], m.slots["w"]
    turned = m.nodes[0].attrs["transpose_b"]
    if _turned(w):
        turned, w = not turned, w.node.inputs[0]
    if w.ndim != 2:
        return None
    q = w.node.inputs[0]
    return Found("packed_matmul", (x, q), {"format": q.dtype, "transpose_q": turned})


def _packed_experts(new: Rewriter, m: Match) -> Found | None:
    x, q = m.slots["x"], m.slots["w"].node.inputs[0]
    attrs = {"format": q.dtype, "transpose_q": m.nodes[0].attrs["transpose_w"]}
    return Found("grouped_packed_matmul", (x, q, m.slots["sizes"]), attrs)


_PACKED = _call("matmul", _X, Slot("w", lambda t: _dequantized(t) or _turned(t)), transpose_a=False, activation=None)
_EXPERTS = _call("grouped_matmul", _X, Slot("w", _dequantized), Slot("sizes"))

# Ops that a rule or an earlier pass makes: patterns with these are tried where the graph had none of them.
_MAKES = frozenset({"rms_norm"})
_RULES: dict[str, tuple[tuple[Pattern, Rule], ...]] = {
    "add": ((_LAYER, _norm("layer_norm", "gamma", "beta")),),
    "grouped_matmul": ((_EXPERTS, _packed_experts),),
    "matmul": (
        (_PACKED, _packed),
        (_attention_of(_SOFTMAX), _attention(guarded=False)),
        (_attention_of(_GUARDED), _attention(guarded=True)),
    ),
    "mul": (
        (_gelu_of(_call("erf", _SCALED)), _gelu("none")),
        (_gelu_of(_call("tanh", _call("mul", Number(GELU_TANH_SCALE), _BENT))), _gelu("tanh")),
        (_RMS, _norm("rms_norm", "gamma")),
    ),
}
