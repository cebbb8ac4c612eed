"""Conformance of the elementwise ops."""

from __future__ import annotations

from rlx.conformance.cases.elementwise import conversions, fused, one_input, quantize, two_inputs

OPS = (*one_input.OPS, *two_inputs.OPS, *conversions.OPS, *fused.OPS, *quantize.OPS)
