"""Camera: where a picture is seen from, and the numbers of its lens, as `render` takes them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.errors import DTypeError, ShapeError
from rlx.host.other_attributes import explain
from rlx.ir import Tensor
from rlx.ops.splats.blend import MAX_SIDE_PIXELS
from rlx.ops.splats.tiles import check_size
from rlx.records import Record

_OP = "splats.Camera"
_PARALLEL = 1e-6  # the sine of the least angle between the viewing direction and `up`
_OUTER = 0.98  # the share of splats that `facing` fits into its picture: a few are often far away


class Camera(Record, eq=False):
    """A camera, whose fields are arguments of `render` and `project`: `rlx.splats.render(*splats, **camera)`.

    view (4, 4), f32, takes points to the camera's coordinates, x right, y down, z ahead; `fx`, `fy`, `cx`, `cy`, in
    pixels, and `width`, `height` say where a point of these is in the picture.

    >>> camera = rlx.splats.Camera.look_at((0, -1, -4), (0, 0, 0), width=320, height=240)
    """

    view: npt.NDArray[np.float32]
    fx: float
    fy: float
    cx: float
    cy: float
    width: int
    height: int

    @classmethod
    def look_at(
        cls, eye: Any, target: Any, up: Any = (0, -1, 0), *, width: int, height: int, fov: float = 50.0
    ) -> Camera:
        """A camera at `eye` that has `target` in the middle of its picture.

        Shape: eye, target, up (3,); `up` is a direction that is upwards in the picture, that of -y unless given, as in
        scenes by COLMAP. fov: degrees between the top of the picture and its bottom. Pixels are squares.
        Raises: ShapeError where target is eye, or lies above or below it, along `up`; DTypeError.
        """
        eye, target, up = (_point(name, p) for name, p in (("eye", eye), ("target", target), ("up", up)))
        width, height = _sides(width, height)
        focal = 0.5 * height / math.tan(0.5 * _angle(fov))
        ahead, upward = (_unit(name, p) for name, p in (("target - eye", target - eye), ("up", up)))
        right = np.cross(ahead, upward)
        if np.linalg.norm(right) < _PARALLEL:
            raise ShapeError(
                f"{_OP}: the camera looks along up, {_text(up)}, so that no side is its right; give another up"
            )
        right /= np.linalg.norm(right)
        view = np.eye(4)
        view[:3, :3] = right, np.cross(ahead, right), ahead
        view[:3, 3] = -view[:3, :3] @ eye
        return cls(view.astype(np.float32), focal, focal, width / 2, height / 2, width, height)

    @classmethod
    def facing(
        cls, means: Any, direction: Any = (0, 0, 1), up: Any = (0, -1, 0), *, width: int, height: int,
        fov: float = 50.0,
    ) -> Camera:
        """A camera that looks along `direction`, so far away that 98 % of the splats are in its picture.

        Shape: means (n, 3), those of at least one splat; what is no number of ordinary size is left out. Others: as
        `look_at`, whose errors it raises.
        """
        if isinstance(means, Tensor):
            raise DTypeError(f"{_OP}: means is a tensor of a graph, {means.type}; expected an array")
        width, height = _sides(width, height)
        try:
            points = np.asarray(means, np.float64)
        except (TypeError, ValueError) as error:
            raise DTypeError(f"{_OP}: means are no array of numbers; expected (n, 3)") from error
        if points.ndim != 2 or points.shape[1] != 3:
            raise ShapeError(f"{_OP}: means has the shape {points.shape}; expected (n, 3)")
        points = points[(np.abs(points) <= 1e9).all(1)]
        if not len(points):
            raise ShapeError(f"{_OP}: there are no splats to see")
        middle = np.median(points, axis=0)
        radius = max(float(np.quantile(np.linalg.norm(points - middle, axis=1), _OUTER)), 1e-6)
        narrow = math.atan(math.tan(0.5 * _angle(fov)) * min(1.0, width / height))
        eye = middle - radius / math.sin(narrow) * _unit("direction", _point("direction", direction))
        return cls.look_at(eye, middle, up, width=width, height=height, fov=fov)

    @property
    def eye(self) -> npt.NDArray[np.float64]:
        """Where the camera is, (3,)."""
        view = self.view.astype(np.float64)
        return np.asarray(-view[:3, :3].T @ view[:3, 3])

    def keys(self) -> Sequence[str]:
        """The names of the fields: with `camera[name]` what `**camera` asks for."""
        return ("view", "fx", "fy", "cx", "cy", "width", "height")

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)


explain(Camera)


def _sides(width: Any, height: Any) -> tuple[int, int]:
    """The sides of a picture. Raises: ShapeError."""
    return check_size(_OP, "width", width, 1, MAX_SIDE_PIXELS), check_size(_OP, "height", height, 1, MAX_SIDE_PIXELS)


def _point(name: str, value: Any) -> npt.NDArray[np.float64]:
    """Three numbers. Raises: ShapeError, DTypeError."""
    if isinstance(value, Tensor):
        raise DTypeError(f"{_OP}: {name} is a tensor of a graph, {value.type}; expected three numbers")
    try:
        result = np.asarray(value, np.float64)
    except (TypeError, ValueError) as error:
        raise DTypeError(f"{_OP}: {name} is {value!r:.60}; expected three numbers") from error
    if result.shape != (3,) or not np.isfinite(result).all():
        raise ShapeError(f"{_OP}: {name} is {value!r:.60}; expected three finite numbers")
    return result


def _unit(name: str, value: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    length = float(np.linalg.norm(value))
    if not length:
        raise ShapeError(f"{_OP}: {name} is {_text(value)}, which is no direction")
    return np.asarray(value / length)


def _angle(fov: Any) -> float:
    """Degrees as radians. Raises: ShapeError."""
    if not isinstance(fov, int | float | np.integer | np.floating) or not 0 < fov < 180:
        raise ShapeError(f"{_OP}: fov is {fov!r:.40}; expected degrees between 0 and 180, without these")
    return math.radians(fov)


def _text(value: npt.NDArray[np.float64]) -> str:
    return "({})".format(", ".join(f"{x:g}" for x in value))


__all__: list[str] = []
