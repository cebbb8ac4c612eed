"""`rlx.formats.onnx` under its public name, so that `from rlx.onnx import load` works."""

from rlx.formats.onnx import *  # noqa: F403
from rlx.formats.onnx import __all__ as __all__
