"""What exporters write out in small operators, put together again: a product's bias and activation, gelu, attention,
RMS norms, a convolution's normalization.

Each rule gives what the operators gave, rounded less often. Rules look at the graph built so far, node by node; what
they leave unused is dropped with everything else that no result needs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from rlx.formats.onnx.elements import Array
from rlx.ir import Graph, Node, Rewriter, Tensor, rebuild
from rlx.passes import change_bodies

_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "silu", "tanh": "tanh", "sigmoid": "sigmoid"}


def put_together(graph: Graph) -> Graph:
    """The graph with every pattern that a rule knows as one op, in the bodies of control ops too."""
    graph = change_bodies(graph, lambda name, body: put_together(body))
    return rebuild(graph, _Rules(graph).rewrite)


class _Rules:
    """One pass over a graph. `_uses` counts how often the original of a new tensor is read."""

    def __init__(self, graph: Graph) -> None:
        self._old: Counter[int] = Counter(t.id for n in graph.nodes for t in n.inputs)
        self._old.update(t.id for t in graph.results())
        self._uses: dict[int, int] = {}

    def rewrite(self, new: Rewriter, node: Node, inputs: tuple[Tensor, ...]) -> Sequence[Tensor] | None:
        for old, fresh in zip(node.inputs, inputs, strict=True):
            self._uses[fresh.id] = self._old[old.id]
        name = node.op.name
        made = None
        if name == "add":
            made = self._bias(new, inputs)
        elif name == "mul":
            made = self._gelu(new, inputs)
            if made is None:
                made = self._rms_norm(new, inputs)
        elif name == "matmul" and len(inputs) == 2:
            made = self._attention(new, node, inputs)
        elif name == "batch_norm":
            made = self._normalized(new, node, inputs)
        if made is None and (name in _ACTIVATIONS):
            made = self._activation(new, node, inputs)
        return None if made is None else (made,)

    def _once(self, t: Tensor, op: str) -> bool:
        """Whether t is the result of `op` and read by what is at hand alone."""
        return self._used(t, op, 1)

    def _used(self, t: Tensor, op: str, times: int) -> bool:
        return t.node.op.name == op and self._uses.get(t.id, 1) == times

    def _bias(self, new: Rewriter, inputs: Sequence[Tensor]) -> Tensor | None:
        """A product plus a vector."""
        for product, bias in (inputs, inputs[::-1]):
            if not self._once(product, "matmul") or not product.dtype.is_float or product.dtype != bias.dtype:
                continue
            node = product.node
            plain = len(node.inputs) == 2 and node.attrs["activation"] is None
            if plain and bias.shape == product.shape[-1:]:
                return new.add("matmul", (*node.inputs, bias), node.attrs)[0]
        return None

    def _activation(self, new: Rewriter, node: Node, inputs: Sequence[Tensor]) -> Tensor | None:
        """A product with a bias, and what is done to it."""
        (x,) = inputs
        if not self._once(x, "matmul") or x.node.attrs["activation"] is not None or not x.dtype.is_float:
            return None
        word = _ACTIVATIONS[node.op.name]
        if node.attrs.get("approximate") == "tanh":
            word = "gelu_tanh"
        return new.add("matmul", x.node.inputs, {**x.node.attrs, "activation": word})[0]

    def _normalized(self, new: Rewriter, node: Node, inputs: Sequence[Tensor]) -> Tensor | None:
        """A convolution and the batch norm of its result, all weights known: with s = gamma / sqrt(var + eps) the
        convolution by w · s plus (bias - mean) · s + beta. Worked out in f64 and rounded once."""
        x = inputs[0]
        if not self._once(x, "conv") or x.node.attrs["activation"] is not None or x.dtype.is_half:
            return None
        image, weight, *bias = x.node.inputs
        values = [_constant(t) for t in (weight, *inputs[1:], *bias)]
        if any(v is None for v in values):
            return None
        w, gamma, beta, mean, var, *b = (np.asarray(v, np.float64) for v in values)
        with np.errstate(all="ignore"):
            scale = gamma.reshape(-1) / np.sqrt(var.reshape(-1) + node.attrs["eps"])
            shift = ((b[0] if b else 0.0) - mean.reshape(-1)) * scale + beta.reshape(-1)
            made = [v.astype(x.dtype.np) for v in (w * scale.reshape(-1, *(1,) * (w.ndim - 1)), shift)]
        if not all(np.isfinite(v).all() for v in made):
            return None
        folded = []
        for value in made:  # without a name: they are other values than the initializer's
            value.flags.writeable = False
            folded.append(new.add("constant", (), {"value": value})[0])
        return new.add("conv", (image, *folded), x.node.attrs)[0]

    def _gelu(self, new: Rewriter, inputs: Sequence[Tensor]) -> Tensor | None:
        """½ · x · (1 + erf(x / √2)), its factors in any order."""
        factors: list[Tensor] = []
        stack = list(inputs)
        while stack and len(factors) < 4:
            t = stack.pop()
            if self._once(t, "mul"):
                stack.extend(t.node.inputs)
            else:
                factors.append(t)
        if len(factors) != 3 or stack:
            return None
        halves = [t for t in factors if _close(t, 0.5)]
        sums = [t for t in factors if t.node.op.name == "add"]
        for total in sums:
            rest = [t for t in factors if t is not total and not any(t is h for h in halves)]
            parts = list(total.node.inputs)
            ones = [t for t in parts if _close(t, 1.0)]
            erfs = [t for t in parts if t.node.op.name == "erf"]
            if len(halves) == len(ones) == len(erfs) == len(rest) == 1 and _scaled(
                erfs[0].node.inputs[0], rest[0]
            ):
                made = new.add("gelu", (rest[0],), {"approximate": "none"})[0]
                again = (
                    self._activation(new, made.node, (rest[0],)) if self._uses.get(rest[0].id) == 2 else None
                )
                return made if again is None else again
        return None

    def _rms_norm(self, new: Rewriter, inputs: Sequence[Tensor]) -> Tensor | None:
        """x / √(mean x² + eps) · gamma over the last axis."""
        for scaled, gamma in (inputs, inputs[::-1]):
            for x, eps in self._over_rms(scaled):
                if gamma.shape == x.shape[-1:] and gamma.dtype == x.dtype and x.dtype.is_float:
                    return new.add("rms_norm", (x, gamma), {"eps": eps})[0]
        return None

    def _over_rms(self, t: Tensor) -> list[tuple[Tensor, float]]:
        """x and eps where t is x / √(mean x² + eps), or x times the reciprocal of the root."""
        found = []
        for x, root in self._quotients(t):
            if root.node.op.name == "sqrt" and root.node.inputs[0].node.op.name == "add":
                a, b = root.node.inputs[0].node.inputs
                for mean, eps in ((a, b), (b, a)):
                    value = _scalar(eps)
                    if value is not None and value >= 0 and _mean_square(mean, x):
                        found.append((x, value))
        return found

    def _quotients(self, t: Tensor) -> list[tuple[Tensor, Tensor]]:
        """What t may be the quotient of."""
        if self._once(t, "div"):
            return [(t.node.inputs[0], t.node.inputs[1])]
        found = []
        if self._once(t, "mul"):
            for x, factor in (t.node.inputs, t.node.inputs[::-1]):
                if factor.node.op.name == "reciprocal":
                    found.append((x, factor.node.inputs[0]))
                elif factor.node.op.name == "div" and _close(factor.node.inputs[0], 1.0):
                    found.append((x, factor.node.inputs[1]))
        return found

    def _attention(self, new: Rewriter, node: Node, inputs: Sequence[Tensor]) -> Tensor | None:
        """softmax(q · kᵀ · scale + mask) · v over (batch, heads, length, size), the scale anywhere."""
        (p, uses), v = self._unguarded(inputs[0]), inputs[1]
        guarded = p is not inputs[0]
        if node.attrs["transpose_a"] or node.attrs["transpose_b"] or node.attrs["activation"] is not None:
            return None
        if p is None or p.node.attrs["axis"] != p.ndim - 1 or p.ndim != 4 or v.ndim != 4:
            return None
        scores, mask, scale = p.node.inputs[0], None, 1.0
        if self._used(scores, "where", uses):
            keep, seen, hidden = scores.node.inputs
            if _scalar(hidden) == -math.inf and seen.shape == scores.shape and keep.ndim <= 4:
                scores, mask, uses = seen, keep, 1
        if mask is None and self._used(scores, "add", uses):
            for a, b in (scores.node.inputs, scores.node.inputs[::-1]):
                if a.shape == scores.shape and a.node.op.name in ("matmul", "mul", "div") and b.ndim <= 4:
                    scores, mask, uses = a, b, 1
                    break
        if not self._used(scores, scores.node.op.name, uses):
            return None
        scores, cap = self._uncapped(scores)
        if self._once(scores, "mul") or self._once(scores, "div"):
            a, b = scores.node.inputs
            value = _scalar(b)
            if value and value > 0:
                scale, scores = (1 / value if scores.node.op.name == "div" else value), a
        if not self._once(scores, "matmul") or len(scores.node.inputs) != 2:
            return None
        attrs = scores.node.attrs
        q, k = scores.node.inputs
        if attrs["transpose_a"] or attrs["activation"] is not None or q.ndim != 4 or k.ndim != 4:
            return None
        (q, at_q), (k, at_k) = self._unscaled(q), self._unscaled(k)
        scale *= at_q * at_k
        if not attrs["transpose_b"]:
            k = _transposed(new, k)
        fits = q.shape[:2] == k.shape[:2] == v.shape[:2] and k.shape == v.shape and q.shape[3] == k.shape[3]
        if (
            not fits
            or len({t.dtype for t in (q, k, v)}) != 1
            or not q.dtype.is_float
            or not q.size
            or not k.size
        ):
            return None
        if mask is not None and mask.dtype != q.dtype and mask.dtype.kind != "b":
            return None
        few, fewer = _ungrouped(k), _ungrouped(v)
        if few is not None and fewer is not None and few.shape == fewer.shape:
            k, v = few, fewer
        given = (q, k, v) if mask is None else (q, k, v, mask)
        attrs = {"scale": scale, "causal": False, "window": None, "softcap": cap}
        made = new.add("attention", given, attrs)[0]
        return made if mask is None or guarded or not _may_hide(mask) else _nan_where_hidden(new, made, mask)

    def _unguarded(self, p: Tensor) -> tuple[Tensor | None, int]:
        """The softmax that p is, or is but for zeros in rows that are masked as a whole, for which attention gives
        zeros anyway: by their NaN, or by their largest score. With it, how often the scores are used there."""
        if self._once(p, "softmax"):
            return p, 1
        if not self._once(p, "where"):
            return None, 1
        test, zero, rows = p.node.inputs
        if _scalar(zero) != 0 or rows.node.op.name != "softmax":
            return None, 1
        if test.node.op.name == "isnan" and test.node.inputs[0] is rows and self._uses.get(rows.id) == 2:
            return rows, 1
        if self._once(rows, "softmax") and test.node.op.name == "equal":
            best, lowest = test.node.inputs
            whole = {"axes": (rows.node.attrs["axis"],), "keepdims": True}
            if best.node.op.name == "max" and best.node.attrs == whole and _scalar(lowest) == -math.inf:
                return (rows, 2) if best.node.inputs[0] is rows.node.inputs[0] else (None, 1)
        return None, 1

    def _uncapped(self, t: Tensor) -> tuple[Tensor, float | None]:
        """s and c where t is tanh(s / c) · c."""
        if self._once(t, "mul"):
            for a, b in (t.node.inputs, t.node.inputs[::-1]):
                cap = _scalar(b)
                inner = a.node.inputs[0] if cap and cap > 0 and self._once(a, "tanh") else None
                if (
                    cap
                    and inner is not None
                    and self._once(inner, "div")
                    and _close(inner.node.inputs[1], cap)
                ):
                    return inner.node.inputs[0], cap
        return t, None

    def _unscaled(self, t: Tensor) -> tuple[Tensor, float]:
        """t as a tensor times a positive number."""
        if self._once(t, "mul"):
            for x, factor in (t.node.inputs, t.node.inputs[::-1]):
                value = _scalar(factor)
                if value and value > 0 and x.shape == t.shape:
                    return x, value
        return t, 1.0


def _constant(t: Tensor) -> Array | None:
    """The value of a constant, reshaped or not."""
    shape = t.shape
    while t.node.op.name == "reshape":
        t = t.node.inputs[0]
    value: Array | None = t.node.attrs["value"] if t.node.op.name == "constant" else None
    return None if value is None else value.reshape(shape)


def _scalar(t: Tensor) -> float | None:
    if t.node.op.name != "constant" or t.size != 1 or not t.dtype.is_float:
        return None
    return float(t.node.attrs["value"].reshape(-1)[0])


def _close(t: Tensor, value: float) -> bool:
    found = _scalar(t)
    return found is not None and math.isclose(found, value, rel_tol=1e-3 if t.dtype.is_half else 1e-6)


def _scaled(z: Tensor, x: Tensor) -> bool:
    """Whether z is x / √2."""
    if z.node.op.name not in ("div", "mul"):
        return False
    a, b = z.node.inputs
    if z.node.op.name == "div":
        return a is x and _close(b, math.sqrt(2))
    return (a is x and _close(b, math.sqrt(0.5))) or (b is x and _close(a, math.sqrt(0.5)))


def _mean_square(t: Tensor, x: Tensor) -> bool:
    """Whether t is the mean of x² over its last axis, which stays as one."""
    node = t.node
    if node.op.name != "mean" or node.attrs["axes"] != (x.ndim - 1,) or not node.attrs["keepdims"]:
        return False
    square = node.inputs[0].node
    if square.op.name == "pow":
        return square.inputs[0] is x and _close(square.inputs[1], 2.0)
    return square.op.name == "mul" and square.inputs[0] is x and square.inputs[1] is x


def _may_hide(mask: Tensor) -> bool:
    """Whether a mask may hide all keys from a query: not where its numbers are known and do not, or are worked out of
    finite ones (as 0 and 1 times the least number; that a product of others overflows is not looked for)."""
    value = _constant(mask)
    if value is not None:
        hidden = ~value if value.dtype.kind == "b" else value == -math.inf
        return bool(np.atleast_1d(hidden).all(-1).any())
    if not mask.dtype.is_float:
        return mask.dtype.kind == "b"
    name, inputs = mask.node.op.name, mask.node.inputs
    if name == "cast":
        return inputs[0].dtype.is_float and _may_hide(inputs[0])
    if name in ("reshape", "expand", "transpose", "slice", "add", "sub", "mul", "where"):
        return any(_may_hide(t) for t in inputs[1 if name == "where" else 0 :])
    return True


def _nan_where_hidden(new: Rewriter, made: Tensor, mask: Tensor) -> Tensor:
    """What attention gave, but NaN in rows that see no key: there it gives zeros, and a softmax written out 0 / 0."""

    def scalar(value: float, like: Tensor) -> Tensor:
        return new.add("constant", (), {"value": np.asarray(value, like.dtype.np)})[0]

    if mask.dtype.kind == "b":
        mask = new.add("where", (mask, scalar(0.0, made), scalar(-math.inf, made)), {})[0]
    best = new.add("max", (mask,), {"axes": (mask.ndim - 1,), "keepdims": True})[0]
    seen = new.add("greater", (best, scalar(-math.inf, mask)), {})[0]
    return new.add("where", (seen, made, scalar(math.nan, made)), {})[0]


def _ungrouped(t: Tensor) -> Tensor | None:
    """The heads that t repeats, each as often as the others, one behind the other; None where it repeats none."""
    wide = t.node.inputs[0] if t.node.op.name == "reshape" else t
    while wide.node.op.name == "reshape":
        wide = wide.node.inputs[0]
    if wide.node.op.name != "expand" or wide.ndim != 5 or t.ndim != 4:
        return None
    one = wide.node.inputs[0]
    batch, heads, times, length, size = wide.shape
    if one.shape != (batch, heads, 1, length, size) or t.shape != (batch, heads * times, length, size):
        return None
    held = one.node.inputs[0] if one.node.op.name == "reshape" else one
    return held if held.shape == (batch, heads, length, size) else None


def _transposed(new: Rewriter, t: Tensor) -> Tensor:
    """t with its last two axes exchanged; of a transposition the source, where that is what it comes to."""
    perm = (*range(t.ndim - 2), t.ndim - 1, t.ndim - 2)
    flat = t.node.inputs[0] if t.node.op.name == "reshape" else t
    if t.ndim == 4 and flat.node.op.name == "transpose" and flat.node.attrs["perm"] == (0, 2, 1):
        rows, wanted = flat.node.inputs[0], tuple(t.shape[i] for i in perm)
        if rows.shape[1:] == wanted[2:]:  # torch exchanges the last of four axes in three
            return new.add("reshape", (rows,), {"shape": wanted})[0]
    if t.node.op.name == "transpose":
        inner = t.node.attrs["perm"]
        perm = tuple(int(inner[i]) for i in perm)
        t = t.node.inputs[0]
    return t if perm == tuple(np.arange(t.ndim)) else new.add("transpose", (t,), {"perm": perm})[0]
