"""Weights that bitsandbytes keeps in 4 bits (Dettmers et al., "QLoRA", 2023): codes of 16 numbers that the file lists
(nf4 or fp4), in blocks with a scale each, which may be codes themselves (double quantization)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from rlx.dtypes import PACKED, DType, bf16, f16, f32
from rlx.errors import ModelFormatError
from rlx.formats.files import parse_json, shown
from rlx.packed import PackedArray
from rlx.packed.codebooks import TABLES
from rlx.records import Record

Array = npt.NDArray[Any]
STATE = ".quant_state.bitsandbytes__"
_DTYPES = {"bfloat16": bf16, "float16": f16, "float32": f32}
_MAX_STATE_BYTES = 1 << 16  # published ones have 200
_MOST_OFFSET = 3e38  # the largest offset that stays within f32
_CODES_AT_ONCE = 1 << 22


class FourBits(Record):
    """A weight of 4 bits: `codes` hold two adjacent elements per byte, the first in the high bits; each block of
    `block` adjacent elements has a scale, and `book` gives the value of each code. `kind` is "nf4" or "fp4"; `shape`
    and `dtype` are the weight's own. Blocks count through all rows, so one may span two rows."""

    kind: str
    shape: tuple[int, ...]
    dtype: DType
    codes: Array
    book: npt.NDArray[np.float32]
    scales: npt.NDArray[np.float32]
    block: int

    @property
    def packed_dtype(self) -> DType | None:
        """The packed dtype that holds the same numbers. Its blocks divide this weight's blocks and its rows; scales are
        repeated for each. None if rows or blocks are not multiples of 32, or `book` is not the standard table."""
        if not np.array_equal(self.book, TABLES[self.kind]):
            return None
        fits = (PACKED[self.kind + after] for after in ("_64", ""))
        return next((d for d in fits if self.shape[-1] % (n := d.storage.elements) == 0 == self.block % n), None)

    def packed(self) -> PackedArray:
        """The weight in its packed dtype: the same codes in another order, without rounding.

        Raises: ValueError where no packed dtype holds it."""
        dtype = self.packed_dtype
        if dtype is None:
            raise ValueError(f"no packed dtype holds {self.kind} of shape {self.shape} in blocks of {self.block}")
        blocks = np.empty(dtype.array_shape(self.shape), np.uint8)
        rows, size = blocks.reshape(-1, blocks.shape[-1]), dtype.storage.elements
        columns = self.shape[-1]
        half, each = columns // 2, columns // size
        step = max(1, _CODES_AT_ONCE // columns)
        for first in range(0, len(rows), step):
            some = rows[first : first + step]
            pairs = self.codes[first * half : first * half + len(some) * half].reshape(-1, 2, 8)
            apart = np.stack([pairs >> 4, pairs & 15], -1).reshape(-1, 2, 16)  # runs of 16 adjacent elements
            some[:, :half] = (apart[:, 0] | apart[:, 1] << 4).reshape(len(some), half)
            at = np.arange(first * each, (first + len(some)) * each) * size // self.block
            some[:, half:] = self.scales[at].astype("<f4").view(np.uint8).reshape(len(some), each * 4)
        return PackedArray(dtype, self.shape, blocks)

    def floats(self) -> Array:
        """The weight in its dtype, each number rounded once, as bitsandbytes uses it in products."""
        count = math.prod(self.shape)
        values = np.empty(count, self.dtype.np)
        step = max(1, _CODES_AT_ONCE // (2 * self.block)) * 2 * self.block  # even: two codes are a byte
        for at in range(0, count, step):
            part = self.codes[at // 2 : (min(at + step, count) + 1) // 2]
            pairs = np.stack([part >> 4, part & 15], -1).reshape(-1)[: min(step, count - at)]
            blocks = np.arange(at, at + len(pairs)) // self.block
            with np.errstate(over="ignore"):
                values[at : at + len(pairs)] = self.book[pairs] * self.scales[blocks]
        return values.reshape(self.shape)


def read_four_bits(name: str, kind: str, parts: Mapping[str, Array], where: str) -> FourBits:
    """The weight `name` of the kind "nf4" or "fp4", from the tensors with its name and the suffixes "", ".absmax",
    ".quant_map", that of the state, and for quantized scales ".nested_absmax" and ".nested_quant_map".

    Raises: ModelFormatError for tensors that are missing or do not fit each other."""

    def refuse(what: str) -> NoReturn:
        raise ModelFormatError(f"{where}: tensor {shown(name)}: {what}")

    def part(suffix: str, dtype: Any, size: int | None = None) -> Array:
        tensor = parts.get(suffix)
        if tensor is None or tensor.dtype != np.dtype(dtype) or (size is not None and tensor.size != size):
            came = "missing" if tensor is None else f"{tensor.dtype} {tensor.shape}"
            refuse(f"{suffix[1:] or 'the weight'} is {came}, expected {size or 'some'} of {np.dtype(dtype)}")
        return tensor.reshape(-1)

    raw = part(f"{STATE}{kind}", np.uint8)
    if raw.size > _MAX_STATE_BYTES:
        refuse(f"its quant_state has {raw.size:,} bytes")
    state = parse_json(raw.tobytes(), Path(where))
    if not isinstance(state, dict):
        refuse(f"its quant_state is {shown(state)}, expected an object")

    def count(key: str) -> int:
        value = state.get(key)
        if type(value) is not int or not 0 < value <= 1 << 20:
            refuse(f"{key} of its quant_state is {shown(value)}, expected an integer from 1")
        return int(value)

    shape, dtype = state.get("shape"), _DTYPES.get(str(state.get("dtype")))
    if not isinstance(shape, list) or not shape or not all(type(n) is int and 0 < n < 1 << 31 for n in shape):
        refuse(f"shape of its quant_state is {shown(shape)}, expected numbers of elements")
    if state.get("quant_type") != kind or dtype is None:
        refuse(f"its quant_state says {shown(state.get('quant_type'))} of {shown(state.get('dtype'))}; expected {kind} "
               f"of {', '.join(_DTYPES)}")  # fmt: skip
    elements, block = math.prod(shape), count("blocksize")
    if block % 2:
        refuse(f"blocksize of its quant_state is {block}, expected an even number: two codes are a byte")
    codes, blocks = part("", np.uint8, -(-elements // 2)), -(-elements // block)
    book = part(".quant_map", np.float32, 16)
    if "nested_blocksize" not in state:
        return FourBits(kind, tuple(shape), dtype, codes, book, part(".absmax", np.float32, blocks), block)
    inner, offset = count("nested_blocksize"), state.get("nested_offset")
    if isinstance(offset, bool) or not isinstance(offset, int | float) or not abs(offset) <= _MOST_OFFSET:
        refuse(f"nested_offset of its quant_state is {shown(offset)}, expected a number")
    outer = part(".nested_absmax", np.float32, -(-blocks // inner))
    numbers = part(".nested_quant_map", np.float32, 256)[part(".absmax", np.uint8, blocks)]
    scales = numbers * outer[np.arange(blocks) // inner] + np.float32(offset)
    return FourBits(kind, tuple(shape), dtype, codes, book, scales, block)
