"""ONNX models: `rlx.formats.onnx` under the name that programs write, so that `from rlx.onnx import load` works."""

from rlx.formats.onnx import *  # noqa: F403
from rlx.formats.onnx import __all__ as __all__
