"""`python -m tests.ops.paged_sweep [--device D] [--count N] [--seed S]`: attention over pages and steps into caches,
query by query in float64, over random shapes, tables and lengths.

Numbers of pages are negative, too large, repeated; lengths 0, negative, beyond the pages; integers of every width. A
result is wrong where it is further from float64 than the row's largest value times 2e-6 (4e-3 in halves), and where a
row of a cache that no token was written to has changed. Exit status 1 where one is wrong.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import numpy as np

import rlx
from rlx.errors import CapacityExceeded

Array = np.ndarray[Any, Any]
INTEGERS = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64)
WINDOWS = (None, 0, 3, 40)


def integers(rng: np.random.Generator, low: int, high: int, shape: tuple[int, ...], wild: float) -> Array:
    """Integers of some width from low to high - 1, of which a part is far outside."""
    dtype = rng.choice(np.array(INTEGERS, object))
    info = np.iinfo(dtype)
    values = rng.integers(low, max(high, low + 1), shape).astype(object)
    far = [info.min, info.max, -1, high, 1 << 16, 1 << 31, (1 << 32) + low, -(1 << 32) + low]
    for place in np.ndindex(shape):
        if rng.random() < wild:
            values[place] = far[rng.integers(len(far))]
        values[place] = min(max(int(values[place]), int(info.min)), int(info.max))
    return values.astype(dtype)


def attended(q: Array, k: Array, v: Array, length: int, scale: float, causal: Any, window: Any, cap: Any) -> Array:
    """One head of one sequence, (queries, size), over its first `length` keys."""
    result = np.zeros_like(q)
    for i in range(len(q)):
        at = length - len(q) + i if causal or window is not None else 0
        keys = [j for j in range(length) if not (causal and j > at)
                and (window is None or (at - window <= j and (causal or j <= at + window)))]  # fmt: skip
        if keys:
            scores = k[keys] @ q[i] * scale
            scores = cap * np.tanh(scores / cap) if cap else scores
            weights = np.exp(scores - scores.max())
            result[i] = weights / weights.sum() @ v[keys]
    return result


def far(got: Array, want: Array, narrow: bool) -> bool:
    limit = (4e-3 if narrow else 2e-6) * max(1.0, float(np.abs(want).max(initial=0)))
    return got.shape != want.shape or not bool((np.abs(got - want) <= limit).all())


def paged(rng: np.random.Generator, device: str) -> str | None:
    """What is wrong with one random case of `paged_attention`; None where nothing is."""
    b, kv, n_q, n, rows, pages = (int(rng.integers(1, top)) for top in (4, 4, 4, 6, 20, 6))
    heads, packed = kv * int(rng.integers(1, 4)), rng.random() < 0.3
    size = 32 * int(rng.integers(1, 3)) if packed else int(rng.integers(1, 40))
    dtype = np.dtype(rng.choice(["float32", "float16"]))
    q, k, v = (rng.standard_normal(s).astype(dtype) for s in
               ((b, n_q, heads, size), (pages, rows, kv, size), (pages, rows, kv, size)))  # fmt: skip
    table = integers(rng, 0, pages, (b, n), 0.3)
    length = integers(rng, 0, n * rows + 1, (b,), 0.2)
    attrs: dict[str, Any] = {"causal": bool(rng.random() < 0.5), "window": WINDOWS[rng.integers(4)],
             "softcap": (None, 2.0)[rng.integers(2)]}  # fmt: skip
    scales = []
    if packed:
        k, v = (rng.integers(-127, 128, k.shape).astype(np.int8) for _ in range(2))
        scales = [rng.uniform(0.005, 0.02, (*k.shape[:3], size // 32)).astype(np.float16) for _ in range(2)]

    def call(*t: Any) -> Any:
        return rlx.paged_attention(*t[:5], *t[5:], **attrs)

    got = np.asarray(rlx.jit(call, device=device)(q, k, v, table, length, *scales)).astype(np.float64)
    wide = [t.astype(np.float64) for t in (k, v)]
    if packed:
        wide = [t * np.repeat(s.astype(np.float64), 32, 3) for t, s in zip(wide, scales, strict=True)]
    want = np.zeros(q.shape)
    for i in range(b):
        chosen = [min(max(int(p), 0), pages - 1) for p in table[i]]
        end = min(max(int(length[i]), 0), n * rows)
        for head in range(heads):
            keys, values = (t[chosen].reshape(-1, kv, size)[:, head // (heads // kv)] for t in wide)
            want[i, :, head] = attended(q[i, :, head].astype(np.float64), keys, values, end, size**-0.5,
                                        attrs["causal"], attrs["window"], attrs["softcap"])  # fmt: skip
    if far(got, want, dtype == np.float16):
        pages_of = f"{table.dtype} {table.tolist()} {length.dtype} {length}"
        return f"paged_attention {q.shape} {k.shape} {dtype} {pages_of} {attrs}"
    return None


def stepped(rng: np.random.Generator, device: str) -> str | None:
    """What is wrong with one random step into caches of floats: rows written, attention, and what is refused."""
    b, kv, rows = (int(rng.integers(1, top)) for top in (4, 4, 24))
    heads, size = kv * int(rng.integers(1, 4)), 2 * int(rng.integers(1, 20))
    q, k, v = (rng.standard_normal((b, n, size)).astype(np.float32) for n in (heads, kv, kv))
    keys, values = (rng.standard_normal((b, rows, kv, size)).astype(np.float32) for _ in range(2))
    at = integers(rng, 0, rows, (b,), 0.1)
    turns = bool(rng.random() < 0.5)
    positions, half = int(rng.integers(1, rows + 6)), int(rng.integers(1, size // 2 + 1))
    angles = rng.uniform(-3, 3, (positions, half))
    tables = [f(angles).astype(np.float32) for f in (np.cos, np.sin)] if turns else []
    window = WINDOWS[rng.integers(4)]
    fine = all(0 <= int(p) < min(rows, positions if turns else rows) for p in at)
    try:
        step = rlx.jit(lambda *t: rlx.attention_step(*t, window=window), device=device)
        got = [np.asarray(t).astype(np.float64) for t in step(q, k, v, keys, values, at, *tables)]
    except CapacityExceeded:
        return f"attention_step refused {at} of {rows} rows, {positions} positions" if fine else None
    what = f"attention_step {q.shape} {keys.shape} {at.dtype} {at} tables {turns} {angles.shape} window {window}"
    if not fine:
        return f"{what}: taken"

    def turned(x: Array, p: int) -> Array:
        y = x.astype(np.float64).copy()
        if turns:
            c, s = (t[p].astype(np.float64) for t in tables)
            y[:, :half], y[:, half : 2 * half] = (
                x[:, :half] * c - x[:, half : 2 * half] * s, x[:, half : 2 * half] * c + x[:, :half] * s)  # fmt: skip
        return y

    wide = [keys.astype(np.float64), values.astype(np.float64)]
    want = np.zeros((b, heads, size))
    for i, p in enumerate(int(p) for p in at):
        wide[0][i, p], wide[1][i, p] = turned(k[i], p), v[i]
        for head in range(heads):
            ks, vs = (t[i, :, head // (heads // kv)] for t in wide)
            query = turned(q[i], p)[head : head + 1]
            want[i, head] = attended(query, ks, vs, p + 1, size**-0.5, True, window, None)[0]
    others = np.ones((b, rows), bool)
    others[np.arange(b), at.astype(np.int64)] = False
    if any((new[others] != old[others]).any() for new, old in zip(got[1:], (keys, values), strict=True)):
        return f"{what}: another row has changed"
    return what if any(far(a, c, False) for a, c in zip(got, [want, *wide], strict=True)) else None


def wrong(device: str, count: int, seed: int) -> list[str]:
    found = []
    for i in range(count):
        for case in (paged, stepped):
            rng = np.random.default_rng((seed, i))
            says = case(rng, device)
            found += [f"seed {seed}, case {i}: {says}"] if says else []
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    found = wrong(asked.device, asked.count, asked.seed)
    print("\n".join(found[:20]))
    print(f"{2 * asked.count} cases on {asked.device}, {len(found)} wrong")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
