"""A sample of the array API's calls, with rlx outside a trace and with NumPy; and the table's counts."""

from __future__ import annotations

import re

import numpy as np
import pytest

import rlx
from rlx.conformance.names import ARRAY_API
from tests.ops.array_api_calls import CALLS, TABLE, compared

SAMPLE = ("take", "unique_all", "searchsorted", "cumulative_sum", "vecdot", "isin", "result_type", "unstack")


@pytest.mark.parametrize("name", SAMPLE)
def test_a_call_as_numpys(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_CPU", "numpy")
    call = next(call for n, call in CALLS if n == name)
    assert compared(name, call, np) == ""


def test_every_function_is_called() -> None:
    assert {name for name, _ in CALLS} == set(ARRAY_API.split())


def test_the_table_says_so_of_each_function_that_rlx_has() -> None:
    """At least 80 of 100 agree in values and shapes; those that rlx lacks are listed."""
    for part in TABLE.read_text(encoding="utf-8").split("\n\n"):
        if not part.strip():
            continue
        count = int(re.findall(r": (\d+) functions", part)[0])
        same, near = (int(re.findall(text, part)[0]) for text in (r"and dtypes: (\d+)", r"shapes: (\d+) more"))
        assert count == len(ARRAY_API.split()) and same + near >= 0.8 * count
        lacking = set(re.findall(r"^  (\w+): rlx lacks it", part, re.M))
        assert not {name for name in lacking if hasattr(rlx, name)}
