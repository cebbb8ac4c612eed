"""Latency of quantized networks, recurrent layers and ensembles of trees, as engine.py measures others.

    python benchmarks/cpu/int8.py [MODEL …] [--threads 1] [--profile] [--rounds 5]

The networks are torchvision's with random weights, quantized by onnxruntime.quantization (activations without a sign,
weights with one, a scale for each output), as QOperator and as QDQ. Needs torch, torchvision, onnx and onnxruntime. The
trees are random: inner nodes compare normal numbers with normal thresholds. On x86 processors without VNNI the NMSE of
int8 networks is ONNX Runtime's own error, whose sums saturate there (docs/onnx.md).
"""

from __future__ import annotations

import importlib
import logging
import sys
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from benchmarks.cpu import engine
from benchmarks.networks.onnx_cpu import Feeds

_FOLDER = Path(tempfile.mkdtemp())
_IMAGE = (1, 3, 224, 224)


@cache
def _exported(name: str) -> Path:
    """A torchvision network as ONNX, prepared for quantization."""
    torch, torchvision = (importlib.import_module(n) for n in ("torch", "torchvision"))
    torch.manual_seed(0)
    plain, ready = _FOLDER / f"{name}.onnx", _FOLDER / f"{name}-ready.onnx"
    network = getattr(torchvision.models, name)(weights=None).eval()
    torch.onnx.export(
        network, torch.zeros(_IMAGE), str(plain), input_names=["x"], dynamo=False, opset_version=17
    )
    shapes = importlib.import_module("onnxruntime.quantization.shape_inference")
    shapes.quant_pre_process(str(plain), str(ready))
    return ready


def quantized(name: str, form: str) -> tuple[Any, Feeds]:
    onnx, q = (importlib.import_module(n) for n in ("onnx", "onnxruntime.quantization"))
    rng, path = np.random.default_rng(0), _FOLDER / f"{name}-{form}.onnx"
    seen = iter([{"x": rng.standard_normal(_IMAGE).astype(np.float32)} for _ in range(2)])
    reader = type("Reader", (), {"get_next": lambda self: next(seen, None), "rewind": lambda self: None})
    logging.disable(logging.WARNING)
    q.quantize_static(
        str(_exported(name)), str(path), reader(), quant_format=getattr(q.QuantFormat, form), per_channel=True,
        activation_type=q.QuantType.QUInt8, weight_type=q.QuantType.QInt8,
    )  # fmt: skip
    return onnx.load(path), {"x": rng.standard_normal(_IMAGE).astype(np.float32)}


def recurrent(kind: str, inputs: int, hidden: int, batch: int, steps: int) -> tuple[Any, Feeds]:
    """One layer in both directions."""
    onnx, rng = importlib.import_module("onnx"), np.random.default_rng(0)
    gates, size = {"LSTM": 4, "GRU": 3}[kind], 1 / np.sqrt(hidden)
    shapes = {
        "w": (2, gates * hidden, inputs), "r": (2, gates * hidden, hidden), "b": (2, 2 * gates * hidden),
    }  # fmt: skip
    extra = {"linear_before_reset": 1} if kind == "GRU" else {}
    node = onnx.helper.make_node(
        kind, ["x", *shapes], ["y"], direction="bidirectional", hidden_size=hidden, **extra
    )
    held = [
        onnx.numpy_helper.from_array(rng.uniform(-size, size, s).astype(np.float32), n)
        for n, s in shapes.items()
    ]
    return _model(node, (steps, batch, inputs), (steps, 2, batch, hidden), held, [("", 17)], rng)


def forest(trees: int, depth: int, features: int, rows: int) -> tuple[Any, Feeds]:
    """Whole trees of one depth; node n of a tree has the children 2n + 1 and 2n + 2."""
    onnx, rng = importlib.import_module("onnx"), np.random.default_rng(0)
    inner, count = 2**depth - 1, 2 ** (depth + 1) - 1
    each, leaf = np.tile(np.arange(count), trees), np.tile(np.arange(count) >= inner, trees)
    tree = np.repeat(np.arange(trees), count)
    node = onnx.helper.make_node(
        "TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=1,
        nodes_treeids=tree.tolist(), nodes_nodeids=each.tolist(),
        nodes_featureids=np.where(leaf, 0, rng.integers(0, features, leaf.size)).tolist(),
        nodes_values=np.where(leaf, 0, rng.standard_normal(leaf.size)).astype(np.float32).tolist(),
        nodes_modes=["LEAF" if end else "BRANCH_LEQ" for end in leaf],
        nodes_truenodeids=np.where(leaf, 0, 2 * each + 1).tolist(),
        nodes_falsenodeids=np.where(leaf, 0, 2 * each + 2).tolist(), target_treeids=tree[leaf].tolist(),
        target_nodeids=each[leaf].tolist(), target_ids=[0] * int(leaf.sum()),
        target_weights=rng.standard_normal(int(leaf.sum())).astype(np.float32).tolist(),
    )  # fmt: skip
    return _model(node, (rows, features), (rows, 1), [], [("", 17), ("ai.onnx.ml", 3)], rng)


def _model(
    node: Any, given: tuple[int, ...], made: tuple[int, ...], held: list[Any], sets: list[tuple[str, int]], rng: Any
) -> tuple[Any, Feeds]:  # fmt: skip
    onnx = importlib.import_module("onnx")
    infos = [
        onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s)
        for n, s in (("x", given), ("y", made))
    ]
    graph = onnx.helper.make_graph([node], "one", infos[:1], infos[1:], held)
    opsets = [onnx.helper.make_opsetid(*s) for s in sets]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9)
    return model, {"x": rng.standard_normal(given).astype(np.float32)}


MODELS: dict[str, Callable[[], tuple[Any, Feeds]]] = {
    **{
        f"{short}-{form}": partial(quantized, name, form)
        for short, name in (("resnet18", "resnet18"), ("mbv3s", "mobilenet_v3_small"))
        for form in ("QOperator", "QDQ")
    },
    "lstm-256x1": partial(recurrent, "LSTM", 128, 256, 1, 100),
    "lstm-64x1": partial(recurrent, "LSTM", 32, 64, 1, 50),
    "lstm-128x8": partial(recurrent, "LSTM", 128, 128, 8, 100),
    "gru-256x1": partial(recurrent, "GRU", 128, 256, 1, 100),
    "forest-1": partial(forest, 100, 8, 30, 1),
    "forest-1000": partial(forest, 100, 8, 30, 1000),
    "boosting-1000": partial(forest, 300, 5, 30, 1000),
}

if __name__ == "__main__":
    engine.MODELS.clear()
    engine.MODELS.update(MODELS)
    engine.main()
