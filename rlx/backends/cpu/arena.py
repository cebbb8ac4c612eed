"""CpuBuffer and CpuArena: the Buffer and DeviceArena contracts over host memory."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable
from functools import partial
from itertools import count
from sys import getrefcount
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.backends.cpu.forms import Forms
from rlx.driver import Buffer, BufferArena
from rlx.driver.device import Bytes, address
from rlx.driver.memory.arena import Accessor
from rlx.driver.memory.pool import Pin
from rlx.dtypes import DType, rounded
from rlx.errors import ArenaError, DTypeError
from rlx.host.locks import renewed
from rlx.ir import Tensor

ALIGNMENT = 64  # a cache line, and the widest vector
_SLAB_BYTES = 1 << 24
RECENT_BYTES, _RECENT_EACH, _RECENT_SIZES = 1 << 14, 8, 64  # what `Recent` keeps
_UNSHARED = 3  # references to memory that only a buffer and its `Spare` have: these two and the count's own
_NONE = np.empty(0, np.uint8)
Spare = tuple[Bytes, int]  # memory and its address
_STAMPS = count(1)
LATEST = [0]  # the stamp of the latest write to any buffer


def _zeros(nbytes: int) -> tuple[Bytes, int]:
    """An array of zeros, and the offset in it at which `nbytes` aligned bytes begin. The system maps zero pages lazily:
    memory is committed only where it is used."""
    raw = np.zeros(nbytes + ALIGNMENT, np.uint8)
    return raw, -address(raw) % ALIGNMENT


class Block:
    """Aligned host memory of `nbytes`; `used` says whether it may hold old bytes, `shared` whether it is a part of an
    allocation."""

    __slots__ = ("bytes", "shared", "used")

    def __init__(self, nbytes: int, memory: Bytes | None = None) -> None:
        self.shared = memory is not None
        if memory is None:
            memory, at = _zeros(nbytes)
            memory = memory[at : at + nbytes]
        self.bytes: Bytes = memory
        self.used = False

    @property
    def nbytes(self) -> int:
        return self.bytes.nbytes


class Slabs:
    """Blocks that live long, such as packed weights, side by side in large allocations. NumPy asks for pages of 2 MB
    for these alone, and a product of few rows reads its weight from such pages in less time. An allocation lives as
    long as any of its blocks; whoever drops a block gives its pages back to the system (`give_back`). Any thread may
    call."""

    def __init__(self) -> None:
        self._lock = renewed(self, "_lock", threading.Lock)
        self._latest: weakref.ref[Bytes] | None = None
        self._taken = 0

    @staticmethod
    def takes(nbytes: int) -> bool:
        """Whether a block of `nbytes` should be here: not if it is small, or large enough to get large pages by
        itself."""
        return _SLAB_BYTES >> 8 <= nbytes < _SLAB_BYTES >> 2

    def block(self, nbytes: int) -> Block:
        """A block of zeros. Requires: `takes(nbytes)`."""
        with self._lock:
            slab = None if self._latest is None else self._latest()
            if slab is None or slab.nbytes - self._taken < nbytes:
                slab, first = _zeros(_SLAB_BYTES)
                latest = weakref.ref(slab)
                # No call in between: a signal handler that raises there would leave an offset into the old slab.
                self._latest, self._taken = latest, first
            start = self._taken
            self._taken += -(-nbytes // ALIGNMENT) * ALIGNMENT
            return Block(nbytes, slab[start : start + nbytes])


class Foreign:
    """Host memory of another library, which `owner` keeps allocated; read-only if that is a read-only array."""

    __slots__ = ("bytes", "owner", "used")

    def __init__(self, address: int, nbytes: int, owner: object) -> None:
        raw = (ctypes.c_uint8 * nbytes).from_address(address)
        self.bytes: Bytes = np.ctypeslib.as_array(raw)
        if isinstance(owner, np.ndarray):
            self.bytes.flags.writeable = owner.flags.writeable
        self.owner = owner
        self.used = True

    @property
    def nbytes(self) -> int:
        return self.bytes.nbytes


class _Making:
    """The lock under which a buffer gets its forms. All buffers share one, since making a lock takes half as long as
    making a buffer."""

    def __init__(self) -> None:
        self.lock = renewed(self, "lock", threading.RLock)


_MAKING = _Making()


class CpuBuffer:
    """Host memory behind the Buffer contract. Once it is closed or dropped, and no view of it is left, a finalizer
    passes the memory to `leave`; `close` then calls `sweep`. `stamp` changes with every write, so that what was derived
    from the contents, such as packed weights, is known to be out of date; `exposed` says that the host has a view of
    the contents, through which it may write at any time without a new stamp. Weights may be stored in another order
    than their tensors' (`forms`); the methods read and write them in their tensors' order all the same. Any thread may
    call.

    A buffer gets forms once, at any time, and most never do. So while there are none, a method reads or writes the
    memory without a lock, and then checks again. If there are forms by now, it repeats its work through them: meanwhile
    a program may have filled a form and given the buffer's pages back."""

    __slots__ = ("_bytes", "_forms", "_own", "_pin", "_place", "_sweep", "_viewed", "exposed", "stamp")

    def __init__(
        self,
        memory: Block | Foreign,
        nbytes: int,
        leave: Callable[[Any], None],
        sweep: Callable[[], None],
        clear: bool = True,
    ) -> None:
        self._sweep = sweep
        self._pin: Pin[Any] | None = Pin(memory, leave)
        self._bytes = memory.bytes[:nbytes]
        if memory.used and clear:
            self._bytes[...] = 0
        memory.used = True
        self.stamp = 0
        self.exposed = False
        self._own = isinstance(memory, Block)
        self._forms: Forms | None = None
        self._viewed = False
        self._place = 0

    @property
    def forms(self) -> Forms:
        """The copies of the contents in other orders, and which ranges are needed in their own order."""
        forms = self._forms
        if forms is None:
            with _MAKING.lock:
                forms = self._forms
                if forms is None:
                    forms = Forms(self._open(), self._own)
                    if self._viewed:
                        forms.keep_all()
                    self._forms = forms
        return forms

    @property
    def extra_bytes(self) -> int:
        """Bytes of the forms, less the buffer's own bytes that were given back to the system."""
        return 0 if self._forms is None else self._forms.extra_bytes

    def written(self) -> None:
        """Notes a write that was made through addresses. Requires: the write is complete."""
        if self._forms is not None:
            self._forms.written()
        self._stamped()

    def _stamped(self) -> None:
        # The buffer's stamp is set first: a thread that sees the new `LATEST` must also see which buffer has it.
        stamp = self.stamp = next(_STAMPS)
        LATEST[0] = stamp

    @property
    def nbytes(self) -> int:
        return self._bytes.nbytes

    @property
    def address(self) -> int:
        return address(self.view())

    def write(self, offset: int, data: Bytes) -> None:
        self._write(offset, data.nbytes, partial(self._part(offset, data.nbytes).__setitem__, ..., data))

    def read(self, offset: int, out: Bytes) -> None:
        end = offset + out.nbytes
        part = self._open()[offset:end]
        if self._forms is None:
            out[...] = part
        if self._forms is not None:
            self._forms.read(offset, end, partial(out.__setitem__, ..., part))

    def write_by(self, offset: int, nbytes: int, work: Callable[[Bytes], None]) -> bool:
        self._write(offset, nbytes, partial(work, self._part(offset, nbytes)))
        return True

    def fill(self, offset: int, nbytes: int, byte: int) -> None:
        self._write(offset, nbytes, partial(self._part(offset, nbytes).fill, byte))

    def copy_from(self, source: Buffer, source_offset: int, offset: int, nbytes: int) -> None:
        target = self._part(offset, nbytes)
        if not isinstance(source, CpuBuffer):
            view = source.view()
            if view is None:
                self._write(offset, nbytes, partial(source.read, source_offset, target))
            else:
                part = view[source_offset : source_offset + nbytes]
                self._write(offset, nbytes, partial(target.__setitem__, ..., part))
            return
        if source is self and abs(source_offset - offset) < nbytes:
            self.forms  # noqa: B018  # they must not come midway: such a copy cannot be done twice
        # NumPy copies overlaps as memmove does.
        copy = partial(target.__setitem__, ..., source._part(source_offset, nbytes))
        try:
            if self._forms is None:
                if source._forms is None:
                    copy()
                if (other := source._forms) is not None:
                    other.read(source_offset, source_offset + nbytes, copy)
            if (mine := self._forms) is not None:
                write = partial(mine.write, offset, offset + nbytes, partial(self._change, copy))
                if source._forms is None:
                    write()
                if (other := source._forms) is not None:
                    first, second = sorted((mine, other), key=id)  # another thread may copy the other way
                    with first.lock, second.lock:
                        other.read(source_offset, source_offset + nbytes, write)
        finally:
            self._stamped()

    def _write(self, offset: int, nbytes: int, work: Callable[[], object]) -> None:
        """Does work that writes a range; does it again if the buffer gets forms meanwhile."""
        try:
            if self._forms is None:
                work()
            if self._forms is not None:
                self._forms.write(offset, offset + nbytes, partial(self._change, work))
        finally:
            self._stamped()

    def _change(self, work: Callable[[], object]) -> None:
        """Writes while no form can be filled. The stamp before the write counts if a signal breaks it off; the stamp
        after it is for steps that read by addresses, which take no lock and may have read in between."""
        self._stamped()
        work()

    def _part(self, offset: int, nbytes: int) -> Bytes:
        return self._open()[offset : offset + nbytes]

    def view(self) -> Bytes:
        if not self._viewed:
            with _MAKING.lock:  # either the thread that makes the forms sees the view, or this one sees the forms
                self._viewed = True
        if self._forms is not None:
            self._forms.keep_all()
        return self._open()

    def memory(self) -> Bytes:
        """The buffer's memory, whose contents may be stored in another order: call `forms.keep` before reading them."""
        return self._open()

    def settled(self) -> Bytes | None:
        """The memory, to be read at once; None where its contents may be stored in another order."""
        return self._open() if self._forms is None else None

    def place(self) -> int:
        """The memory's address, for a caller that holds the buffer and reads or writes at once; 0 where the contents
        may be stored in another order."""
        if self._forms is not None:
            return 0
        place = self._place
        if not place:
            place = self._place = address(self._open())
        return place

    def pin(self) -> Pin[Any]:
        pin = self._pin
        if pin is None:
            raise ArenaError("this buffer is closed; its memory may be another's by now")
        return pin

    def close(self) -> None:
        pin, self._pin = self._pin, None
        if pin is not None:
            self._bytes = _NONE
            if self._forms is not None:
                self._forms.close()
            pin.close()
            del pin  # unless a view still holds the pin, this was its last reference, and the block goes to the pool
            self._sweep()

    def __del__(self) -> None:
        # A finalizer must not call the pool: it may run while this very thread holds the pool's lock.
        pin = getattr(self, "_pin", None)
        if pin is not None:
            pin.close()

    def _open(self) -> Bytes:
        if self._pin is None:
            raise ArenaError("this buffer is closed; its memory may be another's by now")
        return self._bytes


class _Unpinned:
    """The pin of memory that does not return to a pool."""

    memory = None

    def close(self) -> None:
        """Does nothing: NumPy frees the memory with its last view."""


_UNPINNED = _Unpinned()


class SmallBuffer(CpuBuffer):
    """A buffer over NumPy memory, aligned or not, that no pool keeps; making and dropping it takes a third of a
    CpuBuffer's time. While it lives, `taken` has its size under its id. Memory from `Recent.take` (with `spare`) is
    given back to `Recent`."""

    __slots__ = ("_spare", "_taken")

    def __init__(self, memory: Bytes, taken: dict[int, int], spare: Spare | None = None) -> None:
        self._bytes = memory
        self._pin = _UNPINNED  # type: ignore[assignment]
        self._taken = taken
        self._forms = None
        self._spare = spare
        self._place = 0 if spare is None else spare[1]
        self._own, self.exposed, self._viewed, self.stamp = True, False, False, 0
        taken[id(self)] = memory.nbytes

    def pin(self) -> Pin[Any]:
        return Pin(self._open(), _nothing)

    def close(self) -> None:
        self._pin, self._bytes, self._spare = None, _NONE, None
        if self._forms is not None:
            self._forms.close()
        self._taken.pop(id(self), None)

    def __del__(self) -> None:
        self._taken.pop(id(self), None)
        spare = self._spare
        if spare is not None and getrefcount(self._bytes) == _UNSHARED:
            RECENT.leave(spare)


class Recent:
    """Small memory that dropped buffers have left and no view refers to, with its address: asking NumPy for an address
    takes longer than a small op. Any thread may call, and so may finalizers."""

    def __init__(self) -> None:
        self._by_size: dict[int, list[Spare]] = {}

    def leave(self, spare: Spare) -> None:
        """Keeps memory for `take` while there is room."""
        waiting = self._by_size.get(spare[0].nbytes)
        if waiting is not None and len(waiting) < _RECENT_EACH:
            waiting.append(spare)

    def take(self, nbytes: int) -> Spare:
        """Memory with old bytes, and its address. Requires: at most `RECENT_BYTES`."""
        try:
            return self._by_size[nbytes].pop()
        except (KeyError, IndexError):  # none of this size waits, or another thread took it
            pass
        if nbytes not in self._by_size:
            if len(self._by_size) >= _RECENT_SIZES:
                self._by_size.clear()
            self._by_size[nbytes] = []
        memory = np.empty(nbytes, np.uint8)
        return memory, address(memory)


RECENT = Recent()


def _nothing(memory: object) -> None:
    """Takes back memory that does not return to a pool: does nothing."""


class CpuArena(BufferArena):
    """A DeviceArena over host memory: every slot is a NumPy view."""

    def input_writer(self, node: int, dtype: DType, shape: tuple[int, ...]) -> Accessor:
        # A bound __setitem__ takes half the time of np.copyto.
        return self._accessor(partial(self._memory(node, dtype, shape).__setitem__, ...))

    def output_reader(self, node: int, dtype: DType, shape: tuple[int, ...], wanted: DType) -> Accessor:
        memory = self._memory(node, dtype, shape)
        if dtype != wanted and not dtype.is_float:
            raise DTypeError(f"output_reader: node {node} is stored as {dtype}, which is read as {dtype} only")
        return self._accessor(memory.copy if dtype == wanted else partial(rounded, memory, wanted.np))

    def view(self, node: int) -> Bytes | None:
        view, buffer = super().view(node), self.buffer(self.slot(node).segment)
        if isinstance(buffer, CpuBuffer) and not buffer.exposed:
            buffer.exposed = True
            buffer.written()
        return view

    def _memory(self, node: int, dtype: DType, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        nbytes, slot = self._fits(node, dtype, shape), self.slot(node)
        buffer = self.buffer(slot.segment)
        whole = buffer.memory() if isinstance(buffer, CpuBuffer) else buffer.view()
        assert whole is not None
        return whole[slot.offset : slot.offset + nbytes].view(dtype.np).reshape(dtype.array_shape(shape))

    def array(self, tensor: Tensor) -> npt.NDArray[Any]:
        """The tensor's slot as an array of its shape and dtype (of packed weights the bytes): a view, not a copy."""
        slot = self.slot(tensor.id)
        raw = self.view(tensor.id)
        assert raw is not None
        shape = slot.dtype.array_shape(tensor.shape)
        return raw[: slot.dtype.nbytes(tensor.shape)].view(slot.dtype.np).reshape(shape)
