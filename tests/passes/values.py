"""Values of a graph's results by the ops' NumPy references, and their comparison."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlx.conformance.oracle import evaluate
from rlx.dtypes import DType
from rlx.ir import Graph

Values = dict[tuple[str, str], Any]
# The difference allowed of a result, relative to 1 + |value|: one rounding more or less, carried through a few nodes.
TOLERANCE = {"f64": 1e-9, "f32": 2e-4, "f16": 2e-2, "bf16": 1e-1}


def results(graph: Graph, feeds: Mapping[str, Any], upcast: bool = False) -> Values:
    """Outputs and new states; in the graph's own dtypes, or in float64."""
    values = evaluate(graph, feeds, upcast=upcast)
    made = {("output", name): values[t.id] for name, t in graph.outputs.items()}
    made.update({("update", name): values[t.id] for name, t in graph.updates.items()})
    return made


def differences(
    graph: Graph, want: Values, got: Values, tolerance: Mapping[str, float] = TOLERANCE, fused: bool = False
) -> list[str]:
    """How `got` differs from `want`; the graph gives the dtypes. NaN and infinities must be in the same places.

    `fused`: a result is compared as the narrowest float that it was computed from, since a fusion does not round what
    it does not store."""
    found = [] if want.keys() == got.keys() else [f"results {sorted(got)} instead of {sorted(want)}"]
    narrowest = _narrowest(graph) if fused else {}
    for kind, name in want:
        result = (graph.outputs if kind == "output" else graph.updates)[name]
        dtype = narrowest.get(result.id, result.dtype)
        a, b = np.asarray(want[kind, name]), np.asarray(got[kind, name])
        if a.shape != b.shape:
            found.append(f"{kind} {name}: shape {b.shape} instead of {a.shape}")
        elif not dtype.is_float:
            if not np.array_equal(a, b.astype(a.dtype)):
                found.append(f"{kind} {name}: {b} instead of {a}")
        else:
            a, b = a.astype(np.float64), b.astype(np.float64)
            with np.errstate(invalid="ignore"):
                near = (a == b) | (np.abs(a - b) <= tolerance[dtype.name] * (1 + np.abs(a)))
            if not (near | (np.isnan(a) & np.isnan(b))).all():
                found.append(f"{kind} {name}: {b} instead of {a}")
    return found


def _narrowest(graph: Graph) -> dict[int, DType]:
    """By tensor, the float of the largest tolerance among its own dtype and those that it was computed from."""
    found: dict[int, DType] = {}
    for node in (n for n in graph.nodes if not n.op.leaf):
        read = [found[t.id] for t in node.inputs if t.id in found]
        for t in node.outputs:
            if t.dtype.name in TOLERANCE:
                found[t.id] = max([t.dtype, *read], key=lambda dtype: TOLERANCE[dtype.name])
    return found


def names(graph: Graph) -> list[str]:
    """The names of a graph's ops, without leaves."""
    return [n.op.name for n in graph.nodes if not n.op.leaf]


def same(before: Graph, after: Graph) -> None:
    """Asserts that both graphs have the same outputs, of the same types, for random inputs and weights."""
    rng = np.random.default_rng(0)
    leaves = {**before.inputs, **before.params}
    feeds = {name: rng.standard_normal(t.shape).astype(t.dtype.np) for name, t in leaves.items()}
    want, got = evaluate(before, feeds), evaluate(after, feeds)
    assert list(before.outputs) == list(after.outputs)
    for name, t in before.outputs.items():
        assert after.outputs[name].type == t.type
        np.testing.assert_allclose(got[after.outputs[name].id], want[t.id], rtol=1e-12, atol=1e-12)
