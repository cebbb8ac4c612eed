"""Random numbers: element i of a draw depends on i, so a padded draw has it where padding comes last of all."""

from __future__ import annotations

from rlx.passes.lengths.axes import Axis, fixed, is_fixed, is_prefix, joined, size_of
from rlx.passes.lengths.site import Made, Site, rule


@rule("random_bits", sized=["shape"])
def random_bits(site: Site) -> Made:
    node = site.node
    shape, drawn = node.output.shape, node.attrs["axes"]
    layout: list[Axis] = []
    for k, n in enumerate(shape):
        axes = [p[k - len(shape) + len(p)] for p in site.layouts if k - len(shape) + len(p) >= 0]
        axis = joined(axes, n)
        layout.append(axis if any(size_of(a) == n for a in axes) else site.made(0, k))
    first = len(shape) - drawn
    for k in range(first, len(shape)):
        if not is_fixed(layout[k]) and (k > first or not is_prefix(layout[k])):
            raise site.refuse(
                "element i of its numbers belongs to the i-th place in row-major order, which depends on the length "
                f"of axis {k}; make the drawn axis of unknown length the first one"
            )
    return site.repeat(
        {}, *[tuple(a if size_of(a) == n else fixed(n) for a, n in zip(layout, shape, strict=True))]
    )
