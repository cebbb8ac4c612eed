"""Judges (torch in float64) and gradient cases of pooling."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rlx import ops
from rlx.ir import Tensor
from tests.ops.gradient_cases import Gradients
from tests.ops.judging import Judge, by_rank, padded, with_torch


def _pool_input(torch: Any, x: Any, attrs: Any, value: float) -> tuple[Any, Any]:
    """(x, the padding for torch's function): x is padded here where torch does not accept the padding."""
    if all(a == b and 2 * a <= k for (a, b), k in zip(attrs["pads"], attrs["kernel"], strict=True)):
        return x, [a for a, _ in attrs["pads"]]
    return padded(torch, x, attrs["pads"], value), 0


def _max_pool(torch: Any, x: Any, **attrs: Any) -> Any:
    if attrs["ceil_mode"] and any(a != b for a, b in attrs["pads"]):
        raise AssertionError("padding by hand changes which windows ceil mode has")
    wide, padding = _pool_input(torch, x, attrs, -math.inf)
    return by_rank(torch, "max_pool", x)(
        wide, attrs["kernel"], attrs["strides"], padding, attrs["dilations"], attrs["ceil_mode"]
    )


def _max_pool_grad(torch: Any, x: Any, d: Any, **attrs: Any) -> Any:
    with torch.enable_grad():
        leaf = x.clone().requires_grad_()
        (found,) = torch.autograd.grad(_max_pool(torch, leaf, **attrs), leaf, d)
    return found


def _avg_pool(torch: Any, x: Any, **attrs: Any) -> Any:
    """torch's avg_pool. Uneven padding also by torch: sums of the padded input over sums of the elements counted."""
    function = by_rank(torch, "avg_pool", x)
    include = attrs["count_include_pad"]
    if all(a == b and 2 * a <= k for (a, b), k in zip(attrs["pads"], attrs["kernel"], strict=True)):
        padding = [a for a, _ in attrs["pads"]]
        return function(x, attrs["kernel"], attrs["strides"], padding, attrs["ceil_mode"], include)
    assert not attrs["ceil_mode"]
    ones = torch.ones_like(x)
    window = attrs["kernel"], attrs["strides"]
    counted = padded(torch, ones, attrs["pads"], 1.0 if include else 0.0)
    return function(padded(torch, x, attrs["pads"]), *window) / function(counted, *window)


def _distinct(x: np.ndarray) -> np.ndarray:
    """Numbers of which no two are closer than the step of the difference."""
    return np.argsort(np.argsort(x, axis=None)).reshape(x.shape) * 0.1


def _image(d: Tensor, shape: tuple[int, ...]) -> Tensor:
    return d.graph.constant(np.random.default_rng(7).standard_normal(shape), d.dtype)


JUDGES: dict[str, Judge] = {
    "torch.nn.functional.max_pool2d": with_torch(_max_pool),
    "torch.autograd of max_pool2d": with_torch(_max_pool_grad),
    "torch.nn.functional.avg_pool2d": with_torch(_avg_pool),
}
GRADIENTS: Gradients = {
    "max_pool": [
        (lambda x: ops.max_pool(x, 3, strides=2, pads=1), [(1, 2, 5, 5)], _distinct),
        (lambda x: ops.max_pool(x, 2, dilations=2, strides=1), [(1, 2, 6)], _distinct),
        (lambda x: ops.max_pool(x, 2, ceil_mode=True), [(1, 1, 3, 3, 3)], _distinct),
    ],
    "max_pool_grad": [
        (lambda d: ops.max_pool_grad(_image(d, (1, 2, 5, 5)), d, 3, strides=2, pads=1), [(1, 2, 3, 3)], None),
    ],
    "avg_pool": [
        (lambda x: ops.avg_pool(x, 3, strides=2, pads=1), [(1, 2, 5, 5)], None),
        (lambda x: ops.avg_pool(x, 3, strides=2, pads=1, count_include_pad=True, ceil_mode=True), [(1, 2, 6)], None),
        (lambda x: ops.avg_pool(x, (2, 1, 2)), [(1, 1, 4, 2, 4)], None),
    ],
}  # fmt: skip
