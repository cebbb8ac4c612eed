"""The examples with pictures: every digit is read on every device, and outlines are those of float64."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from examples import onnx_digits, onnx_outlines


def test_digits(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["onnx_digits.py"])
    onnx_digits.main()
    lines = [line for line in capsys.readouterr().out.splitlines() if ": [" in line]
    assert lines and all("[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]" in line for line in lines)


def test_outlines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pixels = np.random.default_rng(5).integers(0, 256, (20, 31, 3)).astype(np.uint8)
    (tmp_path / "in.ppm").write_bytes(b"P6\n# noise\n31 20\n255\n" + pixels.tobytes())
    monkeypatch.setattr(sys, "argv", ["onnx_outlines.py", str(tmp_path / "in.ppm"), str(tmp_path / "out.pgm")])
    onnx_outlines.main()
    assert "cpu: 31 × 20" in capsys.readouterr().out
    head, _, body = (tmp_path / "out.pgm").read_bytes().partition(b"\n")
    made = np.frombuffer(body, np.uint8).reshape(20, 31)

    def filtered(x: np.ndarray, kernel: np.ndarray) -> np.ndarray:
        reach = len(kernel) // 2
        wide = np.pad(x, reach, mode="edge")
        windows = np.lib.stride_tricks.sliding_window_view(wide, kernel.shape)
        return np.asarray(np.einsum("hwij,ij->hw", windows, kernel))

    light = pixels / 255 @ np.array([0.299, 0.587, 0.114])
    soft = filtered(light, np.outer([1, 4, 6, 4, 1], [1, 4, 6, 4, 1]) / 256)
    across = np.outer([1, 2, 1], [-1, 0, 1])
    steep = np.hypot(filtered(soft, across), filtered(soft, across.T))
    assert head == b"P5 31 20 255"
    assert np.abs(made - steep / steep.max() * 255).max() <= 0.51

    (tmp_path / "in.ppm").write_bytes(b"P6 31 20 255\n" + pixels.tobytes()[:-1])
    with pytest.raises(SystemExit, match=r"ends before its 31 × 20 pixels$"):
        onnx_outlines.main()
