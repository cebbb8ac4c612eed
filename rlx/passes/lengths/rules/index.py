"""Reading and writing by index, where negative indices count from the true end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rlx.ir import Graph, Node, Tensor
from rlx.passes.lengths.axes import Axis, Layout, fixed, is_fixed, joined, size_of
from rlx.passes.lengths.rules.reduce import greatest, least
from rlx.passes.lengths.site import Array, Made, Site, rule


def _from_front(site: Site, i: int, length: Tensor) -> Tensor:
    """Indices counted from the front, by a true length."""
    indices = site.inputs[i]
    n = site.add("cast", length, dtype=indices.dtype) if length.dtype != indices.dtype else length
    negative = site.add("less", indices, site.constant(0, indices.dtype))
    return site.add("where", negative, site.add("add", indices, n), indices)


def _known(site: Site, i: int) -> bool:
    """Whether the indices are a constant that counts from the front; such are in range at every length."""
    producer = site.node.inputs[i].node
    return producer.op.is_constant and bool(np.all(producer.attrs["value"] >= 0))


def _clamped(site: Site, i: int, x: int, axis: int) -> Tensor:
    """Indices by gather's rule: counted from the front, and clamped to the true length."""
    if site.fixed(x, axis):
        return site.inputs[i]
    site.prefix(x, axis)
    if _known(site, i):
        return site.inputs[i]
    length = site.length(x, axis)
    dtype = site.inputs[i].dtype
    n = site.add("cast", length, dtype=dtype) if length.dtype != dtype else length
    # The indices are clamped to -n..n-1 before n is added to negative ones, so that the sum cannot wrap.
    last = site.add("sub", n, site.constant(1, dtype))
    held = site.add("maximum", site.add("minimum", site.inputs[i], last), site.add("neg", n))
    negative = site.add("less", held, site.constant(0, dtype))
    return site.add("where", negative, site.add("add", held, n), held)


@rule("gather")
def gather(site: Site) -> Made:
    axis = site.node.attrs["axis"]
    x, indices = site.layouts
    layout = (*x[:axis], *indices, *x[axis + 1 :])
    clamped = _clamped(site, 1, 0, axis)
    return site.repeat({} if clamped is site.inputs[1] else {1: clamped}, layout)


@rule("gather_elements")
def gather_elements(site: Site) -> Made:
    axis = site.node.attrs["axis"]
    x, indices = site.layouts
    shape = site.node.output.shape
    layout = tuple(indices[k] if k == axis else joined([x[k], indices[k]], n) for k, n in enumerate(shape))
    clamped = _clamped(site, 1, 0, axis)
    return site.repeat({} if clamped is site.inputs[1] else {1: clamped}, layout)


@rule("clip", sized=["min", "max"])
def clip(site: Site) -> Made:
    """Indices are clipped to a length."""
    node = site.node
    limits = [n for n in ("min", "max") if not site.agrees(_attribute(n))]
    if not limits:
        for n in ("min", "max"):
            site.require(_attribute(n), f"{node.name}: its {n} depends on the length")
        return site.repeat({}, site.layouts[0])
    for n in ("min", "max"):
        site.require(_without(n), f"{node.name}: it has a {n} at some lengths only")
    dtype = node.output.dtype
    if not dtype.is_int:
        raise site.refuse(f"its {limits[0]} depends on the length")
    result = site.inputs[0]
    for n, op in (("min", "maximum"), ("max", "minimum")):
        if node.attrs[n] is not None:
            limit = site.maker.given((), dtype, _limit(site, n))
            result = site.add(op, result, limit)
    return [(result, site.layouts[0])]


def _without(name: str) -> Callable[[Node], bool]:
    return lambda node: node.attrs[name] is None


def _limit(site: Site, name: str) -> Callable[[Graph], Array]:
    """A limit of a clip whose value depends on the lengths, in the dtype of the clipped tensor."""
    dtype = site.node.output.dtype

    def limit(graph: Graph) -> Array:
        return np.asarray(
            min(max(site.counterpart(graph).attrs[name], least(dtype)), greatest(dtype)), dtype.np
        )

    return limit


def _attribute(name: str) -> Callable[[Node], Any]:
    return lambda node: node.attrs[name]


@rule("one_hot")
def one_hot(site: Site) -> Made:
    axis = site.node.attrs["axis"]
    x = site.layouts[0]
    return site.repeat({}, (*x[:axis], fixed(site.node.attrs["depth"]), *x[axis:]))


def _dropping(site: Site, axes: range, target: Axis) -> dict[int, Tensor]:
    """The indices with those of padding out of range, whose updates a scatter drops; and negative ones counted from
    the true end."""
    indices = site.inputs[0]
    dtype = indices.dtype
    size = site.node.attrs["length"]
    targets = indices
    if not is_fixed(target):
        (factor,) = target
        assert factor.reading is not None
        counted = _from_front(site, 0, site.number(factor.reading))
        dropped = site.add("less", counted, site.constant(0, dtype))
        targets = site.add("where", dropped, site.constant(size, dtype), counted)
    targets = site.maker.masked(targets, site.layouts[0], axes, size, site.node)
    return {} if targets is indices else {0: targets}


@rule("scatter", sized=["length"])
def scatter(site: Site) -> Made:
    axis = site.node.attrs["axis"]
    indices, updates = site.layouts[:2]
    end = axis + len(indices)
    target = site.made(0, axis)
    layout: Layout = (*updates[:axis], target, *updates[end:])
    for k in range(len(indices)):
        joined([indices[k], updates[axis + k]], size_of(indices[k]))
    return site.repeat(_dropping(site, range(len(indices)), target), _into(site, layout, axis))


@rule("scatter_elements", sized=["length"])
def scatter_elements(site: Site) -> Made:
    axis = site.node.attrs["axis"]
    indices, updates = site.layouts[:2]
    target = site.made(0, axis)
    shape = site.node.inputs[1].shape
    layout = tuple(target if k == axis else joined([indices[k], updates[k]], n) for k, n in enumerate(shape))
    return site.repeat(_dropping(site, range(axis, axis + 1), target), _into(site, layout, axis))


def _into(site: Site, layout: Layout, axis: int) -> Layout:
    """The result's layout: that of the updates, joined with that of the tensor they are scattered into, if any."""
    if len(site.layouts) < 3:
        return layout
    return tuple(joined([a, b], size_of(a)) for a, b in zip(layout, site.layouts[2], strict=True))


@rule("dynamic_slice", sized=["sizes"])
def dynamic_slice(site: Site) -> Made:
    layout = []
    for k, (axis, n) in enumerate(zip(site.layouts[0], site.node.output.shape, strict=True)):
        if not is_fixed(axis) and size_of(axis) != n:
            raise site.refuse(
                f"its window lies in axis {k}, of unknown length, beyond which its start is clamped"
            )
        layout.append(axis if size_of(axis) == n else site.made(0, k))
    return site.repeat({}, tuple(layout))


@rule("dynamic_update_slice")
def dynamic_update_slice(site: Site) -> Made:
    x, update = site.layouts[:2]
    layout = []
    for k, (a, b) in enumerate(zip(x, update, strict=True)):
        if size_of(a) == size_of(b):
            layout.append(joined([a, b], size_of(a)))
        elif is_fixed(a) and is_fixed(b):
            layout.append(a)
        else:
            raise site.refuse(f"it writes a part of unknown length along axis {k}")
    return site.repeat({}, tuple(layout))
