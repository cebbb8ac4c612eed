"""A node is a host step exactly where the device lacks a feature of its kernel: no kernel is chosen that cannot run."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from rlx.backends.gpu.program.executable import load_rules
from rlx.backends.gpu.program.lowering import runs_natively
from rlx.backends.gpu.program.target import Target
from rlx.ir import Graph

_ALL = frozenset({"16bit_storage", "8bit_storage", "i64"})
_MATMUL = {"transpose_a": False, "transpose_b": False, "activation": None}
_CASES: list[tuple[str, list[tuple[tuple[int, ...], Any]], dict[str, Any], frozenset[str]]] = [
    ("sum", [((3, 4), np.float32)], {"axes": (1,), "keepdims": False}, frozenset()),
    ("sum", [((3, 4), np.float16)], {"axes": (1,), "keepdims": False}, frozenset({"16bit_storage"})),
    ("prod", [((3, 4), np.int64)], {"axes": (1,), "keepdims": False}, frozenset({"i64"})),
    ("max", [((3, 4), np.int8)], {"axes": (1,), "keepdims": False}, frozenset({"8bit_storage"})),
    ("softmax", [((3, 4), ml_dtypes.bfloat16)], {"axis": 1}, frozenset({"16bit_storage"})),
    ("layer_norm", [((3, 4), np.float32), ((4,), np.float16), ((4,), np.float32)], {"eps": 1e-5},
     frozenset({"16bit_storage"})),
    ("gather", [((3, 4), np.float32), ((2,), np.int64)], {"axis": 0}, frozenset()),
    ("gather", [((3, 4), np.int64), ((2,), np.int32)], {"axis": 0}, frozenset()),
    ("gather", [((3, 4), np.bool_), ((2,), np.int32)], {"axis": 0}, frozenset({"8bit_storage"})),
    ("matmul", [((3, 4), np.float32), ((4, 2), np.float32)], _MATMUL, frozenset()),
    ("matmul", [((3, 4), np.float32), ((4, 2), ml_dtypes.bfloat16)], _MATMUL, frozenset({"16bit_storage"})),
    ("matmul", [((3, 4), np.int64), ((4, 2), np.int64)], _MATMUL, frozenset({"i64"})),
    ("attention", [((1, 2, 3, 4), np.float32)] * 3 + [((3, 3), np.bool_)], {"scale": 1.0, "causal": False},
     frozenset({"8bit_storage"})),
]  # fmt: skip


@pytest.mark.parametrize("op, inputs, attrs, needed", _CASES)
def test_needs(op: str, inputs: list[Any], attrs: dict[str, Any], needed: frozenset[str]) -> None:
    load_rules()
    graph = Graph(op)
    (out,) = graph.add(op, [graph.input(f"x{i}", s, d) for i, (s, d) in enumerate(inputs)], attrs)
    assert runs_natively(out.node, Target(needed))
    for word in needed:
        assert not runs_natively(out.node, Target(_ALL - {word}))


def test_f64_and_wide_heads_go_to_the_host() -> None:
    load_rules()
    graph = Graph("g")
    x = graph.input("x", (3, 4), np.float64)
    for op, attrs in (("softmax", {"axis": 1}), ("sum", {"axes": (0,), "keepdims": False})):
        assert not runs_natively(graph.add(op, [x], attrs)[0].node, Target(_ALL))
    q = graph.input("q", (1, 1, 2, 257))
    assert not runs_natively(graph.add("attention", [q, q, q], {"scale": 1.0, "causal": False})[0].node, Target(_ALL))


def test_tensors_beyond_31_bits_of_elements_go_to_the_host() -> None:
    load_rules()
    graph = Graph("g")
    x = graph.input("x", (1 << 16, 1 << 15), np.float32)
    assert not runs_natively(graph.add("softmax", [x], {"axis": 1})[0].node, Target(_ALL))
