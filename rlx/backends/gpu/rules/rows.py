"""Lines of elements along one axis: how the threads of kernels share them, and the lowering of ops whose kernels are
printed from their row programs: rows in registers where the axis is the last, else columns of (outer, n, inner)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypedDict

from rlx.backends.gpu.program.casts import THREADS, cast_ref, native, quads
from rlx.backends.gpu.program.kernel import FLOATS, ArgDecl, KernelDecl, RowBody, declare, floats, uints
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.backends.gpu.program.steps import Arg, Ref
from rlx.dtypes import DType, f32
from rlx.ir import Node, Op, Tensor, get_op
from rlx.ir.rows import Rows, last_axis

_MAX_QUADS = 8  # the most quads that a thread holds in registers: 32 elements of its row
_WARP = 32
_MANY_ROWS = 2048  # one warp per row fills the device if there are as many rows


def power(n: int) -> int:
    """The least power of two that is at least n, and at least 1."""
    return 1 << max(0, n - 1).bit_length()


def lines_of(x: Tensor, axis: int) -> tuple[int, int, int]:
    """The dimensions (outer, n, inner) of x around an axis of length n."""
    return math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :])


class RowShape(TypedDict):
    """Constants of every row kernel: the threads of a row, the quads that a thread holds (0: the row is too long for
    registers), and the elements read at once: 0 for one, 1 for four, 2 for eight of 16 bits."""

    LANES: int
    QUADS_HELD: int
    VECTORS: int


def row_shape(n: int, rows: int, aligned: int) -> RowShape:
    """How threads share rows of n elements."""
    pieces = max(1, -(-n // 4))
    lanes = min(THREADS, 1 << max(0, -(-pieces // 2) - 1).bit_length())  # a thread has about two quads
    if rows >= _MANY_ROWS and pieces <= _WARP * _MAX_QUADS:
        lanes = min(lanes, _WARP)  # rows within a warp need no barrier on CUDA
    held = -(-pieces // lanes)
    return RowShape(LANES=lanes, QUADS_HELD=held if held <= _MAX_QUADS else 0, VECTORS=aligned)


def eights(shape: RowShape, n: int, rows: int, places: Sequence[tuple[Ref, DType]]) -> RowShape:
    """The shape for rows read sixteen bytes at a time, where they are of a 16-bit dtype, aligned to sixteen bytes and
    short enough for registers; else the given shape."""
    wide = all(ref.offset % 16 == 0 for ref, _ in places) and places[0][1].itemsize == 2
    if not wide or n % 8 or n > THREADS * 4 * _MAX_QUADS:
        return shape
    pieces = n // 8
    each = _MAX_QUADS // 2 if rows >= _MANY_ROWS else 1  # a thread's loads, all in flight at once
    lanes = min(THREADS, 1 << max(0, -(-pieces // each) - 1).bit_length())
    return RowShape(LANES=lanes, QUADS_HELD=2 * -(-pieces // lanes), VECTORS=2)


def row_groups(ctx: Lowering, rows: int, shape: RowShape) -> tuple[int, int, int]:
    """The grid of a kernel over rows, with the shape's number of threads for each row."""
    return ctx.groups(math.ceil(rows / (THREADS // shape["LANES"])))


def _arguments(rows: Rows) -> str:
    """The default `args` of a row program whose inputs are all given: elements and weights."""
    names: dict[str, int] = {}

    def named(letter: str) -> str:
        names[letter] = count = names.get(letter, 0) + 1
        return f"{letter}{count}" if count > 1 else letter

    inputs = [f"{named('w')}:W" if place == "weight" else named("x") for place in rows.places]
    return f"{' '.join(inputs)} -> {' '.join(named('y') for _ in rows.stored)}"


def row_kernels(
    ops: str, args: str = "", scalars: Sequence[ArgDecl] = (), *, stem: str = "", along: bool = True,
    short: bool = False, functions: bool = True, channels: bool = False, early: int = 0,
    attrs: Mapping[str, object] | None = None,
) -> None:  # fmt: skip
    """Declares the kernels of an op that are printed from its row program, and the rule that lowers it. There is a
    kernel for contiguous rows (`along`) and one for columns if the axis need not be the last. A second op in `ops`
    differs from the first only in not subtracting means, and shares its kernel.

    `args`: the names of its inputs, "->", those of its outputs. ":" and a dtype follow a name whose dtype is not the
    rows' (W for weights), and "?" one that is optional; by default all are required floats. `scalars`: attributes that
    the program reads in addition to its `numbers`. `stem`: the kernel's name, if not the op's. `short`: in 16 bits,
    rows along memory are read eight elements at a time, and exponentials are less exact. `functions`: the program calls
    scalar functions, not only +, - and *. `channels`: weights are per channel, of which a row has several. `early`: the
    number of weights loaded into registers before the reduction's barrier. `attrs`: attributes for which the op has all
    its outputs.
    """
    op, *plain = ops.split()
    stem, rows = stem or op, get_op(op).rows
    assert rows is not None
    columns = not channels and rows.layout is not last_axis
    scalars = (*floats(*rows.numbers), *scalars)
    args = args or _arguments(rows)
    inputs, outputs = ([name.rstrip("?").partition(":") for name in names.split()] for names in args.split("->"))
    switches = {"RMS": False} if plain else {}
    switches |= {f"HAS_{name.partition(':')[0].rstrip('?').upper()}": False for name in args.split() if name[-1] == "?"}
    pointers = [ArgDecl(name, "ptr", "r", kind or "T") for name, _, kind in inputs]
    pointers += [ArgDecl(name, "ptr", "w", kind or "T") for name, _, kind in outputs]
    weighed = {"W": FLOATS} if any(a.element == "W" for a in pointers) else {}
    variants, prims = {"T": FLOATS, **weighed}, ("prims",) * functions
    fixed = tuple((attrs or {}).items())
    on, off = ([(name == "RMS") != there for name in switches] for there in (True, False))
    held = None
    if along:
        held = declare(
            KernelDecl(
                stem,
                (*pointers, *uints("rows", "n", *(("groups", "per", "inner") * channels)), *scalars),
                f"{ops} over rows of n.",
                "a group of 256 for each 256 / LANES rows",
                variants,
                {"LANES": 32, "QUADS_HELD": 1, "VECTORS": 0, **switches, **({"WEIGHTS": 0} if channels else {})},
                tuple(
                    (*shape, *values, *([int(shape[1] > 0)] * channels))
                    for shape, values in (((32, 3, 1), on), *((((128, 8, 2), on),) * short), ((256, 0, 0), off))
                ),
                headers=("rounding",) * short + prims,
                subgroups=True,
                rows=RowBody(op, short=short, attrs=fixed, early=early),
            )
        )
    across = None
    if columns:
        across = declare(
            KernelDecl(
                f"{stem}_axis",
                (*pointers, *uints("outer", "n", "inner"), *scalars),
                f"{ops} over the middle axis of (outer, n, inner).",
                "a group of 256 for each ACROSS places of inner, for each of outer",
                variants,
                {"ACROSS": 32, **switches},
                ((32, *on), (4, *off)),
                headers=prims,
                rows=RowBody(op, columns=True, attrs=fixed),
            )
        )

    @lowers(*ops.split(), when=native)
    def lower(ctx: Lowering, node: Node) -> None:
        """Elements are read and written in a single dtype, that of the last tensor of rows among inputs and outputs.
        Weights of different dtypes are cast to f32, never narrowed."""
        if all(t.size == 0 for t in node.outputs):
            return
        tensors: list[Tensor | None] = [*node.inputs, *[None] * (len(inputs) - len(node.inputs))]
        tensors += [*[None] * (len(outputs) - len(node.outputs)), *node.outputs]
        there = [(t, a) for t, a in zip(tensors, pointers, strict=True) if t is not None]
        stored = ctx.storage([t for t, a in there if a.element == "T"][-1])
        kinds = {ctx.storage(t) for t, a in there if a.element == "W"}
        kept = kinds.pop() if len(kinds) == 1 else f32
        like = node.inputs[rows.places.index("element")]
        refs: dict[str, Ref] = {}
        for t, a in there:
            kind = {"T": stored, "W": kept}.get(a.element)
            ref = ctx.ref(t)
            refs[a.name] = cast_ref(ctx, ref, ctx.storage(t), kind, t.size) if kind and a.access == "r" else ref
        lines = [(refs[a.name], stored) for t, a in there if t.shape == like.shape]
        weights = [(refs[a.name], kept) for _, a in there if a.element == "W"]
        # A missing tensor is never read or written: another one's address stands in for it.
        operands = [refs.get(a.name) or (weights[0][0] if a.element == "W" else lines[-1][0]) for a in pointers]
        chosen: dict[str, int] = {name: int(a) for name, a in [("RMS", not node.op.centres)] if name in switches}
        chosen |= {f"HAS_{a.name.upper()}": a.name in refs for a in pointers if f"HAS_{a.name.upper()}" in switches}
        words = {"T": stored.name} | ({"W": kept.name} if weighed else {})
        layout = rows.layout(like.shape, node.attrs)
        shape, axes, n = layout.shape, layout.axes, layout.length
        outer, inner = math.prod(shape[: axes[0]]), math.prod(shape[axes[-1] + 1 :])
        values: list[Arg] = [node.attrs[a.name] for a in scalars]
        if held is not None and inner == 1:
            placed = lines if channels else [*lines, *weights]
            aligned = n % 4 == 0 and all(quads(ref, itemsize=dtype.itemsize) for ref, dtype in placed)
            line = row_shape(n, outer, int(aligned))
            line = eights(line, n, outer, [*lines, *weights]) if short else line
            more: list[Arg] = []
            if channels:
                groups, per = (shape[i] for i in layout.weights)
                more, chosen["WEIGHTS"] = [groups, per, n // per], int(n // per % 4 == 0)
            kernel = held(**words, **line, **chosen)
            ctx.launch(kernel, row_groups(ctx, outer, line), [*operands, outer, n, *more, *values])
            return
        assert across is not None
        width = min(32, power(inner))
        count = ctx.groups(outer * math.ceil(inner / width))
        ctx.launch(across(**words, ACROSS=width, **chosen), count, [*operands, outer, n, inner, *values])


def load_printed(op: Op) -> None:
    """`row_kernels` for an op that names itself as its kernel; none for others."""
    if op.rows is not None and op.kernel == op.name:
        row_kernels(op.name)
