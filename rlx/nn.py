"""Layers as pairs of functions: `<layer>_init(key, …)` draws parameters, a dict of arrays, and `<layer>(params, x)` is
the layer. Names and layouts of weights are torch's, so that a state dict's tensors fit; random keys are JAX's.

Parameters are pytrees: `rlx.grad`, `rlx.optim` and `rlx.jit` take them as they are, and a network is a function that
calls layers. What a layer changes beside its result, batch norm's running statistics, it returns.

>>> keys = rlx.random.split(rlx.random.key(0))
>>> params = {"hidden": nn.linear_init(keys[0], 64, 32), "out": nn.linear_init(keys[1], 32, 10)}
>>> logits = lambda p, x: nn.linear(p["out"], rlx.relu(nn.linear(p["hidden"], x)))
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rlx import ops, random
from rlx.dtypes import DTypeLike, as_dtype, f32
from rlx.errors import DTypeError, GraphError, ShapeError
from rlx.lazy import listed_in as _listed_in
from rlx.lazy import unknown_in as _unknown_in

Params = Mapping[str, Any]
Init = Callable[..., Any]  # (key, shape, dtype) -> weights
_MANY_ROWS = 1024  # so many rows are multiplied by several weights at once

# -- initializers: functions of (key, shape, dtype)


def zeros(key: Any, shape: Sequence[int], dtype: DTypeLike = f32) -> Any:
    """Zeros."""
    return constant(0.0)(key, shape, dtype)


def ones(key: Any, shape: Sequence[int], dtype: DTypeLike = f32) -> Any:
    """Ones."""
    return constant(1.0)(key, shape, dtype)


def constant(value: float) -> Init:
    """One number everywhere."""
    return lambda key, shape, dtype=f32: ops.full_like(random.uniform(key, tuple(shape), dtype=dtype), value)


def normal(stddev: float = 1.0) -> Init:
    """Normal numbers of mean 0."""
    return lambda key, shape, dtype=f32: random.normal(key, tuple(shape), dtype) * stddev


def uniform(low: float = 0.0, high: float = 1.0) -> Init:
    """Numbers equally likely in [low, high)."""
    return lambda key, shape, dtype=f32: random.uniform(key, tuple(shape), low, high, dtype)


def variance_scaling(
    scale: float, mode: Literal["fan_in", "fan_out", "fan_avg"], distribution: Literal["normal", "uniform"]
) -> Init:
    """Numbers of mean 0 and variance scale / fan, of weights (out, in, *kernel): fan_in is in · kernel, fan_out is
    out · kernel, fan_avg their mean. Raises: GraphError, ShapeError."""
    if mode not in ("fan_in", "fan_out", "fan_avg") or distribution not in ("normal", "uniform"):
        raise GraphError(
            f"nn.variance_scaling: mode {mode!r} and distribution {distribution!r}; expected fan_in, fan_out or "
            "fan_avg, and normal or uniform"
        )

    def init(key: Any, shape: Sequence[int], dtype: Any = f32) -> Any:
        if len(shape) < 2 or 0 in shape:
            raise ShapeError(f"nn: an initializer by fans is given the shape {tuple(shape)}; expected (out, in, …)")
        field = math.prod(shape[2:])
        fans = {"fan_in": shape[1] * field, "fan_out": shape[0] * field}
        fan = fans.get(mode, sum(fans.values()) / 2)
        if distribution == "normal":
            return normal(math.sqrt(scale / fan))(key, shape, dtype)
        bound = math.sqrt(3 * scale / fan)
        return uniform(-bound, bound)(key, shape, dtype)

    init.__doc__ = f"Numbers, {distribution}, of mean 0 and variance {scale:g} / {mode}: see `variance_scaling`."
    return init


xavier_uniform = variance_scaling(1.0, "fan_avg", "uniform")
xavier_normal = variance_scaling(1.0, "fan_avg", "normal")
kaiming_uniform = variance_scaling(2.0, "fan_in", "uniform")
kaiming_normal = variance_scaling(2.0, "fan_in", "normal")
lecun_normal = variance_scaling(1.0, "fan_in", "normal")
_DEFAULT = variance_scaling(1 / 3, "fan_in", "uniform")  # torch's: ±1/√fan_in


def _sizes(layer: str, **sizes: Any) -> None:
    for name, n in sizes.items():
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise ShapeError(f"nn.{layer}: {name} is {n!r}; expected a whole number of at least 1")


def _needs(layer: str, params: Any, *names: str) -> None:
    """Checks that a layer has its parameters. Raises: GraphError."""
    missing = [n for n in names if not isinstance(params, Mapping) or n not in params]
    if missing:
        have = sorted(params) if isinstance(params, Mapping) else type(params).__name__
        raise GraphError(
            f"nn.{layer}: the parameters have no {missing[0]!r}, they are {have}; parameters come first, then x: "
            f"nn.{layer}(nn.{layer}_init(key, …), x)"
        )


# -- linear, embedding


def linear_init(
    key: Any, n_in: int, n_out: int, bias: bool = True, init: Init = _DEFAULT, dtype: DTypeLike = f32
) -> dict[str, Any]:
    """weight (n_out, n_in) and bias (n_out,), by default as torch draws them: in ±1/√n_in."""
    _sizes("linear_init", n_in=n_in, n_out=n_out)
    return _weighted(key, (n_out, n_in), n_out, bias, init, dtype)


def _weighted(
    key: Any, shape: Sequence[int], n_out: int, bias: bool, init: Init, dtype: DTypeLike
) -> dict[str, Any]:
    keys = random.split(key)
    params = {"weight": init(keys[0], shape, as_dtype(dtype))}
    if bias:
        bound = 1 / math.sqrt(math.prod(shape[1:]))
        params["bias"] = random.uniform(keys[1], (n_out,), -bound, bound, dtype)
    return params


def linear(params: Params, x: Any) -> Any:
    """x @ weightᵀ + bias, of the parameters that `linear_init` draws. Shape: x (..., n_in) gives (..., n_out)."""
    _needs("linear", params, "weight")
    return ops.linear(x, params["weight"], params.get("bias"))


def embedding_init(key: Any, n: int, width: int, init: Init | None = None, dtype: DTypeLike = f32) -> dict[str, Any]:
    """weight (n, width), by default normal."""
    _sizes("embedding_init", n=n, width=width)
    return {"weight": (init or normal())(key, (n, width), as_dtype(dtype))}


def embedding(params: Params, ids: Any) -> Any:
    """The rows of weight that the ids name. Shape: ids (...) gives (..., width)."""
    _needs("embedding", params, "weight")
    return ops.embedding(params["weight"], ids)


# -- norms


def norm_init(width: int, bias: bool = True, dtype: DTypeLike = f32) -> dict[str, Any]:
    """weight, of ones, and bias, of zeros (width,): for layer_norm, group_norm, batch_norm, and rms_norm."""
    _sizes("norm_init", width=width)
    kind = as_dtype(dtype).np
    return {"weight": np.ones(width, kind), **({"bias": np.zeros(width, kind)} if bias else {})}


def layer_norm(params: Params, x: Any, eps: float = 1e-5) -> Any:
    """Mean 0 and variance 1 over the last axis, then · weight + bias."""
    _needs("layer_norm", params, "weight", "bias")
    return ops.layer_norm(x, params["weight"], params["bias"], eps)


def rms_norm(params: Params, x: Any, eps: float = 1e-6) -> Any:
    """x / √(mean(x²) + eps) · weight over the last axis (torch's eps is the dtype's: 1.19e-7 in f32)."""
    _needs("rms_norm", params, "weight")
    return ops.rms_norm(x, params["weight"], params.get("bias"), eps)


def group_norm(params: Params, x: Any, groups: int, eps: float = 1e-5) -> Any:
    """Mean 0 and variance 1 over each group of channels of each example, then · weight + bias. Shape: x (N, C, …)."""
    _needs("group_norm", params, "weight", "bias")
    return ops.group_norm(x, groups, params["weight"], params["bias"], eps)


def batch_norm_init(width: int, dtype: DTypeLike = f32) -> tuple[dict[str, Any], dict[str, Any]]:
    """(parameters, state), all of shape (width,): weight (ones) and bias (zeros); running mean (zeros) and var
    (ones)."""
    params, state = norm_init(width, dtype=dtype), norm_init(width, dtype=dtype)
    return params, {"mean": state["bias"], "var": state["weight"]}


def batch_norm(
    params: Params, state: Params, x: Any, training: bool, momentum: float = 0.1, eps: float = 1e-5
) -> tuple[Any, dict[str, Any]]:
    """(the result, the next state). Shape: x (N, C, …); mean and variance are over all axes but C.

    In training a batch has its own, and the running ones move by `momentum` towards it, the variance with n - 1, as
    torch's; otherwise the running ones serve, and stay. Gradients do not reach the state.
    Raises: ShapeError for a batch of one value a channel, which has no variance.
    """
    _needs("batch_norm", params, "weight", "bias")
    _needs("batch_norm", state, "mean", "var")
    if not training:
        return ops.batch_norm(x, params["weight"], params["bias"], state["mean"], state["var"], eps), dict(state)
    n = x.size // x.shape[1] if x.ndim > 1 else 0
    if n < 2:
        raise ShapeError(
            f"nn.batch_norm: x is {tuple(x.shape)}; training needs (N, C, …) with more than one value a channel: give "
            "a larger batch, or training=False"
        )
    axes = (0, *range(2, x.ndim))
    mean, var = ops.mean(x, axis=axes), ops.var(x, axis=axes)
    result = ops.batch_norm(x, params["weight"], params["bias"], mean, var, eps)

    def moved(old: Any, new: Any) -> Any:
        return ops.cast(old * (1 - momentum) + ops.stop_gradient(new) * momentum, old.dtype)

    return result, {"mean": moved(state["mean"], mean), "var": moved(state["var"], var * (n / (n - 1)))}


# -- convolution


def conv_init(
    key: Any, n_in: int, n_out: int, kernel: int | Sequence[int], axes: int = 2, groups: int = 1, bias: bool = True,
    init: Init = _DEFAULT, dtype: DTypeLike = f32,
) -> dict[str, Any]:  # fmt: skip
    """weight (n_out, n_in / groups, *kernel) and bias (n_out,); an int for `kernel` serves all `axes`."""
    sizes = (kernel,) * axes if isinstance(kernel, int) else tuple(kernel)
    _sizes("conv_init", n_in=n_in, n_out=n_out, groups=groups, **{f"kernel {i}": k for i, k in enumerate(sizes)})
    if n_in % groups or n_out % groups:
        raise ShapeError(f"nn.conv_init: {n_in} and {n_out} channels are no multiples of {groups} groups")
    return _weighted(key, (n_out, n_in // groups, *sizes), n_out, bias, init, dtype)


def conv(
    params: Params, x: Any, stride: int | Sequence[int] = 1,
    padding: int | Sequence[Any] | Literal["same", "valid"] = 0, dilation: int | Sequence[int] = 1, groups: int = 1,
) -> Any:  # fmt: skip
    """A convolution with bias, as `rlx.conv`. Shape: x (N, C, *S).

    padding: an int, one or a pair for each axis, "valid" (none), or "same", which needs stride 1 and, of an odd sum,
    puts the larger part behind, as torch does.
    """
    _needs("conv", params, "weight")
    weight = params["weight"]
    kernel = weight.shape[2:]
    if isinstance(padding, str):
        if padding not in ("same", "valid"):
            raise ShapeError(f'nn.conv: padding is {padding!r}; expected "same", "valid" or numbers')
        steps = (stride,) * len(kernel) if isinstance(stride, int) else tuple(stride)
        if padding == "same" and any(s != 1 for s in steps):
            raise ShapeError(f'nn.conv: padding="same" with stride {stride}; expected stride 1, or pads in numbers')
        dilations = (dilation,) * len(kernel) if isinstance(dilation, int) else tuple(dilation)
        sums = [d * (k - 1) if padding == "same" else 0 for d, k in zip(dilations, kernel, strict=True)]
        padding = [(n // 2, n - n // 2) for n in sums]
    return ops.conv(
        x, weight, params.get("bias"), strides=stride, pads=padding, dilations=dilation, groups=groups
    )


# -- attention


def attention_init(
    key: Any, width: int, n_heads: int, kv_heads: int | None = None, bias: bool = True, init: Init = xavier_uniform,
    dtype: DTypeLike = f32,
) -> dict[str, Any]:  # fmt: skip
    """The four products of an attention of `width` numbers: q and out (width, width), k and v
    (kv_heads · width / n_heads, width)."""
    shared = n_heads if kv_heads is None else kv_heads
    _sizes("attention_init", width=width, n_heads=n_heads, kv_heads=shared)
    if width % n_heads or n_heads % shared:
        raise ShapeError(
            f"nn.attention_init: width {width}, {n_heads} heads, {shared} of keys; expected multiples, each of the next"
        )
    keys, narrow = random.split(key, 4), shared * (width // n_heads)
    sizes = {"q": width, "k": narrow, "v": narrow, "out": width}
    return {
        name: linear_init(keys[i], width, n, bias, init, dtype) for i, (name, n) in enumerate(sizes.items())
    }


def heads(x: Any, n: int) -> Any:
    """(batch, length, n · size) as (batch, n, length, size). Raises: ShapeError."""
    if x.ndim != 3 or x.shape[-1] % n:
        raise ShapeError(f"nn.heads: x is {tuple(x.shape)}; expected (batch, length, a multiple of {n})")
    return ops.transpose(ops.reshape(x, (*x.shape[:2], n, x.shape[-1] // n)), (0, 2, 1, 3))


def joined(x: Any) -> Any:
    """(batch, n, length, size) as (batch, length, n · size)."""
    return ops.reshape(ops.transpose(x, (0, 2, 1, 3)), (x.shape[0], x.shape[2], x.shape[1] * x.shape[3]))


def attention(
    params: Params, x: Any, n_heads: int, context: Any = None, mask: Any = None, causal: bool = False
) -> Any:
    """Attention of several heads, with products before and after; of fewer keys' heads where k and v are narrower.

    Shape: x (batch, length, width); keys and values are of `context` (batch, keys, width), or of x. mask, causal: as
    rlx.attention's (a causal query of a longer context sees up to the key of its place from the end).
    Speed: without `context` the three products before are one where x has 1024 rows or more.
    """
    _needs("attention", params, "q", "k", "v", "out")
    _sizes("attention", n_heads=n_heads)
    if context is None:
        q, k, v = _products([params[name] for name in "qkv"], x)
    else:
        q, k, v = linear(params["q"], x), linear(params["k"], context), linear(params["v"], context)
    q = heads(q, n_heads)
    size = q.shape[-1]
    if k.shape[-1] % size:
        raise ShapeError(f"nn.attention: keys are {k.shape[-1]} wide; expected a multiple of a head's {size}")
    shared = k.shape[-1] // size
    result = ops.attention(q, heads(k, shared), heads(v, shared), mask, causal=causal)
    return linear(params["out"], joined(result))


def _products(parts: Sequence[Params], x: Any) -> list[Any]:
    """The linear layers of one x. Of many rows they are one product by the joined weights, and so are their gradients,
    since several narrow products leave parts of a GPU idle; of few rows, joining would take as long as multiplying."""
    weights: list[Any] = [part.get("weight") for part in parts]
    biases = [part.get("bias") for part in parts]
    arrays = [t for t in (x, *weights, *biases) if t is not None]
    if not all(hasattr(t, "shape") for t in arrays) or math.prod(x.shape[:-1]) < _MANY_ROWS:  # lists have no shape
        return [linear(part, x) for part in parts]
    pairs = list(zip(weights, biases, strict=True))
    kinds = {(np.shape(w)[1:], *(getattr(t, "dtype", None) for t in (w, b))) for w, b in pairs}
    fits = all(b is None or np.shape(b) == np.shape(w)[:1] for w, b in pairs)
    packed = getattr(getattr(weights[0], "dtype", None), "is_packed", False)
    if packed or len(kinds) > 1 or not fits or np.ndim(weights[0]) != 2:
        return [linear(part, x) for part in parts]
    whole = ops.linear(x, ops.concat(weights, 0), None if biases[0] is None else ops.concat(biases, 0))
    ends = list(itertools.accumulate(w.shape[0] for w in weights))
    return [whole[..., first:last] for first, last in itertools.pairwise([0, *ends])]


# -- recurrence


def lstm_init(key: Any, n_in: int, n_hidden: int, bias: bool = True, dtype: DTypeLike = f32) -> dict[str, Any]:
    """weight_ih (4·n_hidden, n_in), weight_hh (4·n_hidden, n_hidden), and bias_ih and bias_hh (4·n_hidden,), all in
    ±1/√n_hidden; rows are the gates i, f, g, o."""
    _sizes("lstm_init", n_in=n_in, n_hidden=n_hidden)
    bound = 1 / math.sqrt(n_hidden)
    shapes: dict[str, tuple[int, ...]] = {"weight_ih": (4 * n_hidden, n_in), "weight_hh": (4 * n_hidden, n_hidden)}
    if bias:
        shapes |= {"bias_ih": (4 * n_hidden,), "bias_hh": (4 * n_hidden,)}
    keys = random.split(key, 4)
    return {name: uniform(-bound, bound)(keys[i], s, as_dtype(dtype)) for i, (name, s) in enumerate(shapes.items())}


def lstm(params: Params, x: Any, state: tuple[Any, Any] | None = None) -> tuple[Any, tuple[Any, Any]]:
    """(hidden states of all steps, (the last one, the last cell)), by a scan.

    Shape: x (length, batch, n_in) gives (length, batch, n_hidden); `state` is a pair (batch, n_hidden), by default
    zeros. Follows Hochreiter and Schmidhuber, 1997, with forget gates.
    """
    _needs("lstm", params, "weight_ih", "weight_hh")
    if x.ndim != 3:
        raise ShapeError(f"nn.lstm: x is {tuple(x.shape)}; expected (length, batch, n_in)")
    rows = ops.linear(x, params["weight_ih"], params.get("bias_ih"))  # all steps at once
    if "bias_hh" in params:
        rows = rows + params["bias_hh"]
    if state is None:
        zero = ops.zeros_like(rows[0, :, : rows.shape[-1] // 4])
        state = (zero, zero)

    def step(carry: tuple[Any, Any], row: Any) -> tuple[tuple[Any, Any], Any]:
        hidden, cell = carry
        i, f, g, o = ops.split(row + ops.linear(hidden, params["weight_hh"]), 4, -1)
        cell = ops.sigmoid(f) * cell + ops.sigmoid(i) * ops.tanh(g)
        hidden = ops.sigmoid(o) * ops.tanh(cell)
        return (hidden, cell), hidden

    last, seen = ops.scan(step, state, rows)
    return seen, last


def dropout(key: Any, x: Any, rate: float, training: bool = True) -> Any:
    """x; in training `rlx.random.dropout` of it, with a key of each use's own."""
    if not training:
        return x
    if key is None:
        raise DTypeError("nn.dropout: the key is None; in training give a random key: rlx.random.key(0)")
    return random.dropout(x, rate, key)


if not TYPE_CHECKING:  # type checkers would then take any name
    __getattr__, __dir__ = _unknown_in(__name__), _listed_in(__name__)
