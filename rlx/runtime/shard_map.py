"""shard_map: a function of one rank's parts of arrays, made one of whole arrays."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from rlx import tree
from rlx.driver.registry import in_turns
from rlx.errors import GraphError, ShapeError
from rlx.host.locks import renewed
from rlx.ir.graph import TRACING
from rlx.ranks.collect import Group
from rlx.ranks.mesh import Axes, Mesh, ranks_along
from rlx.runtime.array import Array
from rlx.runtime.jit import Jitted, jit
from rlx.runtime.keywords import keywords


class PartitionSpec(tuple[Any, ...]):
    """How an array is split among the ranks of a mesh.

    It has an entry for each axis of the array: the name of an axis of the mesh, a tuple of such names (the last varies
    fastest), or None if the axis is not split. `P("data")` splits only the first axis, `P()` none."""

    def __new__(cls, *axes: Axes | None) -> PartitionSpec:
        return super().__new__(cls, axes)

    def __repr__(self) -> str:
        return f"P({', '.join(map(repr, self))})"


P = PartitionSpec
Specs = Any  # a PartitionSpec or None for all arrays of a value, or a container of these like the value


class ShardMapped:
    """The result of `shard_map`: call it with whole arrays."""

    def __init__(
        self, function: Callable[..., Any], mesh: Mesh, in_specs: Specs, out_specs: Specs, device: str,
        precision: str | None,
    ) -> None:  # fmt: skip
        functools.update_wrapper(self, function)
        self._function, self._mesh, self._in, self._out = function, mesh, in_specs, out_specs
        self._device, self._precision = device, precision
        self._jitted: dict[int, Jitted[..., Any]] = {}
        self._lock = renewed(self, "_lock", threading.Lock)

    def __repr__(self) -> str:
        return f"shard_map({getattr(self._function, '__name__', '…')}, {self._mesh!r})"

    def __call__(self, *args: Any) -> Any:
        if TRACING.graph is not None or TRACING.body is not None:
            raise GraphError(
                f"{self!r}: called in a traced function, but its ranks have programs of their own; differentiate and "
                "map the function inside"
            )
        specs = self._in
        if isinstance(specs, PartitionSpec) or specs is None:
            specs = (specs,) * len(args)
        if not isinstance(specs, tuple | list) or len(specs) != len(args):
            raise GraphError(f"{self!r}: in_specs is {self._in!r} for {len(args)} arguments; give one P(…) for each")
        return self._mesh.run(self._on_rank, args, specs)[0]

    def _on_rank(self, args: Any, specs: Any) -> Any:
        mesh = self._mesh
        own = [
            _mapped(spec, arg, partial(_cut, mesh, f"argument {i}"), f"in_specs[{i}]")
            for i, (spec, arg) in enumerate(zip(specs, args, strict=True))
        ]
        with self._lock:
            if mesh.rank not in self._jitted:
                device = device_of(mesh, self._device)
                self._jitted[mesh.rank] = jit(self._function, device=device, precision=self._precision)
            call = self._jitted[mesh.rank]
        return _mapped(self._out, call(*own), partial(_joined, mesh), "out_specs")


@keywords
def shard_map(
    f: Callable[..., Any],
    mesh: Mesh,
    in_specs: Specs,
    out_specs: Specs,
    *,
    device: str = "auto",
    precision: str | None = None,
) -> ShardMapped:
    """A function of whole arrays that runs f, jitted, on each rank's device with that rank's parts of the arrays.

    >>> mesh = rlx.Mesh({"data": 2}, devices=("cpu", "cpu"))
    >>> total = rlx.shard_map(lambda x: rlx.all_reduce(rlx.sum(x), "data"), mesh, rlx.P("data"), rlx.P())
    >>> total(np.arange(10.0))

    `in_specs` is a PartitionSpec (or None, for whole arrays) for all arguments, or a tuple of one for each, which may
    be dicts, lists and tuples of specs where the argument is. `out_specs` says the same of the results: parts are put
    together along the named axes, on every rank; along others the ranks must compute the same, and each returns its
    own. Where ranks are processes each calls with the same whole arrays. Results are NumPy arrays.

    `device`: of a rank; "cuda" and "vulkan" without a number are the machine's GPUs, rank by rank in turns. Ranks that
    are threads have those of the mesh. Raises: GraphError for specs that do not fit and within a traced function,
    ShapeError for an axis that does not divide, the errors of `jit`, RanksDisagree, RankLost. As jax.shard_map.
    """
    if not isinstance(mesh, Mesh):
        raise GraphError(f"shard_map: mesh is {mesh!r}; expected an rlx.Mesh")
    if not callable(f):
        raise GraphError(f"shard_map: expected a function, got {f!r}")
    for what, specs in (("in_specs", in_specs), ("out_specs", out_specs)):
        for spec in _specs(specs, what):
            for entry in spec:
                if entry is not None:
                    mesh.names(entry, f"shard_map: {what}")
    return ShardMapped(f, mesh, in_specs, out_specs, device, precision)


def device_of(mesh: Mesh, name: str) -> str:
    """The device of this thread's rank. Requires: all ranks call it."""
    if mesh.devices is not None:
        return mesh.devices[mesh.rank]
    if mesh.world is None:
        return name
    from rlx.ranks.mpi import opened  # few processes are ranks of MPI

    return in_turns(name, opened().local_rank())


def _specs(specs: Specs, what: str) -> list[PartitionSpec]:
    if specs is None or isinstance(specs, PartitionSpec):
        return [PartitionSpec() if specs is None else specs]
    if isinstance(specs, Mapping):
        return [s for part in specs.values() for s in _specs(part, what)]
    if isinstance(specs, tuple | list):
        return [s for part in specs for s in _specs(part, what)]
    raise GraphError(f"shard_map: {what} has {specs!r}; expected rlx.P(…), None, or a container of these")


def _mapped(specs: Specs, value: Any, rule: Callable[[Any, PartitionSpec], Any], where: str) -> Any:
    """`rule(leaf, spec)` for each leaf of a value, in the value's structure."""
    if specs is None or isinstance(specs, PartitionSpec):
        spec = PartitionSpec() if specs is None else specs
        return tree.map(lambda leaf: rule(leaf, spec), value)
    if isinstance(specs, Mapping) and isinstance(value, Mapping) and specs.keys() == value.keys():
        return {name: _mapped(specs[name], value[name], rule, f"{where}[{name!r}]") for name in value}
    if isinstance(specs, tuple | list) and isinstance(value, tuple | list) and len(specs) == len(value):
        parts = [_mapped(s, v, rule, f"{where}[{i}]") for i, (s, v) in enumerate(zip(specs, value, strict=True))]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    raise GraphError(f"shard_map: {where} is {specs!r}, which does not fit the {type(value).__name__} there")


def _cut(mesh: Mesh, what: str, leaf: Any, spec: PartitionSpec) -> Any:
    """This rank's part of an array."""
    if not any(spec):
        return leaf
    array = leaf.numpy() if isinstance(leaf, Array) else np.asarray(leaf)
    if len(spec) > array.ndim:
        raise ShapeError(f"shard_map: {what} has shape {array.shape}, which {spec!r} cuts along {len(spec)} axes")
    at: list[slice] = []
    for i, names in enumerate(spec):
        if not names:
            at.append(slice(None))
            continue
        over = mesh.names(names, "shard_map")
        n = int(np.prod([mesh.axes[name] for name in over]))
        if array.shape[i] % n:
            raise ShapeError(
                f"shard_map: axis {i} of {what}, {array.shape}, does not divide among {n} ranks along "
                f"{', '.join(over)}; pad it to a multiple of {n}"
            )
        size, place = array.shape[i] // n, mesh.index(over)
        at.append(slice(size * place, size * (place + 1)))
    return array[tuple(at)]


def _joined(mesh: Mesh, leaf: Any, spec: PartitionSpec) -> Any:
    """The whole array of the ranks' parts."""
    array = np.asarray(leaf)
    if len(spec) > array.ndim:
        raise ShapeError(f"shard_map: a result has shape {array.shape}, which {spec!r} joins along {len(spec)} axes")
    for i, names in enumerate(spec):
        if names and mesh.world is not None:
            ranks = ranks_along(mesh.axes, mesh.names(names, "shard_map"), mesh.rank)
            group = Group(mesh.world, mesh.rank, ranks)
            text = f"the result {array.dtype}{list(array.shape)} of shard_map along {spec!r}"
            group.meet(partial(str, text))
            array = np.moveaxis(group.all_gather(np.moveaxis(array, i, 0)), 0, i)
    return array

