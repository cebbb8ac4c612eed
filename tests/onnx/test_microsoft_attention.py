"""Attention, MultiHeadAttention and RotaryEmbedding of com.microsoft beside float64 and ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.errors import ModelFormatError, UnsupportedOp
from tests.onnx.microsoft import attended, beside, by_heads, judged, later, microsoft

RNG = np.random.default_rng(14)
B, S, N, H, P = 2, 5, 3, 4, 3
D = N * H
LOWEST = float(np.finfo(np.float32).min)
Case = tuple[str, dict[str, np.ndarray], str, dict[str, Any]]


def rand(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def bits(*shape: int) -> np.ndarray:
    return RNG.integers(0, 2, shape).astype(np.int32)


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


def masks(total: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Masks in each form, and which keys they leave, (batch, 1, queries or 1, keys)."""
    key = np.arange(total)
    left, whole = bits(B, total), bits(B, S, total)
    none = np.zeros((B, total), np.int32)
    ends, starts = ints(total - 2, 2), ints(1, 0)
    short = key < ends[:, None]
    return {
        "of keys": (left, left[:, None, None] > 0),
        "of nothing": (none, none[:, None, None] > 0),
        "of queries": (whole, whole[:, None] > 0),
        "lengths": (ends, short[:, None, None]),
        "spans": (np.concatenate([ends, starts]), (short & (key >= starts[:, None]))[:, None, None]),
        "packed": (np.concatenate([ends, ints(0, 5, 10), ints(0, 5, 10)]), short[:, None, None]),
    }


def blurred(seen: np.ndarray, low: Any = 0.0) -> float:
    """What is right in f32: next to -10000 the scores of a row that sees nothing keep three decimals."""
    return 1e-5 if ((low == 0) & seen).any(-1).all() else 2e-3


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.sample(1, vulkan=1)
@pytest.mark.late("vulkan")
def test_attention(causal: int, device: str) -> None:
    x, w, b = rand(B, S, 7), rand(7, 3 * D), rand(3 * D)
    past, bias = rand(2, B, N, P, H), rand(B, 1, S, P + S)
    q, k, v = (by_heads(t, N) for t in np.split(x.astype(np.float64) @ w + b, 3, 2))
    low = later(S, S) if causal else 0.0
    given = {"x": x, "w": w, "b": b}
    rules = {"num_heads": N, "unidirectional": causal}
    judged(device, "Attention", given, attended(q, k, v, low), **rules)
    judged(device, "Attention", given, attended(q, k, v, low, 0.3), scale=0.3, **rules)
    for kind, (mask, seen) in masks(S).items():
        want = attended(q, k, v, np.where(seen, 0, -10000.0) + low)
        judged(device, "Attention", {**given, "m": mask}, want, tolerance=blurred(seen, low), **rules)
        if kind == "of nothing" and causal:  # what is to come and what is masked are as far down
            want = attended(0 * q, k, v)
            judged(device, "Attention", {**given, "m": mask}, want, mask_filter_value=LOWEST, **rules)
    keys, values = (np.concatenate([past[i], t], 2) for i, t in enumerate((k, v)))
    low = later(S, P + S) if causal else 0.0
    present = np.stack([keys, values])
    want = {"y": attended(q, keys, values, low), "present": present}
    judged(device, "Attention", {**given, "p": past}, want, "x w b _ p", "y present", **rules)
    mask, seen = masks(P + S)["of keys"]
    want = {"y": attended(q, keys, values, low + bias + np.where(seen, 0, -10000.0)), "present": present}
    judged(device, "Attention", {**given, "p": past, "m": mask, "ab": bias}, want, "x w b m p ab", "y present",
           blurred(seen, low), **rules)  # fmt: skip


@pytest.mark.parametrize("size", [2, 6])
@pytest.mark.sample(1, vulkan=1)
def test_attention_with_values_of_another_size(size: int, device: str) -> None:
    x, w = rand(B, S, 7), rand(7, 2 * D + N * size)
    q, k, v = (by_heads(t, N) for t in np.split(x.astype(np.float64) @ w, [D, 2 * D], 2))
    judged(
        device,
        "Attention",
        {"x": x, "w": w},
        attended(q, k, v),
        num_heads=N,
        qkv_hidden_sizes=[D, D, N * size],
    )


@pytest.mark.sample(vulkan=0)
def test_attention_of_halves(device: str) -> None:
    x, w, b = (t.astype(np.float16) for t in (rand(B, S, 7), rand(7, 3 * D) / 3, rand(3 * D)))
    q, k, v = (by_heads(t, N) for t in np.split(x.astype(np.float64) @ w + b, 3, 2))
    mask = bits(B, S)
    mask[:, 0] = 1
    want = attended(q, k, v, np.where(mask[:, None, None] > 0, 0, -1e6) + later(S, S))
    judged(device, "Attention", {"x": x, "w": w, "b": b, "m": mask}, want, num_heads=N, unidirectional=1,
           mask_filter_value=-1e6)  # fmt: skip


@pytest.mark.sample(vulkan=0)
def test_attention_of_many_heads(device: str) -> None:
    """Queries, keys and values in each of their forms; a bias; masks; another length of keys."""
    longer, size = 6, 5
    q, k, v, b = rand(B, S, D), rand(B, longer, D), rand(B, longer, N * size), rand(2 * D + N * size)
    parts = [by_heads(t, N) for t in (q, k, v)]
    given = {"q": q, "k": k, "v": v}
    kind = "MultiHeadAttention"
    judged(device, kind, given, attended(*parts), num_heads=N)
    judged(device, kind, given, attended(*parts, scale=0.7), num_heads=N, scale=0.7)
    biased = [by_heads(t + c, N) for t, c in zip((q, k, v), np.split(b, [D, 2 * D]), strict=True)]
    judged(device, kind, {**given, "b": b}, attended(*biased), num_heads=N)
    for name, (mask, seen) in masks(longer).items():
        if name != "spans":
            want = attended(*parts, np.where(seen, 0, -10000.0))
            judged(
                device, kind, {**given, "m": mask}, want, "q k v _ m", tolerance=blurred(seen), num_heads=N
            )
    for shape in [(1, 1), (1, N), (B, 1), (B, N)]:
        bias = rand(*shape, S, longer)
        judged(device, kind, {**given, "ab": bias}, attended(*parts, bias), "q k v _ _ ab", num_heads=N)
    heads = {"q": q, "k": parts[1].astype(np.float32), "v": parts[2].astype(np.float32)}
    judged(device, kind, heads, attended(*parts), num_heads=N)
    judged(device, kind, {**heads, "b": b}, attended(biased[0], *parts[1:]), num_heads=N)


def test_attention_of_many_heads_packed(device: str) -> None:
    every, pairs, q, b = rand(B, S, N, 3, H), rand(B, 6, N, 2, H), rand(B, S, D), rand(3 * D)
    wide = every.astype(np.float64).transpose(3, 0, 2, 1, 4)
    judged(device, "MultiHeadAttention", {"q": every}, attended(*wide), num_heads=N)
    wide = wide + b.reshape(3, 1, N, 1, H)
    judged(device, "MultiHeadAttention", {"q": every, "b": b}, attended(*wide), "q _ _ b", num_heads=N)
    two = pairs.astype(np.float64).transpose(3, 0, 2, 1, 4)
    judged(device, "MultiHeadAttention", {"q": q, "k": pairs}, attended(by_heads(q, N), *two), num_heads=N)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.sample(vulkan=1)
def test_attention_of_many_heads_with_a_past(causal: int, device: str) -> None:
    q, k, v, pk, pv = rand(B, S, D), rand(B, S, D), rand(B, S, D), rand(B, N, P, H), rand(B, N, P, H)
    mask, bias = bits(B, P + S), rand(1, N, S, P + S)
    keys, values = (np.concatenate([p, by_heads(t, N)], 2) for p, t in ((pk, k), (pv, v)))
    low = later(S, P + S) if causal else 0.0
    given = {"q": q, "k": k, "v": v, "pk": pk, "pv": pv}
    want = {"y": attended(by_heads(q, N), keys, values, low), "ok": keys, "ov": values}
    rules = {"num_heads": N, "unidirectional": causal}
    judged(device, "MultiHeadAttention", given, want, "q k v _ _ _ pk pv", "y ok ov", **rules)
    added = low + bias + np.where(mask > 0, 0, -10000.0)[:, None, None]
    want["y"] = attended(by_heads(q, N), keys, values, added)
    given |= {"m": mask, "ab": bias}
    near = blurred(mask[:, None, None] > 0, low)
    judged(device, "MultiHeadAttention", given, want, "q k v _ m ab pk pv", "y ok ov", near, **rules)
    want = {"y": attended(by_heads(q, N), by_heads(k, N), by_heads(v, N)), "ok": by_heads(k, N)}
    judged(device, "MultiHeadAttention", {n: given[n] for n in "qkv"}, want, "", "y ok", num_heads=N)


def beside_cases() -> Iterator[Case]:
    base = {"x": rand(B, S, 7), "w": rand(7, 3 * D), "b": rand(3 * D)}
    past, bias = rand(2, B, N, P, H), rand(1, N, S, P + S)
    for causal in (0, 1):
        rules: dict[str, Any] = {"num_heads": N, "unidirectional": causal}
        for mask, _ in masks(S).values():
            yield "Attention", {**base, "m": mask}, "x w b m", rules
            yield "Attention", {**base, "m": mask}, "x w b m", {**rules, "mask_filter_value": LOWEST}
        for mask in [masks(P + S)[n][0] for n in ("of keys", "of queries")]:
            yield "Attention", {**base, "m": mask, "p": past}, "x w b m p", rules
        given = {n: rand(B, S, D) for n in "qkv"} | {"b": rand(3 * D), "m": bits(B, P + S), "ab": bias}
        given |= {"pk": past[0], "pv": past[1]}
        for names in ("q k v", "q k v b _ _ pk pv", "q k v b m ab pk pv"):
            yield "MultiHeadAttention", given, names, rules
    wide = {"q": rand(B, S, D), "k": rand(B, 7, D), "v": rand(B, 7, N * 6), "b": rand(2 * D + N * 6)}
    for mask, _ in (masks(7)[n] for n in ("of keys", "of queries", "lengths", "of nothing")):
        yield "MultiHeadAttention", {**wide, "m": mask}, "q k v b m", {"num_heads": N}
    keys = {"q": rand(B, S, D), "k": rand(B, N, 7, H), "v": rand(B, N, 7, H), "b": rand(3 * D)}
    yield "MultiHeadAttention", keys, "q k v b", {"num_heads": N}
    for interleaved in (0, 1):
        for shape, width, heads in [
            ((B, S, D), H, 0),
            ((B, N, S, H), H, 0),
            ((B, S, 30), 4, 3),
            ((B, N, S, 10), 4, 3),
        ]:
            given = {"x": rand(*shape), "p": RNG.integers(0, 9, (B, S)), "c": rand(9, width // 2)}
            given["s"] = rand(9, width // 2)
            rules = {
                "interleaved": interleaved,
                "num_heads": heads,
                "rotary_embedding_dim": width if heads else 0,
            }
            yield "RotaryEmbedding", given, "x p c s", rules
            yield "RotaryEmbedding", {**given, "p": np.array([3])}, "x p c s", rules


@pytest.mark.judged
def test_beside_onnx_runtime() -> None:
    for kind, given, names, rules in beside_cases():
        used = {n: given[n] for n in names.split() if n != "_"}
        made = {"p": "y present", "pk": "y ok ov"}.get(
            "p" if "p" in used else "pk" if "pk" in used else "", "y"
        )
        beside(kind, used, names, "y" if kind == "RotaryEmbedding" else made, **rules)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("four", [False, True])
def test_rotation(interleaved: int, four: bool, device: str) -> None:
    size, width = 10, 4
    x, c, s = rand(B, S, N, size), rand(9, width // 2), rand(9, width // 2)
    for at in (RNG.integers(0, 9, (B, S)), np.array([4])):
        rows = at if at.size > 1 else np.broadcast_to(4 + np.arange(S), (B, S))
        pairs = x[..., :width].astype(np.float64)
        z = pairs[..., ::2] + 1j * pairs[..., 1::2]
        if not interleaved:
            z = pairs[..., : width // 2] + 1j * pairs[..., width // 2 :]
        z = z * (c.astype(np.float64) + 1j * s)[rows][:, :, None]
        turned = np.stack([z.real, z.imag], -1 if interleaved else -2).reshape(pairs.shape)
        want = np.concatenate([turned, x[..., width:]], -1)
        given = {"x": x.swapaxes(1, 2).copy() if four else x.reshape(B, S, -1), "p": at, "c": c, "s": s}
        want = want.swapaxes(1, 2) if four else want.reshape(B, S, -1)
        judged(device, "RotaryEmbedding", given, want, interleaved=interleaved, num_heads=N,
               rotary_embedding_dim=width)  # fmt: skip


def test_what_is_not_done_is_said() -> None:
    base = {"x": rand(B, S, 7), "w": rand(7, 3 * D), "b": rand(3 * D)}
    many = {n: rand(B, S, D) for n in "qkv"}
    longer = {"q": many["q"], "k": rand(B, 7, D), "v": rand(B, 7, D)}
    turned = {"x": rand(B, S, D), "p": np.array([0]), "c": rand(9, 2), "s": rand(9, 2)}
    for kind, given, names, says, rules in [
        ("Attention", base, "", "do_rotary = 1", {"num_heads": N, "do_rotary": 1}),
        ("Attention", {**base, "m": bits(B, 1, 8, 8)}, "", r"a mask of \(2, 1, 8, 8\)", {"num_heads": N}),
        (
            "MultiHeadAttention",
            {**many, "n": ints(3)},
            "q k v _ _ _ _ _ n",
            "past_sequence_length",
            {"num_heads": N},
        ),
        ("MultiHeadAttention", longer, "", "unidirectional = 1 for 5", {"num_heads": N, "unidirectional": 1}),
        ("RotaryEmbedding", turned, "", "is_packed_batching = 1", {"is_packed_batching": 1}),
    ]:
        with pytest.raises(UnsupportedOp, match=f"{kind}.*{says}"):
            rlx.onnx.load(microsoft(kind, given, names, **rules)).run(given)
    for kind, given, says, rules in [
        ("Attention", base, "lacks the attribute num_heads", {}),
        ("Attention", base, "a multiple of 5 heads", {"num_heads": 5}),
        ("MultiHeadAttention", {n: many[n] for n in "qk"}, "lacks a key or a value", {"num_heads": N}),
        ("MultiHeadAttention", {**many, "b": rand(D)}, "the bias is", {"num_heads": N}),
        ("RotaryEmbedding", {**turned, "p": np.zeros((1, S), np.int64)}, "position_ids are", {}),
    ]:
        with pytest.raises(ModelFormatError, match=f"{kind}.*{says}"):
            rlx.onnx.load(microsoft(kind, given, **rules)).run(given)
