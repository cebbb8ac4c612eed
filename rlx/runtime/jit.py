"""jit: a Python function traced once per input shapes and dtypes, compiled, and cached; grad: its derivative."""

from __future__ import annotations

import functools
import logging
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from rlx.autodiff import gradients
from rlx.dtypes import as_dtype
from rlx.errors import GraphError, ShapeError
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
    tensors = [graph.input(f"x{i}", a.shape, as_dtype(a.dtype)) for i, a in enumerate(arrays)]
    args, kwargs = unflatten(skeleton, tensors)
    results: list[Any] = []
    out = flatten(function(*args, **kwargs), results)
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


class Jitted:
    """What `jit` returns: call it with arrays. `graph(*args)` shows the traced program; `cache_info()` the cache."""

    def __init__(self, function: Callable[..., Any], device: str, precision: str) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._device = device
        self._precision = precision
        self._session: Session | None = None
        self._cache: OrderedDict[Any, tuple[CompiledGraph, Any]] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        arrays: list[Any] = []
        skeleton = flatten((args, kwargs), arrays)
        if any(isinstance(a, Tensor) for a in arrays):  # inside another trace: inline
            return self._function(*args, **kwargs)
        exe, out = self._compiled(skeleton, arrays)
        results = exe.run({f"x{i}": a for i, a in enumerate(arrays)})
        return unflatten(out, [results[f"y{i}"] for i in range(len(results))])

    def graph(self, *args: Any, **kwargs: Any) -> Graph:
        """The program traced for these arguments, not compiled."""
        arrays: list[Any] = []
        skeleton = flatten((args, kwargs), arrays)
        return trace(self._function, skeleton, arrays, self._function.__name__)[0]

    def cache_info(self) -> dict[str, int]:
        """How many programs are cached, and how many at most."""
        return {"size": len(self._cache), "max_size": CACHE_SIZE}

    def _compiled(self, skeleton: Any, arrays: Sequence[Any]) -> tuple[CompiledGraph, Any]:
        key = (skeleton, tuple((a.shape, str(a.dtype)) for a in arrays))
        try:
            hash(key)
        except TypeError:
            raise GraphError(
                f"{self._function.__name__}: a static argument cannot be hashed; pass arrays as NumPy arrays and other "
                "values as numbers, strings or tuples"
            ) from None
        with self._lock:
            if key not in self._cache:
                if self._session is None:
                    self._session = Session(self._device, precision=self._precision)
                graph, out = trace(self._function, skeleton, arrays, self._function.__name__)
                log.info(
                    "compiling %s for %s", graph.name, ", ".join(str(t.type) for t in graph.inputs.values())
                )
                self._cache[key] = (self._session.compile(graph), out)
                if len(self._cache) > CACHE_SIZE:
                    self._cache.popitem(last=False)[1][0].close()
            self._cache.move_to_end(key)
            return self._cache[key]


def jit(function: Callable[..., Any] | None = None, *, device: str = "auto", precision: str = "f32") -> Any:
    """Compiles a function of arrays: traced once per shapes and dtypes of its arguments, then cached.

    Arrays in nested tuples, lists and dicts are arguments; numbers, strings and None are static; arrays the function
    closes over become constants (a warning above 1 MB). The cache holds 64 programs and logs every compile to the
    logger "rlx.jit". Use as `@rlx.jit` or `@rlx.jit(device="vulkan")`.
    """
    if function is None:
        return lambda f: Jitted(f, device, precision)
    return Jitted(function, device, precision)


def grad(function: Callable[..., Tensor], argnums: int | tuple[int, ...] = 0, *, device: str = "auto") -> Any:
    """The gradient of a scalar-valued function of arrays with respect to the arguments `argnums`.

    Works on arrays (compiled and cached as `jit` does) and inside a traced function. Raises: ShapeError when the
    function's result is not a scalar.
    """
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    @functools.wraps(function)
    def gradient(*args: Any) -> Any:
        result = function(*args)
        if not isinstance(result, Tensor) or result.shape != ():
            what = result.shape if isinstance(result, Tensor) else type(result).__name__
            raise ShapeError(
                f"grad: {function.__name__} must give a rank-0 tensor, it gave {what}; sum it first"
            )
        found = gradients(result, [args[i] for i in numbers])
        return found[0] if isinstance(argnums, int) else tuple(found)

    return Jitted(gradient, device, "f32")
