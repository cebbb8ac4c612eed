"""Transforms, signals, splats and packed weights refuse what they cannot take by typed errors in plain words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.errors import DTypeError, ModelFormatError, RlxError, ShapeError

X = np.ones(64, np.float32)
Z = np.ones(8, np.complex64)
SCALAR = np.float32(3)
SPLATS = [np.ones(s, np.float32) for s in ((5, 3), (5, 3), (5, 4), (5,), (5, 3))]
STORED = [*SPLATS[:4], np.ones((5, 1, 3), np.float32)]
PACKED = rlx.quantize(np.ones((4, 64), np.float32), "q8_0")
BYTES = PACKED.to_gguf()


def traced(function: Callable[..., Any], *args: Any) -> Any:
    return rlx.jit(function, device="cpu")(*args)


def rendered(means: Any = SPLATS[0], fx: Any = 20.0) -> Any:
    def picture(*splats: Any) -> Any:
        view = np.eye(4, dtype=np.float32)
        return rlx.splats.render(*splats, view, fx=fx, fy=20.0, cx=8.0, cy=8.0, width=16, height=16)

    return traced(picture, means, *SPLATS[1:])


@pytest.mark.parametrize(
    "call, error, text",
    [
        (lambda: traced(rlx.fft.rfft, Z), DTypeError, "complex64.*takes real numbers"),
        (lambda: traced(rlx.signal.welch, Z), DTypeError, "complex64.*takes real numbers"),
        (lambda: rlx.signal.lfilter([1.0, 0.5], [1.0, 0.2], Z), DTypeError, "lfilter: .* is complex64.*takes real"),
        (lambda: rlx.signal.sosfilt(np.ones((1, 6)), x=Z), DTypeError, "sosfilt: .* is complex64.*takes real"),
        (lambda: traced(lambda x: rlx.signal.lfilter([1.0], [1.0, 0.2j], x), X), DTypeError, "takes real numbers"),
        (lambda: traced(lambda x: rlx.fft.fftshift(x, pairs=True), X), ShapeError,
         r"fftshift: the input is f32\[64\].*takes pairs=False"),
        (lambda: traced(rlx.signal.welch, SCALAR), ShapeError, "signal.welch: axis -1 of a scalar, which has no axes"),
        (lambda: traced(lambda x: rlx.signal.welch(x, window=np.full(16, np.nan), nperseg=16), X), ShapeError,
         "expected 16 finite samples"),
        (lambda: rlx.signal.get_window("han", 8), ShapeError, r"no window 'han' \(did you mean 'hann'\?\)"),
        (lambda: rendered(fx=None), DTypeError, "splats.render: fx is None; expected a number of pixels"),
        (lambda: rendered(fx="20"), DTypeError, "splats.render: fx is '20'; expected a number of pixels"),
        (lambda: rendered(means=np.ones((5, 2), np.float32)), ShapeError, r"means is f32\[5,2\]; expected \(n, 3\)"),
        (lambda: rlx.splats.read_ply(None), ModelFormatError, "read_ply: path is None; expected a path"),  # type: ignore[arg-type]
        (lambda: traced(lambda w: rlx.packed_matmul(1.0, w), PACKED), ShapeError, r"x is a scalar, f32\[\]; expected"),
        (lambda: rlx.PackedArray.from_gguf(BYTES, (4, 64), "q8_0"), DTypeError, r"from_gguf\(data, dtype, shape\)"),  # type: ignore[arg-type]
        (lambda: rlx.quantize("q8_0", PACKED.dequantize()), DTypeError, "is not an rlx dtype"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_what_came_and_what_was_expected(call: Callable[[], Any], error: type[RlxError], text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        call()
    assert len(str(caught.value)) < 600


def test_a_missing_folder_is_named_not_a_temporary_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        rlx.splats.write_ply(tmp_path / "none" / "s.ply", *STORED)
    assert str(tmp_path / "none") in str(caught.value) and ".tmp" not in str(caught.value)
    rlx.splats.write_ply(tmp_path / "s.ply", *STORED)
    assert [p.name for p in tmp_path.iterdir()] == ["s.ply"]
