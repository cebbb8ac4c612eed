"""Control flow whose course is known while the graph is built: branches taken, loops and scans unrolled.

Where a condition or a count depends on inputs, their values become part of the compiled program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rlx import ops as o
from rlx.formats.onnx.call import Call, Held, Value
from rlx.formats.onnx.elements import carrier
from rlx.formats.onnx.ops_movement import axis_of
from rlx.formats.onnx.ops_sequence import sequence_map
from rlx.ir import Tensor

CONTROL = ("If", "Loop", "Scan", "SequenceMap")
MAX_ITERATIONS = 1 << 11  # of a loop that is unrolled
Body = Callable[[Any, Sequence[Held | None]], list[Held]]


def build_control(c: Call, graphs: Mapping[str, Any], run: Body) -> list[Held]:
    """The outputs of an If, Loop, Scan or SequenceMap; `run` builds one of its graphs on given inputs."""
    if c.kind == "If":
        taken = bool(c.known_scalar(0))
        return run(graphs["then_branch" if taken else "else_branch"], [])
    if c.kind == "SequenceMap":
        return sequence_map(c, graphs["body"], run)
    return _loop(c, graphs["body"], run) if c.kind == "Loop" else _scan(c, graphs["body"], run)


def _stacked(c: Call, parts: list[Tensor], info: Any, axis: int = 0) -> Tensor:
    if parts:
        return o.stack(parts, axis)
    dims = [d.dim_value for d in info.type.tensor_type.shape.dim]
    return c.tensor(np.zeros((0, *dims), np.float32))


def _loop(c: Call, body: Any, run: Body) -> list[Held]:
    limit = int(c.known_scalar(0)) if c.has(0) else None
    going = bool(c.known_scalar(1)) if c.has(1) else True
    state: list[Held | None] = list(c.inputs[2:])
    made: list[list[Value]] = [[] for _ in body.output[1 + len(state) :]]
    step = 0
    while going and (limit is None or step < limit):
        if step >= MAX_ITERATIONS:
            raise c.unsupported(f"runs more than {MAX_ITERATIONS} times; rlx unrolls loops")
        results = run(body, [c.constant(step, np.dtype(np.int64)), c.constant(True), *state])
        going = bool(c.known_tensor(c.as_value(results[0], "the condition").tensor).reshape(-1)[0])
        state = list(results[1 : 1 + len(state)])
        for kept, value in zip(made, results[1 + len(state) :], strict=True):
            kept.append(c.as_value(value, "a scan output"))
        step += 1
    found = [v for v in state if v is not None]
    if len(found) != len(state):
        raise c.bad("a loop-carried value is left out")
    return found + [
        _collected(c, kept, info, 0) for kept, info in zip(made, body.output[1 + len(state) :], strict=True)
    ]


def _collected(c: Call, kept: list[Value], info: Any, axis: int) -> Value:
    from rlx.formats.onnx.elements import element

    if not kept:
        dtype = element(info.type.tensor_type.elem_type, c.where)
        dims = [d.dim_value for d in info.type.tensor_type.shape.dim]
        return Value(c.tensor(np.zeros((0, *dims), carrier(dtype).np)), dtype)
    return Value(o.stack([v.tensor for v in kept], axis), kept[0].dtype)


def _scan(c: Call, body: Any, run: Body) -> list[Held]:
    if c.version < 9:
        raise c.unsupported("Scan of opset 8 is not supported")
    count = c.int("num_scan_inputs")
    n_state = len(c.inputs) - count
    if not 0 < count <= len(c.inputs) or len(body.output) < n_state:
        raise c.bad(f"num_scan_inputs is {count} of {len(c.inputs)} inputs")
    xs = [c.value(n_state + k) for k in range(count)]
    axes = c.ints("scan_input_axes", [0] * count)
    directions = c.ints("scan_input_directions", [0] * count)
    outs = len(body.output) - n_state
    out_axes, out_directions = (
        c.ints("scan_output_axes", [0] * outs),
        c.ints("scan_output_directions", [0] * outs),
    )
    if len(axes) != count or len(directions) != count or len(out_axes) != outs or len(out_directions) != outs:
        raise c.bad("axes and directions do not fit the number of scan inputs and outputs")
    axes = [axis_of(c, a, x.tensor.ndim) for a, x in zip(axes, xs, strict=True)]
    lengths = {x.tensor.shape[a] for x, a in zip(xs, axes, strict=True)}
    if len(lengths) != 1 or max(lengths) > MAX_ITERATIONS:
        raise c.bad(
            f"the scanned axes are {sorted(lengths)} long; expected one length up to {MAX_ITERATIONS}"
        )
    steps = lengths.pop()
    state: list[Held] = [c.value(k) for k in range(n_state)]
    made: list[list[Value]] = [[] for _ in range(outs)]
    for step in range(steps):
        parts: list[Held] = []
        for x, axis, backwards in zip(xs, axes, directions, strict=True):
            at = steps - 1 - step if backwards else step
            parts.append(Value(x.tensor[(slice(None),) * axis + (at,)], x.dtype))
        results = run(body, [*state, *parts])
        state = results[:n_state]
        for kept, value in zip(made, results[n_state:], strict=True):
            kept.append(c.as_value(value, "a scan output"))
    collected: list[Held] = []
    for k, kept in enumerate(made):
        ordered = kept[::-1] if out_directions[k] else kept
        rank = (kept[0].tensor.ndim if kept else 0) + 1
        collected.append(_collected(c, ordered, body.output[n_state + k], axis_of(c, out_axes[k], rank)))
    return [*state, *collected]
