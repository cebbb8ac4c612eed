"""OrtValue and IOBinding: values that a session's runs take and give under ONNX Runtime's names."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.errors import DTypeError, GraphError, ShapeError
from rlx.onnx.reader.elements import ELEMENTS, NAMES, Array, ElementType
from rlx.runtime.array import Array as DeviceArray
from rlx.runtime.array import array as on_device


class OrtValue:
    """A tensor on the host, or an rlx.Array on a device, which `numpy()` copies to the host."""

    def __init__(self, held: Any) -> None:
        self.held = held

    @staticmethod
    def ortvalue_from_numpy(array: Any, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        """Raises: DeviceUnavailable."""
        if device_type == "cpu":
            return OrtValue(np.asarray(array))
        return OrtValue(on_device(np.asarray(array), device=f"{device_type}:{device_id}"))

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """A tensor of zeros. Raises: DeviceUnavailable, DTypeError."""
        return OrtValue.ortvalue_from_numpy(np.zeros(shape, element_of(element_type)), device_type, device_id)

    def numpy(self) -> Any:
        return self.held if isinstance(self.held, np.ndarray) else self.held.numpy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.numpy(), dtype, copy=copy)

    def shape(self) -> list[int]:
        return list(self.held.shape)

    def data_type(self) -> str:
        """The type as ONNX writes it, tensor(float) for example."""
        dtype = self.held.dtype
        return NAMES[dtype if isinstance(dtype, np.dtype) else np.dtype(dtype.np)]

    def device_name(self) -> str:
        """The kind of device: cpu, cuda, vulkan."""
        return "cpu" if isinstance(self.held, np.ndarray) else str(self.held.device.info.id).partition(":")[0]

    def is_tensor(self) -> bool:
        return True

    def has_value(self) -> bool:
        return True

    def update_inplace(self, array: Any) -> None:
        """Gives the value of another array of this shape and type. Raises: ShapeError, DTypeError."""
        new = np.asarray(array)
        now: Any = self.held
        if list(new.shape) != self.shape() or NAMES.get(new.dtype) != self.data_type():
            raise ShapeError(f"update_inplace: {new.dtype} {new.shape} for {self.data_type()} {self.shape()}")
        if isinstance(now, np.ndarray):
            np.copyto(now, new)
        else:
            self.held = self.ortvalue_from_numpy(new, *_named(now.device.info.id)).held


def _named(device: str) -> tuple[str, int]:
    kind, _, number = device.partition(":")
    return kind, int(number or 0)


def element_of(number_or_dtype: Any) -> ElementType:
    """The element type that a NumPy dtype or a number of ONNX's means. Raises: DTypeError."""
    try:
        result = ELEMENTS[number_or_dtype] if isinstance(number_or_dtype, int) else np.dtype(number_or_dtype)
    except (KeyError, TypeError):
        result = None
    if result is None or result not in NAMES:
        raise DTypeError(f"element type {number_or_dtype!r}; expected a NumPy dtype, or a number of onnx.TensorProto")
    return result


class IOBinding:
    """The inputs that the next runs of a session take, and where their outputs go; made by `session.io_binding()`."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, Any] = {}  # name -> what takes it: (device type, its number), an array or an OrtValue
        self._made: list[Any] = []

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        self._inputs[self._known(name, "input")] = arr_on_cpu

    def bind_ortvalue_input(self, name: str, ortvalue: Any) -> None:
        self._inputs[self._known(name, "input")] = ortvalue

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """Memory at this address, of the host or of CUDA, which each run reads. Raises: GraphError for another
        device's."""
        name = self._known(name, "input")
        if device_type == "cuda":
            self._inputs[name] = _Cuda(element_of(element_type), shape, buffer_ptr)
        else:
            self._inputs[name] = _memory(name, device_type, element_type, shape, buffer_ptr)

    def bind_output(
        self, name: str, device_type: str = "cpu", device_id: int = 0, element_type: Any = None,
        shape: Sequence[int] | None = None, buffer_ptr: int | None = None,
    ) -> None:  # fmt: skip
        """The output as a new OrtValue on that device, or written to memory of the host at the address."""
        if buffer_ptr is None:
            self._outputs[self._known(name, "output")] = (device_type, device_id)
            return
        if shape is None or element_type is None:
            raise GraphError(f"bind_output: {name!r} has an address; give its element_type and shape too")
        self._outputs[self._known(name, "output")] = _memory(name, device_type, element_type, shape, buffer_ptr)

    def bind_ortvalue_output(self, name: str, ortvalue: Any) -> None:
        """Each run writes the output to this OrtValue, which has its shape and type."""
        self._outputs[self._known(name, "output")] = ortvalue

    def clear_binding_inputs(self) -> None:
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        self._outputs.clear()
        self._made.clear()

    def synchronize_inputs(self) -> None:
        """Nothing is left to wait for: a run returns when its results are there."""

    synchronize_outputs = synchronize_inputs

    def get_outputs(self) -> list[Any]:
        """The outputs of the last run as OrtValues, in the order in which they were bound."""
        return list(self._made)

    def copy_outputs_to_cpu(self) -> list[Any]:
        """The outputs of the last run as NumPy arrays, in the order in which they were bound."""
        return [array.numpy() for array in self._made]

    def run(self, run: Any) -> None:
        """Calls `run(output names, inputs, "host" or "device")` and hands its results to what is bound to them."""
        names = list(self._outputs)
        if not names:
            raise GraphError("io_binding: no output is bound; bind_output names those to compute")
        stays = any(isinstance(w, tuple) and w[0] != "cpu" for w in self._outputs.values())
        results = run(names, self._inputs, "device" if stays else "host")
        self._made = [self._taken(n, v) for n, v in zip(names, results, strict=True)]

    def _taken(self, name: str, value: Any) -> Any:
        where = self._outputs[name]
        if not isinstance(where, tuple):
            taker = OrtValue(where) if isinstance(where, np.ndarray) else where
            taker.update_inplace(np.asarray(value))
            return taker
        kind, number = where
        if isinstance(value, DeviceArray) and _named(value.device.info.id) != (kind, number):
            value = value.numpy() if kind == "cpu" else value.to(f"{kind}:{number}")
        return OrtValue.ortvalue_from_numpy(value, kind, number) if isinstance(value, np.ndarray) else OrtValue(value)

    def _known(self, name: str, kind: str) -> str:
        there = self._session.get_inputs() if kind == "input" else self._session.get_outputs()
        names = [i.name for i in there]
        if kind == "input":
            names += [i.name for i in self._session.get_overridable_initializers()]
        if name not in names:
            raise GraphError(f"io_binding: the model has no {kind} {name!r}; it has {names}")
        return name


def fed(value: Any, device: str) -> Any:
    """An input as a session on this device takes it: of an OrtValue, ONNX Runtime's or ours, its array, which stays on
    the device where it is there; anything else unchanged."""
    if isinstance(value, OrtValue) and isinstance(value.held, DeviceArray) and value.held.device.info.id == device:
        return value.held
    return value.numpy() if hasattr(value, "update_inplace") else value


class _Cuda:
    """Memory of CUDA at an address, as other libraries show theirs."""

    def __init__(self, dtype: ElementType, shape: Sequence[int], address: int) -> None:
        self._shown = {
            "data": (address, True), "shape": tuple(int(n) for n in shape), "typestr": dtype.str, "version": 3,
        }  # fmt: skip

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self._shown


def _memory(name: str, device_type: str, element_type: Any, shape: Sequence[int], address: int) -> Array:
    """The host's memory at an address as an array."""
    if device_type != "cpu":
        raise GraphError(
            f"io_binding: {name!r} has an address on {device_type!r}; rlx reads addresses of the host and of CUDA, and "
            "writes to those of the host. Bind an OrtValue, or the name of the device alone"
        )
    dtype, dims = element_of(element_type), [int(n) for n in shape]
    if not address or min(dims, default=0) < 0:
        raise ShapeError(f"io_binding: {name!r} has the address {address} and shape {dims}")
    raw = (ctypes.c_uint8 * (math.prod(dims) * dtype.itemsize)).from_address(address)
    return np.ctypeslib.as_array(raw).view(dtype).reshape(dims)

