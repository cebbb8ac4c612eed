"""Quantized weights of Hugging Face folders as packed arrays, bit by bit: GPTQ, AWQ, fp8 with scales of blocks, rows or
tensors, bitsandbytes' int8, nf4 and fp4, MXFP4 experts, and compressed-tensors.

Each format spreads a weight over several tensors (`q_proj.qweight`, `.scales`, `.qzeros`), which become one
(`q_proj.weight`) of the packed dtype whose blocks hold the same numbers; scales of larger groups are repeated for each
block. Weights that no packed dtype can hold are refused by name, except bitsandbytes' 4-bit weights whose rows are not
a multiple of 32 or whose table is not the standard one: these become floats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from rlx.dtypes import PACKED, DType, as_dtype, bf16
from rlx.errors import DTypeError, ModelFormatError
from rlx.formats.bitsandbytes import STATE, read_four_bits
from rlx.formats.files import shown
from rlx.packed import PackedArray
from rlx.records import Record

Array = npt.NDArray[Any]
Value = Array | PackedArray
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the column of each nibble of a word
_FP8 = {"float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2"}  # the keys are names of ml_dtypes


def _fp8() -> tuple[Any, ...]:
    import ml_dtypes  # imported with the first file that asks for them

    return tuple(np.dtype(getattr(ml_dtypes, name)) for name in _FP8)


class _Made(Record):
    shape: tuple[int, ...]
    dtype: DType
    make: Callable[[], Value]


class QuantizedTensors(Mapping[str, Value]):
    """The tensors of a folder whose config.json has a `quantization_config`, under the names of an unquantized folder.
    Packed arrays are made when they are accessed; `kinds` gives shapes and dtypes without making any.

    Raises: ModelFormatError for an unknown method, for tensors that do not fit each other, and for weights that no
    packed dtype can hold."""

    def __init__(self, tensors: Mapping[str, Array], settings: Mapping[str, Any], where: str) -> None:
        self.where, self._tensors, self._settings = where, tensors, settings
        self._made: dict[str, _Made] = {}
        self._used: set[str] = set()
        method = settings.get("quant_method")
        methods = {
            "gptq": self._gptq, "awq": self._awq, "fp8": self._fp8, "fbgemm_fp8": self._fp8, "mxfp4": self._mxfp4,
            "bitsandbytes": self._bitsandbytes, "compressed-tensors": self._compressed,
        }  # fmt: skip
        if not isinstance(method, str) or method not in methods:
            self._refuse(
                f"quantization_config.quant_method is {shown(method)}; rlx reads {', '.join(methods)}"
            )
        methods[method]()
        for name in tensors:
            if name not in self._used and tensors[name].dtype.name in _FP8:
                self._refuse(f"tensor {shown(name)} is fp8 and has no scale")
        self.kinds = {name: self._kind(name) for name in self}

    def _kind(self, name: str) -> tuple[tuple[int, ...], DType]:
        if name in self._made:
            return self._made[name].shape, self._made[name].dtype
        try:
            return tuple(self._tensors[name].shape), as_dtype(self._tensors[name].dtype)
        except DTypeError as error:
            raise ModelFormatError(f"{self.where}: tensor {shown(name)}: {error}") from error

    def __getitem__(self, name: str) -> Value:
        entry = self._made.get(name)
        if entry is not None:
            return entry.make()
        if name in self._used:
            raise KeyError(name)
        return self._tensors[name]

    read = __getitem__

    def __iter__(self) -> Iterator[str]:
        yield from self._made
        yield from (name for name in self._tensors if name not in self._used)

    def __len__(self) -> int:
        return len(self._made) + len(self._tensors) - len(self._used & self._tensors.keys())

    def _refuse(self, what: str) -> NoReturn:
        raise ModelFormatError(f"{self.where}: {what}")

    def _stems(self, suffix: str) -> list[str]:
        return [name.removesuffix(suffix) for name in self._tensors if name.endswith(suffix)]

    def _take(self, name: str, *kinds: Any, shape: tuple[int, ...] | None = None) -> Array:
        """A tensor that a weight is made from. Raises: ModelFormatError if it is missing or of another dtype or
        shape."""
        tensor = self._tensors.get(name)
        if tensor is None:
            self._refuse(f"tensor {shown(name)} is missing, which the quantized weight beside it needs")
        if kinds and tensor.dtype not in [np.dtype(kind) for kind in kinds]:
            self._refuse(
                f"tensor {shown(name)} is {tensor.dtype}, expected {' or '.join(str(np.dtype(k)) for k in kinds)}"
            )
        if shape is not None and tensor.shape != shape:
            self._refuse(f"tensor {shown(name)} has shape {tensor.shape}, expected {shape}")
        self._used.add(name)
        return tensor

    def _number(self, name: str, default: int | None = None) -> int:
        number = self._settings.get(name, default)
        if type(number) is not int or not -1 <= number <= 1 << 20:
            self._refuse(f"quantization_config.{name} is {shown(number)}, expected an integer")
        return number

    def _block(self, kind: str, columns: int, group: int, name: str) -> DType:
        """The packed dtype whose blocks divide rows and groups."""
        fits = (d for d in (PACKED[f"{kind}_128"], PACKED[kind]) if columns % d.storage.elements == 0)
        result = next((d for d in fits if group % d.storage.elements == 0), None)
        if result is None:
            self._refuse(
                f"tensor {shown(name)} has rows of {columns} in groups of {group}; rlx packs {kind} in blocks of 32 "
                "and 128"
            )
        return result

    def _gptq(self) -> None:
        """GPTQ (Frantar et al., 2022): a word holds 8 (or 4) adjacent elements of a column. The first format stores
        zero points minus 1: 1 was subtracted from all fields of a word at once, so that a zero of 0 borrows from the
        next field, as in gptqmodel."""
        bits = self._number("bits")
        if bits not in (4, 8):
            self._refuse(f"GPTQ of {bits} bits; rlx has packed dtypes for 4 and 8")
        less = self._gptq_less(bits)
        per = 32 // bits
        for stem in self._stems(".qweight"):
            words = self._take(f"{stem}.qweight", np.int32)
            if words.ndim != 2:
                self._refuse(f"tensor {shown(stem)}.qweight has shape {words.shape}, expected a matrix")
            columns, rows = words.shape[0] * per, words.shape[1]
            group = self._group(columns)
            n = columns // group
            scales = self._take(f"{stem}.scales", np.float16, bf16.np, np.float32, shape=(n, rows))
            zeros = self._take(f"{stem}.qzeros", np.int32, shape=(n, rows // per))
            if f"{stem}.g_idx" in self._tensors:
                order = self._take(f"{stem}.g_idx", np.int32, shape=(columns,))
                if not np.array_equal(order, np.arange(columns) // group):
                    self._refuse(
                        f"tensor {shown(stem)}.g_idx gives columns to groups in another order (desc_act); rlx packs "
                        "groups of neighbours"
                    )
            kind = self._block(f"int{bits}_zp", columns, group, stem)

            def make(
                words: Array = words,
                scales: Array = scales,
                zeros: Array = zeros,
                kind: DType = kind,
            ) -> PackedArray:
                z = _nibbles(zeros.view(np.uint32) + less, bits)
                # Adjacent elements of a row are adjacent in memory, as in blocks.
                codes = np.ascontiguousarray(words.T).view(np.uint8)
                return _packed(kind, codes, scales.T, z.T)

            self._add(stem, (rows, columns), kind, make)

    def _gptq_less(self, bits: int) -> np.uint32:
        """What was subtracted from each word of zero points, by the format in config.json: `format` in newer files,
        `checkpoint_format` in older ones. Raises: ModelFormatError for a layout of another kernel, such as marlin."""
        named = {key: self._settings[key] for key in ("format", "checkpoint_format") if self._settings.get(key)}
        formats = {str(value).lower() for value in named.values()} or {"gptq"}
        if len(formats) > 1 or not formats <= {"gptq", "gptq_v2"}:
            said = " and ".join(f"quantization_config.{key} {shown(value)}" for key, value in named.items())
            self._refuse(f"{said}; rlx reads GPTQ of one of the formats 'gptq' and 'gptq_v2'")
        return np.uint32(0 if formats == {"gptq_v2"} else sum(1 << at for at in range(0, 32, bits)))

    def _awq(self) -> None:
        """AWQ (Lin et al., 2023): a word holds 8 adjacent elements of a row of the transposed weight, in the order
        _AWQ_ORDER."""
        if self._number("bits") != 4 or str(self._settings.get("version", "gemm")).lower() != "gemm":
            self._refuse(
                f"AWQ of {self._number('bits')} bits, version {shown(self._settings.get('version'))}; rlx reads 4, gemm"
            )
        for stem in self._stems(".qweight"):
            words = self._take(f"{stem}.qweight", np.int32)
            if words.ndim != 2:
                self._refuse(f"tensor {shown(stem)}.qweight has shape {words.shape}, expected a matrix")
            columns, rows = words.shape[0], words.shape[1] * 8
            group = self._group(columns)
            n = columns // group
            scales = self._take(f"{stem}.scales", np.float16, bf16.np, np.float32, shape=(n, rows))
            zeros = self._take(f"{stem}.qzeros", np.int32, shape=(n, rows // 8))
            kind = self._block("int4_zp", columns, group, stem)

            def make(
                words: Array = words, scales: Array = scales, zeros: Array = zeros, kind: DType = kind
            ) -> PackedArray:
                codes = np.ascontiguousarray(_awq_order(words).T)
                pairs = codes[:, 0::2] | codes[:, 1::2] << 4
                return _packed(kind, pairs, scales.T, _awq_order(zeros).T)

            self._add(stem, (rows, columns), kind, make)

    def _fp8(self) -> None:
        """fp8 elements with scales for blocks of rows and columns, for rows, or for the whole tensor."""
        for suffix in (".weight_scale_inv", ".weight_scale"):
            for stem in self._stems(suffix):
                weight = self._take(f"{stem}.weight")
                if weight.dtype.name not in _FP8 or weight.ndim != 2:
                    self._refuse(
                        f"tensor {shown(stem)}.weight is {weight.dtype} {weight.shape}, expected a matrix of fp8"
                    )
                self._scaled(stem, weight, self._take(f"{stem}{suffix}"), _FP8[weight.dtype.name])
                for other in (".input_scale", ".input_scale_ub"):  # scales of activations, which rlx keeps as floats
                    if f"{stem}{other}" in self._tensors:
                        self._used.add(f"{stem}{other}")

    def _scaled(self, stem: str, weight: Array, scales: Array, family: str) -> None:
        """A weight of 8-bit elements with a matrix of scales of its blocks."""
        if scales.dtype not in (np.float32, np.float16, bf16.np):
            self._refuse(f"the scales of {shown(stem)} are {scales.dtype}, expected floats")
        rows, columns = weight.shape
        size = self._settings.get("weight_block_size") or [1 if scales.size == rows else rows, columns]
        if not isinstance(size, list) or len(size) != 2 or not all(type(n) is int and n > 0 for n in size):
            self._refuse(f"quantization_config.weight_block_size is {shown(size)}, expected two numbers")
        if scales.ndim != 2 or scales.size == 1:
            scales = scales.reshape(-1, 1)
        expected = (-(-rows // size[0]), -(-columns // size[1]))
        if scales.shape != expected:
            self._refuse(f"the scales of {shown(stem)} have shape {scales.shape}, expected {expected}")
        kind = self._block(family, columns, size[1], stem)

        def make() -> PackedArray:
            spread = scales[np.arange(rows) // size[0]]
            blocks = np.arange(columns // kind.storage.elements) * kind.storage.elements // size[1]
            return _packed(kind, weight.view(np.uint8), spread[:, blocks], None)

        self._add(stem, (rows, columns), kind, make)

    def _bitsandbytes(self) -> None:
        """bitsandbytes: rows of int8 with one scale each (Dettmers et al., 2022), and 4 bits by a table of 16 numbers
        (2023). The latter become floats, as in bitsandbytes itself, if no packed dtype fits their rows or their
        table."""
        for state in [name for name in self._tensors if STATE in name]:
            name, _, kind = state.partition(STATE)
            parts = {suffix: self._tensors[name + suffix] for suffix in (
                "", ".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map", f"{STATE}{kind}"
            ) if name + suffix in self._tensors}  # fmt: skip
            if kind not in ("nf4", "fp4"):
                self._refuse(f"{shown(name)} is {shown(kind)} of bitsandbytes; rlx reads int8, nf4 and fp4")
            held = read_four_bits(name, kind, parts, self.where)
            self._used |= {name + suffix for suffix in parts}
            kept = held.packed_dtype
            maker = held.floats if kept is None else held.packed
            self._made[name] = _Made(held.shape, kept or held.dtype, maker)
        for stem in self._stems(".SCB"):
            weight = self._take(f"{stem}.weight", np.int8)
            scales = self._take(f"{stem}.SCB", np.float32)
            if weight.ndim != 2 or scales.size != weight.shape[0]:
                self._refuse(f"tensor {shown(stem)}.SCB has {scales.size} scales for {weight.shape}")
            self._used.add(f"{stem}.weight_format")
            self._scaled(stem, weight, scales.reshape(-1, 1) / np.float32(127), "int8")

    def _mxfp4(self) -> None:
        """MXFP4: blocks of 32 e2m1 elements that share an exponent; a byte holds two adjacent elements."""
        for stem in self._stems("_blocks"):
            blocks = self._take(f"{stem}_blocks", np.uint8)
            if blocks.ndim < 3 or blocks.shape[-1] != 16:
                self._refuse(
                    f"tensor {shown(stem)}_blocks has shape {blocks.shape}, expected blocks of 16 bytes"
                )
            scales = self._take(f"{stem}_scales", np.uint8, shape=blocks.shape[:-1])
            shape, kind = (*blocks.shape[:-2], blocks.shape[-2] * 32), PACKED["mxfp4"]

            def make(
                blocks: Array = blocks,
                scales: Array = scales,
                shape: tuple[int, ...] = shape,
                kind: DType = kind,
            ) -> PackedArray:
                codes = np.stack([blocks & 15, blocks >> 4], -1).reshape(*blocks.shape[:-1], 32)
                turned = (codes[..., :16] | codes[..., 16:] << 4).reshape(*blocks.shape[:-2], -1)
                return PackedArray(kind, shape, np.concatenate([turned, scales], -1))

            self._made[stem] = _Made(shape, kind, make)

    def _compressed(self) -> None:
        """The formats of compressed-tensors for weights without zeros: 4 or 8 bits in words, int8 and fp8."""
        groups = self._settings.get("config_groups")
        weights = [
            g.get("weights")
            for g in (groups.values() if isinstance(groups, dict) else ())
            if isinstance(g, dict)
        ]
        if len(weights) != 1 or not isinstance(weights[0], dict):
            self._refuse("quantization_config.config_groups has no single group with its weights' settings")
        group = weights[0].get("group_size") or -1
        blocks = weights[0].get("block_structure") or ([1, group] if group != -1 else None)
        self._settings = {**self._settings, "group_size": group, "weight_block_size": blocks}
        if self._stems(".weight_zero_point") or self._stems(".weight_g_idx"):
            self._refuse(
                "weights of compressed-tensors with zero points or ordered groups; rlx reads those without"
            )
        for stem in self._stems(".weight_packed"):
            words = self._take(f"{stem}.weight_packed", np.int32)
            shape = self._take(f"{stem}.weight_shape", np.int64, np.int32)
            bits = weights[0].get("num_bits")
            per = 8 if bits == 4 else 4
            if bits not in (4, 8) or words.ndim != 2 or shape.tolist() != [len(words), words.shape[1] * per]:
                self._refuse(f"tensor {shown(stem)}.weight_packed is no matrix of 4 or 8 bits of the shape it says")
            rows, columns = words.shape[0], words.shape[1] * per
            group = self._group(columns)
            floats = (np.float16, bf16.np, np.float32)
            scales = self._take(f"{stem}.weight_scale", *floats, shape=(rows, columns // group))
            kind = self._block(f"int{bits}", columns, group, stem)
            offset = np.uint8(0 if bits == 4 else 128)  # words hold unsigned codes, the int8 dtype signed ones

            def make(
                words: Array = words, scales: Array = scales, kind: DType = kind, offset: np.uint8 = offset
            ) -> PackedArray:
                return _packed(kind, np.ascontiguousarray(words).view(np.uint8) ^ offset, scales, None)

            self._add(stem, (rows, columns), kind, make)
        for stem in self._stems(".weight_scale"):
            if f"{stem}.weight_scale" not in self._used:
                weight = self._take(f"{stem}.weight", np.int8, *_fp8())
                if weight.ndim != 2:
                    self._refuse(f"tensor {shown(stem)}.weight has shape {weight.shape}, expected a matrix")
                scales = self._take(f"{stem}.weight_scale")
                self._used.add(f"{stem}.input_scale")
                self._scaled(stem, weight, scales, _FP8.get(weight.dtype.name, "int8"))

    def _group(self, columns: int) -> int:
        group = self._number("group_size", -1)
        group = columns if group == -1 else group
        if group < 1 or columns % group:
            self._refuse(
                f"quantization_config.group_size is {group}, which does not divide rows of {columns}"
            )
        return group

    def _add(self, stem: str, shape: tuple[int, ...], kind: DType, make: Callable[[], PackedArray]) -> None:
        name = f"{stem}.weight"
        if name in self._made or (name in self._tensors and name not in self._used):
            self._refuse(f"tensor {shown(name)} is there twice, quantized and not")
        self._made[name] = _Made(shape, kind, make)


def _nibbles(words: Array, bits: int) -> npt.NDArray[np.uint8]:
    """The fields of `bits` bits in each word, lowest first, along the last axis."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    apart = words.view(np.uint32)[..., None] >> shifts & np.uint32((1 << bits) - 1)
    return apart.reshape(*words.shape[:-1], -1).astype(np.uint8)


def _awq_order(words: Array) -> npt.NDArray[np.uint8]:
    apart = _nibbles(words, 4).reshape(*words.shape, 8)
    values = np.empty_like(apart)
    values[..., _AWQ_ORDER] = apart
    return values.reshape(*words.shape[:-1], -1)


def _packed(kind: DType, codes: Array, scales: Array, zeros: Array | None) -> PackedArray:
    """Rows in planes: the elements' bytes, an f32 scale for each block, and a zero point if the dtype has them.
    `scales` (and zeros) belong to groups of one or more whole blocks."""
    elements = kind.storage.elements
    columns = codes.shape[1] * elements // kind.storage.planes[0].nbytes
    blocks = columns // elements
    each = np.arange(blocks) * scales.shape[1] // blocks
    parts = [codes, np.ascontiguousarray(scales.astype("<f4")[:, each]).view(np.uint8)]
    if zeros is not None:
        parts.append(zeros[:, each])
    return PackedArray(kind, (len(codes), columns), np.concatenate(parts, 1))
