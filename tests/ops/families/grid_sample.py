"""Judges (torch in float64) and gradient cases of sampling at the places of a grid."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx import ops
from rlx.ir import Tensor
from tests.ops.gradient_cases import Gradients
from tests.ops.judging import Judge, with_torch


def _grid_sample(torch: Any, x: Any, grid: Any, *, mode: str, padding: str, align_corners: bool) -> Any:
    name = {"linear": "bilinear", "nearest": "nearest", "cubic": "bicubic"}[mode]
    # rlx takes a coordinate of NaN for -1, and one at infinity for a place outside; torch multiplies by its NaN weight
    # instead (seen in f32, "linear" and "zeros"). So this judges the other numbers, and what -1 and far outside give.
    grid = torch.where(torch.isnan(grid), torch.full_like(grid, -1.0), grid)
    if padding == "zeros":
        grid = torch.clamp(grid, -1e6, 1e6)
    return torch.nn.functional.grid_sample(x, grid, name, padding, align_corners)


def _places(x: np.ndarray) -> np.ndarray:
    """Grid positions that stay between the same two elements at every step of the difference."""
    return np.clip(np.round(x * 5) / 5 + 0.07, -0.87, 0.87)


def _sampled(x: Tensor, mode: str, padding: str, align: bool) -> Tensor:
    rng = np.random.default_rng(3)
    places = _places(rng.standard_normal((x.shape[0], *(2, 3, 2)[: x.ndim - 2], x.ndim - 2)))
    grid = x.graph.constant(places, x.dtype)
    return ops.grid_sample(x, grid, mode=mode, padding=padding, align_corners=align)


def _to_grid(grid: Tensor) -> Tensor:
    x = grid.graph.constant(np.random.default_rng(4).standard_normal((1, 2, 3, 4)), grid.dtype)
    return ops.grid_sample(x, ops.tanh(grid), align_corners=True)


JUDGES: dict[str, Judge] = {
    "torch.nn.functional.grid_sample": with_torch(_grid_sample),
}
GRADIENTS: Gradients = {
    "grid_sample": [
        (lambda x: _sampled(x, "linear", "zeros", False), [(2, 2, 3, 4)], None),
        (lambda x: _sampled(x, "cubic", "border", True), [(1, 2, 4, 4)], None),
        (lambda x: _sampled(x, "nearest", "reflection", False), [(1, 2, 3, 4)], None),
        (lambda x: _sampled(x, "linear", "reflection", True), [(1, 1, 3, 2, 4)], None),
        (_to_grid, [(1, 2, 3, 2)], _places),
    ],
}  # fmt: skip
