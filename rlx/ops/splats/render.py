"""render: a picture of 3-D Gaussians, and the check that its lists had room for all of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rlx.errors import CapacityExceeded, DTypeError, ShapeError, TracedValueError
from rlx.host.other_attributes import explain
from rlx.ir import Tensor, apply
from rlx.ir.graph import apply_multi
from rlx.ops.base import TensorLike, cast_to, tensors
from rlx.ops.elementwise.select import where
from rlx.ops.splats.blend import FIELDS, MAX_SIDE_PIXELS, tiles_of
from rlx.ops.splats.project import seen_by
from rlx.ops.splats.tiles import COUNT_LIMIT, MAX_PAIRS, check_size

_OP = "splats.render"
_LEAST_PAIRS = 1 << 16  # every program has room for so many
_PAIRS_PER_SPLAT = 8  # the default room


class Rendered(NamedTuple):
    """A picture: `image` (height, width, 3); `light` (height, width), the share that passes all splats, and `alpha`,
    the rest; `pairs`, the number of pairs of a splat and a tile, an i32 without axes; `depth` (height, width) where it
    was asked for."""

    image: Tensor
    light: Tensor
    pairs: Tensor
    depth: Tensor | None = None

    @property
    def alpha(self) -> Tensor:
        """1 - light: the opacity of all splats together."""
        return 1.0 - self.light


explain(Rendered)


def default_pairs(count: int, width: int, height: int) -> int:
    """The pairs that `render` has room for unless told: 8 for each of `count` splats, but 65,536 at least, and no more
    than there can be. Raises: ShapeError."""
    op = "splats.default_pairs"
    count = check_size(op, "count", count, 0, COUNT_LIMIT)
    width, height = (check_size(op, k, v, 1, MAX_SIDE_PIXELS) for k, v in (("width", width), ("height", height)))
    across, down = tiles_of(width, height)
    return max(1, min(count * across * down, max(_LEAST_PAIRS, _PAIRS_PER_SPLAT * count), MAX_PAIRS))


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
    depth: bool = False,
) -> Rendered:
    """A picture of 3-D Gaussians, blended front to back.

    Shape: means (n, 3); scales (n, 3), the standard deviations along a splat's axes, -s as s; rotations (n, 4),
    quaternions (w, x, y, z) of any length; opacities (n,) in [0, 1]; colors (n, 3), or (n, k, 3) with k of 1, 4, 9 or
    16 coefficients of spherical harmonics, whose sum with 1/2 is the colour, 0 where negative. view (4, 4), a rotation
    and a translation, takes points to the camera's coordinates, x right, y down, z ahead; its last row is not read. A
    point is at (fx x/z + cx, fy y/z + cy), and the centre of the first pixel at (0.5, 0.5). width and height, at most
    65,536, are ints; background (3,), black unless given.
    Dtype: f32, or f64 where a splat's or the camera's number is; the background is converted to it.
    Gradient: to every float; those of two jumps are left out, as usual: a pixel skips a splat of which it would take
    less than 1/255, and the splat that lets less than 1e-4 of the light through is its last one. Of more than 127/128 a
    pixel takes 127/128.
    Numerics: the order is that of the depths in f32, of equal depths that of the splats. A splat counts for every pixel
    where it would be seen, so the result does not depend on tiles. Sums have a fixed order on every device.

    Not drawn, with gradients of zero: a splat whose mean is behind the camera or nearer than `near`, which is 1e-9 or
    more; one with a NaN, an infinity or a number beyond 1e9, with a zero quaternion, with an opacity below 1/255, or
    larger than 10,000 times its distance. Other splats are drawn also where the camera is inside of them, as ellipses
    like all. Scales of zero are points; without splats the picture is the background.
    A camera with a NaN, an infinity, a number beyond 1e9, or fx or fy not above 0 is refused where its numbers are
    known when the program is built; where only a run knows them, image and light are NaN throughout, `pairs` and all
    gradients zero. A known view whose upper 3 x 3 part is no rotation or reflection (to 1 %) is refused too; in a run
    it is used as it is: ellipses follow it, while colours are those seen from -Wᵀ t, of its parts W and t.

    max_pairs: the pairs of a splat and a tile of 16 x 16 pixels that the program has room for, at most 2²⁸;
    `default_pairs` says how many there are unless given. Where a run has more, image and light are NaN throughout, and
    `check_pairs(pairs, max_pairs)` says how many are needed; gradients are then those of the splats that the lists
    hold.

    depth: whether there is to be a `depth`: the mean of the depths z of the splats that a pixel takes, each weighed by
    its share of the pixel's colour; 0 where a pixel takes none. The background is no part of it, and it takes a second
    blending. Raises: ShapeError, DTypeError.
    Follows Kerbl et al., "3D Gaussian Splatting for Real-Time Radiance Field Rendering", 2023.
    """
    splats = (means, scales, rotations, opacities, colors, view)
    if not isinstance(depth, bool):
        raise DTypeError(f"{_OP}: depth is {depth!r:.40}; expected True or False")
    seen, ahead, usable = seen_by(_OP, splats, (fx, fy, cx, cy), width, height, near)
    n, dtype = seen.splats.shape[0], seen.splats.dtype
    capacity = (
        default_pairs(n, width, height)
        if max_pairs is None
        else check_size(_OP, "max_pairs", max_pairs, 1, MAX_PAIRS)
    )
    across, down = tiles_of(width, height)
    *lists, pairs = apply_multi(
        "splat_tiles", seen.depth, seen.rects, across=across, down=down, max_pairs=capacity
    )

    def blended(fields: Tensor) -> Tensor:
        return apply("splat_blend", fields, *lists, width=int(width), height=int(height))

    def channels(picture: Tensor, first: int, last: int) -> Tensor:
        return apply("slice", picture, starts=(0, 0, first), stops=(height, width, last), steps=(1, 1, 1))

    picture = blended(seen.splats)
    image, light = channels(picture, 0, 3), channels(picture, 3, 4)
    if background is not None:
        behind, _ = tensors(_OP, background, picture)
        if behind.shape != (3,):
            raise ShapeError(f"{_OP}: background is {behind.type}; expected (3,)")
        image = image + light * cast_to(behind, dtype)
    whole = apply("logical_and", apply("reshape", usable, shape=()), pairs <= capacity)
    missing = where(whole, np.zeros((), dtype.np), np.asarray(np.nan, dtype.np))
    light = apply("reshape", light, shape=(height, width)) + missing
    if not depth:
        return Rendered(image + missing, light, pairs)
    # Depths and ones in place of colours, blended with the same weights.
    ellipses = apply("slice", seen.splats, starts=(0, 0), stops=(n, FIELDS - 3), steps=(1, 1))
    sums = blended(apply("concat", ellipses, ahead, ahead * 0.0 + 1.0, ahead * 0.0, axis=1))
    weights = channels(sums, 1, 2)
    taken = weights > 0
    mean = where(taken, channels(sums, 0, 1) / where(taken, weights, 1.0), 0.0)
    return Rendered(image + missing, light, pairs, apply("reshape", mean, shape=(height, width)) + missing)


def check_pairs(pairs: Any, max_pairs: int) -> None:
    """Checks that a run of `render` had room for its pairs.

    pairs: what the run gave as `Rendered.pairs`, or an array of what several runs gave. max_pairs: what the program has
    room for, as `render` was told, or `default_pairs` says. Raises: CapacityExceeded where there were more pairs;
    TracedValueError for a tensor, of which only a run knows the value; DTypeError, ShapeError for what counts no pairs.
    """
    op = "splats.check_pairs"
    if isinstance(pairs, Tensor):
        raise TracedValueError(
            f"{op}: pairs is a tensor, {pairs.type}, of which only a run knows the value; make it an output, and check "
            "what the run gives"
        )
    max_pairs = check_size(op, "max_pairs", max_pairs, 1, MAX_PAIRS)
    try:
        counts = np.asarray(pairs)
    except ValueError as error:  # lists of unequal lengths
        raise ShapeError(f"{op}: pairs is {pairs!r}; expected a number or an array") from error
    if counts.size == 0:
        return
    if counts.dtype.kind not in "iu":
        raise DTypeError(f"{op}: pairs is {pairs!r}; expected the integers that runs gave")
    if counts.min() < 0:
        raise ShapeError(f"{op}: pairs is {pairs!r}; expected integers from 0")
    count = int(counts.max())
    if count > max_pairs:
        shown = f"{count:,}" if count < COUNT_LIMIT else f"at least {COUNT_LIMIT:,}"
        build = f"build it with max_pairs={count}, or " if count <= MAX_PAIRS else ""
        raise CapacityExceeded(
            f"splats.render: the splats touch {shown} tiles, and the program has room for {max_pairs:,}; {build}"
            "draw fewer or smaller splats"
        )


__all__: list[str] = []
