"""Loops written with scan and while_loop: fori_loop, map, associative_scan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rlx.dtypes import DType, i32, i64, promote
from rlx.errors import DTypeError, GraphError, ShapeError
from rlx.ir import Tensor, apply
from rlx.ir.graph import graph_of, traced_into
from rlx.ir.types import is_length, normalize_axis
from rlx.ops.control.functions import scan, while_loop
from rlx.ops.pytree import flatten, is_number, unflatten

PyTree = Any


def fori_loop(
    lower: Any, upper: Any, body_fun: Callable[[Tensor, PyTree], PyTree], init_val: PyTree
) -> PyTree:
    """The last value of `v = init_val; for i in range(lower, upper): v = body_fun(i, v)`.

    init_val is a pytree of tensors and numbers, which the body returns with the same structure and types; i is of rank
    0, an i32, or an i64 where a bound is an i64 or u32 tensor or an int beyond 32 bits. Gradient: of bounds that are
    Python ints, that of a scan; of bounds that are tensors, none: the loop is a while_loop without a limit. Raises:
    DTypeError for bounds that are no integers; as scan and while_loop.
    """
    if not callable(body_fun):
        raise GraphError(
            f"fori_loop: body_fun is {type(body_fun).__name__}; expected a function of i and the value"
        )
    dtype = _counter(lower, upper)
    if not isinstance(lower, Tensor) and not isinstance(upper, Tensor):
        steps = np.arange(int(lower), max(int(lower), int(upper)), dtype=dtype.np)
        return scan(lambda v, i: (body_fun(i, v), None), init_val, steps)[0]
    graph = graph_of("fori_loop", (lower, upper))
    first, last = (
        apply("cast", b, dtype=dtype) if isinstance(b, Tensor) else graph.constant(int(b), dtype)
        for b in (lower, upper)
    )
    carry = while_loop(
        lambda at: at[0] < last, lambda at: (at[0] + 1, body_fun(at[0], at[1])), (first, init_val)
    )
    return carry[1]


def _counter(lower: Any, upper: Any) -> DType:
    """The dtype of the loop's i, which holds all values of its bounds."""
    held = i32
    for name, bound in (("lower", lower), ("upper", upper)):
        if isinstance(bound, Tensor):
            if not bound.dtype.is_int or bound.shape != ():
                raise DTypeError(f"fori_loop: {name} is {bound.type}; expected an int or an integer of rank 0")
            if bound.weak is None:  # a number of a traced call is an i32, which each call checks
                held = promote(held, bound.dtype)
            continue
        if not is_length(bound) or not -(1 << 63) <= bound < 1 << 63:
            raise DTypeError(f"fori_loop: {name} is {bound!r}; expected an int of 64 bits or an integer of rank 0")
        if not -(1 << 31) <= bound < 1 << 31:
            held = i64
    return held


def map(f: Callable[[PyTree], PyTree], xs: PyTree) -> PyTree:
    """f of each x of xs along axis 0, one after the other, stacked: a scan without a carry. rlx.vmap does all at once.

    Shape: xs, a pytree of (n, …), gives a pytree of (n, *f(x).shape). Raises: as scan.
    """
    if not callable(f):
        raise GraphError(f"map: f is {type(f).__name__}; expected a function of one x, as in map(f, xs)")
    return scan(lambda carry, x: (carry, f(x)), None, xs)[1]


def associative_scan(
    fn: Callable[[PyTree, PyTree], PyTree], elems: PyTree, reverse: bool = False, axis: int = 0
) -> PyTree:
    """All partial results of an associative function along an axis: y[i] = fn(… fn(x[0], x[1]) …, x[i]).

    elems is a pytree of tensors of one length along `axis`; fn takes two such pytrees of any length, works on their
    elements side by side, and returns one of the same structure and types. With `reverse` it starts at the end. Shape,
    dtype: those of elems. The depth is 2·log2(length) calls of fn. Gradient: that of its parts. Numerics: the order of
    fn's applications differs from a loop's. Follows Blelloch, Prefix sums and their applications, 1990.
    Raises: ShapeError where lengths differ or fn changes types, GraphError where it changes the structure.
    """
    if not callable(fn):
        raise GraphError(f"associative_scan: fn is {type(fn).__name__}; expected a function of two pytrees")
    leaves: list[Any] = []
    skeleton = flatten(elems, leaves, leaf=is_number)
    home = traced_into(graph_of("associative_scan", leaves))
    leaves = [x if isinstance(x, Tensor) else home.constant(x) for x in leaves]
    axes = [normalize_axis(axis, x.ndim, "associative_scan") for x in leaves]
    lengths = {x.shape[a] for x, a in zip(leaves, axes, strict=True)}
    if len(lengths) != 1:
        raise ShapeError(
            f"associative_scan: elems have the lengths {sorted(lengths)} along axis {axis}; expected one"
        )

    def take(x: Any, a: int, start: int, stop: int, step: int = 1) -> Any:
        return x[(slice(None),) * a + (slice(start, stop, step),)]

    def joined(left: list[Any], right: list[Any]) -> list[Any]:
        result: list[Any] = []
        if (
            flatten(fn(unflatten(skeleton, left), unflatten(skeleton, right)), result, leaf=is_number)
            != skeleton
        ):
            raise GraphError(
                "associative_scan: fn gives another structure than that of elems; return one like it"
            )
        for x, y in zip(left, result, strict=True):
            if y.shape != x.shape or y.dtype != x.dtype:
                raise ShapeError(
                    f"associative_scan: fn gives {y.dtype}{list(y.shape)} for {x.dtype}{list(x.shape)}; expected the "
                    "same shape and dtype: it is given many elements along the axis"
                )
        return result

    def run(xs: list[Any]) -> list[Any]:
        n = xs[0].shape[axes[0]]
        if n < 2:
            return xs
        half = n // 2
        pairs = list(zip(xs, axes, strict=True))
        odd = run(
            joined(
                [take(x, a, 0, 2 * half, 2) for x, a in pairs], [take(x, a, 1, 2 * half, 2) for x, a in pairs]
            )
        )
        rest = (n - 1) // 2  # the even places but the first
        first = [take(x, a, 0, 1) for x, a in pairs]
        if not rest:
            return [_concat([f, o], a) for f, o, a in zip(first, odd, axes, strict=True)]
        even = joined(
            [take(o, a, 0, rest) for o, a in zip(odd, axes, strict=True)],
            [take(x, a, 2, n, 2) for x, a in pairs],
        )
        even = [_concat([f, e], a) for f, e, a in zip(first, even, axes, strict=True)]
        return [_interleaved(e, o, a) for e, o, a in zip(even, odd, axes, strict=True)]

    def flipped(xs: list[Any]) -> list[Any]:
        return [x[(slice(None),) * a + (slice(None, None, -1),)] for x, a in zip(xs, axes, strict=True)]

    scanned = run(flipped(leaves) if reverse else leaves)
    return unflatten(skeleton, flipped(scanned) if reverse else scanned)


def _concat(parts: list[Any], axis: int) -> Any:
    return apply("concat", *parts, axis=axis)


def _interleaved(even: Any, odd: Any, axis: int) -> Any:
    """even[0], odd[0], even[1], …; even may be one longer."""
    n, m = even.shape[axis], odd.shape[axis]
    before, after = even.shape[:axis], even.shape[axis + 1 :]
    cut = even[(slice(None),) * axis + (slice(0, m),)]
    pairs = [apply("reshape", t, shape=(*before, m, 1, *after)) for t in (cut, odd)]
    interleaved = apply("reshape", _concat(pairs, axis + 1), shape=(*before, 2 * m, *after))
    return interleaved if n == m else _concat([interleaved, even[(slice(None),) * axis + (slice(m, n),)]], axis)


__all__ = ["associative_scan", "fori_loop", "map"]
