"""Block-quantized weights of com.microsoft, each block with its own scale: products with them, gathers of rows.

The matrix of a product stays packed where its blocks are those of one of rlx's dtypes (4 or 8 bits, blocks of 32 or 128
numbers that fill the rows, no zero points in floats, no order of columns; nf4 and fp4 in blocks and rows of whole 32).
Any other is dequantized while the model is built. Both are weights of the program as others are, shared by the programs
of all shapes. A table from which rows are taken stays packed on the device; only its rows are dequantized.
"""

from __future__ import annotations

import math

import numpy as np

from rlx import ops as o
from rlx.dtypes import f32, i32
from rlx.formats.bitsandbytes import FourBits
from rlx.ir import Tensor
from rlx.onnx.ops.blocks import block_size, packed_rows
from rlx.onnx.ops.movement import axis_of
from rlx.onnx.reader.call import Call, Result
from rlx.onnx.reader.declared import declared
from rlx.onnx.reader.elements import SMALL_FLOATS, Array, carrier
from rlx.packed import PackedArray
from rlx.packed.codebooks import TABLES

_FLOATS = "float16 float bfloat16"


def _codes(packed: Array, bits: int, count: int) -> Array:
    """The first `count` numbers of each row of bytes, a byte's first number in its lowest bits."""
    places = np.arange(0, 8, bits, dtype=np.uint8)
    codes = (packed[..., None] >> places) & np.uint8((1 << bits) - 1)
    return codes.reshape(*packed.shape[:-1], -1)[..., :count]


def _zeros(c: Call, bits: int, n: int, blocks: int) -> Array:
    """(N, blocks): the zero points, packed or as floats; the middle of the range where they are left out."""
    if not c.has(3):
        return np.full((n, blocks), 1 << bits - 1, np.float32)
    zero = c.known(3)
    row = -(-blocks * bits // 8) if zero.dtype == np.uint8 else blocks
    if zero.size != n * row:
        raise c.bad(f"zero_points is {zero.shape} of {zero.dtype}; expected {n} rows of {row}")
    rows = zero.reshape(n, row)
    return (_codes(rows, bits, blocks) if zero.dtype == np.uint8 else rows).astype(np.float32)


@declared(
    "MatMulNBits",
    inputs="A:T1 B:T2 scales:T1 zero_points:T3? g_idx:T4? bias:T1?",
    outputs="Y:T1",
    types={"T1": _FLOATS, "T2": "uint8", "T3": f"uint8 {_FLOATS}", "T4": "int32"},
    attributes={"K": int, "N": int, "accuracy_level": 0, "bits": 4, "block_size": int, "weight_prepacked": 0},
    required="K N block_size",
)
def matmul_nbits(c: Call) -> Result:
    """A · Wᵀ + bias. `accuracy_level` allows ONNX Runtime to round A to 8 bits first; rlx does not round it."""
    a, bits, size, n, k = c.x(0), c.int("bits"), c.int("block_size"), c.int("N"), c.int("K")
    if bits not in (2, 4, 8):
        raise c.unsupported(f"of {bits} bits is not supported; of 2, 4 and 8 it is")
    if c.int("weight_prepacked"):
        raise c.unsupported("with weights packed for one kind of processor is not supported")
    if min(size, n, k) < 1 or size * bits % 8:
        raise c.bad(
            f"N {n}, K {k}, block_size {size} of {bits} bits; expected positive ones, blocks of whole bytes"
        )
    blocks, row = -(-k // size), size * bits // 8
    if c.x(1).size != n * blocks * row or c.x(2).size != n * blocks:
        raise c.bad(
            f"B is {c.x(1).shape}, scales {c.x(2).shape}; expected {n} rows of {blocks} blocks of {row} bytes and a "
            f"scale for each block"
        )
    if a.ndim == 0 or a.shape[-1] != k:
        raise c.bad(f"A is {a.shape}; expected rows of {k}")
    if c.has(5) and c.x(5).shape != (n,):
        raise c.bad(f"bias is {c.x(5).shape}; expected {(n,)}")
    packed = _packed_matrix(c, bits, size, blocks)
    if packed is not None:
        product = o.packed_matmul(a, c.packed(packed))
    else:
        product = o.matmul(a, c.tensor(_matrix(c, bits, size, blocks).astype(a.dtype.np)))
    return o.add(product, c.x(5)) if c.has(5) else product


def _packed_matrix(c: Call, bits: int, size: int, blocks: int) -> PackedArray | None:
    """(N, K) in blocks of rlx's own dtypes; None where there is none of these sizes."""
    n, k = c.int("N"), c.int("K")
    zeros = c.has(3)
    if bits not in (4, 8) or block_size(size, k) is None or c.has(4) or (zeros and c.dtype(3) != np.uint8):
        return None
    codes = _codes(c.known(1).reshape(n, -1), bits, k)
    points = _zeros(c, bits, n, blocks) if zeros else None
    return packed_rows(codes, points, c.known(2).astype(np.float32).reshape(n, blocks), size, bits)


def _matrix(c: Call, bits: int, size: int, blocks: int) -> Array:
    """(K, N) in f32."""
    n, k = c.int("N"), c.int("K")
    codes = _codes(c.known(1).reshape(n, -1), bits, k)
    scales = c.known(2).reshape(n, blocks).astype(np.float32)
    zeros = _zeros(c, bits, n, blocks)
    group = np.arange(k) // size
    if c.has(4):
        group = c.known(4).reshape(-1)[:k].astype(np.int64)
        if len(group) != k or group.min() < 0 or group.max() >= blocks:
            raise c.bad(f"g_idx is {c.x(4).shape}; expected {k} numbers of {blocks} blocks")
    weights = codes.astype(np.float32)
    weights -= zeros[:, group]
    weights *= scales[:, group]
    return np.ascontiguousarray(weights.T)


@declared(
    "MatMulBnb4",
    inputs="A:T1 B:T2 absmax:T1",
    outputs="Y:T1",
    types={"T1": _FLOATS, "T2": "uint8"},
    attributes={"K": int, "N": int, "block_size": int, "quant_type": int, "training_mode": 0, "transB": 1},
    required="K N block_size quant_type",
)
def matmul_bnb4(c: Call) -> Result:
    """A · Wᵀ of floats of 4 bits in blocks of the flat matrix (N, K); the first of two numbers is in a byte's highest
    bits."""
    a, size, n, k = c.x(0), c.int("block_size"), c.int("N"), c.int("K")
    if c.int("quant_type") not in (0, 1):
        raise c.bad(f"quant_type is {c.int('quant_type')}; expected 0 (FP4) or 1 (NF4)")
    if not c.int("transB"):
        raise c.unsupported("with transB = 0, the product of a gradient, is not supported")
    if min(size, n, k) < 1 or c.x(1).size != -(-n * k // 2) or c.x(2).size != -(-n * k // size):
        raise c.bad(
            f"N {n}, K {k}, block_size {size}, B {c.x(1).shape}, absmax {c.x(2).shape}; expected two numbers in a byte "
            f"and a largest one for each block"
        )
    if a.ndim == 0 or a.shape[-1] != k:
        raise c.bad(f"A is {a.shape}; expected rows of {k}")
    kind, scales = "nf4" if c.int("quant_type") else "fp4", c.known(2).reshape(-1).astype(np.float32)
    held = FourBits(kind, (n, k), a.dtype, c.known(1).reshape(-1), TABLES[kind], scales, size)
    if held.packed_dtype is not None:
        return o.packed_matmul(a, c.packed(held.packed()))
    return o.matmul(a, c.tensor(np.ascontiguousarray(held.floats().T)))


@declared(
    "GatherBlockQuantized",
    inputs="data:T1 indices:Tind scales:T2 zero_points:T1?",
    outputs="output:T2",
    types={
        "T1": "int4 uint4 uint8 float8e4m3fn float8e4m3fnuz float8e5m2 float8e5m2fnuz float4e2m1",
        "T2": _FLOATS,
        "Tind": "int32 int64",
    },
    attributes={"bits": 4, "block_size": 128, "gather_axis": 0, "quantize_axis": 1},
)
def gather_block_quantized(c: Call) -> Result:
    """Slices along gather_axis, dequantized. An index that is out of range gives zeros, as in ONNX Runtime."""
    data, indices, scales = c.x(0), c.x(1), c.x(2)
    gather, axis = (axis_of(c, c.int(n), data.ndim) for n in ("gather_axis", "quantize_axis"))
    small, packed = c.dtype() in SMALL_FLOATS, c.dtype() == np.uint8
    bits = c.int("bits") if packed else 8
    if bits not in (2, 4, 8) or (not packed and not small and c.int("bits") != 4):
        raise c.unsupported(f"of {c.int('bits')} bits in {c.dtype()} is not supported")
    if gather == axis or (packed and (gather != 0 or axis != data.ndim - 1)):
        raise c.bad(
            f"gather_axis is {gather}, quantize_axis {axis}; expected two different ones, in uint8 data 0 and the last"
        )
    if small and c.has(3):
        raise c.bad(f"has zero points, but the data is {c.dtype()}")
    length = data.shape[axis] * (8 // bits)
    size = c.int("block_size") or (max(length, 1) if small else 0)
    if size < 1:
        raise c.bad(f"block_size is {size}; expected a positive one")
    blocks = -(-length // size)
    shape = [*data.shape[:axis], blocks, *data.shape[axis + 1 :]]
    if scales.ndim != data.ndim or any(
        m != n and not (small and m == 1 and i != axis)
        for i, (m, n) in enumerate(zip(scales.shape, shape, strict=True))
    ):
        raise c.bad(f"scales is {scales.shape}; expected {shape}")
    there = axis if axis < gather else axis + indices.ndim - 1  # the blocks' axis once slices are taken
    rows = data.shape[gather]
    inside = o.logical_and(o.greater_equal(indices, -rows), o.less(indices, rows))
    index = o.where(inside, indices, 0)

    def taken(t: Tensor, bits: int) -> Tensor:
        return _unpacked(o.gather(t, index, gather), bits)

    places = c.tensor((np.arange(length) // size).astype(np.int32))
    exact = f32 if small else i32
    whole = o.cast(taken(data, bits), exact)
    if c.has(3):
        zero = c.x(3)
        want = [*shape[:axis], -(-blocks * bits // 8), *shape[axis + 1 :]]
        if list(zero.shape) != want:
            raise c.bad(f"zero_points is {zero.shape}; expected {want}")
        whole = o.sub(whole, o.cast(o.gather(taken(zero, bits), places, there), exact))
    elif packed:
        whole = o.sub(whole, 1 << bits - 1)
    scale = o.gather(taken(o.expand(scales, shape), 8), places, there)
    weights = o.mul(o.cast(whole, f32), o.cast(scale, f32))
    tail = data.ndim - 1 - gather
    weights = o.where(o.reshape(inside, (*indices.shape, *(1,) * tail)), weights, 0.0)
    return o.cast(weights, carrier(c.dtype(2)))


def _unpacked(t: Tensor, bits: int) -> Tensor:
    """The numbers of `bits` bits packed in bytes along the last axis; numbers of 8 bits are not packed."""
    if bits == 8:
        return t
    parts = [
        o.bitwise_and(o.right_shift(o.cast(t, i32), place), (1 << bits) - 1) for place in range(0, 8, bits)
    ]
    codes = o.stack(parts, t.ndim)
    return o.reshape(codes, (*t.shape[:-1], math.prod(codes.shape[-2:])))
