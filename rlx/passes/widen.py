"""widen: the uniform f32 layout. f16, bf16, bool, u8 and i8 values are held as f32, rounded and wrapped as before."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from rlx.dtypes import DType, bool_, f32, i32
from rlx.errors import RlxError
from rlx.ir import Expr, Graph, Leaf, Node, Rewriter, Tensor, bodies, inline
from rlx.ir import expr as ex
from rlx.ir.body import map_bodies
from rlx.ir.expr import substitute
from rlx.ir.types import TensorType
from rlx.passes.rewriting import SupportOf, parts_of
from rlx.passes.trees import explicit, node_trees


def small(dtype: DType) -> bool:
    """Whether the layout holds the dtype as f32."""
    return not dtype.is_packed and dtype.itemsize < 4


def widen(graph: Graph, computed: SupportOf | None = None) -> Graph:
    """The graph with every tensor of a small dtype held in f32.

    `computed` says which ops also compute in f32 or i32, for a device that has few kernels of small dtypes.

    Inputs and outputs keep names and shapes; the caller converts at the boundary (the given graph has their types).
    Params and states live in stores of their own and keep their dtype: a cast follows each, and a cast precedes each
    new value of a state. An op without a rule here runs in its own dtypes between casts; where `computed`, it runs in
    f32 or i32, and its results are rounded or wrapped. Bodies of control ops are widened too, except for their
    captures, which are params of the body, and predicates. Where an op can do neither, and the device has no kernel for
    its own dtypes, the ops that it decomposes into are widened in its place.
    """
    new = Rewriter(graph)
    for node in graph.nodes:
        touched = bool(bodies(node)) or any(small(t.dtype) for t in (*node.inputs, *node.outputs))
        if not touched:
            new.keep(node)
        elif node.op.leaf:
            new.put(node.outputs, (_leaf(new, node),))
        else:
            new.put(node.outputs, _node(new, node, new.inputs(node.inputs), computed))
    result = new.finish()
    for name, t in graph.updates.items():
        state, value = result.states[name], result.updates[name]
        if t is graph.states[name]:
            result.updates[name] = state
        elif value.dtype != state.dtype:
            result.updates[name] = _cast(new, value, state.dtype, name)
    return result


def _leaf(new: Rewriter, node: Node) -> Tensor:
    if node.op.is_constant:
        return new.graph.constant(np.asarray(node.attrs["value"]).astype(np.float32), f32)
    if node.op.leaf is Leaf.INPUT:
        return new.graph.input(node.attrs["name"], node.attrs["shape"], f32)
    new.keep(node)
    return _cast(new, node.output, f32, node.label)


def _cast(new: Rewriter, x: Tensor, dtype: DType, label: str) -> Tensor:
    return new.add("cast", (x,), {"dtype": dtype}, label)[0]


def _node(new: Rewriter, node: Node, inputs: Sequence[Tensor], computed: SupportOf | None) -> Sequence[Tensor]:
    if bodies(node):
        return _control(new, node, inputs, computed)
    if node.op.elementwise:
        return _elementwise(new, node, inputs)
    if node.op.moves_data or node.op.picks:  # f32 holds every value of the small dtypes in the same order
        return new.add(node.op, inputs, node.attrs, node.label)
    if node.op.rounds_once and _rounds(node):
        mask = _mask(node)
        if mask is not None and node.inputs[mask].dtype.kind == "b":
            inputs = (*inputs[:mask], _additive(new, inputs[mask], node.label))
        return [_rounded(new, t, old, node) for t, old in _pairs(new, node, inputs)]
    if node.op.joins and node.outputs[0].dtype == i32 and not node.inputs[0].dtype.is_float:  # sums, products
        wide = [_cast(new, x, i32, node.label) if small(old.dtype) else x for x, old in _zip(inputs, node)]
        return new.add(node.op, wide, node.attrs, node.label)
    if computed is not None:
        if (result := _computed(new, node, inputs)) is not None:
            return result
        if computed(node) != "native" and (body := parts_of(node)) is not None:
            return inline(widen(body, computed), new, inputs, node.label)
    typed = [_cast(new, x, old.dtype, node.label) if small(old.dtype) else x for x, old in _zip(inputs, node)]
    result = new.add(node.op, typed, node.attrs, node.label)
    return [_cast(new, t, f32, node.label) if small(t.dtype) else t for t in result]


def _computed(new: Rewriter, node: Node, inputs: Sequence[Tensor]) -> Sequence[Tensor] | None:
    """The op over f32 where its own dtypes are small floats, over i32 where they are small integers or bools; None if
    its outputs would then not be of these dtypes."""
    dtypes = [x.dtype if x.dtype == old.dtype or old.dtype.is_float else i32 for x, old in _zip(inputs, node)]
    mask = node.op.mask
    if mask is not None and mask < len(dtypes) and node.inputs[mask].dtype == bool_:
        dtypes[mask] = f32
    wanted = [t.dtype if not small(t.dtype) else f32 if t.dtype.is_float else i32 for t in node.outputs]
    types = [TensorType(t.shape, dtype) for t, dtype in zip(node.inputs, dtypes, strict=True)]
    try:
        inferred = node.op.types(types, node.attrs)
    except RlxError:
        return None
    if [t.dtype for t in inferred] != wanted:
        return None
    wide = [
        _additive(new, x, node.label) if k == mask and old.dtype == bool_
        else _cast(new, x, dtype, node.label) if x.dtype != dtype else x
        for k, ((x, old), dtype) in enumerate(zip(_zip(inputs, node), dtypes, strict=True))
    ]  # fmt: skip
    results = new.add(node.op, wide, node.attrs, node.label)
    return [_rounded(new, t, old, node) for t, old in zip(results, node.outputs, strict=True)]


def _control(
    new: Rewriter, node: Node, inputs: Sequence[Tensor], computed: SupportOf | None
) -> Sequence[Tensor]:
    """The node over widened bodies. Values for the bodies' inputs are held in f32; the predicate and the captures are
    passed in their own dtypes."""
    held = len(next(iter(bodies(node).values())).inputs)
    assert node.op.control is not None
    first, loops = int(node.op.control.predicate), node.op.control.loops
    operands = [
        _cast(new, x, old.dtype, node.label) if x.dtype != old.dtype and not first <= k < first + held else x
        for k, (x, old) in enumerate(_zip(inputs, node))
    ]
    attrs = map_bodies(node.attrs, lambda body: _body(body, loops, computed))
    return new.add(node.op, operands, attrs, node.label)


def _body(body: Graph, loop: bool, computed: SupportOf | None) -> Graph:
    """A widened body; the first output of a while_loop's body is its predicate, which becomes a bool again."""
    result = widen(body, computed)
    if loop:
        new = Rewriter(result)
        for node in result.nodes:
            new.keep(node)
        predicate = _cast(new, result.outputs["y0"], bool_, "")
        result = new.finish()
        result.outputs["y0"] = predicate
    return result


def _zip(inputs: Sequence[Tensor], node: Node) -> list[tuple[Tensor, Tensor]]:
    return list(zip(inputs, node.inputs, strict=True))


def _rounds(node: Node) -> bool:
    """Whether all operands except a mask are floats, so that computing in f32 and rounding gives the op's result."""
    plain = node.inputs[: _mask(node)]
    return all(t.dtype.is_float for t in (*plain, *node.outputs))


def _mask(node: Node) -> int | None:
    """The index of the mask, if the node has one as its last input."""
    return node.op.mask if node.op.mask == len(node.inputs) - 1 else None


def _pairs(new: Rewriter, node: Node, inputs: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    return list(zip(new.add(node.op, inputs, node.attrs, node.label), node.outputs, strict=True))


def _rounded(new: Rewriter, x: Tensor, old: Tensor, node: Node) -> Tensor:
    """x rounded to old's dtype and held in f32."""
    if not small(old.dtype):
        return x
    tree = Expr("cast", (Expr("cast", (ex.arg(0, x.dtype),), old.dtype),), f32)
    return new.add("fused", (x,), {"trees": (tree,), "shape": old.shape}, node.label)[0]


def _additive(new: Rewriter, mask: Tensor, label: str) -> Tensor:
    """A mask of 0 and 1 as a float to add: 0 keeps a score, -infinity hides it."""
    hidden = new.graph.constant(-math.inf, f32)
    tree = ex.call("select", ex.call("ne", ex.arg(0, f32), 0.0), ex.lit(0.0, f32), ex.arg(1, f32))
    return new.add("fused", (mask, hidden), {"trees": (tree,), "shape": mask.shape}, label)[0]


def _elementwise(new: Rewriter, node: Node, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """The node's trees between conversions from and to f32; an output that equals an input needs no node."""
    load: list[Expr] = []
    for k, (x, old) in enumerate(_zip(inputs, node)):
        load.append(ex.arg(k, x.dtype) if x.dtype == old.dtype else ex.cast(ex.arg(k, x.dtype), old.dtype))
    stored = {k: t.dtype for k, t in enumerate(node.inputs) if small(t.dtype)}
    trees = [_held(substitute(tree, load), stored) for tree in explicit(node_trees(node))]
    shape = node.outputs[0].shape
    if all(t.prim == "arg" and inputs[_number(t)].shape == shape for t in trees):
        return [inputs[_number(t)] for t in trees]
    return new.add("fused", inputs, {"trees": tuple(trees), "shape": shape}, node.label)


def _number(e: Expr) -> int:
    assert isinstance(e.value, int)
    return e.value


def _held(tree: Expr, stored: Mapping[int, DType]) -> Expr:
    """The tree with values held in f32 if their dtype is small. `stored` names the arguments that already hold values
    of a small dtype, which need not be rounded to it again."""
    out = ex.cast(tree, f32) if small(tree.dtype) else tree
    done: dict[Expr, Expr] = {}
    for e in ex.linearize([out]):
        args = tuple(done[a] for a in e.args)
        rebuilt = Expr(e.prim, args, e.dtype, e.value)
        if e.prim == "cast" and e.dtype == f32 and args[0].prim == "cast":
            (held,), dtype = args[0].args, args[0].dtype
            if held.prim == "arg" and held.dtype == f32 and stored.get(_number(held)) == dtype:
                rebuilt = held
        done[e] = rebuilt
    return done[out]
