"""Session: a device and the settings under which graphs are compiled for it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from rlx.driver import BuildOptions, Device, DeviceInfo
from rlx.driver.registry import open_device
from rlx.errors import DeviceUnavailable, DTypeError, GraphError, OutOfDeviceMemory, RlxError, meant
from rlx.host.other_attributes import explain
from rlx.ir import Graph
from rlx.runtime.keywords import keywords
from rlx.runtime.options import CompileOptions
from rlx.runtime.room import Room

if TYPE_CHECKING:
    from rlx.runtime.compiled import CompiledGraph
    from rlx.runtime.donation import Donate
    from rlx.runtime.store import Store

TIMINGS, VALUES = 3, 4  # levels of RLX_DEBUG

PRECISIONS = ("f32", "tf32", "f16", "bf16", "int8")
STORAGES = ("typed", "f32")


class Session:
    """Compiles graphs for one device.

    `device` is "auto" (CUDA, then a hardware Vulkan device, then the CPU; RLX_DEVICE overrides), "cpu", "vulkan",
    "cuda", or one with a number, such as "cuda:1". `precision` "f32" is honest float32; "tf32", "f16" and "bf16" let
    matrix products round their inputs; "int8" rounds the inputs of products with packed weights to 8 bits where the
    format allows integer products (see `rlx.packed_matmul`; `report()` names them packed_matmul_int8), and leaves all
    other products in f32. `fallback` applies to
    nodes that the device has no kernel for: "host" runs them with NumPy and `report()` lists them, "error" refuses to
    compile. `threads` limits the CPU's threads. `engine` chooses on the CPU between NumPy's kernels ("numpy") and the
    compiled ones, with NumPy's where there are none ("compiled"); None is what the environment's RLX_CPU says, or the
    default of `rlx.backends.cpu.choice`. A GPU takes no `engine`. `timings` measures each step of each run, for
    `CompiledGraph.timings()`.

    `memory_limit` is how many bytes of the device the session's programs may take together, with their weights and
    states: several models can share a device. Where a program does not fit, the least recently run ones give their
    memory back until their next run (see `rlx.runtime.room`); weights and states stay until their model is closed.
    `room` shows what is taken.

    `stream` is a CUDA stream of the caller's: one of CuPy or torch, or its address. A run begins after the work that
    was on the stream when it was started; work put on the stream after a run that left Arrays (`out="device"`,
    `launch`) begins after that run. The caller keeps the stream alive.

    `choices` are algorithms for the problems of a GPU's programs, taken from another session's `options.choices`, such
    as that of a mesh's first rank. None takes those of the tables that `rlx tune` keeps and that rlx ships, as they are
    when the session is made. A program keeps the choices that it was compiled with.

    Raises: DeviceUnavailable with the reason; RlxError for a setting out of range and an `engine` on a GPU;
    UnsupportedOp for a stream on another device than CUDA.
    """

    @keywords
    def __init__(
        self,
        device: str = "auto",
        *,
        precision: str = "f32",
        fallback: Literal["host", "error"] = "host",
        threads: int | None = None,
        engine: Literal["numpy", "compiled"] | None = None,
        timings: bool = False,
        memory_limit: int | None = None,
        stream: Any = None,
        choices: Mapping[str, str] | None = None,
    ) -> None:
        if precision not in PRECISIONS:
            near = meant(precision, PRECISIONS)
            raise DTypeError(f"precision {precision!r} is not one of {', '.join(PRECISIONS)}{near}")
        if fallback not in ("host", "error"):
            raise RlxError(f'fallback {fallback!r} is neither "host" nor "error"')
        if choices is not None and not (
            isinstance(choices, Mapping) and all(isinstance(x, str) for pair in choices.items() for x in pair)
        ):
            raise RlxError(
                f"choices {choices!r:.80} is no mapping of the lines of problems to those of candidates, as "
                "session.options.choices of another session is"
            )
        if threads is not None and (not isinstance(threads, int) or threads < 1):
            raise RlxError(
                f"threads {threads!r} is not a number of threads: 1 or more, None for all processors"
            )
        if engine not in (None, "numpy", "compiled"):
            raise RlxError(f'engine {engine!r} is neither "numpy" nor "compiled"')
        self.device = open_device(device)
        if engine is not None and self.device.info.kind != "cpu":
            raise RlxError(
                f'engine={engine!r} chooses the kernels of the CPU, and the session is on {self.device.info.id}; leave '
                'it out, or give device="cpu"'
            )
        self.room = Room(self.device, memory_limit)
        self.fallback = fallback
        self.stream = None if stream is None else stream_address(stream, self.device)
        debug = debug_level()
        if choices is None and self.device.info.kind != "cpu":
            from rlx.runtime.tuning.table import choices_for  # the CPU needs none of it

            choices = choices_for(self.device)
        timed = timings or debug >= TIMINGS
        self.options = BuildOptions(precision, threads, debug, timed, engine, choices)

    def __enter__(self) -> NoReturn:
        raise TypeError(
            "a session holds nothing to close, its programs do: with rlx.Session(device).compile(graph) as program"
        )

    def __exit__(self, *error: object) -> None: ...

    def __repr__(self) -> str:
        return f"Session({self.info.id}, precision={self.options.precision}, fallback={self.fallback})"

    def _repr_html_(self) -> str:
        """What notebooks show: the device, the settings, and what takes its memory."""
        from rlx.ir.picture import table  # imported where it is used, not by `import rlx`

        info = self.info
        about = [
            ("device", info.id), ("name", info.name), ("driver", info.driver),
            ("memory", f"{info.memory_bytes:,} bytes"), ("taken by rlx", f"{self.device.taken_bytes():,} bytes"),
            ("precision", self.options.precision), ("fallback", self.fallback),
        ]  # fmt: skip
        return f"<div>{table(['session', ''], about)}</div>"

    def __reduce__(self) -> tuple[Any, ...]:
        raise GraphError("a Session cannot be pickled or copied: it holds a device of its process; make another")

    @property
    def info(self) -> DeviceInfo:
        """The device's id, name, kind, memory, driver and features."""
        return self.device.info

    @keywords
    def compile(
        self,
        graph: Graph,
        *,
        weights: Store | None = None,
        state: Store | None = None,
        planner: Literal["reuse", "bump"] = "reuse",
        storage: Literal["typed", "f32"] = "typed",
        optimize: bool = True,
        donate: Donate = (),
    ) -> CompiledGraph:
        """Plans the graph for this device; the first run, or `prepare()`, records it.

        `weights` and `state` share tensors with other executables; the state of one may be the weights of another.
        `planner="bump"` gives every tensor its own slot, `storage="f32"` holds 8- and 16-bit tensors and bools as
        f32, `optimize=False` runs the graph as written.

        `donate` names inputs whose memory a run may overwrite by the outputs of the same types, such as a cache of keys
        and values: `("cache",)`, or `{"cache": "new_cache"}` to say which output. An rlx.Array given for such an input
        cannot be used any more, and the output takes its place: `exe.run({"cache": cache, ...}, "device")["new_cache"]`
        given to the next run is not copied, nor are rows of it that the program does not change. Programs with the same
        `state` store and the same name for the input pass it on to each other in the same way.

        Raises: GraphError, ShapeError, DTypeError, UnsupportedOp, OutOfDeviceMemory (before anything is allocated).
        """
        from rlx.runtime.compiled import (
            CompiledGraph,  # not imported at the top: a saved program that runs from the cache does not need it
        )
        from rlx.runtime.debug import say
        from rlx.runtime.donation import donated
        from rlx.runtime.store import State, Store, Weights

        if not isinstance(graph, Graph):
            raise GraphError(
                f"compile: expected a Graph, got {type(graph).__name__}; rlx.jit compiles functions"
            )
        for what, store, kind in (("weights", weights, Weights), ("state", state, State)):
            if store is not None and not isinstance(store, Store):
                raise GraphError(
                    f"compile: {what} is {type(store).__name__}; expected a store that executables share, an "
                    f"rlx.{kind.__name__}; set_params and set_state of what compile returns take arrays"
                )
            if store is not None and store.device is not self.device:
                raise GraphError(
                    f"compile: the {what} store is on {store.device.info.id}, the session on {self.info.id}; make "
                    "the store with session.device"
                )
        if storage not in STORAGES:
            raise GraphError(f"compile: storage {storage!r} is not one of {', '.join(STORAGES)}")
        graph, pairs = donated(graph, donate) if donate else (graph, {})
        weights, state = weights or Weights(self.device), state or State(self.device)
        build, room = self.options, self.room
        options = CompileOptions(planner, storage, optimize, self.fallback, build, room, stream=self.stream)
        if self.options.debug >= VALUES:
            # If there is memory for it, each node's result stays readable after the run.
            wanted, options = options, options._replace(build=self.options._replace(debug=TIMINGS))
            try:
                all_kept = wanted._replace(planner="bump", smaller=options)
                return CompiledGraph(graph, self.device, weights, state, all_kept, pairs)
            except OutOfDeviceMemory as error:
                say(f"RLX_DEBUG: results are not compared: {error}")
        if not hasattr(self.device, "warm_up"):
            return CompiledGraph(graph, self.device, weights, state, options, pairs)
        from rlx.runtime.warm import warmed

        with warmed(self.device, any(node.op.contracts for node in graph.nodes)):
            return CompiledGraph(graph, self.device, weights, state, options, pairs)


Target = str | Session
"""Where functions and models are compiled: a device's name, or a session."""


def precision_for(device: Target, precision: str | None) -> str:
    """The precision to compile for: for a device name `precision`, by default "f32"; for a session its own.

    Raises: DTypeError for another one beside a session."""
    if not isinstance(device, Session):
        return "f32" if precision is None else precision
    own = device.options.precision
    if precision is not None and precision != own:
        raise DTypeError(
            f"precision {precision!r} beside {device!r}: leave it out, or give a session of that precision"
        )
    return own


def stream_address(stream: Any, device: Device) -> int:
    """The address of a CUDA stream: an int, a stream of torch or CuPy, or any with `__cuda_stream__`.

    Raises: UnsupportedOp for a device without streams, DTypeError for what is no stream, DeviceUnavailable for one of
    another device."""
    result = stream
    if hasattr(stream, "__cuda_stream__"):  # the protocol of NVIDIA's libraries: (version, address)
        protocol = stream.__cuda_stream__
        result = (protocol() if callable(protocol) else protocol)[1]
    else:
        result = getattr(stream, "cuda_stream", getattr(stream, "ptr", stream))
    index = getattr(stream, "device_index", device.info.index)
    if type(result) is not int or result < 0:
        raise DTypeError(f"stream {stream!r} is no CUDA stream; give one of torch or CuPy, or its address")
    if index != device.info.index:
        raise DeviceUnavailable(f"the stream is on device {index}, the session on {device.info.id}")
    device.follow(result)  # it raises where there are no streams
    return result


def debug_level() -> int:
    """The level of RLX_DEBUG: 0 quiet, 1 plans, 2 launches, 3 timings, 4 each node against the float64 reference."""
    text = os.environ.get("RLX_DEBUG", "0")
    if not text.isdecimal() or int(text) > VALUES:
        raise RlxError(f"RLX_DEBUG={text!r} is not a level; levels are 0 to 4")
    return int(text)


explain(Session)
