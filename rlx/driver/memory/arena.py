"""DeviceArena: where the tensors of one program live on its device, and how they are read and written by their ids."""

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
    """A read or write bound to one node, which was looked up and checked once.

    `call` performs it any number of times, and raises once the arena is closed."""

    __slots__ = ("__weakref__", "call")

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call


@runtime_checkable
class DeviceArena(Protocol):
    """The memory of one executable and the stores bound to it.

    `node` is a tensor's id in the planned graph. `ArenaError` is raised, and nothing is changed, for a node without a
    slot, a write longer than its slot, a read past it, a count or an offset that is negative or no integer, and a
    closed arena (every call but `close` and `closed`). Nothing is ever truncated. A plan whose slots leave their
    segments, or are not aligned, is refused when the arena is made or the segment is bound. Segments whose memory each
    call supplies (`Device.build_call`) are not the arena's: `buffer` refuses them unless they are bound. Memory is zero
    when acquired. Calls return once their bytes are copied. `register_half_param` may be called by several threads.
    """

    plan: MemoryPlan

    @property
    def size_bytes(self) -> int:
        """Bytes of the segments that the arena owns."""
        ...

    @property
    def closed(self) -> bool: ...

    # -- lookup
    def has_buffer(self, node: int) -> bool:
        """Whether the node has a slot here."""
        ...

    def slot(self, node: int) -> Slot: ...
    def buffer(self, segment: str) -> Buffer:
        """The memory behind a segment, own or bound. Raises: ArenaError when there is none."""
        ...

    def bind(self, segment: str, buffer: Buffer) -> None:
        """Binds memory that the arena does not own (weights, state, workspace) under a segment name.

        Raises: ArenaError for a segment the arena owns, and for memory too small for a slot in it."""
        ...

    def bind_entries(self, entries: Mapping[int, StoreEntry]) -> None:
        """Says which nodes are weights and states, and of which stores.

        From then on their valid lengths and half-precision copies are those of the stores."""
        ...

    def byte_offset(self, node: int) -> int:
        """Bytes from the start of the slot's segment to the slot."""
        ...

    def elem_offset(self, node: int) -> int:
        """`byte_offset` in elements of the slot's dtype. Raises: DTypeError for packed weights."""
        ...

    def slot_elems(self, node: int) -> int:
        """The number of elements that the slot holds."""
        ...

    def len_of(self, node: int) -> int:
        """Valid bytes: the slot's size unless `set_actual_len` set fewer. A state's valid bytes are its store's."""
        ...

    def set_actual_len(self, node: int, nbytes: int) -> None:
        """Sets how many leading bytes are valid: `read_bytes` returns these, and of a state clones copy these."""
        ...

    # -- typed access (f32, f16, bf16; any other dtype, or one that is not the slot's: DTypeError)
    def write_input_f32(self, node: int, dtype: DType, data: npt.ArrayLike) -> None:
        """Writes f32 data, stored as `dtype`.

        A short write leaves the rest untouched.
        Raises: DTypeError for data that are not real numbers, ShapeError for lists that differ in length."""
        ...

    def read_output_f32(self, node: int, dtype: DType, n_elements: int) -> npt.NDArray[np.float32]:
        """The first `n_elements` as f32."""
        ...

    def read_f32_at(self, elem_offset: int, n_elements: int) -> npt.NDArray[np.float32]:
        """f32 values by element offset in segment "arena0"."""
        ...

    def input_writer(self, node: int, dtype: DType, shape: tuple[int, ...]) -> Accessor:
        """A writer bound to the node: `call(array)` writes.

        It is `write_input_f32` for a slot of f32, f16 or bf16, else `write_bytes`.
        Requires: arrays of that shape, of the slot's dtype or one whose values it holds exactly."""
        ...

    def output_reader(self, node: int, dtype: DType, shape: tuple[int, ...], wanted: DType) -> Accessor:
        """A reader bound to the node: `call()` returns a new array of that shape and of dtype `wanted`, of packed
        weights the bytes.

        It is `read_output_f32` for a slot of f32, f16 or bf16, and `read_bytes` where the slot's dtype is
        `wanted`."""
        ...

    # -- raw access
    def write_bytes(self, node: int, data: npt.NDArray[np.generic] | bytes) -> None:
        """Writes the bytes of `data` at the start of the slot. Raises: DTypeError for data without bytes."""
        ...

    def read_bytes(self, node: int, nbytes: int | None = None) -> Bytes:
        """A copy of the first `nbytes` (default: `len_of(node)`)."""
        ...

    def fill(self, node: int, byte: int) -> None:
        """Sets every byte of the slot."""
        ...

    def view(self, node: int) -> Bytes | None:
        """The slot as host bytes where the host can access the memory itself, else None.

        It is the node's memory until the arena (for a weight or a state: its store) is closed, or the program is
        recorded anew. After that it can still be read and written and holds the last bytes, but no run or other arena
        uses it; its memory returns to the pool once the view is dropped."""
        ...

    # -- device-side copies
    def copy_prefix(self, source: int, target: int, nbytes: int) -> None:
        """Copies the first `nbytes` of one slot to the start of another; a no-op between aliases."""
        ...

    def copy_range(
        self, source: int, source_offset: int, target: int, target_offset: int, nbytes: int
    ) -> None:
        """Copies bytes between slots on the device; overlapping ranges behave as memmove. Out of range: no copy."""
        ...

    def range_copier(self, source: int, target: int) -> Accessor:
        """`copy_range` bound to two nodes: `call(source_offset, target_offset, nbytes)` copies. Requires: ints."""
        ...

    def copy_into(self, twin: DeviceArena) -> None:
        """Copies all own segments, half-precision copies and valid lengths into an arena of the same plan.

        That means equal slots, in segments of equal size; slots in stores may lie elsewhere in another store.
        Raises: ArenaError for any other arena; nothing is changed then."""
        ...

    # -- half-precision weights
    def register_half_param(self, node: int, dtype: DType, data: npt.ArrayLike) -> int:
        """Stores f32 `data` as the node's value in f16 or bf16, rounded to nearest even. Returns `half_off(node)`.

        If the node is a parameter of a compiled program, its weight moves to the half-precision region of its store.
        Each program that shares the store is then recorded anew before its next run and reads the 16-bit weight;
        `data` must have as many elements as the weight. This arena is the old program's: it answers questions about
        half-precision weights until that run, which closes it. In any other arena the copy lies in a half-precision
        region of the arena, which grows as needed and keeps its contents, and the slot stays as it is. Registering
        again overwrites in place if dtype and size are equal.
        Raises: ArenaError for too many elements and, in a compiled program, a node that is no parameter; ShapeError,
        DTypeError, OutOfDeviceMemory."""
        ...

    def is_half(self, node: int) -> bool:
        """Whether the node's weight is f16 or bf16: in its store, in memory bound here, or as a copy."""
        ...

    def half_off(self, node: int) -> int:
        """Byte offset of the node's half-precision weight in the region that holds it.

        Raises: ArenaError if the node has none."""
        ...

    def half_at(self, elem_offset: int, segment: str | None = None) -> int | None:
        """The node with a half-precision weight whose slot begins at that element of its segment, else None.

        The element is that of `elem_offset(node)`. Without `segment` all segments are searched, "arena0" first."""
        ...

    def read_half(self, node: int) -> npt.NDArray[np.float32]:
        """The half-precision weight, widened to f32. Raises: ArenaError if the node has none."""
        ...

    def close(self) -> None:
        """Returns the arena's own memory to the pool. Idempotent."""
        ...

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
