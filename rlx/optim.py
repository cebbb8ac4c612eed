"""Optimizers as pairs of functions over pytrees, as in optax: `init(params)` makes a state, `update(gradients, state,
params)` gives (updates, state), and `apply_updates` adds the updates to the parameters.

Called in a jitted step they are part of its program; with `donate=("params", "state")` the step writes in place. States
have the dtypes of their parameters (adafactor's f32 for halves): for weights in f16 or bf16 see `with_masters`.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlx import ops, tree
from rlx.dtypes import DType, as_dtype, f32
from rlx.errors import DTypeError, GraphError, ShapeError
from rlx.host.other_attributes import explain as _explain
from rlx.ir import Tensor
from rlx.lazy import listed_in as _listed_in
from rlx.lazy import unknown_in as _unknown_in
from rlx.ops.public import with_hint

PyTree = Any
Schedule = Callable[[Any], Any]
Rate = Any  # a number, a tensor of rank 0, or a schedule: a function of the count of steps done


class Optimizer(NamedTuple):
    """`init(params) -> state` and `update(gradients, state, params) -> (updates, state)`."""

    init: Callable[[PyTree], PyTree]
    update: Callable[..., tuple[PyTree, PyTree]]


_explain(Optimizer)


def apply_updates(params: PyTree, updates: PyTree) -> PyTree:
    """The parameters plus the updates, each in its parameter's dtype. Raises: GraphError for trees that differ."""
    return tree.map(lambda p, u: ops.cast(p + u, p.dtype), params, updates)


def chain(*parts: Optimizer) -> Optimizer:
    """One transformation of gradients after another, such as `chain(clip_by_global_norm(1.0), adamw(1e-3))`."""

    def update(gradients: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        if not isinstance(state, tuple | list) or len(state) != len(parts):
            raise GraphError(
                f"optim.chain: the state is a {type(state).__name__}; expected the tuple of {len(parts)} that "
                "init(params) or the last update gave: update(gradients, state, params)"
            )
        states = []
        for part, own in zip(parts, state, strict=True):
            gradients, own = part.update(gradients, own, params)
            states.append(own)
        return gradients, tuple(states)

    return Optimizer(lambda params: tuple(part.init(params) for part in parts), update)


# -- what optimizers share


class _Parts(threading.local):
    """Set while an optimizer updates only this rank's parts of the parameters: `total` sums a number over the ranks,
    `every` says whether it is True on all ranks, and `whole` is the tree of the whole parameters."""

    total: Callable[[Any], Any] | None = None
    every: Callable[[Any], Any] | None = None
    whole: PyTree = None


_PARTS = _Parts()


@contextmanager
def over_parts(total: Callable[[Any], Any], every: Callable[[Any], Any], whole: PyTree) -> Iterator[None]:
    """In this context gradients, states and parameters are this rank's 1-D parts of the whole ones (see `_Parts`)."""
    _PARTS.total, _PARTS.every, _PARTS.whole = total, every, whole
    try:
        yield
    finally:
        _PARTS.total = _PARTS.every = _PARTS.whole = None


def _zeros(params: PyTree) -> PyTree:
    """Zeros like each parameter. Raises: DTypeError for parameters that are no floats."""

    def zero(p: Any) -> Any:
        if isinstance(p, Tensor):
            if not p.dtype.is_float:
                raise _no_float(p.type)
            return ops.zeros_like(p)
        dtype = p.dtype.np if isinstance(getattr(p, "dtype", None), DType) else np.asarray(p).dtype
        if dtype.kind not in "fV":
            raise _no_float(f"{dtype}{list(np.shape(p))}")
        return np.zeros(np.shape(p), dtype)

    return tree.map(zero, params)


def _wide_zeros(params: PyTree) -> PyTree:
    return tree.map(lambda z: _wide(z) if isinstance(z, Tensor) else z.astype(_working(z).np), _zeros(params))


def _no_float(what: Any) -> DTypeError:
    return DTypeError(f"optim: a parameter is {what}; parameters are floats: keep other values out of their tree")


def _count() -> Any:
    return np.zeros((), np.int32)


def _check_state(kind: type, state: PyTree) -> None:
    """Raises: GraphError for a state without the fields of the one that init makes."""
    if not all(hasattr(state, name) for name in getattr(kind, "_fields", ())):
        raise GraphError(
            f"optim: the state is a {type(state).__name__}; expected the {kind.__name__} that init(params) or the last "
            "update gave: update(gradients, state, params)"
        )


def _paired(gradients: PyTree, params: PyTree, beside: str = "params", shapes: bool = True) -> None:
    """Checks that gradients fit parameters, or a part of a state. Raises: GraphError, ShapeError."""
    if params is None:
        raise GraphError("optim: update(gradients, state, params) needs params here")
    gs, mine = tree.flatten(gradients)
    ps, theirs = tree.flatten(params, is_leaf=lambda x: isinstance(x, Bits8))
    if mine != theirs:
        raise GraphError(
            f"optim: gradients are {mine!r} and {beside} {theirs!r}; expected one structure: give the gradient with "
            "respect to the params, and the state that init made of them"
        )
    for i, (g, p) in enumerate(zip(gs, ps, strict=True)):
        if shapes and not isinstance(p, Bits8) and np.shape(g) != np.shape(p):
            raise ShapeError(
                f"optim: gradient {i} is {np.shape(g)} and its place in {beside} {np.shape(p)}; expected one shape"
            )


def _within(optimizer: str, low: float = 0.0, high: float = math.inf, **settings: Any) -> None:
    """Checks numbers that are known now. Raises: ShapeError for NaN and what is not low ≤ number < high, DTypeError
    for what is no number, nor an array of rank 0, a schedule or None."""
    for name, value in settings.items():
        if isinstance(value, str | bytes | list | dict):
            raise DTypeError(f"optim.{optimizer}: {name} is {value!r}; expected a number, or for a rate a schedule")
        if isinstance(value, int | float) and not low <= value < high:
            below = "" if high == math.inf else f", below {high:g}"
            raise ShapeError(f"optim.{optimizer}: {name} is {value}; expected a number of at least {low:g}{below}")


def _unzip(pairs: PyTree, count: int) -> list[PyTree]:
    """Trees of the first, second, … of tuples in a tree."""
    return [tree.map(lambda p, i=i: p[i], pairs, is_leaf=_is_pair) for i in range(count)]


class _Pair(tuple[Any, ...]):
    """A tuple that trees treat as a leaf."""


def _is_pair(value: Any) -> bool:
    return isinstance(value, _Pair)


def _at(rate: Rate, count: Any) -> Any:
    return rate(count) if callable(rate) else rate


def _like(number: Any, g: Any) -> Any:
    """A number or tensor in the dtype of a gradient; Python numbers adapt to it without a cast."""
    return ops.cast(number, g.dtype) if hasattr(number, "dtype") and getattr(number, "weak", None) is None else number


def _grown(base: float, count: Any) -> Callable[[Any], Any]:
    """A function that gives 1 - base ** count in a gradient's dtype, in f32 for halves: computed once for all gradients
    of a dtype. Computed as a difference it would lose four of seven digits in the first steps for adam's b2."""

    @functools.cache
    def of(dtype: DType) -> Any:
        return -ops.expm1(ops.cast(count, dtype) * math.log(base)) if base else 1.0

    return lambda g: of(_working(g))


def _each(function: Callable[..., tuple[Any, ...]], count: int, gradients: PyTree, *rest: PyTree) -> list[PyTree]:
    """`function` of each gradient and the other trees' leaves at its position; returns `count` trees of results."""
    return _unzip(tree.map(lambda *xs: _Pair(function(*xs)), gradients, *rest), count)


_STACKED = 1 << 23  # limit on the elements of several parameters that are stacked into one array


def _each_stacked(
    function: Callable[..., tuple[Any, ...]], count: int, gradients: PyTree, *rest: PyTree
) -> list[PyTree]:
    """As `_each`, for a function on stacks of arrays of one shape, along a new first axis.

    So the reductions and products of parameters of one shape take few launches. A reduction has the bits of one array's
    alone; a device may sum the products of a stack in another order. Large parameters are not stacked, since
    copying them would take longer than the launches."""
    if _PARTS.total is not None:
        raise GraphError(
            "optim: adafactor and muon need whole parameters; with zero=1 give an optimizer that works element by "
            "element, such as adamw"
        )
    rows, treedef = tree.flatten(tree.map(lambda *xs: _Pair(xs), gradients, *rest), is_leaf=_is_pair)
    groups: dict[Any, list[int]] = {}
    for i, row in enumerate(rows):
        groups.setdefault(tuple((tuple(np.shape(x)), as_dtype(x.dtype)) for x in row), []).append(i)
    results = list(rows)
    for places in groups.values():
        several = max(1, _STACKED // max(1, math.prod(np.shape(rows[places[0]][0]))))
        for start in range(0, len(places), several):
            some = places[start : start + several]
            outs = function(*(ops.stack(column) for column in zip(*(rows[i] for i in some), strict=True)))
            for k, i in enumerate(some):
                results[i] = _Pair(x[k] for x in outs)
    return _unzip(tree.unflatten(treedef, results), count)


def _own_axes(x: Any) -> tuple[int, ...]:
    """The axes of a stack other than the first."""
    return tuple(range(1, x.ndim))


# -- transformations of gradients


_SMALL = 1 << 16  # arrays of at most this many elements are joined into one


def _joined(values: PyTree) -> list[Any]:
    """All elements of a tree in few arrays: small ones of a dtype are joined, so that reductions take few launches."""
    small: dict[DType, list[Any]] = {}
    result: list[Any] = []
    for x in tree.leaves(values):
        few = math.prod(np.shape(x)) <= _SMALL
        (small.setdefault(as_dtype(x.dtype), []) if few else result).append(x)
    for xs in small.values():
        result.append(xs[0] if len(xs) == 1 else ops.concat([ops.reshape(x, (-1,)) for x in xs]))
    return result


def global_norm(updates: PyTree) -> Any:
    """√ of the sum of squares of all elements of a tree, in f32 or f64."""
    squares = [ops.sum(_wide(x) ** 2) for x in _joined(updates)]
    if not squares:
        raise GraphError("optim.global_norm: the tree has no arrays")
    widest = "f64" if any(as_dtype(s.dtype).name == "f64" for s in squares) else "f32"
    square = ops.sum(ops.stack([ops.cast(s, widest) for s in squares]))
    return ops.sqrt(square if _PARTS.total is None else _PARTS.total(square))


def _working(x: Any) -> DType:
    """The dtype that sums and powers are computed in: that of x, f32 for halves."""
    own = as_dtype(x.dtype)
    return f32 if own.is_half else own


def _wide(x: Any) -> Any:
    return ops.cast(x, _working(x))


def clip_by_global_norm(max_norm: float) -> Optimizer:
    """Gradients scaled so that their global norm is at most `max_norm`."""
    _within("clip_by_global_norm", max_norm=max_norm)

    def update(gradients: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        norm = global_norm(gradients)
        scale = ops.where(norm < max_norm, 1.0, max_norm / norm)
        return tree.map(lambda g: ops.cast(g * _like(scale, g), g.dtype), gradients), state

    return Optimizer(lambda params: (), update)


def add_decayed_weights(weight_decay: float, mask: Any = None) -> Optimizer:
    """Gradients plus `weight_decay` times the parameters: of all, or of those where `mask` (a tree of bools, or a
    function of the parameters that gives one) is true."""

    def update(gradients: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        _paired(gradients, params)
        chosen = _mask(mask, params)
        return tree.map(lambda g, p, m: g + p * weight_decay if m else g, gradients, params, chosen), state

    return Optimizer(lambda params: (), update)


def _mask(mask: Any, params: PyTree) -> PyTree:
    if mask is None:
        return tree.map(lambda p: True, params)
    return mask(params if _PARTS.whole is None else _PARTS.whole) if callable(mask) else mask


class Accumulated(NamedTuple):
    """The state of `accumulate`: gradients since the last step, how many they are, and the optimizer's state."""

    count: Any
    total: PyTree
    inner: PyTree


def accumulate(optimizer: Optimizer, every: int) -> Optimizer:
    """The optimizer, making one step with the mean of every `every` gradients; the updates in between are zeros.

    Half-precision gradients are summed in f32. The mean has their dtype, except for `with_masters`, which gets f32.
    """
    if not isinstance(every, int) or every < 1:
        raise GraphError(f"optim.accumulate: every is {every!r}; expected how many gradients a step takes, 1 or more")

    def init(params: PyTree) -> Accumulated:
        return Accumulated(_count(), _wide_zeros(params), optimizer.init(params))

    def update(gradients: PyTree, state: Accumulated, params: PyTree = None) -> tuple[PyTree, Accumulated]:
        _check_state(Accumulated, state)
        _paired(gradients, state.total, "the state")
        count = state.count + 1
        total = tree.map(lambda t, g: t + _wide(g), state.total, gradients)
        mean = _narrowed(tree.map(lambda t: t / every, total), gradients, state.inner)
        updates, inner = optimizer.update(mean, state.inner, params)
        done = count >= every
        updates = tree.map(lambda u: ops.where(done, u, 0.0), updates)
        inner = tree.map(lambda a, b: ops.where(done, a, b), inner, state.inner)
        total = tree.map(lambda t: ops.where(done, 0.0, t), total)
        return updates, Accumulated(ops.where(done, 0, count), total, inner)

    return Optimizer(init, update)


def _narrowed(wide: PyTree, gradients: PyTree, inner: PyTree) -> PyTree:
    """Values computed from gradients in f32 or f64, cast to the gradients' dtypes unless `with_masters` takes them."""
    if any(isinstance(x, Masters) for x in tree.leaves(inner, is_leaf=_is_masters)):
        return wide
    return tree.map(lambda n, g: ops.cast(n, g.dtype), wide, gradients)


# -- weights of few bits, and averages


class Masters(NamedTuple):
    """The state of `with_masters`: the weights in f32, and the optimizer's state for these."""

    weights: PyTree
    inner: PyTree


def with_masters(optimizer: Optimizer) -> Optimizer:
    """The optimizer for parameters in bf16 or f16: it works on copies of them in f32, which the state holds.

    After `apply_updates` each parameter is its master, rounded; so steps smaller than half a ULP of the parameter add
    up. Gradients may be of either dtype. Parameters in f32 or f64 have masters of their own dtype.
    """

    def init(params: PyTree) -> Masters:
        weights = tree.map(_wide_copy, params)
        return Masters(weights, optimizer.init(weights))

    def update(gradients: PyTree, state: Masters, params: PyTree = None) -> tuple[PyTree, Masters]:
        _check_state(Masters, state)
        _paired(gradients, params)
        updates, inner = optimizer.update(tree.map(_wide, gradients), state.inner, state.weights)
        weights = apply_updates(state.weights, updates)
        return tree.map(lambda w, p: w - _wide(p), weights, params), Masters(weights, inner)

    return Optimizer(init, update)


def _wide_copy(p: Any) -> Any:
    _zeros(p)  # it refuses what is no float
    return _wide(p) if isinstance(p, Tensor) else np.array(p, _working(p).np)


class Scaled(NamedTuple):
    """The state of `scale_loss`: the scale, finite steps since it last changed, and the optimizer's state."""

    scale: Any
    steps: Any
    inner: PyTree


def scale_loss(
    optimizer: Optimizer, init_scale: float = 2.0**15, growth_interval: int = 2000, factor: float = 2.0
) -> Optimizer:
    """The optimizer for gradients of `loss * state.scale`, where f16 would lose small gradients.

    `update` divides them by the scale. Where one is infinite or NaN the step is skipped: parameters and the optimizer's
    state stay, and the scale is divided by `factor`, down to 1. After `growth_interval` steps in a row it is multiplied
    by `factor`, unless it would leave f32. Gradients of halves are divided in f32, and stay so for `with_masters`,
    which belongs inside: `scale_loss(with_masters(adamw(1e-3)))`. Follows Micikevicius et al., 2018.
    """
    _within("scale_loss", low=1.0, init_scale=init_scale, growth_interval=growth_interval, factor=factor)

    def init(params: PyTree) -> Scaled:
        return Scaled(np.array(init_scale, np.float32), _count(), optimizer.init(params))

    def update(gradients: PyTree, state: Scaled, params: PyTree = None) -> tuple[PyTree, Scaled]:
        _check_state(Scaled, state)
        leaves = tree.leaves(gradients)
        finite: Any = ops.all_finite(*leaves) if leaves else True
        finite = finite if _PARTS.every is None else _PARTS.every(finite)
        plain = tree.map(lambda g: _wide(g) / ops.cast(state.scale, _working(g)), gradients)
        updates, inner = optimizer.update(_narrowed(plain, gradients, state.inner), state.inner, params)
        updates = tree.map(lambda u: ops.where(finite, u, 0.0), updates)
        inner = tree.map(lambda a, b: ops.where(finite, a, b), inner, state.inner)
        steps = state.steps + 1
        grown = state.scale * factor
        grows = ops.logical_and(steps >= growth_interval, ops.isfinite(grown))
        scale = ops.where(finite, ops.where(grows, grown, state.scale), ops.maximum(state.scale / factor, 1.0))
        steps = ops.where(ops.logical_and(finite, steps < growth_interval), steps, 0)
        return updates, Scaled(scale, steps, inner)

    return Optimizer(init, update)


def _is_masters(value: Any) -> bool:
    return isinstance(value, Masters)


class Average(NamedTuple):
    """The state of `ema`: how many values were taken, and their running mean, which began as 0."""

    count: Any
    mean: PyTree


def ema(decay: float, debias: bool = True) -> Optimizer:
    """Exponential moving averages: `update(values, state) -> (averages, state)`, of parameters or of anything else.

    The mean is decay·mean + (1 - decay)·value, from 0 on; with `debias` averages are divided by 1 - decay^count. Means
    are in f32 for halves, averages have their values' dtypes.
    """
    _within("ema", high=1.0, decay=decay)

    def init(params: PyTree) -> Average:
        return Average(_count(), _wide_zeros(params))

    def update(values: PyTree, state: Average, params: PyTree = None) -> tuple[PyTree, Average]:
        _check_state(Average, state)
        _paired(values, state.mean, "the state")
        count = state.count + 1
        mean = tree.map(lambda m, x: _moved(m, _wide(x), decay), state.mean, values)
        grown = _grown(decay, count)
        shown = tree.map(lambda m: m / grown(m), mean) if debias else mean
        return tree.map(lambda a, x: ops.cast(a, x.dtype), shown, values), Average(count, mean)

    return Optimizer(init, update)


def incremental_update(new_tensors: PyTree, old_tensors: PyTree, step_size: float) -> PyTree:
    """step_size·new + (1 - step_size)·old, in the dtypes of old: the average of parameters that begins as a copy of
    them. Raises: GraphError for trees that differ."""

    def moved(new: Any, old: Any) -> Any:
        return ops.cast(_wide(new) * step_size + _wide(old) * (1.0 - step_size), old.dtype)

    return tree.map(moved, new_tensors, old_tensors)


# -- optimizers


class Momentum(NamedTuple):
    """The state of sgd and lion: steps done, and a running mean or sum of gradients."""

    count: Any
    mu: PyTree


class Moments(NamedTuple):
    """The state of adam: steps done, running means of the gradients and of their squares."""

    count: Any
    mu: PyTree
    nu: PyTree


@with_hint
def sgd(learning_rate: Rate, momentum: float | None = None, nesterov: bool = False) -> Optimizer:
    """Stochastic gradient descent: m = momentum·m + g, update -rate·m (with `nesterov` -rate·(g + momentum·m))."""
    _within("sgd", learning_rate=learning_rate, momentum=momentum)

    def init(params: PyTree) -> Momentum:
        zeros = _zeros(params)
        return Momentum(_count(), () if momentum is None else zeros)

    def update(gradients: PyTree, state: Momentum, params: PyTree = None) -> tuple[PyTree, Momentum]:
        _check_state(Momentum, state)
        rate = _at(learning_rate, state.count)
        if momentum is None:
            return tree.map(lambda g: g * -_like(rate, g), gradients), Momentum(state.count + 1, ())
        _paired(gradients, state.mu, "the state")
        mu = tree.map(lambda m, g: m * momentum + g, state.mu, gradients)
        steps = tree.map(lambda m, g: g + m * momentum, mu, gradients) if nesterov else mu
        return tree.map(lambda s: s * -_like(rate, s), steps), Momentum(state.count + 1, mu)

    return Optimizer(init, update)


def _moved(m: Any, g: Any, decay: float) -> Any:
    return m * decay + g * (1.0 - decay)


def _corrected(decay: float, count: Any, nesterov: bool) -> Callable[[Any, Any], Any]:
    """A function that gives a running mean of gradients, its first argument, without its bias to the zero that it began
    with; the second one is the last gradient."""
    grown = _grown(decay, count)
    if not nesterov:
        return lambda m, g: m / grown(g)
    later = _grown(decay, count + 1)
    return lambda m, g: m / later(g) * decay + g / grown(g) * (1.0 - decay)


@with_hint
def adam(
    learning_rate: Rate, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8, nesterov: bool = False
) -> Optimizer:
    """Adam: -rate·m̂ / (√v̂ + eps). Follows Kingma and Ba, 2015; `nesterov`: Dozat, 2016, as in optax."""
    return _adamw("adam", _AS_IT_IS, learning_rate, b1, b2, eps, 0.0, None, nesterov)


@with_hint
def adamw(
    learning_rate: Rate,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 1e-4,
    mask: Any = None,
    nesterov: bool = False,
) -> Optimizer:
    """Adam with decoupled weight decay: -rate·(m̂ / (√v̂ + eps) + weight_decay·p). Follows Loshchilov and Hutter, 2019.

    `mask`: which parameters decay (a tree of bools, or a function that gives it); all by default.
    """
    return _adamw("adamw", _AS_IT_IS, learning_rate, b1, b2, eps, weight_decay, mask, nesterov)


class _Keeping(NamedTuple):
    """How a state stores a running mean: functions that give the initial state, its values, and the state for new
    values. Their second argument says whether values may be negative."""

    start: Callable[[Any, bool], Any]
    values: Callable[[Any, bool, Any], Any]
    keep: Callable[[Any, bool], Any]


_AS_IT_IS = _Keeping(lambda zeros, signed: zeros, lambda kept, signed, like: kept, lambda values, signed: values)


def _adamw(
    name: str,
    keeping: _Keeping,
    learning_rate: Rate,
    b1: float,
    b2: float,
    eps: float,
    weight_decay: float,
    mask: Any,
    nesterov: bool,
) -> Optimizer:
    _within(name, learning_rate=learning_rate, eps=eps, weight_decay=weight_decay)
    _within(name, high=1.0, b1=b1, b2=b2)

    def init(params: PyTree) -> Moments:
        zeros = _zeros(params)
        mu, nu = (tree.map(lambda z, s=signed: keeping.start(z, s), zeros) for signed in (True, False))
        return Moments(_count(), mu, nu)

    def update(gradients: PyTree, state: Moments, params: PyTree = None) -> tuple[PyTree, Moments]:
        _check_state(Moments, state)
        if weight_decay or params is not None:
            _paired(gradients, params)
        _paired(gradients, state.mu, "the state")
        count = state.count + 1
        rate = _at(learning_rate, state.count)
        decays = _mask(mask, params) if weight_decay else tree.map(lambda g: False, gradients)
        corrected, grown = _corrected(b1, count, nesterov), _grown(b2, count)

        def step(g: Any, m: Any, v: Any, decay: bool, p: Any) -> tuple[Any, ...]:
            m, v = _moved(keeping.values(m, True, g), g, b1), _moved(keeping.values(v, False, g), g * g, b2)
            move = corrected(m, g) / (ops.sqrt(v / grown(g)) + eps)
            move = move + p * weight_decay if decay else move
            return move * -_like(rate, move), keeping.keep(m, True), keeping.keep(v, False)

        beside = params if weight_decay else gradients
        updates, mu, nu = _each(step, 3, gradients, state.mu, state.nu, decays, beside)
        return updates, Moments(count, mu, nu)

    return Optimizer(init, update)


# -- states of 8 bits

BLOCK = 256  # elements that share a scale


class Bits8(NamedTuple):
    """A tensor in blocks of 256 elements, the last one filled with zeros: `codes` u8 (blocks, 256), `scales` f32
    (blocks, 1), the largest magnitude of each block. An element is its code's value times its block's scale."""

    codes: Any
    scales: Any


def adamw_8bit(
    learning_rate: Rate,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 1e-4,
    mask: Any = None,
    min_size: int = 4096,
) -> Optimizer:
    """AdamW whose running means are kept in 8 bits an element, as `Bits8`; arithmetic is as adamw's.

    The code is the dynamic one of Dettmers et al., 2022: decades from 1 down to 1e-6, each with twice the values of the
    next smaller one, the values being the middles of equal parts; of squares, which have no sign, twice as many; and 0
    and 1. The nearest value is kept. Parameters of fewer than `min_size` elements keep theirs in their own dtype.
    Memory: 2.03 bytes of state an element, where f32 takes 8.
    """
    if not isinstance(min_size, int) or min_size < 0:
        raise ShapeError(f"optim.adamw_8bit: min_size is {min_size!r}; expected a number of elements")

    def start(zeros: Any, signed: bool) -> Any:
        size = math.prod(np.shape(zeros))
        if size < min_size or not size:
            return zeros
        blocks = -(-size // BLOCK)
        return Bits8(np.full((blocks, BLOCK), 127 if signed else 0, np.uint8), np.zeros((blocks, 1), np.float32))

    def values(kept: Any, signed: bool, like: Any) -> Any:
        if not isinstance(kept, Bits8):
            return kept
        whole = _decoded(ops.cast(kept.codes, f32), signed) * kept.scales
        return ops.cast(ops.reshape(ops.reshape(whole, (-1,))[: like.size], like.shape), _working(like))

    def keep(values: Any, signed: bool) -> Any:
        if values.size < min_size or not values.size:
            return values
        row = ops.pad(ops.reshape(ops.cast(values, f32), (-1,)), ((0, -values.size % BLOCK),))
        whole = ops.reshape(row, (-1, BLOCK))
        scales = ops.max(ops.abs(whole), axis=1, keepdims=True)
        parts = whole / ops.where(scales > 0.0, scales, 1.0)
        return Bits8(ops.cast(_encoded(parts, signed), "u8"), scales)

    return _adamw("adamw_8bit", _Keeping(start, values, keep), learning_rate, b1, b2, eps, weight_decay, mask, False)


class _Decade(NamedTuple):
    """The values (k + 1/2 + values/9)·part, k = 0 … values - 1: the middles of the equal parts of a decade.

    `above`: where numbers become nearer to these than to the values before."""

    values: int
    part: float
    above: float


def _decades(signed: bool) -> tuple[list[_Decade], float]:
    """The decades in rising order, and where numbers become nearer to 1 than to the last value."""
    decades, before = [], 0.0
    for i in range(7):
        count = 2**i if signed else 2 ** (i + 1)
        part = 0.9 * 10.0 ** (i - 6) / count
        lowest = (0.5 + count / 9) * part
        decades.append(_Decade(count, part, (before + lowest) / 2))
        before = (count - 0.5 + count / 9) * part
    return decades, (before + 1.0) / 2


def _chosen(decades: list[_Decade], above: Callable[[_Decade], Any]) -> tuple[Any, Any]:
    """`values` and `part` of each element's decade: the last one for which `above` is true."""
    count: Any = float(decades[0].values)
    part: Any = decades[0].part
    for d in decades[1:]:
        reached = above(d)
        count, part = ops.where(reached, float(d.values), count), ops.where(reached, d.part, part)
    return count, part


def _encoded(x: Any, signed: bool) -> Any:
    """The code, as a float, of the value nearest to each number from -1 to 1: its place among the values in order."""
    decades, nearer_to_one = _decades(signed)
    size = ops.abs(x)
    count, part = _chosen(decades, lambda d: size > d.above)
    k = ops.maximum(ops.minimum(ops.floor(size / part - count / 9.0), count - 1.0), 0.0)
    place = k + count if signed else k + count - 1.0  # plus the number of smaller values, including 0
    place = ops.where(size > decades[0].above, place, 0.0)
    if not signed:
        return ops.where(size > nearer_to_one, 255.0, place)
    place = ops.where(x > nearer_to_one, 128.0, place)  # the last value is 1, while -1 is not among them
    return ops.where(x < 0.0, 127.0 - place, 127.0 + place)


def _decoded(code: Any, signed: bool) -> Any:
    """The value of each code, which is given as a float."""
    decades, _ = _decades(signed)
    place = ops.abs(code - 127.0) if signed else code
    less = 0.0 if signed else 1.0
    count, part = _chosen(decades, lambda d: place >= d.values - less)
    value = (place - (count - less) + 0.5 + count / 9.0) * part
    value = ops.where(place == (128.0 if signed else 255.0), 1.0, ops.where(place == 0.0, 0.0, value))
    return ops.where(code < 127.0, -value, value) if signed else value


@with_hint
def lion(
    learning_rate: Rate, b1: float = 0.9, b2: float = 0.99, weight_decay: float = 1e-3, mask: Any = None
) -> Optimizer:
    """Lion: -rate·(sign(b1·m + (1 - b1)·g) + weight_decay·p), then m = b2·m + (1 - b2)·g. Follows Chen et al., 2023."""
    _within("lion", learning_rate=learning_rate, weight_decay=weight_decay)
    _within("lion", high=1.0, b1=b1, b2=b2)

    def init(params: PyTree) -> Momentum:
        return Momentum(_count(), _zeros(params))

    def update(gradients: PyTree, state: Momentum, params: PyTree = None) -> tuple[PyTree, Momentum]:
        _check_state(Momentum, state)
        _paired(gradients, params)
        _paired(gradients, state.mu, "the state")
        rate = _at(learning_rate, state.count)

        def step(g: Any, m: Any, decay: bool, p: Any) -> tuple[Any, ...]:
            move = ops.sign(_moved(m, g, b1))
            move = move + p * weight_decay if decay and weight_decay else move
            return move * -_like(rate, move), _moved(m, g, b2)

        updates, mu = _each(step, 2, gradients, state.mu, _mask(mask, params), params)
        return updates, Momentum(state.count + 1, mu)

    return Optimizer(init, update)


class Factors(NamedTuple):
    """The state of adafactor: of matrices running means of squares by row and by column, of vectors of each."""

    count: Any
    row: PyTree
    column: PyTree


@with_hint
def adafactor(
    learning_rate: Rate = 0.01,
    beta2_decay: float = -0.8,
    eps: tuple[float | None, float] = (None, 1e-3),
    d: float = 1.0,
    weight_decay: float = 0.0,
) -> Optimizer:
    """Adafactor, with squares factored along the last two axes; names and values are torch's.

    eps[0] None is the dtype's epsilon; `d` bounds the root mean square of an update. Follows Shazeer and Stern, 2018.
    """
    _within("adafactor", learning_rate=learning_rate, weight_decay=weight_decay, d=d)

    def init(params: PyTree) -> Factors:
        zeros = _wide_zeros(params)
        row = tree.map(lambda p: p[..., :1] if p.ndim > 1 else p, zeros)
        column = tree.map(lambda p: p[..., :1, :] if p.ndim > 1 else np.zeros((), np.int32), zeros)
        return Factors(_count(), row, column)

    def update(gradients: PyTree, state: Factors, params: PyTree = None) -> tuple[PyTree, Factors]:
        _check_state(Factors, state)
        _paired(gradients, params)
        _paired(gradients, state.row, "the state", shapes=False)
        count = state.count + 1
        rate = _at(learning_rate, state.count)

        def step(g: Any, row: Any, column: Any, p: Any) -> tuple[Any, ...]:
            work = _wide(g)
            t = ops.cast(count, work.dtype)
            least = _epsilon(g) if eps[0] is None else eps[0]
            weight = t**beta2_decay
            rho = ops.minimum(_like(rate, work), 1.0 / ops.sqrt(t))
            alpha = ops.maximum(eps[1], _rms(_wide(p))) * rho
            if g.ndim > 2:
                row = row + (ops.mean(work * work, axis=-1, keepdims=True) - row) * weight
                column = column + (ops.mean(work * work, axis=-2, keepdims=True) - column) * weight
                square = row * column / ops.maximum(ops.mean(row, axis=-2, keepdims=True), least)
            else:
                row = row + (work * work - row) * weight
                square = row
            move = work * ops.rsqrt(ops.maximum(square, least * least))
            move = move * (-alpha / ops.maximum(1.0, _rms(move) / d))
            return (move - p * (_like(rate, work) * weight_decay) if weight_decay else move), row, column

        updates, rows, columns = _each_stacked(step, 3, gradients, state.row, state.column, params)
        return updates, Factors(count, rows, columns)

    return Optimizer(init, update)


def _epsilon(g: Any) -> float:
    own = as_dtype(g.dtype)
    return {"bf16": 2.0**-7}.get(own.name) or float(np.finfo(own.np).eps)


def _rms(x: Any) -> Any:
    """The root mean square of each of stacked arrays."""
    return ops.sqrt(ops.mean(x * x, axis=_own_axes(x), keepdims=True))


@with_hint
def muon(
    learning_rate: Rate,
    ns_coeffs: tuple[float, float, float] = (3.4445, -4.775, 2.0315),
    ns_steps: int = 5,
    beta: float = 0.95,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    nesterov: bool = True,
    adam_b1: float = 0.9,
    adam_b2: float = 0.999,
) -> Optimizer:
    """Muon: matrices move along their momentum made nearly orthogonal by Newton-Schulz steps, times √max(1, columns /
    rows); all other parameters by Adam, with Nesterov's momentum as here. Numerics: matrices of one shape are
    multiplied as a stack, which may change the last bits of each. Follows Jordan et al., 2024, as in optax."""
    a, b, c = ns_coeffs
    _within("muon", learning_rate=learning_rate, weight_decay=weight_decay, eps=eps)
    _within("muon", high=1.0, beta=beta, adam_b1=adam_b1, adam_b2=adam_b2)

    def orthogonal(x: Any) -> Any:
        tall = x.shape[1] > x.shape[2]
        x = x.mT if tall else x
        x = x / (ops.sqrt(ops.sum(x * x, axis=_own_axes(x), keepdims=True)) + eps)
        for _ in range(ns_steps):
            square = x @ x.mT
            x = x * a + (square * b + (square * c) @ square) @ x
        return x.mT if tall else x

    def init(params: PyTree) -> Moments:
        zeros = _zeros(params)
        return Moments(_count(), zeros, tree.map(lambda z: np.zeros((), np.int32) if z.ndim == 2 else z, zeros))

    def update(gradients: PyTree, state: Moments, params: PyTree = None) -> tuple[PyTree, Moments]:
        _check_state(Moments, state)
        _paired(gradients, params)
        _paired(gradients, state.mu, "the state")
        count = state.count + 1
        rate = _at(learning_rate, state.count)
        of_matrices, corrected = (_corrected(decay, count, nesterov) for decay in (beta, adam_b1))
        grown = _grown(adam_b2, count)

        def step(g: Any, m: Any, v: Any, p: Any) -> tuple[Any, ...]:
            if g.ndim == 3:
                m = _moved(m, g, beta)
                move = orthogonal(of_matrices(m, g)) * max(1.0, g.shape[2] / g.shape[1]) ** 0.5
                move = move + p * weight_decay if weight_decay else move
            else:
                m, v = _moved(m, g, adam_b1), _moved(v, g * g, adam_b2)
                move = corrected(m, g) / (ops.sqrt(v / grown(g)) + eps)
            return move * -_like(rate, move), m, v

        updates, mu, nu = _each_stacked(step, 3, gradients, state.mu, state.nu, params)
        return updates, Moments(count, mu, nu)

    return Optimizer(init, update)


# -- schedules: functions of the count of steps done


def linear_schedule(init_value: float, end_value: float, transition_steps: int) -> Schedule:
    """From one value to another in so many steps, and then the same."""

    def rate(count: Any) -> Any:
        return init_value + (end_value - init_value) * ops.clip(_real(count) / transition_steps, 0.0, 1.0)

    return rate


def cosine_decay_schedule(init_value: float, decay_steps: int, alpha: float = 0.0) -> Schedule:
    """Half a cosine from a value to `alpha` times it."""

    def rate(count: Any) -> Any:
        part = ops.clip(_real(count) / decay_steps, 0.0, 1.0)
        return init_value * ((1.0 - alpha) * (0.5 * (1.0 + ops.cos(part * math.pi))) + alpha)

    return rate


def warmup_cosine_decay_schedule(
    init_value: float, peak_value: float, warmup_steps: int, decay_steps: int, end_value: float = 0.0
) -> Schedule:
    """A line to the peak in `warmup_steps`, then half a cosine, which ends `decay_steps` after the start."""
    if not 0 < warmup_steps < decay_steps:
        raise GraphError(
            f"optim: warmup_steps is {warmup_steps} and decay_steps {decay_steps}; expected 0 < warmup_steps < "
            "decay_steps, which counts the warmup too"
        )
    line = linear_schedule(init_value, peak_value, warmup_steps)
    decay = cosine_decay_schedule(peak_value, decay_steps - warmup_steps, end_value / peak_value)
    return lambda count: ops.where(count < warmup_steps, line(count), decay(count - warmup_steps))


def _real(count: Any) -> Any:
    return ops.cast(count, "f64")


if not TYPE_CHECKING:  # type checkers would then take any name
    __getattr__, __dir__ = _unknown_in(__name__), _listed_in(__name__)
