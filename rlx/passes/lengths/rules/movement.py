"""Ops that move data: padding moves with it, and where its place depends on the length, indices of the length say."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rlx.ir import Graph, Node, Tensor
from rlx.passes.lengths.axes import Axis, Layout, Refused, fixed, is_fixed, joined, reshaped, size_of
from rlx.passes.lengths.site import Array, Made, Site, rule


def _moved(site: Site, layout: Layout, kept: bool = True) -> Made:
    """The node itself; padding that was zero stays so where no true element becomes padding (`kept`)."""
    result = site.repeat({}, layout)
    if kept and site.inputs[0].id in site.maker.zeros:
        site.maker.zeros.add(result[0][0].id)
    return result


@rule("reshape", sized=["shape"])
def reshape(site: Site) -> Made:
    return _moved(site, reshaped(site.layouts[0], site.node.output.shape))


@rule("transpose")
def transpose(site: Site) -> Made:
    return _moved(site, tuple(site.layouts[0][p] for p in site.node.attrs["perm"]))


@rule("expand", sized=["shape"])
def expand(site: Site) -> Made:
    x, shape = site.layouts[0], site.node.output.shape
    more = len(shape) - len(x)
    layout = []
    for k, n in enumerate(shape):
        axis = x[k - more] if k >= more else fixed(1)
        layout.append(axis if size_of(axis) == n else site.made(0, k, uniform=True))
    return site.repeat({}, tuple(layout))


@rule("slice", sized=["starts", "stops", "steps"])
def slice_(site: Site) -> Made:
    """An axis that is taken from its start is padded at its end; any other is read by indices that each length gives.

    A start is counted from the front in the node, so that one from the end is another number for each length."""
    layout: list[Axis] = []
    moving = []
    kept = True
    x = site.node.inputs[0]
    for k, axis in enumerate(site.layouts[0]):
        size = x.shape[k]

        def part(node: Node, k: int = k) -> tuple[int, int]:
            return node.attrs["starts"][k], node.attrs["steps"][k]

        def whole(node: Node, k: int = k) -> bool:
            return part(node, k) == (0, 1) and node.output.shape[k] == node.inputs[0].shape[k]

        if whole(site.node) and site.agrees(whole):
            layout.append(axis)
            site.require(whole, f"{site.node.name} leaves out a part of axis {k}")
            continue
        if not is_fixed(axis):
            site.prefix(0, k)
        layout.append(site.made(0, k))
        # A part that is cut off a padded axis has true elements, which then lie in the padding of the result.
        kept &= is_fixed(layout[-1])
        if site.agrees(part):
            site.require(part, f"{site.node.name} begins elsewhere on axis {k}")
        elif size:
            moving.append(k)
    if not moving:
        return _moved(site, tuple(layout), kept)
    # The axes that stay are cut as the node cuts them, the others are gathered.
    attrs = {n: list(site.node.attrs[n]) for n in ("starts", "stops", "steps")}
    for k in moving:
        attrs["starts"][k], attrs["stops"][k], attrs["steps"][k] = 0, x.shape[k], 1
    result = site.add("slice", site.inputs[0], **{n: tuple(v) for n, v in attrs.items()})
    for k in moving:
        result = _gathered(site, result, k, _slice_places(site, k))
    return [(result, tuple(layout))]


def _slice_places(site: Site, axis: int) -> Callable[[Graph], Array]:
    size = site.node.output.shape[axis]

    def places(graph: Graph) -> Array:
        attrs = site.counterpart(graph).attrs
        sliced = np.arange(*(attrs[n][axis] for n in ("starts", "stops", "steps")), dtype=np.int32)
        return _filled(sliced, size)

    return places


def _filled(places: Array, size: int) -> Array:
    result = np.zeros(max(size, len(places)), np.int32)
    result[: len(places)] = places
    return result


def _gathered(site: Site, x: Tensor, axis: int, places: Callable[[Graph], Array]) -> Tensor:
    size = len(places(site.maker.root))
    return site.add("gather", x, site.vector(size, places), axis=axis)


@rule("concat")
def concat(site: Site) -> Made:
    """Parts of unknown length before others leave gaps, which indices of each length close."""
    axis = site.node.attrs["axis"] % site.node.output.ndim
    layout = []
    for k, n in enumerate(site.node.output.shape):
        layout.append(site.made(0, k) if k == axis else joined([p[k] for p in site.layouts], n))
    parts = [p[axis] for p in site.layouts]
    for i, part in enumerate(parts):
        if not is_fixed(part):
            site.prefix(i, axis)
    if all(map(is_fixed, parts[:-1])):
        return site.repeat({}, tuple(layout))
    ((result, _),) = site.repeat({}, tuple(layout))
    return [
        (_gathered(site, result, axis, _concat_places(site, axis, [size_of(p) for p in parts])), tuple(layout))
    ]


def _concat_places(site: Site, axis: int, sizes: Sequence[int]) -> Callable[[Graph], Array]:
    total = sum(sizes)
    starts = np.cumsum([0, *sizes])

    def places(graph: Graph) -> Array:
        true = [t.shape[axis] for t in site.counterpart(graph).inputs]
        if any(n > size for n, size in zip(true, sizes, strict=True)):
            raise Refused("a part is longer than in the padded program")
        sources = np.concatenate([start + np.arange(n) for start, n in zip(starts, true, strict=False)])
        return _filled(sources.astype(np.int32), total)

    return places
