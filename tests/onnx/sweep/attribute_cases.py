"""The operators with functions beside the activations: their odd attributes, inputs and the formulas of their texts in
float64. A formula gives None where the text gives no value, or forbids the attributes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
from onnx import defs

Array = np.ndarray
FLOATS = [-2.0, -0.5, 0.0, 1.5, 2.0**-100, -(2.0**-100), 1e-30, -1e-30, 1e30, -1e30, math.inf, -math.inf, math.nan]
INTS = [-(2**63), -7, -3, -2, -1, 0, 1, 2, 3, 5, 2**31, 2**63 - 1]
F16, F32, F64 = (np.dtype(t) for t in ("float16", "float32", "float64"))
BF16 = np.dtype(ml_dtypes.bfloat16)
I64 = np.dtype(np.int64)
FEW = [-(2**63), -1, 0, 1, 2, 3, 4]
KINDS = [BF16, F16, F32, F64]


@dataclass(frozen=True)
class Case:
    """One node: its operator, opset, inputs, attributes, what its first output is (None: refused), and the roundings
    that are allowed. Attributes that are no finite numbers may be refused."""

    kind: str
    opset: int
    feeds: dict[str, Array]
    attributes: dict[str, Any]
    want: Array | None
    roundings: int = 16
    domain: str = ""
    order: str = ""  # the inputs, `_` for one that is left out; by default those fed
    results: str = "y"  # the first is compared


def versions(kind: str, since: int = 7, domain: str = "") -> list[int]:
    """The opsets in which an operator changed, from `since` on."""
    found = sorted(
        {s.since_version for s in defs.get_all_schemas_with_history() if (s.domain, s.name) == (domain, kind)}
    )
    return [max(v, since) for v in found if v >= since or v == max((w for w in found if w <= since), default=0)]


def takes(kind: str, opset: int, dtype: np.dtype[Any]) -> bool:
    """Whether the operator's first input may have a dtype."""
    schema = defs.get_schema(kind, opset)
    allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    name = {F16: "float16", F32: "float", F64: "double"}.get(dtype, dtype.name)
    return f"tensor({name})" in allowed.get(schema.inputs[0].type_str, [])


def held(value: float) -> float:
    """An attribute as the file holds it."""
    return float(np.float32(value))


def each(kind: str, since: int = 7) -> Iterator[tuple[int, np.dtype[Any]]]:
    return ((v, t) for v in versions(kind, since) for t in KINDS if takes(kind, v, t))


def _x(*shape: int, seed: int = 0) -> Array:
    made = np.random.default_rng(seed).integers(-64, 65, shape) / 16.0
    if made.ndim > 1:
        made.reshape(shape[0], -1)[0] = 1.0
    return made


def _ends(axis: int, rank: int) -> int | None:
    return axis % rank if -rank <= axis < rank else None


# -- norms


def _normal(x: Array, axes: tuple[int, ...], eps: float, centred: bool = True) -> Array:
    mean = x.mean(axes, keepdims=True) if centred else 0.0
    return (x - mean) / np.sqrt(((x - mean) ** 2).mean(axes, keepdims=True) + eps)


def norms() -> Iterator[Case]:
    x = _x(2, 4, 3)
    scale, bias = np.array([0.5, -1.0, 2.0]), np.array([0.25, 0.0, -1.0])
    row4 = np.array([0.5, -1.0, 2.0, 1.0])
    for eps, kind in itertools.product(FLOATS, ("LayerNormalization", "RMSNormalization")):
        for v, t in each(kind):
            feeds = {"x": x.astype(t), "s": scale.astype(t)}
            want = _normal(x, (2,), held(eps), kind[0] == "L") * scale
            yield Case(kind, v, feeds, {"epsilon": eps}, want, 64)
    for kind in ("LayerNormalization", "RMSNormalization"):
        for v, t in each(kind):
            for axis, stash in itertools.product(INTS, (1, 10, 11, 16, 0, -1, 7)):
                at = _ends(axis, 3)
                whole = tuple(range(at, 3)) if at is not None else ()
                good = at is not None and stash in (1, 10, 11, 16)
                want = _normal(x, whole, held(1e-5), kind[0] == "L") * scale if good else None
                feeds = {"x": x.astype(t), "s": scale.astype(t)}
                yield Case(kind, v, feeds, {"axis": axis, "stash_type": stash}, want, 64)
    for v, t in each("InstanceNormalization", 6):
        for eps in FLOATS:
            want = _normal(x, (2,), held(eps)) * row4[:, None]
            feeds = {"x": x.astype(t), "s": row4.astype(t), "b": np.zeros(4, t)}
            yield Case("InstanceNormalization", v, feeds, {"epsilon": eps}, want, 64)
    for v, t in each("GroupNormalization", 18):
        for eps, groups in [*((e, 2) for e in FLOATS), *((held(1e-5), n) for n in INTS), (held(1e-5), 4)]:
            good = groups in (1, 2, 4)
            n = groups if v < 21 and good else 4
            want = None
            if good:
                parts = _normal(x.reshape(2, groups, -1), (2,), held(eps)).reshape(x.shape)
                want = parts * np.repeat(row4[:n], 4 // n)[:, None]
            feeds = {"x": x.astype(t), "s": row4[:n].astype(t), "b": np.zeros(n, t)}
            yield Case("GroupNormalization", v, feeds, {"epsilon": eps, "num_groups": groups}, want, 64)
    mean, var = np.array([0.5, 0.0, -1.0, 2.0]), np.array([1.0, 0.0, 0.25, 2.0])
    for v, t in each("BatchNormalization"):
        for eps in FLOATS:
            want = (x - mean[:, None]) / np.sqrt(var[:, None] + held(eps)) * row4[:, None]
            four = {"s": row4, "b": np.zeros(4), "m": mean, "v": var}
            feeds = {"x": x.astype(t), **{n: a.astype(t) for n, a in four.items()}}
            yield Case("BatchNormalization", v, feeds, {"epsilon": eps}, want, 64)
    y = _x(2, 3, 2, 2, seed=1)
    for v, t in each("MeanVarianceNormalization", 9):
        for axes in ([0], [-1], [1, 2], [0, 2, 3], [0, 0], [-4, 0], [4], [-5], [2**40]):
            good = all(-4 <= a < 4 for a in axes) and len({a % 4 for a in axes}) == len(axes)
            over = tuple(axes)
            want = None
            if good:
                away = y - y.mean(over, keepdims=True)
                want = away / (np.sqrt((away**2).mean(over, keepdims=True)) + 1e-9)
            yield Case("MeanVarianceNormalization", v, {"x": y.astype(t)}, {"axes": axes}, want, 64)
    for eps, t in itertools.product(FLOATS, KINDS):
        feeds = {"x": x.astype(t), "s": scale.astype(t)}
        want = _normal(x, (2,), held(eps), False) * scale
        yield Case("SimplifiedLayerNormalization", 17, feeds, {"epsilon": eps}, want, 64)
        if t == F64:
            continue
        both = {"x": x.astype(t), "k": x.astype(t), "g": scale.astype(t), "b": bias.astype(t)}
        want = _normal(2 * x, (2,), held(eps)) * scale + bias
        yield Case("SkipLayerNormalization", 17, both, {"epsilon": eps}, want, 64, "com.microsoft")
        want = _normal(2 * x, (2,), held(eps), False) * scale + bias * 0
        yield Case("SkipSimplifiedLayerNormalization", 17, {n: both[n] for n in "xkg"}, {"epsilon": eps}, want, 64,
                   "com.microsoft")  # fmt: skip


# -- attention


def _softmax(x: Array, axis: int = -1) -> Array:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def attention() -> Iterator[Case]:
    rng = np.random.default_rng(3)
    q, k, v = (rng.integers(-8, 9, (1, n, 3, 4)) / 8.0 for n in (4, 2, 2))
    mask = rng.integers(-8, 9, (3, 3)) / 4.0
    pairs = [*((s, 0.0) for s in FLOATS), *((1.5, c) for c in FLOATS), (-0.5, -0.5), (0.0, 1.5), (-2.0, 1e30)]
    for (opset, t), (scale, cap), form in itertools.product(
        each("Attention", 23), pairs, ("", "mask", "causal")
    ):
        if t == F16 and max(abs(scale), abs(cap)) > 1e4:
            continue
        s = held(scale) * np.einsum("bhqe,bhke->bhqk", q, np.repeat(k, 2, 1))
        s = held(cap) * np.tanh(s / held(cap)) if cap else s
        s = s + mask if form == "mask" else s
        s = np.where(np.tril(np.ones((3, 3), bool)), s, -math.inf) if form == "causal" else s
        feeds = {"q": q.astype(t), "k": k.astype(t), "v": v.astype(t)}
        feeds |= {"m": mask.astype(t)} if form == "mask" else {}
        attributes = {"scale": scale, "softcap": cap, "is_causal": int(form == "causal")}
        yield Case("Attention", opset, feeds, attributes, _softmax(s) @ np.repeat(v, 2, 1), 64)
    wide = {n: a.transpose(0, 2, 1, 3).reshape(1, 3, -1) for n, a in zip("qkv", (q, k, v), strict=True)}
    for (opset, t), heads, groups in itertools.product(each("Attention", 23), FEW, FEW):
        good = heads > 0 and groups > 0 and 16 % heads == 0 and 8 % groups == 0
        good = good and heads % groups == 0 and 16 // heads == 8 // groups
        want = None
        if good:
            q4, k4, v4 = (a.reshape(1, 3, n, -1).transpose(0, 2, 1, 3)
                          for a, n in zip(wide.values(), (heads, groups, groups), strict=True))  # fmt: skip
            k4, v4 = (np.repeat(a, heads // groups, 1) for a in (k4, v4))
            made = _softmax(q4 @ k4.transpose(0, 1, 3, 2) / math.sqrt(16 // heads)) @ v4
            want = made.transpose(0, 2, 1, 3).reshape(1, 3, -1)
        feeds = {n: a.astype(t) for n, a in wide.items()}
        yield Case("Attention", opset, feeds, {"q_num_heads": heads, "kv_num_heads": groups}, want, 64)
    for (opset, t), name, value in itertools.product(
        each("Attention", 23), ("is_causal", "qk_matmul_output_mode", "softmax_precision"), (-1, 2, 3, 4, 7, 2**40)
    ):
        if name == "qk_matmul_output_mode" and value in (2, 3):
            continue
        feeds = {"q": q.astype(t), "k": k.astype(t), "v": v.astype(t)}
        yield Case("Attention", opset, feeds, {name: value}, None)
    for scale, t in itertools.product(FLOATS, KINDS):
        if t == F16 and abs(scale) > 1e4:
            continue
        s = held(scale) * np.einsum("bhqe,bhke->bhqk", q, np.repeat(k, 2, 1))
        feeds = {"q": q.astype(t), "k": k.astype(t), "v": v.astype(t)}
        want = _softmax(s) @ np.repeat(v, 2, 1)
        yield Case("FlexAttention", 26, feeds, {"scale": scale}, want, 64, "ai.onnx.preview")


def _recurrent(rule: str, q: Array, k: Array, v: Array, g: Array, b: Array, scale: float) -> Array:
    """The text's recurrence over (T, H, D) of one sequence."""
    state, made = np.zeros((k.shape[1], k.shape[2], v.shape[2])), []
    share = q.shape[1] // k.shape[1]
    for i in range(len(q)):
        for h in range(k.shape[1]):
            old = state[h] * (np.exp(g[i, h])[:, None] if "gated" in rule else 1.0)
            new = v[i, h] if "delta" not in rule else b[i, h] * (v[i, h] - old.T @ k[i, h])
            state[h] = old + np.outer(k[i, h], new)
        made.append(np.concatenate([scale * q[i, h] @ state[h // share] for h in range(q.shape[1])]))
    return np.array(made)


def linear_attention() -> Iterator[Case]:
    rng = np.random.default_rng(4)
    q, k, v = (rng.integers(-8, 9, (3, n, 2)) / 16.0 for n in (4, 2, 2))
    g, b = -rng.integers(0, 9, (3, 2, 2)) / 8.0, rng.integers(0, 9, (3, 2, 1)) / 8.0
    opsets = versions("LinearAttention", 27)
    types = [t for t in (F32,) if takes("LinearAttention", 27, t)]
    fed = {n: a.reshape(1, 3, -1) for n, a in zip("qkvgb", (q, k, v, g, b), strict=True)}
    rules = ("linear", "gated", "delta", "gated_delta")
    for opset, t, rule, scale in itertools.product(opsets, types, rules, FLOATS):
        want = _recurrent(rule, q, k, v, g, b, held(scale) or 2**-0.5)[None]
        names = "q k v _ g b"
        feeds = {n: a.astype(t) for n, a in fed.items()}
        attributes = {"q_num_heads": 4, "kv_num_heads": 2, "scale": scale, "update_rule": rule}
        yield Case("LinearAttention", opset, feeds, attributes, want, 64, order=names, results="y z")
    for opset, t, heads, groups in itertools.product(opsets, types, FEW, FEW):
        if (heads, groups) in ((2, 1), (4, 2)):
            continue
        feeds = {n: a.astype(t) for n, a in fed.items() if n in "qkv"}
        attributes = {"q_num_heads": heads, "kv_num_heads": groups, "update_rule": "linear"}
        yield Case("LinearAttention", opset, feeds, attributes, None, results="y z")
    for opset, t, (rule, chunk) in itertools.product(opsets, types, [("x", 64), *(("delta", n) for n in INTS)]):
        want = None if rule == "x" else _recurrent(rule, q, k, v, g, b, 2**-0.5)[None]
        feeds = {n: a.astype(t) for n, a in fed.items()}
        attributes = {"q_num_heads": 4, "kv_num_heads": 2, "update_rule": rule, "chunk_size": chunk}
        yield Case("LinearAttention", opset, feeds, attributes, want, 64, order="q k v _ g b", results="y z")
    x, w = rng.integers(-8, 9, (1, 2, 5)) / 8.0, rng.integers(-8, 9, (2, 1, 3)) / 8.0
    whole = np.concatenate([np.zeros((1, 2, 2)), x], 2)
    conv = sum(whole[:, :, i : i + 5] * w[None, :, 0, i, None] for i in range(3))
    for (opset, t), how in itertools.product(each("CausalConvWithState", 27), ("none", "silu", "swish", "x", "")):
        good = {"none": conv, "silu": conv / (1 + np.exp(-conv)), "swish": conv / (1 + np.exp(-conv))}.get(how)
        feeds = {"x": x.astype(t), "w": w.astype(t)}
        yield Case("CausalConvWithState", opset, feeds, {"activation": how}, good, 64, results="y z")


def rotary() -> Iterator[Case]:
    rng = np.random.default_rng(5)
    x = rng.integers(-8, 9, (1, 2, 8)) / 8.0
    angles = rng.integers(0, 9, (1, 2, 4)) / 4.0
    for (opset, t), heads, turned, mixed, half in itertools.product(
        each("RotaryEmbedding", 23), FEW, [*FEW, 8], (0, 1), (1, 2, 4)
    ):
        size = 8 // heads if heads > 0 and 8 % heads == 0 else 0
        width = turned or size
        want = None
        cos, sin = (f(angles[..., :half]).astype(t).astype(np.float64) for f in (np.cos, np.sin))
        if size and width == 2 * half and width <= size:
            y = x.reshape(1, 2, heads, size)
            part = y[..., :width]
            a, b = (part[..., ::2], part[..., 1::2]) if mixed else np.split(part, 2, -1)
            c, s = cos[:, :, None], sin[:, :, None]
            both = [a * c - b * s, a * s + b * c]
            rot = np.stack(both, -1).reshape(part.shape) if mixed else np.concatenate(both, -1)
            want = np.concatenate([rot, y[..., width:]], -1).reshape(x.shape)
        feeds = {"x": x.astype(t), "c": cos.astype(t), "s": sin.astype(t)}
        attributes = {"num_heads": heads, "rotary_embedding_dim": turned, "interleaved": mixed}
        yield Case("RotaryEmbedding", opset, feeds, attributes, want)


# -- shapes and numbers made from attributes


def windows() -> Iterator[Case]:
    weights = {"HannWindow": (1, 1, 0), "HammingWindow": (25, 21, 0), "BlackmanWindow": (21, 25, 4)}
    codes = {1: F32, 10: F16, 11: F64, 16: BF16, 3: np.dtype(np.int8), 8: None, 0: None, -1: None, 2**31: None}
    for (kind, (a, b, d)), size, periodic, code in itertools.product(
        weights.items(), (-(2**63), -1, 0, 1, 2, 3, 6, 17, 2**62), (-1, 0, 1, 2), codes
    ):
        to = codes[code]
        good = periodic in (0, 1) and 0 <= size < 2**62 and not (size == 1 and not periodic) and to is not None
        want = None
        if good:
            turn = 2 * math.pi * np.arange(size) / max(size - 1 + periodic, 1)
            want = (a - b * np.cos(turn) + d * np.cos(2 * turn)) / (a + b + d)
            want = np.trunc(want) if to.kind == "i" else want
        attributes = {"periodic": periodic, "output_datatype": code}
        yield Case(kind, 17, {"s": np.array(size, np.int64)}, attributes, want, 4)


def losses() -> Iterator[Case]:
    rng = np.random.default_rng(6)
    scores, labels, weights = rng.integers(-8, 9, (4, 3)) / 4.0, np.array([0, 2, 1, 2]), np.array([0.5, 2.0, 0.0])
    for kind in ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"):
        soft = kind[0] == "S"
        logs = scores - np.log(np.exp(scores).sum(1, keepdims=True)) if soft else scores
        for (opset, t), how, ignored, weighted in itertools.product(
            each(kind, 12), ("none", "sum", "mean", "max", ""), [None, *INTS], (False, True)
        ):
            rows = np.where(labels == ignored, 0.0, weights[labels] if weighted else 1.0)
            each_one = np.where(labels == ignored, 0.0, -logs[np.arange(4), labels] * rows)
            want = {"none": each_one, "sum": each_one.sum(), "mean": each_one.sum() / rows.sum()}.get(how)
            feeds = {"x": scores.astype(t), "t": labels} | ({"w": weights.astype(t)} if weighted else {})
            attributes = {"reduction": how} | ({} if ignored is None else {"ignore_index": ignored})
            yield Case(kind, opset, feeds, attributes, want, 64)


def reductions() -> Iterator[Case]:
    x = np.array([[-2.0, 0.5, 3.0], [0.0, -0.0, 1.5]])
    odd = np.array([[-math.inf, -math.inf, -math.inf], [math.inf, 2.0, -1.0], [200.0, 202.0, 199.0]])
    formulas: dict[str, Callable[..., Array]] = {
        "ReduceL1": lambda a, **k: np.abs(a).sum(**k),
        "ReduceL2": lambda a, **k: np.sqrt((a * a).sum(**k)),
        "ReduceLogSum": lambda a, **k: np.log(a.sum(**k)),
        "ReduceLogSumExp": lambda a, **k: np.logaddexp.reduce(a, **k),
        "ReduceSumSquare": lambda a, **k: (a * a).sum(**k),
    }
    choices: list[list[int] | None] = [None, [], [-1], [0, 1], [1, -1], [2], [-3], [2**40]]
    for kind, data in itertools.product(formulas, (x, odd)):
        for (v, t), axes, keep, noop in itertools.product(each(kind), choices, (0, 1, 2), (0, 1)):
            if (noop and v < 18) or (keep == 2 and axes != [-1]):
                continue
            good = axes is None or (all(-2 <= a < 2 for a in axes) and len({a % 2 for a in axes}) == len(axes))
            over: Any = tuple(axes) if axes else (() if noop else (0, 1))
            want = None
            if good and kind == "ReduceLogSumExp" and not over:
                want = data
            elif good:
                want = formulas[kind](data, axis=over, keepdims=bool(keep)) if kind != "ReduceLogSumExp" else _lse(
                    data, over, bool(keep))  # fmt: skip
            attributes: dict[str, Any] = {"keepdims": keep} | ({"noop_with_empty_axes": noop} if v >= 18 else {})
            feeds = {"x": data.astype(t)}
            if axes is not None and v >= 18:
                feeds["a"] = np.array(axes, np.int64)
            elif axes is not None:
                if not axes:
                    continue
                attributes["axes"] = axes
            yield Case(kind, v, feeds, attributes, want)


def _lse(x: Array, over: tuple[int, ...], keep: bool) -> Array:
    top = x.max(axis=over, keepdims=True)
    safe = np.where(np.isfinite(top), top, 0.0)
    made = np.log(np.exp(x - safe).sum(axis=over, keepdims=True)) + safe
    return made if keep else np.squeeze(made, over)


def softmaxes() -> Iterator[Case]:
    x = np.array([[[-2.0, 0.5], [3.0, 3.0], [60.0, -100.0]], [[0.0, -0.0], [1.5, 1.0], [-math.inf, 2.0]]])

    def hardmax(a: Array, axis: int) -> Array:
        made = np.zeros_like(a)
        np.put_along_axis(made, np.expand_dims(a.argmax(axis), axis), 1.0, axis)
        return made

    def logs(a: Array, axis: int) -> Array:
        top = a.max(axis, keepdims=True)
        return a - top - np.log(np.exp(a - top).sum(axis, keepdims=True))

    for kind, formula in {"Softmax": _softmax, "LogSoftmax": logs, "Hardmax": hardmax}.items():
        for (v, t), axis in itertools.product(each(kind), [*INTS, 4, -4]):
            at = _ends(axis, 3)
            want = None if at is None else formula(x, at)
            if v < 13 and (at is not None or axis == 3):
                place = 3 if at is None else at
                rows = x.reshape(math.prod(x.shape[:place]), -1)
                want = formula(rows, 1).reshape(x.shape)
            if v < 13 and axis == 3:
                continue  # the text allows axes up to the rank minus one, ONNX Runtime one more
            yield Case(kind, v, {"x": x.astype(t)}, {"axis": axis}, want)


def ranges() -> Iterator[Case]:
    odd = [-3.0, 0.0, 0.25, 2.0, 1e30, math.nan]
    for v, t in itertools.product(versions("Range", 11), (F32, F64, I64, np.dtype(np.int32))):
        for start, limit, delta in itertools.product(odd, odd, odd):
            ends = [start, limit, delta]
            if t.kind == "i":
                if any(not math.isfinite(e) or abs(e) > 2**31 for e in ends):
                    continue
                ends = [float(int(e)) for e in ends]
            a, b, c = (float(np.array(e).astype(t)) for e in ends)
            want = None
            if all(map(math.isfinite, (a, b, c))) and c:
                count = max(math.ceil((b - a) / c), 0)
                want = a + np.arange(count) * c if count <= 1 << 12 else None
            feeds = {n: np.array(e).astype(t) for n, e in zip("abc", ends, strict=True)}
            yield Case("Range", v, feeds, {}, want, 4)
    for stash, t in itertools.product((-1, 0, 1, 2, 7, 10, 11, 16, 2**40), (BF16, F16, F32, I64)):
        feeds = {n: np.array(e).astype(t) for n, e in zip("abc", (0, 3, 1), strict=True)}
        good = t not in (BF16, F16) or stash in (1, 10, 11, 16)  # it has no effect for the other types
        yield Case("Range", 27, feeds, {"stash_type": stash}, np.arange(3.0) if good else None)


def clips() -> Iterator[Case]:
    x = np.array([-math.inf, -3.0, -0.0, 0.0, 0.5, 2.0, math.inf, math.nan])
    ends = [-2.0, 0.5, 1e30, -1e30, math.inf, -math.inf]
    for (v, t), low, high in itertools.product(each("Clip", 6), [None, *ends], [None, *ends]):
        lo, hi = (None if e is None else float(np.array(e).astype(t)) if v >= 11 else held(e) for e in (low, high))
        if v < 11:  # the defaults are f32's ends
            most = float(np.finfo(np.float32).max)
            lo, hi = -most if lo is None else lo, most if hi is None else hi
        want = x if lo is None else np.maximum(x, lo)
        want = want if hi is None else np.minimum(want, hi)
        feeds = {"x": x.astype(t)}
        if v < 11:
            attributes = {n: e for n, e in (("min", low), ("max", high)) if e is not None}
            yield Case("Clip", v, feeds, attributes, want)
        else:
            given = {n: np.array(e).astype(t) for n, e in (("l", low), ("h", high)) if e is not None}
            order = f"x {'l' if low is not None else '_'} {'h' if high is not None else '_'}"
            yield Case("Clip", v, feeds | given, {}, want, order=order)


def grids() -> Iterator[Case]:
    theta = np.array([[[1.0, 0.5, -0.25], [0.0, 2.0, 1.0]]])
    for t, corners, h, w in itertools.product(KINDS, (-1, 0, 1, 2), (-1, 0, 1, 2, 5), (1, 3)):
        want = None
        if corners in (0, 1) and h >= 0:
            lines = []
            for n in (h, w):
                end = (1.0 if n != 1 else 0.0) if corners else 1 - 1 / max(n, 1)
                lines.append(np.linspace(-end, end, n))
            y, z = np.meshgrid(*lines, indexing="ij")
            want = (np.stack([z, y, np.ones_like(z)], -1).reshape(-1, 3) @ theta[0].T).reshape(1, h, w, 2)
        feeds = {"t": theta.astype(t), "s": np.array([1, 1, h, w])}
        yield Case("AffineGrid", 20, feeds, {"align_corners": corners}, want)


def crops() -> Iterator[Case]:
    x = np.arange(12.0).reshape(3, 4)
    for t, (axes, dims) in itertools.product(
        (BF16, F32, I64),
        [
            (None, [2, 6]), (None, [2]), (None, [2, 2, 2]), (None, [0, 1]), (None, [-1, 2]), ([0], [5]), ([-1], [3]),
            ([1, 0], [7, 2]), ([0, 0], [2, 2]), ([0, -2], [2, 2]), ([2], [1]), ([-3], [1]), ([], []), ([0], [2, 2]),
        ],
    ):  # fmt: skip
        places = list(range(2)) if axes is None else axes
        good = len(places) == len(dims) and all(-2 <= a < 2 for a in places) and min(dims, default=0) >= 0
        want = None
        if good and len({a % 2 for a in places}) == len(places):
            want = x
            for a, n in zip(places, dims, strict=True):
                m = want.shape[a]
                if n <= m:
                    want = np.take(want, range((m - n) // 2, (m - n) // 2 + n), a)
                else:
                    pads = [(0, 0), (0, 0)]
                    pads[a] = ((n - m) // 2, n - m - (n - m) // 2)
                    want = np.pad(want, pads)
        feeds = {"x": x.astype(t), "s": np.array(dims, np.int64)}
        if axes == []:
            continue  # an empty attribute and none are the same in a file
        yield Case("CenterCropPad", 18, feeds, {} if axes is None else {"axes": axes}, want)


def blocks() -> Iterator[Case]:
    x = np.arange(16.0).reshape(1, 4, 2, 2)
    for kind in ("DepthToSpace", "SpaceToDepth"):
        for (v, t), block, mode in itertools.product(each(kind), INTS, ("DCR", "CRD", "x", None)):
            if mode is not None and "mode" not in defs.get_schema(kind, v).attributes:
                continue
            want = None
            if block in (1, 2) and mode != "x":
                b, crd = block, mode == "CRD"
                if kind[0] == "D":
                    y = x.reshape(1, 4 // b**2, b, b, 2, 2) if crd else x.reshape(1, b, b, 4 // b**2, 2, 2)
                    y = y.transpose((0, 1, 4, 2, 5, 3) if crd else (0, 3, 4, 1, 5, 2))
                    want = y.reshape(1, 4 // b**2, 2 * b, 2 * b)
                else:
                    y = x.reshape(1, 4, 2 // b, b, 2 // b, b)
                    y = y.transpose((0, 1, 3, 5, 2, 4) if crd else (0, 3, 5, 1, 2, 4))
                    want = y.reshape(1, 4 * b**2, 2 // b, 2 // b)
            attributes = {"blocksize": block} | ({} if mode is None else {"mode": mode})
            yield Case(kind, v, {"x": x.astype(t)}, attributes, want)


def writers() -> Iterator[Case]:
    past, new = np.zeros((2, 3, 4, 2)), np.arange(1.0, 9.0).reshape(2, 1, 2, 2) * np.ones((1, 3, 1, 1))
    for t, axis, mode in itertools.product((BF16, F16, F32), INTS, ("linear", "circular", "x")):
        update, want = new, None
        if axis in (-2, 2) and mode != "x":
            want = past.copy()
            for row, start in enumerate((1, 2)):
                want[row, :, start : start + 2] = new[row]
        elif axis in (-3, 1):
            continue
        feeds = {"p": past.astype(t), "u": update.astype(t), "i": np.array([1, 2])}
        if axis in (-1, 3) and mode != "x":
            continue
        yield Case("TensorScatter", 24, feeds, {"axis": axis, "mode": mode}, want)


def plain() -> Iterator[Case]:
    """Operators without attributes, or with words: the numbers that are odd are the inputs."""
    x = np.array([-math.inf, -100.0, -60.0, -2.0, -1e-3, -0.0, 0.0, 1e-3, 1.0, 3.0, 60.0, 100.0, math.inf, math.nan])

    def plus(a: Array) -> Array:
        return np.where(a > 30, a, np.log1p(np.exp(np.minimum(a, 30))))

    erf = np.vectorize(math.erf)
    formulas: dict[str, Callable[[Array], Array]] = {
        "HardSwish": lambda a: a * np.maximum(0, np.minimum(1, a / 6 + 0.5)),
        "Mish": lambda a: a * np.tanh(plus(a)),
        "Softplus": plus,
        "Softsign": lambda a: a / (1 + np.abs(a)),
        "Relu": lambda a: np.maximum(a, 0),
    }
    for kind, formula in formulas.items():
        for v, t in each(kind, 6):
            yield Case(kind, v, {"x": x.astype(t)}, {}, formula(x.astype(t).astype(np.float64)))
    for t, how in itertools.product(KINDS, ("none", "tanh", "x", "")):
        wide = x.astype(t).astype(np.float64)
        near = wide * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))
        want = {"none": wide * 0.5 * (1 + erf(wide / math.sqrt(2))), "tanh": near}.get(how)
        yield Case("Gelu", 20, {"x": x.astype(t)}, {"approximate": how}, want, 4096)
    for (v, t), slope in itertools.product(each("PRelu"), FLOATS):
        with np.errstate(over="ignore"):
            s = np.array(slope).astype(t)
        wide = x.astype(t).astype(np.float64)
        want = np.where(wide < 0, wide * float(s), wide)
        yield Case("PRelu", v, {"x": x.astype(t), "s": s.reshape(1)}, {}, want)
    for t, alpha in itertools.product(KINDS, FLOATS):
        wide = x.astype(t).astype(np.float64)
        want = wide / (1 + np.exp(-held(alpha) * wide))
        yield Case("QuickGelu", 17, {"x": x.astype(t)}, {"alpha": alpha}, want, domain="com.microsoft")
    p = np.array([0.0, 1.0, 1.0, 0.0])
    for (v, t), seed in itertools.product(each("Bernoulli", 15), FLOATS):
        yield Case("Bernoulli", v, {"x": p.astype(t)}, {"seed": seed}, p)
    for (v, t), code in itertools.product(each("Bernoulli", 15), (-1, 0, 1, 8, 9, 99, 2**31)):
        want = p if code in (1, 9) else None
        yield Case("Bernoulli", v, {"x": p.astype(t)}, {"dtype": code}, want)


FAMILIES = (norms, attention, linear_attention, rotary, windows, losses, reductions, softmaxes, ranges, clips, grids,
            crops, blocks, writers, plain)  # fmt: skip


def cases() -> Iterator[Case]:
    """All cases. A negative epsilon avoids no division by zero, which the text says it is for: it is refused."""
    with np.errstate(all="ignore"):
        for family in FAMILIES:
            for case in family():
                yield replace(case, want=None) if case.attributes.get("epsilon", 0.0) < 0 else case
