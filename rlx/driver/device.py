"""The interface of a backend: DeviceInfo, Limits, and the protocols Backend, Device, Buffer and Executable."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from rlx.errors import UnsupportedOp
from rlx.host.other_attributes import explain
from rlx.ir import Graph, Node
from rlx.records import Record

if TYPE_CHECKING:
    from rlx.driver.memory.arena import DeviceArena
    from rlx.driver.memory.plan import MemoryPlan
    from rlx.driver.times import StepTime

Bytes = npt.NDArray[np.uint8]
DeviceKind = Literal["cpu", "integrated", "discrete", "virtual", "software"]
Support = Literal["native", "host"]
HOST, CUDA = 1, 2  # DLPack's numbers for kinds of memory
UNLIMITED = 1 << 62  # bytes of an allocation, for devices that state no limit


def address(array: npt.NDArray[Any]) -> int:
    """The address of an array's first element. `array.ctypes` imports, which fails while the interpreter ends."""
    pointer: int = array.__array_interface__["data"][0]
    return pointer


class Limits(NamedTuple):
    """The limits of a device, in bytes, threads and workgroup counts.

    `dynamic_shared_bytes`: the largest shared memory that a kernel may request, where that is more than
    `shared_bytes`; else 0."""

    max_alloc_bytes: int = UNLIMITED
    max_groups: tuple[int, int, int] = (65535, 65535, 65535)
    max_group_threads: int = 256
    shared_bytes: int = 32768
    subgroup: int = 32
    dynamic_shared_bytes: int = 0


class DeviceInfo(Record):
    """A device as `rlx devices` shows it.

    `features` name what kernels may use, such as "f16", "i8", "i64", "f64", "subgroup", "coopmat". `memory_bytes` is
    all of its memory. `packed`: kernels can access elements of less than 32 bits only in whole words. `dlpack` is
    DLPack's number for its kind of memory (HOST, CUDA, 7 for Vulkan, 12 for others). `uuid` is the same for one GPU
    under CUDA and under Vulkan; empty where the driver states none."""

    backend: str
    index: int
    name: str
    kind: DeviceKind
    memory_bytes: int
    driver: str
    features: frozenset[str] = frozenset()
    preserves_subnormals: bool = True
    packed: bool = False
    dlpack: int = 12
    uuid: bytes = b""

    @property
    def id(self) -> str:
        """The name the user gives: "cpu", "vulkan:0", "cuda:1"."""
        return "cpu" if self.backend == "cpu" else f"{self.backend}:{self.index}"

    def taken_bytes(self) -> int:
        """Bytes of the device that rlx holds in this process for programs, weights, states and Arrays.

        `Session.room` says which program holds what. Memory that waits in the pool to be used again is not counted."""
        from rlx.driver.registry import load_backend

        device = load_backend(self.backend).opened(self.index)
        return 0 if device is None else device.taken_bytes()

    def free_bytes(self) -> int | None:
        """Bytes that rlx could still acquire, given what all processes hold; None if the device does not report it.
        This opens no device."""
        from rlx.driver.registry import load_backend

        backend = load_backend(self.backend)
        device = backend.opened(self.index)
        return backend.free_bytes(self.index) if device is None else device.free_bytes()

    def __str__(self) -> str:
        free = self.free_bytes()
        said = "" if free is None else f", {free:,} free"
        return f"{self.id} ({self.name}): {self.taken_bytes():,} of {self.memory_bytes:,} bytes taken by rlx{said}"


explain(DeviceInfo)


class Buffer(Protocol):
    """Device memory, acquired from the pool (`Device.acquire`) or another library's (`Device.foreign`).

    Offsets and sizes are in bytes; callers have checked the ranges. Reads and writes by the host wait for work
    running on the device that uses the memory, and return once the bytes are copied. A buffer that is dropped without
    `close` returns its memory to the pool at a later call, once the work under way that uses it is done."""

    @property
    def nbytes(self) -> int: ...
    @property
    def address(self) -> int:
        """The address that kernels use (a device address; on the CPU an address of the process)."""
        ...

    def write(self, offset: int, data: Bytes) -> None: ...
    def read(self, offset: int, out: Bytes) -> None: ...
    def fill(self, offset: int, nbytes: int, byte: int) -> None: ...
    def write_by(self, offset: int, nbytes: int, work: Callable[[Bytes], None]) -> bool:
        """Calls `work` on the memory itself, perhaps twice, and returns True; `work` must write all of it. If the host
        cannot access the memory at full speed, does nothing and returns False."""
        ...

    def copy_from(self, source: Buffer, source_offset: int, offset: int, nbytes: int) -> None:
        """Copies on the device; ranges of one buffer may overlap (memmove).

        The copy comes after the work enqueued so far and before all later work, and the host need not wait for it: the
        buffers may be dropped before it is done. `source` may be memory of another device, read through the host."""
        ...

    def view(self) -> Bytes | None:
        """The memory itself as host bytes where the host can read and write it at full speed, else None.

        It must not be used after `close`, unless a `pin` is held."""
        ...

    def pin(self) -> object | None:
        """An object that, while it lives, keeps the memory mapped and out of the pool, also after `close`.

        None where there are no views. Raises: ArenaError after `close`."""
        ...

    def close(self) -> None:
        """Returns the memory to the pool; further use is an error. Idempotent."""
        ...


class Mark(Protocol):
    """A point in the order of a device's work: the work that was enqueued before it was made."""

    def done(self) -> bool:
        """Whether the work is complete; never waits. Raises: as `wait`."""
        ...

    def wait(self) -> None:
        """Returns when the work is complete. Raises: DeviceLost."""
        ...


class BuildOptions(NamedTuple):
    """Options for lowering a graph to steps.

    They are the `precision` of products, `threads` and `engine` of the CPU, the RLX_DEBUG level, whether each step of a
    run is `timed`, which costs a little, and `choices`: algorithms chosen by measurement, by problem (see
    `rlx.backends.gpu.program.candidates`). Rules choose the algorithms of all other problems."""

    precision: str = "f32"
    threads: int | None = None
    debug: int = 0
    timed: bool = False
    engine: str | None = None
    choices: Mapping[str, str] | None = None


class Dispatch(NamedTuple):
    """How one node runs, and the kernels that it launches (`steps`).

    `how` is "native", "alias" (no work: it shares its input's slot), "decomposed", "host" or "control" (it runs its
    bodies, whose nodes follow under its name). `within` names the node whose launch computes this one too, where equal
    launches became one. `by` says what runs a native node on the CPU: "engine" or "numpy"."""

    node: str
    op: str
    how: Literal["native", "alias", "decomposed", "host", "control"]
    steps: tuple[str, ...] = ()
    within: str = ""
    by: str = ""


class Borrowed(NamedTuple):
    """Another library's array as a device uses it: the address, shape and NumPy dtype of its row-major elements.

    `owner` keeps the memory allocated. `copied`: it is a copy, since the elements were not contiguous."""

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    owner: object
    copied: bool


class Imported(Protocol):
    """Memory of another driver's device as a device of the same GPU uses it, mapped until the last reference to this
    object is gone."""

    address: int


class Exported(Buffer, Protocol):
    """Memory that other drivers of the same GPU can use."""

    def imported(self, take: Callable[[int, int], Imported]) -> Imported:
        """The memory as another driver imports it. `take` is called once, with a handle, which it then owns, and the
        size of the allocation; its result is kept as long as the memory."""
        ...


@runtime_checkable
class Exporting(Protocol):
    """A device whose driver may lend memory to other drivers of the same GPU."""

    @property
    def exports(self) -> bool:
        """Whether this driver does."""
        ...

    def acquire_exported(self, nbytes: int) -> Exported:
        """Memory that other drivers can use, not cleared. Raises: OutOfDeviceMemory."""
        ...


@runtime_checkable
class Importing(Protocol):
    """A device whose driver uses memory of other drivers of the same GPU."""

    def import_memory(self, handle: int, nbytes: int) -> Imported:
        """Imports the memory behind a file descriptor and takes ownership of the descriptor. Raises: UnsupportedOp with
        the reason."""
        ...


class Executable(Protocol):
    """A lowered, recorded program bound to one arena."""

    dispatch: Sequence[Dispatch]

    def run(self) -> None:
        """Runs every step on the data in the arena and returns when the outputs are complete."""
        ...

    def quick(self) -> Callable[[], None]:
        """A call that does what `run` does, at the least cost. Requires: one call at a time, not within itself; none
        after `close`."""
        ...

    def begin(self) -> None:
        """Begins a run. The device may still be at work when this returns; later work of the device follows it."""
        ...

    def listing(self) -> list[str]:
        """Every step in order, one line each: its kernel or call, its size, and its node."""
        ...

    def timings(self, launches: bool = False) -> list[StepTime]:
        """Each step of the last run, in order; with `launches` also what the host did to launch them.

        Raises: UnsupportedOp unless it was built with `timed`, ArenaError before the first run."""
        ...

    def arenas(self) -> Iterator[DeviceArena]:
        """The arenas of control ops' bodies, at any depth."""
        ...

    def close(self) -> None: ...


class Call(Protocol):
    """A program whose inputs and outputs lie in memory that each call gives (`Device.build_call`)."""

    def begin(self, memory: Sequence[tuple[Buffer, int]]) -> None:
        """Begins a run on memory in the order of the segments that the program was built for: buffers of the device
        with the offsets at which the tensors lie, multiples of VIEW_ALIGNMENT. On the CPU the run is complete when this
        returns; elsewhere later work of the device follows it, and the buffers may be dropped at once: their memory is
        used again only by work behind it. Any thread may call. Requires: no output overlaps another or an input."""
        ...

    @property
    def fresh(self) -> Callable[[Sequence[int]], Callable[[list[int]], list[Buffer]]] | None:
        """Given the bytes of each output, returns a function that takes the list of input addresses. That function
        acquires memory for the outputs, appends its addresses to the list, begins a run, and returns the memory. None
        on devices where `begin` is as fast."""
        ...

    @property
    def own_bytes(self) -> int:
        """Bytes that it holds besides the memory of its plan."""
        ...

    def close(self) -> None: ...


class Device(Protocol):
    """An opened device."""

    info: DeviceInfo
    limits: Limits

    def acquire(self, nbytes: int, clear: bool = True) -> Buffer:
        """Memory from the pool, zero-filled if `clear`, else with arbitrary bytes. Raises: OutOfDeviceMemory."""
        ...

    def foreign(self, address: int, nbytes: int, owner: object) -> Buffer:
        """A buffer over memory of this device that another library allocated, at an address that kernels can use.

        `owner` is any object that keeps the memory allocated. It is kept until the buffer is closed or dropped and the
        device's work that uses the memory is done. Raises: UnsupportedOp where kernels take no such addresses."""
        ...

    def borrow(self, source: Any) -> Borrowed:
        """Another library's array in this device's memory; the device's later work is ordered after the array's writes.

        `source` has `__dlpack__` or an array interface. Raises: what that library raises, UnsupportedOp."""
        ...

    def lend(
        self,
        buffer: Buffer,
        offset: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        options: Mapping[str, Any],
    ) -> object:
        """A DLPack capsule over an array in a buffer of this device.

        Whoever consumes it holds the memory until it is done. `options` are those of `__dlpack__` that concern the
        stream and the version. Raises: BufferError where other libraries cannot use the memory."""
        ...

    def arena(self, plan: MemoryPlan, bound: Mapping[str, Buffer]) -> DeviceArena:
        """A zero-filled arena for the plan; `bound` are the segments of stores that the plan refers to."""
        ...

    def free_bytes(self) -> int:
        """Bytes that could still be acquired, as far as the device reports them."""
        ...

    def taken_bytes(self) -> int:
        """Bytes acquired and not returned to the pool; 0 once the device is closed."""
        ...

    def support(self, node: Node) -> Support:
        """Whether the node runs natively on this device or goes to the host."""
        ...

    def build(self, graph: Graph, plan: MemoryPlan, arena: DeviceArena, options: BuildOptions) -> Executable:
        """Lowers a legalized graph over a plan's slots and records it. Fills the "const" segment."""
        ...

    def build_call(
        self, graph: Graph, plan: MemoryPlan, bound: Mapping[str, Buffer], options: BuildOptions,
        segments: Sequence[str],
    ) -> Call | str:  # fmt: skip
        """Lowers a legalized graph over a plan's slots, like `arena` and `build`, into a call with its own scratch
        memory and constants. Each run gives the memory of `segments`, which hold its inputs and outputs
        (`plan(outside=)`); `bound` are the segments of stores. If the device cannot run the program this way, for
        example because of a host step or control flow, the result is the reason as text."""
        ...

    def follow(self, stream: int) -> None:
        """Lets all later work of the device wait for what is on the user's stream now. Raises: UnsupportedOp where the
        device has no streams."""
        ...

    def lead(self, stream: int) -> None:
        """Lets later work on the user's stream wait for the device's work enqueued so far. Raises: as `follow`."""
        ...

    def mark(self) -> Mark:
        """A mark after all work enqueued so far."""
        ...

    def synchronize(self) -> None: ...
    def close(self) -> None: ...


def no_streams(device: str) -> UnsupportedOp:
    """The error for a stream that was given to a device without any."""
    return UnsupportedOp(f"{device} has no streams; only sessions on CUDA take stream=")


class Backend(Protocol):
    """A family of devices; one object per package, found through the entry point group `rlx.backends`."""

    name: str

    def probe(self) -> list[DeviceInfo]:
        """The devices of this backend. Raises: DeviceUnavailable with the reason if the backend cannot be used."""
        ...

    def open(self, index: int) -> Device:
        """The device, opened once per process. Raises: DeviceUnavailable."""
        ...

    def opened(self, index: int) -> Device | None:
        """The device if this process has opened it and can use it."""
        ...

    def free_bytes(self, index: int) -> int | None:
        """Bytes that are free on a device that is not opened; None where only opening it would tell."""
        ...
