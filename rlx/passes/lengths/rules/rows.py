"""Ops that treat each row by itself: norms, transforms, losses, packed products, recurrences."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from rlx.passes.lengths.axes import Layout, fixed, is_prefix, joined, size_of
from rlx.passes.lengths.site import Made, Site, rule

# op -> for each input that has rows, how many of its first axes count them (negative: all but so many). The other axes,
# and the other inputs, must have fixed lengths. All outputs have the rows first.
LEADING: Mapping[str, Mapping[int, int]] = {
    "layer_norm": {0: -1},
    "rms_norm": {0: -1},
    "add_layer_norm": {0: -1, 1: -1},
    "add_rms_norm": {0: -1, 1: -1},
    "group_norm": {0: 1},
    "fft": {0: -2},
    "rfft": {0: -1},
    "irfft": {0: -2},
    "cross_entropy": {0: -1, 1: 0},
    "cross_entropy_grad": {0: 0, 1: -1, 2: 0},
    "packed_matmul": {0: -1},
    "packed_matmul_int8": {0: -1},
    "max_pool_grad": {0: 2, 1: 2},
    "avg_pool": {0: 2},
    "grid_sample": {0: 1, 1: 1},
}


def _rows(leading: Mapping[int, int], site: Site) -> Made:
    parts: list[Layout] = []
    for i, layout in enumerate(site.layouts):
        count = leading.get(i)
        # A count of 0 stands for all axes: `-0`.
        n = 0 if count is None else count if count > 0 else len(layout) + count
        site.expect_fixed(
            i, range(n, len(layout)), f"it combines elements along axis {n} or a later one of input {i}"
        )
        if count is not None:
            parts.append(layout[:n])
    ranks = {len(p) for p in parts}
    if len(ranks) != 1:
        raise site.refuse("its inputs count rows by different axes")
    shape = [size_of(a) for a in parts[0]]
    lead = tuple(joined([p[k] for p in parts], n) for k, n in enumerate(shape))
    return site.repeat({}, *[(*lead, *map(fixed, t.shape[len(lead) :])) for t in site.node.outputs])


for _op, _leading in LEADING.items():
    rule(_op)(partial(_rows, _leading))


@rule("causal_conv", "selective_scan", "gated_delta_rule")
def recurrence(site: Site) -> Made:
    """Sequences of a batch stay apart; over a length that varies, the steps of the decomposition are masked."""
    batched = [i for i in range(len(site.layouts)) if site.varying(i)]
    for i in batched:
        site.expect_fixed(i, range(1, len(site.layouts[i])), "its last state comes from the last step")
    batch = site.layouts[0][0]
    for i in batched:
        batch = joined([batch, site.layouts[i][0]], size_of(batch))
    return site.repeat({}, *[(batch, *map(fixed, t.shape[1:])) for t in site.node.outputs])


@rule("layer_norm_grad", "rms_norm_grad", "group_norm_grad")
def norm_grad(site: Site) -> Made:
    """The gradients of the weights are sums over all rows, to which padding must add nothing."""
    x = site.layouts[1]
    first = 1 if "groups" in site.node.attrs else len(x) - 1
    site.expect_fixed(1, range(first, len(x)), "it normalizes along an axis of unknown length")
    if not site.node.attrs["eps"]:
        raise site.refuse("without eps a row of zeros, as padding is, has no gradient")
    axes = site.varying(1)
    masked = {i: site.masked(i, axes, 0.0) for i in (0, 1)}
    outs = site.node.outputs
    return site.repeat(masked, x, *[tuple(map(fixed, t.shape)) for t in outs[1:]])


@rule("layer_norm_channels")
def layer_norm_channels(site: Site) -> Made:
    site.expect_fixed(0, (1,), "it normalizes along an axis of unknown length")
    return site.repeat({}, site.layouts[0])


@rule("rope")
def rope(site: Site) -> Made:
    x, *tables = site.layouts
    site.expect_fixed(0, (len(x) - 1,), "the rotated axis has no fixed length")
    if not is_prefix(x[site.node.attrs["axis"]]):
        raise site.refuse("its positions have gaps of unknown length")
    if len(tables) == 3 and any(site.varying(i) for i in (1, 2)):
        raise site.refuse("positions outside its tables are clamped to tables of unknown length")
    return site.repeat({}, x)
