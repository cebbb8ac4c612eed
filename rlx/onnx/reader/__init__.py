"""From an ONNX file to an rlx graph: reading, checks, and what the builders of all operators use."""

from rlx.onnx.installed import check as _check

_check()
