"""Bodies: the graphs inside a node of a control op, traced from functions. What a function closes over is captured.

A body's `inputs` (x0, x1, …) are the values that the op gives it in each step. Its `params` (k0, k1, …) are the
captures: tensors of the enclosing graph that the functions use, which become the last inputs of the node. Its
`outputs` are y0, y1, …. A finished body refers to no other graph, so nodes of several graphs may share it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rlx.errors import GraphError
from rlx.ir.graph import TRACING, Graph, Tensor
from rlx.ir.op import Attrs, Leaf, Op, get_op
from rlx.ir.rewrite import Rewriter
from rlx.ir.types import TensorType

if TYPE_CHECKING:
    from rlx.ir.graph import Node

MAX_DEPTH = 16  # limit on control ops nested in the functions of control ops
COPIED_BYTES = 4096  # a captured constant of at most this size is copied into the body, where it can be folded


class TracedBody(Graph):
    """A body while its function runs. `captured` lists the tensors of the outer graph that it has used so far."""

    def __init__(self, name: str, outer: Graph, types: Sequence[TensorType]) -> None:
        super().__init__(name)
        self.outer: Graph = outer
        self.captured: list[Tensor] = []
        # The checks of indices in this body (rlx.ir.checks): what is checked, the index, and its limits.
        self.checks: list[tuple[str, Tensor, Any]] = []
        self._inner: dict[int, Tensor] = {}
        self.given = [self._leaf_of("input", f"x{i}", t) for i, t in enumerate(types)]
        depth, around = 0, outer
        while around.outer is not None:
            depth, around = depth + 1, around.outer
        if depth >= MAX_DEPTH:
            raise GraphError(
                f"{name}: control ops are nested more than {MAX_DEPTH} deep; is a function its own body?"
            )

    def reach(self, tensor: Tensor, what: str) -> Tensor:
        """The tensor that stands for `tensor` here: a capture, or a copy where it is a small constant."""
        if not isinstance(tensor, Tensor) or tensor.graph is self:
            return super().reach(tensor, what)
        outer = self.outer.reach(tensor, what)
        result = self._inner.get(outer.id)
        if result is None:
            if outer.node.op.is_constant and outer.type.nbytes <= COPIED_BYTES:
                result = self._append(outer.node.op, (), outer.node.attrs, outer.node.label)[0]
            else:
                result = self._leaf_of("param", f"k{len(self.captured)}", outer.type)
                self.captured.append(outer)
            self._inner[outer.id] = result
        return result

    def _append(self, record: Op, ins: tuple[Tensor, ...], attrs: Attrs, label: str) -> tuple[Tensor, ...]:
        """Adds a node. A large constant goes to the outermost graph, for bodies to share it."""
        if record.is_constant and attrs["value"].nbytes > COPIED_BYTES:
            (result,) = self.outer._append(record, ins, attrs, label)
            return (self.reach(result, "constant"),)
        return super()._append(record, ins, attrs, label)

    def around(self, capture: Tensor) -> Tensor:
        """The tensor of the outer graph that `capture`, one of this body's params, stands for."""
        return self.captured[int(capture.node.attrs["name"].removeprefix("k"))]

    def captures(self) -> Iterator[tuple[int, Tensor]]:
        """The number of each param here that stands for a tensor of the outer graph, and that tensor."""
        for node in self.nodes:
            if node.op.leaf is Leaf.PARAM:
                yield node.output.id, self.around(node.output)

    def _leaf_of(self, op: str, name: str, t: TensorType) -> Tensor:
        attrs = {"name": name, "shape": t.shape, "dtype": t.dtype}
        return self._append(get_op(op), (), attrs, name)[0]

    def more(self, t: TensorType) -> Tensor:
        """One more input, after all others."""
        self.given.append(self._leaf_of("input", f"x{len(self.given)}", t))
        return self.given[-1]

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Within this context, nodes that this thread adds to the enclosing graphs are added to this body."""
        before, TRACING.body = TRACING.body, self
        try:
            yield
        finally:
            TRACING.body = before

    def finish(self, outputs: Sequence[Tensor], captured: Sequence[Tensor]) -> Graph:
        """The body as a graph of its own; `outputs` are tensors of this one.

        `captured` are the tensors of the outer graph that the node passes to it: its own captures and, where two
        bodies share a node, those of the other."""
        new = Rewriter(self)
        graph = new.graph
        for t in self.given:
            new.keep(t.node)
        for i, outer in enumerate(captured):
            leaf = graph.param(f"k{i}", outer.shape, outer.dtype)
            if outer.id in self._inner:
                new.put((self._inner[outer.id],), (leaf,))
        for node in self.nodes:
            if not node.op.declared:
                new.keep(node)
        graph.outputs = {f"y{i}": t for i, t in enumerate(new.inputs(outputs))}
        return graph


def bodies(node: Node) -> dict[str, Graph]:
    """The bodies of a node by the attribute that holds them; empty for all but control ops."""
    if node.op.control is None:
        return {}
    return {name: value for name, value in node.attrs.items() if isinstance(value, Graph)}


def map_bodies(attrs: Attrs, change: Callable[[Graph], Graph]) -> dict[str, Any]:
    """The attributes, with `change` applied to every body."""
    return {name: change(value) if isinstance(value, Graph) else value for name, value in attrs.items()}
