"""The rules of random graphs: each adds one op, or a few that belong together, to a builder's graph."""

from __future__ import annotations

import importlib
import math
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rlx import ops
from rlx.dtypes import bf16, bool_, f16, f32, i32, i64
from rlx.ir import Tensor

if TYPE_CHECKING:
    from rlx.conformance.random_graphs import Builder


def is_number(t: Tensor) -> bool:
    return t.dtype.kind != "b"


def joined(*tensors: Tensor) -> float:
    """Elements of the broadcast of the tensors; infinity when they do not broadcast."""
    try:
        return math.prod(np.broadcast_shapes(*(t.shape for t in tensors)))
    except ValueError:
        return math.inf


MAX_ELEMENTS = 4096
Made = tuple[Tensor, ...]
RULES: dict[str, Callable[[Builder], Made]] = {}
ROUGH: set[str] = set()  # rules left out of smooth graphs: a small error may become a large one


def _rule(
    name: str, *, rough: bool = False
) -> Callable[[Callable[[Builder], Made]], Callable[[Builder], Made]]:
    def add(rule: Callable[[Builder], Made]) -> Callable[[Builder], Made]:
        RULES[name] = rule
        if rough:
            ROUGH.add(name)
        return rule

    return add


def _unary(name: str, pick: Callable[[Builder], Tensor], rough: bool) -> None:
    function = getattr(ops, name)
    _rule(name, rough=rough)(lambda b: (function(pick(b)),))


for _name in ("sin", "cos", "tanh", "erf", "sigmoid", "silu", "gelu", "relu"):
    _unary(_name, lambda b: b.floating(), False)
for _name in ("exp", "log", "sqrt", "rsqrt", "reciprocal", "round", "floor", "ceil"):
    _unary(_name, lambda b: b.floating(), True)
for _name, _rough in (("neg", False), ("abs", False), ("sign", True)):
    _unary(_name, lambda b: b.number(), _rough)
_unary("copy", lambda b: b.any(), False)
_unary("logical_not", lambda b: b.any(), True)


def _binary(name: str, rough: bool, numbers: bool = True) -> None:
    function = getattr(ops, name)

    def rule(b: Builder) -> Made:
        x = b.number() if numbers else b.any()
        y = b.beside(x, is_number if numbers else lambda t: True)
        return (function(x, y) if b.chance(0.5) else function(y, x),)

    _rule(name, rough=rough)(rule)


for _name in ("add", "sub", "maximum", "minimum"):
    _binary(_name, False)
for _name in ("mul", "div", "pow"):
    _binary(_name, True)
for _name in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"):
    _binary(_name, True, False)
for _name in ("logical_and", "logical_or", "logical_xor"):
    _binary(_name, True, False)


@_rule("add_scalar")
def _add_scalar(b: Builder) -> Made:
    return (ops.add(b.number(), b.choose((0, 1, 2))),)


@_rule("mul_scalar")
def _mul_scalar(b: Builder) -> Made:
    x = b.number()
    return (ops.mul(x, b.choose((1, 1, 2, 0.5, 3 if x.dtype.kind == "u" else -1))),)


@_rule("bounded_mul")
def _bounded_mul(b: Builder) -> Made:
    x = b.floating()
    return (ops.mul(ops.tanh(x), b.beside(x, lambda t: t.dtype.is_float)),)


@_rule("square")
def _square(b: Builder) -> Made:
    return (ops.pow(ops.sin(b.floating()), b.choose((1, 2))),)


@_rule("where")
def _where(b: Builder) -> Made:
    x = b.any()
    y = b.beside(x)
    mask = b.pick(lambda t: t.dtype.kind == "b" and joined(x, y, t) <= MAX_ELEMENTS)
    return (ops.where(mask if mask is not None else b.graph.constant(b.value(x.shape[-1:], bool_)), x, y),)


@_rule("clip", rough=True)
def _clip(b: Builder) -> Made:
    return (ops.clip(b.number(), b.choose((None, -1, 0)), b.choose((None, 1, 5))),)


@_rule("cast", rough=True)
def _cast(b: Builder) -> Made:
    return (ops.cast(b.any(), b.dtype()),)


@_rule("cast_float")
def _cast_float(b: Builder) -> Made:
    return (ops.cast(b.any(), b.choose((f32, f16, bf16))),)


@_rule("reshape")
def _reshape(b: Builder) -> Made:
    x = b.any()
    dims = [d for d in (*x.shape, 1) if b.chance(0.8) or d != 1]
    for _ in range(b.below(3)):
        if len(dims) > 1:
            k = b.below(len(dims) - 1)
            dims[k : k + 2] = [dims[k] * dims[k + 1]]
    b.rng.shuffle(dims)
    return (ops.reshape(x, tuple(int(d) for d in dims)),)


@_rule("transpose")
def _transpose(b: Builder) -> Made:
    x = b.any()
    return (ops.transpose(x, [int(p) for p in b.rng.permutation(x.ndim)]),)


@_rule("expand")
def _expand(b: Builder) -> Made:
    x = b.any()
    dims = [b.choose((1, 2, 5)) if d == 1 else d for d in x.shape]
    if b.chance(0.4):
        dims = [b.choose((1, 3)), *dims]
    return (ops.expand(x, tuple(dims)),) if math.prod(dims) <= MAX_ELEMENTS else (x,)


@_rule("slice")
def _slice(b: Builder) -> Made:
    x = b.any()
    key = []
    for n in x.shape:
        kind = b.choose(("all", "all", "head", "tail", "odd", "back", "one"))
        cut = b.below(n + 1)
        parts = {
            "head": slice(cut),
            "tail": slice(cut, None),
            "odd": slice(b.below(2), None, 2),
            "back": slice(None, None, -1),
        }
        key.append(b.below(n) if kind == "one" and n else parts.get(kind, slice(None)))
    return (x[tuple(key)],)


@_rule("rows")
def _rows(b: Builder) -> Made:
    x = b.ranked(1)
    cut = b.below(x.shape[0] + 1)
    return x[:cut], x[cut:]


@_rule("own_row")
def _own_row(b: Builder) -> Made:
    """x beside a view of itself: not to be overwritten while the view is still read."""
    x = ops.abs(b.ranked(1, is_number))
    return (ops.sub(x, x[: 1 if b.chance(0.7) else x.shape[0]]),)


@_rule("concat")
def _concat(b: Builder) -> Made:
    x = b.ranked(1)
    axis = b.below(x.ndim)
    beside = [
        t
        for t in b.pool
        if t.ndim == x.ndim
        and all(p == q or i == axis for i, (p, q) in enumerate(zip(t.shape, x.shape, strict=True)))
    ]
    return (ops.concat([b.choose(beside) if beside else x for _ in range(1 + b.below(3))], axis),)


def _reduce(name: str, rough: bool) -> None:
    function = getattr(ops, name)

    def rule(b: Builder) -> Made:
        x = b.ranked(1, is_number)
        axes = [i for i in range(x.ndim) if b.chance(0.5)]
        return (function(x, axes, keepdims=b.chance(0.5)),)

    _rule(name, rough=rough)(rule)


for _name, _rough in (("sum", False), ("mean", False), ("max", False), ("min", False), ("prod", True)):
    _reduce(_name, _rough)


@_rule("matmul")
def _matmul(b: Builder) -> Made:
    x = b.ranked(2, is_number)
    k = x.shape[-1]
    y = b.pick(
        lambda t: (
            t.ndim >= 2
            and is_number(t)
            and t.dtype.is_float == x.dtype.is_float
            and t.shape[-2] == k
            and _fits(x, t)
        )
    )
    if y is None or b.chance(0.3):
        y = b.leaf((k, 1 + b.below(6)), x.dtype if b.chance(0.7) or not x.dtype.is_float else f32)
    made = ops.matmul(x, y)
    if b.chance(0.6) and made.dtype.is_float:
        made = ops.add(made, b.leaf((y.shape[-1],), made.dtype))
        if b.chance(0.6):
            made = getattr(ops, b.choose(("relu", "gelu", "silu", "tanh", "sigmoid")))(made)
    return (made,)


def _fits(x: Tensor, y: Tensor) -> bool:
    try:
        batch = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    except ValueError:
        return False
    return math.prod(batch) * x.shape[-2] * y.shape[-1] <= MAX_ELEMENTS


@_rule("matmul_transposed")
def _matmul_transposed(b: Builder) -> Made:
    x = b.ranked(2, lambda t: t.dtype.is_float)
    y = b.leaf((1 + b.below(6), x.shape[-1]), x.dtype)
    return (ops.matmul(x, y, transpose_b=True) if b.chance(0.5) else ops.matmul(x, ops.transpose(y)),)


@_rule("softmax")
def _softmax(b: Builder) -> Made:
    x = b.ranked(1, lambda t: t.dtype.is_float)
    return (ops.softmax(x, b.below(x.ndim)),)


@_rule("layer_norm", rough=True)
def _layer_norm(b: Builder) -> Made:
    x = b.ranked(1, lambda t: t.dtype.is_float)
    d = (x.shape[-1],)
    return (ops.layer_norm(x, b.leaf(d, x.dtype), b.leaf(d, x.dtype), 1e-5),)


@_rule("rms_norm")
def _rms_norm(b: Builder) -> Made:
    x = b.ranked(1, lambda t: t.dtype.is_float)
    beta = b.leaf((x.shape[-1],), x.dtype) if b.chance(0.3) else None
    return (ops.rms_norm(x, b.leaf((x.shape[-1],), x.dtype), beta, eps=0.1),)


@_rule("attention")
def _attention(b: Builder) -> Made:
    batch, kv, group, n_q, n_k, d = (1 + b.below(3) for _ in range(6))
    dtype = b.choose((f32, f32, f16))
    q = b.leaf((batch, kv * group, n_q, d), dtype)
    k, v = b.leaf((batch, kv, n_k, d), dtype), b.leaf((batch, kv, n_k, d), dtype)
    mask = b.leaf((n_q, n_k), b.choose((bool_, f32))) if b.chance(0.5) else None
    return (ops.attention(q, k, v, mask=mask, causal=b.chance(0.5)),)


@_rule("gather")
def _gather(b: Builder) -> Made:
    x = b.ranked(1)
    axis = b.below(x.ndim)
    n, shape = x.shape[axis], b.shape(b.below(3))
    indices = b.pick(
        lambda t: t.dtype in (i32, i64) and t.ndim < 3 and t.size < 20 and not t.node.op.is_constant
    )
    if indices is None or b.chance(0.6):
        value = b.rng.integers(-n, n, shape)
        indices = b.graph.constant(value.astype(b.choose((np.int32, np.int64))))
    if x.size // n * indices.size > MAX_ELEMENTS:
        return (x,)
    return (ops.gather(x, indices, axis),)


@_rule("half_weights")
def _half_weights(b: Builder) -> Made:
    """What set_param_dtypes makes of a model's weights: half precision, cast before their use."""
    x = b.ranked(2, lambda t: t.dtype == f32)
    n = 1 + b.below(5)
    y = ops.matmul(x, _half(b, (x.shape[-1], n)))
    if b.chance(0.5):
        y = ops.add(y, _half(b, (n,)))
    return (ops.rms_norm(y, _half(b, (n,)), _half(b, (n,)) if b.chance(0.3) else None, 0.1),)


def _half(b: Builder, shape: tuple[int, ...]) -> Tensor:
    name, dtype = f"half{len(b.made.feeds)}", b.choose((f16, bf16))
    b.made.feeds[name] = b.value(shape, dtype)
    return ops.cast(b.graph.param(name, shape, dtype), f32)


rule = _rule
# Families with rules of their own: random_rules_<family>.py beside this file.
for _module in pkgutil.iter_modules([str(Path(__file__).parent)]):
    if _module.name.startswith("random_rules_"):
        importlib.import_module(f"rlx.conformance.{_module.name}")
