"""Ports: the transfer of inputs into their slots and of outputs out of them, after checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.driver import DeviceArena
from rlx.errors import GraphError
from rlx.ir import Tensor, TensorType
from rlx.runtime.store import check_array, on_host

Array = npt.NDArray[Any]


class InputPort:
    """One input; `put.call` writes an accepted array, like the arena's typed writes.

    `declared` is the type the user gives, `tensor` the planned tensor that holds it (f32 if the storage layout widens
    it)."""

    __slots__ = ("declared", "name", "np_dtype", "put", "shape")

    def __init__(self, name: str, declared: TensorType, tensor: Tensor, arena: DeviceArena) -> None:
        self.name = name
        self.declared = declared
        # A packed weight is given as a PackedArray, never as an array of its bytes.
        self.shape = None if declared.dtype.is_packed else declared.shape
        self.np_dtype = declared.dtype.np
        self.put = arena.input_writer(tensor.id, tensor.dtype, tensor.shape)

    def accept(self, given: Any) -> Array:
        """The value as an array of the declared type. Raises: ShapeError, DTypeError."""
        if type(given) is np.ndarray and given.dtype == self.np_dtype and given.shape == self.shape:
            return given
        return check_array(f"input {self.name!r}", given, self.declared)


class OutputPort:
    """One output: `take` returns a new array of the declared type, like the arena's typed reads."""

    __slots__ = ("_read", "_type", "name")

    def __init__(self, name: str, declared: TensorType, tensor: Tensor, arena: DeviceArena) -> None:
        self.name = name
        self._type = declared
        self._read = arena.output_reader(tensor.id, tensor.dtype, tensor.shape, declared.dtype)

    def take(self) -> Any:
        data = self._read.call()
        return on_host(self._type, data) if self._type.dtype.is_packed else data


def accept_inputs(ports: list[InputPort], given: Mapping[str, Any]) -> list[Array]:
    """The inputs as arrays, all checked before any is written. Raises: GraphError for missing or unknown names."""
    if type(given) is not dict and not isinstance(given, Mapping):
        raise GraphError(
            f"run: expected a dict of arrays by name, got {type(given).__name__}; the graph takes "
            f"{[port.name for port in ports]}"
        )
    if len(given) != len(ports) or any(port.name not in given for port in ports):
        names = [port.name for port in ports]
        missing = [n for n in names if n not in given]
        unknown = [n for n in given if n not in names]
        said = [f"missing {missing}" if missing else "", f"unknown {unknown}" if unknown else ""]
        raise GraphError(f"run: inputs {' and '.join(filter(None, said))}; the graph takes {names}")
    return [port.accept(given[port.name]) for port in ports]
