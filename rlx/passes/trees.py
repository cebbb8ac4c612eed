"""Expression trees of elementwise nodes in a form that composes: f16 and bf16 computed in f32, roundings explicit."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

from rlx.dtypes import DType, f32
from rlx.ir import Attrs, Expr, Node, Op, Tensor
from rlx.ir import expr as ex
from rlx.ir.expr import linearize
from rlx.passes.attributes import attrs_key

_KEPT = 1 << 12  # trees whose derived data is cached; a network has a few hundred

# Cheap enough to be computed again for every element of a larger shape: no division, root or transcendental function.
# "index" must not be among them: over a larger shape it has other values.
_CHEAP = frozenset({"arg", "lit", "cast", "neg", "abs", "not", "add", "sub", "mul", "max", "min", "and", "or", "xor",
                    "eq", "ne", "lt", "le", "gt", "ge", "select"})  # fmt: skip


def node_trees(node: Node) -> tuple[Expr, ...]:
    """One tree for each output; argument i is the node's input i. Nodes of one op and one set of dtypes share it."""
    if "trees" in node.attrs:
        trees: tuple[Expr, ...] = tuple(node.attrs["trees"])
        return trees
    attrs = _Attributes(node.attrs)
    return _tree_of(node.op, tuple([t.dtype for t in node.inputs]), node.outputs[0].dtype, attrs)


class _Attributes:
    """Attributes that are compared by their key."""

    __slots__ = ("attrs", "key")

    def __init__(self, attrs: Attrs) -> None:
        self.attrs, self.key = attrs, attrs_key(attrs) if attrs else ()

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Attributes) and self.key == other.key


@functools.lru_cache(_KEPT)
def _tree_of(op: Op, inputs: tuple[DType, ...], output: DType, attrs: _Attributes) -> tuple[Expr, ...]:
    assert op.expr is not None
    args = [ex.arg(i, dtype) for i, dtype in enumerate(inputs)]
    return (ex.cast(op.expr(args, attrs.attrs), output),)


def explicit(trees: Sequence[Expr]) -> tuple[Expr, ...]:
    """The trees with every f16 and bf16 value held in f32, and the rounding of storing it written as casts.

    A tree alone is rounded where it is stored; inside a larger tree there is no store, so casts must round. Roots
    keep their dtype.
    """
    return _explicit(tuple(trees))


@functools.lru_cache(_KEPT)
def _explicit(trees: tuple[Expr, ...]) -> tuple[Expr, ...]:
    done: dict[Expr, Expr] = {}
    for e in linearize(trees):
        args = tuple(done[a] for a in e.args)
        if not e.dtype.is_half:
            done[e] = Expr(e.prim, args, e.dtype, e.value) if e.prim != "cast" else ex.cast(args[0], e.dtype)
        elif e.prim == "arg":
            done[e] = Expr("cast", (e,), f32)
        elif e.prim == "lit":
            done[e] = ex.lit(e.value if e.value is not None else 0, f32)
        elif e.prim == "cast":
            done[e] = Expr("cast", (_rounded(args[0], e),), f32)
        else:
            done[e] = Expr(e.prim, args, f32, e.value)
    return tuple(_rounded(done[t], t) if t.dtype.is_half else done[t] for t in trees)


def _rounded(value: Expr, like: Expr) -> Expr:
    """value cast to like's dtype; if value was just widened from that dtype, the value before the widening."""
    if value.prim == "cast" and value.args[0].dtype == like.dtype:
        return value.args[0]
    return Expr("cast", (value,), like.dtype)


@functools.lru_cache(_KEPT)
def cost(trees: tuple[Expr, ...]) -> int:
    """The number of distinct nodes that are computed; arguments and literals are free."""
    return sum(e.prim not in ("arg", "lit") for e in linearize(trees))


@functools.lru_cache(_KEPT)
def spread(tree: Expr) -> tuple[int, Mapping[int, int]]:
    """The tree's size with shared parts counted at each use, and the number of each argument's occurrences in it."""
    sizes: dict[Expr, tuple[int, dict[int, int]]] = {}
    for e in linearize([tree]):
        size, uses = 1, {e.value: 1} if e.prim == "arg" and isinstance(e.value, int) else {}
        for a in e.args:
            size += sizes[a][0]
            for k, n in sizes[a][1].items():
                uses[k] = uses.get(k, 0) + n
        sizes[e] = size, uses
    return sizes[tree]


@functools.lru_cache(_KEPT)
def cheap(trees: tuple[Expr, ...]) -> bool:
    """Whether computing the trees anew for each element costs less than reading their values."""
    return cost(trees) <= 4 and all(e.prim in _CHEAP for e in linearize(trees))


def literal(t: Tensor) -> Expr | None:
    """The literal that stands for a constant of one element, or for a broadcast of one; None for anything else."""
    while t.node.op.moves_data:
        t = t.node.inputs[0]
    if not t.node.op.is_constant or t.size != 1:
        return None
    element = t.node.attrs["value"].reshape(-1)[0]
    value = float(element) if t.dtype.is_float else element.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None  # infinities and NaN are written differently in each language, so they are read from memory
    return ex.lit(value, t.dtype)
