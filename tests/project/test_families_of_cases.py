"""What tries an op stands in the modules of its family: cases, random rule, scale of terms; judge and gradient case."""

from __future__ import annotations

import numpy as np
import pytest

from rlx.conformance.case import Case, InputSpec, cases_of, missing_of_inputs
from rlx.conformance.record import Conformance, families, record_of, records, records_of
from rlx.conformance.tolerances import COMPOSITE, NORM, compare
from rlx.dtypes import f32
from rlx.ir import NOT_DIFFERENTIABLE, REGISTRY
from rlx.ops.numeric import Array
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
    assert list(families()) == FAMILIES
    assert set(by_family.FAMILIES) <= set(FAMILIES)


@pytest.mark.parametrize("op", OPS)
def test_the_record_of_an_op_is_its_familys(op: str) -> None:
    record = records_of(REGISTRY[op].family)[op]
    assert all(_module(make).startswith(_home(record)) for make in record.cases)
    assert all(_module(rule.add).startswith(_home(record)) for rule in record.random)
    assert record.terms is None or _module(record.terms).startswith((_home(record), "rlx.conformance.terms"))
    assert bool(record.random) == (op not in BY_PASSES)
    assert cases_of(op)


def test_every_float_input_has_numbers_of_every_kind() -> None:
    """An op whose cases are of plain numbers alone may give NaN at 1e20 and pass; and a weight of NaN must show as an
    input does. `Conformance.without` says which has none, `narrower` which has those of another domain, and why."""
    left = {op: set(missing_of_inputs(cases_of(op))) for op in OPS}
    without = {op: set(record.without) for op in OPS if (record := record_of(op)) is not None}
    narrower = {op: record.narrower for op in OPS if (record := record_of(op)) is not None}
    assert {op: rest for op, kinds in left.items() if (rest := kinds - without[op] - set(narrower[op]))} == {}
    assert {op: kinds - left[op] for op, kinds in without.items() if kinds - left[op]} == {}
    for op, kinds in narrower.items():
        for (i, _), (domain, _) in kinds.items():
            assert any(c.name.endswith(f"-x{i}-{domain}") for c in cases_of(op)), (op, i, domain)
    case = Case("add", "one", tuple(InputSpec((9,), f32, d) for d in ("any", "normal")), {}, COMPOSITE)
    assert missing_of_inputs([case]) == [(1, "zero"), (1, "special"), (1, "wide")]


def test_an_op_that_gives_nan_at_1e20_needs_cases_that_show_it() -> None:
    """Softsign by a division of squares: right for plain numbers, NaN where x² is infinite."""

    def softsign(x: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(x * np.abs(x) / (np.abs(x) + x * x))

    def case(domain: str) -> Case:
        return Case("tanh", f"f32-1021-{domain}", (InputSpec((1021,), f32, domain),), {}, COMPOSITE)

    def passes(c: Case) -> bool:
        (x,) = c.arrays()
        wide = x.astype(np.float64)
        return compare(softsign(x), wide / (1 + np.abs(wide)), COMPOSITE).ok

    plain = [case("normal"), case("positive")]
    assert all(map(passes, plain))
    assert missing_of_inputs(plain) == [(0, "zero"), (0, "special"), (0, "wide")]
    assert missing_of_inputs([*plain, case("zeros")]) == [(0, "special"), (0, "wide")]
    assert missing_of_inputs([*plain, case("any")]) == [] and not passes(case("wide"))
    summed = [Case("sum", "a", (InputSpec((9,), f32, "any"),), {"axes": (0,), "keepdims": False}, NORM)]
    assert missing_of_inputs(summed) == [(0, "far")]


def test_a_record_is_of_an_op() -> None:
    assert sorted(record.op for record in records()) == OPS


@pytest.mark.parametrize("family", FAMILIES)
def test_judges_and_gradients_are_the_familys(family: str) -> None:
    """Each judge and gradient case is of an op of the family; where one is missing, the op's record suffices for it."""
    module = by_family.family(family)
    ops = [REGISTRY[op] for op in OPS if REGISTRY[op].family == family]
    judges = set(getattr(module, "JUDGES", {}))
    assert judges <= {op.judge for op in ops}
    assert {op.judge for op in ops if not op.judge.startswith(LIBRARIES)} <= judges
    assert set(getattr(module, "GRADIENTS", {})) <= {op.name for op in ops if op.vjp is not NOT_DIFFERENTIABLE}
