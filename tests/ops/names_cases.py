"""Calls of NumPy's names, the same with NumPy and with rlx: a name, the arguments, and what judges it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

R = np.random.default_rng(20)
V = R.normal(size=7)
M = R.normal(size=(3, 4))
C = R.normal(size=(2, 3, 4))
I = R.integers(-5, 9, (3, 4))
N = np.where(R.random((3, 5)) < 0.3, np.nan, R.normal(size=(3, 5)))
N[1] = np.nan
SORTED = np.array([-1.0, -0.5, 0.0, 0.0, 0.5, 2.0])
PLACES = np.array([0.0, 0.3, 0.5, 1.5])
ODD = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5, -2.5])
BITS = np.array([True, False, True, True])


class Case(NamedTuple):
    """A call of `rlx.<name>` and the function that judges it: NumPy's of that name, or of another."""

    name: str
    args: tuple[Any, ...]
    options: Mapping[str, Any]
    judge: Callable[..., Any]

    @property
    def id(self) -> str:
        return f"{self.name}-{len(self.args)}-{'-'.join(f'{k}={v}' for k, v in self.options.items())}"[:80]


def case(name: str, *args: Any, judge: Callable[..., Any] | str | None = None, **options: Any) -> Case:
    of = getattr(np, judge or name) if not callable(judge) else judge
    return Case(name, args, options, of)


def plain(function: Callable[..., Any], *dropped: str, **renamed: str) -> Callable[..., Any]:
    """NumPy's function without options that are rlx's alone, under its own names of the others."""

    def call(*args: Any, **options: Any) -> Any:
        return function(*args, **{renamed.get(k, k): v for k, v in options.items() if k not in dropped})

    return call


def _filled(function: Callable[..., Any], *args: Any, size: int, fill: Any = 0) -> Any:
    made = function(*args)
    return np.concatenate([made, np.full((max(size - len(made), 0), *made.shape[1:]), fill, made.dtype)])[:size]


def _nonzero(x: Any, size: int, fill_value: Any = 0) -> Any:
    return tuple(_filled(lambda v: v, part, size=size, fill=fill_value) for part in np.nonzero(x))


def _trapezoid_kept(*args: Any, **options: Any) -> Any:
    return np.trapezoid(*args, **options)


def _fill(x: Any, value: float, call: Callable[..., Any], **options: Any) -> Any:
    return call(np.where(np.isnan(x), value, x), **options)


def _nanarg(x: Any, axis: int, call: Callable[..., Any]) -> Any:
    lost = np.isnan(x).all(axis)
    return np.where(lost, -1, call(np.where(np.expand_dims(lost, axis), 0, x), axis))


CASES = [
    *(case(n, ODD) for n in ("absolute", "fabs", "rint", "fix", "isposinf", "isneginf", "positive", "negative",
          "sinc")),
    *(case(n, V / 4) for n in ("arcsin", "arccos", "arctan", "arcsinh", "arctanh", "deg2rad", "rad2deg", "radians",
                               "degrees", "sinc")),
    case("arccosh", V**2 + 1), case("arctan2", V, V[::-1]), case("around", V * 3),
    *(case(n, V, V[::-1].copy()) for n in ("multiply", "subtract", "divide", "true_divide", "divmod", "fmax", "fmin",
                                            "logaddexp", "logaddexp2", "heaviside")),
    case("fmax", ODD, np.roll(ODD, 1)), case("fmin", ODD, np.roll(ODD, 1)), case("heaviside", ODD, 0.5),
    case("logaddexp", ODD[1:], ODD[1:]), case("power", V**2, V), case("ldexp", V, np.arange(7) - 3),
    *(case(n, I) for n in ("bitwise_invert", "invert", "ravel")), case("bitwise_left_shift", I, 2),
    case("bitwise_right_shift", I, 1), case("amax", M, axis=1), case("amin", M, axis=0), case("ravel", M[:0]),
    case("empty", (2, 0)), case("empty_like", M[:0]), case("identity", 3),
    # products
    case("tensordot", C, M, axes=([2], [1])), case("tensordot", C, C[0], axes=2), case("tensordot", V, V, axes=0),
    case("tensordot", I, I, axes=([0, 1], [0, 1])), case("dot", V, V), case("dot", M, M.T), case("dot", C, M.T),
    case("dot", 2.0, M), case("dot", M, M[0]), case("inner", C, M), case("inner", V, V), case("inner", M, 3.0),
    case("vdot", M, M), case("vecdot", C, M), case("vecdot", M, M, axis=0), case("matvec", C, M[0]),
    case("vecmat", M[:, 0], M), case("matrix_transpose", C), case("kron", M, C), case("kron", V, M), case("kron", 2, V),
    case("cross", M[:, :3], M[:, 1:]), case("cross", M, M[::-1], axis=0),
    case("cross", C, C, axisa=1, axisb=1, axisc=0),
    case("trace", M), case("trace", C, offset=1, axis1=1, axis2=2), case("trace", I), case("diag", V, k=2),
    case("diag", V, k=-1), case("diag", M, k=1), case("diag", V[:1]), case("vander", V, 4),
    case("vander", V, increasing=True), case("outer", V, M),
    # arranging
    *(case(f"atleast_{n}d", x) for n in (1, 2, 3) for x in (2.0, V, M, C)), case("hstack", [V, V]),
    case("hstack", [M, M]), case("vstack", [V, V]), case("vstack", [M, M]), case("dstack", [V, V]),
    case("dstack", [M, M]),
    case("column_stack", [V, V]), case("column_stack", [M[:, 0], M]), case("append", M, V),
    case("append", M, M, axis=1),
    case("array_split", V, 3), case("array_split", M, [1, 3], axis=1), case("array_split", V, [2, 9]),
    case("hsplit", M, 2), case("hsplit", V, [3]), case("vsplit", M, 3), case("dsplit", C, 2),
    case("unstack", C, axis=1),
    case("broadcast_arrays", V, C[..., :1]), case("meshgrid", V, V[:2]), case("meshgrid", V, V[:2], V[:3]),
    case("meshgrid", V, V[:2], indexing="ij"), case("meshgrid", V, V[:2], sparse=True), case("meshgrid", V),
    case("fliplr", M), case("flipud", M), *(case("rot90", M, k) for k in (-1, 0, 1, 2, 3)),
    case("rot90", C, axes=(1, 2)), case("rollaxis", C, 2), case("rollaxis", C, 0, 2), case("tri", 3, 4, 1),
    case("tri", 3, k=-1), case("delete", M, 1, axis=0), case("delete", M, [0, 3], axis=1),
    case("delete", V, slice(1, 4)),
    case("insert", V, 2, 9.0), case("insert", M, 1, M[0], axis=0), case("insert", M, 1, M[:, 0], axis=1),
    case("insert", M, [0, 2], 5.0, axis=1), case("insert", V, [1, 1, 3], V[:3]),
    # selecting
    case("take", M, [0, 5, -1]), case("take", M, np.array([[0, 2], [1, 1]]), axis=0), case("take", M, 1, axis=1),
    case("take", M, [-1, 5, 2], axis=1, mode="clip"), case("take", M, [-1, 5, 2], axis=1, mode="wrap"),
    case("nonzero", I > 2), case("nonzero", I > 2, size=7, judge=_nonzero), case("argwhere", I > 2),
    case("nonzero", I > 2, size=2, judge=_nonzero), case("nonzero", I > 2, size=12, fill_value=-1, judge=_nonzero),
    case("argwhere", BITS, size=2, judge=lambda x, size: np.argwhere(x)[:size]), case("flatnonzero", I),
    case("flatnonzero", I, size=20, fill_value=7, judge=lambda x, size, fill_value: _filled(
        np.flatnonzero, x, size=size, fill=fill_value)),
    case("extract", I > 2, M), case("compress", BITS, M, axis=1), case("compress", BITS, V),
    case("unique", I), case("unique", I, return_index=True, return_inverse=True, return_counts=True),
    case("unique", N), case("unique", N, equal_nan=False), case("unique", np.array([1.0, -0.0, 0.0])),
    case("unique", I, size=20, fill_value=99, judge=lambda x, size, fill_value: _filled(
        np.unique, x, size=size, fill=fill_value)),
    *(case(f"unique_{n}", x) for n in ("all", "counts", "inverse") for x in (I, V)),
    # NumPy's unique_values is in the order of its hash table.
    *(case("unique_values", x, judge=lambda x: np.unique(x, equal_nan=False)) for x in (I, N)),
    case("union1d", I, I + 3), case("setdiff1d", I, [1, 2, 3]), case("isin", I, [1, 2, 8]),
    case("isin", I, [1, 2], invert=True), case("isin", I, np.zeros(0, np.int64)),
    *(case("searchsorted", SORTED, np.append(V, [0.0, np.nan, np.inf]), side=s) for s in ("left", "right")),
    case("searchsorted", np.append(SORTED, np.nan), ODD), case("searchsorted", SORTED, M),
    case("searchsorted", SORTED[::-1].copy(), V, sorter=np.arange(6)[::-1].copy()),
    *(case("digitize", np.append(V, SORTED), b, right=r) for b in (SORTED, SORTED[::-1].copy()) for r in (False, True)),
    case("interp", np.append(V * 2, SORTED), np.unique(SORTED), V[:5]),
    case("interp", V, [0.0, 0.5], [1, 2], left=-9.0),
    case("interp", V * 9, [30.0, 10, 20], [1.0, 5, 3], period=24), case("interp", ODD, [0.0, 1.0], [2.0, 4.0]),
    case("partition", V, 3, judge=lambda x, k: np.sort(x)),
    case("argpartition", V, 3, judge=lambda x, k: np.argsort(x)),
    case("piecewise", V, [V > 1, V > 0], [lambda x: x * 2, lambda x: -x, 7.0]), case("piecewise", V, [V > 0], [3.0]),
    case("lexsort", (V.round(), V)), case("lexsort", I), case("select", [V > 1, V > 0], [V, 10 * V], 7.0),
    case("choose", [[0, 1], [2, 0]], [[1, 2], [3, 4], [5, 6]]), case("choose", [3, -1], [[1, 2], [3, 4]], mode="wrap"),
    case("unravel_index", np.array([1, 7, 22]), (2, 3, 4)),
    # statistics
    case("allclose", V, V + 1e-9), case("allclose", V, V + 1e-3), case("allclose", ODD, ODD, equal_nan=True),
    case("array_equal", M, M), case("array_equal", M, V), case("array_equal", ODD, ODD, equal_nan=True),
    case("array_equiv", M, M[:1]), case("array_equiv", M[:, :1] * 0, M * 0), case("diff", V),
    case("diff", M, n=2, axis=0),
    case("diff", V, prepend=0.0, append=[1.0, 2.0]), case("diff", BITS), case("diff", I, n=0), case("ediff1d", M),
    case("ediff1d", I, to_begin=[7, 8], to_end=9), case("trapezoid", M), case("trapezoid", M, V[:4]),
    case("trapezoid", M, dx=0.5, axis=0), case("trapezoid", M, V[:3], axis=0), case("trapezoid", M, M**2),
    *(case(f"cumulative_{n}", x, axis=0, include_initial=i) for n in ("sum", "prod") for x in (V, M)
      for i in (False, True)),
    case("count_nonzero", I), case("count_nonzero", I, axis=1, keepdims=True), case("bincount", np.abs(I).ravel()),
    case("bincount", np.array([1, 1, 3]), np.array([0.5, 2, 4]), minlength=6), case("bincount", np.zeros(0, np.int64)),
    case("bincount", np.array([1, 1, 3]), length=3, judge=lambda x, length: np.bincount(x)[:length]),
    case("histogram", V), case("histogram", M, 5, range=(-1, 1)), case("histogram", V, SORTED[[0, 1, 2, 4, 5]]),
    case("histogram", V, 4, density=True), case("histogram", V, 4, weights=V**2), case("histogram", I, 3),
    case("histogram", np.ones(3), 2), case("histogram_bin_edges", V, 3), case("ptp", M), case("ptp", M, axis=1),
    case("average", M), case("average", M, axis=0, weights=V[:3]), case("average", M, weights=M**2, returned=True),
    case("average", C, axis=(0, 2), keepdims=True), case("cov", M), case("cov", M, rowvar=False, bias=True),
    case("cov", V, V**2), case("cov", V), case("cov", M, fweights=np.arange(4) + 1, aweights=V[:4] ** 2),
    case("cov", M, ddof=2), case("corrcoef", M), case("corrcoef", V, V[::-1].copy()),
    *(case("quantile", x, [0.0, 0.1, 0.25, 0.5, 0.9, 1.0], axis=-1, method=m)
      for x in (V, M) for m in (
          "linear", "lower", "higher", "midpoint", "nearest", "inverted_cdf", "averaged_inverted_cdf",
          "closest_observation", "interpolated_inverted_cdf", "hazen", "weibull", "median_unbiased",
          "normal_unbiased")),
    *(case("nanquantile", N[:, ::-1].copy(), [[0.0, 0.3], [0.5, 1.0]], axis=1, method=m) for m in (
        "linear", "nearest", "higher", "hazen")),
    case("quantile", C, 0.3, axis=(0, 2), keepdims=True), case("quantile", C, 0.3), case("percentile", M, 40),
    case("percentile", I, [10, 50], axis=0), case("quantile", N, 0.5, axis=1), case("nanmedian", N, axis=0),
    case("nanpercentile", N, 30.0), case("quantile", np.array([1.0, np.inf]), [0.0, 1.0], judge=lambda x, q: x),
    *(case(f"nan{n}", N, axis=1) for n in ("sum", "prod", "max", "min", "mean", "cumsum", "cumprod", "var", "std")),
    *(case(n, M) for n in ("cumsum", "cumprod", "nancumsum", "nancumprod")), case("concatenate", [M, V], axis=None),
    *(case(n, M, axis=None) for n in ("sort", "argsort", "cumsum")),
    *(case(n, C, judge=j) for n, j in (
        ("cummax", lambda x: np.maximum.accumulate(x.ravel())),
        ("cummin", lambda x: np.minimum.accumulate(x.ravel())))),
    *(case(f"nan{n}", N) for n in ("sum", "prod", "max", "min", "mean", "var", "std")), case("nanmax", I),
    case("nanvar", N, axis=0, correction=1, judge=plain(np.nanvar, correction="ddof")), case("nanargmax", M),
    *(case(f"nanarg{n}", N, axis=1, judge=lambda x, axis, n=n: _nanarg(x, axis, getattr(np, f"nanarg{n}")))
      for n in ("max", "min")),
    *(case(n, a, b, m) for n in ("convolve", "correlate") for m in ("full", "same", "valid")
      for a, b in ((V, V[:3]), (V[:3], V), (V, V[:2]), (V[:2], V), (I[0], I[1, :3]))),
    # calculus
    *(case("gradient", *a, **o) for a, o in (
        ((V,), {}), ((V, 0.5), {}), ((M,), {}), ((M, PLACES), {"axis": 1}), ((M, 2.0, PLACES), {}),
        ((V,), {"edge_order": 2}), ((M, PLACES), {"axis": 1, "edge_order": 2}), ((M,), {"axis": (0,)}))),
    case("unwrap", np.cumsum(V * 4)), case("unwrap", M * 9, 4.0, 0, period=3.0), case("polyval", V, M),
    case("polyfit", V, V[::-1].copy(), 2), case("polyfit", V, np.stack([V**2, V], 1), 1, w=V**2 + 1),
    case("float_power", I, 2), case("modf", ODD[1:]), case("standardize", M, judge=lambda x: (
        x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)),
    case("block", [[M, M[:, :1]], [M[:1, :2], M[:1, :3]]]), case("block", [V, V[:2]]), case("block", V),
    case("geomspace", 1.0, 100.0, 5), case("logspace", 0, 2, 5), case("tril_indices", 4, 1, 3),
    case("triu_indices", 3), case("nextafter", ODD, np.ones(7)), case("nextafter", V, -V),
    *(case(n, np.array([0.0, 0.3, -0.9, 1 - 1e-9, 1.0, -1.0, 1.5]), judge=lambda x: np.array(
        [0.0, 0.2724627147267543, -1.1630871536766743, 4.320005388105362, np.inf, -np.inf, np.nan]))
      for n in ("erfinv", "erf_inv")),
    case("xlogy", np.array([0.0, 0.0, 2.0]), np.array([0.0, np.nan, 3.0]), judge=lambda x, y: np.array(
        [0.0, np.nan, 2 * np.log(3.0)])),
]  # fmt: skip
