"""Calls of every function of the array API's edition 2025.12, written once for any namespace that has it.

`python -m tests.ops.array_api_calls` makes them with rlx, NumPy and (where it is installed) array-api-strict, and
writes what agreed to tests/ops/array_api.txt. tests/ops/test_array_api.py makes a sample of them with rlx and NumPy.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import rlx
from rlx.conformance.names import ARRAY_API

TABLE = Path(__file__).with_name("array_api.txt")
R = np.random.default_rng(8)
X = R.normal(size=(3, 4))
Y = R.normal(size=(3, 4))
P = np.abs(X) + 0.5
U = X / (np.abs(X).max() + 1)
K = R.integers(-6, 9, (3, 4))
L = R.integers(1, 5, (3, 4))
B = X > 0
Z = X + 1j * Y
S = np.sort(R.normal(size=9))
AT = np.array([2, 0, 1], np.int64)

Call = Callable[[Any, Callable[[Any], Any]], Any]  # of a namespace, and what makes its arrays of NumPy's


def _each(name: str, *args: Any, **options: Any) -> Call:
    def call(xp: Any, a: Callable[[Any], Any]) -> Any:
        given = (a(x) if isinstance(x, np.ndarray) else x for x in args)
        kept = {k: a(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}
        return getattr(xp, name)(*given, **kept)

    return call


_ONE = {  # functions of one array, and what they are given
    **dict.fromkeys("abs ceil floor negative positive round sign signbit square trunc".split(), X * 3),
    **dict.fromkeys("isfinite isinf isnan".split(), X),
    **dict.fromkeys("exp expm1 sin cos tan sinh cosh tanh asinh atan reciprocal".split(), X),
    **dict.fromkeys("log log10 log1p log2 sqrt".split(), P), **dict.fromkeys("acos asin atanh".split(), U),
    "acosh": P + 1, "bitwise_invert": K, "logical_not": B, "nonzero": K,
    **dict.fromkeys("all any argmax argmin count_nonzero max mean min prod std sum var sort argsort".split(), X),
    **dict.fromkeys("unique_all unique_counts unique_inverse".split(), K),
    "matrix_transpose": X, "flip": X, "empty_like": X[:0], "ones_like": X, "zeros_like": X, "tril": X, "triu": X,
    "asarray": X, "from_dlpack": X, "unstack": X,
}  # fmt: skip
_TWO = {
    **dict.fromkeys("add subtract multiply divide maximum minimum atan2 copysign hypot logaddexp nextafter remainder "
                    "floor_divide equal greater greater_equal less less_equal not_equal".split(), (X, Y)),
    **dict.fromkeys("bitwise_and bitwise_or bitwise_xor".split(), (K, L)), "pow": (P, Y),
    **dict.fromkeys("bitwise_left_shift bitwise_right_shift".split(), (K, L)),
    **dict.fromkeys("logical_and logical_or logical_xor".split(), (B, Y > 0)),
    "matmul": (X, Y.T.copy()), "vecdot": (X, Y), "searchsorted": (S, X), "isin": (K, L), "broadcast_arrays": (X, Y[:1]),
    "meshgrid": (S, X[0]),
}  # fmt: skip
CALLS: list[tuple[str, Call]] = [
    *((n, _each(n, x)) for n, x in _ONE.items()), *((n, _each(n, *xs)) for n, xs in _TWO.items()),
    *((n, _each(n, K)) for n in "abs negative sign sum prod max min square".split()),
    *((n, _each(n, K, L)) for n in "add subtract multiply floor_divide remainder maximum equal".split()),
    *((n, _each(n, X, axis=0, keepdims=True)) for n in "all any max mean min prod std sum var count_nonzero".split()),
    *((n, _each(n, X, axis=1)) for n in "argmax argmin argsort cumulative_prod cumulative_sum diff flip sort".split()),
    *((n, lambda xp, a, n=n: xp.imag(xp.conj(a(Z))) if n == "conj" else getattr(xp, n)(a(Z)))
      for n in ("conj", "imag", "real")),
    ("arange", lambda xp, a: xp.arange(2, 9, 3)), ("astype", lambda xp, a: xp.astype(a(X), a(K).dtype)),
    ("broadcast_shapes", lambda xp, a: np.array(xp.broadcast_shapes((3, 1), (4,)))),
    ("broadcast_to", lambda xp, a: xp.broadcast_to(a(X[:1]), (3, 4))),
    ("can_cast", lambda xp, a: np.array([xp.can_cast(a(K).dtype, a(X).dtype), xp.can_cast(a(X).dtype, a(K).dtype)][1])),
    ("clip", lambda xp, a: xp.clip(a(X), -0.5, 0.5)), ("clip", lambda xp, a: xp.clip(a(X), a(-P[:1]), a(P[1:2]))),
    ("concat", lambda xp, a: xp.concat([a(X), a(Y)], axis=1)),
    ("cumulative_sum", lambda xp, a: xp.cumulative_sum(a(S), include_initial=True)),
    ("diff", lambda xp, a: xp.diff(a(X), n=2, axis=0, prepend=a(Y[:1]))),
    ("empty", lambda xp, a: xp.empty((0, 3))), ("expand_dims", lambda xp, a: xp.expand_dims(a(X), axis=1)),
    ("eye", lambda xp, a: xp.eye(3, 4)), ("finfo", lambda xp, a: np.array(float(xp.finfo(a(X).dtype).eps))),
    ("full", lambda xp, a: xp.full((2, 3), 4.0)), ("full_like", lambda xp, a: xp.full_like(a(X), 2.0)),
    ("iinfo", lambda xp, a: np.array(xp.iinfo(a(K).dtype).max)),
    ("isdtype", lambda xp, a: np.array([xp.isdtype(a(x).dtype, k) for x in (X, K, B) for k in
                                        ("bool", "integral", "real floating", ("numeric", "bool"))])),
    ("linspace", lambda xp, a: xp.linspace(0.0, 1.0, 5)),
    ("meshgrid", lambda xp, a: xp.meshgrid(a(S), a(S), indexing="ij")),
    ("moveaxis", lambda xp, a: xp.moveaxis(a(X), 0, 1)), ("ones", lambda xp, a: xp.ones((2, 3))),
    ("zeros", lambda xp, a: xp.zeros((2, 3))), ("permute_dims", lambda xp, a: xp.permute_dims(a(X), (1, 0))),
    ("repeat", lambda xp, a: xp.repeat(a(X), 2)), ("repeat", lambda xp, a: xp.repeat(a(X), a(AT), axis=0)),
    ("reshape", lambda xp, a: xp.reshape(a(X), (2, -1))),
    ("result_type", lambda xp, a: xp.astype(a(K), xp.result_type(a(K).dtype, a(K.astype(np.uint8)).dtype))),
    ("roll", lambda xp, a: xp.roll(a(X), (1, 2), axis=(0, 1))),
    ("searchsorted", lambda xp, a: xp.searchsorted(a(S), a(S), side="right")),
    ("squeeze", lambda xp, a: xp.squeeze(a(X[:1]), axis=0)), ("stack", lambda xp, a: xp.stack([a(X), a(Y)], axis=1)),
    ("take", lambda xp, a: xp.take(a(X), a(AT), axis=1)),
    ("take_along_axis", lambda xp, a: xp.take_along_axis(a(X), a(L[:, :2] % 4), axis=1)),
    ("tensordot", lambda xp, a: xp.tensordot(a(X), a(Y), axes=((0,), (0,)))),
    ("tile", lambda xp, a: xp.tile(a(X), (2, 1))),
    ("std", lambda xp, a: xp.std(a(X), axis=1, correction=1.0)), ("var", lambda xp, a: xp.var(a(X), correction=1.0)),
    ("sort", lambda xp, a: xp.sort(a(X), descending=True) if xp is not np else np.sort(X)[:, ::-1]),
    ("sum", lambda xp, a: xp.sum(a(K), dtype=a(X).dtype)), ("tril", lambda xp, a: xp.tril(a(X), k=-1)),
    # The standard leaves the order of these results open; NumPy's is that of a hash table.
    ("unique_values", lambda xp, a: xp.sort(xp.unique_values(a(K)))),
    ("unstack", lambda xp, a: xp.unstack(a(X), axis=1)), ("where", lambda xp, a: xp.where(a(B), a(X), a(Y))),
]  # fmt: skip


def results(made: Any) -> list[Any]:
    return list(made) if isinstance(made, tuple | list) else [made]


def difference(mine: Any, theirs: Any) -> str:
    """What two results differ in: nothing, the dtype alone, shapes or values."""
    a, b = [np.asarray(x) for x in results(mine)], [np.asarray(x) for x in results(theirs)]
    if [x.shape for x in a] != [x.shape for x in b]:
        return f"shapes {[x.shape for x in a]} for {[x.shape for x in b]}"
    near = 1e-6 if any(x.dtype == np.float32 for x in a) else 1e-12
    for x, y in zip(a, b, strict=True):
        if not np.allclose(x.astype(float), y.astype(float), near, near, equal_nan=True):
            return f"values: {x.ravel()[:3]} for {y.ravel()[:3]}"
    kinds = {(x.dtype.name, y.dtype.name) for x, y in zip(a, b, strict=True) if x.dtype != y.dtype}
    return "; ".join(f"dtype {x} for {y}" for x, y in sorted(kinds))


def compared(name: str, call: Call, judge: Any) -> str:
    """What a call with rlx differs in from the same with another namespace, on the CPU."""
    if not hasattr(rlx, name):
        return "rlx lacks it"
    if not hasattr(judge, name):
        return "the judge lacks it"
    try:
        return difference(call(rlx, lambda x: rlx.array(x, device="cpu")), call(judge, judge.asarray))
    except Exception as error:  # noqa: BLE001 # which function it was belongs into the table
        return f"{type(error).__name__}: {error}".splitlines()[0]


def main() -> None:
    warnings.simplefilter("ignore")
    judges = {f"numpy {np.__version__}": np}
    try:
        import array_api_strict

        judges = {f"array_api_strict {array_api_strict.__version__}": array_api_strict, **judges}
    except ImportError:
        print("array-api-strict is not installed: NumPy alone judges", file=sys.stderr)
    lines = []
    for judge, xp in judges.items():
        found: dict[str, list[str]] = {name: [] for name in ARRAY_API.split()}
        for name, call in CALLS:
            said = compared(name, call, xp)
            found[name].append(said)
        good = [n for n, said in found.items() if said and not any(said)]
        near = [n for n, said in found.items() if any(said) and all(s.startswith("dtype") or not s for s in said)]
        bad = {n: said for n, said in found.items() if n not in good and n not in near}
        lines += [
            f"{judge}, edition 2025.12: {len(found)} functions, {len(CALLS)} calls",
            f"the same values, shapes and dtypes: {len(good)}",
            f"the same values and shapes: {len(near)} more",
            *(f"  {n}: {'; '.join(dict.fromkeys(s for s in found[n] if s))}" for n in near),
            f"not: {len(bad)}",
            *(f"  {n}: {'; '.join(filter(None, said)) or 'no call'}" for n, said in bad.items()), "",
        ]  # fmt: skip
    TABLE.write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
