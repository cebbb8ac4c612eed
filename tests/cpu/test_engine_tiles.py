"""Products by x86's matrix unit (`packed/tiles.py`, `digits.py`) where there is none: its instructions are emulated."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rlx.backends.cpu import choice
from rlx.backends.cpu.compile import KernelSpec
from rlx.backends.cpu.machine import Machine, this_machine
from rlx.backends.cpu.packed.digits import DigitsDotKernel
from rlx.backends.cpu.packed.tiles import TilesKernel
from tests.cpu import test_engine_products as products
from tests.cpu.matrix_unit import emulated_addresses, with_unit
from tests.cpu.processors import FORMS, lacking

pytestmark = [
    pytest.mark.skipif(choice.why_not() is not None, reason=f"no compiled engine: {choice.why_not()}"),
    pytest.mark.skipif(lacking(FORMS["avx512"]) is not None, reason=f"avx512: {lacking(FORMS['avx512'])}"),
]


@pytest.fixture
def unit(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """The processor as if it had the unit, which each product of the test must use."""

    def compiled(specs: Sequence[KernelSpec], machine: Machine) -> list[int]:
        assert any(isinstance(s, TilesKernel | DigitsDotKernel) for s in specs)
        return emulated_addresses(specs, machine)

    monkeypatch.setattr(products, "addresses", compiled)
    found = this_machine()
    assert found is not None
    return with_unit(found)


@pytest.mark.parametrize("name", ["q4_k", "bf16", "f16"])
def test_rows_that_are_decoded(name: str, unit: Machine) -> None:
    products.test_products_with_rows_that_are_decoded(name, 17, 1056, 50, unit)


@pytest.mark.parametrize("sizes", [(1e-38, 1.0), (1e-20, 1e-20), (1.0, 1e-38), (0.0, 0.0)])
def test_tiny_rows(sizes: tuple[float, float], unit: Machine) -> None:
    products.test_tiny_rows(sizes, unit)


def test_infinities_and_nans_stay_in_their_rows(unit: Machine) -> None:
    products.test_infinities_and_nans_stay_in_their_rows(unit)


@pytest.mark.parametrize("name", ["q4_k", "bf16"])
def test_rows_of_a_weight_do_not_depend_on_those_beside_them(name: str, unit: Machine) -> None:
    products.test_rows_of_a_weight_do_not_depend_on_those_beside_them(name, 17, unit)


@pytest.mark.parametrize("name", ["q4_k", "bf16"])
def test_rows_of_x_do_not_depend_on_what_stands_in_others(name: str, unit: Machine) -> None:
    products.test_rows_of_x_do_not_depend_on_what_stands_in_others(name, unit)


def test_one_row_by_digits(unit: Machine) -> None:
    """The minimums of a row of x, which is multiplied in integers, reduce the sums that they belong to."""
    products.test_minimums_beside_elements_of_one_sign("q4_k", unit)
