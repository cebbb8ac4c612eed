"""BucketedCalls: the calls of a traced function whose arguments have varying lengths."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

import numpy as np

from rlx.errors import GraphError
from rlx.ir import Graph
from rlx.records import replace
from rlx.runtime.arguments import Call, Parameters, is_python_number
from rlx.runtime.buckets import Buckets, FittedProgram, Lengths, shapes_at
from rlx.runtime.compiled import CompiledGraph
from rlx.runtime.dims import Declared, Dim, Otherwise

T = TypeVar("T")


class BucketedCalls(Generic[T]):
    """Finds the program for a call by the lengths of its arrays. Raises: GraphError for `dims` that do not fit."""

    def __init__(self, parameters: Parameters, dims: Mapping[str, Any], otherwise: Otherwise) -> None:
        self._parameters = parameters
        self._declared = Declared(parameters.name, dims)
        unknown = sorted(set(dims) - set(parameters.known)) if parameters.known is not None else []
        if unknown:
            raise GraphError(
                f"{parameters.name}: dims names {unknown}; the function has {sorted(parameters.known or ())}"
            )
        self._dims = tuple(self._declared.dims.values())
        self.buckets: Buckets[T] = Buckets(parameters.name, self._dims, otherwise)

    def program(
        self,
        call: Call,
        trace: Callable[[Call], tuple[Graph, T]],
        compile: Callable[[Graph, T], CompiledGraph],
    ) -> tuple[FittedProgram, T]:
        """The program for a call, and what `trace` gave beside its graph. Raises: ShapeError, GraphError, as `jit`."""
        axes = self._axes(call)
        shapes = ((self._label(call, i), axes[i], call.leaves[i].shape) for i in axes)
        by_name = self._declared.lengths(shapes)
        missing = [d.name for d in self._dims if d.name not in by_name]
        if missing:
            raise GraphError(
                f"{self._parameters.name}: no array of this call has the dimension {missing[0]!r}"
            )

        def at(lengths: Lengths) -> Call:
            named = {d.name: n for d, n in zip(self._dims, lengths, strict=True)}
            leaves = [
                _of_shape(a, shapes_at(a.shape, axes[i], named)) if axes.get(i) else a
                for i, a in enumerate(call.leaves)
            ]
            return replace(call, leaves=leaves)

        lengths = tuple(by_name[d.name] for d in self._dims)
        key = at(tuple(d.max for d in self._dims)).key()
        return self.buckets.program(key, lengths, lambda n: trace(at(n)), compile)

    def _axes(self, call: Call) -> dict[int, dict[int, Dim]]:
        """The varying axes of each array among a call's leaves."""
        keys = dict(_keys(call.skeleton, ()))
        result = {}
        for i, leaf in enumerate(call.leaves):
            if not is_python_number(leaf):
                result[i] = self._declared.axes(self._name(call.origins[i]), keys.get(i, ()), leaf.shape)
        return result

    def _name(self, at: int | str) -> str:
        positional = self._parameters.positional
        return at if isinstance(at, str) else positional[at] if at < len(positional) else f"argument {at}"

    def _label(self, call: Call, i: int) -> str:
        return self._parameters.label(call.origins[i])[0]


def _of_shape(array: Any, shape: tuple[int, ...]) -> Any:
    """An array of another shape, without memory: tracing reads only types."""
    return np.broadcast_to(np.zeros((), getattr(array.dtype, "np", array.dtype)), shape)


def _keys(skeleton: Any, path: tuple[str, ...]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """The keys of dicts that lead to each leaf of a skeleton."""
    kind = skeleton[0]
    if kind == "leaf":
        yield skeleton[1], path
    elif kind == "dict":
        for key, part in skeleton[1]:
            yield from _keys(part, (*path, key) if isinstance(key, str) else path)
    elif kind != "static":
        for part in skeleton[1]:
            yield from _keys(part, path)
