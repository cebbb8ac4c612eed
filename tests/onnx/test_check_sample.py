"""Some of onnx's node cases, node by node against the float64 reference: what `rlx check` says of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import rlx
from rlx.conformance.compare import check_nodes
from rlx.errors import UnsupportedOp
from rlx.runtime import Session
from tests.full import full
from tests.onnx.onnx_cases import onnx_cases

# A bidirectional GRU with zero inputs: 1 - sigmoid(22) is 0 in f32, and 2.8e-10 in the reference.
MAGNIFIES = {"test_gru_bidirectional"}


def _sample() -> list[Any]:
    return sorted((c for c in onnx_cases() if c.kind == "node"), key=lambda case: case.name)[:: 30 if full() else 90]


@pytest.mark.sample(vulkan=0)
@pytest.mark.late
def test_no_node_of_the_sample_strays(device: str) -> None:
    cases = _sample()[:: 1 if device == "cpu" else (1 if full() else 3)]
    session, compared, strays = Session(device), 0, []
    for case in cases:
        try:
            loaded = rlx.onnx.load(case.model)
        except UnsupportedOp:
            continue
        given = [
            numpy_helper.to_array(v) if isinstance(v, onnx.TensorProto) else v for v in case.data_sets[0][0]
        ]
        with loaded, np.errstate(all="ignore"):
            built = loaded.built(dict(zip((i.name for i in loaded.inputs), given, strict=False)))
            with session.compile(built.graph, planner="bump") as exe:
                exe.set_params(built.weights)
                found = check_nodes(exe, built.feeds, built.weights)
                exe.weights.close()
        compared += len(found)
        if case.name not in MAGNIFIES:
            strays += [f"{case.name}: {d.tensor.node.name}" for d in found if not d.ok]
    assert strays == [] and len(cases) > (50 if full() else 6) and compared > (80 if full() else 8)
