"""Ports: the transfer of inputs into their slots and of outputs out of them, after checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.driver import Device, DeviceArena
from rlx.errors import DTypeError, GraphError, ShapeError, TracedValueError, meant
from rlx.ir import Graph, Tensor, TensorType
from rlx.ir.checks import visible
from rlx.ir.values import is_foreign
from rlx.ops.pytree import is_array
from rlx.runtime.array import Array, array, check_device
from rlx.runtime.exchange import adopted
from rlx.runtime.store import Store, check_array, on_host

Given = npt.NDArray[Any] | Array


class _Port:
    """A tensor's slot. `view` gives its memory as an array of the declared type, or None if the host cannot address it
    or the slot's dtype is wider."""

    __slots__ = ("_arena", "_nbytes", "_node", "_slot", "declared", "name")

    def __init__(self, name: str, declared: TensorType, tensor: Tensor, arena: DeviceArena) -> None:
        self.name = name
        self.declared = declared
        self._arena, self._slot = arena, arena.slot(tensor.id)
        self._node, self._nbytes = tensor.id, declared.nbytes

    def view(self) -> npt.NDArray[Any] | None:
        t = self.declared
        raw = self._arena.view(self._node) if self._slot.dtype == t.dtype else None
        return None if raw is None else raw[: t.nbytes].view(t.dtype.np).reshape(t.array_shape)


    def memory(self) -> npt.NDArray[np.uint8]:
        """The slot's bytes in memory. Requires: a program on the CPU."""
        whole: Any = self._arena.buffer(self._slot.segment)
        result: npt.NDArray[np.uint8] = whole.memory()[self._slot.offset : self._slot.offset + self._nbytes]
        return result


class InputPort(_Port):
    """One input. `put.call` writes an accepted NumPy array, like the arena's typed writes; `write` also takes Arrays.

    `declared` is the type the user gives, `tensor` the planned tensor that holds it (f32 if the storage layout widens
    it)."""

    __slots__ = ("np_dtype", "put", "shape")

    def __init__(self, name: str, declared: TensorType, tensor: Tensor, arena: DeviceArena) -> None:
        super().__init__(name, declared, tensor, arena)
        # A packed weight is given as a PackedArray, never as an array of its bytes.
        self.shape = None if declared.dtype.is_packed else declared.shape
        self.np_dtype = declared.dtype.np
        self.put = arena.input_writer(tensor.id, tensor.dtype, tensor.shape)

    def accept(self, value: Any, device: Device) -> Given:
        """The value as a NumPy array of the declared type; an Array is returned unchanged. Raises: ShapeError,
        DTypeError, GraphError for an Array of another device, and the error of a closed or failed Array."""
        if type(value) is np.ndarray and value.dtype == self.np_dtype and value.shape == self.shape:
            return value
        what = f"input {self.name!r}"
        refuse_traced(what, value)
        value = adopted(value, device.info.dlpack)
        if not isinstance(value, Array):
            return check_array(what, value, self.declared)
        check_device(what, value, device)
        if value.type is not self.declared and value.type != self.declared:
            error = ShapeError if value.dtype == self.declared.dtype else DTypeError
            raise error(f"{what}: expected {self.declared}, got an rlx.Array of {value.type}")
        value._alive()
        return value

    def write(self, value: Given) -> None:
        """Copies an accepted array into the slot: an Array on the device, or through the host where the slot's dtype is
        wider."""
        slot = self._slot
        if not isinstance(value, Array):
            self.put.call(value)
        elif slot.dtype != value.dtype:
            self.put.call(value.numpy())
        elif self._nbytes:
            into = self._arena.buffer(slot.segment)
            into.copy_from(value._held(), value._offset, slot.offset, self._nbytes)


class DonatedPort(InputPort):
    """An input that the run may overwrite: a state. An Array that is in the state's slot already, such as the last
    run's result, is not copied. Any Array given for it is unusable from then on."""

    __slots__ = ("_store", "_why")

    def __init__(
        self, name: str, declared: TensorType, tensor: Tensor, arena: DeviceArena, store: Store, program: str
    ) -> None:
        super().__init__(name, declared, tensor, arena)
        self._store = store
        self._why = f"was donated to a run of {program!r}, as its input {name!r}"

    def write(self, value: Given) -> None:
        if not self._store.reclaim(self.name, value):
            super().write(value)
        if isinstance(value, Array):
            value._end(self._why)


class OutputPort(_Port):
    """One output: `take` returns it as a new NumPy array of the declared type, like the arena's typed reads, `give` as
    an Array."""

    __slots__ = ("_lend", "_read")

    def __init__(
        self, name: str, declared: TensorType, tensor: Tensor, arena: DeviceArena,
        lend: Callable[[], Array] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(name, declared, tensor, arena)
        self._lend = lend
        self._read = arena.output_reader(tensor.id, tensor.dtype, tensor.shape, declared.dtype)

    def take(self) -> Any:
        data = self._read.call()
        return on_host(self.declared, data) if self.declared.dtype.is_packed else data

    def give(self, device: Device) -> Array:
        """A copy in new memory, made on the device, or through the host if the slot's dtype is wider. The result that
        replaces a donated input is not copied: it stays in the state's slot."""
        t, slot = self.declared, self._slot
        if self._lend is not None:
            return self._lend()
        if slot.dtype != t.dtype:
            return array(self.take(), t.dtype, device)
        buffer = device.acquire(self._nbytes or 1, clear=False)
        if self._nbytes:
            buffer.copy_from(self._arena.buffer(slot.segment), slot.offset, 0, self._nbytes)
        return Array._of(device, t, buffer)


def refuse_traced(what: str, value: Any) -> None:
    """Raises: TracedValueError for a tensor in place of an input's values."""
    if isinstance(value, Tensor):
        raise TracedValueError(
            f"{what}: given {value!r}, which has no values while a function is traced; a run of a program or a model "
            "gives arrays, through which neither a trace nor a gradient goes: call it outside, or write that part as "
            "functions of rlx"
        )


def by_name(what: str, names: Sequence[str], args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs by name, from arguments in the order of `names` and by keyword; a single dict gives all inputs by name.

    Raises: GraphError for more than there are."""
    if len(args) == 1 and isinstance(args[0], Mapping):
        return {**args[0], **named}
    if len(args) > len(names):
        raise GraphError(f"{what}: {len(args)} inputs given in order; the model takes {[*names, *named]}")
    return {**dict(zip(names, args, strict=False)), **named}


def accept_inputs(ports: list[InputPort], arrays: Mapping[str, Any], device: Device) -> list[Given]:
    """The inputs as arrays, all checked before any is written; the only one may be given bare.

    Raises: GraphError for missing or unknown names, and for one Array given for two donated inputs."""
    if len(ports) == 1 and (is_array(arrays) or is_foreign(arrays)):
        arrays = {ports[0].name: arrays}
    if type(arrays) is not dict and not isinstance(arrays, Mapping):
        raise GraphError(
            f"run: expected a dict of arrays by name, got {type(arrays).__name__}; the graph takes "
            f"{[port.name for port in ports]}"
        )
    if len(arrays) != len(ports) or any(port.name not in arrays for port in ports):
        names = [port.name for port in ports]
        missing = [n for n in names if n not in arrays]
        unknown = [n for n in arrays if n not in names]
        near = meant(unknown[0], missing or names) if unknown else ""
        said = [f"missing {missing}" if missing else "", f"unknown {unknown}{near}" if unknown else ""]
        raise GraphError(f"run: inputs {' and '.join(filter(None, said))}; the graph takes {names}")
    values = [port.accept(arrays[port.name], device) for port in ports]
    if len(ports) > 1 and type(ports[-2]) is DonatedPort:  # donated inputs come last
        taken: dict[int, str] = {}
        for port, value in zip(ports, values, strict=True):
            if type(port) is not DonatedPort or not isinstance(value, Array):
                continue
            if (first := taken.setdefault(id(value), port.name)) != port.name:
                raise GraphError(
                    f"run: one rlx.Array is given for the donated inputs {first!r} and {port.name!r}, of which each "
                    "takes its memory; give a .copy() for one"
                )
    return values


def ports_of(graph: Graph) -> tuple[tuple[tuple[str, int], ...], ...]:
    """The names that a graph declares, by kind, each with the id of its tensor."""
    tables = (graph.inputs, graph.params, graph.states, graph.outputs, graph.updates)
    return tuple(tuple((name, t.id) for name, t in table.items()) for table in tables)


def signature(graph: Graph) -> tuple[dict[str, TensorType], dict[str, TensorType]]:
    """The types of inputs and of outputs by name."""
    return {n: t.type for n, t in graph.inputs.items()}, {n: t.type for n, t in visible(graph.outputs).items()}
