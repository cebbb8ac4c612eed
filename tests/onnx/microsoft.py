"""One node of com.microsoft as a model, held against float64 and against ONNX Runtime's own kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper

import rlx
from tests.onnx.models import model, node
from tests.onnx.runtime import session

Arrays = Mapping[str, np.ndarray]
DOMAIN = "com.microsoft"


def microsoft(
    kind: str, given: Arrays, names: str = "", outputs: str = "y", domain: str = DOMAIN, **attributes: Any
) -> onnx.ModelProto:
    """A model of one node; `names` are its inputs, `_` for one that is left out, else all in order. Attributes that are
    None are left out."""
    inputs = {n: (list(a.shape), helper.np_dtype_to_tensor_dtype(a.dtype)) for n, a in given.items()}
    kind_of = next(iter(inputs.values()))[1]
    attributes = {n: v for n, v in attributes.items() if v is not None}
    made = node(kind, names or " ".join(given), outputs, domain=domain, name=f"the {kind}", **attributes)
    outs = {n: (None, kind_of) for n in outputs.split() if n != "_"}
    return model([made], inputs, outs, domains=[DOMAIN])


def judged(
    device: str, kind: str, given: Arrays, wanted: Any, names: str = "", outputs: str = "y",
    tolerance: float = 1e-5, **attributes: Any,
) -> None:  # fmt: skip
    """Compares rlx's results with those in float64; f16 and bf16 within their own precision."""
    got = rlx.onnx.load(microsoft(kind, given, names, outputs, **attributes)).run(dict(given), device=device)
    want = wanted if isinstance(wanted, Mapping) else {"y": wanted}
    for name, array in want.items():
        half = next(iter(given.values())).dtype == np.float16
        top = max(1.0, float(np.abs(array).max(initial=0)))
        assert got[name].shape == array.shape, name
        error = np.abs(got[name].astype(np.float64) - array).max(initial=0)
        assert error <= (4e-3 if half else tolerance) * top, f"{kind} {name}: off by {error:.3g}"


def beside(
    kind: str, given: Arrays, names: str = "", outputs: str = "y", tolerance: float = 2e-5, **attributes: Any
) -> dict[str, np.ndarray]:
    """Compares rlx's results on the CPU with ONNX Runtime's, and returns them; skips where that is not installed."""
    proto = microsoft(kind, given, names, outputs, **attributes)
    judge = session(proto)
    want = dict(zip([i.name for i in judge.get_outputs()], judge.run(None, dict(given)), strict=True))
    got = rlx.onnx.load(proto).run(dict(given), device="cpu")
    for name, array in want.items():
        assert got[name].shape == array.shape, (kind, name, got[name].shape, array.shape)
        assert got[name].dtype == array.dtype
        top = max(1.0, float(np.abs(array.astype(np.float64)).max(initial=0)))
        error = np.abs(got[name].astype(np.float64) - array.astype(np.float64)).max(initial=0)
        assert error <= tolerance * top, f"{kind} {name}: off by {error:.3g}"
    return got


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    made: np.ndarray = e / e.sum(-1, keepdims=True)
    return made


def by_heads(x: np.ndarray, count: int) -> np.ndarray:
    """(batch, heads, length, size) in float64 of (batch, length, heads · size)."""
    return x.astype(np.float64).reshape(*x.shape[:2], count, -1).swapaxes(1, 2)


def attended(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, added: Any = 0.0, scale: float | None = None, cap: float = 0.0,
    sink: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """softmax(q·kᵀ·scale + added)·v, heads side by side; (batch, heads, length, size) all, each key's head for several
    of the queries'. A sink is a score that each head has besides, with no value."""
    k, v = (np.repeat(t, q.shape[1] // t.shape[1], 1) for t in (k, v))
    scores = q @ k.swapaxes(2, 3) * (1 / np.sqrt(q.shape[3]) if scale is None else scale)
    scores = (np.tanh(scores / cap) * cap if cap else scores) + added
    if sink is not None:
        lost = np.broadcast_to(sink[:, None, None], (*scores.shape[:3], 1))
        scores, v = np.concatenate([scores, lost], 3), np.concatenate([v, 0 * v[:, :, :1]], 2)
    made = softmax(scores) @ v
    return made.swapaxes(1, 2).reshape(q.shape[0], q.shape[2], -1)


def later(n_q: int, n_k: int) -> np.ndarray:
    """-inf for keys that come after a query, the last query standing at the last key."""
    return np.where(np.arange(n_k) <= n_k - n_q + np.arange(n_q)[:, None], 0, -np.inf)
