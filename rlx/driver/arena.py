"""DeviceArena: the contract every backend's memory obeys, keyed by tensor id ("node")."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt

from rlx.driver.device import Buffer, Bytes
from rlx.driver.memory import MemoryPlan, Slot
from rlx.dtypes import DType


@runtime_checkable
class DeviceArena(Protocol):
    """One executable's memory and the stores bound to it.

    `node` is a tensor's id in the planned graph. A node without a slot, a write longer than its slot, a read past it, a
    closed arena: `ArenaError`, and nothing has changed; nothing is ever truncated. Memory is zero when acquired.
    Calls return when the data is where it was asked for.
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
        """Binds memory that others own (weights, state, workspace) under a segment name."""
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
        """Valid bytes: the slot's size unless `set_actual_len` said less."""
        ...

    def set_actual_len(self, node: int, nbytes: int) -> None: ...

    # -- typed access (f32, f16, bf16; any other dtype, or one that is not the slot's: DTypeError)
    def write_input_f32(self, node: int, dtype: DType, data: npt.ArrayLike) -> None:
        """Writes f32 data, stored as `dtype`. A short write leaves the rest untouched."""
        ...

    def read_output_f32(self, node: int, dtype: DType, n_elements: int) -> npt.NDArray[np.float32]:
        """The first `n_elements` as f32."""
        ...

    def read_f32_at(self, elem_offset: int, n_elements: int) -> npt.NDArray[np.float32]:
        """f32 values by element offset in segment "arena0"."""
        ...

    # -- raw access
    def write_bytes(self, node: int, data: npt.NDArray[np.generic] | bytes) -> None:
        """Writes the bytes of `data` at the start of the slot."""
        ...

    def read_bytes(self, node: int, nbytes: int | None = None) -> Bytes:
        """A copy of the first `nbytes` (default: `len_of(node)`)."""
        ...

    def fill(self, node: int, byte: int) -> None:
        """Sets every byte of the slot."""
        ...

    def view(self, node: int) -> Bytes | None:
        """The slot as host bytes where the host may use the memory itself, else None."""
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

    def copy_into(self, twin: DeviceArena) -> None:
        """Copies the contents of every own segment into an arena of the same plan."""
        ...

    # -- half-precision weights
    def register_half_param(self, node: int, dtype: DType, data: npt.ArrayLike) -> int:
        """Stores f32 `data` for the node as f16 or bf16 in the half region, which grows as needed and loses nothing.
        Returns `half_off(node)`. Registering again overwrites in place where the size fits."""
        ...

    def is_half(self, node: int) -> bool: ...
    def half_off(self, node: int) -> int:
        """Byte offset of the node's half copy in the half region."""
        ...

    def half_at(self, elem_offset: int) -> int | None:
        """The node whose f32 slot begins at that element offset of "arena0" and has a half copy, else None."""
        ...

    def read_half(self, node: int) -> npt.NDArray[np.float32]:
        """The half copy, widened."""
        ...

    def close(self) -> None:
        """Hands own memory back to the pool. Idempotent."""
        ...

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
