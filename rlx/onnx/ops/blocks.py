"""Weights of 8 bits and fewer in blocks that share a scale: they stay packed where a product reads them."""

from __future__ import annotations

from functools import cache

import numpy as np

from rlx import ops as o
from rlx.ir import Tensor
from rlx.onnx.reader.call import Call
from rlx.onnx.reader.elements import Array
from rlx.packed import PackedArray

SIZES = (128, 32)  # elements of rlx's blocks; a larger block of a file is several with the same scale


def block_size(size: int, columns: int) -> int | None:
    """The block size of rlx that divides both `size`, the elements that share a scale, and the rows' length; else
    None."""
    return next((s for s in SIZES if size % s == 0 and columns % s == 0), None)


def packed_rows(codes: Array, zeros: Array | None, scales: Array, size: int, bits: int) -> PackedArray:
    """Rows of unsigned codes (rows, columns) as packed weights: (code - zero) · scale.

    Scales and zeros, (rows, blocks), are of `size` elements each. Without zeros these are the middle of the range of
    `bits` bits, which are 4 or 8.

    Requires: `block_size`."""
    rows, columns = codes.shape
    unit = block_size(size, columns)
    assert unit is not None
    blocks = np.arange(columns // unit) * unit // size
    fields = [codes.reshape(rows, -1, unit)]
    middle = np.uint8(1 << bits - 1)
    symmetric = zeros is None or bool((zeros == middle).all())
    if bits == 4:
        fields[0] = fields[0][..., ::2] | fields[0][..., 1::2] << 4
    elif symmetric:
        fields[0] = fields[0] ^ middle  # codes minus 128, as signed bytes
    fields.append(np.ascontiguousarray(scales[:, blocks], np.float32)[..., None].view(np.uint8))
    if zeros is not None and not symmetric:
        fields.append(zeros[:, blocks, None].astype(np.uint8))
    name = f"int{bits}{'' if symmetric else '_zp'}{'_128' if unit == 128 else ''}"
    return PackedArray.from_gguf(np.concatenate(fields, 2), name, (rows, columns))


def keep_packed(c: Call, decoded: Tensor, axis: int, size: int) -> None:
    """Notes how products may read a matrix that DequantizeLinear makes of a constant one, in blocks of `size` elements
    along `axis`: as packed weights, whose rows lie along that axis."""
    x, scale = c.value(0), c.value(1)
    operands = [x.tensor, scale.tensor, *([c.x(2)] if c.has(2) else [])]
    kinds = {"int8": 8, "uint8": 8, "int4": 4, "uint4": 4, "int2": 4, "uint2": 4}
    bits = kinds.get(x.dtype.name)
    if decoded.ndim != 2 or bits is None or scale.dtype.name not in ("float32", "float16", "bfloat16"):
        return
    if decoded.dtype.name == "f64" or not all(t.node.op.is_constant for t in operands):
        return
    if block_size(size, decoded.shape[axis]) is None or not decoded.size:
        return

    @cache
    def packed() -> Tensor:
        signed = x.dtype.name.startswith("int")

        def codes(i: int) -> Array:
            array = c.known(i)
            whole = array.astype(np.int8).view(np.uint8) if signed else array.astype(np.uint8)
            whole = whole + np.uint8(1 << bits - 1) if signed else whole
            return whole if axis == 1 else np.ascontiguousarray(whole.T)

        scales = c.known(1).astype(np.float32)
        scales = scales if axis == 1 else scales.T
        zeros = codes(2) if c.has(2) else None if signed else np.zeros(scales.shape, np.uint8)
        return c.packed(packed_rows(codes(0), zeros, scales, size, bits))

    c.known_values.packed[decoded.graph, decoded.id] = packed, axis == 0


def packed_product(c: Call, a: Tensor, b: Tensor, turned: bool = False) -> Tensor | None:
    """a @ b, or a @ bᵀ if `turned`, with packed weights that b stands for; None where it stands for none."""
    packed, transposed = c.known_values.packed.get((b.graph, b.id), (None, False))
    if packed is None or a.dtype != b.dtype or a.ndim == 0:
        return None
    return o.packed_matmul(a, packed(), transpose_q=transposed != turned)
