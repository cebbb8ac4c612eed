"""Rules of random graphs: attention with windows, caps and lengths, and its gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import rlx.ops as ops
from rlx.conformance.random_rules import Made, rule
from rlx.dtypes import bool_, f16, f32, i32
from rlx.ir import Tensor
from rlx.ir.graph import apply_multi
from rlx.ops.attention.parts import OPERANDS

if TYPE_CHECKING:
    from rlx.conformance.random_graphs import Builder


def _inputs(b: Builder) -> tuple[list[Tensor], dict[str, Any]]:
    batch, kv, group, n_q, n_k, d = (1 + b.below(3) for _ in range(6))
    n_k = n_k if b.chance(0.7) else 40
    dtype = b.choose((f32, f32, f16))
    given = [
        b.leaf((batch, kv * group, n_q, d), dtype),
        *(b.leaf((batch, kv, n_k, d), dtype) for _ in range(2)),
    ]
    if b.chance(0.3):
        given.append(b.leaf((n_q, n_k), b.choose((bool_, f32))))
    if b.chance(0.5):
        given.append(b.graph.constant(b.rng.integers(0, n_k + 1, (batch,)).astype(np.int32), i32))
    attrs = {"scale": 0.5, "causal": b.chance(0.5), "window": b.choose((None, None, 0, 2))}
    return given, {**attrs, "softcap": b.choose((None, 2.0))}


@rule("attention_variants")
def _attention(b: Builder) -> Made:
    given, attrs = _inputs(b)
    tokens = "".join(letter for letter in OPERANDS if b.chance(0.3))
    given = [ops.transpose(t, (0, 2, 1, 3)) if letter in tokens else t
             for letter, t in zip(OPERANDS, given[:3], strict=False)] + given[3:]  # fmt: skip
    return apply_multi("attention", *given, **attrs, tokens=tokens)


@rule("attention_grad")
def _attention_grad(b: Builder) -> Made:
    given, attrs = _inputs(b)
    d = b.leaf(given[0].shape, given[0].dtype)
    return apply_multi("attention_grad", d, *given, **attrs)
