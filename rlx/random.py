"""Random numbers: keys, draws and dropout. Every function takes a key, and the same key gives the same numbers.

A key is two words of 32 bits as i32, of shape (2,); keys of shape (..., 2) are many of them. A key is a value as
any other: a program may take it as an input, so that a new key compiles nothing. Element i of a draw is Threefry-2x32
in 20 rounds of the key and the counter (0, i), where i counts the elements of `shape` in row-major order: it depends on
nothing else, so it is the same on every device (those of `normal` are within 4 ULP), in every batch and however a graph
is fused, and no memory is read for it. Use a key once, then make new ones with `split` and `fold_in`.

To draw a tensor in parts, give each part the `offset` of its first element. For rows that must not depend on the batch
that they run in, use a key for each row, `fold_in(key, rows)` or `split(key, n)`, of shape (n, 2). A draw of `shape` is
then (n, *shape), and row r has the numbers that its key gives alone.

>>> @rlx.jit
... def noisy(x, key, step):
...     return rlx.random.dropout(x, 0.1, rlx.random.fold_in(key, step))
>>> noisy(x, rlx.random.key(0), 7)
"""

from typing import TYPE_CHECKING

from rlx.ops.public import make_public as _make_public
from rlx.ops.random.choices import categorical as categorical
from rlx.ops.random.choices import choice as choice
from rlx.ops.random.choices import exponential as exponential
from rlx.ops.random.choices import laplace as laplace
from rlx.ops.random.choices import multivariate_normal as multivariate_normal
from rlx.ops.random.choices import truncated_normal as truncated_normal
from rlx.ops.random.counts import binomial as binomial
from rlx.ops.random.counts import multinomial as multinomial
from rlx.ops.random.counts import orthogonal as orthogonal
from rlx.ops.random.counts import triangular as triangular
from rlx.ops.random.counts import wald as wald
from rlx.ops.random.distributions import beta as beta
from rlx.ops.random.distributions import cauchy as cauchy
from rlx.ops.random.distributions import chisquare as chisquare
from rlx.ops.random.distributions import dirichlet as dirichlet
from rlx.ops.random.distributions import gamma as gamma
from rlx.ops.random.distributions import geometric as geometric
from rlx.ops.random.distributions import loggamma as loggamma
from rlx.ops.random.distributions import logistic as logistic
from rlx.ops.random.distributions import lognormal as lognormal
from rlx.ops.random.distributions import maxwell as maxwell
from rlx.ops.random.distributions import pareto as pareto
from rlx.ops.random.distributions import poisson as poisson
from rlx.ops.random.distributions import rademacher as rademacher
from rlx.ops.random.distributions import rayleigh as rayleigh
from rlx.ops.random.distributions import t as t
from rlx.ops.random.distributions import weibull_min as weibull_min
from rlx.ops.random.draws import bernoulli as bernoulli
from rlx.ops.random.draws import bits as bits
from rlx.ops.random.draws import dropout as dropout
from rlx.ops.random.draws import fold_in as fold_in
from rlx.ops.random.draws import gumbel as gumbel
from rlx.ops.random.draws import key as key
from rlx.ops.random.draws import normal as normal
from rlx.ops.random.draws import permutation as permutation
from rlx.ops.random.draws import randint as randint
from rlx.ops.random.draws import split as split
from rlx.ops.random.draws import threefry2x32 as threefry2x32
from rlx.ops.random.draws import uniform as uniform

__all__ = [
    "bernoulli", "beta", "binomial", "bits", "categorical", "cauchy", "chisquare", "choice", "dirichlet", "dropout",
    "exponential", "fold_in", "gamma", "geometric", "gumbel", "key", "laplace", "loggamma", "logistic", "lognormal",
    "maxwell", "multinomial", "multivariate_normal", "normal", "orthogonal", "pareto", "permutation", "poisson",
    "rademacher", "randint", "rayleigh", "split", "t", "threefry2x32", "triangular", "truncated_normal", "uniform",
    "wald", "weibull_min",
]  # fmt: skip

if not TYPE_CHECKING:  # type checkers read the imports above
    _make_public(globals(), __all__)

PRNGKey = key  # jax.random's older name
__all__.append("PRNGKey")
