"""Padded programs: a graph traced at a bucket's size, made to serve every shorter length.

The analysis needs no symbolic shapes. It compares the graph of the bucket's size with graphs that the same function
gives for other lengths: where shapes differ, an axis is padded; where constants differ, each length gives its own.
Rules (`rules`) say for each op how padding is handled: independent rows need nothing, ops that combine elements along a
padded axis, such as sums, get a mask, and the rest is refused. Before a program runs at some length for the first time,
the graph of just that length is compared with it as well (`Padded.fit`), so that nothing rests on a guess of how a
function's shapes depend on its lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.dtypes import DType, i32
from rlx.ir import Graph, Node, Rewriter, Tensor
from rlx.ir.checks import is_index
from rlx.ir.op import Leaf
from rlx.passes.lengths.align import aligned, difference, equal
from rlx.passes.lengths.axes import (
    Axis,
    Layout,
    Refused,
    broadcast,
    certain,
    fixed,
    is_fixed,
    is_varying,
    size_of,
    true_shape,
)
from rlx.passes.lengths.site import Made, Site, rule_of
from rlx.records import Record, field

Array = npt.NDArray[Any]


class Unlike(Exception):
    """Raised for a length whose graph is not the padded program; the message says where they differ."""


class Given(Record, frozen=False):
    """An input whose value depends on the lengths: `value` computes it from the graph of the true lengths. `alike` are
    functions for other uses of this input, which must give the same value."""

    tensor: Tensor
    value: Callable[[Graph], Array]
    alike: list[Callable[[Graph], Any]] = field(default_factory=list)


class Fit(Record):
    """A padded program at given lengths: its inputs besides the caller's arrays, and the true part of its results.

    `inputs` has the padded shape of each input; `outputs`, for each output's axes, each factor's size and the number of
    its elements that count."""

    feeds: dict[str, Array]
    inputs: dict[str, tuple[int, ...]]
    outputs: dict[str, tuple[tuple[tuple[int, int], ...], ...]]

    def pad(self, arrays: dict[str, Any]) -> dict[str, Any]:
        """The inputs of a run: the caller's arrays, followed by zeros up to the bucket's size."""
        return {n: _with_zeros(a, self.inputs[n]) for n, a in arrays.items()} | self.feeds

    def cut(self, results: dict[str, Any]) -> dict[str, Any]:
        """The results at their true lengths."""
        return {n: _true_part(a, self.outputs[n]) for n, a in results.items()}


def _with_zeros(array: Any, shape: tuple[int, ...]) -> Any:
    own_shape = getattr(array, "shape", None)
    if own_shape == shape or own_shape is None or len(own_shape) != len(shape):
        return array
    array = np.asarray(array)
    result = np.zeros(shape, array.dtype)
    result[tuple(map(slice, own_shape))] = array
    return result


def _true_part(array: Any, axes: tuple[tuple[tuple[int, int], ...], ...]) -> Any:
    factors = [f for axis in axes for f in axis]
    if all(size == true for size, true in factors):
        return array
    part = array.reshape([size for size, _ in factors])[tuple(slice(true) for _, true in factors)]
    shape = [int(np.prod([true for _, true in axis])) for axis in axes]
    return np.ascontiguousarray(part).reshape(shape)


class Padded(Record, frozen=False):
    """A graph whose inputs may be padded, and the data for running it.

    `plain` is the graph of the bucket's size. `source` is `plain` with the nodes `expanded` decomposed; `graph` was
    made from it. `masks` names the nodes that a mask was put before."""

    graph: Graph
    plain: Graph
    source: Graph
    given: list[Given]
    layouts: dict[int, Layout]
    parts: list[Maker]
    required: list[tuple[Callable[[Graph], Any], str]]
    expanded: list[int]
    masks: list[str]

    def fit(self, graph: Graph) -> Fit:
        """The data of a run at the lengths for which `graph` was traced. Raises: Unlike."""
        if difference(self.plain, graph) is not None:
            again, graph = alike(self.plain, graph)
            compare(self.plain, again)
            compare(self.plain, graph)
        graph = expand(graph, self.expanded)
        compare(self.source, graph)
        for part in self.parts:
            part.check(graph)
        for reading, what in self.required:
            if not equal(reading(graph), reading(self.source)):
                raise Unlike(what)
        for entry in self.given:
            value = entry.value(graph)
            if any(
                not equal(np.asarray(r(graph)), np.asarray(entry.alike[0](graph))) for r in entry.alike[1:]
            ):
                raise Unlike("two lengths that were equal so far differ")
            given_name = entry.tensor.node.attrs["name"]
            if value.shape != entry.tensor.shape:
                raise Unlike(f"{given_name}: {value.shape} does not fit {entry.tensor.shape}")
        return Fit(
            {g.tensor.node.attrs["name"]: g.value(graph) for g in self.given},
            {n: t.shape for n, t in self.source.inputs.items()},
            {
                n: tuple(
                    tuple((f.size, f.size if f.reading is None else f.reading(graph)) for f in axis)
                    for axis in self.layouts[t.id]
                )
                for n, t in self.source.outputs.items()
            },
        )


def alike(source: Graph, other: Graph) -> tuple[Graph, Graph]:
    """The two graphs aligned to one structure if only movements are missing; else unchanged."""
    if difference(source, other) is None:
        return source, other
    return aligned(source, other) or (source, other)


def compare(source: Graph, other: Graph) -> None:
    """Raises: Unlike if the two graphs are not the same program at two lengths."""
    unlike = difference(source, other)
    if unlike is not None:
        raise Unlike(f"the program has another structure there: {unlike}")


def _sized(node: Node) -> Iterable[str]:
    """The attributes that may depend on the lengths, because the node's rule reads them from the graph of each
    length."""
    rule = rule_of(node)
    return rule.sized if rule is not None else ()


def same_attributes(node: Node, other: Node, sized: Iterable[str]) -> None:
    """Raises: Unlike where an attribute differs that must not depend on lengths, as `sized` may."""
    if node.op.leaf in (Leaf.INPUT, Leaf.PARAM, Leaf.STATE):
        return  # their names are compared with the results, their shapes with the layouts
    for name in {*node.attrs, *other.attrs} - {*sized}:
        if not equal(node.attrs.get(name), other.attrs.get(name)):
            raise Unlike(f"{node.name}: its {name} depends on the length")


def expand(graph: Graph, nodes: Sequence[int]) -> Graph:
    """The graph with nodes decomposed one after the other, each by its number at that time."""
    for at in nodes:
        new = Rewriter(graph)
        for i, node in enumerate(graph.nodes):
            if i != at:
                new.keep(node)
                continue
            assert node.op.decompose is not None
            new.label = node.label
            # The rules of decomposition append to the graph of their inputs, which is the new one.
            parts = node.op.decompose(_of(new, node), node.attrs)
            new.put(node.outputs, (parts,) if isinstance(parts, Tensor) else parts)
        graph = new.finish()
    return graph


def _of(new: Rewriter, node: Node) -> tuple[Tensor, ...]:
    new.graph  # noqa: B018 - makes the new graph, which decompositions append to
    return new.inputs(node.inputs)


def padded(source: Graph, others: Sequence[Graph]) -> Padded:
    """The graph of a bucket's size, made to run at the lengths of the other graphs and at those between.

    Raises: Refused, with the node's name, where an op cannot take padded tensors; Unlike where the graphs are not one
    program at several lengths."""
    graphs = list(others)
    for _ in range(2):  # a second time, since aligning one graph may have changed the first
        for i, other in enumerate(graphs):
            source, graphs[i] = alike(source, other)
    others = graphs
    expanded: list[int] = []
    while True:
        maker = Maker(expand(source, expanded), [expand(g, expanded) for g in others])
        try:
            return maker.made(source, expanded)
        except _Decompose as wanted:
            expanded.append(wanted.at)


class _Decompose(Exception):
    """Raised for a node without a rule for its padded axes that can be decomposed into ops that may have one."""

    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.at = at


class Maker:
    """Makes one padded graph, node by node: of a program, or of a control op's body in one.

    `root` and `roots` are the program traced at the bucket's size and at other lengths; `find` returns the graph in
    them that is padded here. For a body, `outer` is the maker of the graph around it, and `layouts` has the layouts of
    its inputs and captures by name; it gets numbers that depend on the lengths as captures."""

    def __init__(
        self,
        root: Graph,
        roots: Sequence[Graph],
        find: Callable[[Graph], Graph] = lambda graph: graph,
        outer: Maker | None = None,
        layouts: Mapping[str, Layout] | None = None,
    ) -> None:
        self.root = root
        self.roots = list(roots)
        self.find = find
        self.outer = outer
        self.leaves = layouts or {}
        self.source = source = find(root)
        self.others = list(map(find, roots))
        for other in self.others:
            compare(source, other)
        self.captured: dict[
            int, tuple[Tensor, Tensor]
        ] = {}  # tensors of the enclosing graph and their captures
        self.new = Rewriter(source)
        self.new.graph  # noqa: B018 - makes the new graph, which lengths are declared in
        self.layouts: dict[int, Layout] = {}
        self.zeros: set[int] = set()  # tensors of the new graph whose padding is zero
        self.promoted: set[int] = set()
        self.repeated: set[int] = set()  # nodes without padding, which no rule has seen
        self.required: list[tuple[Callable[[Graph], Any], str]] = outer.required if outer else []
        self.parts: list[Maker] = outer.parts if outer else []
        self.parts.append(self)
        self.inputs: list[Given] = []
        self.numbers: dict[Any, Given] = {}
        self.vectors: dict[Any, Tensor] = {}
        self.masks: list[str] = outer.masks if outer else []

    def made(self, plain: Graph, expanded: Sequence[int]) -> Padded:
        """The padded program."""
        graph = self.make()
        return Padded(
            graph,
            plain,
            self.source,
            self.inputs,
            self.layouts,
            self.parts,
            self.required,
            list(expanded),
            self.masks,
        )

    def check(self, graph: Graph) -> None:
        """Compares this graph with that of other lengths. Raises: Unlike."""
        graph_of = self.find(graph)
        compare(self.source, graph_of)
        for i, (node, other) in enumerate(zip(self.source.nodes, graph_of.nodes, strict=True)):
            if i not in self.promoted:
                same_attributes(node, other, () if i in self.repeated else _sized(node))
            for t, u in zip(node.outputs, other.outputs, strict=True):
                true = true_shape(self.layouts[t.id], graph)
                if true != u.shape:
                    raise Unlike(f"{node.name} gives {u.shape} where {true} was expected")

    def make(self) -> Graph:
        """The padded graph. Raises: Refused."""
        for at, node in enumerate(self.source.nodes):
            self.new.label = node.label
            try:
                results = self._node(at, node)
            except Refused as refused:
                if node.op.decompose is not None and self.outer is None and not isinstance(refused, _Final):
                    raise _Decompose(at) from refused
                raise Refused(
                    f"{node.op.name}{f' ({node.label})' if node.label else ''}: {refused}"
                ) from None
            self.new.put(node.outputs, [t for t, _ in results])
            for t, (_, layout) in zip(node.outputs, results, strict=True):
                if not (
                    node.op.broadcasts or node.op.reshapes or (node.op.elementwise and rule_of(node) is None)
                ):
                    layout = certain(layout)
                self.layouts[t.id] = layout
                self._check(t, layout, at)
        for name, t in self.source.updates.items():
            if is_varying(self.layouts[t.id]):
                raise Refused(f"the state {name!r} takes a value of unknown length")
        graph = self.new.finish()
        for name, t in self.source.outputs.items():
            if is_index(name):  # rows of padding must not fail the check of indices
                layout = self.layouts[t.id]
                graph.outputs[name] = self.masked(graph.outputs[name], layout, range(t.ndim), 0, t.node)
        return graph

    def _node(self, at: int, node: Node) -> Made:
        others = [g.nodes[at] for g in self.others]
        if node.op.is_constant:
            return self._constant(at, node, others)
        if node.op.declared and self.outer is not None:
            return Site(self, at, node, ()).repeat({}, certain(self.leaves[node.attrs["name"]]))
        if node.op.leaf is Leaf.INPUT:
            site = Site(self, at, node, ())
            result = site.repeat({}, tuple(site.made(0, k) for k in range(node.output.ndim)))
            self.zeros.add(result[0][0].id)
            return result
        same = all(t.type == u.type for o in others for t, u in zip(node.outputs, o.outputs, strict=True))
        if node.op.leaf is not None:
            if not same:
                raise _Final("its shape depends on the length")
            return Site(self, at, node, ()).repeat({}, _plain(node.output))
        site = Site(self, at, node, self.new.inputs(node.inputs))
        if same and not any(map(is_varying, site.layouts)):
            for other in others:
                if all(equal(node.attrs.get(n), other.attrs.get(n)) for n in {*node.attrs, *other.attrs}):
                    continue
                break
            else:
                self.repeated.add(at)
                return site.repeat({}, *(_plain(t) for t in node.outputs))
        rule = rule_of(node)
        for other in others:
            same_attributes(node, other, _sized(node))
        if rule is not None:
            return rule.make(site)
        if node.op.elementwise:
            return elementwise(site)
        raise Refused("rlx has no rule for it on padded tensors")

    def _constant(self, at: int, node: Node, others: Sequence[Node]) -> Made:
        site = Site(self, at, node, ())
        if all(equal(node.attrs["value"], other.attrs["value"]) for other in others):
            return site.repeat({}, _plain(node.output))
        t = node.output
        if t.dtype.is_packed:
            raise _Final("it is a packed weight that depends on the length")
        self.promoted.add(at)
        shape, dtype = t.shape, t.dtype
        tensor = self.given(
            shape, dtype, lambda graph: _with_zeros(np.asarray(site.counterpart(graph).attrs["value"]), shape)
        )
        self.zeros.add(tensor.id)
        return [(tensor, tuple(site.made(0, k) for k in range(t.ndim)))]

    def _check(self, t: Tensor, layout: Layout, at: int) -> None:
        """Verifies the rules: the layout must give the shapes found in the graphs of other lengths."""
        if tuple(map(size_of, layout)) != t.shape:
            raise AssertionError(f"{t}: the layout {layout} is not of the shape {t.shape}")
        for other, root in zip(self.others, self.roots, strict=True):
            wanted = other.nodes[at].outputs[t.index].shape
            expected = true_shape(layout, root)
            if expected != wanted:
                raise Refused(f"{t.node.op.name}: it gives {wanted} where padding would give {expected}")

    # -- readings

    def true(self, reading: Callable[[Graph], int]) -> tuple[int, ...]:
        return tuple(reading(g) for g in self.roots)

    def agrees(self, reading: Callable[[Graph], Any]) -> bool:
        return all(equal(reading(g), reading(self.root)) for g in self.roots)

    def require(self, reading: Callable[[Graph], Any], what: str) -> None:
        if not self.agrees(reading):
            raise Refused(what)
        self.required.append((reading, what))

    # -- tensors that lengths give

    def given(self, shape: tuple[int, ...], dtype: DType, value: Callable[[Graph], Array]) -> Tensor:
        if self.outer is not None:
            return self.capture(self.outer.given(shape, dtype, value))
        graph = self.new.graph
        name = f"length {len(self.inputs)}"
        while name in graph.inputs or name in self.source.inputs:
            name += "'"
        result = graph.input(name, shape, dtype)
        self.inputs.append(Given(result, value))
        return result

    def number(self, reading: Callable[[Graph], int]) -> Tensor:
        """An input that holds a number for each length. Readings that agree so far share one; `Padded.fit` checks that
        they still agree."""
        if self.outer is not None:
            return self.capture(self.outer.number(reading))
        key = (reading(self.source), self.true(reading))
        if key not in self.numbers:
            tensor = self.given((), i32, lambda graph: np.asarray(reading(graph), np.int32))
            self.numbers[key] = next(g for g in self.inputs if g.tensor is tensor)
        self.numbers[key].alike.append(reading)
        return self.numbers[key].tensor

    def capture(self, t: Tensor) -> Tensor:
        """The capture, one more param of the body, that stands for a tensor of the enclosing graph."""
        if t.id not in self.captured:
            param = self.new.graph.param(f"length {len(self.captured)}", t.shape, t.dtype)
            self.captured[t.id] = (t, param)
        return self.captured[t.id][1]

    def mask(self, axis: Axis) -> Tensor:
        """A mask of the elements of a padded axis that count."""
        lengths = {i: self.number(f.reading) for i, f in enumerate(axis) if f.reading is not None}
        key = tuple((f.size, lengths[i].id if i in lengths else None) for i, f in enumerate(axis))
        if key not in self.vectors:
            inner, mask = size_of(axis), None
            for i, f in enumerate(axis):
                inner //= f.size
                if i not in lengths:
                    continue
                place = np.arange(size_of(axis)) // inner % f.size
                inside = self.new.add(
                    "less", (self.new.graph.constant(place.astype(np.int32), i32), lengths[i]), {}, "mask"
                )[0]
                mask = inside if mask is None else self.new.add("logical_and", (mask, inside), {}, "mask")[0]
            assert mask is not None
            self.vectors[key] = mask
        return self.vectors[key]

    def masked(self, x: Tensor, layout: Layout, axes: Iterable[int], value: Any, node: Node) -> Tensor:
        """x with `value` for the padding of these axes. It selects, since the padding may hold NaN."""
        padded_axes = [k for k in axes if not is_fixed(layout[k])]
        if not padded_axes or (x.id in self.zeros and value == 0):
            return x
        self.masks.append(node.name)
        keep = None
        for k in padded_axes:
            shape = tuple(n if i == k else 1 for i, n in enumerate(x.shape))
            part = self.new.add("reshape", (self.mask(layout[k]),), {"shape": shape})[0]
            keep = part if keep is None else self.new.add("logical_and", (keep, part), {})[0]
        assert keep is not None
        return self.new.add("where", (keep, x, self.new.graph.constant(value, x.dtype)), {})[0]


class _Final(Refused):
    """A refusal that decomposing the node would not change."""


def _plain(t: Tensor) -> Layout:
    return tuple(map(fixed, t.shape))


def elementwise(site: Site) -> Made:
    """The rule of elementwise ops: padding elements of the inputs give padding elements of the result."""
    shape = site.node.output.shape
    return site.repeat({}, broadcast(site.layouts, shape))
