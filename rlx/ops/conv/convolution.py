"""Convolution, transposed convolution, and the two gradients of convolution, over one to three spatial axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlx.dtypes import DType, promote
from rlx.errors import ShapeError
from rlx.ir import Attrs, Cost, Node, Op, Tensor, TensorType, apply, register
from rlx.ops import batching
from rlx.ops.base import TensorLike, cast_to, check_inputs, floats, tensors, written
from rlx.ops.elementwise.unary import NUMPY_ACTIVATIONS
from rlx.ops.matmul import ACTIVATIONS, activated
from rlx.ops.numeric import Array, computed
from rlx.ops.windows import (
    Ints,
    Pads,
    check_counts,
    check_floats,
    check_groups,
    check_image,
    check_pads,
    either,
    padding_of,
    pads_of,
    per_axis,
    spatial_axes,
    window_counts,
    windows,
)

_GEOMETRY = ("strides", "dilations", "pads", "groups")


def _pair(dtypes: Sequence[DType]) -> DType:
    return promote(*dtypes[:2])


def _check_same(op: str, a: TensorType, b: TensorType, names: tuple[str, str]) -> int:
    """The number of spatial axes, which both must have in common. Raises: ShapeError."""
    n = check_image(op, a, names[0])
    if b.rank != a.rank:
        raise ShapeError(f"{op}: {names[0]} {a.shape} beside {names[1]} {b.shape}; expected equal ranks")
    return n


def _check_geometry(op: str, attrs: Attrs, n: int) -> None:
    check_counts(op, attrs, ("strides", "dilations"), n)
    check_pads(op, attrs, n)


def _check_kernel(op: str, kernel: Sequence[int], weight: TensorType) -> None:
    if any(k < 1 for k in kernel):
        raise ShapeError(f"{op}: the weight is {weight.shape}; its spatial axes must be 1 or more")


def _check_bias(op: str, types: Sequence[TensorType], channels: int) -> None:
    if len(types) == 3 and types[2].shape != (channels,):
        raise ShapeError(f"{op}: the bias is {types[2].shape}; expected ({channels},), the output channels")


def _conv_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    op = "conv"
    check_inputs(op, types, 2, 3)
    check_floats(op, types, ("input", "weight", "bias"))
    x, w = types[:2]
    counts = checked_counts(op, x, w, attrs)
    _check_bias(op, types, w.shape[0])
    activation = attrs["activation"]
    if activation is not None and activation not in ACTIVATIONS:
        raise ShapeError(f"{op}: activation {activation!r}; expected None or one of {', '.join(ACTIVATIONS)}")
    return TensorType((x.shape[0], w.shape[0], *counts), promote(x.dtype, w.dtype))


def checked_counts(op: str, x: TensorType, w: TensorType, attrs: Attrs) -> Ints:
    """The number of windows along each axis. Raises: ShapeError where image, filter and geometry do not fit."""
    n = _check_same(op, x, w, ("input", "weight"))
    _check_geometry(op, attrs, n)
    _check_kernel(op, w.shape[2:], w)
    groups = attrs["groups"]
    check_groups(op, groups, w.shape[0], "output channels")
    if w.shape[1] * groups != x.shape[1]:
        raise ShapeError(
            f"{op}: the input has {x.shape[1]} channels and the weight is {w.shape} in {groups} groups; expected "
            f"{w.shape[1] * groups} channels"
        )
    return window_counts(op, x.shape[2:], w.shape[2:], attrs["strides"], attrs["dilations"], attrs["pads"])


def _columns(x: Array, kernel: Ints, attrs: Attrs, counts: Ints) -> Array:
    """im2col with the channels split into groups: (N, groups, C/groups·∏kernel, positions)."""
    groups = attrs["groups"]
    seen = windows(x, kernel, attrs["strides"], attrs["dilations"], attrs["pads"], counts)
    terms = x.shape[1] // groups * math.prod(kernel)
    return seen.reshape(x.shape[0], groups, terms, math.prod(counts))


def _conv(x: Array, w: Array, *bias: Array, activation: str | None, **attrs: Any) -> Any:
    kernel, groups = w.shape[2:], attrs["groups"]
    counts = window_counts("conv", x.shape[2:], kernel, attrs["strides"], attrs["dilations"], attrs["pads"])
    common = np.result_type(x, w)
    columns = _columns(x.astype(common, copy=False), kernel, attrs, counts)
    rows = w.astype(common, copy=False).reshape(groups, w.shape[0] // groups, columns.shape[2])
    y = np.matmul(rows, columns).reshape(x.shape[0], w.shape[0], *counts)
    if bias:
        y = y + bias[0].astype(common).reshape(-1, *(1,) * len(counts))
    return y if activation is None else NUMPY_ACTIVATIONS[activation](y)


def _conv_decompose(inputs: Sequence[Tensor], attrs: Attrs) -> Tensor:
    """The convolution, bias and activation as separate ops; f16 and bf16 are rounded after each of them."""
    y = apply("conv", *inputs[:2], **{**attrs, "activation": None})
    if len(inputs) == 3:
        column = apply("reshape", inputs[2], shape=(y.shape[1], *(1,) * (y.ndim - 2)))
        y = y + cast_to(column, y.dtype)
    return activated(y, attrs["activation"])


def _conv_vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    d = grads[0]
    if d is None:
        return (None,) * len(node.inputs)
    x, w = node.inputs[:2]
    if node.attrs["activation"] is not None:
        # The forward pass does not store the value before the activation, so it is recomputed.
        before = apply("conv", *node.inputs, **{**node.attrs, "activation": None})
        act = activated(before, node.attrs["activation"]).node
        assert callable(act.op.vjp)
        d = act.op.vjp(act, [d])[0]
        assert d is not None
    geometry = {k: node.attrs[k] for k in _GEOMETRY}
    dx = apply("conv_grad_input", d, w, sizes=x.shape[2:], **geometry)
    dw = apply("conv_grad_weight", x, d, kernel=w.shape[2:], **geometry)
    return (cast_to(dx, x.dtype), cast_to(dw, w.dtype), *_bias_gradient(node, d))


def _bias_gradient(node: Node, d: Tensor) -> tuple[Tensor, ...]:
    if len(node.inputs) < 3:
        return ()
    axes = (0, *range(2, d.ndim))
    return (cast_to(apply("sum", d, axes=axes, keepdims=False), node.inputs[2].dtype),)


def conv_cost(image: int, filters: int = 1) -> Callable[[Node], Cost]:
    """The cost of an op in which each element of an image (a convolution's result, or a tensor of that shape) is
    multiplied with every element of one filter. `image` and `filters` index the node's inputs followed by its
    result."""

    def cost(node: Node) -> Cost:
        tensors = (*node.inputs, node.output)
        count = tensors[image].size * math.prod(tensors[filters].shape[1:])
        return Cost(written(node), count, terms=8 * count)

    return cost


register(
    Op("conv", "conv", _conv_infer, computed(_pair)(_conv), "torch.nn.functional.conv2d", _conv_vjp, kernel="conv",
       decompose=_conv_decompose, contracts=True, cost=conv_cost(-1), epilogue=1, batch=batching.folded(1, 2))
)  # fmt: skip


def _grad_input_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    op = "conv_grad_input"
    check_inputs(op, types, 2)
    check_floats(op, types, ("gradient", "weight"))
    d, w = types
    n = _check_same(op, d, w, ("gradient", "weight"))
    _check_geometry(op, attrs, n)
    check_counts(op, attrs, ("sizes",), n, least=0)
    _check_kernel(op, w.shape[2:], w)
    check_groups(op, attrs["groups"], w.shape[0], "output channels")
    expected = (w.shape[0], *window_counts(op, attrs["sizes"], w.shape[2:], *_geometry(attrs)))
    if d.shape[1:] != expected:
        raise ShapeError(
            f"{op}: the gradient is {d.shape}; expected (N, {', '.join(map(str, expected))}), what the convolution of "
            f"an input of {attrs['sizes']} gives"
        )
    return TensorType((d.shape[0], w.shape[1] * attrs["groups"], *attrs["sizes"]), promote(d.dtype, w.dtype))


def _geometry(attrs: Attrs) -> tuple[Ints, Ints, Pads]:
    return attrs["strides"], attrs["dilations"], attrs["pads"]


def _spread(d: Array, w: Array, *, sizes: Ints, **attrs: Any) -> Array:
    """The transposed convolution of d, (N, w.shape[1]·groups, *sizes).

    Each element of d, times the kernel, is added at the positions that the kernel covers.
    """
    groups, kernel = attrs["groups"], w.shape[2:]
    n, inner, taps = d.shape[0], w.shape[1], math.prod(kernel)
    common = np.result_type(d, w)
    rows = w.astype(common, copy=False).reshape(groups, w.shape[0] // groups, inner * taps)
    flat = d.astype(common, copy=False).reshape(n, groups, w.shape[0] // groups, math.prod(d.shape[2:]))
    columns = np.matmul(np.swapaxes(rows, 1, 2), flat).reshape(n, groups * inner, *kernel, *d.shape[2:])
    before = [b for b, _ in attrs["pads"]]
    room = [
        max(b + size, (c - 1) * s + dil * (k - 1) + 1)
        for b, size, c, s, dil, k in zip(
            before, sizes, d.shape[2:], attrs["strides"], attrs["dilations"], kernel, strict=True
        )
    ]
    total = np.zeros((n, groups * inner, *room), common)
    for tap in np.ndindex(*kernel):
        part = tuple(
            slice(t * dil, t * dil + (c - 1) * s + 1, s)
            for t, dil, c, s in zip(tap, attrs["dilations"], d.shape[2:], attrs["strides"], strict=True)
        )
        if d.size:
            total[(slice(None), slice(None), *part)] += columns[(slice(None), slice(None), *tap)]
    kept = tuple(slice(b, b + size) for b, size in zip(before, sizes, strict=True))
    return total[(slice(None), slice(None), *kept)]


def _grad_input_vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    g = grads[0]
    if g is None:
        return (None, None)
    d, w = node.inputs
    geometry = {k: node.attrs[k] for k in _GEOMETRY}
    dd = apply("conv", g, w, activation=None, **geometry)
    dw = apply("conv_grad_weight", g, d, kernel=w.shape[2:], **geometry)
    return cast_to(dd, d.dtype), cast_to(dw, w.dtype)


register(
    Op("conv_grad_input", "conv", _grad_input_infer, computed(_pair)(_spread), "torch.nn.grad.conv2d_input",
       _grad_input_vjp, kernel="conv", contracts=True, cost=conv_cost(0), batch=batching.folded(1))
)  # fmt: skip


def _grad_weight_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    op = "conv_grad_weight"
    check_inputs(op, types, 2)
    check_floats(op, types, ("input", "gradient"))
    x, d = types
    n = _check_same(op, x, d, ("input", "gradient"))
    _check_geometry(op, attrs, n)
    check_counts(op, attrs, ("kernel",), n)
    check_groups(op, attrs["groups"], x.shape[1], "input channels")
    check_groups(op, attrs["groups"], d.shape[1], "output channels")
    expected = (x.shape[0], d.shape[1], *window_counts(op, x.shape[2:], attrs["kernel"], *_geometry(attrs)))
    if d.shape != expected:
        raise ShapeError(f"{op}: the gradient is {d.shape}; expected {expected}, what the convolution gives")
    return TensorType(
        (d.shape[1], x.shape[1] // attrs["groups"], *attrs["kernel"]), promote(x.dtype, d.dtype)
    )


def _grad_weight(x: Array, d: Array, *, kernel: Ints, **attrs: Any) -> Array:
    groups = attrs["groups"]
    common = np.result_type(x, d)
    columns = _columns(x.astype(common, copy=False), kernel, attrs, d.shape[2:])
    flat = d.astype(common, copy=False).reshape(d.shape[0], groups, d.shape[1] // groups, columns.shape[3])
    total = np.sum(np.matmul(flat, np.swapaxes(columns, 2, 3)), axis=0)
    return np.asarray(total).reshape(d.shape[1], x.shape[1] // groups, *kernel)


def _grad_weight_vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    g = grads[0]
    if g is None:
        return (None, None)
    x, d = node.inputs
    geometry = {k: node.attrs[k] for k in _GEOMETRY}
    dx = apply("conv_grad_input", d, g, sizes=x.shape[2:], **geometry)
    dd = apply("conv", x, g, activation=None, **geometry)
    return cast_to(dx, x.dtype), cast_to(dd, d.dtype)


register(
    Op("conv_grad_weight", "conv", _grad_weight_infer, computed(_pair)(_grad_weight), "torch.nn.grad.conv2d_weight",
       _grad_weight_vjp, kernel="conv_weight", contracts=True, cost=conv_cost(1, -1))
)  # fmt: skip


def _transpose_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    op = "conv_transpose"
    check_inputs(op, types, 2, 3)
    check_floats(op, types, ("input", "weight", "bias"))
    x, w = types[:2]
    n = _check_same(op, x, w, ("input", "weight"))
    _check_geometry(op, attrs, n)
    check_counts(op, attrs, ("output_padding",), n, least=0)
    _check_kernel(op, w.shape[2:], w)
    check_groups(op, attrs["groups"], x.shape[1], "input channels")
    if w.shape[0] != x.shape[1]:
        raise ShapeError(
            f"{op}: the input has {x.shape[1]} channels and the weight is {w.shape}; expected {x.shape[1]} first"
        )
    for axis, (extra, s, d) in enumerate(
        zip(attrs["output_padding"], attrs["strides"], attrs["dilations"], strict=True)
    ):
        if extra >= max(s, d):
            raise ShapeError(
                f"{op}: output_padding {extra} of axis {axis}; expected less than its stride {s} or dilation {d}"
            )
    channels = w.shape[1] * attrs["groups"]
    _check_bias(op, types, channels)
    sizes = transposed_sizes(x.shape[2:], w.shape[2:], attrs)
    return TensorType((x.shape[0], channels, *sizes), promote(x.dtype, w.dtype))


def transposed_sizes(sizes: Sequence[int], kernel: Sequence[int], attrs: Attrs) -> Ints:
    """The spatial sizes of a transposed convolution's result. Raises: ShapeError where one is below 1."""
    result = []
    for n, k, s, d, (before, after), extra in zip(
        sizes, kernel, *_geometry(attrs), attrs["output_padding"], strict=True
    ):
        size = (n - 1) * s + d * (k - 1) + 1 + extra - before - after
        if n < 1 or size < 1:
            raise ShapeError(
                f"conv_transpose: a spatial axis of {n} with kernel {k}, stride {s}, pads ({before}, {after}) gives "
                f"{size} elements; expected an input and a result of at least 1"
            )
        result.append(size)
    return tuple(result)


def _conv_transpose(x: Array, w: Array, *bias: Array, output_padding: Ints, **attrs: Any) -> Any:
    sizes = transposed_sizes(x.shape[2:], w.shape[2:], {**attrs, "output_padding": output_padding})
    y = _spread(x, w, sizes=sizes, **attrs)
    return y + bias[0].astype(y.dtype).reshape(-1, *(1,) * len(sizes)) if bias else y


def _transpose_vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """The gradient of the input is a convolution of d; that of the weight is `conv_grad_weight` with d as the image.

    Both compute exactly the positions that the input has.
    """
    d = grads[0]
    if d is None:
        return (None,) * len(node.inputs)
    x, w = node.inputs[:2]
    sizes, pads = _reached(d.shape[2:], x.shape[2:], w.shape[2:], node.attrs)
    if min(sizes) < 1:  # the result does not depend on the input
        dx, dw = (apply("expand", t.graph.constant(0, t.dtype), shape=t.shape) for t in (x, w))
        return dx, dw, *_bias_gradient(node, d)
    geometry = {**{k: node.attrs[k] for k in _GEOMETRY}, "pads": pads}
    stops = (*d.shape[:2], *sizes)
    g = d if stops == d.shape else apply("slice", d, starts=(0,) * d.ndim, stops=stops, steps=(1,) * d.ndim)
    dx = apply("conv", g, w, activation=None, **geometry)
    dw = apply("conv_grad_weight", g, x, kernel=w.shape[2:], **geometry)
    return (cast_to(dx, x.dtype), cast_to(dw, w.dtype), *_bias_gradient(node, d))


def _reached(result: Ints, sizes: Ints, kernel: Ints, attrs: Attrs) -> tuple[Ints, Pads]:
    """How much of the result's spatial axes to convolve, and with which pads, for one position per input element.

    An output_padding of a stride or more, which dilations allow, first replaces padding at the end. No element of the
    input reaches the rest of it, and with that rest there would be more positions than the input has.
    """
    kept, pads = [], []
    for m, n, k, s, dil, (before, _) in zip(result, sizes, kernel, *_geometry(attrs), strict=True):
        end = (n - 1) * s + dil * (k - 1) + 1 - before  # one past the last element that the input reaches
        kept.append(min(m, end + s - 1))
        pads.append((before, max(0, end - kept[-1])))
    return tuple(kept), tuple(pads)


register(
    Op("conv_transpose", "conv", _transpose_infer, computed(_pair)(_conv_transpose),
       "torch.nn.functional.conv_transpose2d", _transpose_vjp, kernel="conv", contracts=True, cost=conv_cost(0),
       batch=batching.folded(1, 2))
)  # fmt: skip


def _arguments(op: str, x: TensorLike, w: TensorLike, bias: TensorLike | None) -> tuple[Tensor, ...]:
    operands = (x, w) if bias is None else (x, w, bias)
    return floats(*tensors(op, *operands))


def conv(
    x: TensorLike,
    w: TensorLike,
    bias: TensorLike | None = None,
    *,
    strides: Any = None,
    pads: Any = None,
    dilations: Any = None,
    groups: int = 1,
    activation: str | None = None,
    stride: Any = None,
    padding: Any = None,
    dilation: Any = None,
) -> Tensor:
    """activation(convolution of x with w, plus bias): a cross-correlation, that is, the kernel is not flipped.

    Shape: x (N, C, *S), w (O, C / groups, *K), bias (O,), one to three spatial axes; gives (N, O, *S') with
    S' = (S + begin + end - dilation·(K - 1) - 1) // stride + 1. strides, dilations: an int or one for each axis; pads:
    an int, one for each axis, or (begin, end) for each; none by default. groups = C is depthwise. activation: as
    rlx.matmul's. stride, padding and dilation are torch's names of the three; padding may also be "valid", or "same",
    for ⌈S / stride⌉ positions, an odd element of padding at the end ("same_lower": at the beginning).
    Dtype: promoted from x and w, so an f16 or bf16 weight beside f32 gives f32; integers become f32. Gradient: to all.
    Numerics: sums in f32, rounded once. Follows ONNX Conv.
    """
    x, w, *rest = _arguments("conv", x, w, bias)
    n = spatial_axes("conv", x)
    step = per_axis("conv", "strides", either("conv", ("strides", "stride"), strides, stride, 1), n)
    spread = per_axis("conv", "dilations", either("conv", ("dilations", "dilation"), dilations, dilation, 1), n)
    around = either("conv", ("pads", "padding"), pads, padding, 0)
    return apply(
        "conv", x, w, *rest, activation=activation, groups=groups, strides=step, dilations=spread,
        pads=padding_of("conv", around, x.shape[2:], w.shape[2:], step, spread) if w.ndim == x.ndim
        else pads_of("conv", 0, n),
    )  # fmt: skip


def conv_transpose(
    x: TensorLike,
    w: TensorLike,
    bias: TensorLike | None = None,
    *,
    strides: Any = None,
    pads: Any = None,
    output_padding: Any = 0,
    dilations: Any = None,
    groups: int = 1,
    stride: Any = None,
    padding: Any = None,
    dilation: Any = None,
) -> Tensor:
    """The transposed convolution plus bias: each element of x times the kernel is added where the kernel covers.

    Shape: x (N, C, *S), w (C, O / groups, *K), bias (O,); gives (N, O, *S') with
    S' = (S - 1)·stride + dilation·(K - 1) + 1 + output_padding - begin - end. Arguments as in rlx.conv, padding in
    numbers; output_padding adds to the end of each axis. Dtype: promoted from x and w; integers become f32. Gradient:
    to all.
    Numerics: sums in f32, rounded once. Follows ONNX ConvTranspose; Zeiler et al., 2010.
    """
    x, w, *rest = _arguments("conv_transpose", x, w, bias)
    op = "conv_transpose"
    n = spatial_axes(op, x)
    return apply(
        op, x, w, *rest, groups=groups, pads=pads_of(op, either(op, ("pads", "padding"), pads, padding, 0), n),
        strides=per_axis(op, "strides", either(op, ("strides", "stride"), strides, stride, 1), n),
        dilations=per_axis(op, "dilations", either(op, ("dilations", "dilation"), dilations, dilation, 1), n),
        output_padding=per_axis(op, "output_padding", output_padding, n),
    )  # fmt: skip


__all__ = ["conv", "conv_transpose"]
