"""Lowering of argmax, argmin, sort, argsort and top_k. All order pairs (key, index), which bodies/order.h defines."""

from __future__ import annotations

import math

from rlx.backends.gpu.program.casts import THREADS, fits
from rlx.backends.gpu.program.kernel import FLOATS, KernelDecl, declare, reads, uints, writes
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.backends.gpu.program.steps import Ref
from rlx.backends.gpu.rules.rows import lines_of, power
from rlx.dtypes import DType
from rlx.errors import DTypeError
from rlx.ir import Node, Tensor

ARG_REDUCE = declare(
    KernelDecl(
        "arg_reduce",
        about=(
            "The place along n of the first element in order of x (outer, n, inner), in `splits` parts of "
            "`chunk`."
        ),
        grid="a group for each 256 / (ACROSS*ALONG) pairs (outer, part) and ACROSS places of inner",
        # x, parts and made (outer, splits, inner), y, outer, n, inner, chunk, splits.
        args=(
            *reads(x="U", parts="PU"),
            *writes(made="PU", y="b8"),
            *uints("outer", "n", "inner", "chunk", "splits"),
        ),
        variants={"U": ("b1", "b2", "b4", "b8")},
        constants={"ACROSS": 1, "ALONG": 256, "KEY_KIND": 4, "KEY_FLIP": 0, "FLAGS": 0},
        trials=((1, 256, 4, 1, 0), (32, 8, 1, 2, 3)),
    )
)
SORT_ROWS = declare(
    KernelDecl(
        "sort_rows",
        about=(
            "Blocks of SPAN elements of the lines along n of x (outer, n, inner), `lines` = outer * inner, "
            "each sorted."
        ),
        grid="a group for each SPAN < 512 ? 512 / SPAN : 1 of the lines * blocks",
        # x, pairs (lines, n), y and index (outer, keep, inner), lines, n, inner, keep, blocks.
        args=(
            *reads(x="U"),
            *writes(pairs="PU", y="U", index="b8"),
            *uints("lines", "n", "inner", "keep", "blocks"),
        ),
        variants={"U": ("b1", "b2", "b4", "b8")},
        constants={"SPAN": 512, "KEY_KIND": 4, "KEY_FLIP": 0, "GIVEN": 3},
        trials=((64, 4, 0, 3), (2048, 1, 1, 4)),
    )
)
SORT_MERGE = declare(
    KernelDecl(
        "sort_merge",
        about=(
            "Sorted runs of `run` pairs of `lines` lines of n, merged two by two; the last time into elements "
            "and places."
        ),
        grid="a group for each 256 places of a line",
        # x, source and pairs (lines, n), y and index (outer, keep, inner), lines, n, inner, keep, run.
        args=(
            *reads(x="U", source="PU"),
            *writes(pairs="PU", y="U", index="b8"),
            *uints("lines", "n", "inner", "keep", "run"),
        ),
        variants={"U": ("b1", "b2", "b4", "b8")},
        constants={"GIVEN": 0},
        trials=((0,), (3,)),
    )
)
TOP_K = declare(
    KernelDecl(
        "top_k",
        about=(
            "The k first in order of each part of `chunk` elements of the lines along n of x (outer, n, "
            "inner)."
        ),
        grid="a group for each part of each of `lines` lines",
        # x, list (lines, listed), made (lines, splits, k), y and index (outer, k, inner), lines, n, listed,
        # inner, k, chunk, splits.
        args=(
            *reads(x="U", list="u32"),
            *writes(made="u32", y="U", index="b8"),
            *uints("lines", "n", "listed", "inner", "k", "chunk", "splits"),
        ),
        variants={"U": ("b1", "b2", "b4", "b8")},
        constants={"SPAN": 2048, "KEY_KIND": 4, "KEY_FLIP": 0, "LISTED": False},
        trials=((2048, 4, 1, False), (1024, 1, 0, True)),
    )
)
TOP_K_ROWS = declare(
    KernelDecl(
        "top_k_rows",
        about=(
            "The k first in order of each of `lines` rows of n floats, VECTORS times sixteen bytes of a row a "
            "thread."
        ),
        grid="a group for each row",
        # x, y (lines, k), index (lines, k), lines, n, k.
        args=(*reads(x="U"), *writes(y="U", index="b8"), *uints("lines", "n", "k")),
        variants={"U": ("b2", "b4")},
        constants={"KEY_KIND": 4, "KEY_FLIP": 1, "VECTORS": 4, "ROUNDS": 1, "GIVES": 3},
        trials=((4, 1, 4, 1, 3), (4, 0, 1, 8, 1), (4, 2, 8, 0, 2)),
        subgroups=True,
    )
)

SPAN = 2048  # pairs that a workgroup sorts in shared memory: 16 KiB; half as many where a key has two words
_SERIAL = 8  # elements of a line that a thread compares one by one, waiting for each load
_WORKGROUPS_TO_FILL = 1024  # the number of workgroups that fills a device
_PART = 1 << 12  # the smallest part of a line that a workgroup reads for top_k
_KINDS = {"bool": 0, "u8": 0, "i8": 1, "i32": 1, "i64": 1, "f16": 2, "bf16": 3, "f32": 4, "f64": 5}
_MAX_VECTORS = 8  # the most vectors of sixteen bytes that a thread holds of its row
_MAX_RANKED = 64  # the largest k for which ranking is cheap compared to reading
_FEATURE = {1: "8bit_storage", 2: "16bit_storage"}


def holds_elements(node: Node, features: frozenset[str]) -> bool:
    """Whether the device can read x's elements as units of their size, and 31 bits count them. Eight-byte elements are
    read as two words, so 64-bit integers are not needed."""
    need = _FEATURE.get(node.inputs[0].dtype.itemsize)
    small = fits(*(t.type for t in (*node.inputs, *node.outputs)))
    return (need is None or need in features) and small


def _native(node: Node, features: frozenset[str]) -> bool:
    return node.inputs[0].dtype.name in _KINDS and holds_elements(node, features)


def key_words(dtype: DType, op: str) -> tuple[str, int, int, int]:
    """The unit of an element, its kind of key, the bytes of a (key, index) pair, and the number of pairs that a
    workgroup sorts."""
    if dtype.name not in _KINDS:
        raise DTypeError(f"{op}: x is stored as {dtype}; expected one of {', '.join(_KINDS)}")
    wide = dtype.itemsize == 8
    return f"b{dtype.itemsize}", _KINDS[dtype.name], 16 if wide else 8, SPAN // 2 if wide else SPAN


# -- argmax, argmin


@lowers("argmax", "argmin", when=_native)
def lower_arg(ctx: Lowering, node: Node) -> None:
    """A tree of comparisons over the pairs of a line; long lines are first reduced in parts."""
    x, y = node.inputs[0], node.output
    if y.size == 0:
        return
    flip = 1 if node.op.joins == "max" else 2
    unit, kind, pair, _ = key_words(ctx.storage(x), node.op.name)
    outer, n, inner = lines_of(x, node.attrs["axis"])
    ref, target = ctx.ref(x), ctx.ref(y)
    last = 2 * int(node.attrs["select_last_index"])
    if inner == 1 and not last and _rows(ctx, x, flip, 1, target, target, 2):
        return
    parts = ref  # a placeholder: the first launch reads no pairs
    stage = 0
    while True:
        across = min(power(inner), 32)
        along = min(power(-(-n // 4)), THREADS // across) if n > 4 else 1
        items = THREADS // (across * along)
        chunk = along * _SERIAL
        if math.ceil(outer / items) * math.ceil(inner / across) >= _WORKGROUPS_TO_FILL:
            chunk = n
        splits = max(1, -(-n // chunk))
        chunk = -(-n // splits)
        splits = -(-n // chunk)
        partial = ctx.scratch(outer * splits * inner * pair) if splits > 1 else target
        flags = int(stage > 0) | last
        kernel = ARG_REDUCE(U=unit, ACROSS=across, ALONG=along, KEY_KIND=kind, KEY_FLIP=flip, FLAGS=flags)
        groups = ctx.groups(math.ceil(outer * splits / items) * math.ceil(inner / across))
        # A stage reads elements or pairs and writes pairs or places; the kernel does not touch the other two pointers.
        ctx.launch(kernel, groups, [ref, parts, partial, target, outer, n, inner, chunk, splits])
        if splits == 1:
            return
        parts, n, stage = partial, splits, stage + 1


# -- sort, argsort


@lowers("sort", "argsort", when=_native)
def lower_sort(ctx: Lowering, node: Node) -> None:
    """Sorts whole lines along the axis."""
    x, axis, index = node.inputs[0], node.attrs["axis"], ctx.ref(node.outputs[-1])
    values = ctx.ref(node.outputs[0]) if len(node.outputs) == 2 else None
    _sort(ctx, node.op.name, x, axis, int(node.attrs["descending"]), x.shape[axis], values, index)


def _sort(
    ctx: Lowering, op: str, x: Tensor, axis: int, flip: int, keep: int, values: Ref | None, index: Ref
) -> None:
    outer, n, inner = lines_of(x, axis)
    if outer * inner * keep == 0:
        return
    unit, kind, pair, span = key_words(ctx.storage(x), op)
    source = ctx.ref(x)
    gives = 2 | int(values is not None)
    y = index if values is None else values
    runs = sort_lines(ctx, source, unit, kind, flip, (outer, n, inner), span, pair, (y, index, gives, keep))
    run, spare = span, ctx.scratch(runs.nbytes) if n > 2 * span else runs
    while run < n:
        last = 2 * run >= n
        target = index if last else spare
        kernel = SORT_MERGE(U=unit, GIVEN=gives if last else 0)
        groups = ctx.groups(outer * inner * math.ceil(n / THREADS))
        refs = [source, runs, target, y if last else target, index if last else target]
        ctx.launch(kernel, groups, [*refs, outer * inner, n, inner, keep if last else 0, run])
        runs, spare, run = spare, runs, 2 * run


def sort_lines(
    ctx: Lowering,
    source: Ref,
    unit: str,
    kind: int,
    flip: int,
    dims: tuple[int, int, int],
    span: int,
    pair: int,
    final: tuple[Ref, Ref, int, int] | None,
) -> Ref:
    """Sorts blocks of `span` pairs. If a line is one block and `final` (elements, indices, which of the two are
    written, how many) is given, the results go there; else the pairs go into workspace, which is returned."""
    outer, n, inner = dims
    width = min(power(n), span)
    blocks = math.ceil(n / width)
    whole = final is not None and blocks == 1
    if final is not None and blocks == 1:
        y, index, gives, keep = final
        pairs = index
    else:
        pairs = y = index = ctx.scratch(outer * n * inner * pair)
        gives, keep = 4, 0
    kernel = SORT_ROWS(U=unit, SPAN=width, KEY_KIND=kind, KEY_FLIP=flip, GIVEN=gives)
    groups = ctx.groups(math.ceil(outer * inner * blocks / max(1, 512 // width)))
    ctx.launch(kernel, groups, [source, pairs, y, index, outer * inner, n, inner, keep, blocks])
    return source if whole else pairs


def sorted_pairs(ctx: Lowering, keys: Ref, unit: str, kind: int, dims: tuple[int, int, int]) -> Ref:
    """The sorted pairs (key, index) of each line of one-word keys, in workspace, line after line."""
    outer, n, inner = dims
    pairs = sort_lines(ctx, keys, unit, kind, 0, dims, SPAN, 8, None)
    run, spare = SPAN, ctx.scratch(pairs.nbytes) if n > SPAN else pairs
    while run < n:
        groups = ctx.groups(outer * inner * math.ceil(n / THREADS))
        refs = [keys, pairs, spare, spare, spare]
        ctx.launch(SORT_MERGE(U=unit, GIVEN=0), groups, [*refs, outer * inner, n, inner, 0, run])
        pairs, spare, run = spare, pairs, 2 * run
    return pairs


# -- top_k


@lowers("top_k", when=_native)
def lower_top_k(ctx: Lowering, node: Node) -> None:
    """Short lines are sorted whole; long ones are read once and filtered; for large k everything is sorted."""
    x, k, axis = node.inputs[0], node.attrs["k"], node.attrs["axis"]
    values, index = (ctx.ref(t) for t in node.outputs)
    outer, n, inner = lines_of(x, axis)
    if outer * inner * k == 0:
        return
    unit, kind, _, span = key_words(ctx.storage(x), "top_k")
    flip = int(node.attrs["largest"])
    if n <= 512 or k > span // 2:
        _sort(ctx, "top_k", x, axis, flip, k, values, index)
        return
    if inner == 1 and _rows(ctx, x, flip, k, values, index, 3):
        return
    source, lines, count = ctx.ref(x), outer * inner, n
    places = source  # a placeholder: the first launch reads no places
    stage = 0
    while True:
        # Enough parts to fill the device, each far longer than the k elements that it leaves.
        part = max(_PART, 8 * k, -(-lines * count // _WORKGROUPS_TO_FILL))
        splits = max(1, -(-count // part))
        part = -(-count // splits)
        splits = -(-count // part)
        survivors = ctx.scratch(lines * splits * k * 4) if splits > 1 else index
        kernel = TOP_K(U=unit, SPAN=span, KEY_KIND=kind, KEY_FLIP=flip, LISTED=stage > 0)
        args = [source, places, survivors, values, index, lines, n, count, inner, k, part, splits]
        ctx.launch(kernel, ctx.groups(lines * splits), args)
        if splits == 1:
            return
        places, count, stage = survivors, splits * k, stage + 1


def _rows(ctx: Lowering, x: Tensor, flip: int, k: int, values: Ref, index: Ref, gives: int) -> bool:
    """Finds the first k values and indices of each row, if rows are floats that fit into a workgroup's registers.
    Returns: whether it did."""
    stored, source, n = ctx.storage(x), ctx.ref(x), x.shape[-1]
    if stored.name not in FLOATS or k > _MAX_RANKED or source.offset % 16:
        return False
    each = 16 // stored.itemsize
    vectors = math.ceil(n / (each * THREADS))
    if n % each or n < each * THREADS or vectors > _MAX_VECTORS:
        return False
    kind, rounds = _KINDS[stored.name], 0 if k == 1 else -(-k // 8)
    kernel = TOP_K_ROWS(
        U=f"b{stored.itemsize}", KEY_KIND=kind, KEY_FLIP=flip, VECTORS=vectors, ROUNDS=rounds, GIVES=gives
    )
    lines = x.size // n
    ctx.launch(kernel, ctx.groups(lines), [source, values, index, lines, n, k])
    return True
