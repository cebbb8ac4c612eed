"""Rows of a state: how many are valid, and copying an output's rows into a state without a transfer to the host."""

from __future__ import annotations

from rlx.driver import DeviceArena
from rlx.driver.memory.typed import whole
from rlx.errors import ArenaError, DTypeError, GraphError, ShapeError, meant
from rlx.ir import Graph


def rows_of(program: Graph, state: str) -> tuple[int, int]:
    """A state's node in the program, and the bytes of one row. Raises: GraphError, ShapeError."""
    if state not in program.states:
        near = meant(state, program.states)
        raise GraphError(f"there is no state {state!r}; there are {sorted(program.states)}{near}")
    t = program.states[state]
    if not t.shape or not t.type.nbytes:
        raise ShapeError(f"state {state!r} is {t.type}, which has no rows to count")
    return t.id, t.type.nbytes // t.shape[0]


def feed_rows(arena: DeviceArena, program: Graph, state: str, output: str, at: int | None) -> int:
    """`CompiledGraph.feed_rows` of a recorded program."""
    node, row = rows_of(program, state)
    if output not in program.outputs:
        raise GraphError(f"feed_rows: there is no output {output!r}; there are {sorted(program.outputs)}")
    source, target = program.outputs[output], program.states[state]
    if not source.shape or source.shape[1:] != target.shape[1:]:
        raise ShapeError(f"feed_rows: output {output!r} is {source.type}; expected rows of state {target.type}")
    if source.dtype != target.dtype:
        raise DTypeError(f"feed_rows: output {output!r} is {source.type}, state {state!r} {target.type}; cast it")
    count, valid = source.shape[0], arena.len_of(node) // row
    first = valid if at is None else whole(at, "feed_rows: at")
    if not 0 <= first <= valid or first + count > target.shape[0]:
        raise ArenaError(
            f"feed_rows: rows {first}..{first + count} of state {state!r}, which has {target.shape[0]}, {valid} of "
            "them valid; begin at a valid row or just behind the last, and make the state large enough"
        )
    arena.copy_range(source.id, 0, node, first * row, count * row)
    arena.set_actual_len(node, max(valid, first + count) * row)
    return max(valid, first + count)
