"""The judges and gradient cases of every op, from `tests.ops.families.<family>`."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

from rlx.ir import get_op
from tests.ops.gradient_cases import GradientCase, Ties
from tests.ops.judging import Judge

FAMILIES = sorted(path.stem for path in (Path(__file__).parent / "families").glob("*.py"))


def family(name: str) -> ModuleType:
    return importlib.import_module(f"tests.ops.families.{name}")


def judge_of(op: str) -> Judge:
    """The outside authority that checks the op's reference. Raises KeyError where its family has none of that name."""
    judge: Judge = family(get_op(op).family).JUDGES[get_op(op).judge]
    return judge


GRADIENTS: dict[str, list[GradientCase]] = {
    op: [GradientCase(*row) for row in rows] for name in FAMILIES for op, rows in family(name).GRADIENTS.items()
}
# Gradients at ties and kinks: the graph, and the same function in torch.
TIES: Ties = {key: pair for name in FAMILIES for key, pair in getattr(family(name), "TIES", {}).items()}
# Ops, or cases, of f64 that their judges cannot decide.
UNJUDGED = frozenset(key for name in FAMILIES for key in getattr(family(name), "UNJUDGED", ()))
