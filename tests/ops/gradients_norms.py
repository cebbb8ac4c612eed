"""Gradient cases of norms, residual norms, rope, cross-entropy, fake quantization, and of the backward passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import rlx.ops as ops
from rlx.ir import Tensor
from rlx.ir.graph import apply_multi
from rlx.ops.rope.table import rope_table

Shape = tuple[int, ...]
S, N = (3, 4), (2, 6, 5)


def _both(outs: tuple[Tensor, ...]) -> Tensor:
    """One tensor that depends on every output."""
    total = outs[0]
    for i, t in enumerate(outs[1:]):
        total = total * 1.5 + ops.sum(ops.sin(t)) * (0.5 + i)
    return total


def _positions(x: Tensor, values: Any) -> Tensor:
    """Positions that are no constant, so that they may lie outside the tables."""
    return x.graph.constant(np.asarray(values, np.int32)) + ops.cast(ops.sum(x) * 0.0, "i32")


def _tables(x: Tensor, rows: int, width: int) -> tuple[Tensor, Tensor]:
    cos, sin = rope_table(rows, width, dtype="f64")
    return x.graph.constant(cos), x.graph.constant(sin)


def _labels(x: Tensor, n: int) -> Tensor:
    return x.graph.constant(np.arange(int(np.prod(x.shape[:-1])), dtype=np.int32).reshape(x.shape[:-1]) % n)


def _grad(op: str, **attrs: Any) -> Callable[..., Tensor]:
    return lambda *inputs: _both(apply_multi(op, *inputs, **attrs))


def _norm_grad(op: str, **attrs: Any) -> Callable[..., Tensor]:
    """With a gradient of beta, in the dtype of the rest."""
    return lambda *inputs: _both(apply_multi(op, *inputs, eps=0.1, beta=inputs[1].dtype, **attrs))


def _outside(x: np.ndarray) -> np.ndarray:
    """Beyond the ends of the grid, where the straight-through gradient and the difference are both 0."""
    return np.sign(x) * (np.abs(x) + 40.0)


CASES: dict[str, list[tuple[Any, list[Shape], Any]]] = {
    "group_norm": [(lambda x, g, b: ops.group_norm(x, 3, g, b), [N, (6,), (6,)], None),
                   (lambda x, g, b: ops.group_norm(x, 1, g, b), [(2, 2, 3, 2), (2,), (2,)], None)],
    "layer_norm_channels": [(ops.layer_norm_channels, [N, (6,), (6,)], None),
                            (ops.layer_norm_channels, [(3, 5), (5,), (5,)], None)],
    "batch_norm": [(lambda x, g, b, m, v: ops.batch_norm(x, g, b, m, ops.exp(v)), [N, (6,), (6,), (6,), (6,)], None)],
    "add_layer_norm": [(lambda *t: _both(ops.add_layer_norm(*t)), [S, S, (4,), (4,)], None),
                       (lambda *t: ops.add_layer_norm(*t)[1], [S, S, (4,), (4,)], None)],
    "add_rms_norm": [(lambda *t: _both(ops.add_rms_norm(*t)), [S, S, (4,)], None),
                     (lambda *t: ops.add_rms_norm(*t)[0], [S, S, (4,), (4,)], None)],
    "rope": [
        (lambda x: ops.rope(x, *_tables(x, 7, 6), offset=2), [(2, 3, 5, 8)], None),
        (lambda x: ops.rope(x, *_tables(x, 9, 8), interleaved=True, axis=1, inverse=True), [(2, 4, 3, 8)], None),
        (lambda x: ops.rope(x, *_tables(x, 9, 8), _positions(x, [[1, 7, 2], [0, 0, 20]])), [(2, 3, 8)], None),
        (lambda x, c, s: ops.rope(x, c, s, sections=2), [(2, 3, 9), (3, 4), (3, 4)], None),
        (lambda x, c, s: ops.rope(x, c, s, offset=1, inverse=True), [(2, 3, 9), (6, 4), (6, 4)], None),
        (lambda x, c, s: ops.rope(x, c, s, _positions(x, [[1, 3, 2], [0, 0, 20]]), interleaved=True),
         [(2, 3, 9), (4, 3), (4, 3)], None),
        (lambda x, c, s: ops.rope(x, c, s, _positions(x, 1)), [(2, 3, 2, 8), (5, 4), (5, 4)], None),
    ],
    "cross_entropy": [
        (lambda x: ops.cross_entropy(x, _labels(x, 3), reduction="none", ignore_index=1), [S], None),
        (lambda x: ops.cross_entropy(x, _labels(ops.transpose(x, (0, 2, 1)), 4), axis=1), [(2, 4, 3)], None),
    ],
    "fake_quantize": [
        (lambda x: ops.fake_quantize(x, 0.25, 3, bits=4, signed=False), [S], _outside),
        (lambda x: ops.fake_quantize(x, np.array([0.5, 0.1, 0.2]), bits=4, axis=0), [S], _outside),
    ],
    "layer_norm_grad": [(_norm_grad("layer_norm_grad"), [S, S, (4,)], None)],
    "rms_norm_grad": [(_grad("rms_norm_grad", eps=0.1, beta=None), [S, S, (4,)], None)],
    "group_norm_grad": [(_norm_grad("group_norm_grad", groups=2), [(2, 4, 3), (2, 4, 3), (4,)], None)],
    "softmax_grad": [(_grad("softmax_grad", axis=0), [S, S], None), (_grad("softmax_grad", axis=1), [S, S], None)],
    "cross_entropy_grad": [
        (lambda d, x: ops.sin(apply_multi("cross_entropy_grad", d, x, _labels(x, 4), ignore_index=1)[0]),
         [(3,), S], None)
    ],
    "fake_quantize_grad": [
        (lambda d, x: apply_multi("fake_quantize_grad", d, x, x.graph.constant(np.float64(40.0)), low=-8, high=7)[0],
         [S, S], None)
    ],
}  # fmt: skip
