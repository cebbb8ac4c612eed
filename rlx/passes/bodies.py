"""The bodies of control ops: the passes run over each, and each as a program of its own that a device can build."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from rlx.ir import Control, Graph, Node, Rewriter, Tensor, bodies, rebuild
from rlx.passes.isolate import isolate_results


def change_bodies(graph: Graph, change: Callable[[str, Graph], Graph]) -> Graph:
    """The graph with every body changed; `change` gets what reports call it, too."""

    def rewrite(new: Rewriter, node: Node, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        given = bodies(node)
        made = {key: change(body_name(node, key), body) for key, body in given.items()}
        if all(made[key] is body for key, body in given.items()):
            return None
        return new.add(node.op, inputs, {**node.attrs, **made}, node.label)

    return rebuild(graph, rewrite)


def body_name(node: Node, key: str) -> str:
    """What reports call a body, before its nodes' names: the node's name, and which branch."""
    return node.name if _control(node).repeats else f"{node.name}/{key}"


def _control(node: Node) -> Control:
    assert node.op.control is not None, f"{node} runs no bodies"
    return node.op.control


@dataclass(frozen=True, slots=True)
class BodyProgram:
    """A body as a device runs it. Its captures are params and what it carries, or gives to its node, are states: both
    lie in memory of the program around, where `bound` says by name which of its tensors they are. `slices` names the
    inputs that are rows of a tensor around, `rows` the outputs that become rows of one."""

    graph: Graph
    bound: Mapping[str, Tensor]
    slices: Mapping[str, Tensor]
    rows: Mapping[str, Tensor]

    @property
    def along(self) -> list[Tensor]:
        """The tensors around that the steps of a scan go along."""
        return [*self.slices.values(), *self.rows.values()]


def body_programs(node: Node) -> Iterator[tuple[str, BodyProgram]]:
    """The programs of a control node by attribute."""
    for key, body in bodies(node).items():
        yield key, _program(node, body)


def _program(node: Node, body: Graph) -> BodyProgram:
    control = _control(node)
    first = int(control.predicate)
    count = len(body.inputs)
    around = dict(zip((*body.inputs, *body.params), node.inputs[first:], strict=True))
    carries = node.attrs["carries"] if control.rows else count if control.loops else 0
    outputs = list(body.outputs.items())
    given, rows = outputs[first:] if control.loops else outputs, {}
    if control.rows:
        given, rows = outputs[:carries], dict(outputs[carries:])
    carried = dict(zip(list(body.inputs)[:carries], node.outputs, strict=False))
    slices = {} if not control.rows else {name: around[name] for name in list(body.inputs)[carries:]}
    bound = {name: t for name, t in around.items() if name not in slices and name not in carried} | carried

    new = Rewriter(body)
    graph = new.graph
    if not control.repeats:  # first of all, so that results may be made in them
        for (name, _), out in zip(given, node.outputs, strict=True):
            graph.state(name, out.shape, out.dtype)
            bound[name] = out
    for old in body.nodes:
        if not old.op.declared:
            new.keep(old)
            continue
        name, shape, dtype = old.attrs["name"], old.attrs["shape"], old.attrs["dtype"]
        make = graph.state if name in carried else graph.input if name in slices else graph.param
        new.put(old.outputs, (make(name, shape, dtype),))
    graph = new.finish()
    states = list(carried) or [name for name, _ in given]
    graph.outputs = {name: t for name, t in graph.outputs.items() if name not in dict(given)}
    for state, (_, value) in zip(states, given, strict=True):
        graph.update(state, *new.inputs((value,)))
    results = {name: node.outputs[carries + i] for i, name in enumerate(rows)}
    return BodyProgram(isolate_results(graph), bound, slices, results)
