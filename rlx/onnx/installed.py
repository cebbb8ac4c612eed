"""Whether the onnx package that is installed is one that rlx reads models with."""

from __future__ import annotations


def check() -> None:
    """Raises: ImportError for a version that is too old."""
    from onnx import __version__  # slow to import; a program from the cache does not need it

    if tuple(int(n) for n in __version__.split(".")[:2]) < (1, 20):
        raise ImportError(
            f"reading ONNX models needs onnx 1.20 or newer, {__version__} is installed: pip install -U onnx"
        )
