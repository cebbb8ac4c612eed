"""jit: a Python function traced once per input shapes and dtypes, compiled, and cached; grad: its derivative."""

from __future__ import annotations

import functools
import logging
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

from rlx.autodiff import gradients
from rlx.driver.locks import renewed
from rlx.dtypes import DType, as_dtype
from rlx.errors import DTypeError, GraphError, ShapeError
from rlx.ir import Graph, Tensor
from rlx.ops.nest import flatten, unflatten
from rlx.runtime.compiled import CompiledGraph
from rlx.runtime.session import Session

log = logging.getLogger("rlx.jit")
CACHE_SIZE = 64
LARGE_CONSTANT = 1 << 20


def trace(function: Callable[..., Any], skeleton: Any, arrays: Sequence[Any], name: str) -> tuple[Graph, Any]:
    """The graph of a call, inputs named x0, x1, … and outputs y0, y1, …, and the skeleton of its result."""
    graph = Graph(name)
    tensors = [graph.input(f"x{i}", a.shape, _dtype(name, i, a)) for i, a in enumerate(arrays)]
    args, kwargs = unflatten(skeleton, tensors)
    results: list[Any] = []
    given = function(*args, **kwargs)
    out = flatten(given, results)
    if not results:
        raise GraphError(f"{name}: the function gave {given!r}, no tensor; return what it computes")
    for i, r in enumerate(results):
        tensor = r if isinstance(r, Tensor) else graph.constant(r)
        graph.output(f"y{i}", tensor)
    for node in graph.nodes:
        if node.op.name == "constant" and node.output.type.nbytes > LARGE_CONSTANT:
            warnings.warn(
                f"{name}: a constant of {node.output.type.nbytes:,} bytes is built into the program; "
                "pass the array as an argument to share and update it",
                stacklevel=4,
            )
    return graph, out


def _dtype(name: str, i: int, array: Any) -> DType:
    try:
        return as_dtype(array.dtype)
    except DTypeError as error:
        raise DTypeError(f"{name}: array {i} of the arguments: {error}; convert it with .astype") from None


class Jitted:
    """What `jit` returns: call it with arrays. `graph(*args)` shows the traced program; `cache_info()` the cache."""

    def __init__(self, function: Callable[..., Any], device: str, precision: str) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._name = getattr(function, "__name__", type(function).__name__)  # a functools.partial has none
        self._device = device
        self._precision = precision
        self._session: Session | None = None
        self._cache: OrderedDict[Any, tuple[CompiledGraph, Any]] = OrderedDict()
        self._lock = renewed(self, "_lock", threading.Lock)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        arrays: list[Any] = []
        skeleton = flatten((args, kwargs), arrays)
        if any(isinstance(a, Tensor) for a in arrays):  # inside another trace: inline
            return self._function(*args, **kwargs)
        exe, out = self._compiled(skeleton, arrays)
        results = exe.run({f"x{i}": a for i, a in enumerate(arrays)})
        return unflatten(out, [results[f"y{i}"] for i in range(len(results))])

    def __repr__(self) -> str:
        return f"jit({self._name}, device={self._device!r}, {len(self._cache)} programs cached)"

    def graph(self, *args: Any, **kwargs: Any) -> Graph:
        """The program traced for these arguments, not compiled."""
        arrays: list[Any] = []
        skeleton = flatten((args, kwargs), arrays)
        return trace(self._function, skeleton, arrays, self._name)[0]

    def cache_info(self) -> dict[str, int]:
        """How many programs are cached, and how many at most."""
        return {"size": len(self._cache), "max_size": CACHE_SIZE}

    def _compiled(self, skeleton: Any, arrays: Sequence[Any]) -> tuple[CompiledGraph, Any]:
        key = (skeleton, tuple((a.shape, str(a.dtype)) for a in arrays))
        try:
            hash(key)
        except TypeError:
            kind = next((type(v).__name__ for v in _statics(skeleton) if not _hashable(v)), "dict's key")
            raise GraphError(
                f"{self._name}: a static argument cannot be hashed: a {kind}; pass arrays as NumPy arrays, in tuples, "
                "lists or dicts, and other values as numbers, strings or tuples"
            ) from None
        with self._lock:
            if key not in self._cache:
                if self._session is None:
                    self._session = Session(self._device, precision=self._precision)
                graph, out = trace(self._function, skeleton, arrays, self._name)
                log.info(
                    "compiling %s for %s", graph.name, ", ".join(str(t.type) for t in graph.inputs.values())
                )
                self._cache[key] = (self._session.compile(graph), out)
                if len(self._cache) > CACHE_SIZE:
                    self._cache.popitem(last=False)[1][0].close()
            self._cache.move_to_end(key)
            return self._cache[key]


def _statics(skeleton: Any) -> Iterator[Any]:
    """What a skeleton holds beside arrays."""
    if skeleton[0] == "static":
        yield skeleton[2]
    elif skeleton[0] != "leaf":
        for part in skeleton[1]:
            yield from _statics(part[1] if skeleton[0] == "dict" else part)


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _want_function(what: str, function: Any) -> None:
    if not callable(function):
        raise GraphError(
            f'{what}: expected a function, got {function!r}; options go by name, as in {what}(f, device="cpu")'
        )


@overload
def jit(function: Callable[..., Any], *, device: str = "auto", precision: str = "f32") -> Jitted: ...


@overload
def jit(
    function: None = None, *, device: str = "auto", precision: str = "f32"
) -> Callable[[Callable[..., Any]], Jitted]: ...


def jit(function: Callable[..., Any] | None = None, *, device: str = "auto", precision: str = "f32") -> Any:
    """Compiles a function of arrays: traced once per shapes and dtypes of its arguments, then cached.

    Arrays in nested tuples, lists and dicts are arguments; numbers, strings and None are static; arrays the function
    closes over become constants (a warning above 1 MB). The cache holds 64 programs and logs every compile to the
    logger "rlx.jit". Use as `@rlx.jit` or `@rlx.jit(device="vulkan")`; of a method, where the object is made:
    `self.step = rlx.jit(self.step)`.

    Raises, when called: what the ops and `Session` raise; GraphError for a static argument that cannot be hashed and a
    function that gives no tensor; DTypeError for an array of a dtype that rlx does not have.
    """
    if function is None:
        return functools.partial(jit, device=device, precision=precision)
    _want_function("jit", function)
    return Jitted(function, device, precision)


def grad(
    function: Callable[..., Tensor], argnums: int | tuple[int, ...] = 0, *, device: str = "auto"
) -> Jitted:
    """The gradient of a scalar-valued function of arrays with respect to the arguments `argnums`.

    Works on arrays (compiled and cached as `jit` does) and inside a traced function. An argument may be nested tuples,
    lists and dicts of arrays; its gradient is of the same structure. Raises: ShapeError when the function's result is
    not a scalar, GraphError for an argument that is not there or holds no array, and what `gradients` raises.
    """
    _want_function("grad", function)
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    name = getattr(function, "__name__", type(function).__name__)

    @functools.wraps(function)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if not isinstance(result, Tensor) or result.shape != ():
            what = result.shape if isinstance(result, Tensor) else type(result).__name__
            raise ShapeError(f"grad: {name} must give a rank-0 tensor, it gave {what}; sum it first")
        wrt: list[Any] = []
        skeletons = [_differentiated(name, args, i, wrt) for i in numbers]
        found = gradients(result, wrt)
        made = [unflatten(skeleton, found) for skeleton in skeletons]
        return made[0] if isinstance(argnums, int) else tuple(made)

    return Jitted(gradient, device, "f32")


def _differentiated(name: str, args: tuple[Any, ...], i: int, wrt: list[Any]) -> Any:
    """Appends the tensors of an argument to `wrt`; returns its skeleton."""
    if not isinstance(i, int) or not -len(args) <= i < len(args):
        raise GraphError(f"grad: there is no argument {i!r}; {name} was given {len(args)} by position")
    skeleton = flatten(args[i], wrt)
    numbers = [v for v in _statics(skeleton) if v is not None]
    if numbers or skeleton[0] == "static":
        raise GraphError(
            f"grad: argument {i} of {name} holds {numbers[0] if numbers else None!r}, which is static; pass arrays, "
            "np.float32(x) for a number"
        )
    return skeleton
