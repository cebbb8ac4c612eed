"""Dim: a length that varies between calls; and which axes of a call's arrays have one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from rlx.errors import GraphError, ShapeError
from rlx.records import Record, field

Otherwise = Literal["error", "exact"]


class Dim(Record, slots=False):
    """A length from `min` to `max`, which differs from call to call, as torch.export.Dim declares one.

    A program serves a bucket of lengths: the powers of two and `max`, or `buckets`, beyond the last of which powers of
    two follow up to `max`. Arrays are followed by zeros up to the bucket's size. Raises: ShapeError.
    """

    name: str
    max: int = field(kw_only=True)
    min: int = field(default=1, kw_only=True)
    buckets: tuple[int, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise GraphError(f"Dim: the name is {self.name!r}; expected a string such as 'batch'")
        for what, n in (("min", self.min), ("max", self.max), *(("a bucket", n) for n in self.buckets)):
            if isinstance(n, bool) or not isinstance(n, int) or n < 1:
                raise ShapeError(f"Dim {self.name!r}: {what} is {n!r}; expected an int of 1 or more")
        if self.min > self.max:
            raise ShapeError(f"Dim {self.name!r}: min is {self.min}, above max, which is {self.max}")
        if above := [n for n in self.buckets if n > self.max]:
            raise ShapeError(f"Dim {self.name!r}: the buckets {above} are above max, which is {self.max}: raise max")
        object.__setattr__(self, "buckets", tuple(self._sizes(sorted({*self.buckets}))))

    def _sizes(self, sizes: Sequence[int]) -> Iterator[int]:
        yield from (n for n in sizes if self.min <= n < self.max)
        size = 1
        while size < self.max:
            if size > (sizes[-1] if sizes else 0) and size >= self.min:
                yield size
            size *= 2
        yield self.max

    def bucket(self, length: int) -> int:
        """The smallest bucket that holds the length. Raises: ShapeError for one below `min` or above `max`."""
        if not self.min <= length <= self.max:
            raise ShapeError(
                f"dimension {self.name!r} is {length}; it was declared from {self.min} to {self.max}: declare a larger "
                "max, or cut the arrays"
            )
        return next(n for n in self.buckets if n >= length)

    def least(self, bucket: int) -> int:
        """The least length that a bucket serves."""
        at = self.buckets.index(bucket)
        return self.buckets[at - 1] + 1 if at else self.min


class Declared:
    """The varying axes of a function's arguments, as `jit`'s `dims` declares them: each argument has a specification
    for all its arrays, or, if it is a dict of arrays, a dict of specifications.

    Raises: GraphError for an invalid specification, a name that no Dim has, or two Dims with one name."""

    def __init__(self, what: str, dims: Mapping[str, Any]) -> None:
        if not isinstance(dims, Mapping) or not dims:
            raise GraphError(
                f"{what}: dims is {dims!r}; expected a dict by argument, such as "
                '{"x": (rlx.Dim("batch", max=64), None)}'
            )
        self.what = what
        self.specs = dict(dims)
        self.dims: dict[str, Dim] = {}
        for dim in _dims_in(self.specs):
            if self.dims.setdefault(dim.name, dim) != dim:
                raise GraphError(
                    f"{what}: dims declares {dim.name!r} twice, as {self.dims[dim.name]} and {dim}"
                )
        for name, spec in self.specs.items():
            self._check(f"{what}: dims[{name!r}]", spec)

    def _check(self, what: str, spec: Any) -> None:
        if isinstance(spec, Mapping) and spec and all(isinstance(k, str) for k in spec):
            for k, part in spec.items():
                self._check(f"{what}[{k!r}]", part)
            return
        for axis in _axes(what, spec).values():
            if isinstance(axis, str) and axis not in self.dims:
                raise GraphError(f"{what}: there is no Dim {axis!r}; dims declares {sorted(self.dims)}")

    def axes(self, name: str, keys: Sequence[str], shape: tuple[int, ...]) -> dict[int, Dim]:
        """The varying axes of an array, by number. The array belongs to argument `name`; `keys` lead to it in dicts.

        Raises: ShapeError for a specification of more axes than the array has."""
        spec = self.specs.get(name)
        for key in keys:
            if isinstance(spec, Mapping) and key in spec:
                spec = spec[key]
        if isinstance(spec, Mapping) and spec and all(isinstance(k, str) for k in spec):
            return {}
        if isinstance(spec, list | tuple) and len(spec) > len(shape):
            raise ShapeError(
                f"{self.what}: dims[{name!r}] has {len(spec)} entries, one for each axis; the array has shape {shape}"
            )
        dims_of = _axes(self.what, spec)
        return {k: self.dims[a] if isinstance(a, str) else a for k, a in dims_of.items()}

    def lengths(self, arrays: Iterator[tuple[str, dict[int, Dim], tuple[int, ...]]]) -> dict[str, int]:
        """The length of each dimension in a call, from (label, varying axes, shape) of each array.

        Raises: ShapeError for arrays that disagree, for axes that an array lacks, and for lengths out of range."""
        lengths: dict[str, int] = {}
        where: dict[str, str] = {}
        for label, axes, shape in arrays:
            for axis, dim in axes.items():
                at = axis + len(shape) if axis < 0 else axis
                if not 0 <= at < len(shape):
                    raise ShapeError(f"{self.what}: {label} is {shape}; dims declares its axis {axis}")
                n = shape[at]
                if lengths.setdefault(dim.name, n) != n:
                    raise ShapeError(
                        f"{self.what}: dimension {dim.name!r} is {n} in {label} of shape {shape}, and "
                        f"{lengths[dim.name]} in {where[dim.name]}"
                    )
                where.setdefault(dim.name, label)
                dim.bucket(n)
        return lengths


def _dims_in(value: Any) -> Iterator[Dim]:
    if isinstance(value, Dim):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _dims_in(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _dims_in(part)


def _axes(what: str, spec: Any) -> dict[int, Dim | str]:
    """The axes that a specification of one array names."""
    if spec is None:
        return {}
    if isinstance(spec, Dim | str):
        return {0: spec}
    items = (
        spec.items()
        if isinstance(spec, Mapping)
        else enumerate(spec)
        if isinstance(spec, list | tuple)
        else None
    )
    if items is None or not all(
        isinstance(k, int) and (a is None or isinstance(a, Dim | str)) for k, a in items
    ):
        raise GraphError(
            f"{what} is {spec!r}; expected an rlx.Dim, a Dim's name or None for each axis, or a dict of them by number"
        )
    items = spec.items() if isinstance(spec, Mapping) else enumerate(spec)
    return {k: a for k, a in items if a is not None}
