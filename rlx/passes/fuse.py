"""Fusion: a matmul or conv computes the ops of its epilogue; a fusion group's elementwise nodes become a `fused` node.

f16 and bf16 values inside a group are rounded where they were stored before; a product is not rounded before its
epilogue.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence

from rlx.ir import Expr, Graph, Node, Rewriter, Tensor, TensorType, node_of, rebuild
from rlx.ir import expr as ex
from rlx.ir.expr import substitute
from rlx.ops.matmul import activation_of
from rlx.passes.fusion_groups import FusionGroup, FusionGroupFinder, port_key, source
from rlx.passes.repeats import seen, splits
from rlx.passes.rewriting import SupportOf, native_everywhere, remove_dead, use_counts
from rlx.passes.trees import explicit, literal, node_trees

_LABEL_CHARACTERS = 120  # the length of about two names as exporters write them


def fuse_epilogues(graph: Graph, support: SupportOf = native_everywhere) -> Graph:
    """Fuses a bias, and an activation, into the matmul or conv before them.

    Nothing else may read the intermediate results."""
    uses = use_counts(graph)

    def rewrite(new: Rewriter, node: Node, inputs: tuple[Tensor, ...]) -> Sequence[Tensor] | None:
        for k, x in enumerate(inputs):
            product = x.node
            axis = product.op.epilogue
            if axis is None or uses[node.inputs[k].id] != 1 or product.attrs["activation"] is not None:
                continue
            call: tuple[tuple[Tensor, ...], dict[str, object]] | None = None
            if node.op.adds and len(product.inputs) == 2 and x.type == node.outputs[0].type:
                bias = _bias(new, inputs[1 - k], x, axis)
                if bias is not None:
                    call = (*product.inputs, bias), dict(product.attrs)
            else:
                activation = activation_of(node)
                if activation is not None:
                    call = product.inputs, {**product.attrs, "activation": activation}
            if call is not None and support(node_of(product.op, [t.type for t in call[0]], call[1])) == "native":
                return new.add(product.op, *call, label=node.label or product.label)
        return None

    return remove_dead(rebuild(graph, rewrite), graph)


def _bias(new: Rewriter, t: Tensor, product: Tensor, axis: int) -> Tensor | None:
    """t as a vector, if it has one value for each index of `axis` and is of the same kind, float or integer, as the
    product."""
    t = source(t)
    axis %= product.ndim
    n, after = product.shape[axis], product.ndim - 1 - axis  # axes behind `axis`
    place = t.ndim - 1 - after
    if place < 0 or t.size != n or t.shape[place] != n or t.dtype.is_float != product.dtype.is_float:
        return None
    return t if t.shape == (n,) else new.add("reshape", (t,), {"shape": (n,)}, t.node.label)[0]


def fuse_groups(
    graph: Graph, support: SupportOf = native_everywhere, native: Collection[int] = frozenset(), halves: bool = False
) -> Graph:
    """Replaces each fusion group by one `fused` node. `native`: the ids of the first outputs of nodes that the device
    is known to run. `halves`: the device's sums in f32 can read f16 and bf16.

    A group has two or more elementwise nodes, or one that reads a broadcast or a repetition. With a repetition (see
    `repeats`) the fused node works on split axes, and reshapes before and after it move no data."""
    graph = remove_dead(graph)
    finder = FusionGroupFinder(graph, support, native, halves)
    bodies: dict[int, _Body] = {}
    trees: dict[Hashable, tuple[Expr, ...]] = {}
    chosen: dict[int, FusionGroup] = {}
    for region in finder.find():
        broadcasts = any(finder.read(t)[0] is not t for i in region.members for t in graph.nodes[i].inputs)
        if len(region.members) > 1 or broadcasts:
            body = _Body(graph, finder, region, trees)
            if body.fits and support(node_of("fused", body.types(), body.attrs)) == "native":
                bodies[region.members[0]] = body
                chosen.update(dict.fromkeys(region.members, region))
    if not bodies:
        return graph
    new = Rewriter(graph)
    for unit in finder.order(chosen):
        fused, node = bodies.get(unit[0]), graph.nodes[unit[0]]
        if fused is not None:
            new.put(fused.outputs, fused.make(new))
        elif all(map(new.placed, node.inputs)):
            new.keep(node)
        # else: a broadcast of a value that stays inside a fusion group, its only reader
    return remove_dead(new.finish(), graph)


class _Body:
    """A fusion group as the `fused` node it becomes: its inputs with their shapes, its outputs, and its trees. Groups
    that compute the same, such as those of equal layers or parameter updates, share the trees, which `known` holds."""

    def __init__(
        self, graph: Graph, finder: FusionGroupFinder, region: FusionGroup, known: dict[Hashable, tuple[Expr, ...]]
    ) -> None:
        ports, self.outputs = finder.ports(region)
        self.inputs = [x for x, _ in ports]
        self.shape = region.shape
        numbers = {port_key(x, repeat): k for k, (x, repeat) in enumerate(ports)}
        places: dict[int, int] = {}  # the number of each value that a member computes
        count = 0  # values so far, those widened for a reader included
        computed: list[tuple[tuple[Expr, ...], tuple[int | Expr, ...]]] = []
        for i in region.members:
            node = graph.nodes[i]
            args: list[int | Expr] = []
            for t in node.inputs:
                x, repeat = finder.read(t)
                key = port_key(x, repeat)
                if repeat is None and x.id in places and x.dtype == t.dtype:
                    args.append(places[x.id])
                elif repeat is None and x.id in places:
                    computed.append((explicit((ex.cast(ex.arg(0, x.dtype), t.dtype),)), (places[x.id],)))
                    args.append(count)
                    count += 1
                elif key in numbers:
                    value = ex.arg(numbers[key], x.dtype)
                    args.append(value if x.dtype == t.dtype else ex.cast(value, t.dtype))
                else:
                    number = literal(t)
                    assert number is not None
                    args.append(number)
            computed.append((explicit(node_trees(node)), tuple(args)))
            for t in node.outputs:
                places[t.id] = count
                count += 1
        written = tuple([places[t.id] for t in self.outputs])
        trees = known.get((written, *computed))
        if trees is None:
            trees = known[written, *computed] = _composed(computed, written)
        repeats = [repeat for _, repeat in ports if repeat is not None]
        split = splits(region.shape, repeats) if repeats else None
        self.fits = bool(ports) and (split is not None or not repeats)
        self.shapes = [x.shape if split is None else seen(x.shape, split, repeat) for x, repeat in ports]
        shape = region.shape if split is None else tuple(n for group in split for n in group)
        self.attrs = {"trees": trees, "shape": shape}
        members = [graph.nodes[i] for i in region.members]
        names = list(dict.fromkeys(n.label for n in members if n.label)) or [n.op.name for n in members]
        label = "+".join(names)
        self.label = label if len(label) <= _LABEL_CHARACTERS else f"{label[: _LABEL_CHARACTERS - 1]}…"

    def types(self) -> list[TensorType]:
        """The types of the inputs as the node reads them."""
        return [TensorType(shape, x.dtype) for x, shape in zip(self.inputs, self.shapes, strict=True)]

    def make(self, new: Rewriter) -> list[Tensor]:
        """Adds the node to the new graph, with reshapes around it where its axes are split."""
        pairs = zip(new.inputs(self.inputs), self.shapes, strict=True)
        inputs = [self._reshaped(new, x, shape) for x, shape in pairs]
        outputs = new.add("fused", inputs, self.attrs, self.label)
        return [self._reshaped(new, t, self.shape) for t in outputs]

    def _reshaped(self, new: Rewriter, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        return x if x.shape == shape else new.add("reshape", (x,), {"shape": shape}, self.label)[0]


def _composed(
    computed: Sequence[tuple[tuple[Expr, ...], tuple[int | Expr, ...]]], written: Sequence[int]
) -> tuple[Expr, ...]:
    """The trees of the written values, by value number. `computed` has for each node its own trees and, for each input,
    the number of a value or a tree."""
    values: list[Expr] = []
    for trees, args in computed:
        inner = [values[a] if isinstance(a, int) else a for a in args]
        values += [substitute(tree, inner) for tree in trees]
    return tuple([_tidy(values[n]) for n in written])


def _tidy(tree: Expr) -> Expr:
    """The tree without redundant casts: those to the value's own dtype, and half -> float -> the same half."""
    done: dict[Expr, Expr] = {}
    for e in ex.linearize([tree]):
        args = tuple(done[a] for a in e.args)
        rebuilt = Expr(e.prim, args, e.dtype, e.value)
        if e.prim == "cast":
            (x,) = args
            widened = x.prim == "cast" and x.args[0].dtype.is_half and x.dtype.is_float and not x.dtype.is_half
            if x.dtype == e.dtype:
                rebuilt = x
            elif widened and x.args[0].dtype == e.dtype:
                rebuilt = x.args[0]
        done[e] = rebuilt
    return done[tree]
