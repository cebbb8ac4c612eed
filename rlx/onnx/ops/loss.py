"""Losses, which onnx's functions compute."""

from __future__ import annotations

from rlx.onnx.reader.call import Call, Result, WriteOut
from rlx.onnx.reader.table import op


@op("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
def loss(c: Call) -> Result:
    """Written out by onnx's function. Raises: ModelFormatError for a reduction that the definition does not name."""
    c.choice("reduction", "none", "sum", "mean")
    raise WriteOut
