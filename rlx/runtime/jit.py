"""jit: a Python function traced once for each set of input types, compiled and cached; grad: its gradient."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec, TypeVar, overload

import numpy as np

from rlx.autodiff import gradients
from rlx.dtypes import DType, as_dtype
from rlx.errors import DTypeError, GraphError, ShapeError, TracedValueError
from rlx.host.collector import paused
from rlx.host.locks import renewed
from rlx.host.other_attributes import explain
from rlx.ir import Graph, Tensor, apply
from rlx.ir.checks import visible
from rlx.ir.graph import TRACING, traced_graph
from rlx.ir.number import NumberTape, TracedNumber
from rlx.ir.types import is_index
from rlx.ops.complex_numbers import Complex, conjugated
from rlx.ops.pytree import flatten, unflatten
from rlx.ranks.place import PLACE
from rlx.runtime.arguments import (
    Call,
    Parameters,
    StaticNames,
    StaticNums,
    is_any_array,
    is_python_number,
    leaf_names,
)
from rlx.runtime.array import Array
from rlx.runtime.compiled import CompiledGraph
from rlx.runtime.keywords import keywords
from rlx.runtime.launch import Launch
from rlx.runtime.outs import Out, check_out
from rlx.runtime.ports import signature
from rlx.runtime.report import ReportOfCalls
from rlx.runtime.session import Session, Target, precision_for
from rlx.runtime.shared import SHARED
from rlx.runtime.trees import as_leaves, home

if TYPE_CHECKING:
    from rlx.runtime.bucketed_calls import BucketedCalls
    from rlx.runtime.buckets import FittedProgram, LengthReport
    from rlx.runtime.dims import Otherwise

CACHE_SIZE = 64
LARGE_CONSTANT = 1 << 20


class Traced(NamedTuple):
    """A traced call: its graph, the tape of its numbers, and the structure of its result.

    The graph has inputs with the names of the arguments (arrays, see `Parameters.input_names`), n0, n1, … (numbers from
    the tape) and outputs y0, y1, …; `names` are those of all leaves of the call; `out` is the structure of the
    resulting pytree and `results` its leaves, as names of outputs or slots of the tape; `constants` are constants of
    the graph that are inputs of its program, because functions with other values share it."""

    graph: Graph
    tape: NumberTape
    names: Sequence[str]
    out: Any
    results: list[str | int]
    constants: Mapping[str, Any] = {}

    def feeds(self, call: Call) -> tuple[dict[str, Any], list[Any]]:
        """The graph's inputs and the tape's slots for another call with the same key."""
        try:
            slots = self.tape.replay([a for a in call.leaves if is_python_number(a)])
        except Exception as error:
            error.add_note(f"{self.graph.name}: computed again from the numbers of this call")
            raise
        arrays = {n: a for n, a in zip(self.names, call.leaves, strict=True) if not is_python_number(a)}
        return {**arrays, **self.tape.feeds(slots), **self.constants}, slots

    def result(self, slots: Sequence[Any], made: Mapping[str, Any]) -> Any:
        """The function's result, from a run's outputs and the tape's slots."""
        return unflatten(self.out, [made[r] if isinstance(r, str) else slots[r] for r in self.results])


def trace(function: Callable[..., Any], call: Call, parameters: Parameters, built_in: bool = False) -> Traced:
    """Traces a call into a graph. With `built_in` its numbers become constants."""
    name = parameters.name
    graph = Graph(name)
    tape = NumberTape(graph)
    names = parameters.input_names(call)
    leaves: list[Any] = []
    for i, a in enumerate(call.leaves):
        if not is_python_number(a):
            leaves.append(graph.input(names[i], a.shape, _dtype(name, parameters.label(call.origins[i])[0], a)))
        else:
            leaves.append(a if built_in else tape.argument(a, *parameters.label(call.origins[i])))
    args, kwargs = unflatten(call.skeleton, leaves)
    before = dict(vars(args[0])) if parameters.method and args and hasattr(args[0], "__dict__") else None
    around, TRACING.graph = (TRACING.graph, TRACING.body), graph
    TRACING.body = None
    try:
        given = function(*args, **kwargs)
    except Exception as error:
        explained = _explained(error, [n for n in leaves if isinstance(n, TracedNumber)])
        if explained is None:
            raise
        raise explained from error
    finally:
        TRACING.graph, TRACING.body = around
    if before is not None:
        _unset(name, before, args[0])
    found: list[Any] = []
    out = flatten(given, found, is_any_array)
    if not found:
        raise GraphError(f"{name}: the function gave {given!r}, no tensor; return what it computes")
    # A number returned beside tensors is returned as Python's, so that it can be an argument of the next call.
    tensors = any(not isinstance(r, TracedNumber) for r in found)
    results: list[str | int] = []
    for r in found:
        if tensors and isinstance(r, TracedNumber) and r.tape is tape:
            results.append(r.slot)
        else:
            output = f"y{len(visible(graph.outputs))}"
            results.append(output)
            graph.output(output, r if isinstance(r, Tensor) else graph.constant(r))
    tape.closed = True
    for node in graph.nodes:
        if node.op.is_constant and node.output.type.nbytes > LARGE_CONSTANT:
            warnings.warn(
                f"{name}: a constant of {node.output.type.nbytes:,} bytes is built into the program; "
                "pass the array as an argument to share and update it",
                stacklevel=4,
            )
    return Traced(graph, tape, names, out, results)


def _unset(name: str, before: Mapping[str, Any], owner: Any) -> None:
    """Raises: TracedValueError where a method has set attributes of its object."""
    changed = [k for k, v in vars(owner).items() if k not in before or before[k] is not v]
    changed += [k for k in before if k not in vars(owner)]
    if changed:
        raise TracedValueError(
            f"{name}: the method sets self.{changed[0]}, which a traced call cannot: return the new value, and set it "
            f"where the method is called, as in `model.{changed[0]} = model.{name}(…)`"
        )


def _explained(error: Exception, numbers: Sequence[TracedNumber]) -> TracedValueError | None:
    """For an error about a traced number: one that says what to write instead. None for any other error."""
    text = str(error)
    if "TracedNumber" not in text or "static_arg" in text:
        return None
    static = " with ".join(dict.fromkeys(n.advice for n in numbers if n.label in text or "TracedNumber(" not in text))
    return TracedValueError(
        f"{text}; a TracedNumber is a Python number whose value comes with each call: {static} builds a program for "
        "each value of it"
    )


def _dtype(name: str, label: str, array: Any) -> DType:
    try:
        return as_dtype(array.dtype)
    except DTypeError as error:
        raise DTypeError(f"{name}: {label}: {error}; convert it with .astype") from None


P = ParamSpec("P")
R = TypeVar("R", covariant=True)
_Runs = dict[Any, Callable[[Sequence[Any]], Any] | bool | None]


class Jitted(Generic[P, R]):
    """The result of `jit`: call it with arrays.

    `graph(*args)` is the traced program; `cache_info()` counts the cached programs."""

    _shares = False  # whether functions with the same graph share its programs (rlx.runtime.shared)

    def __init__(
        self,
        function: Callable[P, R],
        device: Target,
        precision: str | None = None,
        static_argnums: StaticNums = (),
        static_argnames: StaticNames = (),
        what: str = "jit",
        out: Out = "host",
        donate: StaticNames = (),
        dims: Mapping[str, Any] | None = None,
        otherwise: Otherwise = "error",
    ) -> None:
        check_out(what, out)
        self._out: Out = out
        self._donate = (donate,) if isinstance(donate, str) else tuple(donate)
        functools.update_wrapper(self, function)
        self._function = function
        named = device.info.id if isinstance(device, Session) else device
        self._parameters = Parameters(what, function, static_argnums, static_argnames, named)
        self._name = self._parameters.name
        self._device = named
        self._precision = precision_for(device, precision)
        self._session = device if isinstance(device, Session) else None
        self._cache: OrderedDict[Any, tuple[CompiledGraph, Traced]] = OrderedDict()
        self._lock = renewed(self, "_lock", threading.Lock)
        if dims is not None and self._donate:
            raise GraphError(
                f"{self._name}: donate={list(self._donate)} beside dims: arrays of lengths that vary are copied, "
                "so that none can be overwritten; leave out dims, or donate"
            )
        # By the types of arguments that are arrays and numbers, runs on their memory (rlx.runtime.eager.direct).
        # The second call makes one: False after the first, None where it cannot be; no dict for functions without any.
        self._direct: _Runs | None = None
        self._begins: _Runs = {}  # launches on a GPU, by the same keys (rlx.runtime.eager.direct_launch)
        static = self._parameters.nums or self._parameters.names
        if self._session is None and not self._donate and dims is None and not static:
            self._direct = {}
        self._calls: BucketedCalls[Traced] | None = None
        if dims is not None:
            from rlx.runtime.bucketed_calls import BucketedCalls

            self._calls = BucketedCalls(self._parameters, dims, otherwise)

    # The first overload is for calls within a traced function; elsewhere arrays are given in place of tensors.
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

    @overload
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        runs = self._direct
        key = None if runs is None or kwargs else _plain_key(args)
        if key is not None and runs is not None:
            run = runs.get(key)
            if callable(run):
                return run(args)
        call = self._parameters.take_apart(args, kwargs)
        home = traced_graph()
        if home is not None or any(isinstance(a, Tensor) for a in call.leaves):  # inlined in a trace
            if home is not None:  # arrays become constants of the graph being traced
                known = [isinstance(a, Tensor) or is_python_number(a) for a in call.leaves]
                call.leaves = [a if k else home.constant(a) for a, k in zip(call.leaves, known, strict=True)]
            args, kwargs = unflatten(call.skeleton, call.leaves)
            return self._function(*args, **kwargs)
        exe, traced = self._compiled(call)
        ending = sys.is_finalizing()  # nothing is imported while the interpreter ends
        if runs is not None and key is not None and not ending and isinstance(exe, CompiledGraph) and _again(runs, key):
            from rlx.runtime.eager import direct  # it imports this module

            run = runs[key] = direct(exe, traced, args, call.leaves, self._out)
            if run is not None:
                return run(call.leaves)
        feeds, slots = traced.feeds(call)
        return traced.result(slots, exe.run(feeds, self._out))

    def launch(self, *args: P.args, **kwargs: P.kwargs) -> Launch[Any]:
        """Begins a call and returns while the device is at work, as `CompiledGraph.launch` does: `results`, and what
        `wait` returns, are the function's results, with rlx.Arrays for its arrays.

        Raises: as a call, before anything is written; GraphError within another traced function."""
        key = None if self._direct is None or kwargs else _plain_key(args)
        begin = self._begins.get(key)
        begun: Launch[Any] | None = begin(args) if callable(begin) else None
        if begun is not None:
            return begun
        call = self._parameters.take_apart(args, kwargs)
        if any(isinstance(a, Tensor) for a in call.leaves):
            raise GraphError(f"{self._name}: launch begins a run; within a traced function call {self._name} itself")
        exe, traced = self._compiled(call)
        if key is not None and isinstance(exe, CompiledGraph) and _again(self._begins, key):
            from rlx.runtime.eager import direct_launch  # it imports this module

            begin = self._begins[key] = direct_launch(exe, traced, call.leaves)
        feeds, slots = traced.feeds(call)
        return exe.launch(feeds).arranged(functools.partial(traced.result, slots))

    def __repr__(self) -> str:
        return f"jit({self._name}, device={self._device!r}, {len(self._cache)} programs cached)"

    def __reduce__(self) -> tuple[Any, ...]:
        raise GraphError(
            f"{self!r} cannot be pickled or copied: it holds programs of its process; pickle the function, and jit it "
            "where it is read"
        )

    def graph(self, *args: Any, **kwargs: Any) -> Graph:
        """The program traced for these arguments, without compiling it."""
        return self._graph(args, kwargs)

    def graph_of_values(self, *args: Any, **kwargs: Any) -> Graph:
        """Like `graph`, with the numbers among the arguments built in as constants."""
        return self._graph(args, kwargs, built_in=True)

    def _graph(self, args: Any, kwargs: Any, built_in: bool = False) -> Graph:
        return trace(self._function, self._parameters.take_apart(args, kwargs), self._parameters, built_in).graph

    def save(self, path: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Writes the program for these arguments to a file, as `CompiledGraph.save` does. `rlx.load_program` gives a
        CompiledGraph, whose inputs have the names of the function's parameters ("x"; of arrays in containers "x.0" or
        "params.w"; of numbers n0, n1, …) and whose outputs are y0, y1, …, as `graph` of these arguments shows."""
        program = self._compiled(self._parameters.take_apart(args, kwargs))[0]
        if not isinstance(program, CompiledGraph):
            raise GraphError(f"{self._name}: a program for varying lengths (dims) is not saved; jit it without dims")
        program.save(path)

    def cache_info(self) -> dict[str, int]:
        """The number of cached programs, and the limit."""
        return {"size": len(self._cache), "max_size": CACHE_SIZE}

    def report(self) -> LengthReport | ReportOfCalls:
        """How the nodes of each cached program run, and its memory plan; with `dims` the programs for the buckets, how
        often each ran, and what the padding cost.

        Raises: GraphError before the first call, as there is no program yet."""
        if self._calls is not None:
            return self._calls.buckets.report()
        with self._lock:
            cached = [exe for exe, _ in self._cache.values()]
        if not cached:
            raise GraphError(f"{self._name}: no program is compiled yet; call it first, then ask for its report")
        return ReportOfCalls(self._name, [(exe.graph, exe.report()) for exe in cached])

    def _repr_html_(self) -> str:
        """What notebooks show: the programs, by their types."""
        from html import escape

        from rlx.ir.picture import listed, table

        with self._lock:
            cached = [signature(exe.graph) for exe, _ in self._cache.values()]
        rows = [(listed(given), listed(made)) for given, made in cached]
        return f"<div><p>{escape(repr(self))}</p>{table(['arguments', 'results'], rows) if rows else ''}</div>"

    def __set_name__(self, owner: type, name: str) -> None:
        self._parameters.method = True

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """The function as a method: called with the object as its first argument."""
        return self if instance is None else JittedMethod(self, instance)

    def _compiled(self, call: Call) -> tuple[CompiledGraph | FittedProgram, Traced]:
        if self._calls is not None:
            return self._calls.program(call, self._traced, lambda graph, _: self._compile(graph))
        key = call.key()
        if PLACE.mesh is not None:  # a program with collectives belongs to one rank
            key = (key, PLACE.mesh, PLACE.rank)
        with self._lock:
            if key not in self._cache:
                with paused():
                    self._cache[key] = self._made(call)
                if len(self._cache) > CACHE_SIZE:
                    # Not closed here: another thread may be about to run it. Its memory is freed with its last user.
                    self._cache.popitem(last=False)
            self._cache.move_to_end(key)
            return self._cache[key]

    def _made(self, call: Call) -> tuple[CompiledGraph, Traced]:
        traced = trace(self._function, call, self._parameters)
        if self._shares:
            if self._session is None:
                self._session = Session(self._device, precision=self._precision)
            settings = self._session.device, self._session.options, os.environ.get("RLX_CPU")
            program, constants = SHARED.program(traced.graph, settings, self._compile)
            traced = traced._replace(constants=constants)
        else:
            program = self._compile(traced.graph, self._donated(call))
        traced.graph.traced = True
        return program, traced

    def _traced(self, call: Call) -> tuple[Graph, Traced]:
        from rlx.passes import without_rules  # imported with the first program, not by `import rlx`

        traced = trace(self._function, call, self._parameters)
        return without_rules(traced.graph), traced

    def _compile(self, graph: Graph, donate: Sequence[str] = ()) -> CompiledGraph:
        import logging  # imported with the first program, not by `import rlx`

        if self._session is None:
            self._session = Session(self._device, precision=self._precision)
        types = ", ".join(str(t.type) for t in graph.inputs.values())
        logging.getLogger("rlx.jit").info("compiling %s for %s", self._name, types)
        return self._session.compile(graph, donate=donate)

    def _donated(self, call: Call) -> list[str]:
        """The names of the graph's inputs that hold arrays of donated arguments."""
        asked = {self._parameters.argument(o) for o in call.origins} & set(self._donate)
        if len(asked) < len(self._donate):
            missing = sorted(set(self._donate) - asked)
            raise GraphError(f"jit: donate names {missing}, which are no arguments of {self._name} with arrays")
        return [
            name
            for name, o, leaf in zip(self._parameters.input_names(call), call.origins, call.leaves, strict=True)
            if self._parameters.argument(o) in asked and not is_python_number(leaf)
        ]


def _again(runs: _Runs, key: Any) -> bool:
    """Whether a call is the second with its key, which makes a run for those after it. Notes the first."""
    if key not in runs:
        if len(runs) >= CACHE_SIZE:
            runs.clear()
        runs[key] = False
        return False
    return runs[key] is False


def _plain_key(args: Sequence[Any]) -> tuple[Any, ...] | None:
    """The types of arguments that are Arrays of one device, NumPy's arrays and Python's numbers, by which a call
    outside a trace is told from others; None for any other call."""
    if TRACING.graph is not None or TRACING.body is not None or PLACE.mesh is not None:
        return None
    device: Any = None
    parts: list[Any] = []
    for x in args:
        kind: Any = type(x)
        if kind is Array:
            if device is None:
                device = x.device
            elif x.device is not device:
                return None
            t = x.type
            parts.append((t.shape, t.dtype.name))
        elif kind is np.ndarray:
            parts.append((x.shape, x.dtype))
        elif kind is float or kind is int:
            parts.append(kind)
        else:
            return None
    return device, *parts


def tracing() -> bool:
    """Whether this thread traces a function."""
    return TRACING.body is not None or TRACING.graph is not None


class Shared(Jitted[P, R]):
    """A function that is usually made anew for each call: all functions with the same graph share its programs."""

    def __init__(self, function: Callable[P, R], device: Target, *settings: Any) -> None:
        super().__init__(function, device, *settings)
        self._shares = self._session is None and self._calls is None
        self._direct = None  # the programs are not this function's own


class Transformed(Shared[P, R]):
    """A differentiated or mapped function: compiled for arrays, and always inlined in a traced function, since it may
    close over tensors. Inlined, its arguments are copied to new tensors, so that a derivative with respect to an
    argument leaves out uses of the same tensor that the function closes over."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves: list[Any] = []
        skeleton = flatten((args, kwargs), leaves)
        if not tracing() and not any(isinstance(t, Tensor) for t in leaves):
            return super().__call__(*args, **kwargs)
        own = [
            apply("cast", t, dtype=t.dtype) if isinstance(t, Tensor) and t.weak is None and t.dtype.is_float else t
            for t in leaves
        ]
        args, kwargs = unflatten(skeleton, own)
        return self._function(*args, **kwargs)


explain(Jitted)


class JittedMethod:
    """A jitted function as the method of an object, which comes first among its arguments.

    The arrays among the object's attributes, at any depth, are arguments of each call; everything else in it is built
    in, one program for each value. `launch`, `graph`, `save`, `report` and the rest are those of `Jitted`."""

    def __init__(self, jitted: Jitted[Any, Any], instance: Any) -> None:
        self.__self__ = instance
        self.__func__ = self.__wrapped__ = jitted
        self.__name__, self.__doc__ = jitted._name, jitted.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__func__(self.__self__, *args, **kwargs)

    def save(self, path: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """As `Jitted.save`."""
        self.__func__.save(path, self.__self__, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.__func__, name)
        if name in ("launch", "graph", "graph_of_values"):
            return functools.partial(attribute, self.__self__)
        return attribute

    def __repr__(self) -> str:
        return f"{self.__func__!r} of a {type(self.__self__).__name__}"


def _statics(skeleton: Any) -> Iterator[Any]:
    """The static values in a pytree structure."""
    if skeleton[0] == "static":
        yield skeleton[1].value
    elif skeleton[0] != "leaf":
        for part in skeleton[1]:
            yield from _statics(part[1] if skeleton[0] == "dict" else part)


def _check_function(what: str, function: Any) -> None:
    if not callable(function):
        raise GraphError(
            f'{what}: expected a function, got {function!r}; options go by name, as in {what}(f, device="cpu")'
        )


@overload
def jit(
    function: Callable[P, R],
    *,
    device: Target = "auto",
    precision: str | None = None,
    static_argnums: StaticNums = (),
    static_argnames: StaticNames = (),
    out: Out = "host",
    donate: StaticNames = (),
    dims: Mapping[str, Any] | None = None,
    otherwise: Otherwise = "error",
) -> Jitted[P, R]: ...


@overload
def jit(
    function: None = None,
    *,
    device: Target = "auto",
    precision: str | None = None,
    static_argnums: StaticNums = (),
    static_argnames: StaticNames = (),
    out: Out = "host",
    donate: StaticNames = (),
    dims: Mapping[str, Any] | None = None,
    otherwise: Otherwise = "error",
) -> Callable[[Callable[P, R]], Jitted[P, R]]: ...


@keywords
def jit(
    function: Callable[..., Any] | None = None,
    *,
    device: Target = "auto",
    precision: str | None = None,
    static_argnums: StaticNums = (),
    static_argnames: StaticNames = (),
    out: Out = "host",
    donate: StaticNames = (),
    dims: Mapping[str, Any] | None = None,
    otherwise: Otherwise = "error",
) -> Any:
    """Compiles a function of arrays: traced once for each set of argument shapes and dtypes, then cached.

    Arguments, also in nested tuples, lists, dicts, dataclasses and classes that `rlx.tree` knows, are of three kinds.
    Arrays, of NumPy or of any library with DLPack or `__array__`, are read anew at each call. Python's ints and floats
    are new in each call too, so a learning rate may change; like constants they take the dtype of the tensors beside
    them (`x * rate` keeps x's), arithmetic among them is Python's, and those returned beside arrays are returned as
    Python's. Bools, strings, dtypes, functions, enums, None and frozen dataclasses without arrays are static: built
    into the program, one program for each value. Objects that compare by identity are refused, since a change inside
    them would go unnoticed. `static_argnames` (or `static_argnums`, by position) names arguments that are static as a
    whole; numbers that make a shape, an axis or a Python loop must be.

    Results are NumPy arrays; with `out="device"` they are rlx.Arrays, which stay on the device and may be arguments of
    the next call. `donate` names arguments whose arrays results of the same types may replace, such as a cache or the
    parameters that a training step returns anew: an rlx.Array given for one cannot be used any more, and the result
    that took its place is not copied when it is given to the next call (see `Session.compile`).

    What the function closes over is read while it is traced: arrays there become constants (with a warning above
    1 MiB), and later changes of them are not seen. Arrays among the attributes of a method's object, at any depth, are
    arguments of each call, and all else in it is built in. The cache holds 64 programs and logs every compile to the
    logger "rlx.jit". Use it as `@rlx.jit` or `@rlx.jit(device="vulkan")`, for functions and methods. `report()` says
    how each cached program runs.

    `device` is a name, or a `Session`, whose options then apply: several functions, and ONNX models, share the
    `memory_limit` of one session. `precision` is that of `Session`, "f32" by default, and a given session's own.

    `dims` names axes whose length varies: `dims={"x": (rlx.Dim("batch", max=64), None), "y": ("batch",)}`. An argument
    has a tuple with one entry for each axis, a dict of axes by number, or a Dim alone for the first axis; a dict of
    arrays has a dict of these. `dims` excludes `donate`, `save` and `launch`. One program serves each bucket of lengths
    (1, 2, 4 … 64): arrays are padded with zeros to the bucket's size, sums and other ops that combine elements along
    such an axis are masked, and results are cut to the true length. They equal those of a program of just that length,
    except for the order of sums. The function is traced once for each length, which takes milliseconds, and the graph
    compared with the bucket's; so numbers and constants made from `x.shape` are right. An op that cannot be masked
    raises UnsupportedOp with its name; `otherwise="exact"` compiles a program for each length instead. `report()` says
    which programs there are and what they cost.

    Raises: GraphError for static names that the function does not have. When called: the errors of the ops and of
    `Session`; GraphError for an argument that is refused and for a function that returns no tensor; TracedValueError
    for a number, not static, whose value is needed while tracing; DTypeError for an array that cannot be read or
    whose dtype rlx does not have.
    """
    if function is None:
        return functools.partial(
            jit, device=device, precision=precision, static_argnums=static_argnums, static_argnames=static_argnames,
            out=out, donate=donate, dims=dims, otherwise=otherwise,
        )  # fmt: skip
    _check_function("jit", function)
    return Jitted(
        function, device, precision, static_argnums, static_argnames, "jit", out, donate, dims, otherwise
    )


@keywords
def grad(
    fun: Callable[P, Any],
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    *,
    device: Target = "auto",
    static_argnums: StaticNums = (),
    static_argnames: StaticNames = (),
    out: Out = "host",
    dims: Mapping[str, Any] | None = None,
    otherwise: Otherwise = "error",
) -> Jitted[P, Any]:
    """The gradient of a scalar-valued function of arrays with respect to the arguments `argnums`.

    The function works on arrays (compiled and cached like `jit`, with its rules for arguments) and inside a traced
    function. An argument may be a pytree of tuples, lists and dicts of arrays; its gradient has the same structure. A
    Python float in it counts as an f32 of rank 0. With `has_aux` the function returns (scalar, auxiliary value), and
    the gradient function (gradient, auxiliary value). `device`, `out`, `dims` and `otherwise`: as in `jit`; padding
    adds nothing to a gradient.
    Raises: ShapeError if the function's result is not a scalar, GraphError for an argument that does not exist or has
    no array, and the errors of `gradients`.
    """
    both = _value_and_grad("grad", fun, argnums, has_aux)

    @functools.wraps(fun)
    def gradient(*args: P.args, **kwargs: P.kwargs) -> Any:
        value, found = both(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return Transformed(gradient, device, None, static_argnums, static_argnames, "grad", out, (), dims, otherwise)


@keywords
def value_and_grad(
    fun: Callable[P, R],
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    *,
    device: Target = "auto",
    static_argnums: StaticNums = (),
    static_argnames: StaticNames = (),
    out: Out = "host",
    dims: Mapping[str, Any] | None = None,
    otherwise: Otherwise = "error",
) -> Jitted[P, tuple[R, Any]]:
    """What a scalar-valued function returns, and its gradient as `grad` gives it: (value, gradient), in one program.

    With `has_aux` the function returns (scalar, auxiliary value), and this gives ((scalar, auxiliary value), gradient),
    as JAX's. Other arguments and errors: as `grad`.
    """
    made = _value_and_grad("value_and_grad", fun, argnums, has_aux)
    return Transformed(made, device, None, static_argnums, static_argnames, "value_and_grad", out, (), dims, otherwise)


def _value_and_grad(
    what: str, function: Callable[P, R], argnums: int | tuple[int, ...], has_aux: bool
) -> Callable[P, tuple[R, Any]]:
    _check_function(what, function)
    numbers = argument_numbers(what, argnums)
    name = getattr(function, "__name__", type(function).__name__)

    @functools.wraps(function)
    def made(*args: Any, **kwargs: Any) -> Any:
        wrt: list[Any] = []
        given = list(args)
        check_twice(what, numbers, len(args))
        skeletons = [_differentiated(what, function, given, i, wrt) for i in numbers]
        runs = TRACING.runs
        returned: Any = function(*given, **kwargs)
        result = returned
        if has_aux:
            if not isinstance(returned, tuple) or len(returned) != 2:
                raise ShapeError(
                    f"{what}: with has_aux {name} must return two things, the scalar first; got {returned!r}"
                )
            result = returned[0]
        if isinstance(result, TracedNumber):
            result = result.concrete()
        if not isinstance(result, Tensor) or result.shape != ():
            raise ShapeError(f"{what}: {name} must give a rank-0 tensor, it gave {_instead(result)}")
        if TRACING.runs != runs and not _depends(result, wrt):
            raise GraphError(
                f"{what}: what {name} gives depends on none of its arguments, only on what a compiled program or a "
                "model gave, whose runs give arrays without gradients; write that part as functions of rlx on the "
                "arguments, or run it before and pass what it gives as an argument"
            )
        found = gradients(result, wrt)
        trees = [conjugated(unflatten(skeleton, found)) for skeleton in skeletons]
        return returned, trees[0] if is_index(argnums) else tuple(trees)

    return made


def argument_numbers(what: str, argnums: Any) -> tuple[Any, ...]:
    """`argnums` as a tuple. Raises: GraphError unless it is an int, a tuple or a list."""
    if is_index(argnums):
        return (argnums,)
    if not isinstance(argnums, tuple | list):
        raise GraphError(f"{what}: argnums is {argnums!r}; expected an int or a tuple of them")
    return tuple(argnums)


def check_twice(what: str, numbers: Sequence[Any], count: int) -> None:
    """Raises: GraphError if two numbers name the same one of `count` arguments: its derivative would be split."""
    places = [i % count for i in numbers if is_index(i) and count]
    if len(set(places)) < len(places):
        raise GraphError(f"{what}: argnums is {tuple(numbers)}, which names an argument twice; name each once")


def _own(t: Tensor) -> Tensor:
    """The tensor to differentiate by. A number gets a new tensor, which its other uses do not share."""
    return t if t.weak is None else apply("cast", t.concrete(), dtype=t.dtype)


def _instead(result: Any) -> str:
    """For errors: what a function returned instead of a scalar, and what to write."""
    if isinstance(result, Tensor):
        return f"{result.shape}; sum it first"
    if isinstance(result, tuple):
        return "tuple; with has_aux=True it may return more beside it"
    kind = type(result).__name__
    if isinstance(result, Complex):
        return f"{result.dtype}{list(result.shape)}; take rlx.real or rlx.abs of it, and sum that"
    if np.ndim(result) if isinstance(result, np.ndarray | Array) else isinstance(result, list | dict | NoneType):
        return f"{kind}; return one number, such as rlx.sum(…)"
    return f"{kind}, which depends on no argument; compute it of the arguments, by functions of rlx"


def _depends(result: Tensor, wrt: Sequence[Tensor]) -> bool:
    """Whether the result depends on any of these tensors."""
    wanted, seen, waiting = {t.id for t in wrt}, set[int](), [result]
    while waiting:
        t = waiting.pop()
        if t.id in wanted:
            return True
        if t.id not in seen:
            seen.add(t.id)
            waiting += t.node.inputs
    return False


def _differentiated(what: str, function: Callable[..., Any], args: list[Any], i: int, wrt: list[Any]) -> Any:
    """Appends an argument's leaves to `wrt`, Python floats as tensors of rank 0; returns the argument's structure."""
    name = getattr(function, "__name__", type(function).__name__)
    if not is_index(i) or not -len(args) <= i < len(args):
        raise GraphError(
            f"{what}: there is no argument {i!r}; {name} was given {len(args)} by position, and argnums counts these "
            "from 0"
        )
    leaves: list[Any] = []
    skeleton = flatten(args[i], leaves, lambda v: is_any_array(v) or type(v) is float)
    label = _label(function, i % len(args))
    odd = [v for v in _statics(skeleton) if v is not None]
    if odd or skeleton[0] == "static":
        raise GraphError(
            f"{what}: {label} of {name} holds {odd[0] if odd else None!r}, which has no gradient; pass floats, or "
            "arrays of them"
        )
    for at, t in enumerate(leaves):
        if not isinstance(t, Tensor):
            leaves[at] = t = as_leaves(home(what, leaves), [t])[0]
        if not t.dtype.is_float:
            kind = "integer" if t.dtype.is_int else str(t.dtype)
            where = "" if skeleton[0] == "leaf" else f" at {_place(skeleton, at)}"
            is_what = str(t.type)
            instead = "it dequantized" if t.dtype.is_packed else "it as .astype(np.float32)"
            if t.weak is not None:
                is_what, instead = f"a Python {t.weak.__name__}", "a float"
            raise DTypeError(
                f"{what}: {label} is {kind}{where}: {is_what}, which has no gradient; pass {instead}, or give {name} "
                "an argument of its own for it, which argnums does not name"
            )
    leaves = [_own(t) for t in leaves]
    args[i] = unflatten(skeleton, leaves)
    skeleton = flatten(args[i], [None] * len(wrt))
    wrt += leaves
    return skeleton


def _label(function: Callable[..., Any], i: int) -> str:
    """The name of an argument in errors."""
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # some built-in functions have no signature
        names = []
    return f"argument {names[i]}" if i < len(names) else f"argument {i}"


def _place(skeleton: Any, at: int) -> str:
    """The path of a leaf within its argument, as in "w.0"."""
    return list(leaf_names(skeleton, ""))[at].removeprefix(".")
