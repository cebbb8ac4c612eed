"""rlx.splats.Camera: what is in the middle of its picture, and what is up there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from rlx.errors import DTypeError, ShapeError

Camera = rlx.splats.Camera


def pixel(camera: rlx.splats.Camera, point: Any) -> Any:
    """Where a point is in the picture, and its depth."""
    x, y, z = (camera.view @ np.array([*point, 1.0]))[:3]
    return np.array([camera.fx * x / z + camera.cx, camera.fy * y / z + camera.cy, z])


def test_a_look_at_a_point() -> None:
    camera = Camera.look_at((1, -2, -4), (1, -2, 3), width=40, height=20, fov=90)
    np.testing.assert_allclose(pixel(camera, (1, -2, 3)), (20, 10, 7))
    np.testing.assert_allclose(pixel(camera, (1, -9, 3)), (20, 0, 7), atol=1e-6)  # the top: up is -y
    np.testing.assert_allclose(pixel(camera, (8, -2, 3)), (30, 10, 7))
    np.testing.assert_allclose(camera.eye, (1, -2, -4))
    np.testing.assert_array_equal(Camera.look_at((0, 0, 0), (0, 0, 1), width=2, height=2).view, np.eye(4))


def test_a_look_from_anywhere_is_a_rotation() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        eye, target, up = rng.normal(size=(3, 3))
        camera = Camera.look_at(eye, target, up, width=64, height=48)
        turn = camera.view[:3, :3].astype(np.float64)
        np.testing.assert_allclose(turn @ turn.T, np.eye(3), atol=1e-6)
        assert np.linalg.det(turn) > 0
        np.testing.assert_allclose(pixel(camera, target), (32, 24, np.linalg.norm(target - eye)), rtol=1e-5)
        above = pixel(camera, target + 1e-2 * up / np.linalg.norm(up))
        assert above[1] < 24 and abs(above[0] - 32) < 1e-3


@pytest.mark.parametrize("size", [(64, 48), (30, 90)])
def test_a_camera_that_faces_splats_has_them_in_its_picture(size: tuple[int, int]) -> None:
    width, height = size
    means = np.random.default_rng(1).normal(size=(500, 3)) * (3, 1, 2) + (5, 6, 7)
    means[7] = np.nan
    camera = Camera.facing(means, (1, 0.2, 0), width=width, height=height)
    places = np.array([pixel(camera, p) for p in means if np.isfinite(p).all()])
    within = ((places >= 0) & (places <= (width, height, np.inf))).all(1)
    assert within.mean() > 0.97 and camera.view[2, 0] > 0.9


def test_a_camera_is_the_arguments_of_render() -> None:
    camera = Camera.look_at((0, 0, -2), (0, 0, 0), width=16, height=16)
    splat = (np.zeros((1, 3)), np.full((1, 3), 0.1), np.eye(4)[:1], np.ones(1), np.ones((1, 3)))
    made = rlx.splats.render(*(a.astype(np.float32) for a in splat), **camera, depth=True)
    assert float(made.depth[8, 8]) == 2 and float(made.alpha[8, 8]) > 0.7 and float(made.image[0, 0, 0]) == 0


@pytest.mark.parametrize(
    "change, error, words",
    [
        ({"target": (0, 0, -4)}, ShapeError, r"target - eye is \(0, 0, 0\), which is no direction"),
        ({"up": (0, 0, 2)}, ShapeError, r"looks along up, \(0, 0, 2\).*give another up"),
        ({"up": (0, 0, 0)}, ShapeError, "up is .* no direction"),
        ({"eye": (0, 1)}, ShapeError, "eye is .*expected three finite numbers"),
        ({"eye": "here"}, DTypeError, "eye is 'here'"),
        ({"fov": 180}, ShapeError, "fov is 180"),
        ({"width": 0}, ShapeError, "width"),
    ],
)
def test_looks_that_are_refused(change: dict[str, Any], error: type[Exception], words: str) -> None:
    given: dict[str, Any] = {"eye": (0, 0, -4), "target": (0, 0, 0), "width": 16, "height": 16} | change
    with pytest.raises(error, match=f"^splats.Camera: .*{words}"):
        Camera.look_at(**given)


@pytest.mark.parametrize(
    "means, height, error, words",
    [
        (np.zeros((0, 3)), 16, ShapeError, "no splats"),
        (np.zeros((4, 2)), 16, ShapeError, r"the shape \(4, 2\); expected \(n, 3\)"),
        ([["a"]], 16, DTypeError, "means are no array of numbers"),
        ((np.zeros((4, 3)), np.zeros(4)), 16, DTypeError, "means are no array of numbers"),
        (np.zeros((4, 3)), 0, ShapeError, "height is 0"),
    ],
)
def test_splats_that_are_not_faced(means: Any, height: int, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Camera.facing(means, width=16, height=height)
