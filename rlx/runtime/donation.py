"""Donated inputs: inputs whose memory a run may overwrite, as states of the graph that is compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlx.errors import GraphError, ShapeError
from rlx.ir import Graph, Node, Tensor
from rlx.ir.checks import visible
from rlx.ir.rewrite import Rewriter, rebuild

Donate = Sequence[str] | Mapping[str, str]


def donated(graph: Graph, donate: Donate) -> tuple[Graph, dict[str, str]]:
    """The graph with each donated input turned into a state that its output replaces, and the output of each input.

    `donate` names the output for each input, or the inputs alone: each then takes the first output of its type that no
    other has taken. Raises: GraphError for unknown names and an input without an output left, ShapeError for an output
    of another type."""
    pairs = _paired(graph, donate)

    def rewrite(new: Rewriter, node: Node, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        name = node.attrs["name"] if node.op.declared else None
        if name not in pairs or node.output is not graph.inputs.get(name):
            return None
        return (new.graph.state(name, node.output.shape, node.output.dtype),)

    rebuilt = rebuild(graph, rewrite)
    for name, output in pairs.items():
        rebuilt.update(name, rebuilt.outputs[output])
    return rebuilt, pairs


def _paired(graph: Graph, donate: Donate) -> dict[str, str]:
    if isinstance(donate, str):
        raise GraphError(f"donate is a string; expected a list of inputs, [{donate!r}]")
    asked: dict[str, str | None] = dict(donate) if isinstance(donate, Mapping) else dict.fromkeys(donate)
    unknown = [n for n in asked if n not in graph.inputs]
    if unknown:
        raise GraphError(f"donate: the graph has no inputs {unknown}; it has {list(graph.inputs)}")
    left = {n: t.type for n, t in visible(graph.outputs).items()}
    pairs = {}
    for name, output in asked.items():
        t = graph.inputs[name].type
        if output is None:
            output = next((n for n, tensor in left.items() if tensor == t), None)
        if output is None or output not in left:
            what = f"no output of type {t} is left" if asked[name] is None else f"there is no output {output!r} left"
            raise GraphError(f"donate: {what} for input {name!r}; the outputs are {list(visible(graph.outputs))}")
        if left[output] != t:
            raise ShapeError(f"donate: input {name!r} is {t}, output {output!r} is {left[output]}; expected one type")
        del left[output]
        pairs[name] = output
    return pairs
