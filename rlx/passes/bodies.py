"""The bodies of control ops: running a pass over each body, and making each body a program that a device can build."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from rlx.ir import Control, Graph, Node, Rewriter, Tensor, bodies, rebuild
from rlx.passes.isolate import isolate_results
from rlx.records import Record


def change_bodies(graph: Graph, change: Callable[[str, Graph], Graph]) -> Graph:
    """The graph with `change` applied to every body; `change` also gets the name of the body in reports."""

    def rewrite(new: Rewriter, node: Node, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        old_bodies = bodies(node)
        new_bodies = {key: change(body_name(node, key), body) for key, body in old_bodies.items()}
        if all(new_bodies[key] is body for key, body in old_bodies.items()):
            return None
        return new.add(node.op, inputs, {**node.attrs, **new_bodies}, node.label)

    return rebuild(graph, rewrite)


def body_name(node: Node, key: str) -> str:
    """The prefix of a body's node names in reports: the control node's name, and for a branch which one."""
    return node.name if _control(node).repeats else f"{node.name}/{key}"


def _control(node: Node) -> Control:
    assert node.op.control is not None, f"{node} runs no bodies"
    return node.op.control


class BodyProgram(Record):
    """A body as a program of its own.

    Its captures are params. The values that it carries from step to step, or returns to its node, are states. Both lie
    in memory of the outer program; `bound` maps them to that program's tensors. `slices` names the inputs that are rows
    of an outer tensor, `rows` the outputs that become rows of one."""

    graph: Graph
    bound: Mapping[str, Tensor]
    slices: Mapping[str, Tensor]
    rows: Mapping[str, Tensor]

    @property
    def along(self) -> list[Tensor]:
        """The outer tensors from which each step of a scan reads a row, or into which it writes one."""
        return [*self.slices.values(), *self.rows.values()]


def body_programs(node: Node) -> Iterator[tuple[str, BodyProgram]]:
    """The program of each body of a control node, by the body's attribute."""
    for key, body in bodies(node).items():
        yield key, _program(node, body)


def _program(node: Node, body: Graph) -> BodyProgram:
    control = _control(node)
    first = int(control.predicate)
    count = len(body.inputs)
    around = dict(zip((*body.inputs, *body.params), node.inputs[first:], strict=True))
    carries = node.attrs["carries"] if control.rows else count if control.loops else 0
    outputs = list(body.outputs.items())
    carried_outputs, rows = outputs[first:] if control.loops else outputs, {}
    if control.rows:
        carried_outputs, rows = outputs[:carries], dict(outputs[carries:])
    carried = dict(zip(list(body.inputs)[:carries], node.outputs, strict=False))
    slices = {} if not control.rows else {name: around[name] for name in list(body.inputs)[carries:]}
    bound = {name: t for name, t in around.items() if name not in slices and name not in carried} | carried

    new = Rewriter(body)
    graph = new.graph
    if not control.repeats:  # states are declared first, so that results may be made in place in them
        for (name, _), out in zip(carried_outputs, node.outputs, strict=True):
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
    states = list(carried) or [name for name, _ in carried_outputs]
    graph.outputs = {name: t for name, t in graph.outputs.items() if name not in dict(carried_outputs)}
    for state, (_, value) in zip(states, carried_outputs, strict=True):
        graph.update(state, *new.inputs((value,)))
    results = {name: node.outputs[carries + i] for i, name in enumerate(rows)}
    return BodyProgram(isolate_results(graph), bound, slices, results)
