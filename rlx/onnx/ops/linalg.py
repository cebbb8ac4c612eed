"""Products: MatMul, Gemm, Einsum, Det."""

from __future__ import annotations

import math

import numpy as np

from rlx import ops as o
from rlx.dtypes import f32
from rlx.ir import Tensor
from rlx.ir.types import broadcast_shapes
from rlx.onnx.ops.arithmetic import as_f64, as_integer
from rlx.onnx.ops.blocks import packed_product
from rlx.onnx.ops.quant import quantized_product
from rlx.onnx.reader.call import Call, Result
from rlx.onnx.reader.table import op


@op("MatMul")
def matmul(c: Call) -> Result:
    product = packed_product(c, c.x(0), c.x(1))
    product = quantized_product(c, c.x(0), c.x(1), False) if product is None else product
    return o.matmul(c.x(0), c.x(1)) if product is None else product


@op("Gemm")
def gemm(c: Call) -> Tensor:
    a, b, beta = c.x(0), c.x(1), c.float("beta", 1.0)
    bias = c.opt(2)
    if a.ndim != 2 or b.ndim != 2:
        raise c.bad(f"A is {a.shape}, B is {b.shape}; expected two dimensions each")
    alpha = c.float("alpha", 1.0)
    ta, tb = bool(c.int("transA", 0)), bool(c.int("transB", 0))
    packed = packed_product(c, o.transpose(a) if ta else a, b, tb)
    if packed is None and not ta:
        packed = quantized_product(c, a, b, tb)
    if (
        packed is None
        and bias is not None
        and bias.ndim == 1
        and alpha == beta == 1.0
        and bias.shape[0] == b.shape[0 if tb else 1]
        and (a.dtype.is_float)
    ):
        return o.matmul(a, b, bias, transpose_a=ta, transpose_b=tb)
    y = o.matmul(a, b, transpose_a=ta, transpose_b=tb) if packed is None else packed
    if bias is not None and broadcast_shapes(y.shape, bias.shape) != y.shape:
        raise c.bad(f"C is {bias.shape}; expected a shape that broadcasts to that of the product, {y.shape}")
    if a.dtype.is_float:
        return _weighted(y, alpha, bias, beta)
    if alpha.is_integer() and beta.is_integer():
        return _weighted(y, int(alpha), bias, int(beta))
    dtype = c.dtype()
    wide = _weighted(as_f64(y, dtype), alpha, None if bias is None else as_f64(bias, dtype), beta)
    return as_integer(wide, dtype)


def _weighted(y: Tensor, alpha: float, bias: Tensor | None, beta: float) -> Tensor:
    y = y if alpha == 1 else o.mul(y, alpha)
    if bias is None or beta == 0:
        return y
    return o.add(y, bias if beta == 1 else o.mul(bias, beta))


@op("Einsum")
def einsum(c: Call) -> Result:
    """The result has the operands' dtype, though rlx widens small integers: a sum that wraps is the same once cast."""
    xs = c.xs()
    return o.cast(o.einsum(c.str("equation", ""), *xs), xs[0].dtype)


@op("Det")
def det(c: Call) -> Result:
    """Gaussian elimination with partial pivoting, unrolled in the graph: n steps for n × n."""
    x = c.x()
    if x.ndim < 2 or x.shape[-1] != x.shape[-2] or x.shape[-1] > MAX_DET:
        raise c.unsupported(f"of {x.shape}; expected square matrices of at most {MAX_DET} rows")
    n, lead = x.shape[-1], x.shape[:-2]
    a = o.reshape(o.cast(x, f32) if x.dtype.is_half else x, (math.prod(lead), n, n))
    result: Tensor | None = None
    for k in range(n):
        m = n - k
        pivot = o.argmax(o.abs(a[:, :, 0]), 1, keepdims=True)  # (B, 1)
        rows = o.expand(o.reshape(pivot, (-1, 1, 1)), (a.shape[0], 1, m))
        top = o.gather_elements(a, rows, 1)  # (B, 1, m)
        first = a[:, :1, :]
        sign = o.where(o.equal(pivot[:, 0], 0), 1.0, -1.0)
        here = o.equal(
            o.reshape(c.tensor(np.arange(m, dtype=np.int64)), (1, m, 1)), o.reshape(pivot, (-1, 1, 1))
        )
        a = o.where(here, first, a)
        value = o.mul(o.cast(sign, a.dtype), top[:, 0, 0])
        result = value if result is None else o.mul(result, value)
        safe = o.where(o.equal(top[:, :, :1], 0), 1.0, top[:, :, :1])
        a = o.sub(a[:, 1:, 1:], o.mul(o.div(a[:, 1:, :1], safe), top[:, :, 1:]))
    determinant = c.tensor(np.ones(a.shape[0], a.dtype.np)) if result is None else result
    return o.reshape(determinant, lead)


MAX_DET = 64
