"""Matrix products, also grouped ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.dtypes import DType, i32, i64, promote
from rlx.ir import Attrs, Node, Tensor, apply, get_op
from rlx.onnx.writer.draft import Draft, Value
from rlx.onnx.writer.elementwise import activated
from rlx.onnx.writer.table import composes, writes
from rlx.ops.base import cast_to
from rlx.ops.numeric import working


@writes("matmul")
def matmul(d: Draft, node: Node, inputs: list[Value]) -> Value:
    """f16 and bf16 are multiplied as f32 and rounded once, after bias and activation."""
    a, out = node.attrs, node.outputs[0]
    work = working(promote(*(t.dtype for t in node.inputs[:2])))
    left, right, *bias = (d.cast(v, work) for v in inputs)
    flat = node.inputs[0].ndim == node.inputs[1].ndim == 2 and work.is_float
    if flat:
        swaps: dict[str, Any] = {"transA": int(a["transpose_a"]), "transB": int(a["transpose_b"])}
        product = d.op("Gemm", left, right, *bias, **swaps)
    else:
        left = _swapped(d, left, node.inputs[0].ndim, a["transpose_a"])
        right = _swapped(d, right, node.inputs[1].ndim, a["transpose_b"])
        product = d.op("MatMul", left, right)
        product = d.op("Add", product, *bias) if bias else product
    return d.narrow(activated(d, product, a["activation"]), out.dtype)


def _swapped(d: Draft, v: Value, rank: int, swap: bool) -> Value:
    return d.transpose(v, [*range(rank - 2), rank - 1, rank - 2]) if swap else v


def _member(sizes: Tensor, rows: int) -> Tensor:
    """(experts, rows): whether a row belongs to the expert's group. Sizes below 0 count as 0."""
    held = cast_to(apply("maximum", sizes, sizes.graph.constant(0, i32)), i64)
    stops = apply("cumsum", held, axis=0, exclusive=False, reverse=False)
    column = (sizes.size, 1)
    stop = apply("reshape", stops, shape=column)
    start = apply("reshape", stops - held, shape=column)
    at = sizes.graph.constant(np.arange(rows, dtype=np.int64).reshape(1, rows))
    return apply("logical_and", apply("greater_equal", at, start), apply("less", at, stop))


def _result(a: Tensor, b: Tensor) -> tuple[DType, DType]:
    """The dtype of a product, and its dtype of computation."""
    dtype = promote(a.dtype, b.dtype)
    return dtype, working(dtype)


@composes("grouped_matmul")
def grouped_matmul(inputs: Sequence[Tensor], attrs: Attrs) -> Tensor:
    """Every row times every expert's weight; the result for its own expert is selected."""
    x, w, sizes = inputs
    dtype, work = _result(x, w)
    rows = apply("reshape", cast_to(x, work), shape=(1, *x.shape))
    flags = {"transpose_a": False, "transpose_b": attrs["transpose_w"], "activation": None}
    products = apply("matmul", rows, cast_to(w, work), **flags)
    mine = apply("reshape", _member(sizes, x.shape[0]), shape=(w.shape[0], x.shape[0], 1))
    kept = apply("where", mine, products, products.graph.constant(0, work))
    return cast_to(apply("sum", kept, axes=(0,), keepdims=False), dtype)


@composes("grouped_matmul_grad")
def grouped_matmul_grad(inputs: Sequence[Tensor], attrs: Attrs) -> Tensor:
    """Every expert's product over all rows, with the rows of other experts set to 0."""
    x, d, sizes = inputs
    dtype, work = _result(x, d)
    mine = apply("reshape", _member(sizes, x.shape[0]), shape=(sizes.size, x.shape[0], 1))
    zero = x.graph.constant(0, work)
    left, right = (
        apply("where", mine, apply("reshape", cast_to(t, work), shape=(1, *t.shape)), zero) for t in (x, d)
    )
    return cast_to(apply("matmul", left, right, transpose_a=True, transpose_b=False, activation=None), dtype)


@composes("lora_matmul")
def lora_matmul(inputs: Sequence[Tensor], attrs: Attrs) -> Tensor:
    """The products and their sum in the dtype of computation, so that f16 and bf16 are rounded once."""
    dtype, work = _result(*inputs[:2])
    rule = get_op("lora_matmul").decompose
    assert rule is not None
    result = rule([cast_to(t, work) for t in inputs], attrs)
    assert isinstance(result, Tensor)
    return cast_to(result, dtype)
