"""Sorting and extreme indices: padding takes the value that comes last, and being behind, loses every tie."""

from __future__ import annotations

import math

import numpy as np

from rlx.dtypes import i64
from rlx.ir import Graph, Tensor
from rlx.passes.lengths.axes import fixed, is_prefix, size_of
from rlx.passes.lengths.rules.reduce import NEUTRAL, greatest, least
from rlx.passes.lengths.site import Array, Made, Site, rule


@rule("argmax", "argmin")
def extreme(site: Site) -> Made:
    node = site.node
    axis, dtype = node.attrs["axis"], node.inputs[0].dtype
    keepdims = node.attrs["keepdims"]
    kept = enumerate(site.layouts[0])
    layout = tuple(fixed(1) if k == axis else a for k, a in kept if keepdims or k != axis)
    if site.fixed(0, axis):
        return site.repeat({}, layout)
    if node.attrs["select_last_index"]:
        raise site.refuse("of equal elements it takes the last, which may be padding")
    assert node.op.joins is not None
    value = NEUTRAL[node.op.joins](dtype)
    ((index, _),) = site.repeat({0: site.masked(0, (axis,), value)}, layout)
    if not is_prefix(site.layouts[0][axis]):
        index = site.add("gather", _true_places(site, axis), index, axis=0)
    return [(index, layout)]


def _true_places(site: Site, axis: int) -> Tensor:
    """The place that each place on an axis with gaps has without them, which each length gives."""
    factors = site.layouts[0][axis]

    def places(graph: Graph) -> Array:
        true = [f.size if f.reading is None else f.reading(graph) for f in factors]
        inverse = np.zeros([f.size for f in factors], np.int64)
        count = site.counterpart(graph).inputs[0].shape[axis]
        inverse[tuple(map(slice, true))] = np.arange(count).reshape(true)
        return inverse.reshape(-1)

    return site.vector(size_of(factors), places, i64)


@rule("sort", "argsort", "top_k")
def order(site: Site) -> Made:
    node = site.node
    axis, dtype = node.attrs["axis"], node.inputs[0].dtype
    k = node.attrs.get("k")
    layout = (
        site.layouts[0] if k is None else (*site.layouts[0][:axis], fixed(k), *site.layouts[0][axis + 1 :])
    )
    layouts = [layout] * len(node.outputs)
    if site.fixed(0, axis):
        return site.repeat({}, *layouts)
    if not is_prefix(site.layouts[0][axis]):
        raise site.refuse("what it sorts has gaps of unknown length")
    # NaN is the greatest of all, so that only NaN comes behind it.
    high = node.attrs["largest"] if k is not None else node.attrs["descending"]
    value = least(dtype) if high else math.nan if dtype.is_float else greatest(dtype)
    return site.repeat({0: site.masked(0, (axis,), value)}, *layouts)
