"""Ops on images: convolutions and their gradients, pools, resize, grid_sample."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.dtypes import f64, i32, promote
from rlx.ir import Attrs, Node, Tensor, apply
from rlx.onnx.writer.draft import Draft, Value
from rlx.onnx.writer.elementwise import activated
from rlx.onnx.writer.table import composes, writes
from rlx.ops.base import cast_to
from rlx.ops.numeric import working
from rlx.ops.pool import divisors, pool_counts
from rlx.ops.resize import tables
from rlx.ops.windows import windows


def _ends(pairs: Sequence[tuple[int, int]]) -> list[int]:
    """Pads as ONNX lists them: all begins, then all ends."""
    return [a for a, _ in pairs] + [b for _, b in pairs]


def _geometry(a: Attrs) -> dict[str, Any]:
    return {"strides": list(a["strides"]), "dilations": list(a["dilations"]), "group": a["groups"]}


def _working(d: Draft, node: Node, inputs: list[Value]) -> list[Value]:
    work = working(promote(*(t.dtype for t in node.inputs[:2])))
    return [d.cast(v, work) for v in inputs]


@writes("conv")
def conv(d: Draft, node: Node, inputs: list[Value]) -> Value:
    a, out = node.attrs, node.outputs[0]
    kernel = list(node.inputs[1].shape[2:])
    result = d.op(
        "Conv", *_working(d, node, inputs), kernel_shape=kernel, pads=_ends(a["pads"]), **_geometry(a)
    )
    return d.narrow(activated(d, result, a["activation"]), out.dtype)


@writes("conv_transpose")
def conv_transpose(d: Draft, node: Node, inputs: list[Value]) -> Value:
    a = node.attrs
    x, w, *bias = _working(d, node, inputs)
    if any(extra >= s for extra, s in zip(a["output_padding"], a["strides"], strict=True)):
        # With dilation ONNX allows an output_padding of a stride or more, but ONNX Runtime does not.
        result = _spread(d, x, w, node, node.outputs[0].shape[2:])
        column = (-1,) + (1,) * len(a["strides"])
        result = d.op("Add", result, d.reshape(bias[0], column)) if bias else result
    else:
        result = d.op(
            "ConvTranspose", x, w, *bias, kernel_shape=list(node.inputs[1].shape[2:]), pads=_ends(a["pads"]),
            output_padding=list(a["output_padding"]), **_geometry(a),
        )  # fmt: skip
    return d.narrow(result, node.outputs[0].dtype)


@writes("conv_grad_input")
def conv_grad_input(d: Draft, node: Node, inputs: list[Value]) -> Value:
    x, w = _working(d, node, inputs)
    return d.narrow(_spread(d, x, w, node, node.attrs["sizes"]), node.outputs[0].dtype)


def _spread(d: Draft, x: Value, w: Value, node: Node, sizes: Sequence[int]) -> Value:
    """A transposed convolution without pads, then cut or padded to the sizes, since ONNX limits pads."""
    a, kernel = node.attrs, node.inputs[1].shape[2:]
    result = d.op("ConvTranspose", x, w, kernel_shape=list(kernel), **_geometry(a))
    lengths = [
        (n - 1) * s + dil * (k - 1) + 1
        for n, s, dil, k in zip(node.inputs[0].shape[2:], a["strides"], a["dilations"], kernel, strict=True)
    ]
    first = [before for before, _ in a["pads"]]
    stops = [b + n for b, n in zip(first, sizes, strict=True)]
    missing = [max(0, stop - m) for stop, m in zip(stops, lengths, strict=True)]
    if any(missing):
        zeros = [0] * (2 + len(first))
        result = d.op("Pad", result, d.ints([*zeros, 0, 0, *missing]), d.like(0.0, result))
    if any(first) or any(stop < m for stop, m in zip(stops, lengths, strict=True)):
        result = d.op("Slice", result, d.ints(first), d.ints(stops), d.ints(range(2, 2 + len(first))))
    return result


@writes("conv_grad_weight")
def conv_grad_weight(d: Draft, node: Node, inputs: list[Value]) -> Value:
    """A convolution of the input with the gradient: the batch and channel axes are swapped, and so are strides and
    dilations."""
    a, out = node.attrs, node.outputs[0]
    x, d_type = node.inputs
    groups, n, spatial = a["groups"], len(a["kernel"]), x.shape[2:]
    left, right = _working(d, node, inputs)
    inner, batch = x.shape[1] // groups, x.shape[0]
    rest = list(range(3, 3 + n))
    left = d.transpose(d.reshape(left, (batch, groups, inner, *spatial)), [2, 1, 0, *rest])
    left = d.reshape(left, (inner, groups * batch, *spatial))
    right = d.transpose(right, [1, 0, *range(2, 2 + n)])
    kernel = list(d_type.shape[2:])
    gradient = d.op(
        "Conv", left, right, kernel_shape=kernel, strides=list(a["dilations"]), dilations=list(a["strides"]),
        group=groups, pads=_ends(a["pads"]),
    )  # fmt: skip
    axes = range(2, 2 + n)
    gradient = d.op("Slice", gradient, d.ints([0] * n), d.ints(a["kernel"]), d.ints(axes))
    return d.narrow(d.transpose(gradient, [1, 0, *axes]), out.dtype)


# -- pools


def _reach(node: Node) -> tuple[list[tuple[int, int]], list[int]]:
    """The pads with which ONNX has as many windows as the op when it rounds down (without ceil_mode), and the
    dilations."""
    a, spatial = node.attrs, node.inputs[0].shape[2:]
    dilations = list(a.get("dilations", (1,) * len(spatial)))
    counts = pool_counts(node.op.name, node.inputs[0].shape, a)
    pads = [
        (before, max(after, (c - 1) * s + dil * (k - 1) + 1 - before - n) if a["ceil_mode"] else after)
        for n, k, s, dil, (before, after), c in zip(
            spatial, a["kernel"], a["strides"], dilations, a["pads"], counts, strict=True
        )
    ]
    return pads, dilations


def _windows(node: Node, pads: Sequence[tuple[int, int]], dilations: list[int]) -> dict[str, Any]:
    shape = {"kernel_shape": list(node.attrs["kernel"]), "strides": list(node.attrs["strides"])}
    return {
        **shape,
        "pads": _ends(pads),
        **({"dilations": dilations} if any(n > 1 for n in dilations) else {}),
    }


@writes("max_pool")
def max_pool(d: Draft, node: Node, inputs: list[Value]) -> Value:
    pads, dilations = _reach(node)
    x = d.wide(inputs[0])
    if any(n >= k for pair, k in zip(pads, node.attrs["kernel"], strict=True) for n in pair):
        # With dilation pads may exceed the kernel's number of taps, which ONNX Runtime refuses.
        x = d.op("Pad", x, d.ints(_ends([(0, 0), (0, 0), *pads])), d.like(-math.inf, x))
        pads = [(0, 0)] * len(pads)
    return d.narrow(d.op("MaxPool", x, **_windows(node, pads, dilations)), node.outputs[0].dtype)


@composes("max_pool_grad")
def max_pool_grad(inputs: Sequence[Tensor], attrs: Attrs) -> Tensor:
    """The gradient added at each window's largest element: the first of equal ones, or the first NaN."""
    x, gradient = inputs
    graph, n, size = x.graph, len(attrs["kernel"]), math.prod(x.shape[2:])
    lines, taps, positions = x.shape[0] * x.shape[1], math.prod(attrs["kernel"]), math.prod(gradient.shape[2:])
    numbers = np.arange(size).reshape(1, 1, *x.shape[2:])
    geometry = (
        attrs["kernel"],
        attrs["strides"],
        attrs.get("dilations", (1,) * n),
        attrs["pads"],
        gradient.shape[2:],
    )
    places = windows(numbers, *geometry, fill=-1).reshape(taps, positions)
    flat = apply("reshape", cast_to(x, working(x.dtype)), shape=(lines, size))
    seen = apply("gather", flat, graph.constant(np.maximum(places, 0)), axis=1)
    inside = graph.constant(places >= 0)
    nan = apply("logical_and", apply("isnan", seen), inside)
    lowest = graph.constant(-math.inf, seen.dtype)
    held = apply("where", apply("logical_and", inside, apply("logical_not", nan)), seen, lowest)
    top = apply("logical_and", apply("equal", held, apply("max", held, axes=(1,), keepdims=True)), inside)
    lost = apply("max", nan, axes=(1,), keepdims=True)
    hit = apply("cast", apply("where", lost, nan, top), dtype=i32)
    tap = apply("argmax", hit, axis=1, keepdims=False, select_last_index=False)
    at = tap * positions + graph.constant(np.arange(positions))
    chosen = apply("gather", graph.constant(places.reshape(-1)), at, axis=0)
    # The gradient of a window of only padding goes to an index out of range, which the scatter drops.
    first_hits = apply("max", hit, axes=(1,), keepdims=False)
    chosen = apply("where", apply("equal", first_hits, 1), chosen, graph.constant(size, chosen.dtype))
    updates = apply("reshape", gradient, shape=(lines, positions))
    total = apply("scatter_elements", chosen, updates, axis=1, length=size, reduction="add")
    return cast_to(apply("reshape", total, shape=x.shape), x.dtype)


@writes("avg_pool")
def avg_pool(d: Draft, node: Node, inputs: list[Value]) -> Value:
    """The mean that counts all padding, times the ratio of divisors where the op divides by another number."""
    pads, dilations = _reach(node)
    x, out = d.wide(inputs[0]), node.outputs[0]
    windows = _windows(node, pads, dilations)
    by, taps = divisors(node.inputs[0].shape, node.attrs), math.prod(node.attrs["kernel"])
    if not node.attrs["count_include_pad"]:
        mean = d.op("AveragePool", x, count_include_pad=0, **windows)
    else:
        mean = d.op("AveragePool", x, count_include_pad=1, **windows)
        if (by != taps).any():
            mean = d.op("Mul", mean, d.const(taps / by, x.dtype))
    return d.narrow(mean, out.dtype)


# -- resize and grid_sample


def _by_operator(t: Tensor, a: Attrs) -> bool:
    """Whether Resize certainly reads the same elements, although it computes coordinates in f32."""
    if t.ndim != 4 or a["sizes"][:2] != t.shape[:2] or not t.dtype.is_float or t.dtype == f64:
        return False
    if not all(s == size / n for n, size, s in zip(t.shape, a["sizes"], a["scales"], strict=True)):
        return False
    if a["exclude_outside"] and a["mode"] != "cubic":
        return False
    # Integer scales have no ties that rounding could change.
    return a["mode"] != "nearest" or all(size % n == 0 for n, size in zip(t.shape, a["sizes"], strict=True))


@writes("resize")
def resize(d: Draft, node: Node, inputs: list[Value]) -> Value:
    x, a, t = inputs[0], node.attrs, node.inputs[0]
    if _by_operator(t, a):
        resized = d.op(
            "Resize", d.wide(x), None, None, d.ints(a["sizes"]), mode=a["mode"], nearest_mode=a["rounding"],
            coordinate_transformation_mode=a["coordinates"], cubic_coeff_a=a["cubic_a"],
            exclude_outside=int(a["exclude_outside"]),
        )  # fmt: skip
        return d.narrow(resized, x.dtype)
    changed = tables(t.shape, a)
    if a["mode"] == "nearest":
        for table in changed:
            x = d.op("Gather", x, d.ints(table.index[:, 0].tolist()), axis=table.axis)
        return x
    x = d.wide(x)
    for table in changed:
        column = (-1,) + (1,) * (t.ndim - 1 - table.axis)
        total: Value | None = None
        for tap in range(table.taps):
            part = d.op("Gather", x, d.ints(table.index[:, tap].tolist()), axis=table.axis)
            part = d.op("Mul", part, d.const(table.weight[:, tap].reshape(column), x.dtype))
            total = part if total is None else d.op("Add", total, part)
        x = total if total is not None else x
    return d.narrow(x, inputs[0].dtype)


@writes("grid_sample", when=lambda node: node.inputs[0].ndim == 4 and node.inputs[0].dtype != f64)
def grid_sample(d: Draft, node: Node, inputs: list[Value]) -> Value:
    """GridSample for images; volumes, and f64, use the decomposition: ONNX has no cubic sampling of volumes."""
    a = node.attrs
    mode = (
        a["mode"] if d.opset >= 20 else {"linear": "bilinear", "cubic": "bicubic"}.get(a["mode"], a["mode"])
    )
    x, grid = d.wide(inputs[0]), d.wide(inputs[1])
    sampled = d.op(
        "GridSample", x, d.cast(grid, x.dtype), mode=mode, padding_mode=a["padding"],
        align_corners=int(a["align_corners"]),
    )  # fmt: skip
    return d.narrow(sampled, inputs[0].dtype)
