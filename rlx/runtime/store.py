"""Store: named tensors that outlive a run, held once on the device and shared by every executable that binds them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakMethod, WeakSet, ref

import numpy as np
import numpy.typing as npt

from rlx.driver import Buffer, Device, Slot, align
from rlx.driver.closing import Closing
from rlx.driver.device import Bytes
from rlx.driver.memory.chunked_buffer import ChunkedBuffer, Range
from rlx.driver.memory.typed import write_typed_from_f32
from rlx.dtypes import DType, DTypeLike, as_dtype
from rlx.errors import (
    ArenaError,
    DeviceUnavailable,
    DTypeError,
    GraphError,
    OutOfDeviceMemory,
    ShapeError,
    meant,
)
from rlx.host.locks import renewed
from rlx.ir import TensorType
from rlx.ir.values import LISTED, as_array, exactly
from rlx.packed import PackedArray
from rlx.runtime.array import Array, check_device
from rlx.runtime.outs import Out, check_out
from rlx.runtime.room import RoomFull, Rooms

if TYPE_CHECKING:
    from rlx.runtime.checks import Unread


class Lease:
    """The right of one recorded program to read a store's weights in the slots that they had at `version`.

    `let_go`, a method of the compiled graph, closes the program and so ends the lease, if the program is not running
    and has to be recorded anew anyway."""

    __slots__ = ("__weakref__", "_let_go", "version")

    def __init__(self, version: int, let_go: Callable[[], None]) -> None:
        self.version = version
        self._let_go = WeakMethod(let_go)

    def let_go(self) -> None:
        call: Any = self._let_go()
        if call is not None:
            call()


class _Left(NamedTuple):
    """A slot that a weight has left. Programs recorded at a version from `first` up to, but without, `end` read it."""

    region: ChunkedBuffer
    slot: Slot
    first: int
    end: int


class Store(Closing):
    """Named tensors on one device, which programs bind as weights or as states.

    The tensors that one program trains as its states another serves as its weights, in the same bytes. Give the same
    object to several `compile` calls to share it. `Weights` and `State` are stores whose messages say "weight" and
    "state".

    A tensor that a program binds as a state exists from then on (`reserve`), is zero until it is set, and keeps its
    dtype and slot. A tensor that is only bound as a weight and is declared f32 may be stored in f16 or bf16;
    `version` grows whenever one moves or changes dtype, and every executable bound to the store records itself anew
    before its next run. A `with` block closes the store: put it around the blocks of the executables.

    Any thread may use a store. Programs that bind it as states take turns, each for a whole run, while programs that
    only read it as weights do not wait for them; `set` and `get` come between any two steps of a run.

    Memory: a weight that changes dtype is written to its new slot first, so that a failure changes nothing. Its old
    slot is free once no recorded program can read it. Idle programs that could are closed at once; a running one
    keeps the slot until it is recorded anew or closed after its run, or another weight changes. A chunk without a
    slot returns to the pool. At its peak such a change takes the new weight beside the old one. Setting a whole f32
    store in half precision, one weight after the other, takes up to half as much memory again (old chunks return when
    their last weight has left), and half the memory in the end. `expect`, or the dtype given when a weight is first
    set, avoids the f32 slots altogether.
    """

    kind = "tensor"  # the noun for a tensor in messages
    unread: Unread | None = None  # the unread checks of launches that read or wrote the states
    _numbers = count()

    def __init__(self, device: Device) -> None:
        self.device = _opened(device, type(self).__name__)
        self.version = 0
        self.lock = renewed(self, "lock", threading.RLock)
        self.turn = renewed(self, "turn", threading.RLock)  # held during runs that use states; taken before `lock`
        limit, number = device.limits.max_alloc_bytes, next(Store._numbers)  # since a program may bind two stores
        self.rooms = Rooms(self)
        self.full = ChunkedBuffer(f"store{number}.", device.acquire, limit, self.rooms.spare, self.rooms.claim)
        self.half = ChunkedBuffer(f"half{number}.", device.acquire, limit, self.rooms.spare, self.rooms.claim)
        self._leases: WeakSet[Lease] = WeakSet()
        self._left: list[_Left] = []
        self._since: dict[str, int] = {}  # the version at which a tensor got its current slot
        self._types: dict[str, TensorType] = {}
        self._where: dict[str, Slot] = {}
        self._kept: dict[str, DType] = {}  # dtypes of tensors not yet set, from `expect`
        self._states: set[str] = set()  # tensors that a program binds as states: they never move
        self._lent: dict[str, ref[Array]] = {}
        self._viewed: set[str] = set()  # tensors that the host may write in place: they are not lent
        self._lengths: dict[str, int] = {}  # valid bytes of tensors that are not valid as a whole

    def __repr__(self) -> str:
        held = f"{len(self._where)} of {len(self._types)} set, {self.nbytes:,} bytes" if self._types else "empty"
        return f"{type(self).__name__}({held} on {self.device.info.id})"

    @property
    def nbytes(self) -> int:
        """Bytes acquired on the device."""
        return self.full.nbytes + self.half.nbytes

    @property
    def room_bytes(self) -> int:
        """Bytes that the tensors take, including copies reordered for the CPU's compiled programs."""
        return self.nbytes + self.full.extra_bytes + self.half.extra_bytes

    def _fitting(self, work: Callable[[], None]) -> None:
        """Calls `work`, which acquires memory; if a room is full, its idle programs give way one by one until it fits.

        Requires: the caller holds no store's lock: a program that gives way takes those of its stores."""
        while True:
            try:
                with self.lock:
                    work()
                return
            except RoomFull as full:
                if not full.room.evict():
                    raise

    def taking_back(self, names: Iterable[str]) -> Callable[[], None]:
        """A function that undoes what is declared and set for these tensors from now on.

        Requires: programs recorded in between with these tensors are closed before it is called."""
        with self.lock:
            new = {name for name in names if name not in self._where}
            unknown = {name for name in new if name not in self._types}
            changeable = set(names) - self._states
            kept = {name: self._kept[name] for name in new & self._kept.keys()}

        def take_back() -> None:
            with self.lock:
                for name in new & self._where.keys():
                    self.reclaim(name)
                    slot = self._where.pop(name)
                    self._region(slot).release(slot)
                    self._since.pop(name, None)
                    self._lengths.pop(name, None)
                    self.version += 1  # programs recorded with it then look for it again and report it as missing
                for name in new:
                    self._kept.pop(name, None)
                self._kept.update(kept)
                for name in unknown:
                    self._types.pop(name, None)
                self._states -= changeable
                self._expect()

        return take_back

    def declare(self, types: Mapping[str, TensorType]) -> None:
        """Declares tensors by name and type.

        Raises: ShapeError if one is declared here with another type; none is declared then."""
        with self.lock:
            self.check(types)
            self._types.update(types)
            self._expect()

    def reserve(self, types: Mapping[str, TensorType]) -> None:
        """Declares tensors that programs replace: new ones get slots of zeros, and all keep their slots.

        Raises: ShapeError if one is declared here with another type, DTypeError if one is stored in half precision,
        OutOfDeviceMemory; nothing is changed then."""
        self._fitting(lambda: self._reserve(types))

    def _reserve(self, types: Mapping[str, TensorType]) -> None:
        self.check(types, states=True)
        new = {name: t for name, t in types.items() if name not in self._where}
        self.full.expect(self.need(types))
        slots: dict[str, Slot] = {}
        try:
            for name, t in new.items():
                slots[name] = self.full.zeros(t.dtype, t.nbytes)
        except BaseException:
            for slot in slots.values():
                self.full.release(slot)
            raise
        self._where.update(slots)
        self._since.update(dict.fromkeys(slots, self.version))
        self._states.update(types)
        self._types.update(types)
        self._expect()

    def check(self, types: Mapping[str, TensorType], *, states: bool = False) -> None:
        """Checks that tensors can be declared with these types.

        Raises: ShapeError if a tensor has another type in this store; DTypeError if a state is stored here in a dtype
        other than its own."""
        for name, new in types.items():
            held = self._types.get(name, new)
            if held != new:
                raise ShapeError(f"{self.kind} {name!r} is {held} in the shared store, but {new} in this graph")
            slot = self._where.get(name)
            if states and slot is not None and slot.dtype != new.dtype:
                raise DTypeError(
                    f"{self.kind} {name!r} is kept as {slot.dtype} and cannot be a state, which is {new}; set it as "
                    f"{new.dtype} before"
                )

    def need(self, types: Mapping[str, TensorType]) -> int:
        """Bytes that tensors of these types will take, without those that are stored already."""
        kept = {name: self._kept.get(name, t.dtype) for name, t in types.items() if name not in self._where}
        return sum(align(dtype.nbytes(types[name].shape)) for name, dtype in kept.items())

    def expect(self, dtypes: Mapping[str, DTypeLike]) -> None:
        """Announces which weights will be stored in another dtype than the declared one.

        It is called before they are set, so that memory is acquired for these dtypes and no more."""
        with self.lock:
            self._kept.update((name, as_dtype(dtype)) for name, dtype in dtypes.items())
            self._expect()

    def _expect(self) -> None:
        full = half = 0
        for name, t in self._types.items():
            kept = self._kept.get(name, t.dtype)
            if name not in self._where and kept == t.dtype:
                full += align(t.nbytes)
            elif name not in self._where:
                half += align(kept.nbytes(t.shape))
        self.full.expect(full)
        self.half.expect(half)

    def set(self, name: str, data: npt.ArrayLike | PackedArray, dtype: DTypeLike | None = None) -> None:
        """Writes one tensor, which is then valid as a whole.

        A weight is stored as `dtype` (f16 or bf16 for an f32 weight; default: as declared). One of a packed dtype is
        given as a PackedArray. An rlx.Array of this device and the declared type is copied on the device.

        Raises: GraphError for an unknown name, ShapeError, DTypeError, OutOfDeviceMemory; nothing is changed then.
        """
        declared = self.type_of(name)
        kept = declared.dtype if dtype is None else as_dtype(dtype)
        held = data if isinstance(data, Array) and kept == declared.dtype and not kept.is_packed else None
        if held is not None:
            check_device(f"{self.kind} {name!r}", held, self.device)
            if held.type == declared:
                source = Range(held._held(), held._offset, held.nbytes)
                self._fitting(lambda: self._set(name, kept, source))
                if held._borrowed:  # the memory's owner may change it once this returns
                    self.device.synchronize()
                return
        array = check_array(f"{self.kind} {name!r}", data, declared)
        if kept != declared.dtype and not (declared.dtype.name == "f32" and kept.is_half):
            raise DTypeError(
                f"weight {name!r} is declared {declared.dtype} and cannot be kept as {kept}; an f32 weight may be "
                "kept as f16 or bf16"
            )
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if kept != declared.dtype:
            raw = write_typed_from_f32(array, kept)
        self._fitting(lambda: self._set(name, kept, raw))

    def place(self, name: str, dtype: DType) -> Callable[[Bytes], None]:
        """Gives an unset weight its slot for bytes of `dtype`; returns a function that writes the bytes, once.

        Any thread may call that function. Requires: no program uses the weight before."""
        self._fitting(lambda: self._set(name, dtype, None))
        slot = self.slot(name)
        return partial(self._region(slot).write_to, slot)

    @property
    def in_place(self) -> bool:
        """Whether `write_by` writes without a copy on this kind of device."""
        return self.device.info.kind != "discrete"

    def write_by(self, name: str, dtype: DType, work: Callable[[Bytes], None]) -> None:
        """Sets an unset weight: `work` writes its bytes as `dtype`; it may be called twice, see `Buffer.write_by`.

        Requires: no other thread uses the weight before this returns. Raises: as `set` and `work`; the weight is not
        set then."""
        take_back = self.taking_back([name])
        try:
            self._fitting(lambda: self._set(name, dtype, None))
            slot = self.slot(name)
            self._region(slot).write_by(slot, work)
        except BaseException:
            take_back()
            raise

    def put(self, name: str, dtype: DType, raw: Bytes) -> None:
        """Sets a weight to its bytes as `dtype`; as with `set`, no other thread sees it before they are written."""
        self._fitting(lambda: self._set(name, dtype, raw))

    def _set(self, name: str, kept: DType, raw: Bytes | Range | None) -> None:
        if kept != self._types[name].dtype and name in self._states:
            raise DTypeError(
                f"{self.kind} {name!r} is a state of a program and cannot be kept as {kept}; it stays "
                f"{self._types[name]}"
            )
        self.reclaim(name)
        try:
            self._keep(name, kept, raw)
        except RoomFull as full:
            raise RoomFull(f"{self.kind} {name!r} ({self._types[name]}): {full}", full.room) from full
        except OutOfDeviceMemory as error:
            largest = sorted(self._types.items(), key=lambda item: -item[1].nbytes)[:5]
            listed = "; ".join(f"{n} {t} {t.nbytes:,}" for n, t in largest)
            what = f"{self.kind} {name!r} ({self._types[name]})"
            raise OutOfDeviceMemory(f"{what}: {error}. Largest tensors: {listed}") from error
        self._lengths.pop(name, None)

    def _keep(self, name: str, kept: DType, raw: Bytes | Range | None) -> None:
        """Writes a weight: in place if it has the dtype already, else to a new slot. With `raw` None only the slot is
        made."""
        old = self._where.get(name)
        if old is not None and old.dtype == kept:
            if raw is not None:
                self._region(old).write_to(old, raw)
            return
        declared = self._types[name]
        region = self.full if kept == declared.dtype else self.half

        def ahead() -> int:
            """The bytes that weights which are not in this region yet would take in it."""
            held = {n for n, s in self._where.items() if self._region(s) is region}
            others = [t for n, t in self._types.items() if n not in held and t.dtype == declared.dtype]
            return sum(align(kept.nbytes(t.shape)) for t in others)

        if raw is None:
            slot = region.place(kept, kept.nbytes(declared.shape), ahead)
        else:
            slot = region.put(kept, raw, ahead)
        if old is None:
            expected = self._kept.get(name, declared.dtype)
            if expected != kept:  # `expect` counted it for another region or dtype
                of = self.full if expected == declared.dtype else self.half
                of.expect_less(align(expected.nbytes(declared.shape)))
        self._where[name] = slot
        self.version += 1
        if old is not None:
            self._left.append(_Left(self._region(old), old, self._since[name], self.version))
        self._since[name] = self.version
        for lease in tuple(self._leases):
            if any(left.first <= lease.version < left.end for left in self._left):
                lease.let_go()
        self._free_left()

    def _free_left(self) -> None:
        """Frees the slots that no recorded program can read any more."""
        still = []
        for left in self._left:
            if any(left.first <= lease.version < left.end for lease in self._leases):
                still.append(left)
            else:
                left.region.release(left.slot)
        self._left = still

    def lease(self, let_go: Callable[[], None]) -> Lease:
        """Notes that a program is recorded with the weights' current slots. `end` ends the lease."""
        with self.lock:
            lease = Lease(self.version, let_go)
            self._leases.add(lease)
            return lease

    def end(self, lease: Lease) -> None:
        """Ends a lease, because its program was closed. Idempotent."""
        with self.lock:
            self._leases.discard(lease)
            self._free_left()

    def slot(self, name: str) -> Slot:
        """The slot of a tensor. Raises: GraphError if it is unknown or has not been set."""
        if name not in self._where:
            self.type_of(name)
            raise GraphError(f"{self.kind} {name!r} has not been set; set_param({name!r}, array) does it")
        return self._where[name]

    def find(self, name: str) -> Slot | None:
        """The slot of a tensor, None while it has not been set or reserved."""
        return self._where.get(name)

    def missing(self, names: Iterator[str] | list[str]) -> list[str]:
        """The names of tensors that have not been set."""
        return [n for n in names if n not in self._where]

    def dtypes(self) -> dict[str, DType]:
        """The dtype in which each tensor is stored."""
        return {name: slot.dtype for name, slot in self._where.items()}

    def get(self, name: str, out: Out = "host") -> Any:
        """A copy of a tensor as it is stored: a NumPy array, or for packed weights a PackedArray; or an rlx.Array."""
        check_out("get", out)
        unread, self.unread = self.unread, None
        if unread is not None:
            unread.read()
        with self.lock:
            slot = self.slot(name)
            if out == "device":
                shape, buffer = self._types[name].shape, self.segments()[slot.segment]
                return Array(self.device, buffer, shape, slot.dtype, slot.offset).copy()
            return on_host(TensorType(self._types[name].shape, slot.dtype), self._region(slot).read_from(slot))

    def type_of(self, name: str) -> TensorType:
        """The type a tensor was declared with. Raises: GraphError for an unknown name."""
        if name not in self._types:
            near = meant(name, self._types)
            raise GraphError(f"there is no {self.kind} {name!r}; there are {_some(self._types)}{near}")
        return self._types[name]

    def offset(self, name: str) -> int:
        """A tensor's offset, in bytes from the start of the region that holds it."""
        with self.lock:
            slot = self.slot(name)
            return self._region(slot).offset(slot)

    def _region(self, slot: Slot) -> ChunkedBuffer:
        return self.half if slot.segment.startswith(self.half.prefix) else self.full

    def segments(self) -> dict[str, Buffer]:
        """Segment names and their memory, for binding to an arena."""
        return dict([*self.full.segments(), *self.half.segments()])

    # -- valid lengths

    def length(self, name: str) -> int:
        """The number of leading bytes of a tensor that are valid: all unless `set_length` set fewer."""
        with self.lock:
            return self._lengths.get(name, self.slot(name).nbytes)

    def set_length(self, name: str, nbytes: int) -> None:
        """Sets how many leading bytes are valid: a clone of a partly filled cache copies only these."""
        with self.lock:
            if not 0 <= nbytes <= self.slot(name).nbytes:
                raise ArenaError(
                    f"{self.kind} {name!r}: {nbytes} bytes of {self.slot(name).nbytes} cannot be valid"
                )
            self._lengths[name] = nbytes

    def replaced(self, names: Iterable[str]) -> None:
        """Notes that a run has given these states new values, which are valid as a whole."""
        if not self._lengths:  # the usual case, without the lock: a training step has hundreds of names
            return
        with self.lock:
            for name in names:
                self._lengths.pop(name, None)

    def copy_to(self, other: Store, names: Iterable[str] | None = None) -> None:
        """Copies the valid bytes of states (by default of all) into another store, on the device.

        The remaining bytes are zero if the slot is new in the other store."""
        with self.lock:
            types = {name: self._types[name] for name in (sorted(self._states) if names is None else names)}
        other.reserve(types)
        with self.lock, other.lock:
            mine, theirs = self.segments(), other.segments()
            for name in types:
                a, b, valid = self.slot(name), other.slot(name), self.length(name)
                other.reclaim(name)
                if valid:
                    theirs[b.segment].copy_from(mine[a.segment], a.offset, b.offset, valid)
                other.set_length(name, valid)

    # -- tensors lent as Arrays

    def lend(self, name: str) -> Array:
        """A tensor as an Array in the tensor's slot. It gets memory of its own when it is used, when the tensor is lent
        again, or before the slot is written."""
        with self.lock:
            self.reclaim(name)
            slot = self.slot(name)
            buffer = self.segments()[slot.segment]
            result = Array(self.device, buffer, self._types[name].shape, slot.dtype, slot.offset)
            result._lender = self._copy_out
            if name in self._viewed:
                self._copy_out(result)
                self.device.synchronize()  # the caller may write to the slot as soon as this returns
            else:
                self._lent[name] = ref(result)
            return result

    def viewed(self, slot: Slot) -> None:
        """Notes that the caller has a view of a slot's memory and may write it at any time: it is not lent again.

        Views of NumPy arrays keep their memory alive, so the store cannot know when the last one is gone."""
        with self.lock:
            for name, own in self._where.items():
                if own.segment == slot.segment and own.offset < slot.offset + slot.nbytes <= own.offset + own.nbytes:
                    self._viewed.add(name)
                    self.reclaim(name)

    def reclaim_each(self, names: Iterable[str]) -> None:
        """As `reclaim` of each name."""
        if self._lent:
            for name in names:
                self.reclaim(name)

    def reclaim(self, name: str, donated: object = None) -> bool:
        """Ends a loan before the slot is written: a lent Array that is still alive gets memory of its own.

        The Array `donated` is not copied out. Returns whether it is the one in the slot."""
        with self.lock:
            lent = self._lent.pop(name, None)
            array = None if lent is None else lent()
            if array is None or array._lender is None:
                return False
            if array is not donated:
                self._copy_out(array)
            return array is donated

    def _copy_out(self, array: Array) -> None:
        with self.lock:
            source = array._buffer
            if array._lender is not None and source is not None:
                buffer = self.device.acquire(max(array.nbytes, 1), clear=False)
                if array.nbytes:
                    buffer.copy_from(source, array._offset, 0, array.nbytes)
                array._buffer, array._offset, array._lender = buffer, 0, None

    def close(self) -> None:
        """Returns the memory to the pool; executables bound to the store must be closed before. Idempotent."""
        with self.lock:
            for name in tuple(self._lent):
                self.reclaim(name)
            self.full.close()
            self.half.close()
            self._where.clear()
            self._left.clear()
            self._lengths.clear()
            self.version += 1  # a program bound to it then looks for its weights and raises, instead of running


class Weights(Store):
    """The weights of one or more programs on one device.

    >>> weights = rlx.Weights(session.device)
    >>> one, two = session.compile(g, weights=weights), session.compile(h, weights=weights)
    >>> weights.set("w", array)  # a PackedArray where w is packed; both programs read it from their next run on
    """

    kind = "weight"


class State(Store):
    """The states of one or more programs on one device, such as a cache that two programs continue.

    >>> state = rlx.State(session.device)
    >>> prompt, step = session.compile(g, state=state), session.compile(h, state=state)
    """

    kind = "state"

def check_array(what: str, data: Any, expected: TensorType) -> npt.NDArray[np.generic]:
    """`data` as an array of exactly the expected shape and dtype; for packed weights the array of bytes.

    Python numbers and lists are converted. An array of another dtype is an error, since a conversion might round.

    Raises: ShapeError, DTypeError naming what came and what was expected.
    """
    if expected.dtype.is_packed:
        if not isinstance(data, PackedArray):
            raise DTypeError(
                f"{what}: expected a PackedArray of {expected}, got {type(data).__name__}; rlx.quantize makes one of "
                "floats, PackedArray.from_gguf of the blocks of a file"
            )
        if (data.dtype, data.shape) != (expected.dtype, expected.shape):
            error = ShapeError if data.dtype == expected.dtype else DTypeError
            raise error(f"{what}: expected {expected}, got {data!r}")
        return data.data
    array = as_array(data, what)
    if isinstance(data, LISTED):
        array = exactly(array, expected.dtype, what)
    elif array.dtype != expected.dtype.np:
        raise DTypeError(
            f"{what}: expected dtype {expected.dtype}, got {array.dtype}; convert it with "
            f".astype({expected.dtype.np.name!r}) if that is what you mean"
        )
    if array.shape != expected.shape:
        raise ShapeError(f"{what}: expected shape {expected.shape}, got {array.shape}")
    return array


def on_host(t: TensorType, raw: npt.NDArray[Any]) -> Any:
    """The bytes of a tensor as its array, or for packed weights as a PackedArray."""
    data = raw.view(t.dtype.np).reshape(t.array_shape)
    return PackedArray(t.dtype, t.shape, data) if t.dtype.is_packed else data


def _opened(device: Device, what: str) -> Device:
    if not hasattr(device, "acquire"):
        raise DeviceUnavailable(f"{what}: {device!r} is no opened device; give Session(...).device")
    return device


def _some(names: dict[str, TensorType]) -> str:
    listed = sorted(names)
    return (
        ", ".join(listed[:8]) + (f" and {len(listed) - 8} more" if len(listed) > 8 else "")
        if listed
        else "none"
    )
