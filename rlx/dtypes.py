"""The element types, how each is stored, the one table of their promotion, and rounding to the narrow floats.

Integers never promote floats to f64; f16 with bf16 gives f32; Python scalars are weak: they take the tensor's dtype
unless its kind cannot hold them (a float beside an integer tensor gives f32). i16, u16, u32 and u64 are computed by
NumPy on every device; no integer holds the values of u64 and of a signed integer, so these have no common dtype.

Packed dtypes hold weights of a few bits in blocks that share scales: GGUF's types, and int8, int4, fp8, nf4 and fp4
blocks with scales in f32. They take no part in promotion; `rlx.packed` reads and makes them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from rlx.errors import DTypeError, ShapeError, meant
from rlx.records import Record, field

_BYTES = re.compile("[iu][124]|f[248]")  # NumPy's codes of dtypes that no name of rlx's is
_LENGTH = re.compile(r"_(64|128)$")  # blocks that are not the family's shortest have theirs after its name
Kind = Literal["f", "i", "u", "b", "q"]


class Plane(NamedTuple):
    """A field of packed blocks: its `nbytes` in each block, and the offset `at` which it has in a block of the file."""

    name: str
    nbytes: int
    at: int


class Storage(NamedTuple):
    """How elements lie in memory: each `elements` of a tensor's last axis take `nbytes` together.

    A plain dtype has blocks of one element. A row of packed blocks lies in planes: the first field of all its blocks,
    then the next field of all, in the order of `planes`, the largest first, so that kernels load 16 bytes at once.
    Rows follow each other without a gap and take as many bytes as they do in a file.
    """

    elements: int
    nbytes: int
    planes: tuple[Plane, ...] = ()


class DType(Record):
    """An element type: its name, storage, kind (float, signed, unsigned, bool, packed) and NumPy dtype.

    NumPy holds the blocks of a packed dtype as bytes (u8).
    """

    name: str
    storage: Storage
    kind: Kind
    np: np.dtype[Any] = field(compare=False)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """The dtype of bf16 is made when it is first asked for: few programs need ml_dtypes, which NumPy's own
            dtypes do without."""
            if name != "np" or self.name != "bf16":
                raise AttributeError(f"'DType' object has no attribute {name!r}")
            import ml_dtypes

            object.__setattr__(self, "np", np.dtype(ml_dtypes.bfloat16))
            _BY_NP[self.np] = self
            return self.np

    # The passes compare and look up dtypes hundreds of thousands of times: nearly always an object with itself.
    def __eq__(self, other: object) -> bool:
        """Whether it is this dtype, also by a name or NumPy's (`x.dtype == np.float32`)."""
        if self is other:
            return True
        if not isinstance(other, DType):
            return self._is(other)
        if self.name != other.name:
            return False
        return (self.storage, self.kind, self.np) == (other.storage, other.kind, other.np)

    def _is(self, other: object) -> bool:
        if not isinstance(other, str | np.dtype) and not (isinstance(other, type) and issubclass(other, np.generic)):
            return False
        try:
            return as_dtype(other) is self
        except DTypeError:
            return False

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return as_dtype, (self.name,)

    @property
    def itemsize(self) -> int:
        """Bytes of an element. Raises: DTypeError for a packed dtype, whose elements have no bytes of their own."""
        if self.is_packed:
            elements, nbytes = self.storage.elements, self.storage.nbytes
            raise DTypeError(f"{self} has no bytes per element: a block of {elements} has {nbytes}")
        return self.storage.nbytes

    @property
    def family(self) -> str:
        """The name without the length of its blocks: dtypes of one family differ in that alone (int4 and int4_128)."""
        return _LENGTH.sub("", self.name)

    @property
    def is_packed(self) -> bool:
        return self.kind == "q"

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def is_int(self) -> bool:
        return self.kind in "iu"

    @property
    def is_half(self) -> bool:
        """True for the 16-bit floats, whose values are computed in f32 and rounded when stored."""
        return self.kind == "f" and self.storage.nbytes == 2

    def nbytes(self, shape: tuple[int, ...]) -> int:
        """The bytes of a tensor of this shape. Raises: ShapeError as `array_shape`."""
        if self.kind != "q":
            return math.prod(shape) * self.storage.nbytes
        return math.prod(self.array_shape(shape)) * self.np.itemsize

    def array_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the NumPy array that holds such a tensor: the bytes of a packed row are its last axis.

        Raises: ShapeError where the last axis is no whole number of packed blocks."""
        if not self.is_packed:
            return shape
        size = self.storage.elements
        if not shape or shape[-1] % size:
            last = f"the last axis of {shape} has {shape[-1]}" if shape else "a scalar has no axis for them"
            plain = "; plain integers of 8 bits are i8" if self.name == "int8" else ""
            raise ShapeError(
                f"{self} stores blocks of {size} elements along the last axis; {last}: expected a multiple of {size} "
                f"(pad the rows with zeros, or take a dtype of smaller blocks{plain})"
            )
        return (*shape[:-1], shape[-1] // size * self.storage.nbytes)


f64 = DType("f64", Storage(1, 8), "f", np.dtype(np.float64))
f32 = DType("f32", Storage(1, 4), "f", np.dtype(np.float32))
f16 = DType("f16", Storage(1, 2), "f", np.dtype(np.float16))
_LATER: Any = None
bf16 = DType("bf16", Storage(1, 2), "f", _LATER)  # its dtype is made when it is asked for
object.__delattr__(bf16, "np")
i64 = DType("i64", Storage(1, 8), "i", np.dtype(np.int64))
i32 = DType("i32", Storage(1, 4), "i", np.dtype(np.int32))
i16 = DType("i16", Storage(1, 2), "i", np.dtype(np.int16))
i8 = DType("i8", Storage(1, 1), "i", np.dtype(np.int8))
u64 = DType("u64", Storage(1, 8), "u", np.dtype(np.uint64))
u32 = DType("u32", Storage(1, 4), "u", np.dtype(np.uint32))
u16 = DType("u16", Storage(1, 2), "u", np.dtype(np.uint16))
u8 = DType("u8", Storage(1, 1), "u", np.dtype(np.uint8))
bool_ = DType("bool", Storage(1, 1), "b", np.dtype(np.bool_))

ALL = (f64, f32, f16, bf16, i64, i32, i16, i8, u64, u32, u16, u8, bool_)
FLOATS = (f64, f32, f16, bf16)
INTS = (i64, i32, i16, i8, u64, u32, u16, u8)
HOST_ONLY = frozenset({i16, u16, u32, u64})  # NumPy computes in them: no device has kernels for them
_BY_NAME = {d.name: d for d in ALL}
_BY_NP = {d.np: d for d in ALL if d is not bf16}
_NARROW = frozenset("bfloat16 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float4_e2m1fn".split())


def is_narrow(dtype: np.dtype[Any]) -> bool:
    """Whether it is a float of ml_dtypes that has fewer bits than f32: bf16, or one of 4 or 8 bits that files hold."""
    return dtype.isbuiltin != 1 and dtype.name in _NARROW



# A packed dtype a line: its name, the elements of a block, and its fields in the order of their planes, each as
# name:bytes@offset in the block of a file. Field d is a scale in f16, dm a scale and a minimum in f16, e an exponent,
# s a scale in f32, z a zero point; qs, ql and qh are the bits of the elements. `rlx.packed.decode` says what each
# means. The first 23 and the last are GGUF's, the others rlx's own; kernels number them in this order.
_PACKED_TEXT = """
q4_0            32  qs:16@2 d:2@0
q4_1            32  qs:16@4 dm:4@0
q5_0            32  qs:16@6 qh:4@2 d:2@0
q5_1            32  qs:16@8 qh:4@4 dm:4@0
q8_0            32  qs:32@2 d:2@0
q2_k           256  qs:64@16 scales:16@0 dm:4@80
q3_k           256  qs:64@32 qh:32@0 scales:12@96 d:2@108
q4_k           256  qs:128@16 scales:12@4 dm:4@0
q5_k           256  qs:128@48 qh:32@16 scales:12@4 dm:4@0
q6_k           256  ql:128@0 qh:64@128 scales:16@192 d:2@208
tq1_0          256  qs:48@0 qh:4@48 d:2@52
tq2_0          256  qs:64@0 d:2@64
mxfp4           32  qs:16@1 e:1@0
nvfp4           64  qs:32@4 d:4@0
iq2_xxs        256  qs:64@2 d:2@0
iq2_xs         256  qs:64@2 scales:8@66 d:2@0
iq2_s          256  qs:32@2 signs:32@34 qh:8@66 scales:8@74 d:2@0
iq3_xxs        256  qs:64@2 signs:32@66 d:2@0
iq3_s          256  qs:64@2 signs:32@74 qh:8@66 scales:4@106 d:2@0
iq1_s          256  qs:32@2 qh:16@34 d:2@0
iq1_m          256  qs:32@0 qh:16@32 scales:8@48
iq4_nl          32  qs:16@2 d:2@0
iq4_xs         256  qs:128@8 scales_l:4@4 scales_h:2@2 d:2@0
int8            32  qs:32@0 s:4@32
int8_zp         32  qs:32@0 s:4@32 z:1@36
int4            32  qs:16@0 s:4@16
int4_zp         32  qs:16@0 s:4@16 z:1@20
fp8_e4m3        32  qs:32@0 s:4@32
fp8_e5m2        32  qs:32@0 s:4@32
int8_128       128  qs:128@0 s:4@128
int8_zp_128    128  qs:128@0 s:4@128 z:1@132
int4_128       128  qs:64@0 s:4@64
int4_zp_128    128  qs:64@0 s:4@64 z:1@68
fp8_e4m3_128   128  qs:128@0 s:4@128
fp8_e5m2_128   128  qs:128@0 s:4@128
nf4             32  qs:16@0 s:4@16
fp4             32  qs:16@0 s:4@16
nf4_64          64  qs:32@0 s:4@32
fp4_64          64  qs:32@0 s:4@32
q1_0           128  qs:16@2 d:2@0
"""


def _packed() -> Iterator[DType]:
    for line in _PACKED_TEXT.strip().splitlines():
        name, elements, *fields = line.split()
        cut = [field.replace("@", ":").split(":") for field in fields]
        planes = tuple(Plane(f, int(nbytes), int(at)) for f, nbytes, at in cut)
        yield DType(name, Storage(int(elements), sum(p.nbytes for p in planes), planes), "q", np.dtype(np.uint8))


PACKED = {d.name: d for d in _packed()}
GGUF = (*tuple(PACKED)[:23], "q1_0")  # the names of GGUF's own types

DTypeLike = DType | str | npt.DTypeLike


def _known(dtype: np.dtype[Any]) -> DType | None:
    return _BY_NP.get(dtype) or (bf16 if dtype.isbuiltin != 1 and dtype == bf16.np else None)


def as_dtype(dtype: DTypeLike) -> DType:
    """The DType that a name ("f32", or "q4_k" in letters of either case), a NumPy dtype or a DType stands for.

    The name "int8" is the packed dtype, as "int4" is; the integer of 8 bits is "i8", or NumPy's dtype itself.
    Raises: DTypeError for a type that has no rlx dtype, and for NumPy's codes, which count bytes ("i4").
    """
    if isinstance(dtype, DType):
        return dtype
    if isinstance(dtype, str) and dtype in _BY_NAME:
        return _BY_NAME[dtype]
    if isinstance(dtype, str) and dtype.lower() in PACKED:
        return PACKED[dtype.lower()]
    if isinstance(dtype, str) and dtype == "bfloat16":  # NumPy knows the name once ml_dtypes is there
        return bf16
    if isinstance(dtype, str) and _BYTES.fullmatch(dtype):
        raise DTypeError(
            f"{dtype!r} counts bytes, as NumPy's codes do, where rlx's names count bits and i8 has one byte; write "
            f"{_BY_NP[np.dtype(dtype)].name!r}"
        )
    try:
        result = None if dtype is None else _known(np.dtype(dtype))  # np.dtype(None) would be float64
    except (TypeError, ValueError):
        result = None
    if result is None:
        near = meant(dtype.lower(), [*_BY_NAME, *PACKED]) if isinstance(dtype, str) else ""
        came = repr(dtype)
        if came.isdecimal():
            came = f"{came} (a shape is one tuple, as in zeros((2, {came})))"
        pairs = (
            ": complex numbers are pairs of floats along a last axis of 2, np.stack([z.real, z.imag], -1), as rlx.fft "
            "takes and gives them"
            if "complex" in came
            else ""
        )
        swapped = _known(dtype.newbyteorder("=")) if isinstance(dtype, np.dtype) else None
        if swapped is not None:
            pairs = f", whose bytes are in the other order: .astype({swapped.np.name!r}) puts them into this machine's"
        raise DTypeError(
            f"{came if len(came) <= 80 else f'{came[:80]}…'} is not an rlx dtype{near}{pairs}; the dtypes are "
            f"{', '.join(_BY_NAME)}, and packed ones for weights, such as q4_k, which rlx.dtypes.PACKED lists"
        )
    return result


# Row a, column b holds promote(a, b), `none` where no integer holds the values of both; rows and columns are in the
# order of _ORDER. The table is symmetric, but written in full.
_ORDER = (bool_, u8, i8, u16, i16, u32, i32, u64, i64, f16, bf16, f32, f64)
_TABLE_TEXT = """
bool  u8    i8    u16   i16   u32   i32   u64   i64   f16   bf16  f32   f64
u8    u8    i32   u16   i16   u32   i32   u64   i64   f16   bf16  f32   f64
i8    i32   i8    i32   i16   i64   i32   none  i64   f16   bf16  f32   f64
u16   u16   i32   u16   i32   u32   i32   u64   i64   f16   bf16  f32   f64
i16   i16   i16   i32   i16   i64   i32   none  i64   f16   bf16  f32   f64
u32   u32   i64   u32   i64   u32   i64   u64   i64   f16   bf16  f32   f64
i32   i32   i32   i32   i32   i64   i32   none  i64   f16   bf16  f32   f64
u64   u64   none  u64   none  u64   none  u64   none  f16   bf16  f32   f64
i64   i64   i64   i64   i64   i64   i64   none  i64   f16   bf16  f32   f64
f16   f16   f16   f16   f16   f16   f16   f16   f16   f16   f32   f32   f64
bf16  bf16  bf16  bf16  bf16  bf16  bf16  bf16  bf16  f32   bf16  f32   f64
f32   f32   f32   f32   f32   f32   f32   f32   f32   f32   f32   f32   f64
f64   f64   f64   f64   f64   f64   f64   f64   f64   f64   f64   f64   f64
"""
_PROMOTE = {
    (a, b): _BY_NAME.get(name)
    for a, row in zip(_ORDER, _TABLE_TEXT.strip().splitlines(), strict=True)
    for b, name in zip(_ORDER, row.split(), strict=True)
}


def promote(*dtypes: DType) -> DType:
    """The dtype in which an op on these dtypes computes and gives its result, by the table above.

    Raises: DTypeError for a packed dtype, and for u64 beside a signed integer, since no integer holds both."""
    for dtype in dtypes:
        if dtype.kind == "q":
            raise packed_refused("promotion", dtype)
    result = dtypes[0]
    for dtype in dtypes[1:]:
        if dtype is result:
            continue
        common = _PROMOTE[result, dtype]
        if common is None:
            raise DTypeError(
                f"{result} beside {dtype}: no integer holds the values of both; cast one to the other's dtype"
            )
        result = common
    return result


def rounded(array: npt.NDArray[Any], to: np.dtype[Any]) -> npt.NDArray[Any]:
    """The array as `to`, each number rounded once, to nearest even.

    ml_dtypes goes to its floats by way of f32, which rounds numbers of more bits before and may make ties of them.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        if is_narrow(to) and array.dtype.kind in "iuf":
            array = to_odd(array)
        return array.astype(to, copy=False)


def to_odd(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Rounds numbers of more than 24 bits to odd: one that f32 does not hold becomes the f32 beside it whose last bit
    is 1.

    A later rounding to at most 22 bits, in any direction, gives what it would give of the numbers themselves.
    Arrays of other dtypes stay as they are.
    """
    if array.dtype.kind in "iu" and array.dtype.itemsize > 2:
        if array.dtype.itemsize == 8:  # beyond 2^53 the last 12 bits become one, so that an f64 holds the number
            high, rest = array >> 53, array & 4095
            near = (high == 0) | (high == -1) | (rest == 0)
            array = np.where(near, array, array - rest + 2048)
        array = array.astype(np.float64)
    if array.dtype.kind != "f" or array.dtype.itemsize <= 4:
        return array
    with np.errstate(over="ignore", invalid="ignore"):
        near = array.astype(np.float32)
        wide = near.astype(array.dtype)
    inexact = (wide < array) | (wide > array)
    return np.asarray((near.view(np.uint32) - (np.abs(wide) > np.abs(array)) | inexact).view(np.float32))


def packed_refused(what: str, dtype: DType) -> DTypeError:
    """The error of an op that does not take packed weights."""
    return DTypeError(
        f"{what}: takes no packed weights, got {dtype}; rlx.dequantize(q) gives floats, and rlx.packed_matmul(x, q) or "
        "rlx.linear(x, q) multiplies by them as they are"
    )


def weak_dtype(scalar: bool | int | float, beside: DType) -> DType:
    """The dtype a Python scalar takes beside a tensor of dtype `beside`."""
    if isinstance(scalar, bool):
        return beside
    if isinstance(scalar, float) and not beside.is_float:
        return f32
    if isinstance(scalar, int) and beside.kind == "b":
        return i32
    return beside
