"""Site: a node that is made to run on padded tensors, as the rule of its op sees it; and the table of rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from rlx.dtypes import DType, i32
from rlx.ir import Graph, Node, Rewriter, Tensor
from rlx.passes.lengths.axes import Axis, Factor, Layout, Refused, is_fixed, prefix
from rlx.records import Record

if TYPE_CHECKING:
    from rlx.passes.lengths.padding import Maker

Made = Sequence[tuple[Tensor, Layout]]  # a node's outputs
Array = npt.NDArray[Any]


class Rule(Record):
    """How to handle an op that has an axis of unknown length in an input or output.

    `make` gives the tensors that stand for the node's outputs, and their layouts. `sized` names the attributes that
    may differ between lengths; `make` must read what it needs of them from each graph."""

    make: Callable[[Site], Made]
    sized: frozenset[str]


PADDINGS: dict[str, Rule] = {}


def rule_of(node: Node) -> Rule | None:
    """The rule of a node's op, None for one that has none."""
    return PADDINGS.get(node.op.name)


def rule(*ops: str, sized: Iterable[str] = ()) -> Callable[[Callable[[Site], Made]], Callable[[Site], Made]]:
    """Makes a function the rule of these ops."""

    def register(make: Callable[[Site], Made]) -> Callable[[Site], Made]:
        for op in ops:
            PADDINGS[op] = Rule(make, frozenset(sized))
        return make

    return register


class Site:
    """A node of the padded graph: its inputs there, their layouts, and what a rule may make.

    Axes and inputs are numbered as the node's; a reading takes the graph of some lengths and gives a number."""

    def __init__(self, maker: Maker, at: int, node: Node, inputs: tuple[Tensor, ...]) -> None:
        self.maker = maker
        self.at = at
        self.node = node
        self.inputs = inputs
        self.layouts: list[Layout] = [maker.layouts[t.id] for t in node.inputs]

    @property
    def new(self) -> Rewriter:
        return self.maker.new

    def refuse(self, why: str) -> Refused:
        return Refused(why)

    # -- what the graphs of other lengths say

    def read(self, reading: Callable[[Node], int]) -> Callable[[Graph], int]:
        """A reading of this node's counterpart."""
        return lambda graph: reading(self.counterpart(graph))

    def counterpart(self, graph: Graph) -> Node:
        """This node in the graph of other lengths."""
        return self.maker.find(graph).nodes[self.at]

    def require(self, reading: Callable[[Node], Any], what: str) -> None:
        """Requires that the reading is the same for all lengths, those of later runs included. Raises: Refused."""
        self.maker.require(self.read(reading), what)

    def agrees(self, reading: Callable[[Node], Any]) -> bool:
        """Whether the reading is the same for the lengths known so far; a rule that relies on it calls `require`."""
        return self.maker.agrees(self.read(reading))

    def made(self, output: int, axis: int, uniform: bool = False) -> Axis:
        """An output axis whose length this node determines, with the true elements first."""
        size = self.node.outputs[output].shape[axis]
        reading = self.read(lambda node: node.outputs[output].shape[axis])
        true = self.maker.true(reading)
        if all(n == size for n in true):
            # The length is the same so far; the check of shapes notices a run for which it differs.
            return (Factor(size),)
        return (Factor(size, true, reading, uniform),)

    # -- layouts

    def fixed(self, i: int, axis: int) -> bool:
        return is_fixed(self.layouts[i][axis])

    def varying(self, i: int) -> tuple[int, ...]:
        """The axes of an input that are padded."""
        return tuple(k for k, axis in enumerate(self.layouts[i]) if not is_fixed(axis))

    def expect_fixed(self, i: int, axes: Iterable[int], what: str) -> None:
        """Raises: Refused where one of these axes of an input is padded."""
        if i < len(self.layouts) and set(self.varying(i)) & set(axes):
            raise Refused(what)

    # -- tensors

    def add(self, op: str, *inputs: Tensor, **attrs: Any) -> Tensor:
        return self.new.add(op, inputs, attrs)[0]

    def constant(self, value: Any, dtype: DType) -> Tensor:
        return self.new.graph.constant(value, dtype)

    def number(self, reading: Callable[[Graph], int]) -> Tensor:
        """A scalar i32 whose value depends on the lengths of a run."""
        return self.maker.number(reading)

    def vector(self, size: int, value: Callable[[Graph], Array], dtype: DType = i32) -> Tensor:
        """A vector of integers whose values depend on the lengths of a run."""
        return self.maker.given((size,), dtype, value)

    def length(self, i: int, axis: int) -> Tensor:
        """The true length of an axis whose true elements come first. Raises: Refused for another axis."""
        reading = self.prefix(i, axis).reading
        assert reading is not None
        return self.number(reading)

    def prefix(self, i: int, axis: int) -> Factor:
        """A padded axis as one factor. Raises: Refused where its true elements do not come first."""
        result = prefix(self.layouts[i][axis])
        if result is None:
            raise Refused("its padding does not lie at the end of the axis")
        return result

    def mask(self, axis: Axis) -> Tensor:
        """Which elements of a padded axis count, a vector of bools."""
        return self.maker.mask(axis)

    def masked(self, i: int, axes: Iterable[int], value: Any) -> Tensor:
        """An input with its padding along these axes replaced by `value`."""
        return self.maker.masked(self.inputs[i], self.layouts[i], axes, value, self.node)

    def repeat(self, inputs: Mapping[int, Tensor], *layouts: Layout) -> Made:
        """The node itself, with some inputs replaced or added; its outputs with their layouts."""
        if not inputs:
            self.new.keep(self.node)
            results = self.new.inputs(self.node.outputs)
        else:
            more = [inputs[i] for i in sorted(inputs) if i >= len(self.inputs)]
            operands = [inputs.get(i, t) for i, t in enumerate(self.inputs)] + more
            results = self.new.add(self.node.op, operands, self.node.attrs, self.node.label)
        return list(zip(results, layouts, strict=True))
