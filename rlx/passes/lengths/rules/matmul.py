"""Products: rows and columns stay apart; along the summed axis the padding of both operands is zero."""

from __future__ import annotations

from rlx.passes.lengths.axes import Layout, broadcast, is_fixed, joined
from rlx.passes.lengths.site import Made, Site, rule


@rule("matmul")
def matmul(site: Site) -> Made:
    node = site.node
    a, b = site.layouts[:2]
    rows, inner_a = (-1, -2) if node.attrs["transpose_a"] else (-2, -1)
    inner_b, columns = (-1, -2) if node.attrs["transpose_b"] else (-2, -1)
    shape = node.output.shape
    layout: Layout = (*broadcast([a[:-2], b[:-2]], shape[:-2]), a[rows], b[columns])
    if len(site.layouts) == 3:
        layout = (*layout[:-1], joined([layout[-1], site.layouts[2][0]], shape[-1]))
    if is_fixed(a[inner_a]) and is_fixed(b[inner_b]):
        return site.repeat({}, layout)
    joined([a[inner_a], b[inner_b]], node.inputs[0].shape[inner_a])
    masked = {i: site.masked(i, (p % len(site.layouts[i]),), 0) for i, p in ((0, inner_a), (1, inner_b))}
    return site.repeat(masked, layout)
