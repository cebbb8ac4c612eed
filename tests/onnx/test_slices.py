"""Slice at the ends of an axis, as the operator's text has it: effective starts and ends are held within bounds that
depend on the sign of the step. And Pad as it was first."""

from __future__ import annotations

import itertools

import numpy as np

import rlx
from tests.onnx.models import I64, model, node

FAR = 2**62


def taken(n: int, start: int, end: int, step: int) -> list[int]:
    """The elements of an axis of n that a slice takes."""
    start, end = (v + n if v < 0 else v for v in (start, end))
    low, high = (0, n) if step > 0 else (-1, n - 1)
    start, end = min(max(start, 0), high), min(max(end, low), high)
    return list(range(start, end, step)) if n else []


def test_slices_of_every_reach(device: str) -> None:
    for n in (0, 1, 4):
        proto = model(
            [node("Slice", "x s e a t", "y")],
            {"x": [2, n], **{k: ([1], I64) for k in "seat"}},
            {"y": [2, None]},
        )
        x = np.arange(2 * n, dtype=np.float32).reshape(2, n)
        cases = list(
            itertools.product((-FAR, -n - 1, -1, 0, n, FAR), (-FAR, -n - 1, -1, 1, FAR), (1, -1, 3, -2))
        )
        with rlx.onnx.load(proto) as loaded:
            for case in cases if device == "cpu" else cases[::7]:
                feeds = {k: np.array([v]) for k, v in zip("seta", (*case, 1), strict=True)}
                made = loaded.run({"x": x, **feeds}, device=device)["y"]
                assert made.tolist() == x[:, taken(n, *case)].tolist(), (n, case)


def test_the_first_version_of_pad() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    proto = model(
        [node("Pad", "x", "y", paddings=[0, 1, 2, 0], value=7.0)], {"x": [2, 3]}, {"y": None}, opset=1
    )
    with rlx.onnx.load(proto) as loaded:
        made = loaded.run({"x": x}, device="cpu")["y"]
    assert np.array_equal(made, np.pad(x, [(0, 2), (1, 0)], constant_values=7))
