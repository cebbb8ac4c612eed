"""Constant folding and every device give the reference's special values, in each form of operands (a sample of the sweep
in `special_values.py`), and what NumPy would give otherwise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.dtypes import DType, f16, f32, f64
from rlx.ir import Graph, Tensor
from rlx.ops import numeric
from tests.devices import session_here
from tests.passes.special_values import Subject, folded, on_host, ran, subjects, sweep, unexplained

Run = Callable[..., Any]


@pytest.fixture(params=["folded", "numpy", "engine", "vulkan", "host"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def run_of(way: str) -> Run:
    if way == "folded":
        return folded
    if way in ("numpy", "engine"):
        return ran(rlx.Session("cpu", engine="numpy" if way == "numpy" else "compiled"))
    return ran(session_here("vulkan"))


# What C99, torch's relu and an integer level of a grid say; NumPy's own functions give other values for some operands.
VALUES: dict[str, tuple[str, Callable[..., Tensor], list[list[float]], list[float]]] = {
    "pow 0.5": ("pow", ops.pow, [[-math.inf, -0.0, 4.0, math.inf], [0.5]], [math.inf, 0.0, 2.0, math.inf]),
    "pow -1": ("pow", ops.pow, [[-math.inf, -0.0, 4.0], [-1.0]], [-0.0, -math.inf, 0.25]),
    "relu": ("relu", ops.relu, [[-0.0, 0.0, -1.0, math.nan]], [-0.0, 0.0, 0.0, math.nan]),
    "maximum": ("maximum", ops.maximum, [[-0.0, 0.0], [0.0, -0.0]], [-0.0, 0.0]),
    "minimum": ("minimum", ops.minimum, [[-0.0, 0.0], [0.0, -0.0]], [-0.0, 0.0]),
    "fake_quantize": (
        "fake_quantize", lambda x, s: rlx.ops.fake_quantize(x, s, low=-8, high=7), [[-0.0, -0.1], [1.0]], [0.0, 0.0],
    ),
}  # fmt: skip
