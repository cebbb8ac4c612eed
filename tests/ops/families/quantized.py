"""Judges of packed weights: the package gguf for its own types, ml_dtypes and plain arithmetic for rlx's."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

from rlx import ops
from rlx.conformance import domains
from rlx.dtypes import GGUF, PACKED, DType
from rlx.ir import Tensor
from rlx.packed import PackedArray
from tests.ops.families.grouped import looped
from tests.ops.gradient_cases import Gradients
from tests.ops.judging import Array, Judge
from tests.outside import outside
from tests.packed.tables import FP4, NF4


def _own(raw: Array, format: DType) -> Array:
    """Blocks of int8, int4, fp8, nf4 or fp4, in the order of a file: (quant - zero point) · scale, rounded to f32
    once."""
    quants, rest = np.split(raw, [format.storage.planes[0].nbytes], 1)
    scale = np.ascontiguousarray(rest[:, :4]).view(np.float32).astype(np.float64)
    if format.name.startswith("fp8"):
        kind = ml_dtypes.float8_e4m3fn if "e4m3" in format.name else ml_dtypes.float8_e5m2
        values = quants.view(kind).astype(np.float64)
    elif format.name.startswith(("nf4", "fp4")):  # of 16 bytes first all low halves
        runs = quants.reshape(len(quants), -1, 1, 16)
        codes = np.concatenate([runs % 16, runs // 16], 2).reshape(len(quants), -1)
        values = (NF4 if format.name.startswith("nf4") else FP4)[codes].astype(np.float64)
    elif format.name.startswith("int4"):
        values = np.stack([quants % 16, quants // 16], 2).reshape(len(quants), -1).astype(np.float64)
        values -= rest[:, 4:] if "zp" in format.name else 8.0
    else:
        zero = "zp" in format.name
        values = quants.view(np.uint8 if zero else np.int8).astype(np.float64) - (rest[:, 4:] if zero else 0)
    return (values * scale).astype(np.float32)


def decoded(q: Array, format: DType) -> Array:
    """The elements of packed bytes, in f32."""
    size, storage = q.shape[-1], format.storage
    shape = (*q.shape[:-1], size // storage.nbytes * storage.elements)
    if not q.size:
        return np.zeros(shape, np.float32)
    raw = PackedArray(format, shape, q).to_gguf().reshape(-1, storage.nbytes)
    with np.errstate(all="ignore"):
        if format.name == "q1_0":  # which the package gguf does not decode yet
            scale = np.ascontiguousarray(raw[:, :2]).view(np.float16).astype(np.float32)
            signs = np.unpackbits(np.ascontiguousarray(raw[:, 2:]), axis=1, bitorder="little").astype(np.float32)
            return np.asarray((2 * signs - 1) * scale).reshape(shape)
        if format.name not in GGUF:
            return _own(raw, format).reshape(shape)
        gguf = outside("gguf")
        kind = gguf.GGMLQuantizationType[format.name.upper()]
        return np.asarray(gguf.quants.dequantize(raw, kind)).reshape(shape)


def _dequantize(q: Array, *, format: DType, dtype: DType) -> Array:
    return decoded(q, format).astype(dtype.np)


def _matmul(x: Array, q: Array, *, format: DType, transpose_q: bool) -> Array:
    w = decoded(q, format).astype(np.float64)
    return np.matmul(x, w.T if transpose_q else w)


def _grouped(x: Array, q: Array, sizes: Array, *, format: DType, transpose_q: bool) -> Array:
    return looped(x, decoded(q, format).astype(np.float64), sizes, transpose_w=transpose_q)


def _weight(x: Tensor, name: str, *shape: int) -> Tensor:
    format = PACKED[name]
    return x.graph.constant(PackedArray(format, shape, domains.make(shape, format, "normal", 1)))


def _product(name: str, *shape: int, transpose_q: bool) -> Callable[[Tensor], Tensor]:
    return lambda x: ops.packed_matmul(x, _weight(x, name, *shape), transpose_q=transpose_q) * 50.0


def _experts(x: Tensor) -> Tensor:
    sizes = x.graph.constant(np.array([2, 0, 1], np.int32))
    return ops.grouped_packed_matmul(x, _weight(x, "q4_0", 3, 5, 32), sizes) * 50.0


JUDGES: dict[str, Judge] = {
    "gguf.quants.dequantize": _dequantize,
    "numpy.matmul of gguf.quants.dequantize": _matmul,
    "the loop over rows and their experts": _grouped,
}
GRADIENTS: Gradients = {
    "packed_matmul": [
        (_product("q8_0", 3, 32, transpose_q=True), [(2, 32)], None),
        (_product("mxfp4", 4, 64, transpose_q=False), [(2, 2, 4)], None),
    ],
    "grouped_packed_matmul": [(_experts, [(4, 32)], None)],
}  # fmt: skip
