"""DeviceArena: the contract every backend's memory obeys, keyed by tensor id ("node")."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt

from rlx.driver.device import Buffer, Bytes
from rlx.driver.memory.plan import MemoryPlan, Slot
from rlx.driver.memory.store_entry import StoreEntry
from rlx.dtypes import DType


class Accessor:
    """A read or write of one node, looked up and checked once: `call` makes it, as often as wanted, and refuses once
    the arena is closed."""

    __slots__ = ("__weakref__", "call")

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call


@runtime_checkable
class DeviceArena(Protocol):
    """One executable's memory and the stores bound to it.

    `node` is a tensor's id in the planned graph. A node without a slot, a write longer than its slot, a read past it, a
    count or an offset that is negative or no whole number, a closed arena (every call but `close` and `closed`):
    `ArenaError`, and nothing has changed; nothing is ever truncated. A plan whose slots leave their segments, or are
    not aligned, is refused when the arena is made, or the segment bound. Memory is zero when acquired. Calls return
    when the data is where it was asked for. `register_half_param` may be called by several threads.
    """

    plan: MemoryPlan

    @property
    def size_bytes(self) -> int:
        """Bytes of the segments the arena owns."""
        ...

    @property
    def closed(self) -> bool: ...

    # -- where things are
    def has_buffer(self, node: int) -> bool:
        """Whether the node has a slot here."""
        ...

    def slot(self, node: int) -> Slot: ...
    def buffer(self, segment: str) -> Buffer:
        """The memory behind a segment, own or bound. Raises: ArenaError when there is none."""
        ...

    def bind(self, segment: str, buffer: Buffer) -> None:
        """Binds memory that others own (weights, state, workspace) under a segment name. Raises: ArenaError for a
        segment the arena owns, and for memory that a slot in it would leave."""
        ...

    def bind_entries(self, entries: Mapping[int, StoreEntry]) -> None:
        """Says which nodes are weights and states, and of which stores: their lengths and half copies are the stores'
        from then on."""
        ...

    def byte_offset(self, node: int) -> int:
        """Bytes from the start of the slot's segment."""
        ...

    def elem_offset(self, node: int) -> int:
        """Elements of the slot's dtype from the start of the segment."""
        ...

    def slot_elems(self, node: int) -> int:
        """Elements the slot holds."""
        ...

    def len_of(self, node: int) -> int:
        """Valid bytes: the slot's size unless `set_actual_len` said less. Those of a state are its store's."""
        ...

    def set_actual_len(self, node: int, nbytes: int) -> None:
        """Says how many bytes, from the start, are valid: what `read_bytes` gives, and of a state what clones take."""
        ...

    # -- typed access (f32, f16, bf16; any other dtype, or one that is not the slot's: DTypeError)
    def write_input_f32(self, node: int, dtype: DType, data: npt.ArrayLike) -> None:
        """Writes f32 data, stored as `dtype`. A short write leaves the rest untouched. Raises: DTypeError for data
        that is no real numbers, ShapeError for lists that differ in length."""
        ...

    def read_output_f32(self, node: int, dtype: DType, n_elements: int) -> npt.NDArray[np.float32]:
        """The first `n_elements` as f32."""
        ...

    def read_f32_at(self, elem_offset: int, n_elements: int) -> npt.NDArray[np.float32]:
        """f32 values by element offset in segment "arena0"."""
        ...

    def input_writer(self, node: int, dtype: DType, shape: tuple[int, ...]) -> Accessor:
        """`write_input_f32` for a slot of f32, f16 or bf16, `write_bytes` for one of another dtype, bound to the node:
        `call(array)` writes. Requires: arrays of that shape, of the slot's dtype or one it holds exactly."""
        ...

    def output_reader(self, node: int, dtype: DType, shape: tuple[int, ...], wanted: DType) -> Accessor:
        """`read_output_f32` for a slot of f32, f16 or bf16, `read_bytes` where the slot's dtype is the wanted one,
        bound to the node: `call()` gives a fresh array of that shape and of dtype `wanted`."""
        ...

    # -- raw access
    def write_bytes(self, node: int, data: npt.NDArray[np.generic] | bytes) -> None:
        """Writes the bytes of `data` at the start of the slot. Raises: DTypeError for what has no bytes."""
        ...

    def read_bytes(self, node: int, nbytes: int | None = None) -> Bytes:
        """A copy of the first `nbytes` (default: `len_of(node)`)."""
        ...

    def fill(self, node: int, byte: int) -> None:
        """Sets every byte of the slot."""
        ...

    def view(self, node: int) -> Bytes | None:
        """The slot as host bytes where the host may use the memory itself, else None.

        It is the node's memory until the arena (of a weight or a state: its store) is closed, or the program recorded
        anew. From then on it belongs to nobody: it may still be read and written, shows what was there last, and no
        run or other arena sees it; it holds its memory back from the pool until it is dropped."""
        ...

    # -- device-side copies
    def copy_prefix(self, source: int, target: int, nbytes: int) -> None:
        """Copies the first `nbytes` of one slot to the start of another; a no-op between aliases."""
        ...

    def copy_range(
        self, source: int, source_offset: int, target: int, target_offset: int, nbytes: int
    ) -> None:
        """Copies bytes between slots on the device; overlapping ranges behave as memmove. Out of range: fails whole."""
        ...

    def range_copier(self, source: int, target: int) -> Accessor:
        """`copy_range` bound to two nodes: `call(source_offset, target_offset, nbytes)` copies. Requires: ints."""
        ...

    def copy_into(self, twin: DeviceArena) -> None:
        """Copies the contents of every own segment, half copies and valid lengths into an arena of the same plan: the
        same slots in segments of the same size; what lies in stores may lie elsewhere in another store. Raises:
        ArenaError for any other arena; nothing has changed then."""
        ...

    # -- half-precision weights
    def register_half_param(self, node: int, dtype: DType, data: npt.ArrayLike) -> int:
        """Keeps f32 `data` as the node's value in f16 or bf16, rounded to nearest even. Returns `half_off(node)`.

        Where the node is a parameter of a compiled program, its weight moves into the half region of its store, and
        every program that shares the store is recorded anew before its next run and reads the 16-bit weight from then
        on; `data` has as many elements as the weight. The arena is then the old program's: it answers for its
        half-precision weights until that run and is closed by it. In any other arena the copy lies in a half region
        of its own, which grows as needed and loses nothing, and the slot stays as it is. Registering again overwrites
        in place where dtype and size are the same. Raises: ArenaError for too many elements and, in a compiled
        program, a node that is no parameter; ShapeError, DTypeError, OutOfDeviceMemory."""
        ...

    def is_half(self, node: int) -> bool:
        """Whether the node's weight is kept in f16 or bf16: in the store it lies in, in memory bound here, or as a
        registered copy."""
        ...

    def half_off(self, node: int) -> int:
        """Byte offset of the node's half-precision weight in the region it is kept in. Raises: ArenaError where the
        node has none."""
        ...

    def half_at(self, elem_offset: int, segment: str | None = None) -> int | None:
        """The node whose slot begins at that element of its segment (`elem_offset(node)`) and has a half-precision
        weight, else None. Without `segment` all are looked through, "arena0" first."""
        ...

    def read_half(self, node: int) -> npt.NDArray[np.float32]:
        """The half-precision weight, widened. Raises: ArenaError where the node has none."""
        ...

    def close(self) -> None:
        """Hands own memory back to the pool. Idempotent."""
        ...

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
