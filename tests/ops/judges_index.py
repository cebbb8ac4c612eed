"""Judges of select, scan and index: loops over plain Python numbers, and torch in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.dtypes import DType, as_dtype
from rlx.ops.numeric import convert
from tests.outside import outside

Array = npt.NDArray[Any]


def _lanes(x: Array, axis: int) -> Iterator[tuple[tuple[Any, ...], list[Any]]]:
    """Each line along an axis, with the key that selects it."""
    others = [range(1) if i == axis else range(n) for i, n in enumerate(x.shape)]
    for at in np.ndindex(*(len(o) for o in others)):
        key = (*at[:axis], slice(None), *at[axis + 1 :])
        line = x[key]
        yield key, (line.astype(np.float64) if as_dtype(x.dtype).is_float else line).tolist()


def _arg(beats: Callable[[Any, Any], bool]) -> Any:
    def judge(x: Array, *, axis: int, keepdims: bool, select_last_index: bool) -> Array:
        shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
        out = np.zeros(shape, np.int64)
        if 0 not in shape:
            for key, line in _lanes(x, axis):
                best = 0
                for i, v in enumerate(line):
                    held = line[best]
                    same = v == held or (v != v and held != held)
                    if (same and select_last_index) or (
                        not same and held == held and (v != v or beats(v, held))
                    ):
                        best = i
                out[(*key[:axis], 0, *key[axis + 1 :])] = best
        return out if keepdims else out.reshape(x.shape[:axis] + x.shape[axis + 1 :])

    return judge


def _order(line: list[Any], descending: bool) -> list[int]:
    # Python's sort is stable in both directions.
    return sorted(range(len(line)), key=lambda i: (line[i] != line[i], 0 if line[i] != line[i] else line[i]),
                  reverse=descending)  # fmt: skip


def _sorted(
    x: Array, *, axis: int, descending: bool | None = None, k: int | None = None, largest: bool = False
) -> Any:
    count = x.shape[axis] if k is None else k
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    values, indices = np.zeros(shape, x.dtype), np.zeros(shape, np.int64)
    for key, line in _lanes(x, axis):
        found = _order(line, largest if descending is None else descending)[:count]
        values[key], indices[key] = x[key][found], found
    return [values, indices]


def _wrapped(value: int, bits: int) -> int:
    value %= 1 << bits
    return value - (1 << bits) if value >> (bits - 1) else value


def _scan(join: Callable[[Any, Any], Any], first: int) -> Any:
    def judge(x: Array, *, axis: int, exclusive: bool, reverse: bool) -> Array:
        is_float = as_dtype(x.dtype).is_float
        bits = 64 if x.dtype == np.int64 else 32
        out = np.zeros(x.shape, np.float64 if is_float else (np.int64 if bits == 64 else np.int32))
        for key, line in _lanes(x, axis):
            made, total, power = [], np.longdouble(first) if is_float else first, 0
            for v in reversed(line) if reverse else line:
                before = total
                total = join(total, np.longdouble(v)) if is_float else _wrapped(join(total, int(v)), bits)
                if is_float and first == 1:  # products: a mantissa and a power of two, so that no part overflows
                    made.append(np.ldexp(before if exclusive else total, np.clip(power, -30_000, 30_000)))
                    total, more = np.frexp(total)
                    power += int(more)
                else:
                    made.append(before if exclusive else total)
            out[key] = made[::-1] if reverse else made
        return out

    return judge


def _torch(run: Callable[..., Any]) -> Any:
    def judge(x: Array, *, axis: int) -> Array:
        torch = outside("torch")
        return np.asarray(run(torch, torch.from_numpy(np.array(x)), axis).numpy())

    return judge


def _place(index: int, n: int) -> int | None:
    index = index + n if index < 0 else index
    return index if 0 <= index < n else None


def _take_along(x: Array, indices: Array, *, axis: int) -> Array:
    out = np.empty(indices.shape, x.dtype)
    n = x.shape[axis]
    for at in np.ndindex(indices.shape):
        i = int(indices[at])
        i = min(max(i + n if i < 0 else i, 0), n - 1)
        out[at] = x[(*at[:axis], i, *at[axis + 1 :])]
    return out


def _joined(old: Any, new: Any, reduction: str) -> Any:
    if reduction == "none":
        return new
    if reduction in ("add", "mul"):
        return old + new if reduction == "add" else old * new
    if old != old or new != new:
        return math.nan
    return min(old, new) if reduction == "min" else max(old, new)


def _scattered(out: Array, pairs: Iterator[tuple[tuple[Any, ...], Any]], reduction: str) -> Array:
    dtype = as_dtype(out.dtype)
    for at, update in pairs:
        if reduction == "none" or dtype.is_float:
            out[at] = _joined(out[at], update, reduction)
        else:
            bits = 8 * dtype.itemsize
            value = _joined(int(out[at]), int(update), reduction)
            out[at] = value % (1 << bits) if dtype.kind == "u" else _wrapped(value, bits)
    return out


def _scatter(indices: Array, updates: Array, *x: Array, axis: int, length: int, reduction: str) -> Array:
    shape = (*updates.shape[:axis], length, *updates.shape[axis + indices.ndim :])
    out = x[0].copy() if x else np.zeros(shape, updates.dtype)

    def pairs() -> Iterator[tuple[tuple[Any, ...], Any]]:
        for at in np.ndindex(updates.shape):
            i = _place(int(indices[at[axis : axis + indices.ndim]]), length)
            if i is not None:
                yield (*at[:axis], i, *at[axis + indices.ndim :]), updates[at]

    return _scattered(out, pairs(), reduction)


def _scatter_elements(
    indices: Array, updates: Array, *x: Array, axis: int, length: int, reduction: str
) -> Array:
    out = (
        x[0].copy()
        if x
        else np.zeros((*updates.shape[:axis], length, *updates.shape[axis + 1 :]), updates.dtype)
    )

    def pairs() -> Iterator[tuple[tuple[Any, ...], Any]]:
        for at in np.ndindex(updates.shape):
            i = _place(int(indices[at]), length)
            if i is not None:
                yield (*at[:axis], i, *at[axis + 1 :]), updates[at]

    return _scattered(out, pairs(), reduction)


def _one_hot(indices: Array, *, depth: int, axis: int, on: float, off: float, dtype: DType) -> Array:
    out = np.full(
        (*indices.shape[:axis], depth, *indices.shape[axis:]), convert(np.asarray(off), dtype), dtype.np
    )
    for at in np.ndindex(indices.shape):
        i = _place(int(indices[at]), depth)
        if i is not None:
            out[(*at[:axis], i, *at[axis:])] = convert(np.asarray(on), dtype)
    return out


def _starts(shape: tuple[int, ...], sizes: tuple[int, ...], starts: Array) -> list[int]:
    return [min(max(int(s), 0), n - m) for n, m, s in zip(shape, sizes, starts, strict=True)]


def _dynamic_slice(x: Array, starts: Array, *, sizes: tuple[int, ...]) -> Array:
    first, out = _starts(x.shape, sizes, starts), np.empty(sizes, x.dtype)
    for at in np.ndindex(*sizes):
        out[at] = x[tuple(a + s for a, s in zip(at, first, strict=True))]
    return out


def _dynamic_update(x: Array, update: Array, starts: Array) -> Array:
    first, out = _starts(x.shape, update.shape, starts), x.copy()
    for at in np.ndindex(*update.shape):
        out[tuple(a + s for a, s in zip(at, first, strict=True))] = update[at]
    return out


JUDGES: dict[str, Any] = {
    "numpy.argmax": _arg(lambda a, b: a > b),
    "numpy.argmin": _arg(lambda a, b: a < b),
    "the stable order of Python's sorted": _sorted,
    "the stable order of Python's sorted, places": lambda x, **attrs: _sorted(x, **attrs)[1],
    "numpy.cumsum": _scan(lambda a, b: a + b, 0),
    "numpy.cumprod": _scan(lambda a, b: a * b, 1),
    "torch.nn.functional.log_softmax": _torch(
        lambda torch, x, axis: torch.nn.functional.log_softmax(x, axis) if x.numel() else x
    ),
    "torch.logsumexp": _torch(lambda torch, x, axis: torch.logsumexp(x, axis, keepdim=True)),
    "numpy.take_along_axis": _take_along,
    "the loop over updates in order": _scatter,
    "the loop over single updates in order": _scatter_elements,
    "the loop of ONNX OneHot": _one_hot,
    "the loop of XLA DynamicSlice": _dynamic_slice,
    "the loop of XLA DynamicUpdateSlice": _dynamic_update,
}
