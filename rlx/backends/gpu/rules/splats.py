"""Lowering of Gaussian splatting: lists of tiles by two sorts, blending and its gradient by a workgroup a tile."""

from __future__ import annotations

import math

from rlx.backends.gpu.program.casts import THREADS, groups_for, native
from rlx.backends.gpu.program.kernel import KernelDecl, declare, reads, uints, writes
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.backends.gpu.program.steps import Ref
from rlx.backends.gpu.rules.cumulative import running_sum
from rlx.backends.gpu.rules.order import sorted_pairs
from rlx.ir import Node
from rlx.ops.splats.blend import FIELDS, tiles_of

_DTYPES = {"T": ("f32", "f64")}
SPLAT_COUNT = declare(
    KernelDecl(
        "splat_count",
        about="The tiles that each of n splats covers, in the order `nearest`, added up within each workgroup.",
        grid="a thread for each of n splats",
        args=(
            *reads(nearest="b8", rects="i32"),
            *writes(ends="u32", sums="u32"),
            *uints("n", "across", "down"),
        ),
        headers=("prims",),
    )
)
SPLAT_SCAN = declare(
    KernelDecl(
        "splat_scan",
        about="Where each of `blocks` workgroups of splat_count begins, and the total.",
        grid="one group",
        args=(*reads(sums="u32"), *writes(starts="u32", total="u32"), *uints("blocks")),
        headers=("prims",),
    )
)
SPLAT_PAIRS = declare(
    KernelDecl(
        "splat_pairs",
        about="The pairs of a splat and a tile, in the order of the splats' depths.",
        grid="a thread for each of max(n, pairs)",
        args=(
            *reads(nearest="b8", rects="i32", ends="u32", starts="u32", total="u32"),
            *writes(made="b8", owners="u32", spans="i32"),
            *uints("n", "pairs", "across", "down"),
        ),
        headers=("prims",),
    )
)
SPLAT_DIGITS = declare(
    KernelDecl(
        "splat_digits",
        about="How many pairs of each block of 4,096 have each digit of four bits.",
        grid="a group for each of `blocks` blocks",
        args=(*reads(source="b8", total="u32"), *writes(counts="u32"), *uints("pairs", "blocks", "shift")),
        headers=("prims",),
    )
)
SPLAT_MOVE = declare(
    KernelDecl(
        "splat_move",
        about="Pairs moved to where those of their digit begin, in their order.",
        grid="a group for each of `blocks` blocks of 4,096 pairs",
        args=(
            *reads(source="b8", total="u32", starts="u32"),
            *writes(target="b8"),
            *uints("pairs", "blocks", "shift"),
        ),
        headers=("prims",),
    )
)
SPLAT_LISTS = declare(
    KernelDecl(
        "splat_lists",
        about="The lists of tiles, from pairs sorted by tile.",
        grid="a thread for each of max(pairs, tiles + 1)",
        args=(
            *reads(sorted="b8", owners="u32", total="u32"),
            *writes(ids="i32", ranges="i32", places="i32"),
            *uints("pairs", "tiles"),
        ),
        headers=("prims",),
    )
)
SPLAT_BLEND = declare(
    KernelDecl(
        "splat_blend",
        about="The splats of each tile's list, blended front to back.",
        grid="a group for each of `tiles` tiles",
        args=(
            *reads(splats="T", ids="i32", ranges="i32"),
            *writes(y="T"),
            *uints("width", "height", "across", "tiles", "n", "pairs"),
        ),
        headers=("prims", "body64"),
        variants=_DTYPES,
        subgroups=True,
    )
)
SPLAT_BLEND_GRAD = declare(
    KernelDecl(
        "splat_blend_grad",
        about="The gradient of splat_blend for each place of the lists.",
        grid="a group for each of `tiles` tiles",
        args=(
            *reads(d="T", splats="T", ids="i32", ranges="i32"),
            *writes(rows="T"),
            *uints("width", "height", "across", "tiles", "n", "pairs"),
        ),
        headers=("prims", "body64"),
        variants=_DTYPES,
        constants={"TOGETHER": 8},
        trials=((8,), (4,)),
        subgroups=True,
    )
)
SPLAT_SUM = declare(
    KernelDecl(
        "splat_sum",
        about="The sum of the rows of each splat's span of places.",
        grid="a group for each 28 of n splats",
        args=(
            *reads(rows="T", ranges="i32", places="i32", spans="i32"),
            *writes(y="T"),
            *uints("n", "pairs", "tiles"),
        ),
        headers=("prims", "body64"),
        variants=_DTYPES,
    )
)

_F32 = 4  # the kind of keys in bodies/order.h
_PAIRS_PER_WORKGROUP = 4096
_WIDE = {4: 24 << 10, 8: 48 << 10}  # shared memory from which the gradient takes 8 splats at a time, by itemsize


@lowers("splat_tiles", when=native)
def lower_splat_tiles(ctx: Lowering, node: Node) -> None:
    """Splats sorted by depth, their pairs in that order, and these sorted by tile: both sorts are stable."""
    depth, rects = (ctx.ref(t) for t in node.inputs)
    ids, ranges, places, spans, total = (ctx.ref(t) for t in node.outputs)
    n, pairs = node.inputs[0].size, node.outputs[0].size
    across, down = node.attrs["across"], node.attrs["down"]
    blocks = math.ceil(n / THREADS)
    ends, sums, starts = (ctx.scratch(4 * max(1, k)) for k in (n, blocks, blocks))
    entries, owners = ctx.scratch(8 * pairs), ctx.scratch(4 * pairs)
    nearest = ends  # the arguments here are placeholders: without splats nothing reads them
    if n:
        nearest = sorted_pairs(ctx, depth, "b4", _F32, (1, n, 1))
        ctx.launch(SPLAT_COUNT(), groups_for(ctx, n), [nearest, rects, ends, sums, n, across, down])
    else:
        rects = spans = ends
    ctx.launch(SPLAT_SCAN(), (1, 1, 1), [sums, starts, total, blocks])
    refs = [nearest, rects, ends, starts, total, entries, owners, spans]
    ctx.launch(SPLAT_PAIRS(), groups_for(ctx, max(n, pairs)), [*refs, n, pairs, across, down])
    tiles = across * down
    by_tile = _by_key(ctx, entries, total, pairs, (tiles - 1).bit_length()) if n else entries
    refs = [by_tile, owners, total, ids, ranges, places]
    ctx.launch(SPLAT_LISTS(), groups_for(ctx, max(pairs, tiles + 1)), [*refs, pairs, tiles])


def _by_key(ctx: Lowering, source: Ref, total: Ref, pairs: int, bits: int) -> Ref:
    """Sorts the first `total` pairs (key, ·) stably by the lowest bits of their keys: a radix sort with digits of four
    bits, each with a count, a running sum and a move. Pairs beyond `total` cost nothing."""
    blocks = math.ceil(pairs / _PAIRS_PER_WORKGROUP)
    counts, starts = (ctx.scratch(4 * 16 * blocks) for _ in range(2))
    spare = ctx.scratch(source.nbytes) if bits else source
    for shift in range(0, bits, 4):
        sizes = [pairs, blocks, shift]
        ctx.launch(SPLAT_DIGITS(), ctx.groups(blocks), [source, total, counts, *sizes])
        running_sum(ctx, counts, starts, 16 * blocks)
        ctx.launch(SPLAT_MOVE(), ctx.groups(blocks), [source, total, starts, spare, *sizes])
        source, spare = spare, source
    return source


def _blends(node: Node, features: frozenset[str]) -> bool:
    return native(node, features, with_f64=True)


def _sizes(node: Node, splats: int) -> tuple[int, int, int, int, int, int]:
    """The last arguments of both kernels: sizes of the picture and of the lists."""
    width, height = node.attrs["width"], node.attrs["height"]
    across, down = tiles_of(width, height)
    return width, height, across, across * down, *(t.shape[0] for t in node.inputs[splats : splats + 2])


@lowers("splat_blend", when=_blends)
def lower_splat_blend(ctx: Lowering, node: Node) -> None:
    sizes = _sizes(node, 0)
    y = ctx.ref(node.output)
    refs = [ctx.ref(t) if t.size else y for t in node.inputs[:3]]
    ctx.launch(SPLAT_BLEND(T=node.output.dtype.name), ctx.groups(sizes[3]), [*refs, y, *sizes])


@lowers("splat_blend_grad", when=_blends)
def lower_splat_blend_grad(ctx: Lowering, node: Node) -> None:
    """Computes a row of numbers for each entry of the lists, then sums the rows of each splat."""
    sizes = _sizes(node, 1)
    tiles, n, pairs = sizes[3:]
    if n == 0:
        return
    y, dtype = ctx.ref(node.output), node.output.dtype
    rows = ctx.scratch(max(1, dtype.itemsize * FIELDS * pairs))
    d, splats, ids, ranges, places, spans = (ctx.ref(t) if t.size else rows for t in node.inputs)
    together = 8 if ctx.target.shared_bytes >= _WIDE[dtype.itemsize] else 4
    kernel = SPLAT_BLEND_GRAD(T=dtype.name, TOGETHER=together)
    ctx.launch(kernel, ctx.groups(tiles), [d, splats, ids, ranges, rows, *sizes])
    refs = [rows, ranges, places, spans, y]
    ctx.launch(SPLAT_SUM(T=dtype.name), ctx.groups(math.ceil(n / 28)), [*refs, n, pairs, tiles])
