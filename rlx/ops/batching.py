"""Batching: a graph of one example becomes a graph of many, whose tensors have an axis of examples in front.

`batched` sweeps over the nodes of a body. A node whose inputs have no axis of examples stays as it is. Any other
follows its op's rule (`Op.batch`; this module has the rules that many ops share), broadcasts if it is elementwise, is
batched part by part if it has a decomposition, and otherwise runs once for each example, in a scan on the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from rlx.dtypes import i32
from rlx.errors import DTypeError, RlxError
from rlx.ir import Attrs, Graph, Node, Op, Tensor, TensorType, apply
from rlx.ir.body import TracedBody
from rlx.ir.graph import node_of, traced_into
from rlx.ir.op import Batch
from rlx.ops.control.functions import cond, scan, while_loop

Flags = Sequence[bool]
# By the id of a body's tensor: the tensor in the outer graph, and whether it has the axis of examples.
Known = dict[int, tuple[Tensor, bool]]


def batched(
    body: Graph, inputs: Sequence[Tensor], flags: Flags, size: int, graph: Graph
) -> tuple[list[Tensor], list[bool]]:
    """The outputs of a finished body for values of its inputs and params. `flags` says which of these have an axis of
    `size` examples in front; the second result says it of the outputs. Nodes are appended to `graph`."""
    leaves = (*body.inputs.values(), *body.params.values())
    known: Known = {leaf.id: pair for leaf, pair in zip(leaves, zip(inputs, flags, strict=True), strict=True)}
    return sweep(body, known, body.outputs.values(), size, graph)


def sweep(
    body: Graph, known: Known, outputs: Any, size: int, graph: Graph
) -> tuple[list[Tensor], list[bool]]:
    """Does what `batched` does for a body whose leaves are in `known`."""
    for node in body.nodes:
        if node.op.declared:
            continue
        pairs = [known[t.id] for t in node.inputs]
        outs, examples = batch_node(node, [t for t, _ in pairs], [b for _, b in pairs], size, graph)
        known.update((t.id, (batched_out, examples)) for t, batched_out in zip(node.outputs, outs, strict=True))
    known_outputs = [known[t.id] for t in outputs]
    return [t for t, _ in known_outputs], [b for _, b in known_outputs]


def batch_node(
    node: Node, inputs: Sequence[Tensor], flags: Flags, size: int, graph: Graph
) -> tuple[Sequence[Tensor], bool]:
    """The outputs of a node for all examples, and whether they have the axis of examples: if any input has it."""
    if not any(flags):
        return traced_into(graph).add(node.op, inputs, node.attrs, node.label), False
    for t, flag in zip(inputs, flags, strict=True):
        if flag and t.dtype.is_packed:
            raise DTypeError(
                f"vmap: an example of {t.type} would be a packed weight of its own; map over the arrays beside it and "
                "give None for it in in_axes"
            )
    if node.op.batch is not None:
        return node.op.batch(node, inputs, flags, size), True
    if node.op.elementwise:
        return _elementwise(node, inputs, flags, size), True
    return by_parts(node, inputs, flags, size), True


def how(op: Op) -> Literal["rule", "parts", "loop"]:
    """How an op is batched: by its rule, by the rules of the ops it decomposes into, or in a loop."""
    if op.batch is not None or op.elementwise:
        return "rule"
    return "loop" if op.decompose is None else "parts"


def by_parts(node: Node, inputs: Sequence[Tensor], flags: Flags, size: int) -> Sequence[Tensor]:
    """The outputs by the ops of the node's decomposition; in a loop where it has none."""
    if node.op.decompose is None:
        return loop(node, inputs, flags, size)
    graph = traced_into(inputs[0].graph)
    types = [_example(t, f) for t, f in zip(inputs, flags, strict=True)]
    body = TracedBody(node.op.name, graph, types)
    with body.tracing():
        results = node.op.decompose(body.given, node.attrs)
    outs = (results,) if isinstance(results, Tensor) else results
    if any(part.op is node.op for part in body.nodes):  # an op of fewer inputs: its rule would come back here
        return loop(node, inputs, flags, size)
    known: Known = {t.id: pair for t, pair in zip(body.given, zip(inputs, flags, strict=True), strict=True)}
    known.update((number, (outer, False)) for number, outer in body.captures())  # large constants
    tensors, examples = sweep(body, known, outs, size, graph)
    return [t if b else spread(t, size) for t, b in zip(tensors, examples, strict=True)]


def loop(node: Node, inputs: Sequence[Tensor], flags: Flags, size: int) -> Sequence[Tensor]:
    """The outputs by a scan whose steps are the node for one example."""

    def step(_: Any, rows: list[Tensor]) -> tuple[Any, list[Tensor]]:
        rest = iter(rows)
        row = [next(rest) if flag else t for t, flag in zip(inputs, flags, strict=True)]
        return None, list(rows[0].graph.add(node.op, row, node.attrs, node.label))

    result: list[Tensor] = scan(step, None, [t for t, flag in zip(inputs, flags, strict=True) if flag], size)[1]
    return result


def _example(t: Tensor, flag: bool) -> TensorType:
    return TensorType(t.shape[1:], t.dtype) if flag else t.type


def spread(t: Tensor, size: int) -> Tensor:
    """A tensor that all examples share, repeated along a new axis of `size` examples in front."""
    return apply("expand", t, shape=(size, *t.shape))


def _spread_all(inputs: Sequence[Tensor], flags: Flags, size: int) -> list[Tensor]:
    return [t if flag else spread(t, size) for t, flag in zip(inputs, flags, strict=True)]


def _ranked(t: Tensor, rank: int) -> Tensor:
    """A tensor with examples, each with leading axes of length 1 added up to `rank`."""
    more = rank - (t.ndim - 1)
    return t if more <= 0 else apply("reshape", t, shape=(t.shape[0], *(1,) * more, *t.shape[1:]))


def _add(node: Node, inputs: Sequence[Tensor], **attrs: Any) -> tuple[Tensor, ...]:
    """The node's op on other inputs, with some attributes replaced."""
    return inputs[0].graph.add(node.op, inputs, {**node.attrs, **attrs}, node.label)


def _elementwise(node: Node, inputs: Sequence[Tensor], flags: Flags, size: int) -> Sequence[Tensor]:
    """Batches an elementwise op by broadcasting. If that does not give its shape, the first input is expanded."""
    rank = node.outputs[0].ndim
    operands = [_ranked(t, rank) if flag else t for t, flag in zip(inputs, flags, strict=True)]
    wanted = (size, *node.outputs[0].shape)
    if not _fits(node, operands, node.attrs, wanted):
        operands[0] = apply("expand", operands[0], shape=wanted)
        if not _fits(node, operands, node.attrs, wanted):
            return loop(node, inputs, flags, size)
    return _add(node, operands)


def _fits(node: Node, operands: Sequence[Tensor], attrs: Attrs, wanted: tuple[int, ...]) -> bool:
    try:
        return node_of(node.op, [t.type for t in operands], attrs).outputs[0].shape == wanted
    except RlxError:
        return False


# -- rules that ops share


def along(*shared: int) -> Batch:
    """The rule of an op that takes any leading axes: attributes that number axes are raised by one.

    Inputs at the positions of `shared` (weights) take no axis of examples; if they have one, the op is batched by
    parts."""

    def rule(node: Node, inputs: Sequence[Tensor], flags: Flags, size: int) -> Sequence[Tensor]:
        if any(flags[i] for i in shared if i < len(flags)):
            return by_parts(node, inputs, flags, size)
        operands = [t if i in shared or flags[i] else spread(t, size) for i, t in enumerate(inputs)]
        attrs: dict[str, Any] = {}
        if "axis" in node.attrs:
            attrs["axis"] = node.attrs["axis"] + 1
        if "axes" in node.attrs:
            attrs["axes"] = tuple(axis + 1 for axis in node.attrs["axes"])
        return _add(node, operands, **attrs)

    return rule


def folded(*shared: int, beside: int | None = None) -> Batch:
    """The rule of an op whose axis 0 is a batch of independent rows, as in convolutions: examples are folded into it.

    `shared`: as in `along`. Inputs from `beside` on (masks, and integers that are lengths) may have one entry for all
    rows, as attention's have."""

    def rule(node: Node, inputs: Sequence[Tensor], flags: Flags, size: int) -> Sequence[Tensor]:
        if any(flags[i] for i in shared if i < len(flags)):
            return by_parts(node, inputs, flags, size)
        rank, rows = node.inputs[0].ndim, node.inputs[0].shape[0]
        operands = []
        for i, t in enumerate(inputs):
            if i in shared:
                operands.append(t)
                continue
            if beside is not None and i >= beside:
                wanted = 1 if t.dtype.is_int else rank
                if not flags[i] and (t.ndim < wanted or (wanted > 1 and t.shape[0] == 1)):
                    operands.append(t)
                    continue
                t = _ranked(t if flags[i] else spread(t, size), wanted)
                t = apply("expand", t, shape=(size, rows, *t.shape[2:]))
            elif not flags[i]:
                t = spread(t, size)
            operands.append(apply("reshape", t, shape=(t.shape[0] * t.shape[1], *t.shape[2:])))
        attrs: dict[str, Any] = {}
        if "scales" in node.attrs:  # a resize counts all axes
            if node.attrs["scales"][0] != 1.0 or node.attrs["sizes"][0] != rows:
                return loop(node, inputs, flags, size)
            attrs["sizes"] = (size * rows, *node.attrs["sizes"][1:])
        outs = _add(node, operands, **attrs)
        return [apply("reshape", t, shape=(size, t.shape[0] // size if size else old.shape[0], *t.shape[1:]))
                for t, old in zip(outs, node.outputs, strict=True)]  # fmt: skip

    return rule


def matmul(node: Node, inputs: Sequence[Tensor], flags: Flags, size: int) -> Sequence[Tensor]:
    """Products of matrices with more axes in front."""
    if any(flags[2:]):
        return by_parts(node, inputs, flags, size)
    rank = max(t.ndim for t in node.inputs[:2])
    matrices = [_ranked(t, rank) if flag else t for t, flag in zip(inputs[:2], flags, strict=False)]
    return _add(node, [*matrices, *inputs[2:]])


def reshape(node: Node, inputs: Sequence[Tensor], flags: Flags, size: int) -> Sequence[Tensor]:
    """Batches reshape and expand: the examples stand in front of the shape."""
    shape = node.attrs["shape"]
    t = _ranked(inputs[0], len(shape)) if node.op.broadcasts else inputs[0]
    return _add(node, [t], shape=(size, *shape))


def transpose(node: Node, inputs: Sequence[Tensor], flags: Flags, size: int) -> Sequence[Tensor]:
    return _add(node, inputs, perm=(0, *(axis + 1 for axis in node.attrs["perm"])))


def slices(node: Node, inputs: Sequence[Tensor], flags: Flags, size: int) -> Sequence[Tensor]:
    a = node.attrs
    return _add(node, inputs, starts=(0, *a["starts"]), stops=(size, *a["stops"]), steps=(1, *a["steps"]))


def pad(node: Node, inputs: Sequence[Tensor], flags: Flags, size: int) -> Sequence[Tensor]:
    if size == 0 or any(n == 0 for n in node.inputs[0].shape):
        return loop(node, inputs, flags, size)
    return _add(node, inputs, pads=((0, 0), *node.attrs["pads"]))


def gather(node: Node, inputs: Sequence[Tensor], flags: Flags, size: int) -> Sequence[Tensor]:
    """Examples of x alone, of indices alone, or of both: then each element's index is written out."""
    (x, indices), axis = inputs, node.attrs["axis"]
    if not flags[1]:
        return _add(node, inputs, axis=axis + 1)
    n, rank = node.inputs[1].ndim, node.outputs[0].ndim
    if not flags[0]:
        (y,) = _add(node, inputs)  # (before, examples, indices, after)
        if axis == 0:
            return (y,)
        if x.dtype.is_packed:
            raise DTypeError(
                f"vmap: rows of packed {x.type} are taken along axis {axis}, at indices that differ among examples; "
                "take them along axis 0, or dequantize first"
            )
        return (apply("transpose", y, perm=(axis, *range(axis), *range(axis + 1, rank + 1))),)
    flat = apply("reshape", indices, shape=(size, math.prod(indices.shape[1:])))
    there = _placed(flat, x.shape[:1], x.shape[1 : axis + 1], x.shape[axis + 2 :])
    y = apply("gather_elements", x, there, axis=axis + 1)
    return (apply("reshape", y, shape=(size, *node.outputs[0].shape)),) if n != 1 else (y,)


def _placed(flat: Tensor, examples: Sequence[int], before: Sequence[int], after: Sequence[int]) -> Tensor:
    """Indices of (examples, K), spread over the axes before and after that of the indices."""
    n = flat.shape[1]
    t = apply("reshape", flat, shape=(*examples, *(1,) * len(before), n, *(1,) * len(after)))
    return apply("expand", t, shape=(*examples, *before, n, *after))


def scatter(node: Node, inputs: Sequence[Tensor], flags: Flags, size: int) -> Sequence[Tensor]:
    """Batches scatter as `gather` does: with indices that all examples share, or one for each element."""
    axis, k = node.attrs["axis"], node.inputs[0].ndim
    spread_ = _spread_all(inputs, flags, size)
    if not flags[0]:
        return _add(node, [inputs[0], *spread_[1:]], axis=axis + 1)
    updates = spread_[1]
    before, after = updates.shape[1 : axis + 1], updates.shape[axis + 1 + k :]
    flat = apply("reshape", spread_[0], shape=(size, math.prod(node.inputs[0].shape)))
    rows = apply("reshape", updates, shape=(size, *before, flat.shape[1], *after))
    operands = (_placed(flat, (size,), before, after), rows, *spread_[2:])
    return (apply("scatter_elements", *operands, **{**node.attrs, "axis": axis + 1}),)


def dynamic(node: Node, inputs: Sequence[Tensor], flags: Flags, size: int) -> Sequence[Tensor]:
    """Batches dynamic_slice and dynamic_update_slice: one window for all examples; a loop where places differ."""
    *data, starts = inputs
    if flags[-1]:
        return loop(node, inputs, flags, size)
    zero = apply("cast", starts.graph.constant([0], "i32"), dtype=starts.dtype)
    starts = apply("concat", zero, starts, axis=0)
    operands = [*_spread_all(data, flags[:-1], size), starts]
    return _add(node, operands, **({"sizes": (size, *node.attrs["sizes"])} if "sizes" in node.attrs else {}))


def random_bits(node: Node, inputs: Sequence[Tensor], flags: Flags, size: int) -> Sequence[Tensor]:
    """Each example's words are those of its own key, counted from 0."""
    shape = node.attrs["shape"]
    operands = [_ranked(t, len(shape)) if flag else t for t, flag in zip(inputs, flags, strict=True)]
    return _add(node, operands, shape=(size, *shape))


def filters(node: Node, inputs: Sequence[Tensor], flags: Flags, size: int) -> Sequence[Tensor]:
    """Batches filters of rows of samples, of which there is one for all rows or one for each."""
    x, taps = inputs
    rows = node.inputs[0].shape[:-1]
    x = x if flags[0] else spread(x, size)
    if flags[1] or taps.ndim > 1:
        taps = _ranked(taps if flags[1] else spread(taps, size), len(rows) + 1)
        taps = apply("expand", taps, shape=(size, *rows, taps.shape[-1]))
    return _add(node, [x, taps])


def batch_norm(node: Node, inputs: Sequence[Tensor], flags: Flags, size: int) -> Sequence[Tensor]:
    """Merges examples and channels into one channel axis, so that each example has statistics of its own."""
    x, *statistics = _spread_all(inputs, flags, size)
    rank, (rows, channels) = x.ndim, x.shape[1:3]
    x = apply("transpose", x, perm=(1, 0, *range(2, rank)))
    x = apply("reshape", x, shape=(rows, size * channels, *x.shape[3:]))
    merged = [apply("reshape", t, shape=(size * channels, *t.shape[2:])) for t in statistics]
    y = _add(node, [x, *merged])[0]
    y = apply("reshape", y, shape=(rows, size, channels, *x.shape[2:]))
    return (apply("transpose", y, perm=(1, 0, *range(2, rank))),)


# -- control ops


def _reached(body: Graph, flags: Flags) -> list[bool]:
    """Which outputs of a body have examples, if `flags` says which of its inputs and params have."""
    leaves = (*body.inputs.values(), *body.params.values())
    known = {leaf.id: flag for leaf, flag in zip(leaves, flags, strict=True)}
    for node in body.nodes:
        if not node.op.declared:
            known.update(dict.fromkeys((t.id for t in node.outputs), any(known[t.id] for t in node.inputs)))
    return [known[t.id] for t in body.outputs.values()]


def _all_batched(
    body: Graph, inputs: Sequence[Tensor], flags: Flags, size: int, wanted: Flags | None = None
) -> list[Tensor]:
    """The outputs of a body, spread over the examples where `wanted` (None: all) says so."""
    outs, batched_flags = batched(body, inputs, flags, size, traced_into(inputs[0].graph))
    wanted = [True] * len(outs) if wanted is None else wanted
    return [spread(t, size) if w and not b else t for t, b, w in zip(outs, batched_flags, wanted, strict=True)]


def _carried(body: Graph, flags: list[bool], n: int, skip: int = 0) -> list[bool]:
    """The flags of all inputs, with those carries flagged too that get examples from any step of the loop."""
    while True:
        after = _reached(body, flags)[skip : skip + n]
        more = [a or b for a, b in zip(flags[:n], after, strict=True)]
        if more == flags[:n]:
            return flags
        flags = [*more, *flags[n:]]


def _each(pred: Tensor, like: Tensor) -> Tensor:
    """A bool for each example, of the rank of a tensor with examples."""
    return apply("reshape", pred, shape=(pred.shape[0], *(1,) * (like.ndim - 1)))


def batched_cond(node: Node, inputs: Sequence[Tensor], flags: Flags, size: int) -> Sequence[Tensor]:
    """One cond where all examples take the same branch; else both branches, and `where` chooses for each example."""
    pred, *operands = inputs
    then, other = node.attrs["then"], node.attrs["otherwise"]
    if not flags[0]:
        result: list[Tensor] = cond(
            pred,
            *((lambda *g, body=body: _all_batched(body, g, flags[1:], size)) for body in (then, other)),
            *operands,
        )
        return result
    if not operands:
        return loop(node, inputs, flags, size)
    outs = [_all_batched(body, operands, flags[1:], size) for body in (then, other)]
    return [apply("where", _each(pred, a), a, b) for a, b in zip(*outs, strict=True)]


def batched_while(node: Node, inputs: Sequence[Tensor], flags: Flags, size: int) -> Sequence[Tensor]:
    """A loop that runs until it has ended for each example; an example whose loop has ended keeps its carry."""
    body, n = node.attrs["body"], len(node.attrs["body"].inputs)
    going, start, outside = inputs[0], list(inputs[1 : 1 + n]), inputs[1 + n :]
    known = _carried(body, list(flags[1:]), n, skip=1)
    apart = flags[0] or _reached(body, known)[0]
    if apart:
        known = [*[True] * n, *known[n:]]
        going = going if flags[0] else spread(going, size)
    start = [spread(t, size) if k and not f else t for t, k, f in zip(start, known, flags[1:], strict=False)]

    def step(at: Any) -> Any:
        on, carry = at
        again, *stepped = _all_batched(body, (*carry, *outside), known, size, [apart, *known[:n]])
        if apart:
            stepped = [apply("where", _each(on, t), t, old) for t, old in zip(stepped, carry, strict=True)]
            again = apply("logical_and", on, again)
        return again, stepped

    def more(at: Any) -> Tensor:
        return _any(at[0]) if apart else at[0]

    carried = while_loop(more, step, (going, start), max_steps=node.attrs["max_steps"])[1]
    return [t if k else spread(t, size) for t, k in zip(carried, known, strict=False)]


def _any(flags: Tensor) -> Tensor:
    return apply("not_equal", apply("sum", apply("cast", flags, dtype=i32), axes=(0,), keepdims=False), 0)


def batched_scan(node: Node, inputs: Sequence[Tensor], flags: Flags, size: int) -> Sequence[Tensor]:
    """A scan whose carries and rows have the examples' axis."""
    body, n, count = node.attrs["body"], node.attrs["carries"], len(node.attrs["body"].inputs)
    known = _carried(body, list(flags), n)
    start = [spread(t, size) if k and not f else t for t, k, f in zip(inputs[:n], known, flags, strict=False)]
    rows = [_swapped(t) if f else t for t, f in zip(inputs[n:count], flags[n:count], strict=True)]
    outside = inputs[count:]
    wanted = [*known[:n], *[True] * (len(body.outputs) - n)]

    def step(carry: list[Tensor], x: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        outs = _all_batched(body, (*carry, *x, *outside), known, size, wanted)
        return outs[:n], outs[n:]

    ends, ys = scan(step, start, rows, node.attrs["length"], node.attrs["reverse"])
    return [
        *(t if k else spread(t, size) for t, k in zip(ends, known, strict=False)),
        *(_swapped(y) for y in ys),
    ]


def _swapped(t: Tensor) -> Tensor:
    """The first two axes, of steps and of examples, exchanged."""
    return apply("transpose", t, perm=(1, 0, *range(2, t.ndim)))
