"""Gaussian splatting by a plain loop over pixels and splats, in Python's floats: what rlx.splats is held against."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def blended(
    fields: Sequence[Sequence[float]], x: float, y: float, channels: int = 3
) -> tuple[list[float], float]:
    """The colour at a point from splats (x, y, a, b, c, opacity, colour), nearest first, and the light that is left."""
    color, light = [0.0] * channels, 1.0
    for u, v, a, b, c, opacity, *rgb in fields:
        dx, dy = x - u, y - v
        q = a * dx * dx + 2 * b * dx * dy + c * dy * dy
        alpha = min(127 / 128, opacity * math.exp(-q / 2)) if q >= 0 else 0.0
        if not alpha >= 1 / 255:
            continue
        color = [s + alpha * light * t for s, t in zip(color, rgb, strict=True)]
        light *= 1 - alpha
        if light < 1e-4:
            break
    return color, light


def harmonics(direction: Array, count: int) -> Array:
    """Real spherical harmonics with the Condon-Shortley phase, by associated Legendre functions."""
    from scipy.special import sph_harm_y

    x, y, z = direction
    theta, phi = math.acos(max(-1.0, min(1.0, z))), math.atan2(y, x)
    made = []
    for degree in range(4):
        for m in range(-degree, degree + 1):
            value = sph_harm_y(degree, abs(m), theta, phi)
            part = value.real if m == 0 else math.sqrt(2) * (value.real if m > 0 else value.imag)
            made.append(float(part))
    return np.array(made[:count])


def rotation(q: Array) -> Array:
    """The matrix of a quaternion (w, x, y, z), by its action v + 2w (u × v) + 2 u × (u × v)."""
    w, u = q[0] / np.linalg.norm(q), q[1:] / np.linalg.norm(q)
    return np.stack([e + 2 * w * np.cross(u, e) + 2 * np.cross(u, np.cross(u, e)) for e in np.eye(3)], axis=1)


def picture(
    means: Array,
    scales: Array,
    rotations: Array,
    opacities: Array,
    colors: Array,
    view: Array,
    *,
    fx: float,
    fy: float,
    cx: float,
    cy: float,
    width: int,
    height: int,
    near: float = 0.01,
    background: Any = (0, 0, 0),
) -> tuple[Array, Array, Array]:
    """The picture, its light, and the mean depth of what is seen, splat by splat and pixel by pixel."""
    turn, shift = view[:3, :3], view[:3, 3]
    centre = -np.linalg.inv(turn) @ shift
    found = []
    for mean, scale, q, opacity, color in zip(means, scales, rotations, opacities, colors, strict=True):
        x, y, z = turn @ mean + shift
        if not (z > near and np.isfinite([*mean, *scale, *q, opacity, *color.ravel()]).all() and q.any()):
            continue
        u = min(max(x / z, (-0.15 * width - cx) / fx), (1.15 * width - cx) / fx)
        v = min(max(y / z, (-0.15 * height - cy) / fy), (1.15 * height - cy) / fy)
        J = np.array([[fx / z, 0, -fx * u / z], [0, fy / z, -fy * v / z]])
        M = J @ turn @ rotation(q) @ np.diag(scale)
        inverse = np.linalg.inv(M @ M.T + 0.3 * np.eye(2))
        if color.ndim == 2:
            away = (mean - centre) / np.linalg.norm(mean - centre)
            color = np.maximum(harmonics(away, len(color)) @ color + 0.5, 0)
        place = (fx * x / z + cx, fy * y / z + cy)
        found.append(
            (float(np.float32(z)), len(found), (*place, *inverse.ravel()[[0, 1, 3]], opacity, *color, z, 1.0))
        )
    fields = [[float(t) for t in row] for _, _, row in sorted(found)]
    sums, light = np.zeros((height, width, 5)), np.ones((height, width))
    for y, x in np.ndindex(height, width):
        sums[y, x], light[y, x] = blended(fields, x + 0.5, y + 0.5, 5)
    depth = np.divide(sums[..., 3], sums[..., 4], out=np.zeros_like(light), where=sums[..., 4] > 0)
    return sums[..., :3] + light[..., None] * np.asarray(background, np.float64), light, depth
