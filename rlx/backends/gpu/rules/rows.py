"""Lines of elements along one axis: how the threads of kernels share them, and the lowering of ops whose kernels are
printed from their row programs: rows in registers where the axis is the last, else columns of (outer, n, inner)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypedDict

from rlx.backends.gpu.program.casts import THREADS, cast_ref, native, quads
from rlx.backends.gpu.program.kernel import FLOATS, ArgDecl, KernelDecl, RowBody, declare, uints
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.backends.gpu.program.steps import Arg, Ref
from rlx.dtypes import DType
from rlx.ir import Node, Tensor, get_op

_MAX_QUADS = 8  # the most quads that a thread holds in registers: 32 elements of its row
_WARP = 32
_MANY_ROWS = 2048  # with so many rows, one warp a row fills a device


def power(n: int) -> int:
    """The least power of two that is at least n, and at least 1."""
    return 1 << max(0, n - 1).bit_length()


def lines_of(x: Tensor, axis: int) -> tuple[int, int, int]:
    """x as (outer, n, inner)."""
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
    lanes = min(THREADS, 1 << max(0, -(-pieces // 2) - 1).bit_length())  # about two quads a thread
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


def row_kernels(
    op: str, args: str, scalars: Sequence[ArgDecl] = (), columns: bool = True, short: bool = False,
    functions: bool = True,
) -> None:
    """Declares the kernels of an op that are printed from its row program, for rows and with `columns` for an axis that
    others lie behind, and the rule that lowers it.

    `args`: the names of its inputs, "->", those of its outputs; one whose elements are not those of the rows is
    followed by ":" and its dtype. `scalars`: attributes that the program reads. `short`: in 16 bits, rows along memory
    are read eight elements at a time, and exponentials are less exact. `functions`: the program calls some; sums,
    differences and products are none.
    """
    rows = get_op(op).rows
    assert rows is not None
    inputs, outputs = ([name.partition(":") for name in names.split()] for names in args.split("->"))
    pointers = [ArgDecl(name, "ptr", "r", kind or "T") for name, _, kind in inputs]
    pointers += [ArgDecl(name, "ptr", "w", kind or "T") for name, _, kind in outputs]
    prims = ("prims",) * functions
    along = declare(
        KernelDecl(
            op,
            (*pointers, *uints("rows", "n"), *scalars),
            f"{op} over rows of n.",
            "a group of 256 for each 256 / LANES rows",
            {"T": FLOATS},
            {"LANES": 32, "QUADS_HELD": 1, "VECTORS": 0},
            ((32, 3, 1), *(((128, 8, 2),) * short), (256, 0, 0)),
            headers=("rounding",) * short + prims,
            subgroups=True,
            rows=RowBody(op, short=short),
        )
    )
    across = None
    if columns:
        across = declare(
            KernelDecl(
                f"{op}_axis",
                (*pointers, *uints("outer", "n", "inner"), *scalars),
                f"{op} over the middle axis of (outer, n, inner).",
                "a group of 256 for each ACROSS places of inner, for each of outer",
                {"T": FLOATS},
                {"ACROSS": 32},
                ((32,), (4,)),
                headers=prims,
                rows=RowBody(op, columns=True),
            )
        )

    @lowers(op, when=native)
    def lower(ctx: Lowering, node: Node) -> None:
        """Elements are read and written in one dtype, that of the last tensor of elements or made of them."""
        if all(t.size == 0 for t in node.outputs):
            return
        tensors = list(zip([*node.inputs, *node.outputs], pointers, strict=True))
        stored = ctx.storage([t for t, a in tensors if a.element == "T"][-1])
        refs, lines = [], []
        like = node.inputs[rows.places.index("element")]
        for t, a in tensors:
            refs.append(ctx.ref(t))
            if a.element == "T" and a.access == "r":
                refs[-1] = cast_ref(ctx, refs[-1], ctx.storage(t), stored, t.size)
            if t.shape == like.shape:
                lines.append(refs[-1])
        outer, n, inner = lines_of(like, rows.layout(like.shape, node.attrs).axes[0])
        attrs: list[Arg] = [node.attrs[a.name] for a in scalars]
        if inner == 1:
            held = row_shape(n, outer, int(n % 4 == 0) and quads(*lines, itemsize=stored.itemsize))
            if short:
                held = eights(held, n, outer, [(ref, stored) for ref in lines])
            ctx.launch(along(T=stored.name, **held), row_groups(ctx, outer, held), [*refs, outer, n, *attrs])
            return
        assert across is not None
        width = min(32, power(inner))
        groups = ctx.groups(outer * math.ceil(inner / width))
        ctx.launch(across(T=stored.name, ACROSS=width), groups, [*refs, outer, n, inner, *attrs])
