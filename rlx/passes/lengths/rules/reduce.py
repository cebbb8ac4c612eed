"""Reductions, running sums and softmax: the padding of the axes they combine is masked by a neutral element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rlx.dtypes import DType, f32
from rlx.ir import Tensor
from rlx.passes.lengths.axes import Layout, fixed, is_prefix
from rlx.passes.lengths.site import Made, Site, rule


def least(dtype: DType) -> Any:
    """The least value of a dtype."""
    return -np.inf if dtype.is_float else False if dtype.kind == "b" else int(np.iinfo(dtype.np).min)


def greatest(dtype: DType) -> Any:
    """The greatest value of a dtype, but for NaN."""
    return np.inf if dtype.is_float else True if dtype.kind == "b" else int(np.iinfo(dtype.np).max)


# The primitive by which an op joins elements -> the value that changes nothing.
NEUTRAL: dict[str, Callable[[DType], Any]] = {
    "max": least,
    "min": greatest,
    "add": lambda dtype: dtype.np.type(0),
    "mul": lambda dtype: dtype.np.type(1),
}


def _kept(site: Site, axes: tuple[int, ...], keepdims: bool) -> Layout:
    kept = enumerate(site.layouts[0])
    return tuple(fixed(1) if k in axes else axis for k, axis in kept if keepdims or k not in axes)


@rule("sum", "prod", "max", "min", "mean")
def reduction(site: Site) -> Made:
    node = site.node
    axes, dtype = node.attrs["axes"], node.inputs[0].dtype
    layout = _kept(site, axes, node.attrs["keepdims"])
    if not any(k in axes for k in site.varying(0)):
        return site.repeat({}, layout)
    assert node.op.joins is not None
    x = site.masked(0, axes, NEUTRAL[node.op.joins](dtype))
    return [(_mean(site, x), layout)] if node.op.averages else site.repeat({0: x}, layout)


def _mean(site: Site, x: Tensor) -> Tensor:
    """The true mean from the mean over all elements, including padding, with the padding's share removed.

    Sums may overflow where means do not, so a mean is taken first. Where the padded length is a power of two, both of
    its divisions are exact but the last."""
    node, half = site.node, x.dtype.is_half
    x = site.add("cast", x, dtype=f32) if half else x
    mean = site.add("mean", x, **node.attrs)
    for k in set(site.varying(0)) & {*node.attrs["axes"]}:
        for f in site.layouts[0][k]:
            if f.reading is not None:
                count = site.add("cast", site.number(f.reading), dtype=mean.dtype)
                mean = site.add("div", mean, site.add("div", count, site.constant(float(f.size), mean.dtype)))
    return site.add("cast", mean, dtype=node.output.dtype) if half else mean


@rule("cumsum", "cumprod")
def running(site: Site) -> Made:
    """Running totals from the front: no true element meets padding that lies behind all of them."""
    node = site.node
    if is_prefix(site.layouts[0][node.attrs["axis"]]) and not node.attrs["reverse"]:
        return site.repeat({}, site.layouts[0])
    assert node.op.joins is not None
    value = NEUTRAL[node.op.joins](node.inputs[0].dtype)
    return site.repeat({0: site.masked(0, (node.attrs["axis"],), value)}, site.layouts[0])


@rule("softmax", "log_softmax", "logsumexp")
def softmax(site: Site) -> Made:
    axis = site.node.attrs["axis"]
    layout = tuple(
        fixed(1) if n == 1 else a for n, a in zip(site.node.output.shape, site.layouts[0], strict=True)
    )
    if site.fixed(0, axis):
        return site.repeat({}, layout)
    return site.repeat({0: site.masked(0, (axis,), -np.inf)}, layout)


@rule("softmax_grad")
def softmax_grad(site: Site) -> Made:
    axis = site.node.attrs["axis"]
    if site.fixed(0, axis):
        return site.repeat({}, site.layouts[1])
    return site.repeat({i: site.masked(i, (axis,), 0.0) for i in (0, 1)}, site.layouts[1])
