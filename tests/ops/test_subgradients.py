"""Gradients at kinks, at ties, and where an input is infinite or NaN: torch's, as docs/gradients.md says."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
import rlx.ops as ops
from rlx.autodiff import gradients
from rlx.conformance.oracle import evaluate
from rlx.ir import Graph, Tensor
from tests.devices import session_here

INF, NAN = math.inf, math.nan
Array = np.ndarray[Any, np.dtype[Any]]
Build = Callable[..., Tensor]


@pytest.fixture(scope="module")
def session(request: pytest.FixtureRequest) -> rlx.Session:
    return session_here(request.param)


POINTS = np.array([-INF, -6, -3, -2, -1, -0.5, -0.0, 0.0, 0.5, 1, 2, 3, 6, INF, NAN])
VALUES = np.array([-2, -0.0, 0.0, 1, INF, NAN])
ROWS = np.array(
    [[0, 0, 0], [1, 1, 2], [2, 2, 1], [3, 3, 3], [0, 1, 0], [-0.0, 0, -1], [-INF, 1, 2], [-INF] * 3, [NAN, 1, 2]]
)  # fmt: skip
BUILDS: dict[str, Build] = {
    **{name: getattr(ops, name) for name in (
        "abs", "sign", "relu", "relu6", "elu", "selu", "hard_swish", "softplus", "sqrt", "rsqrt", "log", "round",
        "floor", "ceil", "trunc", "sigmoid", "tanh", "asin", "acos", "atanh", "log1p", "reciprocal")},
    "leaky_relu": lambda x: ops.leaky_relu(x, 0.2), "elu_negative": lambda x: ops.elu(x, -0.5),
    "elu_zero": lambda x: ops.elu(x, 0.0), "hard_sigmoid": lambda x: ops.hard_sigmoid(x, 1 / 6),
    "clip": lambda x: ops.clip(x, -1.0, 2.0), "clip_from": lambda x: ops.clip(x, -1.0),
    "clip_to": lambda x: ops.clip(x, max=2.0), "clip_to_one": lambda x: ops.clip(x, 1.0, 1.0),
    "clip_reversed": lambda x: ops.clip(x, 2.0, 1.0), "maximum_of_0": lambda x: ops.maximum(x, 0.0),
    "minimum_of_0": lambda x: ops.minimum(x, 0.0), "where": lambda x: ops.where(x > 0, x, x * 0.0),
    "mod": lambda x: ops.mod(x, 3.0), "fmod": lambda x: ops.fmod(x, 3.0),
    **{f"pow_{word}": lambda x, e=e: x**e for word, e in (("0", 0.0), ("1", 1.0), ("2", 2.0), ("minus_1", -1.0))},
}  # fmt: skip
PAIRED: dict[str, Build] = {
    **{name: getattr(ops, name) for name in ("maximum", "minimum", "prelu", "pow", "atan2", "div", "mod")},
    "where": lambda a, b: ops.where(a > b, a, b),
}
ROW_BUILDS: dict[str, Build] = {
    **{name: lambda x, name=name: getattr(ops, name)(x, 1) for name in (
        "max", "min", "prod", "logsumexp", "softmax", "log_softmax", "std", "normalize", "cumprod", "sort")},
    "sort_descending": lambda x: ops.sort(x, 1, descending=True), "top_k": lambda x: ops.top_k(x, 2)[0],
    "top_k_smallest": lambda x: ops.top_k(x, 2, largest=False)[0],
    "max_pool": lambda x: ops.max_pool(ops.expand_dims(x, 1), 2, strides=1),
    "fake_quantize": lambda x: ops.fake_quantize(x, 0.5, 0, bits=3),
    "cross_entropy": lambda x: ops.cross_entropy(x, np.arange(x.shape[0]) % 3, reduction="none"),
}  # fmt: skip

# Results of torch 2.13 in float64 on a CPU. First the gradients of functions of one input, at POINTS.
ONE: dict[str, list[float]] = {
    "abs": [-1, -1, -1, -1, -1, -1, 0, 0, 1, 1, 1, 1, 1, 1, 0],
    "sign": [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    "relu": [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1],
    "relu6": [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 1],
    "leaky_relu": [0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 1, 1, 1, 1, 1, 1, 0.2],
    "elu": [0, 0.002478752176666, 0.04978706836786, 0.1353352832366, 0.3678794411714, 0.6065306597126, 1, 1, 1, 1, 1,
        1, 1, 1, 1],
    "elu_negative": [0, -0.001239376088333, -0.02489353418393, -0.06766764161831, -0.1839397205857, -0.3032653298563,
        -0.5, -0.5, 1, 1, 1, 1, 1, 1, 1],
    "elu_zero": [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1],
    "selu": [0, 0.004357892567921, 0.08753061208026, 0.2379328722517, 0.6467686030348, 1.066341153045, 1.758099340847,
        1.758099340847, 1.050700987355, 1.050700987355, 1.050700987355, 1.050700987355, 1.050700987355,
        1.050700987355, 1.050700987355],
    "hard_sigmoid": [0, 0, 0, 0.1666666666667, 0.1666666666667, 0.1666666666667, 0.1666666666667, 0.1666666666667,
        0.1666666666667, 0.1666666666667, 0.1666666666667, 0, 0, 0, 0],
    "hard_swish": [0, 0, 0, -0.1666666666667, 0.1666666666667, 0.3333333333333, 0.5, 0.5, 0.6666666666667,
        0.8333333333333, 1.166666666667, 1, 1, 1, 1],
    "clip": [0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0],
    "clip_from": [0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0],
    "clip_to": [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0],
    "clip_to_one": [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0],
    "clip_reversed": [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    "maximum_of_0": [0, 0, 0, 0, 0, 0, 0.5, 0.5, 1, 1, 1, 1, 1, 1, 1],
    "minimum_of_0": [1, 1, 1, 1, 1, 1, 0.5, 0.5, 0, 0, 0, 0, 0, 0, 1],
    "softplus": [0, 0.002472623156635, 0.04742587317757, 0.1192029220221, 0.26894142137, 0.3775406687981, 0.5, 0.5,
        0.6224593312019, 0.73105857863, 0.8807970779779, 0.9525741268224, 0.9975273768434, 1, NAN],
    "sqrt": [NAN, NAN, NAN, NAN, NAN, NAN, -INF, INF, 0.7071067811865, 0.5, 0.3535533905933, 0.2886751345948,
        0.2041241452319, 0, NAN],
    "rsqrt": [NAN, NAN, NAN, NAN, NAN, NAN, INF, -INF, -1.414213562373, -0.5, -0.1767766952966, -0.09622504486494,
        -0.03402069087199, 0, NAN],
    "log": [0, -0.1666666666667, -0.3333333333333, -0.5, -1, -2, -INF, INF, 2, 1, 0.5, 0.3333333333333,
        0.1666666666667, 0, NAN],
    "pow_0": [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    "pow_1": [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
    "pow_2": [-INF, -12, -6, -4, -2, -1, 0, 0, 1, 2, 4, 6, 12, INF, NAN],
    "pow_minus_1": [0, -0.02777777777778, -0.1111111111111, -0.25, -1, -4, -INF, -INF, -4, -1, -0.25,
        -0.1111111111111, -0.02777777777778, 0, NAN],
    "round": [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    "floor": [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    "ceil": [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    "trunc": [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    "mod": [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
    "fmod": [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
    "sigmoid": [0, 0.00246650929136, 0.04517665973091, 0.1049935854035, 0.1966119332415, 0.2350037122016, 0.25, 0.25,
        0.2350037122016, 0.1966119332415, 0.1049935854035, 0.04517665973091, 0.00246650929136, 0, NAN],
    "tanh": [0, 2.45765474053e-05, 0.00986603716544, 0.07065082485316, 0.419974341614, 0.7864477329659, 1, 1,
        0.7864477329659, 0.419974341614, 0.07065082485316, 0.00986603716544, 2.45765474053e-05, 0, NAN],
    "where": [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 0],
    "asin": [NAN, NAN, NAN, NAN, INF, 1.154700538379, 1, 1, 1.154700538379, INF, NAN, NAN, NAN, NAN, NAN],
    "acos": [NAN, NAN, NAN, NAN, -INF, -1.154700538379, -1, -1, -1.154700538379, -INF, NAN, NAN, NAN, NAN, NAN],
    "atanh": [0, -0.02857142857143, -0.125, -0.3333333333333, INF, 1.333333333333, 1, 1, 1.333333333333, INF,
        -0.3333333333333, -0.125, -0.02857142857143, 0, NAN],
    "log1p": [0, -0.2, -0.5, -1, INF, 2, 1, 1, 0.6666666666667, 0.5, 0.3333333333333, 0.25, 0.1428571428571, 0, NAN],
    "reciprocal": [0, -0.02777777777778, -0.1111111111111, -0.25, -1, -4, -INF, -INF, -4, -1, -0.25, -0.1111111111111,
        -0.02777777777778, 0, NAN],
}  # fmt: skip
# The gradients with respect to both inputs, over every pair of VALUES.
TWO: dict[str, list[float]] = {
    "maximum": [0.5, 1, 1, 1, 1, 1, 0, 0.5, 0.5, 1, 1, 1, 0, 0.5, 0.5, 1, 1, 1, 0, 0, 0, 0.5, 1, 1, 0, 0, 0, 0, 0.5,
        1, 1, 1, 1, 1, 1, 1, 0.5, 0, 0, 0, 0, 1, 1, 0.5, 0.5, 0, 0, 1, 1, 0.5, 0.5, 0, 0, 1, 1, 1, 1, 0.5, 0, 1, 1, 1,
        1, 1, 0.5, 1, 1, 1, 1, 1, 1, 1],
    "minimum": [0.5, 0, 0, 0, 0, 1, 1, 0.5, 0.5, 0, 0, 1, 1, 0.5, 0.5, 0, 0, 1, 1, 1, 1, 0.5, 0, 1, 1, 1, 1, 1, 0.5,
        1, 1, 1, 1, 1, 1, 1, 0.5, 1, 1, 1, 1, 1, 0, 0.5, 0.5, 1, 1, 1, 0, 0.5, 0.5, 1, 1, 1, 0, 0, 0, 0.5, 1, 1, 0, 0,
        0, 0, 0.5, 1, 1, 1, 1, 1, 1, 1],
    "prelu": [-2, -2, -2, 1, 1, -2, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 0, 1, 1, 1, 1, 1, 1, INF, INF, INF, 1, 1, INF,
        NAN, NAN, NAN, 1, 1, NAN, -2, 0, 0, 0, 0, NAN, -2, 0, 0, 0, 0, NAN, -2, 0, 0, 0, 0, NAN, -2, 0, 0, 0, 0, NAN,
        -2, 0, 0, 0, 0, NAN, -2, 0, 0, 0, 0, NAN],
    "where": [0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0, 1, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 1, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
        1],
    "pow": [0.25, INF, -INF, -2, 0, NAN, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, INF, NAN, NAN, INF,
        INF, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, -INF, -INF, 0, NAN, NAN, NAN, 0, 0, 0, INF, NAN, NAN, 0, 0, 0,
        INF, NAN, NAN, 0, 0, 0, INF, NAN, NAN, 0, 0, 0, INF, NAN, NAN, NAN, NAN, 0, NAN, NAN],
    "atan2": [-0.25, -0.5, -0.5, -0.4, 0, NAN, 0, 0, 0, 0, 0, NAN, 0, 0, 0, 0, 0, NAN, 0.2, 1, 1, 0.5, 0, NAN, NAN,
        NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, 0.25, 0, 0, -0.2, NAN, NAN, 0.5, 0, 0, -1, NAN, NAN,
        0.5, 0, 0, -1, NAN, NAN, 0.4, 0, 0, -0.5, NAN, NAN, 0, 0, 0, 0, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN],
    "div": [-0.5, -0.5, -0.5, -0.5, -0.5, -0.5, -INF, -INF, -INF, -INF, -INF, -INF, INF, INF, INF, INF, INF, INF, 1,
        1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, NAN, NAN, NAN, NAN, NAN, NAN, 0.5, 0, 0, -0.25, -INF, NAN, INF, NAN, NAN,
        -INF, -INF, NAN, INF, NAN, NAN, -INF, -INF, NAN, 2, 0, 0, -1, -INF, NAN, 0, 0, 0, 0, NAN, NAN, NAN, NAN, NAN,
        NAN, NAN, NAN],
    "mod": [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
        1, -1, 0, 0, 1, NAN, NAN, -INF, NAN, NAN, INF, INF, NAN, INF, NAN, NAN, -INF, -INF, NAN, 2, 0, 0, -1, NAN,
        NAN, 1, 0, 0, 0, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN],
}  # fmt: skip
ROWED: dict[str, list[float]] = {
    "max": [0.3333333333333, 0.3333333333333, 0.3333333333333, 0, 0, 2, 1.5, 1.5, 0, 0.3333333333333, 0.3333333333333,
        0.3333333333333, 0, 2, 0, 1.5, 1.5, 0, 0, 0, 1, 0.6666666666667, 0.6666666666667, 0.6666666666667, NAN, NAN,
        NAN],
    "min": [0.3333333333333, 0.3333333333333, 0.3333333333333, 1, 1, 0, 0, 0, 3, 0.3333333333333, 0.3333333333333,
        0.3333333333333, 1, 0, 1, 0, 0, 3, 1, 0, 0, 0.6666666666667, 0.6666666666667, 0.6666666666667, NAN, NAN, NAN],
    "prod": [0, 0, 0, 4, 4, 2, 6, 6, 12, 9, 9, 9, 0, 0, 0, 0, 0, 0],
    "logsumexp": [0.3333333333333, 0.3333333333333, 0.3333333333333, 0.4238831152342, 0.4238831152342, 1.152233769532,
        1.266956394755, 1.266956394755, 0.4660872104909, 0.3333333333333, 0.3333333333333, 0.3333333333333,
        0.4238831152342, 1.152233769532, 0.4238831152342, 1.266956394755, 1.266956394755, 0.4660872104909, 0,
        0.26894142137, 0.73105857863, NAN, NAN, NAN, NAN, NAN, NAN],
    "softmax": [-0.3333333333333, 0, 0.3333333333333, -0.2891254436987, -0.07718388608162, 0.3663093297803,
        -0.3095780944332, 0.1127407038183, 0.1968373906149, -0.3333333333333, 0, 0.3333333333333, -0.2119415576171, 0,
        0.2119415576171, -0.3095780944332, 0.1127407038183, 0.1968373906149, 0, -0.1966119332415, 0.1966119332415,
        NAN, NAN, NAN, NAN, NAN, NAN],
    "log_softmax": [-1, 0, 1, -0.2716493457025, 0.7283506542975, -0.456701308595, -1.533912789509, -0.5339127895091,
        2.067825579018, -1, 0, 1, -0.2716493457025, -1.456701308595, 1.728350654297, -1.533912789509,
        -0.5339127895091, 2.067825579018, 1, 0.38635147178, -1.38635147178, NAN, NAN, NAN, NAN, NAN, NAN],
    "std": [0, 0, 0, -0.471404520791, -0.471404520791, 0.9428090415821, 0.7071067811865, 0.7071067811865,
        -1.414213562373, 0, 0, 0, -0.471404520791, 0.9428090415821, -0.471404520791, 0.7071067811865, 0.7071067811865,
        -1.414213562373],
    "normalize": [1000000000000, 2000000000000, 3000000000000, -0.2041241452319, 0.2041241452319, 0, -0.3333333333333,
        0, 0.6666666666667, -0.1924500897299, 0, 0.1924500897299, 1, 0, 3, 1, 2, 0],
    "cumprod": [1, 0, 0, 9, 8, 3, 11, 10, 12, 34, 33, 27, 3, 0, 0, 1, 0, 0],
    "sort": [1, 2, 3, 1, 2, 3, 2, 3, 1, 1, 2, 3, 1, 3, 2, 2, 3, 1, 1, 2, 3, 1, 2, 3, 3, 1, 2],
    "sort_descending": [1, 2, 3, 2, 3, 1, 1, 2, 3, 1, 2, 3, 2, 1, 3, 1, 2, 3, 3, 2, 1, 1, 2, 3, 1, 3, 2],
    "top_k": [1, 2, 0, 1, 0, 3, 2, 3, 0, 1, 2, 0, 1, 3, 0, 2, 3, 0, 0, 2, 1, 3, 1, 0, 2, 0, 3],
    "top_k_smallest": [1, 2, 0, 3, 1, 0, 3, 0, 2, 1, 2, 0, 3, 0, 1, 3, 0, 2, 1, 2, 0, 3, 1, 0, 0, 2, 3],
    "max_pool": [1, 2, 0, 3, 0, 1, 2, 3, 0, 1, 2, 0, 0, 4, 0, 2, 3, 0, 0, 1, 2, 3, 1, 0, 2, 0, 3],
    "fake_quantize": [1, 2, 3, 1, 2, 0, 0, 0, 3, 0, 0, 0, 1, 2, 3, 1, 2, 3, 0, 2, 0, 0, 0, 0, 0, 2, 0],
    "cross_entropy": [-0.6666666666667, 0.3333333333333, 0.3333333333333, 0.4238831152342, -1.576116884766,
        1.152233769532, 1.266956394755, 1.266956394755, -2.533912789509, -0.6666666666667, 0.3333333333333,
        0.3333333333333, 0.4238831152342, -0.8477662304683, 0.4238831152342, 1.266956394755, 1.266956394755,
        -2.533912789509, -1, 0.26894142137, 0.73105857863, NAN, NAN, NAN, NAN, NAN, NAN],
}  # fmt: skip

def _cases() -> list[tuple[str, Build, list[Array], list[float]]]:
    a, b = (m.ravel() for m in np.meshgrid(VALUES, VALUES))
    found = [(name, BUILDS[name], [POINTS], want) for name, want in ONE.items()]
    found += [(f"{name}_of_two", PAIRED[name], [a, b], want) for name, want in TWO.items()]
    return found + [(f"{n}_of_rows", ROW_BUILDS[n], [ROWS[: len(w) // 3]], w) for n, w in ROWED.items()]


CASES = {name: (build, arrays, np.array(want, np.float64)) for name, build, arrays, want in _cases()}


def _graph(names: list[str], dtype: str) -> tuple[Graph, dict[str, Array]]:
    """A graph whose outputs are the values of cases and gradients: of Σ (1, 2, 3, 1, …)·y where y has rows, else of
    Σ y."""
    g, feeds = Graph(), {}
    for name in names:
        build, arrays, _ = CASES[name]
        xs = []
        for i, a in enumerate(arrays):
            feeds[f"{name}{i}"] = a.astype(np.float32 if dtype == "f32" else np.float64)
            xs.append(g.input(f"{name}{i}", a.shape, dtype))
        y = build(*xs)
        seed = 1.0 + np.arange(y.size).reshape(y.shape) % (3 if name.endswith("rows") else 1)
        g.output(f"{name} y", y)
        for i, d in enumerate(gradients(y, xs, g.constant(seed, dtype))):
            g.output(f"{name} d{i}", d)
    return g, feeds


def _check(name: str, got: dict[str, Array], near: float) -> None:
    _, arrays, want = CASES[name]
    found = np.concatenate([got[f"{name} d{i}"].ravel() for i in range(len(arrays))]).astype(np.float64)
    if arrays[0].ndim == 1:  # where the value is finite but torch has no gradient, ours may be a number
        value = np.tile(got[f"{name} y"], len(arrays))
        found = np.where(np.isnan(want) & np.isfinite(value), NAN, found)
    np.testing.assert_allclose(found, want, rtol=near, atol=near, err_msg=name)


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_torchs(name: str) -> None:
    g, feeds = _graph([name], "f64")
    values = evaluate(g, feeds)
    _check(name, {output: values[t.id] for output, t in g.outputs.items()}, 1e-12)


@pytest.mark.parametrize("session", ["cpu", "vulkan", "cuda"], indirect=True)
@pytest.mark.parametrize("dtype, near", [("f32", 1e-5), ("f64", 1e-12)])
@pytest.mark.sample(1, vulkan=0)
def test_gradients_are_torchs_on_devices(session: rlx.Session, dtype: str, near: float) -> None:
    names = list(CASES)
    g, feeds = _graph(names, dtype)
    with session.compile(g) as compiled:
        got = compiled.run(feeds)
    for name in names:
        _check(name, got, near)
