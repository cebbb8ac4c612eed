"""Lowering of sum, mean, prod, max and min over any axes, and of all_finite."""

from __future__ import annotations

import math
from dataclasses import replace

from rlx.backends.gpu.program.casts import THREADS, cast_ref, convert, fits, stores
from rlx.backends.gpu.program.images import IMAGES, Reader, last_shape
from rlx.backends.gpu.program.kernel import KernelDecl, declare, floats, reads, uints, writes
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.backends.gpu.program.steps import Launch, Ref
from rlx.backends.gpu.rules.rows import power
from rlx.dtypes import DType, f32, i32, promote
from rlx.ir import Node, Tensor
from rlx.ir import expr as ex
from rlx.passes.fusion_groups import adds_up, widens_half
from rlx.passes.trees import explicit, node_trees

REDUCE = declare(
    KernelDecl(
        "reduce",
        about="Sum, product, maximum or minimum over n of x (outer, n, inner), in `splits` parts of `chunk`.",
        grid=(
            "a group for each 256 / (ACROSS*ALONG) of (outer, split) and ACROSS places (pairs, READS = 2) of "
            "inner"
        ),
        # x, y (outer, splits, inner), outer, n, inner, chunk, splits, divisor.
        args=(
            *reads(x="TI"),
            *writes(y="TO"),
            *uints("outer", "n", "inner", "chunk", "splits"),
            *floats("divisor"),
        ),
        headers=("rounding", "body64", "prims"),
        variants={
            "IO": (
                "f32_f32",
                "f64_f64",
                "f16_f32",
                "bf16_f32",
                "f32_f16",
                "f32_bf16",
                "f16_f16",
                "bf16_bf16",
                "i32_i32",
                "i64_i64",
            )
        },
        constants={"ACROSS": 1, "ALONG": 256, "KIND": 0, "READS": 0, "PARTS": 0},
        trials=((1, 256, 0, 0, 0), (1, 64, 0, 1, 0), (32, 8, 1, 0, 3), (32, 8, 2, 0, 0), (32, 8, 3, 2, 0)),
    )
)
REDUCE_SQUARES = declare(
    KernelDecl(
        "reduce_squares",
        function="reduce_body",
        about="Sum over n of the squared distances of x (outer, n, inner) from centers (inner), as reduce computes it.",
        grid=REDUCE.grid,
        args=(REDUCE.args[0], *reads(centers="f32"), *REDUCE.args[1:]),
        headers=REDUCE.headers,
        variants={"IO": ("f32_f32", "f16_f32", "bf16_f32")},
        constants=REDUCE.constants,
        trials=((32, 8, 0, 0, 2), (32, 8, 0, 2, 2), (1, 256, 0, 0, 0)),
    )
)
FINITE_PARTS = declare(
    KernelDecl(
        "finite_parts",
        about="Whether each group's part of the tensors in `table` holds an infinity or a NaN.",
        grid="a group for each 64 KiB of each tensor",
        args=(*reads(table="b8", sizes="u32"), *writes(parts="u32"), *uints("groups", "tensors")),
        headers=("rounding",),
    )
)
FINITE_ALL = declare(
    KernelDecl(
        "finite_all",
        about="Whether all n words of `parts` are 0.",
        grid="one group",
        args=(*reads(parts="u32"), *writes(y="bool"), *uints("n")),
    )
)

_KIND: dict[str | None, int] = {"add": 0, "mul": 1, "max": 2, "min": 3}  # the kind by the primitive that joins elements
_SERIAL = 64  # the most terms that a thread combines serially, before a tree combines the threads, if lines are split
_LEAST_SERIAL = 16
_MOST_PARTS = 32  # the most parts of an earlier stage that a thread joins
_LONG = 1 << 16  # the longest row of one workgroup when there are enough rows to fill the device
_WORKGROUPS_TO_FILL = 1024  # the number of workgroups that fills a device
PLANES = 3  # planes of a Part of a float sum or product (bodies/extended.h)


def _native(node: Node, features: frozenset[str]) -> bool:
    # A mean in f64 is written as a sum and a product: the kernel's divisor is f32.
    doubles = not node.op.averages
    return all(stores(t.dtype, features, doubles) and fits(t.type) for t in (*node.inputs, *node.outputs))


def _by_image(node: Node) -> bool:
    """Whether an image is reduced over its channels or over all its pixels: then the result has the same order in
    either layout."""
    axes, rank = node.attrs["axes"], node.inputs[0].ndim
    return 1 in axes or set(range(2, rank)) <= set(axes)


IMAGES.update(dict.fromkeys(("sum", "mean", "prod", "max", "min"), Reader(_by_image)))


@lowers("sum", "mean", "prod", "max", "min", when=_native)
def lower_reduction(ctx: Lowering, node: Node) -> None:
    """Reduces one run of neighbouring axes after the other, the last run first. Lowering fixes the order of additions:
    it is the same in each run."""
    x, y = narrowed_to(ctx, node.inputs[0]), node.output
    if y.size == 0:
        return
    distances = squares_of(ctx, x)
    if distances is not None:
        x = distances[0]
    kind = _KIND[node.op.joins]
    stored, out = ctx.storage(x), ctx.storage(y)
    work = stored if stored.is_float or stored.name == "i64" else i32
    ref = cast_ref(ctx, ctx.ref(x), stored, work, x.size)
    planes = PLANES if work.is_float and kind < 2 else 1
    parts = 0  # 1 where the elements read are Parts (bodies/extended.h)
    shape, axes = x.shape, node.attrs["axes"]
    if ctx.lies_last(x):
        shape, axes = last_shape(shape), tuple((0, x.ndim - 1, *range(1, x.ndim - 1))[axis] for axis in axes)
    runs = axis_runs(shape, axes)
    target = ctx.ref(y)
    final = out if out == work or (out.is_float and work.is_float) else work
    if final != out:  # maxima of small integers: computed in i32 and narrowed
        target = ctx.scratch(y.size * final.itemsize)
    divisor = float(math.prod(n for n, reduced in runs if reduced)) if node.op.averages else 1.0
    while True:
        last = max((i for i, (_, reduced) in enumerate(runs) if reduced), default=None)
        if last is None:
            runs.append((1, True))  # nothing to reduce: each element is the reduction of itself
            continue
        outer = math.prod(n for n, _ in runs[:last])
        inner = math.prod(n for n, _ in runs[last + 1 :])
        n = runs.pop(last)[0]
        done = not any(reduced for _, reduced in runs)
        here = target if done else ctx.scratch(planes * outer * inner * partial_type(work).itemsize)
        end = final if done else partial_type(work)
        whole = 0 if done or planes == 1 else 2
        centers = None if distances is None else ctx.ref(distances[1])
        reduce_middle(
            ctx, kind, ref, work, here, end, (outer, n, inner), divisor if done else 1.0, parts | whole, centers
        )
        if done:
            break
        ref, work, parts = here, end, int(planes > 1)
    if final != out:
        convert(ctx, target, final, ctx.ref(y), out, y.size)


def narrowed_to(ctx: Lowering, x: Tensor) -> Tensor:
    """The tensor of halves that x is a cast of, if only sums read x, no node overwrites the halves before the last sum,
    and both have one layout: the sums then read the halves, and x is not written. Else x."""
    node = x.node
    if not widens_half(node) or x.dtype != f32 or x.id in ctx.moved or "16bit_storage" not in ctx.target.features:
        return x
    halves, nodes = node.inputs[0], ctx.graph.nodes
    readers = ctx.readers.get(x.id, [])
    if not readers or readers[-1] == len(nodes) or ctx.lies_last(halves) != ctx.lies_last(x):
        return x
    summed = (adds_up(nodes[i]) and (_by_image(nodes[i]) or not ctx.lies_last(x)) for i in readers)
    if not all(summed):
        return x
    between = (t for n in nodes[nodes.index(node) + 1 : readers[-1] + 1] for t in n.outputs if t.id in ctx.plan.slots)
    return x if any(ctx.ref(t).overlaps(ctx.ref(halves)) for t in between) else halves


def squares_of(ctx: Lowering, x: Tensor) -> tuple[Tensor, Tensor] | None:
    """(image, centers) where x has the squared distances of an image with its channels last from one number a channel,
    and only the sum over all its pixels reads x, before anything else overwrites the two: the sum then computes the
    distances, and x is not written."""
    node, nodes = x.node, ctx.graph.nodes
    readers = ctx.readers.get(x.id, [])
    if len(readers) != 1 or readers[0] == len(nodes) or x.id in ctx.moved or not ctx.lies_last(x):
        return None
    reader = nodes[readers[0]]
    pixels = {i for i in range(x.ndim) if i != 1}
    if not adds_up(reader) or set(reader.attrs["axes"]) != pixels or reader.output.dtype != f32:
        return None
    if not node.op.elementwise or len(node.outputs) != 1 or len(node.inputs) != 2:
        return None
    image, centers = node.inputs
    if explicit(node_trees(node)) != _squares(image.dtype) or not (image.dtype == f32 or image.dtype.is_half):
        return None
    # The kernel reads one center a channel; with one channel, or one pixel, the reduced axes merge otherwise.
    each = (1, x.shape[1], *(1,) * (x.ndim - 2))
    centered = centers.dtype == f32 and (1,) * (x.ndim - centers.ndim) + centers.shape == each
    alike = image.shape == x.shape and centered and 1 < x.shape[1] < x.size
    stored = all(ctx.storage(t) == t.dtype for t in (image, centers, reader.output))
    if not (alike and stored and ctx.lies_last(image)) or {image.id, centers.id} & ctx.moved.keys():
        return None
    between = (t for n in nodes[nodes.index(node) + 1 : readers[0]] for t in n.outputs if t.id in ctx.plan.slots)
    kept = [ctx.ref(image), ctx.ref(centers)]
    return None if any(ctx.ref(t).overlaps(ref) for t in between for ref in kept) else (image, centers)


def _squares(dtype: DType) -> tuple[ex.Expr, ...]:
    """The tree of squared distances of values of a dtype from numbers in f32."""
    far = (ex.cast(ex.arg(0, dtype), f32) if dtype != f32 else ex.arg(0, f32)) - ex.arg(1, f32)
    return explicit((far * far,))


def axis_runs(shape: tuple[int, ...], axes: tuple[int, ...]) -> list[tuple[int, bool]]:
    """(length, reduced) of each run of neighbouring axes that are all reduced or all kept; axes of length 1 are
    dropped."""
    runs: list[tuple[int, bool]] = []
    for i, n in enumerate(shape):
        reduced = i in axes
        if n == 1:
            continue
        if runs and runs[-1][1] == reduced:
            runs[-1] = (runs[-1][0] * n, reduced)
        else:
            runs.append((n, reduced))
    return runs


def partial_type(dtype: DType) -> DType:
    """The dtype in which partial results are kept."""
    return promote(dtype, f32) if dtype.is_float else dtype


def reduce_middle(
    ctx: Lowering, kind: int, x: Ref, source: DType, y: Ref, target: DType, dims: tuple[int, int, int], divisor: float,
    parts: int, centers: Ref | None = None,
) -> None:  # fmt: skip
    """One reduction over the middle of (outer, n, inner), in as many stages as its length needs. `parts` is PARTS of
    the kernel: 1 where Parts are read, plus 2 where they are written. `centers`: the terms are squared distances from
    them."""
    outer, n, inner = dims
    at_once = _at_once(x, source, n, inner)
    terms = n // 8 if at_once == 1 else n
    places = inner // 2 if at_once == 2 else inner
    each = 8 if at_once == 1 else 4  # terms of a thread, so that its tree is a small part of its work
    # The parts of an earlier stage are few: more threads along them spare a stage.
    across = min(power(places), 8 if parts & 1 else 32)
    along = min(power(-(-terms // each)), THREADS // across) if terms > 4 else 1
    groups = math.ceil(outer / (THREADS // (across * along))) * math.ceil(places / across)
    chunk = part_of(n, along, groups)
    if groups >= _WORKGROUPS_TO_FILL:
        chunk = max(chunk, min(n, _LONG))
    if parts & 1 and n <= along * _MOST_PARTS:
        chunk = n
    splits = max(1, -(-n // chunk))
    chunk = max(1, -(-n // splits))  # parts of equal length
    if at_once == 1:
        chunk = -(-chunk // 8) * 8
        splits = max(1, -(-n // chunk))
    constants = {"ACROSS": across, "ALONG": along, "KIND": kind, "READS": at_once, "PARTS": parts}
    if splits > 1:
        part = partial_type(target)
        planes = PLANES if part.is_float and kind < 2 else 1
        sums = ctx.scratch(planes * outer * splits * inner * part.itemsize)
        constants["PARTS"] = parts & 1 | (2 if planes > 1 else 0)
        _launch(ctx, constants, x, source, sums, part, (outer, n, inner), (chunk, splits), 1.0, centers)
        reduce_middle(ctx, kind, sums, part, y, target, (outer, splits, inner), divisor, parts & 2 | int(planes > 1))
    else:
        apart = centers is not None and (y.overlaps(centers) or y.overlaps(x))  # the plan frees them before the sum
        here = ctx.scratch(y.nbytes) if apart else y
        _launch(ctx, constants, x, source, here, target, (outer, n, inner), (n, 1), divisor, centers)
        if apart:
            ctx.copy(here, y)


def part_of(n: int, along: int, groups: int) -> int:
    """The terms per part of a line of n, for `groups` workgroups with `along` threads on a line: small enough that the
    parts fill the device, but with enough terms per thread that the tree is a small part of the work."""
    return min(along * _SERIAL, max(along * _LEAST_SERIAL, math.ceil(n * groups / _WORKGROUPS_TO_FILL)))


def _launch(
    ctx: Lowering,
    constants: dict[str, int],
    x: Ref,
    source: DType,
    y: Ref,
    target: DType,
    dims: tuple[int, int, int],
    parts: tuple[int, int],
    divisor: float,
    centers: Ref | None,
) -> None:
    across = constants["ACROSS"]
    items = THREADS // (across * constants["ALONG"])
    places = dims[2] // 2 if constants["READS"] == 2 else dims[2]
    count = math.ceil(dims[0] * parts[1] / items) * math.ceil(places / across)
    kernel = (REDUCE if centers is None else REDUCE_SQUARES)(IO=f"{source}_{target}", **constants)
    ctx.launch(kernel, ctx.groups(count), [x, *([] if centers is None else [centers]), y, *dims, *parts, divisor])


def _at_once(x: Ref, source: DType, n: int, inner: int) -> int:
    """READS of the kernel: for 16-bit floats, 1 to read eight terms of a row at once, 2 to read two columns; else 0."""
    if not source.is_float or source.itemsize != 2:
        return 0
    if inner == 1:
        return int(n % 8 == 0 and x.offset % 16 == 0)
    return 2 if inner % 2 == 0 and x.offset % 4 == 0 else 0


_GROUP_BYTES = 1 << 16  # bytes that a workgroup of finite_parts reads
_EXPONENTS = {"f16": 0x7C00, "bf16": 0x7F80, "f32": 0x7F800000}  # exponent bits, all set in infinities and NaNs


def _finds(node: Node, features: frozenset[str]) -> bool:
    kinds = all(t.dtype.name in _EXPONENTS and stores(t.dtype, features) and fits(t.type) for t in node.inputs)
    return kinds and {"8bit_storage", "16bit_storage"} <= features


@lowers("all_finite", when=_finds)
def lower_all_finite(ctx: Lowering, node: Node) -> None:
    """One launch over all inputs, in which each workgroup checks a part of one input; a second launch combines the
    results."""
    tensors = [(ctx.ref(t), ctx.storage(t), t.size) for t in node.inputs if t.size]
    sizes: list[int] = []
    groups = 0
    for _, stored, n in tensors:
        mask = _EXPONENTS[stored.name]
        high = mask << 16 if stored.itemsize == 2 else mask
        nbytes = n * stored.itemsize
        sizes += (groups, nbytes // 4, nbytes % 4 // 2, mask, high)
        groups += math.ceil(nbytes / _GROUP_BYTES)
    parts = ctx.scratch(4 * groups)
    if groups:
        refs = [ref for ref, _, _ in tensors]
        table, block = ctx.table(refs), ctx.block(sizes)
        ctx.launch(FINITE_PARTS(), ctx.groups(groups), [table, block, parts, groups, len(tensors)])
        launch = ctx.steps[-1]
        assert isinstance(launch, Launch)
        ctx.steps[-1] = replace(launch, reads=(*launch.reads, *refs))
    ctx.launch(FINITE_ALL(), (1, 1, 1), [parts, ctx.ref(node.output), groups])
