"""The judges and gradient cases of every op, from `tests.ops.families.<family>`."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

from rlx.ir import NOT_DIFFERENTIABLE, REGISTRY, get_op
from tests.ops.gradient_cases import GradientCase, Ties, derived
from tests.ops.judging import Judge, named

FAMILIES = sorted(path.stem for path in (Path(__file__).parent / "families").glob("*.py"))


def family(name: str) -> ModuleType | None:
    """The test module of a family, with its judges and gradient cases; None if the ops' records suffice."""
    return importlib.import_module(f"tests.ops.families.{name}") if name in FAMILIES else None


def judge_of(op: str) -> Judge:
    """The outside authority that checks the op's reference: the function of that name, unless the family adapts it."""
    record = get_op(op)
    judges: dict[str, Judge] = getattr(family(record.family), "JUDGES", {})
    return judges.get(record.judge) or named(record.judge)


_WRITTEN: dict[str, list[GradientCase]] = {
    op: [GradientCase(*row) for row in rows]
    for name in FAMILIES
    for op, rows in getattr(family(name), "GRADIENTS", {}).items()
}
GRADIENTS: dict[str, list[GradientCase]] = {
    name: _WRITTEN.get(name) or derived(name)
    for name, op in REGISTRY.items()
    if op.vjp is not NOT_DIFFERENTIABLE and op.family != "custom"
}
# Gradients at ties and kinks: the graph, and the same function in torch.
TIES: Ties = {key: pair for name in FAMILIES for key, pair in getattr(family(name), "TIES", {}).items()}
# Ops, or cases, of f64 that their judges cannot decide.
UNJUDGED = frozenset(key for name in FAMILIES for key in getattr(family(name), "UNJUDGED", ()))
