"""What the row kernels share: a row in blocks of vectors with a masked tail, floats of every width as f32, exp."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from rlx.backends.cpu.context import Array
from rlx.backends.cpu.formulas import apply
from rlx.backends.cpu.ir import F16, F32, F64, I16, I32, I64, PTR, Kernel, Type, Value, Variable
from rlx.dtypes import as_dtype

STORED = {"f32": F32, "f16": I16, "bf16": I16}  # the dtypes that are computed in f32, as they are loaded
LOADED = {**STORED, "f64": F64}  # those and f64, which is computed in f64
UNROLL = 4  # vectors in flight: additions to a single accumulator would wait for each other
RUN = 1 << 13  # elements that one set of f32 accumulators adds up
# (first element, number of the vector in its group, mask or None)
Body = Callable[[Value, int, "Value | None"], None]


def blocks(k: Kernel, n: Value, lanes: int, body: Body, unroll: int = UNROLL) -> None:
    """Calls the body for every vector of n elements. Vectors in whole groups of `unroll` have no mask."""
    step = lanes * unroll
    whole = n & -step
    with k.loop(0, whole, step) as i:
        for u in range(unroll):
            body(i + u * lanes, u, None)
    with k.loop(whole, n, lanes) as i:
        body(i, 0, k.tail(n - i, lanes))


def load_wide(
    k: Kernel,
    base: Value,
    dtype: str,
    at: Value | int,
    lanes: int,
    mask: Value | None = None,
    other: float = 0.0,
) -> Value:
    """A vector of an array's elements as f32 (f64 stay f64); masked lanes are `other`."""
    kind = LOADED[dtype]
    raw = k.load(kind.of(lanes), k.at(base, at, kind), mask)
    wide = raw if kind.is_float else widened(k, raw, dtype)
    return wide if mask is None or other == 0.0 else k.select(mask, wide, other)


def widened(k: Kernel, raw: Value, dtype: str) -> Value:
    """The bits of halves as f32."""
    if dtype == "f16":
        return k.cast("fpext", k.bits(raw, F16), F32)
    return k.bits(k.cast("zext", raw, I32) << 16, F32)


def narrowed(k: Kernel, v: Value, dtype: str) -> Value:
    """f32 rounded to the bits of halves, to nearest even."""
    if dtype == "f16":
        return k.bits(k.cast("fptrunc", v, F16), I16)
    u = k.bits(v, I32)
    rounded = u + ((u >> 16) & 1) + 0x7FFF
    return k.cast("trunc", k.select(k.cmp("uno", v, v), k.fence(u | 0x400000), rounded) >> 16, I16)


def store_wide(
    k: Kernel, v: Value, base: Value, dtype: str, at: Value | int, mask: Value | None = None
) -> None:
    """Stores f32 values (f64 values for f64) as elements of the dtype."""
    kind = LOADED[dtype]
    k.store(v if kind.is_float else narrowed(k, v, dtype), k.at(base, at, kind), mask)


def kept(k: Kernel, v: Value, mask: Value | None, other: float = 0.0) -> Value:
    """v, with `other` in masked lanes."""
    return v if mask is None else k.select(mask, v, other)


def greater(k: Kernel, a: Value, b: Value | float) -> Value:
    """a > b ? a : b, one instruction; b where either is NaN."""
    return k.select(k.cmp("ogt", a, b), a, b)


def accumulators(
    k: Kernel, lanes: int, start: float = 0.0, type: Type = F32, count: int = UNROLL
) -> list[Variable]:
    return [k.variable(k.const(type.of(lanes), start)) for _ in range(count)]


def folded(k: Kernel, parts: Sequence[Variable], join: Callable[[Value, Value], Value]) -> Value:
    """All lanes of all accumulators joined in a fixed order."""
    values = [p.value for p in parts]
    while len(values) > 1:
        values = [join(a, b) for a, b in zip(values[::2], values[1::2], strict=True)]
    return k.fold(values[0], join)


def total(k: Kernel, parts: Sequence[Variable]) -> Value:
    return folded(k, parts, lambda a, b: a + b)


def added(k: Kernel, n: Value, lanes: int, sums: Sequence[Variable], body: Body) -> Value:
    """Calls the body for every vector of n elements, as `blocks`, and returns the total of the accumulators `sums` that
    it adds to."""
    return all_added(k, n, lanes, [sums], body)[0]


def all_added(
    k: Kernel, n: Value, lanes: int, several: Sequence[Sequence[Variable]], body: Body
) -> list[Value]:
    """`added` for several (or no) sums in one sweep. Every RUN elements the accumulators are added to outer ones and
    cleared, since a long running sum would lose the last digits of its terms."""
    if not several:
        blocks(k, n, lanes, body)
        return []
    totals = [accumulators(k, lanes, type=sums[0].type.of(1), count=len(sums)) for sums in several]
    with k.loop(0, n, RUN) as start:
        left = n - start
        count = k.select(k.cmp("slt", left, RUN), left, k.const(I64, RUN))
        for sums in several:
            for part in sums:
                part.value = k.const(part.type, 0.0)
        blocks(k, count, lanes, lambda i, u, mask: body(start + i, u, mask))
        for held, sums in zip(totals, several, strict=True):
            for whole, part in zip(held, sums, strict=True):
                whole.value = whole.value + part.value
    return [total(k, held) for held in totals]


def exp_of_difference(k: Kernel, x: Value, near: bool = False) -> Value:
    """exp(x) for x ≤ 0 or NaN, as softmax needs it: m_exp of math32.h, with results below 2^-126 as 0; f64 takes any x.
    `near`: valid for |x| < 87 alone; other x give arbitrary numbers."""
    if x.type.scalar == "double":
        return apply(k, "p_exp_d", x)
    low = k.cmp("olt", x, -87.33)
    held = x if near else k.select(low, k.const(x.type, -87.33), x)
    # The last bits of x / ln 2 + 3 * 2^22 + 127 are the exponent of the power of two as f32 has it.
    t = k.fma(held, 1.442695022, 12583039.0)
    n = t - 12583039.0
    r = k.fma(n, -1.4286067653e-06, k.fma(n, -6.9314575195e-01, held))
    p = k.const(x.type, 1.395063009e-03)
    for c in (8.368969895e-03, 4.166620225e-02, 1.666651815e-01, 0.5):
        p = k.fma(p, r, c)
    e = k.fma(r * r, p, r) + 1.0
    made = e * k.bits(k.bits(t, I32) << 23, F32)  # adding to the exponent bits would turn some NaNs into numbers
    return made if near else k.select(low, k.const(x.type, 0.0), made)


def room(k: Kernel, nbytes: int) -> Value:
    """Stack memory of one call."""
    name = k.name()
    k.places.append(f"{name} = alloca [{nbytes} x i8], align 64")
    return Value(k, PTR, name)


def name_of(array: Array) -> str:
    return as_dtype(array.dtype).name


def computed(*dtypes: str) -> Type:
    """The type in which numbers of these dtypes, a combination that `alike` allows, are computed."""
    return F64 if "f64" in dtypes else F32


def alike(dtypes: Collection[str]) -> bool:
    """Whether all of these dtypes are computed in f32, or all are f64."""
    return set(dtypes) <= STORED.keys() or set(dtypes) == {"f64"}


def grain_of(n: int) -> int:
    """Rows of n elements that a thread takes at once: some 10 µs of work."""
    return max(1, (1 << 14) // max(n, 1))


def contiguous(*arrays: Array) -> bool:
    return all(a.flags.c_contiguous for a in arrays)


def transposed(k: Kernel, rows: Sequence[Value]) -> list[Value]:
    """The transpose of a square of vectors: in each round, half of a row's lanes are exchanged with another row's."""
    result, lanes = list(rows), len(rows)
    step = 1
    while step < lanes:
        low = [i if not i & step else lanes + i - step for i in range(lanes)]
        high = [i + step if not i & step else lanes + i for i in range(lanes)]
        for i in range(lanes):
            if not i & step:
                a, b = result[i], result[i + step]
                result[i], result[i + step] = k.shuffle(a, b, low), k.shuffle(a, b, high)
        step *= 2
    return result


def larger(k: Kernel, held: Value, v: Value) -> Value:
    """The greater float; NaN once either is NaN. Shorter than `k.max`: one comparison, for the new value."""
    return k.select(k.cmp("uno", v, v), v, greater(k, v, held))


def sums_of_rows(k: Kernel, rows: Sequence[Value]) -> Value:
    """The sum of each of as many vectors as a vector has lanes, row i's in lane i: pairs are added in a fixed order."""
    made, lanes = list(rows), len(rows)
    step = 1
    while step < lanes:
        low = [i if not i & step else lanes + i - step for i in range(lanes)]
        high = [i + step if not i & step else lanes + i for i in range(lanes)]
        made = [k.shuffle(a, b, low) + k.shuffle(a, b, high) for a, b in zip(made[::2], made[1::2], strict=True)]
        step *= 2
    return made[0]
