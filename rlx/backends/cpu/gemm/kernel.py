"""The GEMM kernel: out = epilogue(a · b), rows of a by pointers, b in panels, sums in registers.

Row m of a is `taps` pieces of `terms` elements, each at an address that the kernel reads from a table. So one kernel
serves as a matrix product (one tap), a convolution of channels-last images (a tap for each element of the filter; taps
in the padding point to zeros), and a product of batches or groups (an offset for each). A panel of b is as wide as a
tile's registers, vectors · lanes columns; its rows are a fixed step apart.

An item is a tile of the result. Long epilogues read its sums from the stack, in a loop over rows, so that the code of
an activation is in the kernel once.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.backends.cpu import trees
from rlx.backends.cpu.ir import (
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    PTR,
    Arguments,
    Kernel,
    Type,
    Value,
    Variable,
    pointers,
    sizes,
)
from rlx.backends.cpu.machine import Machine
from rlx.dtypes import DType, f32
from rlx.ir import Expr
from rlx.ir.expr import linearize
from rlx.records import Record

# Steps and strides are in bytes; `base` is added to the addresses in the table, `terms` is the number of terms of a
# tap, `flush` the number of terms after which sums are moved out of the registers, `batch_*` the distance between two
# products of a batch, `ahead` how far ahead b is prefetched.
_ARGS = pointers("table", "b", "out") + sizes(
    "base", "rows", "columns", "tiles", "panels", "taps", "terms", "step_a", "step_b", "panel_b", "row_out",
    "batch_a", "batch_b", "batch_out", "flush", "ahead", "batches",
)  # fmt: skip

_CACHE_LINE_BYTES = 64
_WIDE = {"fma64": F64, "whole64": I64}
_SHORT = frozenset({"arg", "lit", "cast", "add", "sub", "mul", "max", "min", "neg"})


class Operand(Record):
    """What an epilogue reads besides the product: one row for all rows (a bias), or a matrix of the result's shape."""

    dtype: DType
    matrix: bool = False


def operand_names(i: int) -> tuple[str, str, str]:
    """The arguments of an epilogue's operand: where it is, its bytes from row to row, and from batch to batch."""
    return f"operand{i}", f"operand{i}_row", f"operand{i}_batch"


class GemmKernel(Record):
    """A tile is `rows` × (`vectors` · `lanes`); the last one of a product has `tail` rows, where that is not 0."""

    lanes: int
    rows: int
    vectors: int
    tail: int = 0
    masked: bool = False  # the columns are not a whole number of panels
    masked_b: bool = False  # b is read in place, without padding after its last column
    b: DType = f32
    strided: bool = False  # elements of a row of a have gaps between them
    flushed: bool = False  # sums have too many terms for one accumulator
    panels_first: bool = True  # all tiles of a panel before the next panel
    batches_inside: bool = False  # a tile of all products of a batch, which share cache lines, before the next
    prefetch_rows: bool = True
    operands: tuple[Operand, ...] = ()
    epilogue: Expr | None = None  # an expression of the sum and the operands; None stores the sum
    out: DType = f32
    how: str = "fma"  # how elements are multiplied: see `multiplied`
    whole: int = 0  # if `masked`, the vectors that have all their columns in every panel
    skips: bool = False  # taps of a tile whose first address is 0 add nothing

    @property
    def args(self) -> Arguments:
        args = _ARGS
        for at, *steps in map(operand_names, range(len(self.operands))):
            args += pointers(at) + sizes(*steps)
        return args

    @property
    def element(self) -> Type:
        """The type of a sum, and of the elements of a."""
        return element_of(self.how)

    @property
    def direct(self) -> bool:
        """Whether the epilogue is short enough to be repeated in the kernel for each vector of a tile."""
        nodes = linearize([] if self.epilogue is None else [self.epilogue])
        if self.element.scalar == "i32":  # requantization, which through the stack would take as long as the products
            return len(nodes) <= 20 and all(e.prim in _SHORT or e.prim in ("div", "round") for e in nodes)
        return not self.flushed and len(nodes) <= 10 and all(e.prim in _SHORT for e in nodes)

    @property
    def unroll(self) -> int:
        """Terms in an iteration of the innermost loop. LLVM loads an iteration's rows of the panel first; with the sums
        of a 6 x 4 tile they fill 32 registers, and where a long epilogue follows it spills sums. Other tiles have
        registers to spare."""
        return 1 if self.lanes * self.element.size == 64 and (self.rows, self.vectors) == (6, 4) else 2

    def ir(self) -> str:
        return _Writer(self).text()


def element_of(how: str) -> Type:
    """The type of the sums of products that `multiplied` makes."""
    return _WIDE.get(how) or (F32 if how == "fma" else I32)


def multiplied(k: Kernel, how: str, total: Value, x: Value, factor: Value) -> Value:
    """The total and the products of two vectors: of f32 ("fma") and f64 ("fma64"), of i32 ("whole") and i64
    ("whole64"), which wrap, or of integers in 32-bit words, exactly. "vnni": four bytes a word, unsigned in x and
    signed in the factor; "pairs" and "plain": two i16."""
    lanes = total.type.lanes
    if how in ("fma", "fma64"):
        return k.fma(x, factor, total)
    if how in ("whole", "whole64"):
        return total + x * factor
    if how == "vnni":
        bytes_of = [k.cast("bitcast", v, I8.of(4 * lanes)) for v in (x, factor)]
        return k.call(f"llvm.x86.avx512.vpdpbusd.{32 * lanes}", total.type, total, *bytes_of)
    if how == "pairs":
        name = "avx512.pmaddw.d.512" if lanes == 16 else "avx2.pmadd.wd"
        halves = [k.cast("bitcast", v, I16.of(2 * lanes)) for v in (x, factor)]
        return total + k.call(f"llvm.x86.{name}", total.type, *halves)
    shift = k.const(total.type, 16)
    high = [k.binary("ashr", v, shift) for v in (x, factor)]
    low = [k.binary("ashr", v << 16, shift) for v in (x, factor)]
    return total + low[0] * low[1] + high[0] * high[1]


def multiplier(machine: Machine) -> str:
    """How a machine multiplies integers of 8 bits."""
    if machine.arch == "x86_64":
        if machine.vector_bytes == 64:
            return "vnni" if "avx512vnni" in machine.features else "pairs"
        if machine.vector_bytes == 32:
            return "pairs"
    return "plain"


class _Writer:
    """The text of one kernel."""

    def __init__(self, spec: GemmKernel) -> None:
        self.spec = spec
        self.k = k = Kernel("kernel", spec.args)
        self.element = spec.element
        self.vector = self.element.of(spec.lanes)
        self.width = spec.vectors * spec.lanes
        self.words = dict(zip(_ARGS.types, k.args(*_ARGS.types), strict=True))
        self.sums = k.name()  # the tile's sums on the stack
        k.places.append(f"{self.sums} = alloca [{spec.rows * self.width} x {self.element}], align 64")

    def text(self) -> str:
        k, spec, w = self.k, self.spec, self.words
        each = w["tiles"] * w["panels"]
        with k.loop(k.first, k.last) as item:
            if spec.batches_inside:
                row = k.binary("udiv", item, w["panels"])
                panel = item - row * w["panels"]
                tile = k.binary("udiv", row, w["batches"])
                batch = row - tile * w["batches"]
            else:
                batch = k.binary("udiv", item, each)
                place = item - batch * each
                inner = w["tiles"] if spec.panels_first else w["panels"]
                outer = k.binary("udiv", place, inner)
                rest = place - outer * inner
                panel, tile = (outer, rest) if spec.panels_first else (rest, outer)
            top, left = tile * spec.rows, panel * self.width
            self.columns = w["columns"] - left
            self.masks = self._masks()
            self.b = k.at(w["b"], panel * w["panel_b"] + batch * w["batch_b"])
            self.table = k.at(w["table"], tile * (w["taps"] * (8 * spec.rows)))
            self.shift = batch * w["batch_a"] + w["base"]
            here = w["rows"] - top
            self._open_epilogue(top, left, batch)
            whole = k.cmp("sge", here, spec.rows)
            with k.when(whole):
                self._multiply(spec.rows, direct=spec.direct)
            if spec.tail:
                with k.when(~whole):
                    self._multiply(spec.tail, direct=False)
        return k.text()

    def _masks(self) -> list[Value | None]:
        """For each vector of the panel, the mask of columns that the result has."""
        k, spec = self.k, self.spec
        if not spec.masked:
            return [None] * spec.vectors
        counts = [k.max(self.columns - n * spec.lanes, 0) for n in range(spec.whole, spec.vectors)]
        return [None] * spec.whole + [k.tail(k.min(c, spec.lanes), spec.lanes) for c in counts]

    # -- sums

    def _multiply(self, rows: int, direct: bool) -> None:
        """Computes a tile of `rows` rows and stores it, from the registers (`direct`) or through the stack."""
        k, spec, w = self.k, self.spec, self.words
        b, zero = k.variable(self.b), k.const(I64, 0)
        if spec.flushed:
            for m in range(rows):
                for n in range(spec.vectors):
                    k.store(k.const(self.vector, 0), self._sum_at(m, n), align=64)
            with k.loop(0, w["taps"]) as tap, k.loop(0, w["terms"], w["flush"]) as first:
                sums = self._zeros(rows)
                self._tap(rows, sums, b, tap, first, k.min(first + w["flush"], w["terms"]))
                self._keep(sums, onto=True)
        else:
            sums = self._zeros(rows)
            with k.loop(0, w["taps"]) as tap:
                self._tap(rows, sums, b, tap, zero, w["terms"])
            if direct:
                vectors = self._vectors()
                for m, line in enumerate(sums):
                    self._store_row(k.const(I64, m), [v.value for v in line], vectors)
                return
            self._keep(sums, onto=False)
        self._finish(rows)

    def _zeros(self, rows: int) -> list[list[Variable]]:
        zero = self.k.const(self.vector, 0)
        return [[self.k.variable(zero) for _ in range(self.spec.vectors)] for _ in range(rows)]

    def _sum_at(self, m: int, n: int) -> Value:
        place = Value(self.k, PTR, self.sums)
        return self.k.at(place, (m * self.spec.vectors + n) * self.spec.lanes, self.element)

    def _keep(self, sums: Sequence[Sequence[Variable]], onto: bool) -> None:
        for m, row in enumerate(sums):
            for n, variable in enumerate(row):
                at, value = self._sum_at(m, n), variable.value
                if onto:
                    value = value + self.k.load(self.vector, at, align=64)
                self.k.store(value, at, align=64)

    def _tap(
        self,
        rows: int,
        sums: Sequence[Sequence[Variable]],
        b: Variable,
        tap: Value,
        first: Value,
        last: Value,
    ) -> None:
        """The terms first … last - 1 of a tap."""
        k, w = self.k, self.words
        here = k.at(self.table, tap * (8 * self.spec.rows))
        if not self.spec.skips:
            self._terms(rows, sums, b, here, first, last)
            return
        place = k.load(I64, here)
        with k.when(k.cmp("eq", place, 0)):
            b.value = k.at(b.value, (last - first) * w["step_b"])
        with k.when(k.cmp("ne", place, 0)):
            self._terms(rows, sums, b, here, first, last)

    def _terms(
        self,
        rows: int,
        sums: Sequence[Sequence[Variable]],
        b: Variable,
        here: Value,
        first: Value,
        last: Value,
    ) -> None:
        """The terms first … last - 1 of the rows whose addresses are `here`."""
        k, spec, w = self.k, self.spec, self.words
        starts = [k.at(k.load(PTR, k.at(here, m, I64)), self.shift) for m in range(rows)]
        even = first + (last - first & -spec.unroll)
        with k.loop(first, even, spec.unroll) as c:
            for u in range(spec.unroll):
                self._step(starts, sums, b, c + u if u else c)
            if spec.prefetch_rows and rows == spec.rows and not spec.strided:
                self._ask_for_rows(k.at(here, w["taps"] * (8 * spec.rows)), c)
        if spec.unroll > 1:
            with k.loop(even, last) as c:
                self._step(starts, sums, b, c)

    def _step(
        self, starts: Sequence[Value], sums: Sequence[Sequence[Variable]], b: Variable, c: Value
    ) -> None:
        """One row of the panel times one element of each row of a."""
        k, spec, w = self.k, self.spec, self.words
        row = b.value
        factors = [self._load_b(row, n) for n in range(spec.vectors)]
        nbytes = self.width * spec.b.itemsize
        ahead = k.at(row, w["ahead"])
        for start in range(0, nbytes, 64):
            k.prefetch(k.at(ahead, start))
        offset = c * (w["step_a"] if spec.strided else self.element.size)
        for place, line in zip(starts, sums, strict=True):
            x = k.splat(k.load(self.element, k.at(place, offset)), spec.lanes)
            for factor, total in zip(factors, line, strict=True):
                total.value = multiplied(k, spec.how, total.value, x, factor)
        b.value = k.at(row, w["step_b"])

    def _load_b(self, row: Value, n: int) -> Value:
        spec = self.spec
        mask = self.masks[n] if spec.masked_b else None
        return trees.load(self.k, spec.b, self._vector_at(row, n, spec.b), spec.lanes, mask)

    def _vector_at(self, row: Value, n: int, dtype: DType) -> Value:
        return self.k.at(row, n * self.spec.lanes * dtype.itemsize)

    def _ask_for_rows(self, following: Value, c: Value) -> None:
        """Prefetches rows of the next tile: one cache line of some rows in each iteration, so that all are done in the
        iterations that read a line of each row of this tile."""
        k, spec = self.k, self.spec
        line_elements = _CACHE_LINE_BYTES // self.element.size
        turns = line_elements // spec.unroll
        count = -(-spec.rows // turns)
        first = (c >> spec.unroll.bit_length() - 1 & turns - 1) * count
        line = (c & -line_elements) * self.element.size + self.shift
        for i in range(count):
            m = k.min(first + i, spec.rows - 1)
            k.prefetch(k.at(k.load(PTR, k.at(following, m, I64)), line))

    # -- epilogue

    def _open_epilogue(self, top: Value, left: Value, batch: Value) -> None:
        """Sets the addresses at which the tile's results and the epilogue's operands begin."""
        k, spec, w = self.k, self.spec, self.words
        self.out = k.at(w["out"], top * w["row_out"] + batch * w["batch_out"] + left * spec.out.itemsize)
        self.starts: list[tuple[Value, Value]] = []
        for i, operand in enumerate(spec.operands):
            at, row, apart = k.args(*operand_names(i))
            offset = batch * apart + left * operand.dtype.itemsize
            self.starts.append((k.at(at, offset + top * row if operand.matrix else offset), row))

    def _finish(self, count: int) -> None:
        """Stores `count` rows of the tile from the stack."""
        k, spec = self.k, self.spec
        vectors = self._vectors()
        with k.loop(0, count) as m:
            line = k.at(Value(k, PTR, self.sums), m * self.width, self.element)
            sums = [
                k.load(self.vector, k.at(line, n * spec.lanes, self.element), align=64) for n in range(spec.vectors)
            ]
            self._store_row(m, sums, vectors)

    def _vectors(self) -> list[list[Value]]:
        """The operands that are the same for all rows; an empty list for the others."""
        return [
            []
            if operand.matrix
            else [self._load_operand(operand, start, n) for n in range(self.spec.vectors)]
            for operand, (start, _) in zip(self.spec.operands, self.starts, strict=True)
        ]

    def _store_row(self, m: Value, sums: Sequence[Value], vectors: Sequence[Sequence[Value]]) -> None:
        k, spec = self.k, self.spec
        out = k.at(self.out, m * self.words["row_out"])
        rows = [
            k.at(start, m * row) if o.matrix else start
            for o, (start, row) in zip(spec.operands, self.starts, strict=True)
        ]
        for n, total in enumerate(sums):
            beside = [
                self._load_operand(operand, row, n) if operand.matrix else same[n]
                for operand, row, same in zip(spec.operands, rows, vectors, strict=True)
            ]
            result = total
            if spec.epilogue is not None:
                (result,) = trees.print_trees(k, [spec.epilogue], [total, *beside])
            trees.store(k, result, spec.out, self._vector_at(out, n, spec.out), self.masks[n])

    def _load_operand(self, operand: Operand, start: Value, n: int) -> Value:
        at = self._vector_at(start, n, operand.dtype)
        return trees.load(self.k, operand.dtype, at, self.spec.lanes, self.masks[n])
