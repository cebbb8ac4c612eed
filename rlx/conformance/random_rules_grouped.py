"""Rules of random graphs: grouped and low-rank products."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlx import ops
from rlx.conformance.random_rules import Made, rule
from rlx.dtypes import f16, f32, i32
from rlx.ir import apply

if TYPE_CHECKING:
    from rlx.conformance.random_graphs import Builder


@rule("grouped_matmul")
def _grouped(b: Builder) -> Made:
    rows, experts, k, n = (1 + b.below(6) for _ in range(4))
    dtype, transpose = b.choose((f32, f16)), b.chance(0.5)
    x = b.leaf((rows, k), dtype)
    w = b.leaf((experts, n, k) if transpose else (experts, k, n), b.choose((f32, dtype)))
    sizes = b.graph.constant(b.rng.integers(-1, 4, (experts,)).astype(np.int32), i32)
    y = apply("grouped_matmul", x, w, sizes, transpose_w=transpose)
    return y, apply("grouped_matmul_grad", x, y, sizes)


@rule("products_of_one")
def _products_of_one(b: Builder) -> Made:
    """Of sizes whose slots leave no gaps, weights side by side: those that GPUs make as one batch."""
    m, k, n = 16 * (1 + b.below(2)), 4 * (1 + b.below(5)), 32 * (1 + b.below(2))
    dtype, bias = b.choose((f32, f32, f16)), b.chance(0.5)
    x = b.leaf((m, k), dtype)
    activation = b.choose((None, "relu", "tanh"))
    shapes = ((n, k), (n,))[: 1 + bias]
    given = [[b.graph.constant(b.value(shape, dtype)) for shape in shapes] for _ in range(3)]
    return tuple(ops.matmul(x, *w, transpose_b=True, activation=activation) for w in given)


@rule("lora_matmul")
def _lora(b: Builder) -> Made:
    x = b.ranked(2, lambda t: t.dtype.is_float)
    k, r, n = x.shape[-1], 1 + b.below(3), 1 + b.below(5)
    w, low, high = (b.leaf(s, x.dtype) for s in ((k, n), (k, r), (r, n)))
    bias = b.leaf((n,), x.dtype) if b.chance(0.5) else None
    return (ops.lora_matmul(x, w, low, high, bias, scale=0.5, activation=b.choose((None, "tanh"))),)
