"""Array: a value that stays on a device; `array` makes one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from rlx.driver import Buffer, Device, DeviceInfo
from rlx.driver.closing import Closing
from rlx.driver.registry import open_device
from rlx.dtypes import DType, DTypeLike, as_dtype, f32, rounded
from rlx.errors import ArenaError, DeviceUnavailable, DTypeError, GraphError, RlxError, ShapeError
from rlx.host.other_attributes import explain
from rlx.ir import Tensor, TensorType
from rlx.ir.values import as_array, exactly
from rlx.lazy import attach_later
from rlx.ops.places import LATER_METHODS, METHODS, OPERATORS
from rlx.ops.public import any_complex
from rlx.packed import PackedArray
from rlx.runtime.device_copies import copy_between

if TYPE_CHECKING:
    from rlx.runtime.checks import Unread

SHOWN_COLUMNS = 16  # columns of a matrix in a notebook
SHOWN_ELEMENTS = 1000  # `repr` shows the values of arrays up to this size: it copies them to the host


class Array(Closing):
    """A value on a device, that a program gave or `rlx.array` made.

    rlx never changes it; where it shares its memory with another library's array (`from_dlpack`, `__dlpack__`), that
    library can.

    It feeds programs of its device without a copy to the host. `numpy()` copies it there, as `np.asarray` does; `to`
    copies it to another device. Its memory is its own: it outlives the program and the session that made it, and goes
    back to the device's pool once the array is closed or dropped and the device's work that reads it is done. Any
    thread may use it. `type` is its shape and dtype, `device` the opened device.

    It has the operators and methods of a program's tensors, which compute at once (rlx.runtime.eager): `a + b`,
    `a @ b`, `a.sum(0)`, `a[1:]`. The result is a new array on the device of its arguments. Within a function that jit
    or grad traces they add to its program, in which the array is a constant. `==` compares element by element, while
    `hash` is that of the object.

    After `close`, or once it was donated to a run, its use raises ArenaError, which says so; an array whose run failed
    raises that run's error.
    """

    # Set while the values lie in a state's slot, which the next run may overwrite: the call that copies them out.
    _lender: Callable[[Array], None] | None = None

    # The checks of the launch that gave it, until they are read (rlx.runtime.checks).
    _unread: Unread | None = None

    _borrowed = False  # whether its memory is another library's
    _shared: Buffer | None = None  # memory that other libraries may use while this object lives

    def __init__(
        self, device: Device, buffer: Buffer, shape: tuple[int, ...], dtype: DType, offset: int = 0
    ) -> None:
        self.device = device
        self.type = TensorType(shape, dtype)
        self._offset = offset
        self._gone: str | Exception = ""  # why there is no memory
        self._buffer: Buffer | None = buffer
        if offset < 0 or offset + self.type.nbytes > buffer.nbytes:
            raise ArenaError(
                f"an array of {self.type} at byte {offset} leaves its memory of {buffer.nbytes} bytes"
            )

    @classmethod
    def _foreign(
        cls, device: Device, address: int, shape: tuple[int, ...], dtype: DType, owner: object
    ) -> Self:
        """An array in another library's memory, in row-major order, which `owner` keeps allocated.

        `owner` is dropped once the array is dropped and the device has done the work that reads the memory. Requires:
        nobody writes the memory meanwhile; on CUDA, the device's stream waits for the work that wrote it. Raises:
        UnsupportedOp on devices whose kernels take no such addresses."""
        nbytes = TensorType(shape, dtype).nbytes
        result = cls(device, device.foreign(address, nbytes, owner), shape, dtype)
        result._borrowed = True
        return result

    @classmethod
    def _of(cls, device: Device, t: TensorType, buffer: Buffer | None, gone: str | Exception = "") -> Self:
        """The array at the start of a buffer of its size. Without a buffer, an array whose use raises `gone`, the error
        of the run that should have made it."""
        result = cls.__new__(cls)
        result.device, result.type, result._offset = device, t, 0
        result._buffer, result._gone = buffer, gone
        return result

    # -- what it is

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def ndim(self) -> int:
        return len(self.type.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.type.numel

    @property
    def nbytes(self) -> int:
        return self.type.nbytes

    @property
    def closed(self) -> bool:
        """Whether its use raises: it was closed or donated, or its run failed."""
        return self._buffer is None

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"len() of an array of rank 0: {self.type}")
        return self.shape[0]

    def __repr__(self) -> str:
        what = f"{self.type} on {self.device.info.id}"
        if self._buffer is None:
            return f"rlx.Array({what}, {self._why()})"
        if self.size > SHOWN_ELEMENTS or self.dtype.is_packed:
            return f"rlx.Array({what}, {self.nbytes:,} bytes)"
        try:
            shown = np.array2string(self.numpy(), separator=", ", prefix="rlx.Array(")
        except RlxError as error:  # the device was lost, or belongs to the parent of this process
            return f"rlx.Array({what}, {error})"
        return f"rlx.Array({shown}, {what})"

    def _repr_html_(self) -> str:
        """What notebooks show: type and device, and the values if there are few; a matrix is shown as a table."""
        from html import escape

        from rlx.ir.picture import table

        if self.closed or self.size > SHOWN_ELEMENTS or self.dtype.is_packed or self.ndim != 2 or not self.size:
            return f"<pre>{escape(repr(self))}</pre>"
        try:
            values = self.numpy()
        except RlxError as error:
            return f"<pre>{escape(f'rlx.Array({self.type} on {self.device.info.id}, {error})')}</pre>"
        columns = [str(i) for i in range(min(self.shape[1], SHOWN_COLUMNS))]
        more = ["…"] if self.shape[1] > SHOWN_COLUMNS else []
        rows = [[f"{v:.6g}" if v.dtype.kind == "f" else str(v) for v in row[:SHOWN_COLUMNS]] + more for row in values]
        title = f"rlx.Array, {self.type} on {self.device.info.id}"
        return f"<div><p>{escape(title)}</p>{table([*columns, *more], rows)}</div>"

    # rlx.runtime.eager attaches the operators, and the methods that a program's tensors have, when one is used.
    __array_priority__ = 1000  # so that ndarray + Array calls the Array's operator
    __hash__ = object.__hash__

    if TYPE_CHECKING:

        def _operator(self, other: Any = None) -> Any: ...

        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _operator
        __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __matmul__ = __rmatmul__ = _operator
        __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __lshift__ = __rshift__ = _operator
        __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _operator

        def __neg__(self) -> Any: ...
        def __invert__(self) -> Any: ...
        def __abs__(self) -> Any: ...
        def __getitem__(self, key: Any) -> Any: ...
        def __iter__(self) -> Any: ...
        def __index__(self) -> int: ...
        def __getattr__(self, name: str) -> Any: ...

    # -- its values on the host

    def numpy(self) -> Any:
        """A copy as a NumPy array, of bf16 with the dtype of `ml_dtypes`; of packed weights a PackedArray."""
        self._checked()
        buffer, out = self._held(), np.empty(self.nbytes, np.uint8)
        if out.nbytes:
            buffer.read(self._offset, out)
        data = out.view(self.dtype.np).reshape(self.type.array_shape)
        return PackedArray(self.dtype, self.shape, data) if self.dtype.is_packed else data

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError(f"{self!r}: NumPy has its values only as a copy; leave out copy=False")
        if self.dtype.is_packed:
            raise DTypeError(f"NumPy has no dtype for {self.type}; .numpy() gives a PackedArray")
        array: npt.NDArray[Any] = self.numpy()
        return array if dtype is None else rounded(array, np.dtype(dtype))

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """NumPy's functions compute on copies and return NumPy arrays; without this they would call Array's methods."""
        if any(issubclass(t, Tensor) for t in types):
            return NotImplemented
        return func(*_copied_to_host(args), **_copied_to_host(kwargs))

    def item(self) -> Any:
        """The only element, as a Python number. Raises: ShapeError unless there is exactly one."""
        if self.size != 1 or self.dtype.is_packed:
            raise ShapeError(f"item: an array of {self.type} is not one number; .numpy() gives all")
        return self.numpy().item()

    def tolist(self) -> Any:
        """The elements as Python numbers, in nested lists."""
        return np.asarray(self).tolist()

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ShapeError(f"the truth value of {self.type}, which is not one number; use .all() or .any()")
        return bool(self.item())

    # -- other libraries

    def __dlpack_device__(self) -> tuple[int, int]:
        from rlx.runtime import exchange

        return exchange.device_of(self)

    def __dlpack__(self, **options: Any) -> object:
        """A DLPack capsule over the same memory, for torch.from_dlpack, np.from_dlpack and others.

        The consumer's stream waits for the device's; the memory returns to the pool once the consumer is done, even if
        the array was closed before. Take care: writing into the consumer's array changes this one. An array on Vulkan
        gives a copy in CUDA's memory, made on the GPU, where CUDA has the same GPU.
        Raises: BufferError for packed weights, and on Vulkan elsewhere."""
        from rlx.runtime import exchange

        return exchange.to_dlpack(self, **options)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The memory for libraries without DLPack: for an array on Vulkan a copy, as `__dlpack__` gives it. The host
        waits until the values are complete."""
        from rlx.runtime import exchange

        return exchange.cuda_interface(self)

    # -- copies

    def copy(self) -> Array:
        """A copy on the same device."""
        return self._copied(self.device)

    def to(self, device: Any) -> Array:
        """The array on another device; itself where it is there already. The copy goes through the host, except between
        Vulkan and CUDA on one GPU whose drivers share memory: there the GPU copies.

        `device` is a name such as "cpu" or "cuda:1", a session, an array or an opened device."""
        target = device_of(device)
        return self if target is self.device else self._copied(target)

    def _copied(self, target: Device) -> Array:
        source, nbytes = self._held(), self.nbytes
        if target is not self.device:
            self._checked()
        if nbytes and target is not self.device:
            there = copy_between(source, self._offset, nbytes, self.device, target)
            if there is not None:
                return Array._of(target, self.type, there)
        buffer = target.acquire(max(nbytes, 1), clear=False)
        if nbytes:
            if target is self.device:
                buffer.copy_from(source, self._offset, 0, nbytes)
            else:
                out = np.empty(nbytes, np.uint8)
                source.read(self._offset, out)
                buffer.write(0, out)
        result = Array._of(target, self.type, buffer)
        result._unread = self._unread
        return result

    def __copy__(self) -> Array:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> Array:
        return self.copy()

    def __reduce__(self) -> tuple[Any, ...]:
        return array, (self.numpy(), None, self.device.info.id)

    # -- the end

    def close(self) -> None:
        """Returns the memory to the device's pool once the work that reads it is done. Idempotent."""
        self._end("was closed")

    def _end(self, why: str | Exception) -> None:
        """Makes any further use an error that says why. Its memory returns to the pool with the last reference to the
        buffer: a run that has just begun may still hold one."""
        if self._buffer is not None:
            self._gone = why
            self._buffer = self._lender = None

    def _why(self) -> str:
        return self._gone if isinstance(self._gone, str) else f"whose run failed: {self._gone}"

    def _checked(self) -> None:
        """Checks what must hold before the values leave the device. Raises: CapacityExceeded where the launch that gave
        them wrote outside of a cache."""
        if self._unread is not None:
            self._unread.read()
            self._unread = None

    def _held(self) -> Buffer:
        """The memory, with the values at byte `_offset`; values that lay in a state's slot are copied out of it first.
        Raises: as `_alive`."""
        lender = self._lender
        if lender is not None:
            lender(self)
        return self._alive()

    def _alive(self) -> Buffer:
        """The memory. Raises: ArenaError that says why there is none, or the error of the run that failed."""
        buffer = self._buffer  # read once: another thread may close the array
        if buffer is not None:
            return buffer
        if isinstance(self._gone, Exception):
            raise again(self._gone)
        raise ArenaError(
            f"this array of {self.type} on {self.device.info.id} {self._gone}; its values are gone"
        )


def _copied_to_host(value: Any) -> Any:
    """Nested arguments, whose Arrays are NumPy's."""
    if isinstance(value, Array):
        return np.asarray(value)
    if type(value) in (tuple, list):
        return type(value)(_copied_to_host(v) for v in value)
    return {k: _copied_to_host(v) for k, v in value.items()} if type(value) is dict else value


def stored(error: Exception) -> Exception:
    """An error to be kept: its tracebacks, whose frames hold the run's inputs, become a note that says where."""
    import traceback  # imported with the first error, not by `import rlx`

    where = "".join(traceback.format_tb(error.__traceback__)).rstrip()
    link: BaseException | None = error
    while link is not None and link.__traceback__ is not None:
        link = link.with_traceback(None).__cause__ or link.__context__
    if where:
        error.add_note(f"The run failed at:\n{where}")
    return error


def again(error: Exception) -> Exception:
    """A kept error to be raised: a copy, since each raise adds its frames to the traceback; the error itself where its
    class cannot be copied."""
    try:
        copied = copy.copy(error)
    except Exception:  # noqa: BLE001 a user's class may take other arguments than it keeps
        copied = error
    if type(copied) is not type(error):
        copied = error
    copied.__cause__, copied.__context__ = error.__cause__, error.__context__
    return copied.with_traceback(None)


def array(values: Any, dtype: DTypeLike | None = None, device: Any = "auto") -> Array:
    """An Array on a device with these values: numbers, lists, an array of any library, a PackedArray or an Array.

    Dtype: `dtype`, to which floats are rounded; else an array's own, f32 for Python floats and lists of them, i64 for
    ints; complex numbers become an rlx.Complex over an Array of pairs.
    `device` is a name such as "auto" or "cuda:1", a session, another Array or an opened device.
    Raises: DTypeError for a value that the dtype cannot hold, ShapeError for lists whose rows differ in length,
    DeviceUnavailable, OutOfDeviceMemory.
    """
    target = device_of(device)
    if dtype is None and any_complex((values,)):
        from rlx.ops.complex_numbers import Complex, of_numpy  # few programs have complex numbers

        pairs = values.pairs if isinstance(values, Complex) else of_numpy(values).pairs
        return Complex(array(pairs, None, target))  # type: ignore[return-value]
    if isinstance(values, Array) and (dtype is None or as_dtype(dtype) == values.dtype):
        return values._copied(target)
    if isinstance(values, PackedArray):
        if dtype is not None and as_dtype(dtype) != values.dtype:
            raise DTypeError(f"array: {values!r} is not {dtype}; dequantize it, or quantize the floats anew")
        t, data = TensorType(values.shape, values.dtype), values.data
    else:
        if isinstance(values, np.ndarray) and hasattr(values, "filled") and np.any(getattr(values, "mask", False)):
            raise DTypeError("array: this masked array has masked elements, which have no value: give .filled(value)")
        data = as_array(values, "array")
        if dtype is None:
            own = isinstance(values, np.ndarray | np.generic) or hasattr(values, "dtype")
            dtype = f32 if data.dtype == np.float64 and not own else data.dtype
        wanted = as_dtype(dtype)
        if wanted.is_packed:
            raise DTypeError(f"array: {wanted} is made of floats by rlx.quantize; give its PackedArray")
        if data.dtype != wanted.np:
            data = exactly(data, wanted, "array")
        t = TensorType(data.shape, wanted)
    buffer = target.acquire(max(t.nbytes, 1), clear=False)
    if t.nbytes:
        buffer.write(0, np.ascontiguousarray(data).reshape(-1).view(np.uint8))
    return Array._of(target, t, buffer)


def device_of(device: Any) -> Device:
    """The opened device that a name, a session, an Array or a device means. Raises: DeviceUnavailable."""
    if isinstance(device, str):
        return open_device(device)
    result: Device | None = device if hasattr(device, "acquire") else getattr(device, "device", None)
    if result is None or not hasattr(result, "acquire"):
        name = f"its id, {device.id!r}" if isinstance(device, DeviceInfo) else 'a name such as "cpu" or "cuda:0"'
        raise DeviceUnavailable(
            f"{device!r:.80} is no device; give {name}, a session or an rlx.Array"
        )
    return result


def check_device(what: str, array: Array, device: Device) -> None:
    """Raises: GraphError for an array of another device."""
    if array.device is not device:
        here, there = device.info.id, array.device.info.id
        raise GraphError(
            f'{what} is an array on {there}, the program runs on {here}; copy it there, by .to("{here}")'
        )


def _operators(name: str) -> None:
    from rlx.runtime import eager as eager  # attaches the operators


def _method(name: str) -> None:
    from rlx.runtime.eager import attach_method

    attach_method(name)


_OWN = {"__array_ufunc__", *Array.__dict__}  # __array_ufunc__ makes NumPy leave `ndarray + Array` to the Array
attach_later(Array, (name for name in OPERATORS if name not in _OWN), _operators)
attach_later(Array, (name for name in (*METHODS, *LATER_METHODS) if name not in _OWN), _method)
explain(Array)
