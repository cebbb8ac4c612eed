"""Convolutions, pools, pads and resizing: beyond the true end, windows must read what they would read beyond an
image."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rlx.ir import Graph, Node, Tensor
from rlx.passes.lengths.axes import Axis, fixed, is_fixed, size_of
from rlx.passes.lengths.site import Array, Made, Site, rule


def _spatial(site: Site, i: int) -> tuple[int, ...]:
    """The spatial axes of an image that are padded; each at its end."""
    result = tuple(k for k in site.varying(i) if k >= 2)
    for k in result:
        site.prefix(i, k)
    return result


def _image(site: Site, i: int, channels: Axis) -> tuple[Axis, ...]:
    """An output of batch and channels, with spatial axes of its own."""
    site.expect_fixed(i, (1,), "the number of channels is unknown")
    shape = site.node.outputs[0].shape
    return (site.layouts[i][0], channels, *(site.made(0, k) for k in range(2, len(shape))))


def _zeroed(site: Site, *inputs: int) -> dict[int, Tensor]:
    masked = {i: site.masked(i, _spatial(site, i), 0) for i in inputs}
    return {i: t for i, t in masked.items() if t is not site.inputs[i]}


@rule("conv", "conv_transpose", "conv_grad_input", sized=["sizes"])
def conv(site: Site) -> Made:
    """Convolutions read zeros around images, so the padding after them is set to zero."""
    for i in range(1, len(site.layouts)):
        site.expect_fixed(i, range(len(site.layouts[i])), "the weight has an axis of unknown length")
    return site.repeat(_zeroed(site, 0), _image(site, 0, fixed(site.node.output.shape[1])))


@rule("conv_grad_weight")
def conv_grad_weight(site: Site) -> Made:
    """A sum over batch and places, in which the padding of both images is zero."""
    for i in (0, 1):
        site.expect_fixed(i, (1,), "the number of channels is unknown")
        _spatial(site, i)
    masked = {i: site.masked(i, site.varying(i), 0) for i in (0, 1)}
    return site.repeat(masked, tuple(map(fixed, site.node.output.shape)))


@rule("max_pool")
def max_pool(site: Site) -> Made:
    spatial = _spatial(site, 0)
    x = site.layouts[0]
    masked = {0: site.masked(0, spatial, -np.inf)} if spatial else {}
    rest = (site.made(0, k) if k in spatial else a for k, a in enumerate(_own(site)[2:], 2))
    return site.repeat(masked, (*x[:2], *rest))


def _own(site: Site) -> tuple[Axis, ...]:
    return tuple(map(fixed, site.node.output.shape))


@rule("pad")
def pad(site: Site) -> Made:
    """Constant pads are written where the padding was; repeated elements at an end are read by indices that depend on
    the length."""
    node, layout_in = site.node, site.layouts[0]
    result, pads, moving = site.inputs[0], list(node.attrs["pads"]), []
    layout: list[Axis] = []
    for k, (axis, pair) in enumerate(zip(layout_in, node.attrs["pads"], strict=True)):
        if is_fixed(axis) or pair == (0, 0):
            layout.append(axis if pair == (0, 0) else fixed(size_of(axis) + sum(pair)))
            continue
        site.prefix(0, k)
        layout.append(site.made(0, k))
        if node.attrs["mode"] == "constant":
            result = site.maker.masked(result, layout_in, (k,), node.attrs["value"], node)
        else:
            moving.append(k)
            pads[k] = (0, 0)
    result = site.add("pad", result, **{**node.attrs, "pads": tuple(pads)})
    for k in moving:
        size = node.output.shape[k]
        result = site.add("gather", result, site.vector(size, _repeated(site, k, size)), axis=k)
    return [(result, tuple(layout))]


def _repeated(site: Site, axis: int, size: int) -> Callable[[Graph], Array]:
    def places(graph: Graph) -> Array:
        node = site.counterpart(graph)
        count = np.arange(node.inputs[0].shape[axis], dtype=np.int32)
        result = np.zeros(size, np.int32)
        read = np.pad(count, node.attrs["pads"][axis], mode=node.attrs["mode"])
        result[: len(read)] = read
        return result

    return places


@rule("resize", sized=["sizes", "scales"])
def resize(site: Site) -> Made:
    layout: list[Axis] = []
    for k, axis in enumerate(site.layouts[0]):
        n = site.node.output.shape[k]

        def plain(node: Node, k: int = k) -> Any:
            return node.attrs["scales"][k]

        site.require(plain, f"{site.node.name}: its scale depends on the length")
        if not is_fixed(axis) and (site.node.attrs["scales"][k] != 1.0 or n != size_of(axis)):
            raise site.refuse(f"it interpolates along axis {k}, of unknown length")
        layout.append(axis if n == size_of(axis) else fixed(n))
    return site.repeat({}, tuple(layout))
