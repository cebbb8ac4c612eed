"""ONNX models on any device: `load`, `Model`, an ONNX-Runtime-shaped `InferenceSession`, a `Backend` for onnx.backend.

Needs the `onnx` package (`pip install rlx[onnx]`).
"""

from __future__ import annotations

import importlib.util
from typing import Any

if importlib.util.find_spec("onnx") is None:
    raise ImportError("reading ONNX models needs the onnx package: pip install 'rlx[onnx]'")

from rlx.formats.onnx.backend import Backend as Backend
from rlx.formats.onnx.model import Model as Model
from rlx.formats.onnx.model import Program as Program
from rlx.formats.onnx.model import TensorInfo as TensorInfo
from rlx.formats.onnx.session import InferenceSession as InferenceSession


def load(source: Any) -> Model:
    """Reads an ONNX model: a path, bytes, or an onnx.ModelProto. External data is read from the path's folder.

    Raises: ModelFormatError naming the node for a file that is damaged or contradicts itself; UnsupportedOp naming
    every operator that rlx lacks, with domain, version and node.
    """
    return Model(source)


__all__ = ["Backend", "InferenceSession", "Model", "Program", "TensorInfo", "load"]
