"""Conformance of one step of attention over a cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx import ops
from rlx.conformance.case import Case, InputSpec
from rlx.conformance.random_rules import Made, rule
from rlx.conformance.record import Conformance
from rlx.conformance.shapes import FLOATS, label
from rlx.conformance.tolerances import NORM, Tolerance
from rlx.dtypes import DType, bf16, f16, f32, i32
from rlx.ir import Attrs, get_op
from rlx.ops.numeric import Array, widened

if TYPE_CHECKING:
    from rlx.conformance.random_graphs import Builder

# (sequences, query heads, key heads, size, rows)
Size = tuple[int, int, int, int, int]
_SIZES: tuple[Size, ...] = (
    (1, 8, 2, 64, 300), (1, 1, 1, 1, 1), (1, 2, 1, 8, 1), (2, 3, 3, 6, 7), (3, 4, 2, 32, 40), (1, 7, 1, 64, 33),
    (2, 2, 2, 128, 150), (1, 4, 4, 256, 140), (1, 4, 1, 80, 70), (0, 2, 1, 8, 4), (2, 6, 2, 16, 131),
)  # fmt: skip
# The query and the new row are rounded to the caches' dtype. This changes a score by the rounding of its terms, and a
# weight by the same amount relative to itself.
ROUNDED = {bf16: Tolerance("norm", nmse=1e-4, max_error=2e-2), f16: Tolerance("norm", nmse=1e-6, max_error=3e-3)}


def _case(
    size: Size, token: DType = f32, cache: DType = f32, pairs: int | None = None, interleaved: bool = False,
    window: int | None = None, softcap: float | None = None, sinks: bool = False, reach: str = "index",
    ring: int = 0,
) -> Case:  # fmt: skip
    batch, heads, kv_heads, d, rows = size
    specs = [InputSpec((batch, n, d), token) for n in (heads, kv_heads, kv_heads)]
    specs += [InputSpec((batch, rows, kv_heads, d), cache) for _ in range(2)]
    # `ring`: the caches are ring buffers, and sequences have up to so many tokens.
    specs.append(InputSpec((batch,), i32, f"{reach}:{ring or rows}"))
    if pairs is not None:
        specs += [InputSpec((rows + 2, pairs), f32, "unit") for _ in range(2)]
    if sinks:
        specs.append(InputSpec((heads,), f32))
    name = f"{token}-{cache}-{label(size)}" + (f"-turned{pairs}{'p' * interleaved}" if pairs is not None else "")
    name += f"-window{window}" * (window is not None) + f"-cap{softcap}" * (softcap is not None)
    name += "-sinks" * sinks + f"-ring{ring}" * bool(ring) + f"-{reach}" * (reach != "index")
    attrs = {"scale": d**-0.5, "window": window, "softcap": softcap, "interleaved": interleaved, "ring": bool(ring)}
    return Case("attention_step", name, tuple(specs), attrs, ROUNDED.get(cache, NORM))


def _all() -> Iterator[Case]:
    for size in _SIZES:
        yield _case(size)
        yield _case(size, pairs=size[3] // 2, interleaved=size[3] == 32)
    size = (2, 8, 2, 64, 300)
    for token, cache in ((f32, f32), (f32, f16), (f32, bf16), (f16, f16), (bf16, bf16), (bf16, f32)):
        yield _case(size, token, cache, 32)
        yield _case(size, token, cache, 12, True, window=40, softcap=3.0, sinks=True)
        yield _case((1, 16, 4, 128, 200), token, cache, sinks=True)
    for reach in ("index", "wild"):
        yield _case((3, 4, 2, 32, 70), pairs=8, reach=reach)
        yield _case((1, 4, 2, 32, 70), pairs=16, window=0, reach=reach)
    yield _case((2, 4, 2, 32, 70), softcap=0.5, window=300)
    for size, window in (((4, 8, 2, 64, 64), 40), ((2, 4, 2, 32, 70), 1), ((3, 7, 1, 64, 33), 32), ((2, 3, 3, 6, 7), 0),
                         ((1, 4, 4, 256, 140), 139), ((1, 4, 1, 80, 70), 50)):  # fmt: skip
        yield _case(size, pairs=size[3] // 2, window=window, ring=9 * size[4])
    for cache in (f16, bf16):
        yield _case((3, 8, 2, 64, 150), cache, cache, 12, True, window=100, softcap=3.0, sinks=True, ring=600)
    yield _case((3, 4, 2, 32, 70), pairs=8, window=60, reach="wild", ring=1 << 29)
    yield _case((4, 4, 2, 32, 300), window=200, sinks=True, ring=250)  # not yet full


@rule("attention_step")
def _step(b: Builder) -> Made:
    batch, kv, group, d, rows = (1 + b.below(3) for _ in range(5))
    token, cache = b.choose((f32, f32, f16)), b.choose(FLOATS)
    d = d if b.chance(0.7) else 32
    q, k, v = (b.leaf((batch, n, d), token) for n in (kv * group, kv, kv))
    keys, values = (b.leaf((batch, rows, kv, d), cache) for _ in range(2))
    tables = [b.leaf((rows, d // 2), f32) for _ in range(2)] if b.chance(0.5) else []
    sinks = b.leaf((kv * group,), f32) if b.chance(0.3) else None
    cos, sin = tables or (None, None)
    ring = b.chance(0.3)
    window = b.below(rows) if ring else b.choose((None, 0, 2))
    return ops.attention_step(
        q, k, v, keys, values, b.leaf((batch,), i32), cos, sin, sinks, scale=0.5, window=window,
        softcap=b.choose((None, 2.0)), interleaved=b.chance(0.5), ring=ring, checked=False,
    )  # fmt: skip


def _largest_value(inputs: Sequence[Array], attrs: Attrs) -> Any:
    """The largest number among the values and the rows, since attention is a weighted mean of values."""
    with np.errstate(all="ignore"):
        return np.asarray(max((np.nanmax(np.abs(x), initial=0) for x in inputs[1:5]), default=0.0))


def _masked_nan(inputs: Sequence[Array], attrs: Attrs) -> Any:
    """The results that depend on a value of weight 0 that is not finite: they may be NaN (0 · NaN) or not."""
    arrays = [widened(x) for x in inputs]
    finite = [np.isfinite(arrays[i]) for i in (2, 4)]
    if all(x.all() for x in finite) or not arrays[0].size:
        return np.zeros((), bool)
    free = [np.where(ok, 0.0, 1.0).astype(arrays[0].dtype) for ok in finite]
    marked = [*arrays[:2], free[0], arrays[3], free[1], *inputs[5:]]
    with np.errstate(all="ignore"):
        y = get_op("attention_step").reference(*marked, **attrs)[0]
    rows = arrays[4].shape[1]
    at = np.clip(inputs[5].astype(np.int64), 0, rows - 1)  # tokens beyond a ring's rows see all rows
    seen: Any = np.arange(rows) <= at[:, None]
    some: Any = np.any(free[1] * seen[:, :, None, None], axis=(1, 2)) | np.any(free[0], axis=1)
    return np.broadcast_to(some[:, None] & (y == 0), y.shape)


ANGLES = "cosines and sines of no angle: products with two of them exceed f32, and their difference is then NaN"
OPS = (
    Conformance(
        "attention_step", (_all,), (_step,), terms=_largest_value, undecided=_masked_nan,
        without={(i, "wide"): ANGLES for i in (6, 7)},
    ),
)  # fmt: skip
