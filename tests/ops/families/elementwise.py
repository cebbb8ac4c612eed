"""Judges (NumPy and torch in float64, Python's own integers) and gradient cases of elementwise ops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from rlx import ops
from rlx.conformance.oracle import evaluate
from rlx.dtypes import DType, as_dtype, f64
from rlx.ir import Graph, Tensor, get_op
from rlx.ir import expr as ex
from rlx.ir.graph import apply_multi
from rlx.ops.numeric import widened
from tests.ops.gradient_cases import KINK, Gradients, Ties, apart, inside, off, positive
from tests.ops.judging import Array, Judge, common, one_by_one, with_torch, wrapped
from tests.outside import outside

_S = (3, 4)


def _pow(a: Array, b: Array) -> Array:
    a, b = common(a, b)
    dtype = as_dtype(a.dtype)
    if dtype.is_float:
        return np.asarray(np.power(a, b))

    def one(x: int, y: int) -> int:
        if y < 0:
            return (
                0
                if x == 0
                else math.trunc(float(x) ** -1) * (1 if x == 1 or y % 2 else -1)
                if abs(x) == 1
                else 0
            )
        return wrapped(pow(x, y, 1 << (8 * dtype.itemsize)), dtype)

    return one_by_one(one, dtype.np)(a, b)


def _cast(x: Array, *, dtype: DType) -> Array:
    """Casts float to integer by exact Python integers, to a 16-bit float by torch, all others by their definition."""
    source = as_dtype(x.dtype)
    if dtype.kind == "b":
        return np.asarray(~(x == 0))
    if source.is_float and dtype.is_int:
        info = np.iinfo(dtype.np)

        def one(v: float) -> int:
            if math.isnan(v):
                return 0
            if math.isinf(v):
                return int(info.min if v < 0 else info.max)
            return min(max(math.trunc(v), int(info.min)), int(info.max))

        return one_by_one(one, dtype.np)(x.astype(np.float64))
    if dtype.is_int:
        return one_by_one(lambda v: wrapped(int(v), dtype), dtype.np)(x)
    if dtype.is_half:
        torch = outside("torch")
        wide = torch.from_numpy(np.array(x.astype(np.float32)))
        half = wide.to(torch.bfloat16 if dtype.name == "bf16" else torch.float16)
        raw = half.view(torch.int16).numpy()
        return np.asarray(raw.view(ml_dtypes.bfloat16 if dtype.name == "bf16" else np.float16))
    return x.astype(dtype.np)


def _clip(x: Array, *, min: float | None, max: float | None) -> Array:
    if x.dtype == ml_dtypes.bfloat16 or x.dtype == np.float16:
        return np.clip(x.astype(np.float32), min, max).astype(x.dtype)
    return x if min is None and max is None else np.asarray(np.clip(x, min, max))


def _isinf(x: Array, *, positive: bool, negative: bool) -> Array:
    return (np.isposinf(widened(x)) & positive) | (np.isneginf(widened(x)) & negative)


def _loop(fn: Callable[[int, int], int]) -> Judge:
    """Applies `fn` to Python integers one by one, and wraps the results to the width of the dtype."""

    def judge(a: Array, b: Array) -> Array:
        a, b = common(a, b)
        dtype = as_dtype(a.dtype)
        return one_by_one(lambda x, y: fn(x, y) if dtype.kind == "b" else wrapped(fn(x, y), dtype), dtype.np)(a, b)

    return judge


def _remainder(floats: Callable[..., Any], ints: Callable[[int, int], int]) -> Callable[..., Any]:
    whole = _loop(lambda x, y: 0 if y == 0 else ints(x, y))

    def judge(a: Array, b: Array) -> Array:
        a, b = common(a, b)
        return whole(a, b) if a.dtype.kind in "iu" else np.asarray(floats(widened(a), widened(b))).astype(a.dtype)

    return judge


def _shift(a: int, b: int, bits: int) -> int:
    return 0 if not 0 <= b < bits else a << b


def _shifted(left: bool) -> Callable[..., Any]:
    def judge(a: Array, b: Array) -> Array:
        a, b = common(a, b)
        bits = 8 * a.dtype.itemsize

        def one(x: int, y: int) -> int:
            if left:
                return _shift(x, y, bits)
            return x >> y if 0 <= y < bits else (-1 if x < 0 else 0)

        return np.asarray(_loop(one)(a, b))

    return judge


def _fused(*arrays: Array, trees: Any, shape: Any) -> list[Array]:
    """The same trees as a graph of separate ops, each judged by its own authority."""
    graph = Graph("fused")
    types = {e.value: e.dtype for tree in trees for e in _args(tree)}
    inputs = [graph.input(f"x{i}", a.shape, types.get(i, as_dtype(a.dtype))) for i, a in enumerate(arrays)]
    record = get_op("fused")
    assert record.decompose is not None
    outs = record.decompose(inputs, {"trees": trees, "shape": shape})
    values = evaluate(graph, {f"x{i}": a for i, a in enumerate(arrays)})
    return [values[t.id] for t in outs]


def _args(tree: Any) -> list[Any]:
    return [tree] if tree.prim == "arg" else [found for a in tree.args for found in _args(a)]


def _fake_quantize(x: Array, scale: Array, *zero: Array, low: int, high: int) -> tuple[Any, Any]:
    """The input as a leaf, and torch's result for it. torch converts to integers first, where NaN has no meaning and
    values far outside may wrap, so that it is given neither."""
    torch = outside("torch")
    step = scale.astype(np.float32)
    reach = float(np.max(step, initial=1.0)) * 2.0 * (high - low + 100)
    tame = np.clip(np.where(np.isnan(x), np.float32(0), x.astype(np.float32)), -reach, reach)
    leaf = torch.tensor(tame, requires_grad=True)
    offset = zero[0] if zero else np.zeros(scale.shape, np.int32)
    if not zero and not low <= 0 <= high:
        raise AssertionError("torch wants 0 on the grid")
    s, z = torch.from_numpy(step.reshape(-1).copy()), torch.from_numpy(offset.reshape(-1).copy())
    if scale.size == 1:
        return leaf, torch.fake_quantize_per_tensor_affine(leaf, s, z, low, high)
    axis = x.ndim - scale.ndim + next(i for i, n in enumerate(scale.shape) if n != 1)
    return leaf, torch.fake_quantize_per_channel_affine(leaf, s, z, axis, low, high)


def _quantized(x: Array, scale: Array, *zero: Array, low: int, high: int) -> Array:
    if x.size == 0:
        return x
    _, made = _fake_quantize(x, scale, *zero, low=low, high=high)
    return np.where(np.isnan(x.astype(np.float32)), np.float32(math.nan), made.detach().numpy())


def _quantized_back(d: Array, x: Array, scale: Array, *zero: Array, low: int, high: int) -> Array:
    if x.size == 0:
        return x
    torch = outside("torch")
    leaf, made = _fake_quantize(x, scale, *zero, low=low, high=high)
    inside = torch.autograd.grad(made, leaf, torch.ones_like(made))[0].numpy() != 0
    return np.where(inside & ~np.isnan(x.astype(np.float32)), d, np.zeros((), d.dtype))


def _two_trees(x: Tensor, y: Tensor) -> Tensor:
    a, b = ex.arg(0, f64), ex.arg(1, f64)
    tree = ex.call("mul", ex.call("tanh", ex.call("add", a, b)), ex.call("exp", a))
    other = ex.call("select", ex.call("lt", a, b), ex.call("mul", b, b), ex.call("neg", a))
    outs = x.graph.add("fused", (x, y), {"trees": (tree, other), "shape": (3, 4)})
    return outs[0] * 2.0 + outs[1]


def _mask(x: Tensor) -> Tensor:
    return x.graph.constant(np.arange(12).reshape(3, 4) % 3 == 0)


def _sized(x: np.ndarray) -> np.ndarray:
    return off(x) + np.sign(x) * 4.0


def _near(x: np.ndarray) -> np.ndarray:
    """Numbers of either sign, of size about 2.5: the ratio of 3.4 times one to another is never an integer."""
    return np.copysign(2.5 + 0.1 * np.tanh(x), x)


def _outside(x: np.ndarray) -> np.ndarray:
    """Numbers beyond the ends of the grid, where the straight-through gradient and the difference are both 0."""
    return np.sign(x) * (np.abs(x) + 40.0)


JUDGES: dict[str, Judge] = {
    "numpy.power": _pow,
    "numpy.isinf": _isinf,
    "numpy.logaddexp": lambda x: np.logaddexp(0.0, x),
    "numpy.where": lambda cond, a, b: np.where(cond, *common(a, b)),
    "numpy.ndarray.astype": _cast,
    "numpy.clip": _clip,
    "gamma times torch.nn.functional.elu": with_torch(
        lambda torch, x, alpha, gamma: gamma * torch.nn.functional.elu(x, alpha)
    ),
    "torch.nn.functional.leaky_relu": with_torch(lambda torch, x, alpha: torch.nn.functional.leaky_relu(x, alpha)),
    "torch.clamp of a line": with_torch(lambda torch, x, alpha, beta: torch.clamp(alpha * x + beta, 0.0, 1.0)),
    "numpy.mod": _remainder(np.mod, lambda x, y: x % y),
    "numpy.fmod": _remainder(np.fmod, lambda x, y: int(math.copysign(1, x)) * (abs(x) % abs(y))),
    "numpy.floor_divide": _remainder(np.floor_divide, lambda x, y: x // y),
    "numpy.bitwise_and": _loop(lambda x, y: x & y),
    "numpy.bitwise_or": _loop(lambda x, y: x | y),
    "numpy.bitwise_xor": _loop(lambda x, y: x ^ y),
    "numpy.left_shift": _shifted(True),
    "numpy.right_shift": _shifted(False),
    "torch.fake_quantize_per_channel_affine": _quantized,
    "torch.autograd of fake_quantize_per_channel_affine": _quantized_back,
    "the expression of each op it was made of": _fused,
}
GRADIENTS: Gradients = {
    "reciprocal": [(ops.reciprocal, [_S], positive)],
    "cbrt": [(ops.cbrt, [_S], positive)],
    "tan": [(ops.tan, [_S], inside)],
    "lgamma": [(ops.lgamma, [_S], positive), (lambda x: ops.lgamma(x * 0.1 - 3.5), [_S], inside)],
    # The difference quotient passes through it as well, so that what it stops has to be 0.
    "stop_gradient": [(lambda x: ops.stop_gradient(x * 0.0) + ops.sin(x), [_S], None)],
    "div": [(ops.div, [_S, (4,)], positive), (lambda x: 2.0 / x, [()], positive)],
    "pow": [(ops.pow, [_S, (3, 1)], positive), (lambda x: x**3.0, [_S], None), (lambda x: x**2, [_S], None)],
    "where": [(lambda x, y: ops.where(_mask(x), x, y), [_S, (4,)], None),
              (lambda x, y: ops.where(_mask(x), x, y), [(3, 1), ()], None)],
    "cast": [(lambda x: ops.cast(ops.cast(x, "f64") * 2.0, "f64"), [_S], None)],
    "clip": [(lambda x: ops.clip(x, -0.5, 0.6), [_S], apart, KINK),
             (lambda x: ops.clip(x, max=0.3), [_S], apart, KINK)],
    "fused": [(_two_trees, [_S, (4,)], apart, KINK)],
    "atan2": [(ops.atan2, [_S, (4,)], positive), (ops.atan2, [_S, (3, 1)], _sized)],
    "mod": [(lambda a, b: ops.mod(a * 3.4, b), [_S, (4,)], _near)],
    "fmod": [(lambda a, b: ops.fmod(a * 3.4, b), [_S, (4,)], _near)],
    "floor_divide": [(lambda a, b: ops.floor_divide(a * 3.4, b), [_S, (4,)], _near)],
    "fake_quantize": [
        (lambda x: ops.fake_quantize(x, 0.25, 3, bits=4, signed=False), [_S], _outside),
        (lambda x: ops.fake_quantize(x, np.array([0.5, 0.1, 0.2]), bits=4, axis=0), [_S], _outside),
    ],
    "fake_quantize_grad": [
        (lambda d, x: apply_multi("fake_quantize_grad", d, x, x.graph.constant(np.float64(40.0)), low=-8, high=7)[0],
         [_S, _S], None)
    ],
}  # fmt: skip


# torch computes the grid of fake_quantize in f32, and its hard_swish overflows before it divides.
UNJUDGED = frozenset({"fake_quantize", "hard_swish"})
TIES: Ties = {
    "maximum": (lambda x, y: ops.maximum(x, y), lambda torch, x, y: torch.maximum(x, y)),
    "minimum": (lambda x, y: ops.minimum(x, y), lambda torch, x, y: torch.minimum(x, y)),
    "relu": (lambda x, y: ops.relu(x) * y, lambda torch, x, y: torch.relu(x) * y),
    "abs": (lambda x, y: ops.abs(x) * y, lambda torch, x, y: torch.abs(x) * y),
    "clip": (lambda x, y: ops.clip(x, -1.0, 1.0) * y, lambda torch, x, y: torch.clamp(x, -1.0, 1.0) * y),
    "pow": (lambda x, y: ops.pow(ops.abs(x), 2.0) * y, lambda torch, x, y: torch.pow(torch.abs(x), 2.0) * y),
    "pow_zero": (lambda x, y: ops.pow(ops.abs(x), ops.abs(y)), lambda torch, x, y: torch.pow(x.abs(), y.abs())),
}  # fmt: skip
