"""Max and average pooling over one to three spatial axes, max pooling's gradient, and global pooling."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from rlx.dtypes import DType
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Attrs, Cost, Node, Op, Tensor, TensorType, apply, register
from rlx.ir.types import is_length
from rlx.ops import batching
from rlx.ops.base import TensorLike, cast_to, check_inputs, floating, floats, tensor, tensors, written
from rlx.ops.numeric import Array, computed
from rlx.ops.reduce import working_float
from rlx.ops.windows import (
    Ints,
    Pads,
    check_counts,
    check_floats,
    check_image,
    check_pads,
    pads_of,
    per_axis,
    spatial_axes,
    window_counts,
    window_terms,
    windows,
)


def _first(dtypes: Sequence[DType]) -> DType:
    return dtypes[0]


def _check_pool(op: str, x: TensorType, attrs: Attrs) -> Ints:
    """The number of windows along each axis, after checking the attributes. Raises: ShapeError."""
    n = check_image(op, x)
    check_counts(op, attrs, ("kernel", "strides"), n)
    if "dilations" in attrs:
        check_counts(op, attrs, ("dilations",), n)
    check_pads(op, attrs, n)
    if not isinstance(attrs["ceil_mode"], bool):
        raise DTypeError(f"{op}: ceil_mode is {attrs['ceil_mode']!r}; expected a bool")
    for axis, (k, (before, after)) in enumerate(zip(attrs["kernel"], attrs["pads"], strict=True)):
        reach = attrs.get("dilations", (1,) * n)[axis] * (k - 1)
        if max(before, after) > reach:
            raise ShapeError(
                f"{op}: pads ({before}, {after}) of spatial axis {axis}; expected at most {reach}, so that no window "
                "lies in the padding alone"
            )
    if 0 in x.shape[2:]:
        raise ShapeError(f"{op}: the input is {x}; expected at least one element along every spatial axis")
    return pool_counts(op, x.shape, attrs)


def pool_counts(op: str, shape: Sequence[int], attrs: Attrs) -> Ints:
    """The number of windows along each axis of an input of that shape."""
    dilations = attrs.get("dilations", (1,) * len(attrs["kernel"]))
    return window_counts(
        op, shape[2:], attrs["kernel"], attrs["strides"], dilations, attrs["pads"], attrs["ceil_mode"]
    )


def _max_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    check_inputs("max_pool", types, 1)
    check_floats("max_pool", types, ("input",))
    x = types[0]
    return TensorType((*x.shape[:2], *_check_pool("max_pool", x, attrs)), x.dtype)


def _seen(x: Array, attrs: Attrs, fill: float) -> Array:
    """The elements under each window, (N, C, ∏kernel, *counts), with `fill` in the padding."""
    counts = pool_counts("max_pool", x.shape, attrs)
    dilations = attrs.get("dilations", (1,) * len(counts))
    seen = windows(x, attrs["kernel"], attrs["strides"], dilations, attrs["pads"], counts, x.dtype.type(fill))
    return seen.reshape(*x.shape[:2], math.prod(attrs["kernel"]), *counts)


def _max_pool(x: Array, **attrs: Any) -> Any:
    return np.max(_seen(x, attrs, -np.inf), axis=2)


def _max_vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    d = grads[0]
    return (None,) if d is None else (apply("max_pool_grad", node.inputs[0], d, **node.attrs),)


def _cost(node: Node) -> Cost:
    """The cost of a node that reads each window's elements anew."""
    return Cost(math.prod(node.attrs["kernel"]) * written(node), terms=window_terms(node))


register(
    Op("max_pool", "pool", _max_infer, computed(_first)(_max_pool), "torch.nn.functional.max_pool2d", _max_vjp,
       kernel="pool", joins="max", cost=_cost, batch=batching.folded())
)  # fmt: skip


def _max_grad_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    op = "max_pool_grad"
    check_inputs(op, types, 2)
    check_floats(op, types, ("input", "gradient"))
    x, d = types
    expected = (*x.shape[:2], *_check_pool(op, x, attrs))
    if d.shape != expected:
        raise ShapeError(
            f"{op}: the gradient is {d.shape}; expected {expected}, the shape of the pooled input"
        )
    return x


def _places(shape: Sequence[int], attrs: Attrs) -> Array:
    """The flat spatial index of each element of each window, -1 in the padding: (∏kernel, *counts)."""
    flat = np.arange(math.prod(shape[2:])).reshape(1, 1, *shape[2:])
    return np.asarray(_seen(flat, attrs, -1)[0, 0])


def largest(x: Array, attrs: Attrs) -> Array:
    """The flat spatial index of the largest element of each window, (N, C, *counts).

    It is the first of equal elements, and the first NaN where there is one; -1 where a dilated window covers only
    padding.
    """
    places = _places(x.shape, attrs)
    seen = _seen(x, attrs, -np.inf)
    value = seen[:, :, 0]
    chosen = np.broadcast_to(places[0], value.shape)
    for tap in range(1, len(places)):
        v, inside = seen[:, :, tap], places[tap] >= 0
        better = inside & ((chosen < 0) | (v > value) | (np.isnan(v) & ~np.isnan(value)))
        value, chosen = np.where(better, v, value), np.where(better, places[tap], chosen)
    return np.asarray(chosen)


def _max_grad(x: Array, d: Array, **attrs: Any) -> Array:
    lines, spatial = x.shape[0] * x.shape[1], math.prod(x.shape[2:])
    chosen = largest(x, attrs).reshape(lines, math.prod(d.shape[2:]))
    total = np.zeros((lines, spatial), d.dtype)
    rows, positions = np.nonzero(chosen >= 0)
    np.add.at(total, (rows, chosen[rows, positions]), d.reshape(chosen.shape)[rows, positions])
    return total.reshape(x.shape)


def _max_grad_vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """d's gradient is the element at the position of each window's largest; x's is 0 almost everywhere, so None."""
    g = grads[0]
    if g is None:
        return (None, None)
    x, d = node.inputs
    return None, _picked(x, g, d, node.attrs)


def _picked(x: Tensor, g: Tensor, d: Tensor, attrs: Attrs) -> Tensor:
    """The element of g at the position of the largest element of each window of x."""
    spatial = x.shape[2:]
    places = _places(x.shape, attrs)
    taps = places.shape[0]
    flat = (x.shape[0] * x.shape[1], math.prod(spatial))
    index = x.graph.constant(np.maximum(places, 0).reshape(-1).astype(np.int32))
    inside = x.graph.constant((places >= 0).reshape(1, taps, -1))
    shape = (flat[0], taps, math.prod(places.shape[1:]))
    wide = [
        apply("reshape", apply("gather", apply("reshape", t, shape=flat), index, axis=1), shape=shape)
        for t in (x, g)
    ]
    seen = apply("where", inside, wide[0], -math.inf)
    top = apply("equal", seen, apply("max", seen, axes=(1,), keepdims=True))
    hit = apply("cast", apply("logical_and", top, inside), dtype=d.dtype)
    # Of equal elements only the first counts, the one with no hit before it in the window.
    earlier = x.graph.constant(np.tri(taps, taps, -1), d.dtype)
    before = apply("matmul", earlier, hit, transpose_a=False, transpose_b=False, activation=None)
    first = apply("where", apply("equal", before, 0), hit, 0)
    total = apply("sum", first * cast_to(wide[1], d.dtype), axes=(1,), keepdims=False)
    return apply("reshape", total, shape=d.shape)


register(
    Op("max_pool_grad", "pool", _max_grad_infer, computed(_first)(_max_grad), "torch.autograd of max_pool2d",
       _max_grad_vjp, kernel="max_pool_grad", cost=_cost, batch=batching.folded())
)  # fmt: skip


def _avg_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    check_inputs("avg_pool", types, 1)
    check_floats("avg_pool", types, ("input",))
    x = types[0]
    if not isinstance(attrs["count_include_pad"], bool):
        raise DTypeError(f"avg_pool: count_include_pad is {attrs['count_include_pad']!r}; expected a bool")
    return TensorType((*x.shape[:2], *_check_pool("avg_pool", x, attrs)), x.dtype)


def divisors(shape: Sequence[int], attrs: Attrs) -> Array:
    """The number of elements that the mean of each window divides by, of shape (*counts).

    Padding counts with `count_include_pad`; positions beyond it, in the last window of ceil mode, never do.
    """
    result = np.ones((), np.int64)
    counts = pool_counts("avg_pool", shape, attrs)
    for n, k, s, (before, after), c in zip(
        shape[2:], attrs["kernel"], attrs["strides"], attrs["pads"], counts, strict=True
    ):
        start = np.arange(c) * s - before
        low, high = (-before, n + after) if attrs["count_include_pad"] else (0, n)
        held = np.minimum(start + k, high) - np.maximum(start, low)
        result = result[..., None] * held
    return result


def _avg_pool(x: Array, **attrs: Any) -> Any:
    return np.sum(_seen(x, attrs, 0.0), axis=2) / divisors(x.shape, attrs).astype(x.dtype)


def _avg_vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """Adds each mean's share to all elements of its window, by a transposed depthwise convolution with ones."""
    x, d, attrs = node.inputs[0], grads[0], node.attrs
    if d is None:
        return (None,)
    n = len(attrs["kernel"])
    d = d / x.graph.constant(divisors(x.shape, attrs), d.dtype)
    counts = d.shape[2:]
    # In ceil mode windows may end beyond the padding, so the padding is extended to their ends.
    pads = tuple(
        (before, max(after, (c - 1) * s + k - before - size))
        for size, k, s, (before, after), c in zip(
            x.shape[2:], attrs["kernel"], attrs["strides"], attrs["pads"], counts, strict=True
        )
    )
    ones = x.graph.constant(np.ones((x.shape[1], 1, *attrs["kernel"])), d.dtype)
    gradient = apply(
        "conv_grad_input", d, ones, sizes=x.shape[2:], strides=attrs["strides"], dilations=(1,) * n, pads=pads,
        groups=x.shape[1],
    )  # fmt: skip
    return (cast_to(gradient, x.dtype),)


register(
    Op("avg_pool", "pool", _avg_infer, computed(_first)(_avg_pool), "torch.nn.functional.avg_pool2d", _avg_vjp,
       kernel="pool", joins="add", averages=True, cost=_cost, batch=batching.folded())
)  # fmt: skip


def _window(op: str, x: Tensor, kernel: Any, strides: Any, pads: Any) -> dict[str, Ints | Pads]:
    n = spatial_axes(op, x)
    size = per_axis(op, "kernel", kernel, n)
    moves = size if strides is None else per_axis(op, "strides", strides, n)
    return {"kernel": size, "strides": moves, "pads": pads_of(op, pads, n)}


def max_pool(
    x: TensorLike,
    kernel: Any,
    *,
    strides: Any = None,
    pads: Any = 0,
    dilations: Any = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """The largest element of each window.

    Shape: (N, C, *S) gives (N, C, *windows), one to three spatial axes. kernel, dilations: an int or one for each axis;
    strides: likewise, the kernel where None; pads: an int, one for each axis, or (begin, end) for each, at most what a
    window reaches. ceil_mode: a last window that begins inside the input or its front padding counts too. Dtype: float;
    integers become f32. Gradient: to the largest element, the first of equal ones. Numerics: exact; padding is ignored;
    a window with a NaN gives NaN. Follows ONNX MaxPool and torch.
    """
    x = floating(tensor("max_pool", x))
    spread = per_axis("max_pool", "dilations", dilations, spatial_axes("max_pool", x))
    window = _window("max_pool", x, kernel, strides, pads)
    return apply("max_pool", x, dilations=spread, ceil_mode=bool(ceil_mode), **window)


def max_pool_grad(
    x: TensorLike,
    d: TensorLike,
    kernel: Any,
    *,
    strides: Any = None,
    pads: Any = 0,
    dilations: Any = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """The gradient of rlx.max_pool(x, …) with respect to x, given the gradient d of its result.

    Shape: x's; d has the pooled shape. Dtype: x's. Gradient: to d. Numerics: sums in f32, in the order of windows.
    """
    x, d = floats(*tensors("max_pool_grad", x, d))
    spread = per_axis("max_pool_grad", "dilations", dilations, spatial_axes("max_pool_grad", x))
    window = _window("max_pool_grad", x, kernel, strides, pads)
    return apply("max_pool_grad", x, d, dilations=spread, ceil_mode=bool(ceil_mode), **window)


def avg_pool(
    x: TensorLike,
    kernel: Any,
    *,
    strides: Any = None,
    pads: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = False,
) -> Tensor:
    """The mean of each window.

    Shape: as rlx.max_pool. count_include_pad: whether the mean counts padding (as zeros); ONNX's default is False,
    torch's True. Dtype: float; integers become f32. Gradient: d / count to each element. Numerics: sums in f32.
    Follows ONNX AveragePool and torch.
    """
    x = floating(tensor("avg_pool", x))
    window = _window("avg_pool", x, kernel, strides, pads)
    return apply(
        "avg_pool", x, ceil_mode=bool(ceil_mode), count_include_pad=bool(count_include_pad), **window
    )


def global_avg_pool(x: TensorLike) -> Tensor:
    """The mean over all spatial axes.

    Shape: (N, C, *S) gives (N, C, 1, …). Dtype, gradient, numerics: as rlx.mean.
    """
    x = tensor("global_avg_pool", x)
    spatial_axes("global_avg_pool", x)
    return apply("mean", floating(x), axes=tuple(range(2, x.ndim)), keepdims=True)


def global_max_pool(x: TensorLike) -> Tensor:
    """The largest element over all spatial axes.

    Shape: (N, C, *S) gives (N, C, 1, …). Dtype, gradient, numerics: as rlx.max.
    """
    x = tensor("global_max_pool", x)
    spatial_axes("global_max_pool", x)
    return apply("max", x, axes=tuple(range(2, x.ndim)), keepdims=True)


def adaptive_avg_pool(x: TensorLike, size: int | Sequence[int | None] | None) -> Tensor:
    """The mean of as many windows as are asked for: window i of n elements goes from ⌊i·n/m⌋ to ⌈(i + 1)·n/m⌉.

    Shape: (N, C, *S) gives (N, C, *size); one number stands for all axes, None keeps an axis as it is. Dtype,
    numerics: as rlx.mean. Gradient: d / count to each element of a window. Follows torch.
    """
    x = floating(tensor("adaptive_avg_pool", x))
    axes = spatial_axes("adaptive_avg_pool", x)
    sizes: list[Any] = list(size) if isinstance(size, Iterable) else [size] * axes
    known = (s is None or (is_length(s) and s > 0) for s in sizes)
    if len(sizes) != axes or not all(known):
        raise ShapeError(
            f"adaptive_avg_pool: size is {size!r} for {x.shape}; expected {axes} numbers of windows"
        )
    wide = cast_to(x, working_float(x))
    # A window is a product of ranges, one per axis, so its mean can be taken axis by axis.
    for axis, m in enumerate(sizes, start=2):
        if m is not None and m != x.shape[axis]:
            wide = _means(wide, axis, int(m))
    return cast_to(wide, x.dtype)


def _means(x: Tensor, axis: int, m: int) -> Tensor:
    n = x.shape[axis]
    head, tail = x.shape[:axis], x.shape[axis + 1 :]
    if n % m == 0:
        return apply(
            "mean", apply("reshape", x, shape=(*head, m, n // m, *tail)), axes=(axis + 1,), keepdims=False
        )
    first = np.arange(m) * n // m
    counts = -(-(np.arange(m) + 1) * n // m) - first
    places = np.minimum(first[:, None] + np.arange(counts.max()), n - 1)
    column = (m, -1, *(1,) * len(tail))
    rows = apply("gather", x, x.graph.constant(places.astype(np.int32)), axis=axis)
    inside = x.graph.constant((np.arange(counts.max()) < counts[:, None]).reshape(column))
    total = apply("sum", apply("where", inside, rows, 0), axes=(axis + 1,), keepdims=False)
    return total / counts.reshape(m, *(1,) * len(tail)).astype(x.dtype.np)


__all__ = ["adaptive_avg_pool", "avg_pool", "global_avg_pool", "global_max_pool", "max_pool", "max_pool_grad"]
