"""What ONNX Runtime's quantizers and optimizers, the fp16 converters and onnxslim make of files."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx.shape_inference
import onnx.version_converter
import onnxruntime

Feeds = dict[str, np.ndarray]
Rework = Callable[[Path, Path, Feeds], None]  # a file, the file to write, what the inputs are fed with


class Once:
    """Feeds for a quantizer's calibration, once."""

    def __init__(self, feeds: dict[str, np.ndarray]) -> None:
        self.left = [feeds]

    def get_next(self) -> dict[str, np.ndarray] | None:
        return self.left.pop() if self.left else None

    def rewind(self) -> None:
        raise NotImplementedError


def static(form: str, weight: str, per_channel: bool) -> Rework:
    q = importlib.import_module("onnxruntime.quantization")

    def rework(source: Path, target: Path, feeds: dict[str, np.ndarray]) -> None:
        q.quantize_static(
            str(source), str(target), Once(feeds), quant_format=getattr(q.QuantFormat, form), per_channel=per_channel,
            weight_type=getattr(q.QuantType, weight), activation_type=q.QuantType.QUInt8,
        )  # fmt: skip

    return rework


def dynamic(weight: str) -> Rework:
    q = importlib.import_module("onnxruntime.quantization")
    return lambda source, target, _: q.quantize_dynamic(
        str(source), str(target), weight_type=getattr(q.QuantType, weight)
    )


def blocks(bits: int, symmetric: bool) -> Rework:
    nbits = importlib.import_module("onnxruntime.quantization.matmul_nbits_quantizer")

    def rework(source: Path, target: Path, feeds: dict[str, np.ndarray]) -> None:
        made = nbits.MatMulNBitsQuantizer(onnx.load(source), bits=bits, block_size=32, is_symmetric=symmetric)
        made.process()
        made.model.save_model_to_file(str(target))

    return rework


def saved(level: str) -> Rework:
    def rework(source: Path, target: Path, feeds: dict[str, np.ndarray]) -> None:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
        options.optimized_model_filepath = str(target)
        onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])

    return rework


def fused(kind: str, half: bool = False) -> Rework:
    optimizer = importlib.import_module("onnxruntime.transformers.optimizer")

    def rework(source: Path, target: Path, feeds: dict[str, np.ndarray]) -> None:
        made = optimizer.optimize_model(
            str(source), model_type=kind, num_heads=4, hidden_size=32, opt_level=0
        )
        if half:
            made.convert_float_to_float16()
        made.save_model_to_file(str(target))

    return rework


def half(module: str, keep_io: bool) -> Rework:
    convert = importlib.import_module(module).convert_float_to_float16

    def rework(source: Path, target: Path, feeds: dict[str, np.ndarray]) -> None:
        onnx.save(convert(onnx.load(source), keep_io_types=keep_io), target)

    return rework


def slim() -> Rework:
    onnxslim = importlib.import_module("onnxslim")
    return lambda source, target, _: onnx.save(onnxslim.slim(str(source)), target)


def newer(opset: int) -> Rework:
    return lambda source, target, _: onnx.save(
        onnx.version_converter.convert_version(onnx.load(source), opset), target
    )


def inlined() -> Rework:
    inliner = importlib.import_module("onnx.inliner")
    return lambda source, target, _: onnx.save(
        onnx.shape_inference.infer_shapes(inliner.inline_local_functions(onnx.load(source)), data_prop=True), target
    )


def scripted() -> Rework:
    optimizer = importlib.import_module("onnxscript.optimizer")
    rewriter = importlib.import_module("onnxscript.rewriter")
    return lambda source, target, _: onnx.save(rewriter.rewrite(optimizer.optimize(onnx.load(source))), target)


IMAGES = ("convnet", "resnet", "depthwise", "unet", "squeezenet1_1", "mobilenet_v2", "shufflenet_v2_x0_5")
TEXTS = ("bert", "gpt2", "distilbert", "roberta", "vit", "t5", "llama")
OTHERS = ("mlp", "encoder", "causal", "lstm", "norms", "transposed", "segformer", "swin")


def reworks() -> Iterator[tuple[str, str, Callable[[], Rework], tuple[str, ...]]]:
    """(kind, name, how, the networks it is done to)."""
    for form in ("QDQ", "QOperator"):
        yield "static", f"{form}-s8", lambda form=form: static(form, "QInt8", True), IMAGES
        yield (
            "static",
            f"{form}-u8",
            lambda form=form: static(form, "QUInt8", False),
            (*IMAGES[:4], "mlp", "bert"),
        )
    for weight in ("QInt8", "QUInt8"):
        yield (
            "dynamic",
            weight,
            lambda weight=weight: dynamic(weight),
            ("mlp", "lstm", "bert", "gpt2", "convnet", "vit"),
        )
    for bits in (4, 8):
        yield (
            "MatMulNBits",
            f"{bits}",
            lambda bits=bits: blocks(bits, bits == 4),
            ("mlp", "encoder", "bert", "llama", "vit"),
        )
    for level in ("BASIC", "EXTENDED"):
        yield "optimized", level, lambda level=level: saved(level), (*IMAGES, *TEXTS, *OTHERS)
    yield "nchwc", "ALL", lambda: saved("ALL"), IMAGES[-2:]
    for name, kind in (("bert", "bert"), ("distilbert", "bert"), ("roberta", "bert"), ("gpt2", "gpt2"), ("vit", "vit"),
                       ("t5", "t5"), ("swin", "swin"), ("clip", "clip")):  # fmt: skip
        yield "fused", kind, lambda kind=kind: fused(kind), (name,)
        yield "fused f16", kind, lambda kind=kind: fused(kind, True), (name,)
    for short, module in (
        ("common", "onnxconverter_common.float16"),
        ("ort", "onnxruntime.transformers.float16"),
    ):
        for keep in (False, True):
            which = (
                (*IMAGES[:5], *TEXTS[:4], *OTHERS[:3])
                if keep
                else ("mlp", "resnet", "bert", "unet", "lstm", "vit")
            )
            yield "fp16", f"{short}-{keep}", lambda m=module, keep=keep: half(m, keep), which
    for opset in (13, 21, 23):
        yield "converted", f"{opset}", lambda opset=opset: newer(opset), (*IMAGES[:5], *TEXTS[:5], *OTHERS)
    yield "onnx", "inlined", inlined, (*IMAGES, *TEXTS, *OTHERS)
    yield "onnxscript", "optimized", scripted, (*IMAGES, *TEXTS, *OTHERS)
    yield "onnxslim", "slim", slim, (*IMAGES, *TEXTS, *OTHERS)


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """These tools print and warn of what a sweep need not know, their C++ parts too."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(1), os.dup(2)]
    try:
        with warnings.catch_warnings(), open(os.devnull, "w") as nowhere:
            warnings.simplefilter("ignore")
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
            yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, copy in enumerate(kept, 1):
            os.dup2(copy, number)
            os.close(copy)
        logging.disable(before)
