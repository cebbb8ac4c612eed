"""Nodes of com.microsoft on quantized numbers as models; what comes out beside what should, step by step."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper

import rlx
from tests.onnx.models import model, node
from tests.onnx.runtime import session

Arrays = Mapping[str, np.ndarray]


def whole(dtype: Any, *shape: int, seed: int = 0) -> np.ndarray:
    """Random integers over the dtype's whole range."""
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(info.min, info.max + 1, shape).astype(dtype)


def quantized(
    kind: str, given: Arrays, weights: Arrays | None = None, names: str = "", outputs: str = "y", to: Any = None,
    **attributes: Any,
) -> onnx.ModelProto:  # fmt: skip
    """A model of one node, inputs and then weights in order or as `names` has them; `to` is the type of the outputs,
    else the first input's."""
    weights = weights or {}
    dtype = np.dtype(to if to is not None else next(iter(given.values())).dtype)
    inputs = {n: (list(a.shape), helper.np_dtype_to_tensor_dtype(a.dtype)) for n, a in given.items()}
    outs = {n: (None, helper.np_dtype_to_tensor_dtype(dtype)) for n in outputs.split() if n != "_"}
    made = node(kind, names or " ".join([*given, *weights]), outputs, domain="com.microsoft", **attributes)
    return model([made], inputs, outs, weights, domains=["com.microsoft"])


def steps_off(proto: onnx.ModelProto, given: Arrays, device: str, want: np.ndarray) -> int:
    """How many elements of y are the next integer to what is wanted; none may be further off."""
    made = rlx.onnx.load(proto).run(dict(given), device=device)["y"]
    assert made.shape == want.shape and made.dtype == want.dtype
    off = np.abs(made.astype(np.int64) - want.astype(np.int64))
    assert off.max(initial=0) <= 1, f"off by {off.max()} steps"
    return int(np.count_nonzero(off))


def judged_by_runtime(device: str) -> bool:
    """Whether results on a device are also to be ONNX Runtime's: the CPU's where it is installed."""
    return device == "cpu" and importlib.util.find_spec("onnxruntime") is not None


def in_runtime(proto: onnx.ModelProto, given: Arrays) -> list[np.ndarray]:
    """What ONNX Runtime gives with one thread, exact products and without its optimizer; skips where it is not
    installed."""
    return list(session(proto, "DISABLE_ALL").run(None, dict(given)))


def stepped(x: np.ndarray, scale: Any, zero: Any, dtype: Any) -> np.ndarray:
    """x as QuantizeLinear has it, rounded in float64."""
    info = np.iinfo(dtype)
    steps = np.round(np.asarray(x, np.float64) / np.float64(scale)) + np.int64(zero)
    return np.clip(steps, info.min, info.max).astype(dtype)


def meant(q: np.ndarray, scale: Any, zero: Any) -> np.ndarray:
    """What quantized numbers stand for, in float64."""
    return (q.astype(np.float64) - np.int64(zero)) * np.float64(scale)
