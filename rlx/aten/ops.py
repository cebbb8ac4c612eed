"""A rule for each operator of ATen that `from_torch` reads: the same arithmetic in rlx's ops.

A rule takes what torch's schema of the operator names, in its order and with its defaults filled in; what says where
or how a tensor lies in memory (`_MEMORY`) is left out. Results get the dtypes that torch recorded.
Follows https://docs.pytorch.org/docs/stable/torch.compiler_ir.html (Core ATen).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

import rlx.ops as rlx
from rlx.dtypes import as_dtype
from rlx.errors import RlxError, UnsupportedOp
from rlx.ops.public import public
from rlx.ops.random import draws
from rlx.records import Record

_MEMORY = {
    "layout",
    "device",
    "pin_memory",
    "memory_format",
    "generator",
    "non_blocking",
    "copy",
    "sparse_grad",
    "requires_grad",
}
_DTYPES = {
    "float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16", "int64": "i64", "int32": "i32",
    "int8": "i8", "uint8": "u8", "bool": "bool",
}  # fmt: skip

# As rlx.random has them: they also compute outside a trace.
draw = SimpleNamespace(**{
    name: public("rlx.random", name, getattr(draws, name))
    for name in ("bernoulli", "dropout", "fold_in", "normal", "uniform")
})  # fmt: skip


def dtype_of(kind: Any) -> Any:
    """rlx's dtype for one of torch's. Raises UnsupportedOp for those that rlx lacks."""
    name = str(kind).removeprefix("torch.")
    if name not in _DTYPES:
        raise UnsupportedOp(f"the module has a tensor of {kind}; rlx reads {', '.join(_DTYPES)}")
    return as_dtype(_DTYPES[name])


class Random:
    """The random numbers of one call: each operator that draws gets a key of its own, in the order of the graph."""

    def __init__(self, key: Any) -> None:
        self._key, self._count, self.line = key, 0, ""

    def key(self) -> Any:
        if self._key is None:
            raise RlxError(
                f"the module draws random numbers ({self.line}): pass key=rlx.random.key(seed), "
                "or export it after module.eval()"
            )
        self._count += 1
        return draw.fold_in(self._key, self._count)


class Rule(Record, slots=False):
    call: Callable[..., Any]
    promote: bool = False

    def arguments(self, node: Any) -> tuple[list[Any], dict[str, Any]]:
        """A node's arguments in the order of the schema, defaults filled in."""
        schema = getattr(node.target, "_schema", None)
        if schema is None:  # arithmetic of lengths, by Python's operators
            return list(node.args), dict(node.kwargs)
        values = []
        for i, argument in enumerate(schema.arguments):
            if argument.name in _MEMORY:
                continue
            positional = i < len(node.args) and not argument.kwarg_only
            values.append(
                node.args[i] if positional else node.kwargs.get(argument.name, argument.default_value)
            )
        return values, {}


_RULES: dict[str, Rule] = {}


def find(target: Any) -> Rule | None:
    """The rule of an operator (its overload's own, or that of all its overloads), or None."""
    if getattr(target, "_schema", None) is None:
        return Rule(lambda _, *args: target(*args)) if getattr(target, "__module__", "") in _PLAIN else None
    name = str(target)
    return _RULES.get(name.removeprefix("aten.")) or _RULES.get(name.removeprefix("aten.").rpartition(".")[0])


_PLAIN = {"_operator", "math", "torch"}  # modules whose functions work on the lengths of axes


def rule(*names: str, promote: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def keep(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            _RULES[name] = Rule(function, promote)
        return function

    return keep


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda _random, *args: function(*args)


def _rank(x: Any) -> int:
    return len(x.shape)


def _axes(x: Any, dim: Any) -> tuple[int, ...]:
    """torch's dim (None or an empty list: all) as axes."""
    if dim is None or dim == []:
        return tuple(range(_rank(x)))
    return tuple(d % max(_rank(x), 1) for d in (dim if isinstance(dim, list) else [dim]))


# Elementwise operators of one name and one meaning.
for _name in (
    "abs acos acosh asin asinh atan atanh ceil cos cosh erf erfc exp exp2 expm1 floor log log10 log1p log2 neg "
    "reciprocal relu rsqrt sigmoid sign sin sinh sqrt square tan tanh trunc silu mish relu6 lgamma digamma"
).split():
    rule(_name, promote=True)(_plain(getattr(rlx, _name)))
for _name in "isnan isinf isfinite logical_not bitwise_not logical_and logical_or logical_xor".split():
    rule(_name)(_plain(getattr(rlx, _name)))
for _name in (
    "maximum minimum fmod remainder atan2 copysign hypot bitwise_and bitwise_or bitwise_xor floor_divide"
).split():
    rule(_name, promote=True)(_plain(getattr(rlx, _name)))
_SAME: dict[str, Callable[..., Any]] = {
    "eq": rlx.equal, "ne": rlx.not_equal, "lt": rlx.less, "le": rlx.less_equal, "gt": rlx.greater,
    "ge": rlx.greater_equal, "hardswish": rlx.hard_swish, "rlx.stop_gradient": rlx.stop_gradient, "alias": lambda x: x,
    "clone": lambda x: x, "contiguous": lambda x: x, "lift_fresh_copy": lambda x: x, "pixel_shuffle": rlx.pixel_shuffle,
    "pixel_unshuffle": rlx.pixel_unshuffle, "bmm": rlx.matmul, "mm": rlx.matmul, "matmul": rlx.matmul, "mv": rlx.matmul,
    "dot": rlx.matmul, "linear": rlx.linear, "hardsigmoid": lambda x: rlx.div(rlx.relu6(rlx.add(x, 3)), 6),
    "t": lambda x: rlx.transpose(x), "mul": rlx.mul,
}  # fmt: skip
for _name, _function in _SAME.items():
    rule(_name, promote=_name not in {"eq", "ne", "lt", "le", "gt", "ge"})(_plain(_function))


@rule("add", promote=True)
def _add(_: Random, x: Any, y: Any, alpha: Any = 1) -> Any:
    return rlx.add(x, y if alpha == 1 else rlx.mul(y, alpha))


@rule("sub", promote=True)
def _sub(_: Random, x: Any, y: Any, alpha: Any = 1) -> Any:
    return rlx.sub(x, y if alpha == 1 else rlx.mul(y, alpha))


@rule("rsub", promote=True)
def _rsub(_: Random, x: Any, y: Any, alpha: Any = 1) -> Any:
    return _sub(_, y, x, alpha)


@rule("div", promote=True)
def _div(_: Random, x: Any, y: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode == "floor":
        return rlx.floor_divide(x, y)
    if rounding_mode == "trunc":
        return rlx.trunc(rlx.div(x, y)) if as_dtype(x.dtype).is_float else rlx.div(x, y)
    return rlx.div(x, y)


@rule("pow", promote=True)
def _pow(_: Random, x: Any, y: Any) -> Any:
    return rlx.pow(x, y)


@rule("round", promote=True)
def _round(_: Random, x: Any, decimals: int = 0) -> Any:
    return rlx.round(x) if decimals == 0 else rlx.div(rlx.round(rlx.mul(x, 10.0**decimals)), 10.0**decimals)


@rule("addcmul", promote=True)
def _addcmul(_: Random, x: Any, a: Any, b: Any, value: Any = 1) -> Any:
    return rlx.add(x, rlx.mul(rlx.mul(a, b), value))


@rule("addcdiv", promote=True)
def _addcdiv(_: Random, x: Any, a: Any, b: Any, value: Any = 1) -> Any:
    return rlx.add(x, rlx.mul(rlx.div(a, b), value))


@rule("lerp", promote=True)
def _lerp(_: Random, x: Any, end: Any, weight: Any) -> Any:
    return rlx.add(x, rlx.mul(rlx.sub(end, x), weight))


@rule("clamp", "hardtanh", promote=True)
def _clamp(_: Random, x: Any, low: Any = None, high: Any = None) -> Any:
    x = x if low is None else rlx.maximum(x, low)
    return x if high is None else rlx.minimum(x, high)


@rule("clamp_min", promote=True)
def _clamp_min(_: Random, x: Any, low: Any) -> Any:
    return rlx.maximum(x, low)


@rule("clamp_max", promote=True)
def _clamp_max(_: Random, x: Any, high: Any) -> Any:
    return rlx.minimum(x, high)


@rule("leaky_relu")
def _leaky_relu(_: Random, x: Any, slope: float) -> Any:
    return rlx.leaky_relu(x, slope)


@rule("prelu", "_prelu_kernel")
def _prelu(_: Random, x: Any, weight: Any) -> Any:
    if math.prod(weight.shape) > 1 and _rank(weight) == 1:
        weight = rlx.reshape(weight, (1, -1, *(1,) * (_rank(x) - 2)))
    return rlx.where(rlx.greater(x, 0), x, rlx.mul(x, weight))


@rule("elu")
def _elu(_: Random, x: Any, alpha: float, scale: float, input_scale: float) -> Any:
    negative = rlx.mul(rlx.expm1(rlx.mul(rlx.minimum(x, 0), input_scale)), alpha)
    return rlx.mul(rlx.where(rlx.greater(x, 0), x, negative), scale)


@rule("gelu")
def _gelu(_: Random, x: Any, approximate: str) -> Any:
    if approximate == "tanh":
        inner = rlx.mul(rlx.add(x, rlx.mul(rlx.mul(rlx.mul(x, x), x), 0.044715)), math.sqrt(2 / math.pi))
        return rlx.mul(rlx.mul(x, 0.5), rlx.add(rlx.tanh(inner), 1))
    return rlx.gelu(x)


@rule("softplus")
def _softplus(_: Random, x: Any, beta: float, threshold: float) -> Any:
    scaled = rlx.mul(x, beta)
    return rlx.where(
        rlx.greater(scaled, threshold), x, rlx.div(rlx.softplus(rlx.minimum(scaled, threshold)), beta)
    )


@rule("where")
def _where(_: Random, condition: Any, x: Any, y: Any) -> Any:
    return rlx.where(condition, x, y)


@rule("masked_fill")
def _masked_fill(_: Random, x: Any, mask: Any, value: Any) -> Any:
    return rlx.where(mask, value, x)


# Reductions.


def _reduced(function: Callable[..., Any]) -> Callable[..., Any]:
    def reduce(_: Random, x: Any, dim: Any = None, keepdim: bool = False, *_dtype: Any) -> Any:
        return function(x, _axes(x, dim), keepdim) if _rank(x) else x

    return reduce


for _name in ("sum", "mean", "prod"):
    _function = _reduced(getattr(rlx, _name))
    rule(_name, promote=True)(_function)
    # The overload without dim has the dtype second.
    rule(f"{_name}.default", promote=True)(lambda _, x, _dtype=None, f=_function: f(_, x))
for _name, _function in {"amax": rlx.max, "amin": rlx.min}.items():
    rule(_name)(_reduced(_function))
for _name, _function in {"any": rlx.any, "all": rlx.all}.items():
    rule(_name)(_reduced(lambda x, axes, keep, f=_function: f(rlx.cast(x, "bool"), axes, keep)))


@rule("max", "min")
def _never(_: Random, *__: Any) -> Any:
    raise UnsupportedOp("an overload of max or min without a rule")


for _name, _function, _arg in (("max", rlx.max, rlx.argmax), ("min", rlx.min, rlx.argmin)):
    rule(f"{_name}.default")(lambda _, x, f=_function: f(x))
    rule(f"{_name}.other", promote=True)(_plain(getattr(rlx, f"{_name}imum")))
    rule(f"{_name}.dim")(
        lambda _, x, dim, keep, arg=_arg: (
            _taken(x, arg(x, dim, True), dim, keep),
            arg(x, dim, keep),
        )
    )
for _name, _function in {"argmax": rlx.argmax, "argmin": rlx.argmin}.items():
    rule(_name)(lambda _, x, dim=None, keep=False, f=_function: f(x, dim, keep))


def _taken(x: Any, indices: Any, dim: int, keep: bool) -> Any:
    """x at one index along an axis: torch sends the gradient of max and min there alone."""
    values = rlx.gather_elements(x, indices, dim)
    return values if keep else rlx.squeeze(values, dim)


@rule("var", "var.correction")
def _var(_: Random, x: Any, dim: Any = None, correction: Any = 1, keepdim: bool = False) -> Any:
    return _var_mean(_, x, dim, correction, keepdim)[0]


@rule("std.correction")
def _std(_: Random, x: Any, dim: Any = None, correction: Any = 1, keepdim: bool = False) -> Any:
    return rlx.sqrt(_var(_, x, dim, correction, keepdim))


@rule("var_mean.correction")
def _var_mean(
    _: Random, x: Any, dim: Any = None, correction: Any = 1, keepdim: bool = False
) -> tuple[Any, Any]:
    axes = _axes(x, dim)
    count = math.prod(x.shape[a] for a in axes)
    mean = rlx.mean(x, axes, True)
    squares = rlx.sum(rlx.square(rlx.sub(x, mean)), axes, keepdim)
    below = count - (1 if correction is None else correction)
    return rlx.div(squares, max(below, 0)), mean if keepdim else rlx.squeeze(mean, axes)


@rule("linalg_vector_norm")
def _vector_norm(
    _: Random, x: Any, order: Any = 2, dim: Any = None, keepdim: bool = False, _dtype: Any = None
) -> Any:
    axes, size = _axes(x, dim), rlx.abs(x)
    if order in (math.inf, -math.inf):
        return (rlx.max if order > 0 else rlx.min)(size, axes, keepdim)
    if order == 0:
        return rlx.sum(rlx.cast(rlx.not_equal(x, 0), x.dtype), axes, keepdim)
    if order == 1:
        return rlx.sum(size, axes, keepdim)
    if order == 2:
        return rlx.sqrt(rlx.sum(rlx.square(x), axes, keepdim))
    return rlx.pow(rlx.sum(rlx.pow(size, order), axes, keepdim), 1 / order)


@rule("cumsum")
def _cumsum(_: Random, x: Any, dim: int, _dtype: Any = None) -> Any:
    return rlx.cumsum(x, dim) if _rank(x) else x


@rule("cumprod")
def _cumprod(_: Random, x: Any, dim: int, _dtype: Any = None) -> Any:
    return rlx.cumprod(x, dim) if _rank(x) else x


@rule("logsumexp")
def _logsumexp(_: Random, x: Any, dim: Any, keepdim: bool = False) -> Any:
    return rlx.logsumexp(x, _axes(x, dim), keepdim)


@rule("_softmax", "softmax")
def _softmax(_: Random, x: Any, dim: int, *__: Any) -> Any:
    return rlx.softmax(x, dim)


@rule("_log_softmax", "log_softmax")
def _log_softmax(_: Random, x: Any, dim: int, *__: Any) -> Any:
    return rlx.log_softmax(x, dim)


@rule("topk")
def _topk(_: Random, x: Any, k: int, dim: int = -1, largest: bool = True, ordered: bool = True) -> Any:
    return rlx.top_k(x, k, dim, largest, ordered)


@rule("sort")
def _sort(_: Random, x: Any, dim: int = -1, descending: bool = False) -> Any:
    order = rlx.argsort(x, dim, descending)
    return rlx.gather_elements(x, order, dim), order


@rule("sort.stable")
def _sort_stable(_: Random, x: Any, _stable: Any, dim: int = -1, descending: bool = False) -> Any:
    return _sort(_, x, dim, descending)


# Products.


@rule("addmm", "baddbmm", "addmv", promote=True)
def _addmm(_: Random, x: Any, a: Any, b: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    product = rlx.matmul(a, b)
    product = product if alpha == 1 else rlx.mul(product, alpha)
    if beta == 0:  # torch ignores x then, NaN and all
        return product
    return rlx.add(product, x if beta == 1 else rlx.mul(x, beta))


def _per_axis(values: Any, count: int) -> list[int]:
    each: list[int] = list(values) if isinstance(values, list | tuple) else [values]
    return each * count if len(each) == 1 else each


@rule("convolution")
def _convolution(
    _: Random,
    x: Any,
    w: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Any:
    count = _rank(w) - 2
    batched = _rank(x) == count + 2
    x = x if batched else rlx.unsqueeze(x, 0)
    settings: dict[str, Any] = {
        "strides": _per_axis(stride, count),
        "pads": _per_axis(padding, count),
        "dilations": _per_axis(dilation, count),
        "groups": groups,
    }
    if transposed:
        y = rlx.conv_transpose(x, w, bias, output_padding=_per_axis(output_padding, count), **settings)
    else:
        y = rlx.conv(x, w, bias, **settings)
    return y if batched else rlx.squeeze(y, 0)


@rule("scaled_dot_product_attention")
def _attention(
    random: Random,
    q: Any,
    k: Any,
    v: Any,
    mask: Any = None,
    dropout: float = 0.0,
    causal: bool = False,
    scale: Any = None,
    gqa: bool = False,
) -> Any:
    queries, keys = q.shape[-2], k.shape[-2]
    if (
        causal and queries != keys
    ):  # torch aligns the first query with the first key, rlx the last with the last
        mask, causal = np.tri(queries, keys, dtype=bool), False
    lead = tuple(q.shape[:-2])
    if dropout or v.shape[-1] != q.shape[-1]:
        if gqa:
            k, v = (rlx.repeat(t, q.shape[-3] // t.shape[-3], -3) for t in (k, v))
        scores = rlx.mul(
            rlx.matmul(q, rlx.swapaxes(k, -1, -2)), 1 / math.sqrt(q.shape[-1]) if scale is None else scale
        )
        mask = np.tri(queries, keys, dtype=bool) if causal else mask
        if mask is not None:
            scores = (
                rlx.where(mask, scores, -math.inf)
                if as_dtype(mask.dtype).name == "bool"
                else rlx.add(scores, mask)
            )
        weights = rlx.softmax(scores, -1)
        return rlx.matmul(draw.dropout(weights, dropout, random.key()) if dropout else weights, v)
    four = [
        rlx.reshape(t, (math.prod(lead[:-1]), t.shape[-3] if lead else 1, *t.shape[-2:])) for t in (q, k, v)
    ]
    if mask is not None and len(lead) != 2:
        mask = rlx.reshape(
            rlx.broadcast_to(mask, (*lead, queries, keys)),
            (math.prod(lead[:-1]), four[0].shape[1], queries, keys),
        )
    y = rlx.attention(four[0], four[1], four[2], mask, scale=scale, causal=causal)
    return rlx.reshape(y, (*lead, queries, v.shape[-1]))


# Norms and dropout.


def _normal_axes(x: Any, axes: tuple[int, ...], eps: float) -> tuple[Any, Any, Any]:
    mean = rlx.mean(x, axes, True)
    centered = rlx.sub(x, mean)
    rstd = rlx.rsqrt(rlx.add(rlx.mean(rlx.square(centered), axes, True), eps))
    return rlx.mul(centered, rstd), mean, rstd


@rule("native_layer_norm")
def _layer_norm(_: Random, x: Any, shape: Sequence[int], gamma: Any, beta: Any, eps: float) -> Any:
    if len(shape) == 1 and gamma is not None and beta is not None:
        return (
            rlx.layer_norm(x, gamma, beta, eps),
            _Unread("native_layer_norm's mean"),
            _Unread("native_layer_norm's rstd"),
        )
    y, mean, rstd = _normal_axes(x, tuple(range(_rank(x) - len(shape), _rank(x))), eps)
    y = y if gamma is None else rlx.mul(y, gamma)
    return (y if beta is None else rlx.add(y, beta)), mean, rstd


@rule("native_group_norm")
def _group_norm(
    _: Random, x: Any, gamma: Any, beta: Any, _n: int, channels: int, _size: int, groups: int, eps: float
) -> Any:
    one, zero = np.ones(channels, as_dtype(x.dtype).np), np.zeros(channels, as_dtype(x.dtype).np)
    y = rlx.group_norm(x, groups, one if gamma is None else gamma, zero if beta is None else beta, eps)
    return y, _Unread("native_group_norm's mean"), _Unread("native_group_norm's rstd")


@rule("_native_batch_norm_legit_functional", "_native_batch_norm_legit", "native_batch_norm")
def _batch_norm(
    _: Random, x: Any, gamma: Any, beta: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> Any:
    if not training:
        return *_batch_norm_inference(_, x, gamma, beta, mean, var, momentum, eps), mean, var
    y, batch_mean, rstd = _batch_statistics(x, gamma, beta, eps)
    count = math.prod(x.shape) // x.shape[1]
    batch_var = rlx.sub(rlx.reciprocal(rlx.square(rstd)), eps)
    new_mean = rlx.add(rlx.mul(mean, 1 - momentum), rlx.mul(batch_mean, momentum))
    new_var = rlx.add(rlx.mul(var, 1 - momentum), rlx.mul(batch_var, momentum * count / max(count - 1, 1)))
    return y, batch_mean, rstd, new_mean, new_var


@rule("_native_batch_norm_legit.no_stats")
def _batch_norm_no_stats(
    _: Random, x: Any, gamma: Any, beta: Any, _training: bool, _momentum: float, eps: float
) -> Any:
    return _batch_statistics(x, gamma, beta, eps)


def _batch_statistics(x: Any, gamma: Any, beta: Any, eps: float) -> tuple[Any, Any, Any]:
    y, mean, rstd = _normal_axes(x, (0, *range(2, _rank(x))), eps)
    shape = (1, -1, *(1,) * (_rank(x) - 2))
    y = y if gamma is None else rlx.mul(y, rlx.reshape(gamma, shape))
    y = y if beta is None else rlx.add(y, rlx.reshape(beta, shape))
    return y, rlx.reshape(mean, (-1,)), rlx.reshape(rstd, (-1,))


@rule("_native_batch_norm_legit_no_training")
def _batch_norm_inference(
    _: Random, x: Any, gamma: Any, beta: Any, mean: Any, var: Any, _momentum: float, eps: float
) -> Any:
    kind = as_dtype(x.dtype).np
    one, zero = np.ones(x.shape[1], kind), np.zeros(x.shape[1], kind)
    y = rlx.batch_norm(x, one if gamma is None else gamma, zero if beta is None else beta, mean, var, eps)
    return y, _Unread("batch norm's saved mean"), _Unread("batch norm's saved rstd")


@rule("native_dropout")
def _dropout(random: Random, x: Any, p: float, train: bool | None = None) -> Any:
    if train is False or p == 0:
        return x, rlx.full(tuple(x.shape), True, "bool")
    keep = draw.bernoulli(random.key(), 1 - p, tuple(x.shape))
    return rlx.mul(rlx.where(keep, x, 0), 0.0 if p == 1 else 1 / (1 - p)), keep


class _Unread:
    """A result that rlx does not compute, since modules seldom read it."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __getattr__(self, name: str) -> Any:
        if name in ("shape", "dtype") or name.startswith("__"):
            raise AttributeError(name)
        raise UnsupportedOp(f"the module reads {self._what}, which rlx does not give")


@rule("embedding")
def _embedding(_: Random, table: Any, ids: Any, padding: int = -1, *__: Any) -> Any:
    rows = rlx.embedding(table, ids)
    if padding < 0:
        return rows
    # The row of padding_idx gets no gradient from here.
    return rlx.where(rlx.unsqueeze(rlx.equal(ids, padding), -1), rlx.stop_gradient(rows), rows)


# Pools and resizing.


@rule("max_pool2d_with_indices", "max_pool3d_with_indices", "max_pool1d", "max_pool2d", "max_pool3d")
def _max_pool(
    _: Random, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> Any:
    y = _pooled(
        x,
        kernel,
        lambda t, k: rlx.max_pool(
            t, k, strides=stride or k, pads=padding, dilations=dilation, ceil_mode=ceil_mode
        ),
    )
    return y, _Unread("the indices of a max pool")


for _name in ("max_pool1d", "max_pool2d", "max_pool3d"):
    rule(_name)(lambda *args: _max_pool(*args)[0])


@rule("avg_pool1d", "avg_pool2d", "avg_pool3d")
def _avg_pool(
    _: Random,
    x: Any,
    kernel: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: Any = None,
) -> Any:
    size = math.prod(kernel) if isinstance(kernel, list) else kernel
    include = count_include_pad or divisor is not None
    y = _pooled(
        x,
        kernel,
        lambda t, k: rlx.avg_pool(
            t, k, strides=stride or k, pads=padding, ceil_mode=ceil_mode, count_include_pad=include
        ),
    )
    if divisor is None:
        return y
    if ceil_mode:
        raise UnsupportedOp("avg_pool with ceil_mode and divisor_override together")
    return rlx.mul(y, size / divisor)


def _pooled(x: Any, kernel: list[int], pool: Callable[[Any, list[int]], Any]) -> Any:
    """A pool of (N, C, *S), or of (C, *S) as torch also takes it."""
    batched = _rank(x) == len(kernel) + 2
    y = pool(x if batched else rlx.unsqueeze(x, 0), kernel)
    return y if batched else rlx.squeeze(y, 0)


@rule(
    "_adaptive_avg_pool2d",
    "_adaptive_avg_pool3d",
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
)
def _adaptive_avg_pool(_: Random, x: Any, size: Any) -> Any:
    return _pooled(x, list(size), lambda t, k: rlx.adaptive_avg_pool(t, k))


def _resized(mode: str) -> Callable[..., Any]:
    def resize(_: Random, x: Any, size: Any, *rest: Any) -> Any:
        align = bool(rest[0]) if mode != "nearest" else False
        scales = rest[-1] if isinstance(rest[-1], list) else None
        settings: dict[str, Any] = {"coordinates": "align_corners" if align else "half_pixel"}
        if mode == "nearest":
            settings = {"coordinates": "asymmetric", "rounding": "floor"}
        if scales is not None:
            return rlx.resize(x, scales=scales, mode=mode, **settings)
        return rlx.resize(x, list(size), mode=mode, **settings)

    return resize


for _name, _mode in {
    "upsample_nearest1d": "nearest", "upsample_nearest2d": "nearest", "upsample_nearest3d": "nearest",
    "upsample_linear1d": "linear", "upsample_bilinear2d": "linear", "upsample_trilinear3d": "linear",
    "upsample_bicubic2d": "cubic",
}.items():  # fmt: skip
    rule(f"{_name}.vec")(_resized(_mode))


@rule("grid_sampler_2d", "grid_sampler_3d", "grid_sampler")
def _grid_sampler(_: Random, x: Any, grid: Any, mode: int, padding: int, align: bool) -> Any:
    return rlx.grid_sample(
        x,
        grid,
        mode=("linear", "nearest", "cubic")[mode],
        padding=("zeros", "border", "reflection")[padding],
        align_corners=align,
    )


def _pads(x: Any, pad: Sequence[int]) -> list[tuple[int, int]]:
    """torch's pads, the last axis first, as a pair for each axis."""
    pairs = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)][::-1]
    return [(0, 0)] * (_rank(x) - len(pairs)) + pairs


@rule("constant_pad_nd")
def _constant_pad(_: Random, x: Any, pad: Any, value: Any = 0) -> Any:
    return rlx.pad(x, _pads(x, pad), "constant", value)


for _count in (1, 2, 3):
    rule(f"reflection_pad{_count}d")(lambda _, x, pad: rlx.pad(x, _pads(x, pad), "reflect"))
    rule(f"replication_pad{_count}d")(lambda _, x, pad: rlx.pad(x, _pads(x, pad), "edge"))


# Shapes and indices.


@rule("sym_size", "sym_size.int")
def _sym_size(_: Random, x: Any, dim: int) -> int:
    return int(x.shape[dim])


@rule("sym_numel")
def _sym_numel(_: Random, x: Any) -> int:
    return math.prod(x.shape)


@rule("view", "reshape", "_unsafe_view", "view_copy")
def _view(_: Random, x: Any, shape: Any) -> Any:
    return rlx.reshape(x, tuple(shape))


@rule("view.dtype")
def _view_dtype(_: Random, _x: Any, _kind: Any) -> Any:
    raise UnsupportedOp(
        "the module reads the bits of a tensor as another dtype (view(dtype)), which rlx does not do"
    )


@rule("permute")
def _permute(_: Random, x: Any, dims: Any) -> Any:
    return rlx.transpose(x, [d % _rank(x) for d in dims])


@rule("transpose.int")
def _transpose(_: Random, x: Any, a: int, b: int) -> Any:
    return rlx.swapaxes(x, a, b) if _rank(x) else x


@rule("expand")
def _expand(_: Random, x: Any, shape: Any, *__: Any) -> Any:
    own = (1,) * (len(shape) - _rank(x)) + tuple(x.shape)
    return rlx.broadcast_to(x, tuple(o if s == -1 else s for s, o in zip(shape, own, strict=True)))


@rule("squeeze")
def _squeeze(_: Random, x: Any, dim: Any = None) -> Any:
    axes = tuple(a for a in _axes(x, dim) if _rank(x) and x.shape[a] == 1)
    return rlx.squeeze(x, axes) if axes else x


@rule("unsqueeze")
def _unsqueeze(_: Random, x: Any, dim: int) -> Any:
    return rlx.unsqueeze(x, dim % (_rank(x) + 1))


@rule("slice")
def _slice(_: Random, x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    starts, stops, steps = [0] * _rank(x), list[Any](x.shape), [1] * _rank(x)
    starts[dim], stops[dim], steps[dim] = slice(start, end, step).indices(x.shape[dim])
    stops[dim] = max(stops[dim], starts[dim])
    return rlx.slice(x, starts, stops, steps)


@rule("select.int")
def _select(_: Random, x: Any, dim: int, index: Any) -> Any:
    index = index % x.shape[dim] if isinstance(index, int) else index
    return rlx.squeeze(_slice(_, x, dim, index, index + 1), dim % _rank(x))


@rule("cat")
def _cat(_: Random, xs: Any, dim: int = 0) -> Any:
    parts = [x for x in xs if tuple(x.shape) != (0,)] or xs[
        :1
    ]  # torch passes over empty vectors, whatever their rank
    return rlx.concat(parts, dim)


@rule("stack")
def _stack(_: Random, xs: Any, dim: int = 0) -> Any:
    return rlx.stack(xs, dim)


@rule("split_with_sizes", "split_with_sizes_copy")
def _split_with_sizes(_: Random, x: Any, sizes: Any, dim: int = 0) -> list[Any]:
    ends = np.cumsum([int(s) for s in sizes])
    return [_slice(_, x, dim, int(e) - int(s), int(e)) for s, e in zip(sizes, ends, strict=True)]


@rule("split")
def _split(_: Random, x: Any, size: int, dim: int = 0) -> list[Any]:
    return [_slice(_, x, dim, i, i + size) for i in range(0, max(x.shape[dim], 1), size)]


@rule("unbind")
def _unbind(_: Random, x: Any, dim: int = 0) -> list[Any]:
    return [_select(_, x, dim, i) for i in range(x.shape[dim])]


@rule("flip")
def _flip(_: Random, x: Any, dims: Any) -> Any:
    return rlx.flip(x, tuple(d % _rank(x) for d in dims))


@rule("roll")
def _roll(_: Random, x: Any, shifts: Any, dims: Any = None) -> Any:
    for shift, dim in zip(shifts, dims or [], strict=True) if dims else ():
        x = rlx.roll(x, shift, dim)
    return x if dims else rlx.reshape(rlx.roll(rlx.reshape(x, (-1,)), shifts[0], 0), tuple(x.shape))


@rule("repeat")
def _repeat(_: Random, x: Any, repeats: Any) -> Any:
    return rlx.tile(x, tuple(repeats))


@rule("diagonal", "diagonal_copy")
def _diagonal(_: Random, x: Any, offset: int = 0, a: int = 0, b: int = 1) -> Any:
    return rlx.diagonal(x, offset, a, b)


for _name in ("tril", "triu"):
    rule(_name)(_plain(getattr(rlx, _name)))


@rule("_to_copy", "to", "_to_copy.default")
def _to(_: Random, x: Any, *__: Any) -> Any:
    return x  # results get the dtype that torch recorded


@rule("copy")
def _copy(_: Random, x: Any, source: Any) -> Any:
    return rlx.broadcast_to(source, tuple(x.shape))


@rule("fill")
def _fill(_: Random, x: Any, value: Any) -> Any:
    return (
        rlx.broadcast_to(value, tuple(x.shape))
        if hasattr(value, "shape")
        else rlx.full(tuple(x.shape), value, x.dtype)
    )


@rule("full", "new_full")
def _full(_: Random, *args: Any) -> Any:
    shape, value = args[-3:-1] if len(args) > 2 else args
    return rlx.full(
        tuple(shape), value, _kind_of(value) if args[-1] is None or len(args) == 2 else dtype_of(args[-1])
    )


def _kind_of(value: Any) -> str:
    return "bool" if isinstance(value, bool) else "i64" if isinstance(value, int) else "f32"


@rule("full_like")
def _full_like(_: Random, x: Any, value: Any, dtype: Any = None) -> Any:
    return rlx.full(tuple(x.shape), value, x.dtype if dtype is None else dtype_of(dtype))


for _name, _value in {"zeros": 0, "ones": 1, "empty": 0}.items():
    rule(_name)(
        lambda _, shape, dtype=None, v=_value: rlx.full(
            tuple(shape), v, "f32" if dtype is None else dtype_of(dtype)
        )
    )
    rule(f"new_{_name}")(
        lambda _, x, shape, dtype=None, v=_value: rlx.full(
            tuple(shape), v, x.dtype if dtype is None else dtype_of(dtype)
        )
    )
    rule(f"{_name}_like")(lambda _, x, dtype=None, v=_value: _full_like(_, x, v, dtype))


@rule("scalar_tensor")
def _scalar(_: Random, value: Any, dtype: Any = None) -> Any:
    return rlx.full((), value, "f32" if dtype is None else dtype_of(dtype))


@rule("arange.start_step")
def _arange(_: Random, start: Any, stop: Any, step: Any = 1, dtype: Any = None) -> Any:
    whole = all(isinstance(v, int) for v in (start, stop, step))
    return rlx.arange(start, stop, step, ("i64" if whole else "f32") if dtype is None else dtype_of(dtype))


@rule("arange", "arange.default")
def _arange_to(_: Random, stop: Any, dtype: Any = None) -> Any:
    return _arange(_, 0, stop, 1, dtype)


@rule("index_select")
def _index_select(_: Random, x: Any, dim: int, index: Any) -> Any:
    return rlx.gather(x, index, dim)


@rule("gather")
def _gather(_: Random, x: Any, dim: int, index: Any) -> Any:
    return rlx.gather_elements(x, index, dim)


def _scattered(x: Any, dim: int, index: Any, source: Any, reduction: str) -> Any:
    """scatter reads as many of the source's elements as it has indices."""
    if tuple(source.shape) != tuple(index.shape):
        source = rlx.slice(source, [0] * _rank(index), list(index.shape))
    return rlx.scatter_elements(x, index, source, dim, reduction)


@rule("scatter.src")
def _scatter(_: Random, x: Any, dim: int, index: Any, source: Any) -> Any:
    return _scattered(x, dim, index, source, "none")


@rule("scatter.value")
def _scatter_value(_: Random, x: Any, dim: int, index: Any, value: Any) -> Any:
    return rlx.scatter_elements(x, index, rlx.full(tuple(index.shape), value, x.dtype), dim)


@rule("scatter_add")
def _scatter_add(_: Random, x: Any, dim: int, index: Any, source: Any) -> Any:
    return _scattered(x, dim, index, source, "add")


@rule("scatter_reduce.two")
def _scatter_reduce(
    _: Random, x: Any, dim: int, index: Any, source: Any, reduce: str, include_self: bool = True
) -> Any:
    names = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min"}
    if reduce not in names or not include_self:
        raise UnsupportedOp(
            f"scatter_reduce with reduce={reduce!r}, include_self={include_self}; "
            f"rlx has {', '.join(names)} with x included"
        )
    return _scattered(x, dim, index, source, names[reduce])


@rule("slice_scatter")
def _slice_scatter(
    _: Random, x: Any, source: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    positions = np.arange(x.shape[dim])[slice(start, end, step)]
    return rlx.scatter(x, positions, source, dim % _rank(x))


@rule("select_scatter")
def _select_scatter(_: Random, x: Any, source: Any, dim: int, index: int) -> Any:
    return rlx.scatter(
        x, np.asarray([index % x.shape[dim]]), rlx.unsqueeze(source, dim % _rank(x)), dim % _rank(x)
    )


def _indexed(x: Any, indices: Sequence[Any]) -> tuple[Any, list[int], list[Any]]:
    """The axes that have index tensors, and those, of one shape."""
    axes = [i for i, index in enumerate(indices) if index is not None]
    tensors = [indices[a] for a in axes]
    if any(as_dtype(t.dtype).name == "bool" for t in tensors):
        raise UnsupportedOp(
            "the module indexes with a boolean mask, whose result has a shape that depends on values; use torch.where"
        )
    shape = np.broadcast_shapes(*(tuple(t.shape) for t in tensors))
    lengths = [x.shape[a] for a in axes]
    whole = [rlx.broadcast_to(rlx.cast(t, "i64"), shape) for t in tensors]
    return (
        shape,
        axes,
        [rlx.where(rlx.less(t, 0), rlx.add(t, n), t) for t, n in zip(whole, lengths, strict=True)],
    )


@rule("index.Tensor", "_unsafe_index")
def _index(_: Random, x: Any, indices: Any) -> Any:
    shape, axes, tensors = _indexed(x, indices)
    others = [a for a in range(_rank(x)) if a not in axes]
    picked = rlx.gather_nd(rlx.transpose(x, axes + others), rlx.stack(tensors, -1))
    together = axes == list(range(axes[0], axes[0] + len(axes)))
    if not together or axes[0] == 0:
        return picked
    # The indexed axes stand where the first of them stood.
    new = len(shape)
    order = (
        [new + i for i in range(axes[0])] + list(range(new)) + [new + i for i in range(axes[0], len(others))]
    )
    return rlx.transpose(picked, order)


@rule("index_put", "_unsafe_index_put")
def _index_put(_: Random, x: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
    if len([i for i in indices if i is not None]) == 1:
        mask = next(i for i in indices if i is not None)
        if as_dtype(mask.dtype).name == "bool" and math.prod(values.shape) == 1 and not accumulate:
            at = next(n for n, i in enumerate(indices) if i is not None)
            mask = rlx.reshape(mask, (*(1,) * at, *mask.shape, *(1,) * (_rank(x) - at - _rank(mask))))
            return rlx.where(mask, rlx.reshape(values, ()), x)
    shape, axes, tensors = _indexed(x, indices)
    others = [a for a in range(_rank(x)) if a not in axes]
    together = axes == list(range(axes[0], axes[0] + len(axes)))
    left = axes[0] if together else 0
    full = tuple(x.shape[a] for a in others[:left]) + shape + tuple(x.shape[a] for a in others[left:])
    values = rlx.broadcast_to(values, full)
    new = len(shape)
    values = rlx.transpose(
        values, [left + i for i in range(new)] + list(range(left)) + list(range(left + new, len(full)))
    )
    perm = axes + others
    done = rlx.scatter_nd(
        rlx.transpose(x, perm), rlx.stack(tensors, -1), values, "add" if accumulate else "none"
    )
    return rlx.transpose(done, [perm.index(a) for a in range(_rank(x))])


# Random numbers: rlx's generator, so the numbers are not torch's.


@rule("rand")
def _rand(random: Random, shape: Any, _dtype: Any = None) -> Any:
    return draw.uniform(random.key(), tuple(shape))


@rule("randn")
def _randn(random: Random, shape: Any, _dtype: Any = None) -> Any:
    return draw.normal(random.key(), tuple(shape))


@rule("rand_like")
def _rand_like(random: Random, x: Any, _dtype: Any = None) -> Any:
    return draw.uniform(random.key(), tuple(x.shape))


@rule("randn_like")
def _randn_like(random: Random, x: Any, _dtype: Any = None) -> Any:
    return draw.normal(random.key(), tuple(x.shape))


@rule("bernoulli.p")
def _bernoulli_p(random: Random, x: Any, p: float) -> Any:
    return draw.bernoulli(random.key(), p, tuple(x.shape))


@rule("bernoulli")
def _bernoulli(random: Random, x: Any) -> Any:
    return draw.bernoulli(random.key(), x, tuple(x.shape))


# Recurrent layers.


def _recurrent(layer: Callable[..., Any], states: int) -> Callable[..., Any]:
    def run(
        random: Random,
        x: Any,
        state: Any,
        weights: Any,
        biases: bool,
        layers: int,
        dropout: float,
        train: bool,
        both: bool,
        batch_first: bool,
    ) -> Any:
        state = state if states == 2 else [state]
        count, directions = (4 if biases else 2), (2 if both else 1)
        if len(weights) != count * layers * directions:
            raise UnsupportedOp(
                "an LSTM with proj_size; rlx has layers whose state is as wide as their result"
            )
        x = rlx.swapaxes(x, 0, 1) if batch_first else x
        last: list[list[Any]] = [[] for _ in range(states)]
        for i in range(layers):
            if i and dropout and train:
                x = draw.dropout(x, dropout, random.key())
            results = []
            for d in range(directions):
                at = i * directions + d
                start = [_select(random, s, 0, at) for s in state]
                y, end = layer(x, *weights[at * count : (at + 1) * count], *(() if biases else (None, None)),
                               state=tuple(start) if states == 2 else start[0], reverse=bool(d))  # fmt: skip
                results.append(y)
                for kept, value in zip(last, end if states == 2 else [end], strict=True):
                    kept.append(value)
            x = results[0] if directions == 1 else rlx.concat(results, -1)
        return rlx.swapaxes(x, 0, 1) if batch_first else x, *(rlx.stack(kept, 0) for kept in last)

    return run


rule("lstm.input")(_recurrent(rlx.lstm, 2))
rule("gru.input")(_recurrent(rlx.gru, 1))


# Operators that only check something when torch itself runs the graph.
@rule(
    "_assert_scalar", "_assert_tensor_metadata", "_assert_async", "sym_constrain_range_for_size", "sym_constrain_range"
)  # fmt: skip
def _nothing(_: Random, *__: Any) -> None:
    return None


assert operator.getitem.__module__ == "_operator"
