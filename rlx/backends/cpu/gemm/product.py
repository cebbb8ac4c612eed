"""Steps of a product: the tile, the table of a's rows, the panels of b."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.backends.cpu.context import Array
from rlx.backends.cpu.elementwise import tree_step
from rlx.backends.cpu.gemm.kernel import GemmKernel, Operand, element_of, operand_names
from rlx.backends.cpu.gemm.pack import PackKernel
from rlx.backends.cpu.gemm.transpose import panels_step
from rlx.backends.cpu.machine import Machine
from rlx.backends.cpu.step import Declined, EngineContext, EngineStep, Epilogue, address
from rlx.backends.cpu.trees import printable
from rlx.driver.device import Bytes
from rlx.dtypes import DType, as_dtype, f32
from rlx.ir import Expr
from rlx.ir import expr as ex
from rlx.ir.expr import linearize, substitute
from rlx.records import Record, field, replace

Addresses = npt.NDArray[np.int64]

_MAX_TERMS = 4608  # terms that one f32 accumulator adds up; NMSE grows with their number, and is 2e-12 there
_CACHED_BYTES = 1 << 20  # panels of this size stay in the second-level cache beside everything else
_FIRST_LEVEL_BYTES = 24_576  # a panel of this size stays in the first-level cache
_CYCLES_PER_NS = 2.5
_CACHE_LINE_BYTES = 64
_SMALL_PANELS_BYTES = 1 << 18  # panels of this size stay in a cache from one run to the next
_AHEAD_BYTES = 4096  # how far ahead panels are prefetched
_FAR_AHEAD_BYTES = 4 * _AHEAD_BYTES  # the distance where they come from memory
_SKIPPED = 0.1  # a smaller share of all tiles' taps in the padding is not worth a branch
_ROWS_AHEAD = 8  # how many rows ahead b is prefetched where it is read in place


def narrow_float(dtype: np.dtype[Any]) -> bool:
    """Whether it is a float of at most 32 bits."""
    return dtype.name in ("float32", "float16", "bfloat16")


class Tile(Record):
    """Rows and vectors of a tile, and about how many cycles a product takes with it for each term."""

    rows: int
    vectors: int
    cycles: float


def choose_tile(machine: Machine, m: int, n: int, nbytes: int = 0, bits: int = 32) -> Tile:
    """The tile with the least time for m rows and n columns of elements of so many bits: in tiles at the edges only
    what is stored counts. With a weight of `nbytes`, which each run reads from memory, a few rows are a single tile,
    which reads while it computes."""
    lanes, room = machine.lanes(bits), machine.registers
    best: Tile | None = None
    if nbytes > _SMALL_PANELS_BYTES and 8 <= m <= (24 if room == 32 else 12):
        return Tile(m, 1, -(-n // lanes) * _cycles(m, 1))
    for vectors in range(1, 9):
        # Besides the sums, registers hold a row of the panel and one element of a.
        most = (room - vectors - (2 if vectors < 4 else 1)) // vectors
        most = min(most, 24 // vectors if room == 32 else 12 // vectors)
        panels = -(-n // (vectors * lanes))
        for rows in {r for r in (1, 2, 3, 4, 5, 6, 8, 12) if r <= most} | {min(most, m)} - {0}:
            whole, tail = divmod(m, rows)
            cycles = panels * (whole * _cycles(rows, vectors) + (_cycles(tail, vectors) if tail else 0.0))
            if best is None or cycles < best.cycles:
                best = Tile(rows, vectors, cycles)
    assert best is not None
    return best


def _cycles(rows: int, vectors: int) -> float:
    """Cycles a term: a cycle has two multiply-adds (latency 4), two and a half loads, and half a vector of the panel
    from the second-level cache. Among otherwise equal tiles, those with fewer loads are faster."""
    loads = rows + vectors
    return max(rows * vectors / 2, 4.0, (loads + rows) / 2.5, 2.0 * vectors) + 0.3 + 0.03 * loads


class Panels(Record, frozen=False):
    """b as the kernel reads it."""

    at: int
    dtype: DType
    step: int  # bytes from a row to the next
    panel: int  # bytes from a panel to the next
    batch: int  # bytes from a matrix to the next
    ahead: int = _AHEAD_BYTES
    in_place: bool = False
    steps: tuple[EngineStep, ...] = ()
    prepare: Callable[[], object] | None = None
    keep: tuple[object, ...] = ()
    memory: tuple[Bytes, ...] = ()  # memory of all panels, where they are filled before the run


def pack_fixed(b: Array, width: int, ctx: EngineContext) -> Panels:
    """Weights (batch, *outer terms, inner terms, columns), any strides, packed when they change."""
    return pack_fixed_parts(b, [(b, width)], ("panels", width), ctx)[0]


def pack_fixed_parts(
    weight: Array, parts: Sequence[tuple[Array, int]], order: Hashable, ctx: EngineContext
) -> list[Panels]:
    """Packs parts of a weight, each as `pack_fixed` takes it, with the width of its panels. Together they are the whole
    weight, which they may replace in memory; `order` identifies them."""
    ends = [*accumulate(-(-_packed_bytes(b, width) // _CACHE_LINE_BYTES) * _CACHE_LINE_BYTES for b, width in parts)]
    starts = [0, *ends[:-1]]

    def steps(memory: Bytes) -> list[EngineStep]:
        packing = (_packing(b, memory[at:], width, ctx) for at, (b, width) in zip(starts, parts, strict=True))
        return [step for some in packing for step in some]

    def unpack(memory: Bytes) -> None:
        for at, (b, width) in zip(starts, parts, strict=True):
            panels = -(-b.shape[-1] // width)
            packed = memory[at : at + _packed_bytes(b, width)].view(b.dtype)
            unpacked = packed.reshape(len(b), panels, *b.shape[1:-1], width)
            for p in range(panels):
                part = b[..., p * width : (p + 1) * width]
                part[...] = unpacked[:, p, ..., : part.shape[-1]]

    memory = ctx.weights.pack(weight, order, ends[-1], steps, unpack)
    if memory is None:  # the weight is not a gapless range of memory: packed as any other operand
        return [pack_each_run(b, width, ctx) for b, width in parts]
    packed_parts = []
    for at, (b, width) in zip(starts, parts, strict=True):
        own = memory[at : at + _packed_bytes(b, width)]
        packed_parts.append(replace(_panels(b, width, own), memory=(own,)))
    return packed_parts


def pack_each_run(b: Array, width: int, ctx: EngineContext) -> Panels:
    """b (batch, *outer terms, inner terms, columns) of any strides, packed in each run."""
    memory = ctx.borrow(_packed_bytes(b, width))
    return replace(_panels(b, width, memory), steps=tuple(_packing(b, memory, width, ctx)))


def _packed_bytes(b: Array, width: int) -> int:
    *others, columns = b.shape
    nbytes: int = math.prod(others) * -(-columns // width) * width * b.itemsize
    return nbytes


def _panels(b: Array, width: int, memory: Bytes) -> Panels:
    step, terms, panels = width * b.itemsize, math.prod(b.shape[1:-1]), -(-b.shape[-1] // width)
    return Panels(address(memory), as_dtype(b.dtype), step, terms * step, panels * terms * step, keep=(memory,))


def _packing(b: Array, memory: Bytes, width: int, ctx: EngineContext) -> list[EngineStep]:
    """The steps that write the panels."""
    batch, *first, outer, inner, columns = b.shape
    panels, lanes, size = -(-columns // width), ctx.machine.lanes(max(32, 8 * b.itemsize)), b.itemsize
    panel = math.prod(b.shape[1:-1]) * width * size
    if math.prod(first) * outer == 1 and (b.strides[-2] == size or inner == 1):
        each = b.reshape(batch, inner, columns).swapaxes(1, 2)
        return [panels_step(each[i], memory, i * panels * panel, panel, width, ctx) for i in range(batch)]
    kernel, cost = PackKernel(lanes, width // lanes, size), outer * inner * width * 0.5
    steps = []
    for i, place in enumerate(np.ndindex(*first)):
        part = b[(slice(None), *place)]
        args = kernel.args(
            x=part, out=address(memory) + i * outer * inner * width * size, columns=columns, column=part.strides[3],
            outer=outer, outer_step=part.strides[1], inner=inner, inner_step=part.strides[2],
            batch_step=part.strides[0], panels=panels, out_step=panel,
        )  # fmt: skip
        steps.append(EngineStep(kernel, args, batch * panels, 1, (memory, b), name="pack", cost_ns=cost))
    return steps


def in_place(b: Array, width: int) -> Panels:
    """b (batch, terms, columns) with contiguous columns, read in place."""
    step = b.strides[1]
    return Panels(
        address(b),
        as_dtype(b.dtype),
        step,
        width * b.itemsize,
        b.strides[0],
        _ROWS_AHEAD * step,
        True,
        keep=(b,),
    )


class Product(Record):
    """A product except for b: out[m] = epilogue(sum over taps t of a[m, t] · b[t])."""

    rows: Addresses  # (m, taps): the address of each tap's terms for each row of a
    terms: int
    step_a: int
    out: Array  # (batch, m, n), the last axis contiguous
    batch_a: int
    epilogue: Expr | None = None
    # The epilogue's arguments from the second on: (array, bytes from a row to the next, from a batch to the next).
    operands: Sequence[tuple[Array, int, int]] = ()
    keep: tuple[object, ...] = ()
    how: str = "fma"  # as GemmKernel's; for integers of 8 bits a term is a 32-bit word
    # What the addresses in `rows` are counted from: with a's own, the table is the same wherever a lies.
    base: int = field(default=0, kw_only=True)
    # The address of the zeros that taps in an image's padding read; 0 where there are none.
    outside: int = field(default=0, kw_only=True)


def product_steps(p: Product, b: Panels, tile: Tile, ctx: EngineContext, name: str) -> list[EngineStep]:
    machine = ctx.machine
    batch, m, n = p.out.shape
    size = element_of(p.how).size
    taps, lanes = p.rows.shape[1], machine.lanes(8 * size)
    width = tile.vectors * lanes
    tiles, panels = -(-m // tile.rows), -(-n // width)
    length = taps * p.terms
    flush = -(-p.terms // -(-p.terms // _MAX_TERMS))
    panel_bytes = length * width * size
    panels_first = taps > 1 or (panel_bytes > _FIRST_LEVEL_BYTES and panel_bytes * panels > _CACHED_BYTES)
    # Groups of a convolution are side by side: threads that took a group each would write to the same cache lines.
    side_by_side = batch > 1 and 0 < p.out.strides[0] < p.out.strides[1]
    inside = side_by_side and panel_bytes * panels * batch <= _CACHED_BYTES
    table = row_table(p.rows, tile.rows)
    skipped = _outside(table, p, b)
    spec = GemmKernel(
        lanes, tile.rows, tile.vectors, m % tile.rows, n % width != 0, b.in_place and n % width != 0,
        b.dtype, p.step_a != size, element_of(p.how).is_float and length > _MAX_TERMS, panels_first and not inside,
        inside, m >= 64,
        tuple(Operand(as_dtype(a.dtype), row != 0) for a, row, _ in p.operands), p.epilogue,
        as_dtype(p.out.dtype), p.how, (n - (panels - 1) * width) // lanes if n % width else 0, skipped is not None,
    )  # fmt: skip
    ahead = _FAR_AHEAD_BYTES if tiles == 1 and not b.in_place else b.ahead
    operands: dict[str, Any] = {}
    for i, operand in enumerate(p.operands):
        operands.update(zip(operand_names(i), operand, strict=True))
    args = spec.args(
        table=table, b=b.at, out=p.out, base=p.base, rows=m, columns=n, tiles=tiles, panels=panels, taps=taps,
        terms=p.terms, step_a=p.step_a, step_b=b.step, panel_b=b.panel, row_out=p.out.strides[1], batch_a=p.batch_a,
        batch_b=b.batch, batch_out=p.out.strides[0], flush=flush, ahead=ahead, batches=batch, **operands,
    )  # fmt: skip
    keep = (table, p.out, *p.keep, *b.keep, *(a for a, _, _ in p.operands))
    cost = _cycles(tile.rows, tile.vectors) * length / _CYCLES_PER_NS
    prepare = b.prepare
    if skipped is not None:
        cost *= 1 - float(skipped.mean())
        prepare = partial(_skip_outside, table, skipped, p.outside, b)
    step = EngineStep(spec, args, batch * tiles * panels, 1, keep, prepare, name, cost)
    return [*b.steps, step]


def _outside(table: Addresses, p: Product, b: Panels) -> npt.NDArray[np.bool_] | None:
    """The taps of each tile that lie in the padding for all rows, (tiles + 1, taps); None if there are too few to be
    worth a branch. Only b's panels that are filled before the run can be known to be finite, so that zeros times b add
    nothing."""
    if not p.outside or b.prepare is not None or b.steps or b.in_place:
        return None
    outside: npt.NDArray[np.bool_] = (table == p.outside).all(axis=2)
    return outside if outside.mean() > _SKIPPED else None


def _skip_outside(table: Addresses, skipped: npt.NDArray[np.bool_], outside: int, b: Panels) -> None:
    """Marks these taps as skipped, unless b has an infinity or NaN, which times the padding's zeros give NaN."""
    finite = all(np.isfinite(memory.view(b.dtype.np)).all() for memory in b.memory)
    table[:, :, 0][skipped] = 0 if finite else outside


def row_table(rows: Addresses, height: int) -> Addresses:
    """The addresses by tile, tap and row of the tile. Rows past the last repeat it, and so does a tile past the last,
    whose rows the kernel only prefetches."""
    m, taps = rows.shape
    tiles = -(-m // height)
    every = np.minimum(np.arange((tiles + 1) * height), m - 1)
    return np.ascontiguousarray(rows[every].reshape(tiles + 1, height, taps).transpose(0, 2, 1))


def widened(a: Array, ctx: EngineContext, steps: list[EngineStep], to: DType = f32) -> Array:
    """An operand of narrower elements converted to f32, or to another dtype, in new memory."""
    wide = ctx.borrow(a.size * to.itemsize).view(to.np).reshape(a.shape)
    step = tree_step([ex.cast(ex.arg(0, as_dtype(a.dtype)), to)], [a], [wide], ctx)
    assert step is not None
    steps.append(step)
    return wide


def with_epilogue(
    tree: Expr | None, count: int, following: Epilogue | None, sums: DType = f32
) -> Expr | None:
    """An epilogue with `count` operands and the elementwise node that follows it as one tree; the node's operands come
    after the others.
    Raises: Declined for what an epilogue cannot compute."""
    if following is not None:
        if any(x.itemsize > max(4, sums.itemsize) for x in (*following.operands, following.out)):
            raise Declined("operands of 64 bits of the following node")
        own = ex.arg(0, sums) if tree is None else tree
        beside = [ex.arg(1 + count + i, as_dtype(x.dtype)) for i, x in enumerate(following.operands)]
        tree = substitute(following.tree, [own, *beside])
    if tree is not None and (not printable([tree]) or any(e.prim == "index" for e in linearize([tree]))):
        raise Declined("its epilogue")
    return tree
