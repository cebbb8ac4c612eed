"""Whole networks with random weights beside the float64 reference of their graphs, and that beside onnx's evaluator.

The two quick ones, of them one in `make test`; `python -m tests.onnx.light` takes all nine.
"""

from __future__ import annotations

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import rlx
from rlx.conformance.compare import distance
from rlx.conformance.oracle import evaluate
from tests.onnx.light import MAX_NMSE, light, nmse


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet"])
@pytest.mark.full(name="shufflenet")
@pytest.mark.late("vulkan")
def test_a_network_with_random_weights(name: str, device: str) -> None:
    (found,) = nmse(name, [device])
    assert found <= MAX_NMSE


@pytest.mark.full
def test_the_float64_reference_is_what_onnx_computes() -> None:
    proto = light("squeezenet")
    model = rlx.onnx.load(proto)
    (info,) = model.inputs
    x = np.random.default_rng(2).standard_normal(info.shape).astype(np.float32)
    graph, _ = model.build({info.name: x}, {})
    values = evaluate(graph, {info.name: x})
    (want,) = ReferenceEvaluator(proto).run(None, {info.name: x})
    (tensor,) = graph.outputs.values()
    assert distance(want, values[tensor.id]).nmse <= MAX_NMSE
