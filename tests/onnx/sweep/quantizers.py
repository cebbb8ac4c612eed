"""Quantizers' settings: how wide, how many scales, in which form; and what ONNX Runtime's optimizer makes of that."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.onnx.sweep import tools
from tests.onnx.sweep.tools import Feeds, Rework

IMAGES = ("convnet", "resnet", "depthwise", "unet", "mobilenet_v2", "transposed", "conv1d")
ROWS = ("mlp", "encoder", "bert", "vit", "causal")
# name: form, weights, activations, one scale for each channel, 7-bit weights, and further options
STATIC: dict[str, tuple[str, str, str, bool, bool, dict[str, Any]]] = {
    "QDQ-reduced": ("QDQ", "QInt8", "QUInt8", True, True, {}),
    "QDQ-u8s8": ("QDQ", "QInt8", "QUInt8", False, False, {}),
    "QDQ-s8s8": ("QDQ", "QInt8", "QInt8", True, False, {}),
    "QDQ-s8u8": ("QDQ", "QUInt8", "QInt8", False, False, {}),
    "QDQ-symmetric": ("QDQ", "QInt8", "QInt8", False, False, {"ActivationSymmetric": True}),
    "QDQ-restricted": ("QDQ", "QInt8", "QUInt8", False, False, {"ActivationRestrictedAsymmetric": True}),
    "QDQ-uneven": ("QDQ", "QUInt8", "QUInt8", True, False, {"WeightSymmetric": False}),
    "QDQ-pairs": ("QDQ", "QInt8", "QUInt8", True, False, {"DedicatedQDQPair": True,
        "ForceQuantizeNoInputCheck": True}),
    "QDQ-floats": ("QDQ", "QInt8", "QUInt8", False, False, {"AddQDQPairToWeight": True}),
    "QDQ-bias": ("QDQ", "QInt8", "QUInt8", True, False, {"QuantizeBias": False}),
    "QDQ-contrib": ("QDQ", "QInt8", "QUInt8", True, False, {"UseQDQContribOps": True}),
    "QDQ-a16w8": ("QDQ", "QInt8", "QUInt16", True, False, {}),
    "QDQ-s16w8": ("QDQ", "QUInt8", "QInt16", False, False, {}),
    "QDQ-a16w16": ("QDQ", "QInt16", "QUInt16", False, False, {}),
    "QDQ-a8w4": ("QDQ", "QInt4", "QUInt8", True, False, {}),
    "QDQ-a16w4": ("QDQ", "QUInt4", "QUInt16", False, False, {}),
    "QDQ-f8": ("QDQ", "QFLOAT8E4M3FN", "QFLOAT8E4M3FN", False, False, {}),
    "QDQ-constant": ("QDQ", "QInt8", "QUInt8", True, False, {"MatMulConstBOnly": True}),
    "QOperator-reduced": ("QOperator", "QInt8", "QUInt8", True, True, {}),
    "QOperator-s8s8": ("QOperator", "QInt8", "QInt8", False, False, {}),
    "QOperator-uneven": ("QOperator", "QUInt8", "QUInt8", True, False, {"WeightSymmetric": False}),
}  # fmt: skip
CALIBRATED = ("Entropy", "Percentile")


def static(setting: str, method: str = "MinMax", prepared: bool = False) -> Rework:
    q = importlib.import_module("onnxruntime.quantization")
    form, weight, activation, channels, reduced, extra = STATIC[setting]
    if "FLOAT8" in weight:
        method = "Distribution"

    def rework(source: Path, target: Path, feeds: Feeds) -> None:
        with TemporaryDirectory() as folder:
            given: Any = source
            if "4" in weight or "16" in activation + weight:  # types of opset 21
                given = Path(folder) / "new.onnx"
                onnx.save(onnx.version_converter.convert_version(onnx.load(source), 21), given)
            if prepared:
                shapes = importlib.import_module("onnxruntime.quantization.shape_inference")
                shapes.quant_pre_process(str(given), str(Path(folder) / "prepared.onnx"))
                given = Path(folder) / "prepared.onnx"
            q.quantize_static(
                str(given), str(target), tools.Once(feeds), quant_format=getattr(q.QuantFormat, form),
                per_channel=channels, reduce_range=reduced, weight_type=getattr(q.QuantType, weight),
                activation_type=getattr(q.QuantType, activation),
                calibrate_method=getattr(q.CalibrationMethod, method), extra_options=extra,
            )  # fmt: skip

    return rework


def dynamic(**options: Any) -> Rework:
    q = importlib.import_module("onnxruntime.quantization")
    return lambda source, target, _: q.quantize_dynamic(
        str(source), str(target), weight_type=q.QuantType.QInt8, **options
    )


def blocks(form: str, **options: Any) -> Rework:
    n = importlib.import_module("onnxruntime.quantization.matmul_nbits_quantizer")
    q = importlib.import_module("onnxruntime.quantization")

    def rework(source: Path, target: Path, feeds: Feeds) -> None:
        proto = onnx.load(source)
        if form == "QDQ":
            proto = onnx.version_converter.convert_version(proto, 21)
        config = {
            "hqq": lambda: n.HQQWeightOnlyQuantConfig(block_size=32, bits=4),
            "k": lambda: n.KQuantWeightOnlyQuantConfig(),
        }.get(form, lambda: None)()
        how = {"quant_format": getattr(q.QuantFormat, form)} if form in ("QDQ", "QOperator") else {}
        made = n.MatMulNBitsQuantizer(proto, algo_config=config, **how, **options)
        made.process()
        made.model.save_model_to_file(str(target))

    return rework


def four_bit_floats(kind: int) -> Rework:
    n = importlib.import_module("onnxruntime.quantization.matmul_bnb4_quantizer")

    def rework(source: Path, target: Path, feeds: Feeds) -> None:
        made = n.MatMulBnb4Quantizer(onnx.load(source), kind, 32)
        made.process()
        made.model.save_model_to_file(str(target))

    return rework


def then(*steps: Rework) -> Rework:
    """One after the other."""

    def rework(source: Path, target: Path, feeds: Feeds) -> None:
        with TemporaryDirectory() as folder:
            for k, step in enumerate(steps):
                made = target if k == len(steps) - 1 else Path(folder) / f"{k}.onnx"
                step(source, made, feeds)
                source = made

    return rework


def settings() -> Iterator[tuple[str, str, Callable[[], Rework], tuple[str, ...]]]:
    """(kind, name, how, the networks it is done to), as `tools.reworks`."""
    for name in STATIC:
        yield "static, settings", name, lambda name=name: static(name), (*IMAGES, *ROWS)
    for method in CALIBRATED:
        yield "static, settings", method, lambda m=method: static("QDQ-u8s8", m), IMAGES[:3]
    for name in ("QDQ-u8s8", "QOperator-s8s8"):
        yield "static, prepared", name, lambda n=name: static(n, prepared=True), (*IMAGES[:3], *ROWS[:4])
        for level in ("EXTENDED", "BASIC"):
            yield (
                "static, optimized",
                f"{name}-{level}",
                lambda n=name, v=level: then(static(n), tools.saved(v)),
                (*IMAGES[:3], *ROWS[:4]),
            )
    for name, options in {
        "channels": {"per_channel": True}, "reduced": {"reduce_range": True, "per_channel": True},
        "both": {"extra_options": {"MatMulConstBOnly": False}},
        "more": {"op_types_to_quantize": ["MatMul", "Gemm", "Gather", "LSTM", "Conv", "EmbedLayerNormalization",
            "Attention"]},
    }.items():  # fmt: skip
        networks = ("mlp", "lstm", "bert", "gpt2", "convnet", "vit")
        yield "dynamic, settings", name, lambda o=options: dynamic(**o), networks
    yield "dynamic, optimized", "EXTENDED", lambda: then(dynamic(), tools.saved("EXTENDED")), (*ROWS, "gpt2", "lstm")
    floats = {"DefaultTensorType": TensorProto.FLOAT}  # which shape inference does not find behind these operators
    for name, kind in (("bert", "bert"), ("distilbert", "bert"), ("vit", "vit"), ("clip", "clip")):
        yield "dynamic, fused", kind, lambda k=kind: then(tools.fused(k), dynamic(extra_options=floats)), (name,)
    for name, form, options in (
        ("4-QDQ-16", "QDQ", {"block_size": 16}), ("4-QDQ-128", "QDQ", {"block_size": 128, "is_symmetric": True}),
        ("4-16", "QOperator", {"block_size": 16}), ("4-64", "QOperator", {"block_size": 64, "is_symmetric": True}),
        ("4-level4", "QOperator", {"block_size": 32, "accuracy_level": 4}),
        ("2-32", "QOperator", {"bits": 2, "block_size": 32}), ("8-64", "QOperator", {"bits": 8, "block_size": 64}),
        ("4-columns", "QDQ", {"channel_wised_quantize": True, "block_size": 32}),
        ("4-tables", "QOperator", {"block_size": 32, "op_types_to_quantize": ("MatMul", "Gather")}),
        ("4-hqq", "hqq", {}), ("4-k", "k", {}),
    ):  # fmt: skip
        networks = ("mlp", "encoder", "bert", "llama", "vit")
        yield "MatMulNBits, settings", name, lambda f=form, o=options: blocks(f, **o), networks
    for kind, name in enumerate(("fp4", "nf4")):
        yield "MatMulBnb4", name, lambda k=kind: four_bit_floats(k), ("mlp", "encoder", "bert")


# -- written here: scales at the ends of f32's range, zero points at the ends of theirs


def _product(scales: tuple[float, float, float], shape: str, kinds: tuple[type, type]) -> tuple[onnx.ModelProto,
    Feeds]:
    rng = np.random.default_rng(1)
    a, b = kinds
    if shape == "conv":
        x, w = rng.standard_normal((1, 3, 9, 9)), rng.integers(0, 100, (4, 3, 3, 3))
    else:
        x, w = rng.standard_normal((5, 12)), rng.integers(0, 100, (12, 7))
    x = (x * 40 * scales[0]).astype(np.float32)
    x.flat[:3] = 0
    weights = [
        numpy_helper.from_array(np.float32(scales[0]), "sx"), numpy_helper.from_array(a(3), "zx"),
        numpy_helper.from_array(w.astype(b), "w"), numpy_helper.from_array(np.float32(scales[1]), "sw"),
        numpy_helper.from_array(b(0), "zw"), numpy_helper.from_array(np.float32(scales[2]), "sy"),
        numpy_helper.from_array(a(5), "zy"),
    ]  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "sx", "zx"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "sx", "zx"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "sw", "zw"], ["v"]),
        helper.make_node("Conv" if shape == "conv" else "MatMul", ["d", "v"], ["p"]),
        helper.make_node("QuantizeLinear", ["p", "sy", "zy"], ["r"]),
        helper.make_node("DequantizeLinear", ["r", "sy", "zy"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "product", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("p", "y")], weights,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), {"x": x}


def scales() -> dict[str, Callable[[Path], Feeds]]:
    """Quantized products whose scales are large, small or apart."""
    made: dict[str, Callable[[Path], Feeds]] = {}
    for shape in ("matmul", "conv"):
        for kinds in ((np.uint8, np.int8), (np.uint8, np.uint8), (np.int8, np.int8)):
            for name, given in {
                "large": (1e20, 1e20, 1e38), "small": (1e-20, 1e-20, 1e-36), "apart": (1e25, 1e-25, 10.0),
                "huge": (1e36, 1e2, 1e38), "tiny": (1e-37, 1e-3, 1e-38), "plain": (0.02, 0.01, 0.5),
            }.items():  # fmt: skip

                def write(path: Path, given: Any = given, shape: str = shape, kinds: Any = kinds) -> Feeds:
                    proto, feeds = _product(given, shape, kinds)
                    onnx.save(proto, path)
                    return feeds

                made[f"{shape}-{name}-{kinds[0].__name__}-{kinds[1].__name__}"] = write
    return made
