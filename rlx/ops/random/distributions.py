"""Draws from more distributions, under JAX's names: gamma and poisson by rejection in a loop on the device, and
distributions computed from these, from uniform or from normal numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rlx.dtypes import DType, DTypeLike, as_dtype, f32, f64, i32, i64
from rlx.errors import DTypeError, ShapeError, UnsupportedOp
from rlx.ir import Tensor
from rlx.ir.types import as_shape, broadcast_shapes
from rlx.ops.base import TensorLike, cast_to, tensors
from rlx.ops.composite import all as all_of
from rlx.ops.control.functions import while_loop
from rlx.ops.elementwise.binary import logical_and, logical_or, maximum
from rlx.ops.elementwise.powers import log1p
from rlx.ops.elementwise.select import where
from rlx.ops.elementwise.special_functions import lgamma
from rlx.ops.elementwise.trig import tan
from rlx.ops.elementwise.unary import abs, exp, floor, log, logical_not, sqrt
from rlx.ops.movement.strided import expand
from rlx.ops.random import draws
from rlx.ops.random.choices import _one_key, exponential
from rlx.ops.reduce import sum
from rlx.ops.softmax import softmax
from rlx.ops.with_rule import Rule, with_rule

Shape = Sequence[int] | int | None


class _Draw(NamedTuple):
    """A draw: its key and shape, the dtypes of its result (`kind`) and of its arithmetic (`work`), and its parameters,
    expanded to its shape."""

    op: str
    key: Tensor
    dims: tuple[int, ...]
    kind: DType
    work: DType
    parameters: tuple[Tensor, ...]

    def own_key(self, stream: int) -> Tensor:
        return draws.fold_in(self.key, stream)

    def result(self, values: Tensor, differentiable: bool = True) -> Tensor:
        """The values in the result's dtype; unless `differentiable`, gradients to parameters raise UnsupportedOp."""
        if not differentiable:
            values = with_rule((values,), self.parameters, Rule(1, self._refuse, None))[0]
        return cast_to(values, self.kind)

    def _refuse(self, *_: Any) -> Any:
        raise UnsupportedOp(
            f"{self.op}: its numbers have no gradient with respect to the distribution's parameters; give these by "
            "rlx.stop_gradient, or write the number in terms of rlx.random.normal or uniform"
        )


def _drawn(op: str, key: TensorLike, shape: Shape, dtype: DTypeLike, **named: TensorLike) -> _Draw:
    """Checks the arguments of a draw whose parameters must be above 0. Raises: ShapeError, DTypeError."""
    kind = draws._float(op, dtype)
    work = f64 if kind == f64 else f32
    for name, value in named.items():
        if isinstance(value, int | float) and not value > 0:
            raise ShapeError(f"{op}: {name} is {value}; expected a number above 0")
    (key,) = _one_key(op, key)
    values = [cast_to(t, work) for t in tensors(op, key.graph.constant(0.0, work), *named.values())[1:]]
    ends: tuple[int, ...] = ()
    for t in values:
        ends = broadcast_shapes(ends, t.shape, op=op)
    dims = ends if shape is None else as_shape(shape, op)
    if broadcast_shapes(ends, dims, op=op) != dims:
        raise ShapeError(f"{op}: {' and '.join(named)} of {ends}; expected what broadcasts to the shape {dims}")
    return _Draw(op, key, dims, kind, work, tuple(expand(t, dims) for t in values))


def _unit(key: Tensor, stream: int | Tensor, dims: tuple[int, ...], dtype: DType) -> Tensor:
    """Numbers in (0, 1], whose logarithms are finite."""
    return 1.0 - draws.uniform(draws.fold_in(key, stream), dims, dtype=dtype)


def _until_accepted(key: Tensor, like: Tensor, attempt: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Tensor:
    """Repeats `attempt(key) -> (values, which to accept)` with new keys until every element has an accepted value.

    The value of an element depends only on the key and on the element's index."""

    def step(state: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        count, values, done = state
        new, accepted = attempt(draws.fold_in(key, count))
        return count + 1, where(done, values, where(accepted, new, values)), logical_or(done, accepted)

    first = key.graph.constant(0, i32), like * 0.0, like != like  # NaN parameters need no draw
    return while_loop(lambda state: logical_not(all_of(state[2])), step, first)[1]  # type: ignore[no-any-return]


# -- gamma, and distributions computed from it


def _log_gamma(key: Tensor, a: Tensor) -> Tensor:
    """Logarithms of gamma variates: for a ≥ 1 by Marsaglia and Tsang, 2000; for a < 1 those of a + 1, times u^(1 / a).
    NaN where a is not above 0."""
    work, dims = a.dtype, a.shape
    a = where(a > 0.0, a, math.nan)
    small = a < 1.0
    scale = where(small, a + 1.0, a) - 1.0 / 3.0
    width = 1.0 / sqrt(scale * 9.0)

    def attempt(own: Tensor) -> tuple[Tensor, Tensor]:
        x = draws.normal(draws.fold_in(own, 0), dims, work)
        base = 1.0 + width * x
        log_cube = log(maximum(base, 1e-30)) * 3.0
        bound = x * x * 0.5 + scale * (1.0 - base * base * base + log_cube)
        return log_cube, logical_and(base > 0.0, log(_unit(own, 1, dims, work)) < bound)

    cube = _until_accepted(draws.fold_in(key, 0), a, attempt)
    return cube + log(scale) + where(small, log(_unit(key, 1, dims, work)) / a, 0.0)


def loggamma(key: TensorLike, a: TensorLike, shape: Shape = None, dtype: DTypeLike = f32) -> Tensor:
    """Logarithms of numbers of the gamma distribution, which small a make smaller than floats can be.

    Otherwise as rlx.random.gamma. Follows jax.random.loggamma; its numbers differ.
    """
    d = _drawn("random.loggamma", key, shape, dtype, a=a)
    return d.result(_log_gamma(d.key, *d.parameters), differentiable=False)


def gamma(key: TensorLike, a: TensorLike, shape: Shape = None, dtype: DTypeLike = f32) -> Tensor:
    """Numbers of the gamma distribution of shape a and scale 1, by rejection in a loop on the device.

    Shape: `shape`, to which a broadcasts; None: a's. Dtype: a float; f16 and bf16 are drawn in f32. Gradient: none, and
    an UnsupportedOp where one with respect to a is asked for. Numerics: the result of a step of rejection may differ
    between devices in rare elements, since normal numbers are within 4 ULP. Raises: ShapeError for several keys and for
    a number a ≤ 0; of a tensor a ≤ 0 and NaN give NaN. Follows jax.random.gamma; its numbers differ.
    """
    d = _drawn("random.gamma", key, shape, dtype, a=a)
    return d.result(exp(_log_gamma(d.key, *d.parameters)), differentiable=False)


def beta(key: TensorLike, a: TensorLike, b: TensorLike, shape: Shape = None, dtype: DTypeLike = f32) -> Tensor:
    """Numbers of the beta distribution: x / (x + y), x and y of the gamma distributions of a and b.

    Otherwise as rlx.random.gamma. Follows jax.random.beta; its numbers differ.
    """
    d = _drawn("random.beta", key, shape, dtype, a=a, b=b)
    x, y = (_log_gamma(d.own_key(i), p) for i, p in enumerate(d.parameters))
    most = maximum(x, y)
    return d.result(exp(x - most) / (exp(x - most) + exp(y - most)), differentiable=False)


def dirichlet(key: TensorLike, alpha: TensorLike, shape: Shape = None, dtype: DTypeLike = f32) -> Tensor:
    """Vectors of the Dirichlet distribution: numbers above 0 that add to 1.

    Shape: alpha (..., n) broadcasts to (*shape, n); None: alpha's. Otherwise as rlx.random.gamma. Follows
    jax.random.dirichlet; its numbers differ.
    """
    op = "random.dirichlet"
    key, values = _one_key(op, key, alpha)
    if not values.ndim:
        raise ShapeError(f"{op}: alpha is {values.type}; expected (..., n), a number for each part")
    dims = None if shape is None else (*as_shape(shape, op), values.shape[-1])
    d = _drawn(op, key, dims, dtype, alpha=values)
    return d.result(softmax(_log_gamma(d.key, *d.parameters), -1), differentiable=False)


def chisquare(key: TensorLike, df: TensorLike, shape: Shape = None, dtype: DTypeLike = f32) -> Tensor:
    """Numbers of the chi-squared distribution of df degrees of freedom. Otherwise as rlx.random.gamma. Follows
    jax.random.chisquare; its numbers differ."""
    d = _drawn("random.chisquare", key, shape, dtype, df=df)
    return d.result(2.0 * exp(_log_gamma(d.key, d.parameters[0] * 0.5)), differentiable=False)


def t(key: TensorLike, df: TensorLike, shape: Shape = (), dtype: DTypeLike = f32) -> Tensor:
    """Numbers of Student's distribution of df degrees of freedom. Otherwise as rlx.random.gamma. Follows jax.random.t;
    its numbers differ."""
    d = _drawn("random.t", key, shape, dtype, df=df)
    half = d.parameters[0] * 0.5
    spread = sqrt(half) * exp(_log_gamma(d.own_key(0), half) * -0.5)
    return d.result(draws.normal(d.own_key(1), d.dims, d.work) * spread, differentiable=False)


# -- integers


def _integers(op: str, dtype: DTypeLike) -> DType:
    kind = as_dtype(dtype)
    if kind not in (i32, i64):
        raise DTypeError(f"{op}: dtype {kind}; expected i32 or i64")
    return kind


_FEW = 10.0  # up to this mean, numbers are drawn event by event


def poisson(key: TensorLike, lam: TensorLike, shape: Shape = None, dtype: DTypeLike = i32) -> Tensor:
    """Numbers of the Poisson distribution of mean lam: by counting events (Knuth), from 10 on by rejection (Hörmann,
    "The transformed rejection method for generating Poisson random variables", 1993), in loops on the device.

    Shape: `shape`, to which lam broadcasts; None: lam's. Dtype: i32 or i64; lam in f64 is drawn in f64, any other in
    f32, in which means above 2²² lose digits. Gradient: none. Raises: ShapeError for several keys and a number lam
    below 0; of a tensor lam < 0 and NaN give -1. Follows jax.random.poisson; its numbers differ.
    """
    op, kind = "random.poisson", _integers("random.poisson", dtype)
    if isinstance(lam, int | float) and not lam >= 0:
        raise ShapeError(f"{op}: lam is {lam}; expected a number of at least 0")
    key, values = _one_key(op, key, lam)
    d = _drawn(op, key, shape, f64 if values.dtype == f64 else f32, lam=values)
    (mean,) = d.parameters
    few = mean < _FEW
    small, large = where(few, maximum(mean, 0.0), 0.0), where(few, 2 * _FEW, mean)

    def event(state: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        count, total, left = state
        left = left + log(_unit(d.own_key(0), count, d.dims, d.work))
        return count + 1, total + cast_to(left > 0.0, d.work), left

    first = key.graph.constant(0, i32), small * 0.0, small
    counted = while_loop(lambda state: logical_not(all_of(state[2] <= 0.0)), event, first)[1]

    log_mean, b = log(large), 0.931 + 2.53 * sqrt(large)
    a = -0.059 + 0.02483 * b
    inverse, edge = 1.1239 + 1.1328 / (b - 3.4), 0.9277 - 3.6224 / (b - 2.0)

    def attempt(own: Tensor) -> tuple[Tensor, Tensor]:
        u, v = (_unit(own, i, d.dims, d.work) for i in range(2))
        u = u - 0.5
        side = 0.5 - abs(u)
        k = floor((2.0 * a / side + b) * u + large + 0.43)
        at_once = logical_and(side >= 0.07, v <= edge)
        tail = logical_or(k < 0.0, logical_and(side < 0.013, v > side))
        ratio = log(v * inverse / (a / (side * side) + b))
        fits = ratio <= k * log_mean - large - lgamma(maximum(k, 0.0) + 1.0)
        return k, logical_or(at_once, logical_and(logical_not(tail), fits))

    rejected = _until_accepted(d.own_key(1), large, attempt)
    return cast_to(where(mean >= 0.0, where(few, counted, rejected), -1.0), kind)


def geometric(key: TensorLike, p: TensorLike, shape: Shape = None, dtype: DTypeLike = i32) -> Tensor:
    """How many trials of probability p the first success takes: ⌈log(u) / log(1 - p)⌉, at least 1.

    Shape: `shape`, to which p broadcasts; None: p's. Dtype: i32 or i64. Gradient: none. Raises: ShapeError for several
    keys and a number p that is not in (0, 1]. Follows jax.random.geometric; its numbers differ.
    """
    op, kind = "random.geometric", _integers("random.geometric", dtype)
    if isinstance(p, int | float) and not p <= 1:
        raise ShapeError(f"{op}: p is {p}; expected a probability above 0, at most 1")
    d = _drawn(op, key, shape, f32, p=p)
    trials = floor(log(_unit(d.key, 0, d.dims, d.work)) / log1p(-d.parameters[0])) + 1.0
    return cast_to(maximum(trials, 1.0), kind)


def rademacher(key: TensorLike, shape: Sequence[int] | int = (), dtype: DTypeLike = i32) -> Tensor:
    """-1 and 1, each with probability 1/2: 2 · bernoulli - 1. Dtype: any of signed integers and floats.

    Otherwise as rlx.random.bernoulli. Follows jax.random.rademacher."""
    kind = as_dtype(dtype)
    if kind.kind not in "if" and not kind.is_float:
        raise DTypeError(f"random.rademacher: dtype {kind}; expected a signed integer or a float")
    return cast_to(cast_to(draws.bernoulli(key, 0.5, shape), i32) * 2 - 1, kind)


# -- by formulas of uniform and normal numbers


def _open_unit(d: _Draw) -> Tensor:
    """Numbers in (0, 1), so that both ends are finite."""
    least = 2.0**-53 if d.work == f64 else 2.0**-24
    return maximum(draws.uniform(d.key, d.dims, dtype=d.work), least)


def logistic(key: TensorLike, shape: Sequence[int] | int = (), dtype: DTypeLike = f32) -> Tensor:
    """Numbers of the logistic distribution: log(u / (1 - u)). Otherwise as rlx.random.uniform. Follows
    jax.random.logistic."""
    d = _drawn("random.logistic", key, as_shape(shape, "random.logistic"), dtype)
    u = _open_unit(d)
    return d.result(log(u) - log1p(-u))


def cauchy(key: TensorLike, shape: Sequence[int] | int = (), dtype: DTypeLike = f32) -> Tensor:
    """Numbers of Cauchy's distribution: tan(π (u - 1/2)). Otherwise as rlx.random.uniform. Follows
    jax.random.cauchy."""
    d = _drawn("random.cauchy", key, as_shape(shape, "random.cauchy"), dtype)
    return d.result(tan((_open_unit(d) - 0.5) * math.pi))


def lognormal(key: TensorLike, sigma: TensorLike = 1.0, shape: Shape = None, dtype: DTypeLike = f32) -> Tensor:
    """exp(sigma · normal). Shape: `shape`, to which sigma broadcasts; None: sigma's. Gradient: to sigma. Otherwise as
    rlx.random.normal. Follows jax.random.lognormal; its numbers differ."""
    d = _drawn("random.lognormal", key, shape, dtype, sigma=sigma)
    return d.result(exp(d.parameters[0] * draws.normal(d.key, d.dims, d.work)))


def rayleigh(key: TensorLike, scale: TensorLike, shape: Shape = None, dtype: DTypeLike = f32) -> Tensor:
    """Numbers of Rayleigh's distribution: scale · √(-2 log u). Gradient: to scale. Otherwise as rlx.random.lognormal.
    Follows jax.random.rayleigh."""
    d = _drawn("random.rayleigh", key, shape, dtype, scale=scale)
    return d.result(d.parameters[0] * sqrt(-2.0 * log(_open_unit(d))))


def pareto(key: TensorLike, b: TensorLike, shape: Shape = None, dtype: DTypeLike = f32) -> Tensor:
    """Numbers of Pareto's distribution of shape b, from 1 on: exp(exponential / b). Gradient: to b. Otherwise as
    rlx.random.lognormal. Follows jax.random.pareto."""
    d = _drawn("random.pareto", key, shape, dtype, b=b)
    return d.result(exp(exponential(d.key, d.dims, d.work) / d.parameters[0]))


def weibull_min(
    key: TensorLike, scale: TensorLike, concentration: TensorLike, shape: Shape = None, dtype: DTypeLike = f32
) -> Tensor:
    """Numbers of Weibull's distribution: scale · exponential^(1 / concentration). Gradient: to both. Otherwise as
    rlx.random.lognormal. Follows jax.random.weibull_min."""
    d = _drawn("random.weibull_min", key, shape, dtype, scale=scale, concentration=concentration)
    width, power = d.parameters
    return d.result(width * exp(log(-log1p(-_open_unit(d))) / power))


def maxwell(key: TensorLike, shape: Sequence[int] | int = (), dtype: DTypeLike = f32) -> Tensor:
    """Numbers of Maxwell's distribution: the length of three normal numbers. Otherwise as rlx.random.normal. Follows
    jax.random.maxwell; its numbers differ."""
    d = _drawn("random.maxwell", key, as_shape(shape, "random.maxwell"), dtype)
    three = draws.normal(d.key, (*d.dims, 3), d.work)
    return d.result(sqrt(sum(three * three, -1)))
