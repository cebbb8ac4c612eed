"""Look-ups in tables of 16 floats that are held in registers: each lane of a vector has its own index."""

from __future__ import annotations

from rlx.backends.cpu.ir import F32, F64, I8, I64, Kernel, Value


def looked_up(k: Kernel, table: Value, index: Value) -> Value:
    """For each lane, entry `index` of a constant vector of 16 floats; only the low four bits of the index (i32) count.
    Where there is no such instruction, entries are selected bit by bit."""
    kind, lanes = table.type.of(1), index.type.lanes
    per = {"avx2": 8, "neon": 4}.get(k.lookup or "", 0)
    if per and kind == F32 and lanes % per == 0:
        return _in_parts(k, table, index, per)
    per = 512 // kind.bits
    if k.lookup == "avx512" and lanes % per == 0:
        places = index if kind == F32 else k.cast("zext", index, I64)
        vectors = []
        for first in range(0, lanes, per):
            at = k.shuffle(places, None, range(first, first + per)) if lanes > per else places
            if kind == F32:
                vectors.append(k.call("llvm.x86.avx512.permvar.sf.512", F32.of(16), table, at))
            else:
                low, high = k.halves(table)
                vectors.append(k.call("llvm.x86.avx512.vpermi2var.pd.512", F64.of(8), low, at, high))
        return k.joined(vectors)
    entries = [k.splat(k.extract(table, i), lanes) for i in range(16)]
    for bit in (1, 2, 4, 8):
        odd = k.cmp("ne", index & bit, 0)
        entries = [k.select(odd, b, a) for a, b in zip(entries[::2], entries[1::2], strict=True)]
    return entries[0]


def _in_parts(k: Kernel, table: Value, index: Value, per: int) -> Value:
    """`looked_up` for narrower registers: AVX2 permutes 8 floats, NEON looks up among 64 bytes."""
    lanes, vectors = index.type.lanes, []
    for first in range(0, lanes, per):
        at = k.shuffle(index, None, range(first, first + per)) if lanes > per else index
        if k.lookup == "avx2":
            low, high = (k.call("llvm.x86.avx2.permps", F32.of(8), t, at) for t in k.halves(table))
            vectors.append(k.select(k.cmp("ne", at & 8, 0), high, low))
        else:
            kind = I8.of(16)
            quarters = (k.shuffle(table, None, range(n, n + 4)) for n in range(0, 16, 4))
            parts = [k.op(kind, f"bitcast {v} to {kind}") for v in quarters]
            places = (at & 15) * 0x04040404 + 0x03020100
            chosen = k.op(kind, f"bitcast {places} to {kind}")
            chosen = k.call("llvm.aarch64.neon.tbl4.v16i8", kind, *parts, chosen)
            vectors.append(k.op(F32.of(4), f"bitcast {chosen} to {F32.of(4)}"))
    return k.joined(vectors)
