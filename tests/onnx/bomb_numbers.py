"""Families of bombs: attributes that do not fit, quantized, contributed and recurrent operators. The result is t."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.onnx.bomb_parts import ODD, Made, Rng, floats, some_numbers
from tests.onnx.models import node


def axes(rng: Rng) -> Made:
    """Axes, permutations, lengths and counts that are none."""
    kind = rng.choice(
        (
            "Transpose",
            "Squeeze",
            "Unsqueeze",
            "ReduceSum",
            "Concat",
            "Split",
            "Slice",
            "TopK",
            "Reshape",
            "Flatten",
            "Softmax",
            "ArgMax",
            "CumSum",
            "DepthToSpace",
            "SpaceToDepth",
            "LRN",
            "Gather",
            "GatherND",
            "Hardmax",
            "LayerNormalization",
            "GroupNormalization",
            "ReverseSequence",
            "Compress",
            "ScatterElements",
        )
    )
    odd, some = rng.choice(ODD), some_numbers(rng, rng.choice((1, 2, 3)))
    w: dict[str, Any] = {
        "s": some,
        "q": [rng.choice(ODD)],
        "o": odd,
        "z": np.zeros((1, 1), np.int64),
        "sc": floats(1, 1, 1),
        "im": np.ones((1, 4, 4, 4), np.float32),
        "v": floats(1),
    }
    attrs = {
        "Transpose": {"perm": some},
        "Concat": {"axis": odd},
        "Flatten": {"axis": odd},
        "Softmax": {"axis": odd},
        "ArgMax": {"axis": odd},
        "Hardmax": {"axis": odd},
        "DepthToSpace": {"blocksize": odd},
        "SpaceToDepth": {"blocksize": odd},
        "LRN": {"size": odd},
        "Gather": {"axis": odd},
        "GatherND": {"batch_dims": odd},
        "LayerNormalization": {"axis": odd},
        "GroupNormalization": {"num_groups": odd},
        "ReverseSequence": {"batch_axis": odd, "time_axis": 0},
        "Compress": {"axis": odd},
        "ScatterElements": {"axis": odd},
        "TopK": {"axis": rng.choice((0, 1, -1, odd))},
        "Split": {"axis": rng.choice((0, 1, odd)), "num_outputs": abs(odd) // 2},
    }
    ins = {
        "Squeeze": "x s",
        "Unsqueeze": "x s",
        "ReduceSum": "x s",
        "Concat": "x x",
        "Slice": "x s q s",
        "TopK": "x q",
        "Reshape": "x s",
        "CumSum": "x o",
        "Gather": "x z",
        "GatherND": "x z",
        "LayerNormalization": "x sc",
        "GroupNormalization": "im v v",
        "ReverseSequence": "x ones",
        "Compress": "x ones",
        "ScatterElements": "x z z",
        "DepthToSpace": "im",
        "SpaceToDepth": "im",
        "LRN": "im",
    }
    return Made([node(kind, ins.get(kind, "x"), "t" if kind != "TopK" else "t ti", **attrs.get(kind, {}))], w)


def quantized(rng: Rng) -> Made:
    n = rng.choice((3, 1000, 10**5, 10**7))
    nodes = [node("Expand", "f s", "e"), node("DynamicQuantizeLinear", "e", "q sc zp")]
    kind = rng.randrange(4)
    if kind == 0:
        return Made(
            [*nodes, node("DequantizeLinear", "q sc zp", "t", axis=rng.choice(ODD))],
            {"f": floats(1), "s": [n, rng.choice((1, 100))]},
        )
    if kind == 1:
        return Made(
            [
                *nodes,
                node("QuantizeLinear", "e v", "q2", axis=rng.choice((0, 1)), block_size=rng.choice(ODD)),
                node("Cast", "q2", "t", to=1),
            ],
            {"f": floats(1), "v": floats(1, 1), "s": [n, 2]},
        )
    if kind == 2:
        return Made(
            [*nodes, node("MatMulInteger", "q qt", "t")][:2]
            + [
                node("Transpose", "q", "qt"),
                node("MatMulInteger", "q qt", "i"),
                node("Cast", "i", "t", to=1),
            ],
            {"f": floats(1), "s": [n, rng.choice((1, 64))]},
        )
    k, bits, block = (
        rng.choice((32, 1024, 2**40, 0, -1)),
        rng.choice((2, 4, 8, 99)),
        rng.choice((16, 32, 2**40, 0, -1)),
    )
    return Made(
        [
            node(
                "MatMulNBits",
                "a b z",
                "t",
                domain="com.microsoft",
                K=k,
                N=rng.choice((1, 8, 2**40)),
                bits=bits,
                block_size=block,
            )
        ],
        {"a": np.ones((2, 32), np.float32), "b": np.zeros((1, 1, 16), np.uint8), "z": floats(1)},
    )


def contrib(rng: Rng) -> Made:
    kind, big = (
        rng.choice(("Attention", "RotaryEmbedding", "MultiHeadAttention", "GroupQueryAttention")),
        rng.choice((4, 4096, 10**5, 10**6)),
    )
    nodes = [node("Expand", "f s", "e"), node("Cast", "e", "e32", to=1)]
    w = {"f": floats(1), "s": [1, big, rng.choice((8, 64))]}
    if kind == "MultiHeadAttention":
        return Made([*nodes, node(kind, "e e e", "t", domain="com.microsoft", num_heads=rng.choice(ODD))], w)
    if kind == "GroupQueryAttention":
        return Made(
            [
                *nodes,
                node(
                    kind,
                    "e e e _ _ sl total",
                    "t",
                    domain="com.microsoft",
                    num_heads=rng.choice(ODD),
                    kv_num_heads=rng.choice(ODD),
                ),
            ],
            {**w, "sl": np.array([0], np.int32), "total": np.int32(rng.choice((1, big, 2**31 - 1)))},
        )
    if kind == "RotaryEmbedding":
        return Made(
            [
                *nodes,
                node(kind, "e cos cos", "t", num_heads=rng.choice(ODD), rotary_embedding_dim=rng.choice(ODD)),
            ],
            {**w, "cos": np.ones((1, 4), np.float32)},
            opset=23,
        )
    return Made(
        [
            *nodes,
            node(
                kind,
                "e e e",
                "t",
                q_num_heads=rng.choice((1, 2, 8, 0, 2**62)),
                kv_num_heads=rng.choice((1, 2, 8, 0)),
            ),
        ],
        w,
        opset=23,
    )


def recurrent(rng: Rng) -> Made:
    steps, kind = rng.choice((2, 20, 10**4, 10**6)), rng.choice(("LSTM", "GRU", "RNN"))
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    return Made(
        [
            node("Expand", "f s", "e"),
            node(
                kind,
                "e w r",
                "t",
                hidden_size=rng.choice((2, 2, 2, *ODD)),
                direction=rng.choice(("forward", "bidirectional")),
            ),
        ],
        {
            "f": floats(1),
            "s": [steps, rng.choice((1, 100)), 3],
            "w": np.ones((1, gates * 2, 3), np.float32),
            "r": np.ones((1, gates * 2, 2), np.float32),
        },
    )


NUMBERS = (axes, quantized, contrib, recurrent)
