"""Constant folding and every device give the reference's special values, in each form of operands (a sample of the
sweep in `special_values.py`), also where NumPy's own functions would give others."""

from __future__ import annotations

import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.dtypes import DType, f16, f32, f64, i32
from rlx.errors import DeviceUnavailable
from rlx.ir import Graph
from rlx.ops import numeric
from tests.passes.special_values import WAYS, Difference, Run, Subject, on_host, reason, sweep, ways

INF, NAN = math.inf, math.nan
# Attributes, inputs and result: C99's pow, torch's relu, clamp and fake quantization; of equal numbers the first.
VALUES: dict[str, tuple[dict[str, Any], list[list[float]], list[float]]] = {
    "pow": ({}, [[-INF, -0.0, 4.0, INF], [0.5]], [INF, 0.0, 2.0, INF]),
    "relu": ({}, [[-0.0, 0.0, -1.0, NAN]], [-0.0, 0.0, 0.0, NAN]),
    "clip": ({"min": 0.0, "max": 1.0}, [[-0.0, 0.0, -1.0, 2.0]], [-0.0, 0.0, 0.0, 1.0]),
    "maximum": ({}, [[-0.0, 0.0, NAN], [0.0, -0.0, 1.0]], [-0.0, 0.0, NAN]),
    "minimum": ({}, [[-0.0, 0.0, NAN], [0.0, -0.0, 1.0]], [-0.0, 0.0, NAN]),
    "fake_quantize": ({"low": -8, "high": 7}, [[-0.0, -0.1, -1.0], [1.0]], [0.0, 0.0, -1.0]),
}


def run_of(way: str) -> Run:
    try:
        return ways([way])[way]
    except DeviceUnavailable as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("way", WAYS)
def test_special_values_that_numpy_has_otherwise(way: str) -> None:
    run = run_of(way)
    for op, (attrs, inputs, want) in VALUES.items():
        for scalar in (True, False):
            arrays = [np.array(x[0] if scalar and len(x) == 1 else x, np.float32) for x in inputs]
            g = Graph(op)
            feeds = {f"x{i}": a for i, a in enumerate(arrays)}
            g.output("y", rlx.ir.apply(op, *(g.input(n, a.shape, f32) for n, a in feeds.items()), **attrs))
            with on_host(op) if way == "host" else nullcontext():
                (got,) = run(g, feeds)
            np.testing.assert_array_equal(got, np.array(want, np.float32), op)
            assert np.signbit(got[:2]).tolist() == np.signbit(want[:2]).tolist(), (op, scalar, got)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
def test_an_odd_power_keeps_the_sign_of_what_vanishes_and_overflows(way: str, dtype: DType) -> None:
    run, most = run_of(way), np.finfo(dtype.np).max
    x = np.array([-1e-30, -0.0, -INF, -most, -1e-30, -most, -1e-30, 1e-30], dtype.np)
    y = np.array([999, 3, -3, -999, 998, 999, -999, 999], dtype.np)
    g = Graph("pow")
    g.output("y", rlx.ir.apply("pow", *(g.input(n, a.shape, dtype) for n, a in (("x", x), ("y", y)))))
    with on_host("pow") if way == "host" else nullcontext():
        (got,) = run(g, {"x": x, "y": y})
    np.testing.assert_array_equal(got, [0, 0, 0, 0, 0, -INF, -INF, 0])
    assert np.signbit(got).tolist() == [True, True, True, True, False, True, True, False]


@pytest.mark.parametrize("way", ["folded", "numpy"])
def test_forms_of_operands_give_the_references_bits(way: str) -> None:
    subjects = [Subject("pow", (), (d, d)) for d in (f16, f32, f64, i32)]
    subjects += [Subject("maximum", (), (f32, f32)), Subject("mod", (), (f32, f32)), Subject("relu", (), (f64,))]
    runs = {way: run_of(way)}
    tried = 0
    for subject in subjects:
        for _, form, found in sweep(subject, runs, every=False):
            tried += 1
            assert found == Difference(), (subject.name, form)
    assert tried > 30


def test_each_row_of_the_table_has_a_reason() -> None:
    rows = Path(__file__).with_name("special_values.txt").read_text(encoding="utf-8").splitlines()
    assert {row.split(" | ")[0] for row in rows} == set(WAYS)
    assert not [row for row in rows if row.endswith("| ") or "WRONG" in row]
    by_way = {way: [row.split(" | ")[1:] for row in rows if row.startswith(f"{way} | ") and row.count(" | ") > 1]
              for way in WAYS}  # fmt: skip
    assert by_way["host"] == by_way["engine"] and not by_way["folded"]  # a host step is the engine's
    relu = Subject("relu", (), (f32,))
    assert not reason(relu, "full", Difference(zeros=1))
    assert not reason(relu, "0-d", Difference(ulp=1))


def test_equal_numbers_where_numpy_orders_zeros_by_value() -> None:
    """As on processors whose instruction gives +0 as the greater zero, in whatever order."""

    def ordered(a: Any, b: Any, out: Any = None) -> Any:
        greater = np.maximum(a, b)
        return np.where((a == 0) & (b == 0) & ~(np.signbit(a) & np.signbit(b)), np.abs(greater), greater)

    maximum = numeric._first_of_equals(ordered)  # type: ignore[arg-type]
    a = np.array([-0.0, 0.0, 1.0, NAN, 2.0, -0.0] * 5, np.float32)
    b = np.array([0.0, -0.0, 2.0, 1.0, NAN, -0.0] * 5, np.float32)
    want = np.array([-0.0, 0.0, 2.0, NAN, NAN, -0.0] * 5, np.float32)
    out = np.empty_like(a)
    for got in (maximum(a, b), maximum(a, b, out=out), out, numeric.maximum(a, b)):
        np.testing.assert_array_equal(got, want)
        assert np.signbit(got[[0, 1, 5]]).tolist() == [True, False, True]


@pytest.mark.parametrize("op", ["scatter", "scatter_elements"])
def test_a_scattered_extreme_keeps_the_first_of_equal_numbers(op: str) -> None:
    x = np.array([-0.0, 0.0, -1.0, 3.0], np.float32)
    indices, updates = np.array([0, 1, 2, 2], np.int32), np.array([0.0, -0.0, -0.0, 0.0], np.float32)
    attrs = {"axis": 0, "length": 4, "reduction": "max"}
    g = Graph("scatter")
    feeds = {"i": indices, "u": updates, "x": x}
    g.output("y", rlx.ir.apply(op, *(g.input(n, a.shape, a.dtype) for n, a in feeds.items()), **attrs))
    for way in ("folded", "numpy", "engine"):
        (got,) = run_of(way)(g, feeds)
        np.testing.assert_array_equal(got, [0, 0, 0, 3])
        assert np.signbit(got[:3]).tolist() == [True, False, True], way
