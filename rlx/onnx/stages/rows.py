"""How many first rows of a value are read: a detector suppresses thousands of boxes, and then takes the best 300."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlx.onnx.reader.elements import Array

_WHOLE = ("Identity", "Cast")
Rows = dict[str, int | None]  # how many first rows of a value are read; None: all, absent: none


def find_rows(
    steps: Sequence[Any], wanted: Mapping[str, int | None], constants: Mapping[str, Array]
) -> tuple[str, ...]:
    """Sets `rows` of each step: how many of the first rows of its outputs later steps read. `wanted` has these numbers
    for what is read after the last step (None: all rows). Returns the names of the constants on which they depend."""
    needed: Rows = dict(wanted)
    assumed: set[str] = set()

    def read(name: str, rows: int | None) -> None:
        before = needed.get(name, 0)
        needed[name] = None if rows is None or before is None else max(rows, before)

    for step in reversed(steps):
        step.rows = tuple(needed.get(n, 0) for n in step.outputs)
        if step.twin is not None:
            for name, rows in zip(step.twin.outputs, step.rows, strict=True):
                read(name, rows)
            continue
        passed = None
        if step.function is not None and step.n_outputs == 1:
            passed = _passed(step, constants, assumed)
        for name in step.reads:
            # A step that reads the value twice, such as once as data and once as an index, needs all of it.
            alone = passed is not None and name == step.inputs[0] and step.inputs.count(name) == 1
            if not alone:
                read(name, None)
            elif passed is not None:
                rows = step.rows[0]
                read(name, rows if passed < 0 else passed if rows is None else min(passed, rows))
    return tuple(sorted(assumed))


def _passed(step: Any, constants: Mapping[str, Array], assumed: set[str]) -> int | None:
    """The number of rows that a node reads of its first input, from the first on; -1 if the first n rows of its output
    need just the first n of the input; None if it is not known. Adds the names of constants that this depends on to
    `assumed`."""
    kind, inputs = step.kind, step.inputs
    if kind in _WHOLE:
        return -1
    if kind == "Gather":
        return -1 if step.attrs.get("axis", 0) > 0 else None
    arrays = [constants.get(n) for n in inputs[1:]]
    if any(a is None for a in arrays):
        return None
    numbers = [a.ravel().tolist() for a in arrays if a is not None]
    if kind in ("Squeeze", "Unsqueeze") and step.version >= 13 and len(numbers) == 1:
        result = -1 if numbers[0] and min(numbers[0]) > 0 else None
    elif kind == "Slice" and step.version >= 10 and len(numbers) in (2, 3, 4):
        starts, ends, axes, strides = numbers + [[0], [1]][len(numbers) - 2 :]
        result = ends[0] if (starts, axes, strides) == ([0], [0], [1]) and len(ends) == 1 and ends[0] >= 0 else None
    else:
        result = None
    if result is not None:
        assumed.update(inputs[1:])
    return result
