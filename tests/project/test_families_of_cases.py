"""What tries an op stands in the modules of its family: cases, random rule, scale of terms; judge and gradient case."""

from __future__ import annotations

from types import ModuleType

import pytest

from rlx.conformance.case import cases_of
from rlx.conformance.record import Conformance, families, records, records_of
from rlx.ir import NOT_DIFFERENTIABLE, REGISTRY
from tests.ops import by_family

OPS = sorted(name for name, op in REGISTRY.items() if not op.leaf)
FAMILIES = sorted({REGISTRY[op].family for op in OPS})
LIBRARIES = ("numpy.", "scipy.", "torch.")
BY_PASSES = {"fused"}  # no random graph makes it: it comes of their fusion


def _home(record: Conformance) -> str:
    return f"rlx.conformance.cases.{REGISTRY[record.op].family}"


def _module(made: object) -> str:
    """Where a function is written, the one inside a partial too."""
    return str(getattr(getattr(made, "func", made), "__module__", ""))


def test_there_is_one_module_a_family() -> None:
    assert list(families()) == FAMILIES == by_family.FAMILIES


@pytest.mark.parametrize("op", OPS)
def test_the_record_of_an_op_is_its_familys(op: str) -> None:
    record = records_of(REGISTRY[op].family)[op]
    assert all(_module(make).startswith(_home(record)) for make in record.cases)
    assert all(_module(rule.add).startswith(_home(record)) for rule in record.random)
    assert record.terms is None or _module(record.terms).startswith((_home(record), "rlx.conformance.terms"))
    assert bool(record.random) == (op not in BY_PASSES)
    assert cases_of(op)


def test_a_record_is_of_an_op() -> None:
    assert sorted(record.op for record in records()) == OPS


@pytest.mark.parametrize("family", FAMILIES)
def test_judges_and_gradients_are_the_familys(family: str) -> None:
    """Each judge and gradient case is of an op of the family; where one is missing, the op's record suffices for it."""
    module: ModuleType = by_family.family(family)
    ops = [REGISTRY[op] for op in OPS if REGISTRY[op].family == family]
    differentiable = {op.name: op.elementwise for op in ops if op.vjp is not NOT_DIFFERENTIABLE}
    assert set(module.JUDGES) <= {op.judge for op in ops}
    assert {op.judge for op in ops if not op.judge.startswith(LIBRARIES)} <= set(module.JUDGES)
    assert set(module.GRADIENTS) <= set(differentiable)
    assert {name for name, derived in differentiable.items() if not derived} <= set(module.GRADIENTS)
