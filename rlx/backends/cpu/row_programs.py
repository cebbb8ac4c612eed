"""Row programs (`rlx.ir.rows`) printed as kernels: for contiguous rows, or for blocks of columns.

A kernel goes over a row in sweeps, which may use what earlier sweeps reduced: softmax has one for the maximum, one for
the sum and one that writes. The printer first rewrites a program as the engine computes it (`lowered`): a mean that is
subtracted becomes a sum of two numbers, a division by a value of the row a product with its reciprocal.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from operator import mul

import numpy as np

from rlx.backends.cpu import trees as tr
from rlx.backends.cpu.context import Array
from rlx.backends.cpu.ir import (
    F32,
    F64,
    I32,
    I64,
    Arguments,
    Kernel,
    Type,
    Value,
    Variable,
    pointers,
    sizes,
)
from rlx.backends.cpu.machine import Lookup
from rlx.backends.cpu.rowwise import (
    LOADED,
    RUN,
    accumulators,
    alike,
    all_added,
    blocks,
    contiguous,
    exp_of_difference,
    folded,
    grain_of,
    greater,
    larger,
    load_wide,
    name_of,
    room,
    store_wide,
    total,
)
from rlx.backends.cpu.step import EngineContext, EngineStep, engine
from rlx.dtypes import as_dtype, f32, f64
from rlx.ir import Expr, Node
from rlx.ir.expr import linearize
from rlx.ir.rows import REDUCTIONS, ROW_PRIMS, Layout, Place, elements_of, nan_is_summed, program_of
from rlx.records import Record, field

_NS_PER_ELEMENT = 0.7
COLUMNS = 16  # vectors in a block of columns
# A block is one vector, with its values in registers, where a program has more sweeps than this, or computes little on
# halves.
_FEW_SWEEPS = 2
_ROWS = 1 << 9  # terms of a column that one accumulator adds up
_SIXTEENTH = 16  # the fraction of a row whose mean is close to that of the whole row
# Primitives of the engine alone: the first element, and the mean of a row's first sixteenth.
_FIRST, _NEAR = "row_first", "row_near"
_POINTS = frozenset({_FIRST, "row_pick"})  # these read one element, without a sweep
_SWEPT = (REDUCTIONS | {_NEAR}) - _POINTS
_SUMS = frozenset({"row_sum", "row_mean", _NEAR})
_NEEDS_FUNCTION = frozenset("exp log".split())  # primitives that take longer to compute than to load


def lowered(trees: Sequence[Expr], places: Sequence[Place]) -> tuple[Expr, ...]:
    """The trees as the engine computes them."""
    varying = elements_of(trees, places)
    done: dict[Expr, Expr] = {}
    for e in linearize(trees):
        args = tuple(done[a] for a in e.args)
        if e.prim == "less_mean":
            x = args[0]
            first = Expr(_FIRST, (x,), x.dtype)
            near = x - (first + Expr(_NEAR, (x - first,), x.dtype))
            done[e] = near - Expr("row_mean", (near,), x.dtype)
        elif e.prim == "div" and e in varying and e.args[1] not in varying:
            done[e] = args[0] * (1.0 / args[1])
        elif e.prim in ("row_sum", "row_mean"):
            # A factor that is constant along the row multiplies the sum instead, which may then be computed in an
            # earlier sweep.
            inside, outside = _factors(args[0], elements_of(args, places))
            if inside and outside:
                done[e] = reduce(mul, [Expr(e.prim, (reduce(mul, inside),), e.dtype), *outside])
            else:
                done[e] = Expr(e.prim, args, e.dtype)
        else:
            done[e] = Expr(e.prim, args, e.dtype, e.value)
    return tuple(done[t] for t in trees)


def _factors(x: Expr, varying: frozenset[Expr]) -> tuple[list[Expr], list[Expr]]:
    """The factors of a product that vary along a row, and those that do not."""
    if x.prim == "mul":
        (a, b), (c, d) = (_factors(factor, varying) for factor in x.args)
        return a + c, b + d
    return ([x], []) if x in varying else ([], [x])


def operand_names(count: int) -> tuple[str, ...]:
    """The names of the arguments for inputs and outputs."""
    return tuple(f"operand{i}" for i in range(count))


class RowProgram(Record):
    """`trees` are lowered and computed in the dtype `work`. `dtypes`: of the inputs, then the outputs. `channels`: a
    row is a group of channels, for each of which weights have one number. `columns`: 0 where rows are contiguous; else
    the number of vectors of neighbouring columns in an item. `long`: rows are longer than one set of sums adds up. Rows
    have n elements, `after` columns are side by side; with `channels` there are `groups` of `per` channels of `inner`
    elements."""

    trees: tuple[Expr, ...]
    places: tuple[Place, ...]
    dtypes: tuple[str, ...]
    channels: bool
    columns: int
    long: bool
    lanes: int
    lookup: Lookup

    @property
    def args(self) -> Arguments:
        more = sizes("after") if self.columns else sizes("groups", "per", "inner") if self.channels else sizes()
        return pointers(*operand_names(len(self.dtypes))) + sizes("n") + more

    def ir(self) -> str:
        k = Kernel("kernel", self.args, self.lookup)
        (_Columns if self.columns else _AlongMemory)(self, k).write()
        return k.text()


class _At(Record, frozen=False):
    """A vector of elements: the index of its first element in the row, its mask, the values computed for it so far, its
    channel, and for columns the index of its first column in the block."""

    i: Value | int
    mask: Value | None
    known: dict[Expr, Value] = field(default_factory=dict)
    channel: Value | None = None
    column: Value | None = None

    @property
    def first(self) -> Value:
        assert self.column is not None
        return self.column

    def at(self, k: Kernel) -> Value:
        return self.i if isinstance(self.i, Value) else k.const(I64, self.i)


class _Program(ABC):
    """What the kernels for contiguous rows and for columns share: which sweep computes what, and the arithmetic of a
    vector."""

    def __init__(self, spec: RowProgram, k: Kernel) -> None:
        self.spec, self.k, self.lanes = spec, k, spec.lanes
        self.trees = spec.trees
        self.varying = elements_of(spec.trees, spec.places)
        self.nodes = linearize(spec.trees)
        self.number = F64 if any(e.dtype == f64 for e in self.nodes) else F32
        self.depth: dict[Expr, int] = {}
        for e in self.nodes:
            self.depth[e] = max((self.depth[a] for a in e.args), default=0) + (e.prim in _SWEPT)
        self.last = max(self.depth.values())
        users = [(e, a) for e in self.nodes for a in e.args]
        # Values of a row that a sweep reads or that are outputs.
        self.held = {a for e, a in users if a not in self.varying and (e in self.varying or e.prim in _SWEPT)}
        self.held |= {t for t in spec.trees if t not in self.varying}
        self.pointers = k.args(*operand_names(len(spec.dtypes)))
        self.n = k.arg("n")
        self.by: dict[str, Value] = {}
        if any(e.prim in ("row_mean", _NEAR) for e in self.nodes):
            self.few = k.binary("udiv", self.n + (_SIXTEENTH - 1), k.const(I64, _SIXTEENTH))
            self.by = {"row_mean": self.reciprocal(self.n), _NEAR: self.reciprocal(self.few)}
        self.keeps_nan = not nan_is_summed(spec.trees)
        self.stored = self._stored()

    def _stored(self) -> Expr | None:
        """An expression that takes long to compute and is kept in the output between two sweeps: only where the output
        has its dtype, and no later sweep reads an input, which the output may overwrite."""
        outs = [t for t in self.trees if t in self.varying]
        if len(outs) != 1 or len(self.trees) != 1 or self.spec.dtypes[-1] != ("f64" if self.number == F64 else "f32"):
            return None
        for e in self.nodes:
            if e.prim not in _NEEDS_FUNCTION or e not in self.varying or e == outs[0] or self.depth[e] == self.last:
                continue
            later = [r.args[0] for r in self.nodes if r.prim in _SWEPT and self.depth[r] > self.depth[e] + 1]
            later += [r for r in self.nodes if r.prim in _POINTS and self.depth[r] > self.depth[e]]
            used = any(r.prim in _SWEPT and e in linearize([r.args[0]]) for r in self.nodes)
            if used and not any(self._reads(t, e) for t in (*outs, *later)):
                return e
        return None

    def _reads(self, tree: Expr, but: Expr) -> bool:
        """Whether a tree reads elements of an input other than through the node `but`."""
        reads: dict[Expr, bool] = {}
        for e in linearize([tree]):
            reads[e] = e != but and e in self.varying and (e.prim == "arg" or any(reads[a] for a in e.args))
        return reads[tree]

    def swept(self, depth: int) -> list[tuple[bool, list[Expr]]]:
        """The reductions of a sweep: those over the first sixteenth of the row, then those over all of it."""
        own = [e for e in self.nodes if e.prim in _SWEPT and self.depth[e] == depth + 1]
        near, whole = [e for e in own if e.prim == _NEAR], [e for e in own if e.prim != _NEAR]
        return [(short, group) for short, group in ((True, near), (False, whole)) if group]

    def neutral(self, e: Expr) -> float:
        return {"row_max": -math.inf, "row_min": math.inf}.get(e.prim, 0.0)

    def joined(self, e: Expr, a: Value, v: Value) -> Value:
        """The running value `a` of a reduction combined with `v`."""
        k = self.k
        if e.prim == "row_max":
            return larger(k, a, v) if self.keeps_nan else greater(k, v, a)
        if e.prim == "row_min":
            less = k.select(k.cmp("olt", v, a), v, a)
            return k.select(k.cmp("uno", v, v), v, less) if self.keeps_nan else less
        return a + v

    def step(self, e: Expr, held: Value, at: _At) -> Value:
        """A reduction after one more vector; products are added with a single rounding."""
        x = e.args[0]
        if e.prim in _SUMS and x.prim == "mul":
            a, b = (self.value(factor, at) for factor in x.args)
            return self.k.fma(a, b, held)
        return self.joined(e, held, self.value(x, at))

    def adds_zero(self, e: Expr) -> bool:
        """Whether masked lanes, where inputs are 0, add 0 to a sum."""
        return e.prim in _SUMS and e.args[0].prim == "mul" and all(a.prim == "arg" for a in e.args[0].args)

    def finished(self, e: Expr, total: Value) -> Value:
        """The final value of a reduction: for a mean, the sum times the reciprocal of the count."""
        if e.prim not in ("row_mean", _NEAR):
            return total
        return total * self.k.like(total, self.by[e.prim])

    def reciprocal(self, count: Value) -> Value:
        one = 1.0 / self.k.cast("uitofp", count, F64)
        return one if self.number == F64 else self.k.cast("fptrunc", one, F32)

    def value(self, e: Expr, at: _At) -> Value:
        """The vector of a node's values."""
        if e not in at.known:
            at.known[e] = self._value(e, at)
        return at.known[e]

    def _value(self, e: Expr, at: _At) -> Value:
        k = self.k
        if e not in self.varying and self.is_known(e):
            return self.of_row(e, at)
        if e.prim == "arg":
            return self.input(e, at)
        if e.prim == "row_at":
            index = self.clamped(self.value(e.args[0], at))
            return k.cmp("eq", self.numbers(at), index)
        if e.prim == "exp" and self._below(e.args[0]):
            x = e.args[0]
            if x.prim == "min":
                away = self.value(x.args[0], at)
                return exp_of_difference(k, k.select(k.cmp("ogt", away, 0.0), k.const(away.type, 0.0), away))
            return exp_of_difference(k, self.value(x, at))
        return tr.node_value(k, e, [self.value(a, at) for a in e.args], self.lanes)

    def _below(self, x: Expr) -> bool:
        """Whether a node is known to be at most 0, or NaN."""
        if x.prim == "min" and x.args[1].prim == "lit":
            return x.args[1].value == 0
        return x.prim == "sub" and x.args[1].prim == "row_max" and x.args[1].args[0] == x.args[0]

    def clamped(self, index: Value) -> Value:
        top = self.k.cast("trunc", self.n - 1, I32)
        return self.k.max(self.k.min(index, self.k.like(index, top)), 0)

    # -- what the two kernels differ in

    @abstractmethod
    def is_known(self, e: Expr) -> bool:
        """Whether a value of a row has been computed before."""

    @abstractmethod
    def of_row(self, e: Expr, at: _At) -> Value: ...

    @abstractmethod
    def numbers(self, at: _At) -> Value:
        """The indices (i32) of the elements in their rows."""

    @abstractmethod
    def input(self, e: Expr, at: _At) -> Value: ...

    @abstractmethod
    def write(self) -> None: ...

    def loaded(self, which: int, at: Value | int, mask: Value | None, lanes: int | None = None) -> Value:
        dtype, lanes = self.spec.dtypes[which], lanes or self.lanes
        if dtype in LOADED:
            return load_wide(self.k, self.pointers[which], dtype, at, lanes, mask)
        return self.k.load(I32.of(lanes), self.k.at(self.pointers[which], at, I32), mask)

    def spread(self, which: int, at: Value) -> Value:
        """One element, broadcast to all lanes."""
        return self.k.splat(self.loaded(which, at, None, 1), self.lanes)


class _AlongMemory(_Program):
    """An item is a contiguous row; values of the row are held in registers."""

    def write(self) -> None:
        k = self.k
        with k.loop(k.first, k.last) as row:
            self.row, self.base, self.own = row, row * self.n, dict[Expr, Value]()
            for depth in range(self.last + 1):
                self._values(depth)
                for short, reductions in self.swept(depth):
                    self._sweep(short, reductions)
            self._outputs()

    def is_known(self, e: Expr) -> bool:
        return e in self.own

    def of_row(self, e: Expr, at: _At) -> Value:
        return self.own[e]

    def numbers(self, at: _At) -> Value:
        k = self.k
        return k.splat(k.cast("trunc", at.at(k), I32), self.lanes) + k.lanes(I32, range(self.lanes))

    def input(self, e: Expr, at: _At) -> Value:
        which = e.value
        assert isinstance(which, int)
        place = self.spec.places[which]
        if place == "row":
            return self.spread(which, self.row)
        if place == "element":
            return self.loaded(which, self.base + at.i, at.mask)
        if self.spec.channels:
            assert at.channel is not None
            return self.spread(which, at.channel)
        return self.loaded(which, at.i, at.mask)

    def _values(self, depth: int) -> None:
        """Computes the values of the row that need no further sweep."""
        k = self.k
        for e in self.nodes:
            if self.depth[e] != depth or e in self.own:
                continue
            if e.prim in _POINTS:
                one = k.tail(1, self.lanes)
                place: Value | int = 0
                if e.prim == "row_pick":
                    index = self.clamped(self.value(e.args[1], _At(0, one)))
                    place = k.cast("sext", k.extract(index, 0), I64)
                self.own[e] = k.splat(k.extract(self.value(e.args[0], _At(place, one)), 0), self.lanes)
            elif e not in self.varying and e in self.held:
                self.own[e] = self.value(e, _At(0, None))

    def _sweep(self, short: bool, reductions: list[Expr]) -> None:
        k, count = self.k, self.few if short else self.n
        parts = [accumulators(k, self.lanes, self.neutral(e), self.number) for e in reductions]

        def body(i: Value, u: int, mask: Value | None) -> None:
            at = _At(i, mask)
            for e, sums in zip(reductions, parts, strict=True):
                held = sums[u].value
                more = self.step(e, held, at)
                sums[u].value = more if mask is None or self.adds_zero(e) else k.select(mask, more, held)
            if self.stored in at.known:
                store_wide(k, at.known[self.stored], self.pointers[-1], self.spec.dtypes[-1], self.base + i, mask)

        added = [p for e, p in zip(reductions, parts, strict=True) if e.prim in _SUMS]
        if self.spec.long:
            totals = iter(all_added(k, count, self.lanes, added, body))
        else:
            blocks(k, count, self.lanes, body)
            totals = iter([total(k, sums) for sums in added])
        for e, sums in zip(reductions, parts, strict=True):
            whole = next(totals) if e.prim in _SUMS else folded(k, sums, partial(self.joined, e))
            self.own[e] = k.splat(self.finished(e, whole), self.lanes)

    def _outputs(self) -> None:
        k, spec = self.k, self.spec
        outs = list(zip(self.trees, spec.dtypes[len(spec.places) :], self.pointers[len(spec.places) :], strict=True))
        for tree, dtype, place in outs:
            if tree not in self.varying:
                store_wide(k, self.own[tree], place, dtype, self.row, k.tail(1, self.lanes))
        elements = [o for o in outs if o[0] in self.varying]
        if not elements:
            return

        def write(at: _At) -> None:
            if self.stored is not None:
                at.known[self.stored] = load_wide(
                    k, self.pointers[-1], spec.dtypes[-1], self.base + at.i, self.lanes, at.mask
                )
            made = [self.value(tree, at) for tree, _, _ in elements]
            for v, (_, dtype, place) in zip(made, elements, strict=True):
                store_wide(k, v, place, dtype, self.base + at.i, at.mask)

        unroll = 2 if len(self.spec.dtypes) > 3 else 4
        if not spec.channels:
            blocks(k, self.n, self.lanes, lambda i, u, mask: write(_At(i, mask)), unroll)
            return
        groups, per, inner = k.args("groups", "per", "inner")
        first = (self.row - k.binary("udiv", self.row, groups) * groups) * per
        weights = [e for e in self.nodes if e.prim == "arg" and spec.places[int(e.value or 0)] == "weight"]
        with k.loop(0, per) as c:
            known = {e: self.input(e, _At(0, None, channel=first + c)) for e in weights}
            blocks(k, inner, self.lanes, lambda i, u, mask: write(_At(c * inner + i, mask, dict(known))), 2)


class _Slot:
    """One number for each column of a block: in a register where the block is one vector, else on the stack."""

    def __init__(self, k: Kernel, type: Type, lanes: int, vectors: int) -> None:
        self.k, self.type = k, type.of(lanes)
        self.place: Variable | Value
        if vectors == 1:
            self.place = k.variable(k.const(self.type, 0))
        else:
            self.place = room(k, type.size * lanes * vectors)

    def get(self, c: Value) -> Value:
        if isinstance(self.place, Variable):
            return self.place.value
        return self.k.load(self.type, self.k.at(self.place, c, self.type))

    def set(self, c: Value, v: Value) -> None:
        if isinstance(self.place, Variable):
            self.place.value = v
        else:
            self.k.store(v, self.k.at(self.place, c, self.type))


class _Columns(_Program):
    """(before, n, after) elements, where rows run along n: an item is a block of neighbouring columns, read in the
    order of n, with the values of each column's row in slots."""

    def write(self) -> None:
        k, spec = self.k, self.spec
        self.after = k.arg("after")
        width = spec.columns * self.lanes
        count = k.binary("udiv", self.after + (width - 1), k.const(I64, width))
        self.slots: dict[Expr, _Slot] = {}
        self.ready: set[Expr] = set()
        with k.loop(k.first, k.last) as item:
            self.outer = k.binary("udiv", item, count)
            self.first = (item - self.outer * count) * width
            self.size = k.min(self.after - self.first, width)
            self.base = self.outer * self.n * self.after + self.first
            self.mask = k.tail(self.size, self.lanes) if spec.columns == 1 else None
            for depth in range(self.last + 1):
                self._values(depth)
                for short, reductions in self.swept(depth):
                    self._sweep(short, reductions)
            self._outputs()

    def slot(self, e: Expr) -> _Slot:
        if e not in self.slots:
            self.slots[e] = _Slot(self.k, self.number, self.lanes, self.spec.columns)
        return self.slots[e]

    def is_known(self, e: Expr) -> bool:
        return e in self.ready

    def of_row(self, e: Expr, at: _At) -> Value:
        return self.slot(e).get(at.first)

    def numbers(self, at: _At) -> Value:
        return self.k.splat(self.k.cast("trunc", at.at(self.k), I32), self.lanes)

    def input(self, e: Expr, at: _At) -> Value:
        which = e.value
        assert isinstance(which, int)
        place = self.spec.places[which]
        if place == "weight":
            return self.spread(which, at.at(self.k))
        if place == "row":
            return self.loaded(which, self.of_column(at), at.mask)
        return self.loaded(which, self.place(at), at.mask)

    def of_column(self, at: _At) -> Value:
        """The number of a vector's first row."""
        return self.outer * self.after + self.first + at.first

    def place(self, at: _At) -> Value:
        start = self.base if isinstance(at.i, int) else self.base + at.i * self.after
        return start + at.first

    @contextmanager
    def vectors(self, i: Value | int, known: dict[Expr, Value] | None = None) -> Iterator[_At]:
        """Runs the body for each vector of columns at index i of the rows."""
        k = self.k
        if self.spec.columns == 1:
            yield _At(i, self.mask, dict(known or {}), column=k.const(I64, 0))
            return
        with k.loop(0, self.size, self.lanes) as c:
            yield _At(i, k.tail(k.min(self.size - c, self.lanes), self.lanes), dict(known or {}), column=c)

    def _values(self, depth: int) -> None:
        own = [e for e in self.nodes if self.depth[e] == depth and e not in self.ready and e not in self.varying]
        own = [e for e in own if e.prim in _POINTS or (e in self.held and e.prim != "arg")]
        if not own:
            return
        with self.vectors(0) as at:
            for e in own:
                v = self.value(e.args[0] if e.prim == _FIRST else e, at)
                self.slot(e).set(at.first, v)
                at.known[e] = v
        self.ready.update(own)

    def _sweep(self, short: bool, reductions: list[Expr]) -> None:
        k, count = self.k, self.few if short else self.n
        parts = {e: _Slot(k, self.number, self.lanes, self.spec.columns) for e in reductions if e.prim in _SUMS}
        zero = k.const(self.number.of(self.lanes), 0.0)
        with self.vectors(0) as at:
            for e in reductions:
                self.slot(e).set(at.first, k.const(zero.type, self.neutral(e)))
        with k.loop(0, count, _ROWS if parts else count) as start:
            if parts:
                with self.vectors(0) as at:
                    for part in parts.values():
                        part.set(at.first, zero)
            with k.loop(start, k.min(start + _ROWS, count) if parts else count) as i, self.vectors(i) as at:
                for e in reductions:
                    slot = parts.get(e) or self.slot(e)
                    slot.set(at.first, self.step(e, slot.get(at.first), at))  # columns past the last are not stored
                if self.stored in at.known:
                    store_wide(
                        k, at.known[self.stored], self.pointers[-1], self.spec.dtypes[-1], self.place(at), at.mask
                    )
            if parts:
                with self.vectors(0) as at:
                    for e, part in parts.items():
                        self.slot(e).set(at.first, self.slot(e).get(at.first) + part.get(at.first))
        with self.vectors(0) as at:
            for e in reductions:
                if e.prim in ("row_mean", _NEAR):
                    self.slot(e).set(at.first, self.finished(e, self.slot(e).get(at.first)))
        self.ready.update(reductions)

    def _outputs(self) -> None:
        k, spec = self.k, self.spec
        outs = list(zip(self.trees, spec.dtypes[len(spec.places) :], self.pointers[len(spec.places) :], strict=True))
        for tree, dtype, place in outs:
            if tree not in self.varying:
                with self.vectors(0) as at:
                    store_wide(k, self.value(tree, at), place, dtype, self.of_column(at), at.mask)
        elements = [o for o in outs if o[0] in self.varying]
        if not elements:
            return
        with k.loop(0, self.n) as i:
            weights = [e for e in self.nodes if e.prim == "arg" and spec.places[int(e.value or 0)] == "weight"]
            known = {e: self.spread(int(e.value or 0), i) for e in weights}
            with self.vectors(i, known) as at:
                if self.stored is not None:
                    at.known[self.stored] = load_wide(
                        k, self.pointers[-1], spec.dtypes[-1], self.place(at), self.lanes, at.mask
                    )
                made = [self.value(tree, at) for tree, _, _ in elements]
                for v, (_, dtype, place) in zip(made, elements, strict=True):
                    store_wide(k, v, place, dtype, self.place(at), at.mask)


@engine("rows")
def bind_rows(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    """Any op with a row program, on contiguous rows or along an axis that is not the last."""
    rows = node.op.rows
    assert rows is not None
    places = rows.places[: len(ins)]
    floats = [name_of(a) for a in (*ins, *outs) if as_dtype(a.dtype).is_float]
    others = [a for a in ins if not as_dtype(a.dtype).is_float]
    known = alike(floats) and all(a.dtype == np.int32 for a in others)
    elements = [a for a, place in zip(ins, places, strict=True) if place == "element"]
    if not known or elements[0].size == 0:
        return None
    layout = rows.layout(elements[0].shape, node.attrs)
    work = f64 if "f64" in floats else f32
    trees = lowered(program_of(rows, [as_dtype(a.dtype) for a in ins], work, node.attrs), places)[: len(outs)]
    if not tr.printable(trees, ROW_PRIMS | {_FIRST, _NEAR}):
        return None
    if any(rows.summed):
        return _with_sums(trees, places, layout, rows.summed, ins, outs, ctx)
    return _bound(trees, places, layout, ins, outs, ctx)


def _with_sums(
    trees: Sequence[Expr], places: Sequence[Place], layout: Layout, summed: Sequence[bool], ins: Sequence[Array],
    outs: Sequence[Array], ctx: EngineContext,
) -> list[EngineStep] | None:  # fmt: skip
    """A program with outputs that are sums over all rows, as two programs: one over rows, which also writes the values
    of each row that the sums need, then one over columns, in which weights become values of the column and values of
    rows become weights."""
    if layout.axes != (len(layout.shape) - 1,) or layout.weights != layout.axes or not contiguous(*ins, *outs):
        return None
    if any(np.may_share_memory(a, o) for a in ins for o in outs):  # the second program reads the inputs again
        return None
    varying = elements_of(trees, places)
    each = list(zip(trees, outs, summed[: len(trees)], strict=True))
    plain = [(t, o) for t, o, over in each if not over]
    sums = [(t, o) for t, o, over in each if over]
    inside = linearize([t for t, _ in sums])
    work, n = sums[0][0].dtype, layout.length
    count = math.prod(layout.shape) // n
    read = {a for e in inside if e in varying for a in e.args if a not in varying and a.prim not in ("arg", "lit")}
    values = [(e, ctx.borrow(count * work.itemsize).view(work.np)) for e in inside if e in read]
    done: dict[Expr, Expr] = {e: Expr("arg", (), work, len(ins) + i) for i, (e, _) in enumerate(values)}
    for e in inside:
        done.setdefault(e, Expr(e.prim, tuple(done[a] for a in e.args), e.dtype, e.value))
    turned: dict[Place, Place] = {"weight": "row", "row": "weight"}
    of_columns = [turned.get(place, place) for place in places] + ["weight"] * len(values)
    flat = [a.reshape(count, n) if place == "element" else a for a, place in zip(ins, places, strict=True)]
    of_rows = [*plain, *values]
    steps = _bound([t for t, _ in of_rows], places, layout, ins, [o for _, o in of_rows], ctx)
    more = _bound(
        [Expr("row_sum", (done[t],), t.dtype) for t, _ in sums], of_columns, Layout((count, n), (0,), (0,)),
        [*flat, *(a for _, a in values)], [o for _, o in sums], ctx, columns=1,
    )  # fmt: skip
    return None if steps is None or more is None else [*steps, *more]


def _bound(
    trees: Sequence[Expr], places: Sequence[Place], layout: Layout, ins: Sequence[Array], outs: Sequence[Array],
    ctx: EngineContext, columns: int = 0,
) -> list[EngineStep] | None:  # fmt: skip
    """The kernel of lowered trees. `columns`: the vectors in a block of columns; 0 to choose."""
    varying = elements_of(trees, places)
    elements = [a for a, place in zip(ins, places, strict=True) if place == "element"]
    work = f64 if any(e.dtype == f64 for e in linearize(trees)) else f32
    elements += [o for o, tree in zip(outs, trees, strict=True) if tree in varying]
    rest = [a for a, place in zip(ins, places, strict=True) if place != "element"]
    of_rows = [o for o, tree in zip(outs, trees, strict=True) if tree not in varying]
    if any(np.may_share_memory(a, o) for a in ins for o in of_rows):
        return None
    shape, axes = layout.shape, layout.axes
    if not contiguous(*rest, *of_rows):
        return None
    if not contiguous(*elements):
        # The axes of a row may be last in memory only, as in channels-last images.
        if layout.shape != elements[0].shape:
            return None
        ends = tuple(range(-len(axes), 0))
        if not contiguous(*(np.moveaxis(a, axes, ends) for a in elements)):
            return None
        after = 1
    else:
        after = math.prod(shape[axes[-1] + 1 :])
    n, lanes = layout.length, ctx.machine.lanes(64 if work == f64 else 32)
    channels = bool(layout.weights) and layout.weights != axes
    dtypes = tuple(name_of(a) for a in (*ins, *outs))
    picks = any(e.prim == "row_pick" for e in linearize(trees))
    truths = any(a not in varying and not a.dtype.is_float and a.prim != "arg" for e in varying for a in e.args)
    if after > 1 and (channels or picks or truths):  # kernels for columns take floats alone
        return None
    sweeps = sum(e.prim in _SWEPT for e in linearize(trees))
    light = not any(e.prim in _NEEDS_FUNCTION for e in linearize(trees)) and not {"f16", "bf16"}.isdisjoint(dtypes)
    columns = 0 if after == 1 else columns or (1 if sweeps > _FEW_SWEEPS or light else COLUMNS)
    spec = RowProgram(tuple(trees), tuple(places), dtypes, channels, columns, n > RUN, lanes, ctx.machine.lookup)
    operands = dict(zip(operand_names(len(dtypes)), (*ins, *outs), strict=True))
    count = elements[0].size // n
    if after > 1:
        width = columns * lanes
        numel = n * min(after, width)
        items = count // after * -(-after // width)
        cost = numel * _NS_PER_ELEMENT
        words = spec.args(**operands, n=n, after=after)
        return [EngineStep(spec, words, items, grain_of(numel), (*ins, *outs), cost_ns=cost)]
    beside: dict[str, int] = {}
    if channels:
        groups, per = (shape[i] for i in layout.weights)
        beside = {"groups": groups, "per": per, "inner": n // per}
    words = spec.args(**operands, n=n, **beside)
    return [EngineStep(spec, words, count, grain_of(n), (*ins, *outs), cost_ns=n * _NS_PER_ELEMENT)]
