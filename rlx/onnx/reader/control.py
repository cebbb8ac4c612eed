"""Control flow. A branch with a known predicate is built in place, and a short loop with a known number of steps is
unrolled. Others are compiled to rlx.cond, rlx.while_loop and rlx.scan, if both branches, or all steps, give equal
types.

Where neither is possible, the values that decide the control flow are compiled in as constants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any

import numpy as np

from rlx import ops as o
from rlx.errors import DTypeError, GraphError, ModelFormatError, ShapeError, UnsupportedOp
from rlx.ir import Tensor
from rlx.onnx.ops.movement import axis_of
from rlx.onnx.ops.sequence import sequence_map
from rlx.onnx.reader.call import AnyValue, Call, NeedsValues, Value
from rlx.onnx.reader.elements import ElementType, carrier, element
from rlx.onnx.reader.read import all_nodes

CONTROL = ("If", "Loop", "Scan", "SequenceMap")
MAX_ITERATIONS = 1 << 11  # iterations of a loop that is unrolled
# A loop of a known number of steps is unrolled up to these limits of steps and of nodes in all: the steps then fuse.
FEW_STEPS = 16
FEW_NODES = 512
MAX_STEPS = 1 << 17  # the most steps of nested compiled loops with known counts: models are untrusted
# The most bodies of compiled control ops: each is a program of its own, which costs as much time as a hundred nodes.
MAX_BODIES = 128
ENDLESS = 1 << 18  # the run of a loop that only its condition ends is stopped after so many steps
Body = Callable[[Any, Sequence[AnyValue | None]], list[AnyValue]]


class _Unfit(Exception):
    """Control flow that cannot be compiled: steps of different types, sequences, results that depend on when a loop
    ends."""


class TooManySteps(UnsupportedOp):
    """Nested loops with known counts have more than `MAX_STEPS` steps together."""


def build_control(c: Call, graphs: Mapping[str, Any], run: Body) -> list[AnyValue]:
    """The outputs of an If, Loop, Scan or SequenceMap; `run` builds one of its graphs on given inputs."""
    if c.kind == "If":
        return _if(c, graphs, run)
    if c.kind == "SequenceMap":
        return sequence_map(c, graphs["body"], run)
    return _loop(c, graphs["body"], run) if c.kind == "Loop" else _scan(c, graphs["body"], run)


def _compiled(c: Call, build: Callable[[], list[AnyValue]], bodies: int = 1) -> list[AnyValue] | None:
    """The outputs of `build`, which makes `bodies` bodies. None where it cannot be compiled, where a part of it that
    may never run is refused, or where the model has too many bodies already.

    Raises: NeedsValues of inputs of the model, with which it is then built again; TooManySteps.
    """
    if c.known_values.bodies >= MAX_BODIES:
        return None
    c.known_values.bodies += bodies
    try:
        return build()
    except TooManySteps:
        raise
    except NeedsValues as need:
        if not need.local:
            raise
    except (_Unfit, ShapeError, DTypeError, GraphError, ModelFormatError, UnsupportedOp):
        pass
    return None


def _if(c: Call, graphs: Mapping[str, Any], run: Body) -> list[AnyValue]:
    try:
        taken = bool(c.known_scalar(0))
    except NeedsValues:
        result = _compiled(c, lambda: _branches(c, graphs, run), 2)
        if result is None:
            raise
        return result
    return run(graphs["then_branch" if taken else "else_branch"], [])


def _branches(c: Call, graphs: Mapping[str, Any], run: Body) -> list[AnyValue]:
    kinds: list[list[ElementType]] = []

    def branch(name: str) -> Callable[[], tuple[Tensor, ...]]:
        def build() -> tuple[Tensor, ...]:
            tensors, dtypes = _tensors(run(graphs[name], []))
            kinds.append(dtypes)
            return tensors

        return build

    results = o.cond(_one(c.x(0)), branch("then_branch"), branch("else_branch"))
    if kinds[0] != kinds[1]:
        raise _Unfit
    return _values(results, kinds[0])


def _tensors(held: Sequence[AnyValue | None]) -> tuple[tuple[Tensor, ...], list[ElementType]]:
    """Tensors and their element types. Raises: _Unfit for sequences, optionals and omitted inputs."""
    values = [v for v in held if isinstance(v, Value)]
    if len(values) != len(held):
        raise _Unfit
    return tuple(v.tensor for v in values), [v.dtype for v in values]


def _values(tensors: Sequence[Tensor], dtypes: Sequence[ElementType]) -> list[AnyValue]:
    return [Value(t, dtype) for t, dtype in zip(tensors, dtypes, strict=True)]


def _one(t: Tensor) -> Tensor:
    """A tensor of one element without axes. Raises: _Unfit."""
    if t.size != 1:
        raise _Unfit
    return t if t.shape == () else o.reshape(t, ())


def _few(steps: int, body: Any, outs: Sequence[Any]) -> bool:
    """Whether a loop of this number of steps is unrolled. A loop of no steps takes the types of its scan outputs `outs`
    from the body's declarations; where one is missing, the loop is built as a scan, which infers them."""
    if steps == 0:
        types = [info.type.tensor_type for info in outs]
        return all(
            t.elem_type and t.HasField("shape") and all(d.HasField("dim_value") for d in t.shape.dim)
            for t in types
        )
    return steps <= FEW_STEPS and steps * sum(1 for _ in all_nodes(body.node)) <= FEW_NODES


# -- Loop


def _loop(c: Call, body: Any, run: Body) -> list[AnyValue]:
    try:
        limit = c.known_int(0) if c.has(0) else None
        going = bool(c.known_scalar(1)) if c.has(1) else True
    except NeedsValues:
        result = _compiled(c, lambda: _while(c, body, run))
        if result is None:
            raise
        return result
    limit = 0 if not going or (limit is not None and limit < 0) else limit
    if limit is not None and _few(limit, body, body.output[len(c.inputs) - 1 :]):
        try:
            return _unrolled(c, body, run, limit, going)
        except NeedsValues:  # only the run knows whether the loop continues
            result = _compiled(c, lambda: _while(c, body, run))
            if result is None:
                raise
            return result
    result = None if limit is None else _compiled(c, lambda: _counted(c, body, run, limit))
    if result is None and limit != 0:
        result = _compiled(c, lambda: _while(c, body, run, known=True))
    return _unrolled(c, body, run, limit, going) if result is None else result


def _step(c: Call, run: Body, body: Any, i: Tensor, state: Sequence[AnyValue | None]) -> tuple[Value, list[AnyValue]]:
    """One step of a loop: whether the loop continues, then state and scan outputs."""
    results = run(body, [Value(i, np.dtype(np.int64)), c.constant(True), *state])
    return c.as_value(results[0], "the condition"), results[1:]


@contextmanager
def _repeated(c: Call, steps: int) -> Iterator[None]:
    """The context in which a body that runs `steps` times is built. Raises: TooManySteps, steps of inner loops
    included."""
    known = c.known_values
    around, known.steps = known.steps, 1
    try:
        yield
        total = steps * known.steps
    finally:
        known.steps = around
    if total > MAX_STEPS:
        raise TooManySteps(
            f"{c.where}: runs {total:,} steps, loops inside counted in; rlx runs up to {MAX_STEPS:,}"
        )
    known.steps = around + total


def _counted(c: Call, body: Any, run: Body, limit: int) -> list[AnyValue]:
    """A loop that never ends early, as a scan. Raises: _Unfit for one that may."""
    start, dtypes = _tensors(c.inputs[2:])
    kept: list[ElementType] = []

    def step(carry: Any, _: None) -> Any:
        i, state = carry
        going, results = _step(c, run, body, i, _values(state, dtypes))
        tensors, kinds = _tensors(results)
        if (limit and not _always(c, going)) or kinds[: len(start)] != dtypes:
            raise _Unfit
        kept[:] = kinds[len(start) :]
        return (i + 1, tensors[: len(start)]), tensors[len(start) :]

    zero = c.tensor(np.array(0, np.int64))
    with _repeated(c, limit):
        (_, last), ys = o.scan(step, (zero, start), None, length=limit)
    return _values((*last, *ys), [*dtypes, *kept])


def _always(c: Call, going: Value) -> bool | None:
    """The value of the condition, None where only a run knows it."""
    try:
        return bool(c.known_tensor(going.tensor).reshape(-1)[0])
    except NeedsValues:
        return None


def _while(c: Call, body: Any, run: Body, known: bool = False) -> list[AnyValue]:
    """A loop without scan outputs: their number would have to be known. With `known` limit and first condition, the
    loop must be one that its condition ends. Raises: _Unfit where it is not."""
    start, dtypes = _tensors(c.inputs[2:])
    if len(body.output) != 1 + len(start):
        raise _Unfit
    limit = _one(c.x(0)) if c.has(0) else None
    first = _one(c.x(1)) if c.has(1) else c.tensor(np.array(True))

    def goes_on(carry: Any) -> Tensor:
        i, going, _ = carry
        return going if limit is None else o.logical_and(going, i < limit)

    def step(carry: Any) -> Any:
        i, _, state = carry
        going, results = _step(c, run, body, i, _values(state, dtypes))
        tensors, kinds = _tensors(results)
        if kinds != dtypes or ((known or limit is None) and _always(c, going) is not None):
            raise _Unfit
        return i + 1, _one(going.tensor), tensors

    zero = c.tensor(np.array(0, np.int64))
    carried = o.while_loop(goes_on, step, (zero, first, start), max_steps=ENDLESS)
    return _values(carried[2], dtypes)


def _unrolled(c: Call, body: Any, run: Body, limit: int | None, going: bool) -> list[AnyValue]:
    state: list[AnyValue | None] = list(c.inputs[2:])
    outs = body.output[1 + len(state) :]
    columns: list[list[Value]] = [[] for _ in outs]
    step = 0
    while going and (limit is None or step < limit):
        if step >= MAX_ITERATIONS:
            raise c.unsupported(
                f"runs more than {MAX_ITERATIONS} times and cannot be compiled; rlx unrolls it"
            )
        again, results = _step(c, run, body, c.tensor(np.array(step, np.int64)), state)
        going = bool(c.known_tensor(again.tensor).reshape(-1)[0])
        state = list(results[: len(state)])
        for kept, value in zip(columns, results[len(state) :], strict=True):
            kept.append(c.as_value(value, "a scan output"))
        step += 1
    present = [v for v in state if v is not None]
    if len(present) != len(state):
        raise c.bad("a loop-carried value is left out")
    return present + [_collected(c, kept, info, 0) for kept, info in zip(columns, outs, strict=True)]


def _collected(c: Call, kept: list[Value], info: Any, axis: int) -> Value:
    if not kept:
        dtype = element(info.type.tensor_type.elem_type, c.where)
        dims = [d.dim_value for d in info.type.tensor_type.shape.dim]
        return Value(c.tensor(np.zeros((0, *dims), carrier(dtype).np)), dtype)
    return Value(o.stack([v.tensor for v in kept], axis), kept[0].dtype)


# -- Scan


def _scan(c: Call, body: Any, run: Body) -> list[AnyValue]:
    if c.version < 9:
        return _scan_of_batch(c, body, run)
    count = c.int("num_scan_inputs")
    n_state = len(c.inputs) - count
    if not 0 < count <= len(c.inputs) or len(body.output) < n_state:
        raise c.bad(f"num_scan_inputs is {count} of {len(c.inputs)} inputs")
    outs = len(body.output) - n_state
    axes = c.ints("scan_input_axes", [0] * count)
    out_axes = c.ints("scan_output_axes", [0] * outs)
    directions = c.ints("scan_input_directions", [0] * count)
    out_directions = c.ints("scan_output_directions", [0] * outs)
    if len(axes) != count or len(directions) != count or len(out_axes) != outs or len(out_directions) != outs:
        raise c.bad("axes and directions do not fit the number of scan inputs and outputs")
    xs: list[Value] = []
    for k, (axis, backwards) in enumerate(zip(axes, directions, strict=True)):
        x = c.value(n_state + k)
        rows = o.moveaxis(x.tensor, axis_of(c, axis, x.tensor.ndim), 0)
        xs.append(Value(o.flip(rows, 0) if backwards else rows, x.dtype))
    lengths = {x.tensor.shape[0] for x in xs}
    if len(lengths) != 1:
        raise c.bad(f"the scanned axes are {sorted(lengths)} long; expected one length")
    steps = lengths.pop()
    result = None
    if not _few(steps, body, body.output[n_state:]):
        result = _compiled(c, lambda: _scanned(c, body, run, xs, steps))
    if result is None:
        result = _scan_unrolled(c, body, run, xs, steps)
    for k, (axis, backwards) in enumerate(zip(out_axes, out_directions, strict=True), n_state):
        y = c.as_value(result[k], "a scan output")
        rows = o.flip(y.tensor, 0) if backwards else y.tensor
        result[k] = Value(o.moveaxis(rows, 0, axis_of(c, axis, rows.ndim)), y.dtype)
    return result


def _scan_of_batch(c: Call, body: Any, run: Body) -> list[AnyValue]:
    """The form of opset 8, whose inputs and outputs have a batch axis in front: each element of the batch is scanned
    alone."""
    if c.has(0):
        raise c.unsupported("sequence_lens is not supported")
    rest = [c.value(k) for k in range(1, len(c.inputs))]
    batches = {v.tensor.shape[:1] for v in rest}
    if len(batches) != 1 or batches <= {(), (0,)}:
        raise c.bad(f"the inputs have batches of {sorted(batches)}; expected one length, not 0")
    each = copy(c)
    each.version = 9
    each.attrs = {n: v for n, v in c.attrs.items() if n != "directions"}
    each.attrs["scan_input_directions"] = c.ints("directions")
    examples: list[list[Value]] = []
    for k in range(batches.pop()[0]):
        each.inputs = [Value(v.tensor[k], v.dtype) for v in rest]
        examples.append([c.as_value(v, "a result") for v in _scan(each, body, run)])
    return [Value(o.stack([v.tensor for v in parts]), parts[0].dtype) for parts in zip(*examples, strict=True)]


def _scanned(c: Call, body: Any, run: Body, xs: Sequence[Value], steps: int) -> list[AnyValue]:
    start, dtypes = _tensors(c.inputs[: len(c.inputs) - len(xs)])
    kept: list[ElementType] = []

    def step(state: Any, rows: Any) -> Any:
        tensors, kinds = _tensors(run(body, [*_values(state, dtypes), *_values(rows, [x.dtype for x in xs])]))
        if kinds[: len(start)] != dtypes:
            raise _Unfit
        kept[:] = kinds[len(start) :]
        return tensors[: len(start)], tensors[len(start) :]

    with _repeated(c, steps):
        last, ys = o.scan(step, start, tuple(x.tensor for x in xs), length=steps)
    return _values((*last, *ys), [*dtypes, *kept])


def _scan_unrolled(c: Call, body: Any, run: Body, xs: Sequence[Value], steps: int) -> list[AnyValue]:
    if steps > MAX_ITERATIONS:
        raise c.bad(
            f"the scanned axes are {steps} long and cannot be compiled; expected up to {MAX_ITERATIONS}"
        )
    n = len(c.inputs) - len(xs)
    state: list[AnyValue] = [c.value(k) for k in range(n)]
    columns: list[list[Value]] = [[] for _ in body.output[n:]]
    for step in range(steps):
        results = run(body, [*state, *(Value(x.tensor[step], x.dtype) for x in xs)])
        state = results[:n]
        for kept, value in zip(columns, results[n:], strict=True):
            kept.append(c.as_value(value, "a scan output"))
    return [*state, *(_collected(c, kept, info, 0) for kept, info in zip(columns, body.output[n:], strict=True))]
