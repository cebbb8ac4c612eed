"""The program of a training step: loss, gradients, optimizer and the record of its metrics as one graph in place.

Parameters and the optimizer's state are states, which a step replaces; frozen weights are params, which it only reads.
A step whose loss or gradients are not finite changes nothing, nor do later steps, until the host has read the failure.
So the state from before the failed step and its batch are kept, and the step can be run again to find the node.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np

from rlx import ops, optim
from rlx.autodiff import gradients
from rlx.dtypes import f32, f64
from rlx.errors import DTypeError, GraphError, ShapeError
from rlx.ir import Graph, Tensor
from rlx.ir.graph import TRACING
from rlx.ir.op import Attrs, Op
from rlx.ops.pytree import flatten
from rlx.ops.random.draws import fold_in
from rlx.runtime.arguments import is_any_array
from rlx.train.leaves import Leaves
from rlx.train.ranks import Ranks, mean_gradients, mean_numbers, mean_state
from rlx.train.zero import gathered, own_parts, scattered_means

_HERE = os.path.dirname(os.path.dirname(__file__)) + os.sep  # the folder of rlx
ROWS = 10  # limit on the steps whose metrics are on the device
LOSS = "loss"
Declare = Callable[..., Tensor]


class Model(NamedTuple):
    """What a run trains: the loss function, its arguments by name and type, the optimizer and the settings."""

    loss: Callable[..., Any]
    parameters: Leaves
    frozen: Leaves | None
    carried: Leaves | None  # the state that the loss function returns anew, such as running statistics
    optimizer: optim.Optimizer
    state: Leaves
    keyed: bool
    parts: int  # number of parts of a batch, whose mean gradient a step takes
    guarded: bool  # whether a step that is not finite changes nothing
    ranks: Ranks | None = None  # the ranks that share a batch's rows
    zero: bool = False  # whether each rank holds only a part of the optimizer's state


class Losses(NamedTuple):
    """The loss of a batch in a graph, the other metrics by name, and the leaves of the new state."""

    loss: Tensor
    others: dict[str, Tensor]
    carried: list[Tensor]

    @property
    def metrics(self) -> dict[str, Tensor]:
        return {LOSS: self.loss} | self.others


class Rest(NamedTuple):
    """The other arguments of a loss function: frozen weights, the leaves of the state, a key."""

    frozen: Any
    carried: list[Tensor]
    key: Tensor | None


class Step(NamedTuple):
    """A step as a graph, and the names of its metrics in the order of the record, whose first column says whether the
    step was finite."""

    graph: Graph
    metrics: tuple[str, ...]


class Lined(Graph):
    """A graph that notes, while a loss function is traced, the user's source line that made each tensor."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.lines: dict[int, str] = {}
        self._noting = False

    @contextmanager
    def lines_noted(self) -> Iterator[None]:
        self._noting = True
        try:
            yield
        finally:
            self._noting = False

    def _append(self, record: Op, ins: tuple[Tensor, ...], attrs: Attrs, label: str) -> tuple[Tensor, ...]:
        outputs = super()._append(record, ins, attrs, label)
        frame = sys._getframe(1) if self._noting else None
        while frame is not None and frame.f_code.co_filename.startswith(_HERE):
            frame = frame.f_back
        if frame is not None:
            self.lines |= dict.fromkeys((t.id for t in outputs), f"{frame.f_code.co_filename}:{frame.f_lineno}")
        return outputs


@contextmanager
def _tracing(graph: Graph) -> Iterator[None]:
    """Within it, functions without tensor arguments add their nodes to this graph."""
    around, TRACING.graph, TRACING.body = (TRACING.graph, TRACING.body), graph, None
    try:
        yield
    finally:
        TRACING.graph, TRACING.body = around


def _declared(leaves: Leaves, declare: Declare) -> list[Tensor]:
    return [declare(name, t.shape, t.dtype) for name, t in leaves.by_name.items()]


def losses(model: Model, parameters: Any, batch: Any, rest: Rest) -> Losses:
    """The loss function's result, checked.

    Raises: ShapeError for a loss of another rank than 0, DTypeError for one of integers, GraphError for metrics that
    are no dict of scalars, and for a parameter that the function looks up and does not have."""
    name = getattr(model.loss, "__name__", type(model.loss).__name__)
    graph, arguments = TRACING.graph, [parameters]
    arguments += [] if model.frozen is None else [rest.frozen]
    arguments += [] if model.carried is None else [model.carried.tree(rest.carried)]
    arguments += [batch, *([] if rest.key is None else [rest.key])]
    try:
        with graph.lines_noted() if isinstance(graph, Lined) else nullcontext():
            result: Any = model.loss(*arguments)
    except KeyError as error:
        there = [n for part in (model.parameters, model.frozen, model.carried) if part is not None for n in part.names]
        raise GraphError(
            f"training: {name} looks up {error.args[0]!r}, which its argument does not have; there are {_some(there)}, "
            "and the batch"
        ) from error
    value, carried = result, None
    others: Any = {}
    if isinstance(result, tuple) and model.carried is None and len(result) == 2:
        value, others = result
    elif isinstance(result, tuple) and model.carried is not None and len(result) in (2, 3):
        value, carried, others = (*result, {})[:3]
    elif model.carried is not None:
        raise GraphError(f"training: with state {name} must give (loss, state) or (loss, state, metrics): {result!r}")
    if not isinstance(value, Tensor) or value.shape != ():
        what = f"{value.type}; take its mean, as in rlx.mean(…)" if isinstance(value, Tensor) else repr(value)
        raise ShapeError(
            f"training: {name} must give one number of rank 0, or that and a dict of metrics; it gave {what}"
        )
    if not value.dtype.is_float:
        raise DTypeError(f"training: {name} gave {value.type}; a loss is a float")
    if not isinstance(others, dict):
        raise GraphError(f"training: beside its loss {name} gave {others!r}; expected a dict of metrics")
    metrics = {str(n): _metric(value.graph, str(n), m) for n, m in others.items()}
    return Losses(value, metrics, [] if model.carried is None else _like(model.carried, carried, f"{name}'s state"))


def _metric(graph: Graph, name: str, value: Any) -> Tensor:
    scalar = value if isinstance(value, Tensor) else graph.constant(value)
    if scalar.shape != ():
        raise ShapeError(f"training: metric {name!r} is {scalar.type}; expected one number, such as its rlx.mean")
    if name in (LOSS, "step", "seconds", "evaluation"):
        raise GraphError(f"training: a metric cannot be named {name!r}, which the record has already")
    return scalar


def _of_parts(
    model: Model, parameters: list[Tensor], batch: Leaves, inputs: list[Tensor], rest: Rest, states: Any,
    unrolled: bool = False,
) -> tuple[Losses, list[Tensor]]:
    """The losses and the gradients of a batch, computed part by part. If the optimizer is `scale_loss`, the loss is
    multiplied by the scale in its state. `unrolled`: the nodes of all parts are in the graph itself, not in a scan."""
    scale = states.scale if isinstance(states, optim.Scaled) else None

    def once(parameters: Sequence[Tensor], leaves: Sequence[Any], rest: Rest) -> tuple[Losses, list[Tensor]]:
        result = losses(model, model.parameters.tree(parameters), batch.tree(leaves), rest)
        _used(model, result.loss, parameters)
        scaled = result.loss if scale is None else result.loss * ops.cast(scale, result.loss.dtype)
        return result, gradients(scaled, parameters)

    n = model.parts
    if n == 1:
        return once(parameters, inputs, rest)
    for name, x in zip(batch.names, inputs, strict=True):
        if not x.shape or x.shape[0] % n:
            raise ShapeError(f"training: {name} is {x.type}; accumulate={n} takes its first axis in {n} equal parts")
    names: list[str] = []

    def part(total: Any, at: Any) -> tuple[Any, Any]:
        (sums, carried), (number, leaves) = total, at
        here = [number.graph.reach(p, "training: a part of a batch") for p in parameters]
        key = None if rest.key is None else fold_in(rest.key, number)
        result, slopes = once(here, leaves, Rest(rest.frozen, carried, key))
        names[:] = result.others
        added = [t + s for t, s in zip(sums, slopes, strict=True)]
        return (added, result.carried), [_real(m) for m in result.metrics.values()]

    rows = [ops.reshape(x, (n, x.shape[0] // n, *x.shape[1:])) for x in inputs]
    numbers = parameters[0].graph.constant(np.arange(n, dtype=np.int32))
    start: Any = ([ops.zeros_like(p) for p in parameters], rest.carried)
    if unrolled:
        lists: list[list[Tensor]] = []
        for i in range(n):
            start, values = part(start, (numbers[i], [x[i] for x in rows]))
            lists.append(values)
        (sums, carried), columns = start, [ops.stack(column) for column in zip(*lists, strict=True)]
    elif model.ranks is not None:  # the last part is outside the scan: sums over the ranks overlap its backward pass
        start, columns = ops.scan(part, start, (numbers[:-1], [x[:-1] for x in rows]))
        (sums, carried), values = part(start, (numbers[n - 1], [x[n - 1] for x in rows]))
        columns = [ops.concat([c, ops.reshape(v, (1,))]) for c, v in zip(columns, values, strict=True)]
    else:
        (sums, carried), columns = ops.scan(part, start, (numbers, rows))
    loss, *others = (ops.mean(column) for column in columns)
    return Losses(loss, dict(zip(names, others, strict=True)), carried), [s / float(n) for s in sums]


def _used(model: Model, loss: Tensor, parameters: Sequence[Tensor]) -> None:
    """Checks that all parameters are used. Raises: GraphError for parameters that the loss does not depend on."""
    seen, waiting = {loss.id}, [loss]
    while waiting:
        for t in waiting.pop().node.inputs:
            if t.id not in seen:
                seen.add(t.id)
                waiting.append(t)
    unused = [n for n, t in zip(model.parameters.names, parameters, strict=True) if t.id not in seen]
    if unused:
        raise GraphError(
            f"training: the loss does not depend on {_some(unused)}: leave these out of the parameters, or give them "
            "as frozen"
        )


def _real(x: Tensor) -> Tensor:
    return x if x.dtype in (f32, f64) else ops.cast(x, f32)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _like(before: Leaves, tree: Any, what: str) -> list[Tensor]:
    """The leaves of the new value of `what`. Raises: GraphError if its structure, ShapeError if a type has changed."""
    leaves: list[Any] = []
    if flatten(tree, leaves, is_any_array) != before.skeleton:
        raise GraphError(f"training: {what} is {tree!r}; expected the structure that it had: {_some(before.names)}")
    graph = TRACING.graph if TRACING.body is None else TRACING.body
    assert graph is not None
    tensors = [t if isinstance(t, Tensor) else graph.constant(t) for t in leaves]
    for name, old, new in zip(before.names, before.types, tensors, strict=True):
        if new.type != old:
            raise ShapeError(f"training: {what}: {name} is {new.type}; expected {old}, as it was")
    return tensors


def kept_name(number: int, leaf: str) -> str:
    """The name of the state that keeps a leaf of a failed step's batch."""
    return f"kept.{number}.{leaf}"


def kept_names(number: int, batch: Leaves) -> dict[str, str]:
    """The names of a batch's leaves, by the names of the states that keep them."""
    return {kept_name(number, name): name for name in batch.names}


def step_graph(model: Model, batch: Leaves, number: int, weight: float = 1.0) -> Step:
    """The step for batches of these types. `number` identifies the program if there are several. `weight` is the weight
    of this rank's means if ranks share a batch."""
    g = Graph("training step")
    with _tracing(g):
        parameters, state = _declared(model.parameters, g.state), _declared(model.state, g.state)
        steps, row = g.state("steps", (), "i32"), g.state("row", (), "i32")
        inputs, rest = _declared(batch, g.input), _rest(model, g, g.state, steps)
        states = model.state.tree(state)
        failed = g.state("failed", (), "bool") if model.guarded else None
        anywhere = failed
        scaled = isinstance(states, optim.Scaled)  # the optimizer tests the gradients
        result, slopes = _of_parts(model, parameters, batch, inputs, rest, states)
        tested = slopes
        if model.ranks is not None:
            result = _of_all(model.ranks, result, weight)
            means_of = scattered_means if model.zero else mean_gradients
            slopes, tested, sound = means_of(model.ranks, slopes, weight)
            anywhere = _anywhere(model.ranks, failed, None if scaled else sound)
        olds = own_parts(model.ranks, parameters) if model.ranks is not None and model.zero else parameters
        with _over_parts(model, parameters) if model.zero else nullcontext():
            before = model.parameters.tree(olds)
            updates, after = model.optimizer.update(model.parameters.tree(slopes), states, before)
            news = optim.apply_updates(before, updates)
        types = model.parameters._replace(types=tuple(x.type for x in olds))
        renewed = _like(types, news, "the new parameters")
        replaced = [
            *zip(model.parameters.names, olds, renewed, strict=True),
            *zip(model.state.names, state, _like(model.state, after, "the optimizer's new state"), strict=True),
            *zip(model.carried.names if model.carried else (), rest.carried, result.carried, strict=True),
            ("steps", steps, steps + 1),
        ]
        fine = g.constant(True)
        if failed is not None and anywhere is not None:
            fine = ops.all_finite(result.loss, *([] if scaled else tested))
            if model.ranks is not None and model.zero:  # each rank holds a different part of the gradients
                fine = ops.all_reduce(fine, model.ranks.axis, op="min")
            kept = [(kept_name(number, n), x) for n, x in zip(batch.names, inputs, strict=True)]
            for name, x in (*kept, ("kept", g.constant(number, "i32"))):  # not replaced after a failure
                g.update(name, ops.where(failed, g.state(name, x.shape, x.dtype), x))
            failed = ops.logical_or(anywhere, ops.logical_not(fine))
            if model.ranks is not None:  # a step is also void where another rank's is
                fine = ops.logical_not(failed)
            g.update("failed", failed)
            replaced = [(name, old, ops.where(failed, old, new)) for name, old, new in replaced]
        if model.ranks is not None and model.zero:
            count = len(parameters)
            whole = gathered(model.ranks, [new for _, _, new in replaced[:count]], parameters)
            replaced[:count] = zip(model.parameters.names, parameters, whole, strict=True)
        for name, _, new in replaced:
            g.update(name, new)
        columns = _columns([fine, *result.metrics.values()])
        record = g.state("record", (ROWS, columns.size), columns.dtype)
        g.update("record", ops.dynamic_update_slice(record, ops.reshape(columns, (1, -1)), [row, 0]))
        g.update("row", (row + 1) % ROWS)
    return Step(g, tuple(result.metrics))


def _over_parts(model: Model, parameters: list[Tensor]) -> AbstractContextManager[None]:
    """A context in which the optimizer updates this rank's parts of the parameters."""
    assert model.ranks is not None
    axis, whole = model.ranks.axis, model.parameters.tree(parameters)
    return optim.over_parts(lambda x: ops.all_reduce(x, axis), lambda x: ops.all_reduce(x, axis, op="min"), whole)


def _of_all(ranks: Ranks, result: Losses, weight: float) -> Losses:
    """The means of all ranks' metrics and states."""
    numbers = mean_numbers(ranks, [_real(m) for m in result.metrics.values()], weight)
    loss, others = ops.cast(numbers[0], result.loss.dtype), dict(zip(result.others, numbers[1:], strict=True))
    return Losses(loss, others, mean_state(ranks, result.carried, weight))


def _anywhere(ranks: Ranks, failed: Tensor | None, sound: Tensor | None) -> Tensor | None:
    """Whether any rank has a failed step that its host has not read yet, or gradients that are not `sound`."""
    if failed is None:
        return None
    if sound is not None:
        failed = ops.logical_or(failed, ops.logical_not(sound))
    return ops.all_reduce(failed, ranks.axis, op="max")


def _rest(model: Model, g: Graph, declare: Declare, steps: Tensor | int) -> Rest:
    """The other arguments of a loss function; `declare` declares those that a step replaces, as states or params."""
    frozen = None if model.frozen is None else model.frozen.tree(_declared(model.frozen, g.param))
    carried = [] if model.carried is None else _declared(model.carried, declare)
    key = fold_in(declare("key", (2,), "i32"), steps) if model.keyed else None
    if key is not None and model.ranks is not None and not isinstance(steps, int):
        key = fold_in(key, ops.axis_index(model.ranks.axis))  # so that random numbers differ between ranks
    return Rest(frozen, carried, key)


def _columns(values: Sequence[Tensor]) -> Tensor:
    """Scalars as one vector, in f64 if one of them is f64, else in f32."""
    wide = f64 if any(v.dtype == f64 for v in values) else f32
    return ops.stack([ops.cast(v, wide) for v in values])


def evaluation_graph(model: Model, batch: Leaves) -> Step:
    """The metrics of batches of these types as the output "values", and their names."""
    g = Graph("evaluation")
    with _tracing(g):
        parameters = model.parameters.tree(_declared(model.parameters, g.param))
        inputs, rest = batch.tree(_declared(batch, g.input)), _rest(model, g, g.param, -1)
        result = losses(model, parameters, inputs, rest)
        g.output("values", _columns(list(result.metrics.values())))
    return Step(g, tuple(result.metrics))


class Again(NamedTuple):
    """A failed step as a graph that changes no state: its loss and its gradients."""

    graph: Lined
    loss: Tensor
    slopes: list[Tensor]


def step_again(model: Model, batch: Leaves, number: int) -> Again:
    """The loss and gradients of the failed step, from its kept batch and the state before it."""
    g = Lined("failed step")
    with _tracing(g):
        parameters, state = _declared(model.parameters, g.param), _declared(model.state, g.param)
        inputs = [g.param(kept_name(number, n), t.shape, t.dtype) for n, t in batch.by_name.items()]
        rest = _rest(model, g, g.param, g.param("steps", (), "i32"))
        result, slopes = _of_parts(model, parameters, batch, inputs, rest, model.state.tree(state), unrolled=True)
    return Again(g, result.loss, slopes)
