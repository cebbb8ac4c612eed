"""The output of RLX_DEBUG on stderr.

Level 1 prints the plan and how nodes run, 2 every step, 3 each step's time in each run, 4 each node's result compared
with the float64 reference of that node on the inputs it really had.

It reports on runs that are made anyway: nothing is run again, no function of the user is called for it, and an error
in reporting does not fail the run.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rlx.ir import Node, bodies
from rlx.ir.text import node_text
from rlx.packed import PackedArray
from rlx.runtime.session import TIMINGS as TIMINGS
from rlx.runtime.session import VALUES as VALUES

if TYPE_CHECKING:
    from rlx.runtime.compiled import CompiledGraph

PLAN, LAUNCHES = 1, 2
MAX_STEPS = 4096  # limit on the steps of loops in a reference
Values = dict[int, npt.NDArray[Any]]


def say(text: object) -> None:
    """Prints to stderr, if that exists and accepts it."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):  # stderr is closed, or a pipe without a reader
            print(text, file=sys.stderr, flush=True)


def show_built(compiled: CompiledGraph) -> None:
    """Prints a program after it was recorded."""
    level = compiled.options.build.debug
    if level >= PLAN:
        say(compiled.report())
    if level >= LAUNCHES:
        say("\n".join(compiled.executable.listing()))


def before_run(compiled: CompiledGraph) -> Values:
    """The states by tensor id, before a run replaces them; nodes of the run read these values."""
    if compiled.options.build.debug < VALUES:
        return {}
    return {t.id: compiled.value(t) for t in compiled.program.states.values()}


def show_run(compiled: CompiledGraph, before: Values) -> None:
    """Prints a run; `before` is the result of `before_run`."""
    level = compiled.options.build.debug
    if level >= TIMINGS:
        say(compiled.timings())
    if level >= VALUES:
        graph = compiled.program
        read = {t.id for t in graph.results()} | {t.id for node in graph.nodes for t in node.inputs}
        for node in graph.nodes:
            if not node.op.leaf:
                say(f"{_beside_reference(compiled, node, before, read)}  {node_text(node)}")


def _beside_reference(compiled: CompiledGraph, node: Node, before: Values, read: set[int]) -> str:
    """The errors of a node's results, except those that nothing reads, which a device need not compute."""
    if not _has_reference(node):
        return "no reference"
    ins = [_bytes_or_numbers(before[t.id] if t.id in before else compiled.value(t)) for t in node.inputs]
    wide = [a if a.dtype.kind in "iub" else a.astype(np.float64) for a in ins]
    # A loop may never end in float64, and its steps here must not count as the run's.
    from rlx.ops.control.steps import step_budget  # few programs are compared node by node
    from rlx.ops.interpret import apply_reference

    with np.errstate(all="ignore"), warnings.catch_warnings(), step_budget(MAX_STEPS):
        warnings.simplefilter("ignore")
        try:
            references = apply_reference(node, wide, True)
        except Exception as error:  # noqa: BLE001 an error in reporting must not fail the run
            return f"no reference ({type(error).__name__}: {error})"
        pairs = zip(node.outputs, references, strict=True)
        return ", ".join(_error(compiled.value(t), r) if t.id in read else "not read" for t, r in pairs)


def _bytes_or_numbers(value: Any) -> npt.NDArray[Any]:
    """A value in the form that references take: packed weights as their bytes."""
    return value.data if isinstance(value, PackedArray) else value


def _has_reference(node: Node) -> bool:
    """Whether the node's reference can be run again; a user's function need not give the same result twice."""
    inner = (n for body in bodies(node).values() for n in body.nodes)
    return node.op.family != "custom" and all(map(_has_reference, inner))


def _error(got: Any, reference: Any) -> str:
    a, b = np.asarray(_bytes_or_numbers(got), np.float64), np.asarray(reference, np.float64)
    if not a.size:
        return "empty"
    scale = float(np.max(np.abs(b), initial=0.0, where=np.isfinite(b)))
    worst = float(np.max(np.abs(a - b), initial=0.0, where=np.isfinite(a) & np.isfinite(b)))
    odd = int(np.count_nonzero(np.isfinite(a) != np.isfinite(b)))
    return f"max error {worst:.1e} of {scale:.1e}" + (f", {odd} not finite alike" if odd else "")
