"""Pages that show splats: one file of HTML with the splats in it, which draws them in a browser by WebGL 2."""

from __future__ import annotations

import base64
import html
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np

from rlx.errors import DTypeError, ShapeError
from rlx.formats.files import written_whole
from rlx.formats.ply import path_of, splat_arrays
from rlx.ops.splats.blend import ALPHA_MIN
from rlx.ops.splats.camera import Camera

_TEMPLATE = Path(__file__).with_name("splats.html")
_MARK = re.compile("@(title|backdrop|scene|data)@")
_LARGEST = 1e9  # `render` draws no larger numbers
_HALF = 65504.0
_MOST_BYTES = 384 << 20  # 512 MiB as text, the longest that browsers take


def write_page(
    path: str | os.PathLike[str], means: Any, scales: Any, rotations: Any, opacities: Any, colors: Any, *,
    camera: Camera | None = None, background: Any = (0, 0, 0), title: str = "Splats",
) -> None:  # fmt: skip
    """Writes a page for browsers that shows splats, as `rlx.splats.render` takes them, whole or not at all.

    The page is one file that asks no host for anything. It draws what `render` does, to about 1/255 of the brightest
    channel (colours are kept as f16), from `camera` first, which is `Camera.facing(means)` unless given; a pointer,
    fingers and keys turn, move and approach. `background` (3,). Splats that `render` never draws are left out.
    Raises: ShapeError for arrays that are no splats, for colours beyond f16, and for more than fits into a page (384
    MiB: 44 bytes a splat and 6 each coefficient); DTypeError; OSError.
    """
    where = path_of("write_page", path)
    arrays = splat_arrays("write_page", means, scales, rotations, opacities, colors, plain=True)
    place, sizes, turns, covers, hues = arrays
    with np.errstate(all="ignore"):
        lengths = np.linalg.norm(turns, axis=1)
        flat = np.concatenate([place, sizes, turns, hues.reshape(len(hues), -1)], axis=1)
        kept = (np.abs(flat) <= _LARGEST).all(1) & (covers >= ALPHA_MIN) & (lengths > 1e-6)
    place, sizes, turns, covers, hues = (a[kept] for a in (place, np.abs(sizes), turns, covers, hues))
    camera = Camera.facing(place, width=960, height=640) if camera is None else camera
    if (np.abs(hues) > _HALF).any():
        most = np.abs(hues).max()
        raise ShapeError(f"write_page: colors go to {most:g}; pages hold them as f16, at most {_HALF:,.0f}")
    if not isinstance(camera, Camera) or np.shape(camera.view) != (4, 4):
        raise ShapeError(f"write_page: camera is {camera!r:.60}; expected a rlx.splats.Camera, whose view is (4, 4)")
    if not isinstance(title, str):
        raise DTypeError(f"write_page: title is {title!r:.60}; expected a text")
    try:
        backdrop = np.asarray(background, np.float64)
    except (TypeError, ValueError):
        backdrop = np.empty(0)
    if backdrop.shape != (3,) or not np.isfinite(backdrop).all():
        raise ShapeError(f"write_page: background is {background!r:.60}; expected three numbers")
    shapes = np.zeros((len(place), 12), "<f4")
    shapes[:, :3], shapes[:, 3], shapes[:, 4:7] = place, covers, sizes
    shapes[:, 8:] = turns / np.linalg.norm(turns, axis=1, keepdims=True)
    data = shapes.tobytes() + hues.astype("<f2").tobytes()
    if len(data) > _MOST_BYTES:
        raise ShapeError(
            f"write_page: {len(place):,} splats take {len(data) / 2**20:,.0f} MiB, and a page holds "
            f"{_MOST_BYTES >> 20}; give fewer splats, or fewer coefficients of their colours"
        )
    ahead = camera.view[2].astype(np.float64)
    distance = float(np.median(place @ ahead[:3] + ahead[3])) if len(place) else 1.0
    scene = {name: getattr(camera, name) for name in ("fx", "fy", "cx", "cy", "width", "height")}
    scene |= {
        "view": camera.view.reshape(-1).tolist(), "eye": camera.eye.tolist(), "background": backdrop.tolist(),
        "distance": distance if distance > 0 else 1.0, "count": len(place),
        "coefficients": hues.shape[1] if hues.ndim == 3 else 0,
    }  # fmt: skip
    shown = "rgb({})".format(", ".join(str(round(255 * min(max(x, 0.0), 1.0))) for x in backdrop))
    said = {
        "title": html.escape(title), "backdrop": shown, "scene": json.dumps(scene),
        "data": base64.b64encode(data).decode(),
    }  # fmt: skip
    page = _MARK.sub(lambda mark: said[mark[1]], _TEMPLATE.read_text("utf-8"))
    with written_whole(where) as file:
        file.write(page.encode())
