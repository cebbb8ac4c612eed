"""The outside authorities that check the references: NumPy, SciPy, torch in float64, and loops from the definition.

`JUDGES[name]` takes a case's inputs (floats as float64, unless the op moves or compares bits) and its attributes, and
gives the outputs as a list. torch is imported by the judges that need it; where it is missing they skip.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import scipy.special

from rlx.conformance.oracle import evaluate
from rlx.dtypes import DType, as_dtype, promote
from rlx.ir import Graph
from rlx.ir.op import get_op
from rlx.ops.numeric import widened
from tests.outside import outside

Array = npt.NDArray[Any]
Judge = Callable[..., Any]


def _torch() -> Any:
    return outside("torch")


def _common(arrays: Sequence[Array]) -> list[Array]:
    dtype = promote(*(as_dtype(a.dtype) for a in arrays)).np
    return [a.astype(dtype) for a in arrays]


def _ufunc(fn: Callable[..., Any]) -> Judge:
    return lambda *arrays, **attrs: fn(*_common(arrays))


def _with_torch(run: Callable[..., Any]) -> Judge:
    def judge(*arrays: Array, **attrs: Any) -> Any:
        torch = _torch()
        with torch.no_grad():
            return run(torch, *(torch.from_numpy(np.array(widened(a))) for a in arrays), **attrs).numpy()

    return judge


def _elementwise_loop(fn: Callable[..., Any], dtype: Any) -> Callable[..., Array]:
    def run(*arrays: Array) -> Array:
        wide = np.broadcast_arrays(*arrays)
        values = [fn(*items) for items in zip(*(w.ravel().tolist() for w in wide), strict=True)]
        return np.array(values, dtype).reshape(wide[0].shape)

    return run


def _wrapped(value: int, dtype: DType) -> int:
    bits = 8 * dtype.itemsize
    value %= 1 << bits
    return value - (1 << bits) if dtype.kind == "i" and value >> (bits - 1) else value


def _pow(a: Array, b: Array) -> Array:
    a, b = _common([a, b])
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
        return _wrapped(pow(x, y, 1 << (8 * dtype.itemsize)), dtype)

    return _elementwise_loop(one, dtype.np)(a, b)


def _cast(x: Array, *, dtype: DType) -> Array:
    """float to integer in exact Python integers; to a half by torch; to bool and the rest by the definition."""
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

        return _elementwise_loop(one, dtype.np)(x.astype(np.float64))
    if dtype.is_int:
        return _elementwise_loop(lambda v: _wrapped(int(v), dtype), dtype.np)(x)
    if dtype.is_half:
        torch = _torch()
        wide = torch.from_numpy(np.array(x.astype(np.float32)))
        half = wide.to(torch.bfloat16 if dtype.name == "bf16" else torch.float16)
        raw = half.view(torch.int16).numpy()
        return np.asarray(raw.view(ml_dtypes.bfloat16 if dtype.name == "bf16" else np.float16))
    return x.astype(dtype.np)


def _clip(x: Array, *, min: float | None, max: float | None) -> Array:
    if x.dtype == ml_dtypes.bfloat16 or x.dtype == np.float16:
        return np.clip(x.astype(np.float32), min, max).astype(x.dtype)
    return x if min is None and max is None else np.asarray(np.clip(x, min, max))


def _slice(x: Array, *, starts: Sequence[int], stops: Sequence[int], steps: Sequence[int]) -> Array:
    picked = [np.arange(a, b, c) for a, b, c in zip(starts, stops, steps, strict=True)]
    return x[np.ix_(*picked)] if picked else x


def _exact(fn: Callable[..., Any]) -> Judge:
    """Sums and products: integers in exact Python ones, floats in the widest float there is."""

    def judge(x: Array, *, axes: tuple[int, ...], keepdims: bool) -> Array:
        if x.dtype.kind == "f":
            return np.asarray(fn(x.astype(np.longdouble), axis=axes, keepdims=keepdims)).astype(np.float64)
        dtype = as_dtype(np.int64 if x.dtype == np.int64 else np.int32)
        total = np.asarray(fn(x.astype(object), axis=axes, keepdims=keepdims), object)
        return _elementwise_loop(lambda v: _wrapped(int(v), dtype), dtype.np)(total)

    return judge


def _product(x: Array, *, axis: tuple[int, ...], keepdims: bool) -> Array:
    """numpy.prod of mantissas, some at a time, and the sum of their exponents: of floats no part leaves the range."""
    if x.dtype.kind != "f":
        return np.asarray(np.prod(x, axis=axis, keepdims=keepdims))
    shape = np.sum(x, axis=axis, keepdims=keepdims).shape
    kept = [i for i in range(x.ndim) if i not in axis]
    moved = np.transpose(x, (*kept, *axis))
    mantissas, powers = np.frexp(moved.reshape(*moved.shape[: len(kept)], math.prod(x.shape[i] for i in axis)))
    total, power = np.ones(shape, x.dtype), np.sum(powers, axis=-1, dtype=np.int64).reshape(shape)
    for i in range(0, mantissas.shape[-1], 500):
        total, more = np.frexp(total * np.prod(mantissas[..., i : i + 500], axis=-1).reshape(shape))
        power = power + more
    return np.asarray(np.ldexp(total, np.clip(power, -30_000, 30_000).astype(np.int32)))


def _plain_reduce(fn: Callable[..., Any]) -> Judge:
    return lambda x, *, axes, keepdims: fn(x, axis=axes, keepdims=keepdims)


def _activation(torch: Any, name: str | None, x: Any) -> Any:
    F = torch.nn.functional
    if name is None:
        return x
    if name.startswith("gelu"):
        return F.gelu(x, approximate="tanh" if name == "gelu_tanh" else "none")
    return getattr(torch if name in ("tanh", "sigmoid") else F, name)(x)


def _matmul(*inputs: Array, transpose_a: bool, transpose_b: bool, activation: str | None) -> Array:
    a, b = _common(inputs[:2])
    left, right = ("...ki" if transpose_a else "...ik"), ("...jk" if transpose_b else "...kj")
    with np.errstate(all="ignore"):
        out = np.einsum(f"{left},{right}->...ij", a, b, optimize=False)
        out = out + inputs[2].astype(out.dtype) if len(inputs) == 3 else out
    if activation is None:
        return np.asarray(out)
    torch = _torch()
    return np.asarray(_activation(torch, activation, torch.from_numpy(np.array(out))).numpy())


def near_zero(x: Any) -> Any:
    """Each row less its first element, which a norm that takes the mean off does not see: in float64 torch loses to
    rounding what rows of large means leave. Gradients are those of x."""
    return x - x[..., :1].detach()


def _rms_norm(torch: Any, x: Any, gamma: Any, *beta: Any, eps: float) -> Any:
    y = torch.nn.functional.rms_norm(x, gamma.shape, gamma, eps)
    return y + beta[0] if beta else y


def _take(x: Array, indices: Array, *, axis: int) -> Array:
    """Index by index, with Python's own integers."""
    n = x.shape[axis]
    out = np.empty((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), x.dtype)
    for at in np.ndindex(indices.shape):
        i = int(indices[at])
        i = min(max(i + n if i < 0 else i, 0), n - 1)
        out[(slice(None),) * axis + at] = x[(slice(None),) * axis + (i,)]
    return out


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


_NUMPY = (
    *(
        "exp",
        "log",
        "sqrt",
        "reciprocal",
        "sin",
        "cos",
        "tanh",
        "negative",
        "abs",
        "sign",
        "rint",
        "floor",
        "ceil",
    ),
    *("add", "subtract", "multiply", "divide", "maximum", "minimum", "copy"),
    *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
    *("logical_not", "logical_and", "logical_or", "logical_xor"),
)

JUDGES: dict[str, Judge] = {
    **{f"numpy.{name}": _ufunc(getattr(np, name)) for name in _NUMPY},
    "numpy.power": _pow,
    "scipy.special.erf": _ufunc(scipy.special.erf),
    "scipy.special.expit": _ufunc(scipy.special.expit),
    "scipy.special.softmax": lambda x, *, axis: scipy.special.softmax(x, axis=axis) if x.size else x,
    "torch.nn.functional.silu": _with_torch(lambda torch, x: torch.nn.functional.silu(x)),
    "torch.nn.functional.relu": _with_torch(lambda torch, x: torch.nn.functional.relu(x)),
    "torch.nn.functional.gelu": _with_torch(
        lambda torch, x, approximate: torch.nn.functional.gelu(x, approximate=approximate)
    ),
    "numpy.where": lambda cond, a, b: np.where(cond, *_common([a, b])),
    "numpy.ndarray.astype": _cast,
    "numpy.clip": _clip,
    "numpy.reshape": lambda x, *, shape: np.reshape(x, shape),
    "numpy.transpose": lambda x, *, perm: np.transpose(x, perm),
    "numpy.broadcast_to": lambda x, *, shape: np.broadcast_to(x, shape),
    "numpy.ndarray.__getitem__": _slice,
    "numpy.concatenate": lambda *xs, axis: np.concatenate(xs, axis),
    "numpy.sum": _exact(np.sum),
    "numpy.prod": _exact(_product),
    "numpy.mean": _exact(np.mean),
    "numpy.max": _plain_reduce(np.max),
    "numpy.min": _plain_reduce(np.min),
    "numpy.matmul": _matmul,
    "torch.nn.functional.layer_norm": _with_torch(
        lambda torch, x, g, b, eps: torch.nn.functional.layer_norm(near_zero(x), g.shape, g, b, eps)
    ),
    "torch.nn.functional.rms_norm": _with_torch(_rms_norm),
    "numpy.take": _take,
    "the expression of each op it was made of": _fused,
}  # fmt: skip

# Families with judges of their own: judges_<family>.py beside this file.
for _path in sorted(Path(__file__).parent.glob("judges_*.py")):
    JUDGES.update(importlib.import_module(f"tests.ops.{_path.stem}").JUDGES)
