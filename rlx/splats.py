"""Gaussian splatting: 3-D Gaussians drawn by `render`, differentiable; cameras, and the .ply files that hold splats.

Sizes are fixed when a program is built, the number of pairs of a splat and a tile too: see `render`.

>>> camera = rlx.splats.Camera.look_at((0, -1, -4), (0, 0, 0), width=320, height=240)
>>> @rlx.jit
... def picture(means, scales, rotations, opacities, colors):
...     return rlx.splats.render(means, scales, rotations, opacities, colors, **camera)
"""

from typing import TYPE_CHECKING

from rlx.formats.ply import Splats as Splats
from rlx.formats.ply import read_ply as read_ply
from rlx.formats.ply import write_ply as write_ply
from rlx.formats.splats_page import write_page as write_page
from rlx.ops.public import make_public as _make_public
from rlx.ops.public import with_hint as _with_hint
from rlx.ops.splats.camera import Camera as Camera
from rlx.ops.splats.project import Projected as Projected
from rlx.ops.splats.project import project as project
from rlx.ops.splats.render import Rendered as Rendered
from rlx.ops.splats.render import check_pairs as check_pairs
from rlx.ops.splats.render import default_pairs as default_pairs
from rlx.ops.splats.render import render as render

__all__ = [
    "Camera", "Projected", "Rendered", "Splats", "check_pairs", "default_pairs", "project", "read_ply", "render",
    "write_page", "write_ply",
]  # fmt: skip

if not TYPE_CHECKING:  # type checkers read the imports above
    _make_public(globals(), ("project", "render"))
    write_ply = _with_hint(write_ply)
