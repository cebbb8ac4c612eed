"""Exchange of arrays with other libraries: DLPack both ways, and the CUDA array interface.

The device's library makes and reads DLPack's capsules: NumPy those of host memory, CuPy those of CUDA memory. Neither
passes bf16 on: it goes through them as 16-bit integers, and the element type in the capsule is rewritten.

Sources: DLPack 1.1 (dmlc.github.io/dlpack), Python array API standard 2024.12 (data interchange), CUDA array
interface, version 3.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from rlx.driver.device import CUDA, HOST
from rlx.driver.registry import load_backend, open_device
from rlx.dtypes import ALL, DType, bf16
from rlx.errors import ArenaError, DTypeError, RlxError
from rlx.ir.values import is_foreign
from rlx.runtime.array import Array
from rlx.runtime.device_copies import cuda_twin

# The backend that can use memory of a kind in place: the host, CUDA, the host pinned for CUDA, managed by CUDA.
_BACKENDS = {HOST: "cpu", CUDA: "cuda", 3: "cpu", 13: "cuda"}
_UINT, _BFLOAT = 1, 4  # DLPack's codes of kinds of numbers


class _Type(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", _Type),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    """The struct since DLPack 1.0; the one before begins with its tensor."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


def _element_type(capsule: object) -> _Type:
    """The element type in a capsule that nobody has consumed, as a view of the producer's struct."""
    valid, pointer = ctypes.pythonapi.PyCapsule_IsValid, ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype = ctypes.c_void_p
    for name, kind in ((b"dltensor_versioned", _Versioned), (b"dltensor", _Tensor)):
        if valid(ctypes.py_object(capsule), name):
            managed = kind.from_address(pointer(ctypes.py_object(capsule), name))
            tensor: _Tensor = managed.tensor if isinstance(managed, _Versioned) else managed
            kind_of: _Type = tensor.dtype
            return kind_of
    raise DTypeError(
        f"from_dlpack: __dlpack__ gave {capsule!r}; expected a DLPack capsule that nobody has used"
    )


class _Producer:
    """Another library's array as NumPy and CuPy read it: of bf16 they see 16-bit integers, and `was_bf16` is set."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self.was_bf16 = False

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, index = self._source.__dlpack_device__()
        return int(kind), int(index)

    def __dlpack__(self, **options: Any) -> object:
        try:
            capsule: object = self._source.__dlpack__(**options)
        except TypeError:  # before DLPack 1.0 the stream was the only option
            capsule = self._source.__dlpack__(**{k: v for k, v in options.items() if k == "stream"})
        element = _element_type(capsule)
        if (element.code, element.bits) == (_BFLOAT, 16):
            element.code, self.was_bf16 = _UINT, True
        return capsule


def from_dlpack(x: Any, /, *, device: str | None = None, copy: bool | None = None) -> Array:
    """Another library's array as an `Array`, in the same memory where that is possible.

    `x` has `__dlpack__` or `__cuda_array_interface__`: an array of NumPy, CuPy, torch or JAX, say. Memory of the host
    gives an Array on "cpu", CUDA memory one on that CUDA device. The device waits for the work that writes `x` on the
    caller's stream; the host does not. `x` is kept until the Array is gone and the device's work that uses it is done.
    What writes into `x` later also changes the Array, and is in no order with rlx's work: leave `x` as it is until the
    runs and launches that read it are done, or give the session the `stream` on which you write. It is let go of at
    rlx's next call on the device after the Array is dropped.

    A copy is made for elements that are not contiguous in row-major order and for another `device`: through the host,
    but on the GPU between CUDA and Vulkan where both drivers have that GPU and share memory. `copy=True` always makes
    one, `copy=False` never.

    Shape and dtype: those of `x`: f64, f32, f16, bf16, i64, i32, i8, u8 or bool. Gradient: none.
    Raises: DTypeError for what is no such array, DeviceUnavailable, ArenaError where a copy is needed and refused.
    """
    if copy not in (None, True, False):
        raise RlxError(f"from_dlpack: copy={copy!r} is not None, True or False")
    array, copied = (x, False) if isinstance(x, Array) else _borrow(x)
    target = array.device if device is None else open_device(device)
    if copy is False and (copied or target is not array.device):
        why = (
            "its elements are not contiguous"
            if copied
            else f"it lies on {array.device.info.id}, not on {device}"
        )
        raise ArenaError(f"from_dlpack: copy=False, and {why}; leave `copy` out to have it copied")
    if target is not array.device:
        return array.to(target)
    if not copy or copied:
        return array
    result = array.copy()
    array.device.synchronize()  # the caller may change `x` from now on
    return result


def adopted(value: Any, kind: int) -> Any:
    """Another library's array as an Array, where its memory is of the kind of a program's device, and not the host's;
    any other value as it is."""
    if kind == HOST or isinstance(value, Array) or not is_foreign(value):
        return value
    if hasattr(value, "__dlpack_device__"):
        kind_of = int(value.__dlpack_device__()[0])
    else:
        kind_of = CUDA if hasattr(value, "__cuda_array_interface__") else HOST
    return from_dlpack(value) if kind_of == kind else value


def _borrow(x: Any) -> tuple[Array, bool]:
    """The array over another library's memory, and whether that library had to copy it."""
    what = f"{type(x).__module__.partition('.')[0]}.{type(x).__name__}"
    try:
        source: Any = x
        if isinstance(x, np.ndarray) and x.dtype == bf16.np:  # NumPy does not export it itself
            source = _Producer(x.view(np.uint16))
            source.was_bf16 = True
            kind, index = source.__dlpack_device__()
        elif hasattr(x, "__dlpack__"):
            source = _Producer(x)
            kind, index = source.__dlpack_device__()
        elif hasattr(x, "__cuda_array_interface__"):
            kind, index = CUDA, None
        else:
            raise DTypeError(
                f"from_dlpack: a {what} has neither __dlpack__ nor __cuda_array_interface__; rlx.array takes numbers, "
                "lists and NumPy arrays"
            )
        if kind not in _BACKENDS:
            raise DTypeError(
                f"from_dlpack: the {what} lies on a device of DLPack's kind {kind}, whose memory rlx cannot use; copy "
                "it to the host or to a CUDA device first"
            )
        # Not by name, for which the backends would list their devices at each exchange.
        device = load_backend(_BACKENDS[kind]).open(index if kind == CUDA and index is not None else 0)
        lent = device.borrow(source)
    except RlxError:
        raise
    except Exception as error:
        attached = getattr(x, "requires_grad", False)
        advice = "; give it .detach()ed, since no gradient flows back through rlx" if attached else ""
        raise DTypeError(f"from_dlpack: the {what} cannot be read: {error}{advice}") from error
    dtype = bf16 if getattr(source, "was_bf16", False) else _known(lent.dtype, what)
    return Array._foreign(device, lent.address, lent.shape, dtype, lent.owner), lent.copied


def _known(np_dtype: Any, what: str) -> DType:
    for dtype in ALL:
        if dtype.np == np_dtype:
            return dtype
    raise DTypeError(
        f"from_dlpack: the {what} has elements of {np_dtype}; expected one of {', '.join(map(str, ALL))}"
    )


def to_dlpack(
    array: Array,
    *,
    stream: Any = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[int, int] | None = None,
    copy: bool | None = None,
) -> object:
    """`Array.__dlpack__`."""
    array._checked()
    wanted = device_of(array) if dl_device is None else (int(dl_device[0]), int(dl_device[1]))
    if array.dtype.is_packed:
        raise BufferError(f"DLPack has no type for elements of {array.dtype}; .numpy() gives a PackedArray")
    twin = cuda_twin(array.device.info)
    if twin is not None and wanted == (CUDA, twin.index):
        if copy is False:
            raise BufferError(
                f"CUDA uses an array on {array.device.info.id} as a copy only, made on the GPU; leave out copy=False"
            )
        array = array.to(twin.id)
    elif wanted != device_of(array):
        if wanted != (HOST, 0) or copy is False:
            raise BufferError(
                f"DLPack's device {wanted} cannot use memory of {array.device.info.id} in place; .numpy() copies it to "
                "the host, .to(...) to another device"
            )
        array, stream = array.to("cpu"), None
    elif copy:
        array = array.copy()
    options: dict[str, Any] = {"stream": stream}
    if max_version is not None:
        options["max_version"] = max_version
    number = np.dtype(np.uint16) if array.dtype is bf16 else array.dtype.np
    capsule = array.device.lend(array._held(), array._offset, array.shape, number, options)
    if array.dtype is bf16:
        _element_type(capsule).code = _BFLOAT
    return capsule


def cuda_interface(array: Array) -> dict[str, Any]:
    """`Array.__cuda_array_interface__`. Raises: AttributeError where there is none, so that hasattr is False."""
    array._checked()
    buffer, at, twin = array._held(), array._offset, cuda_twin(array.device.info)
    if array.dtype.is_packed or array.dtype is bf16:
        raise AttributeError(f"__cuda_array_interface__ has no type for {array.dtype}; DLPack passes on bf16")
    if twin is not None:  # libraries ask several times, and threads at once: one copy for all, which none replaces
        buffer, at = array._shared or vars(array).setdefault("_shared", array.to(twin.id)._held()), 0
    whole: dict[str, Any] | None = getattr(buffer, "__cuda_array_interface__", None)
    if whole is None:
        raise AttributeError(f"an array on {array.device.info.id} has no __cuda_array_interface__")
    array._shared = buffer  # kept, since the array may be closed while its address is in use
    if twin is None:  # the host has waited for a copy
        array.device.synchronize()  # some libraries disregard the stream that the interface names
    at, shape, number = whole["data"][0] + at, array.shape, array.dtype.np.str
    return whole | {"shape": shape, "typestr": number, "data": (at, False), "stream": None}


def device_of(array: Array) -> tuple[int, int]:
    """The array's device in DLPack's numbers; for Vulkan the CUDA device that is the same GPU, where there is one."""
    twin = cuda_twin(array.device.info)
    return (array.device.info.dlpack, array.device.info.index) if twin is None else (CUDA, twin.index)
