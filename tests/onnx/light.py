"""onnx's light models, whose weights are one number each, with seeded He-initialized weights in their place.

`python -m tests.onnx.light [DEVICE …]` compares all of them with the float64 reference of their graphs.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

import rlx
from rlx.conformance.compare import distance
from rlx.conformance.oracle import evaluate

FOLDER = Path(onnx.__file__).parent / "backend/test/data/light"
NAMES = (
    "bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet", "vgg19",
    "zfnet512",
)  # fmt: skip


def light(name: str, seed: int = 0) -> onnx.ModelProto:
    """The model of that name with random weights: normal with variance 2 / fan-in; scales and variances near 1."""
    proto = onnx.load(FOLDER / f"light_{name}.onnx")
    rng = np.random.default_rng(seed)
    graph = proto.graph
    constants = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    shapes = {
        n.output[0]: [int(d) for d in constants[n.input[0]]]
        for n in graph.node
        if n.op_type == "ConstantOfShape"
    }
    shapes.update({k: list(v.shape) for k, v in constants.items() if v.dtype == np.float32})
    made: dict[str, np.ndarray] = {}
    for node in graph.node:
        for place, source in enumerate(node.input):
            if source in shapes and source not in made:
                made[source] = _weight(node.op_type, place, shapes[source], rng).astype(np.float32)
    kept = [n for n in graph.node if n.output[0] not in made]
    del graph.node[:]
    graph.node.extend(kept)
    others = [i for i in graph.initializer if i.name not in made]
    del graph.initializer[:]
    graph.initializer.extend([*others, *(numpy_helper.from_array(a, n) for n, a in made.items())])
    last = graph.node[-1]
    if last.op_type == "Softmax":  # what goes in tells more: a softmax of large numbers is a one and zeros
        graph.output[0].name = last.input[0]
        graph.output[0].type.tensor_type.ClearField("shape")
        del graph.node[-1]
    return proto


def _weight(kind: str, place: int, shape: list[int], rng: np.random.Generator) -> np.ndarray:
    if kind in ("Conv", "Gemm", "MatMul") and len(shape) > 1:
        return rng.standard_normal(shape) * math.sqrt(2 / max(math.prod(shape[1:]), 1))
    if kind == "BatchNormalization" and place in (1, 4):
        return rng.uniform(0.8, 1.2, shape)
    return rng.standard_normal(shape) * 0.1


MAX_NMSE = 1e-11


def nmse(name: str, devices: Sequence[str]) -> list[float]:
    """How far each device's result is from the float64 reference."""
    model = rlx.onnx.load(light(name))
    (info,) = model.inputs
    x = np.random.default_rng(1).standard_normal(info.shape).astype(np.float32)
    graph, _ = model.build({info.name: x}, {})
    ((output, tensor),) = graph.outputs.items()
    want = evaluate(graph, {info.name: x})[tensor.id]
    assert np.ptp(want) > 1e-4, "a uniform result proves little"
    return [distance(model.run({info.name: x}, device=d)[output], want).nmse for d in devices]


def main() -> None:
    devices = sys.argv[1:] or ["cpu"]
    worst = 0.0
    for name in NAMES:
        found = nmse(name, devices)
        worst = max(worst, *found)
        print(
            f"{name:14}", "  ".join(f"{d} {v:.1e}" for d, v in zip(devices, found, strict=True)), flush=True
        )
    print(f"{len(NAMES)} light models with random weights: worst nmse {worst:.1e}, at most {MAX_NMSE:.0e}")
    sys.exit(0 if worst <= MAX_NMSE else 1)


if __name__ == "__main__":
    main()
