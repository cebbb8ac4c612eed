"""Losses, which onnx's functions compute."""

from __future__ import annotations

from rlx.onnx.reader.call import Call, Result, WriteOut
from rlx.onnx.reader.table import op


@op("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
def loss(c: Call) -> Result:
    """onnx's function for it, if the reduction is one that the text names."""
    c.choice("reduction", "none", "sum", "mean")
    raise WriteOut
