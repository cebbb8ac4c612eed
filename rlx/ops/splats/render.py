"""render: a picture of 3-D Gaussians, and the check that its lists held all of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rlx.errors import CapacityExceeded, ShapeError
from rlx.ir import Tensor, apply
from rlx.ir.graph import apply_multi
from rlx.ops.base import TensorLike, cast_to, tensors
from rlx.ops.elementwise.select import where
from rlx.ops.splats.blend import tiles_of
from rlx.ops.splats.project import project
from rlx.ops.splats.tiles import MAX_PAIRS, MOST, check_size

_SMALL = 1 << 16  # pairs that any program may have
_EACH = 8  # pairs of a splat, unless the caller says more


class Rendered(NamedTuple):
    """A picture: `image` (height, width, 3); `light` (height, width), the share that passes all splats; `pairs`, the
    number of pairs of a splat and a tile, an i32 without axes."""

    image: Tensor
    light: Tensor
    pairs: Tensor


def default_pairs(count: int, width: int, height: int) -> int:
    """The pairs that `render` has room for unless told: 8 for each splat, but 65,536 at least, and no more than there
    can be."""
    across, down = tiles_of(width, height)
    return max(1, min(count * across * down, max(_SMALL, _EACH * count), MAX_PAIRS))


def render(
    means: TensorLike,
    scales: TensorLike,
    rotations: TensorLike,
    opacities: TensorLike,
    colors: TensorLike,
    view: TensorLike,
    *,
    fx: Any,
    fy: Any,
    cx: Any,
    cy: Any,
    width: int,
    height: int,
    near: float = 0.01,
    background: TensorLike | None = None,
    max_pairs: int | None = None,
) -> Rendered:
    """A picture of 3-D Gaussians, blended front to back.

    Shape: means (n, 3); scales (n, 3), the standard deviations along a splat's axes; rotations (n, 4), quaternions
    (w, x, y, z) of any length; opacities (n,) in [0, 1]; colors (n, 3), or (n, k, 3) with k of 1, 4, 9 or 16
    coefficients of spherical harmonics, whose sum with 1/2 is the colour, 0 where negative. view (4, 4) takes points to
    the camera's coordinates, x right, y down, z ahead; its last row is not read. A point is at (fx x/z + cx, fy y/z +
    cy), and the centre of the first pixel at (0.5, 0.5). background (3,), black unless given.
    Dtype: f32, or f64 where an input is.
    Gradient: to every float; those of two jumps are left out, as usual: a pixel skips a splat of which it would take
    less than 1/255, and the splat that lets less than 1e-4 of the light through is its last one. Of more than 127/128 a
    pixel takes 127/128.
    Numerics: the order is that of the depths in f32, of equal depths that of the splats. A splat counts for every pixel
    where it would be seen, so the result does not depend on tiles. Sums have a fixed order on every device.

    Not drawn, with gradients of zero: a splat nearer than `near`, behind the camera or around it; one with a NaN, an
    infinity or a number beyond 1e9, with a zero quaternion, or larger than 10,000 times its distance. Scales of zero
    are points; without splats the picture is the background.

    max_pairs: the pairs of a splat and a 16 x 16 tile that the program has room for; `default_pairs` says how many
    there are unless given. Where a run has more, image and light are NaN throughout, and `check_pairs(pairs,
    max_pairs)` says how many are needed; gradients are then those of the splats that the lists hold. Raises:
    ShapeError, DTypeError.
    Follows Kerbl et al., "3D Gaussian Splatting for Real-Time Radiance Field Rendering", 2023.
    """
    op = "splats.render"
    seen = project(
        means, scales, rotations, opacities, colors, view,
        fx=fx, fy=fy, cx=cx, cy=cy, width=width, height=height, near=near,
    )  # fmt: skip
    n, dtype = seen.splats.shape[0], seen.splats.dtype
    most = (
        default_pairs(n, width, height)
        if max_pairs is None
        else check_size(op, "max_pairs", max_pairs, 1, MAX_PAIRS)
    )
    across, down = tiles_of(width, height)
    *lists, pairs = apply_multi(
        "splat_tiles", seen.depth, seen.rects, across=across, down=down, max_pairs=most
    )
    made = apply("splat_blend", seen.splats, *lists, width=int(width), height=int(height))
    image = apply("slice", made, starts=(0, 0, 0), stops=(height, width, 3), steps=(1, 1, 1))
    light = apply("slice", made, starts=(0, 0, 3), stops=(height, width, 4), steps=(1, 1, 1))
    if background is not None:
        behind, _ = tensors(op, background, made)
        if behind.shape != (3,):
            raise ShapeError(f"{op}: background is {behind.type}; expected (3,)")
        image = image + light * cast_to(behind, dtype)
    missing = where(pairs > most, np.asarray(np.nan, dtype.np), np.zeros((), dtype.np))
    light = apply("reshape", light, shape=(height, width)) + missing
    return Rendered(image + missing, light, pairs)


def check_pairs(pairs: Any, max_pairs: int) -> None:
    """Raises: CapacityExceeded where a run of `render` had more pairs than it has room for."""
    count = int(np.max(pairs, initial=0))
    if count > max_pairs:
        shown = f"{count:,}" if count < MOST else f"at least {MOST:,}"
        build = f"build it with max_pairs={count}, or " if count <= MAX_PAIRS else ""
        raise CapacityExceeded(
            f"splats.render: the splats touch {shown} tiles, and the program has room for {max_pairs:,}; {build}"
            "draw fewer or smaller splats"
        )


__all__: list[str] = []
