"""Lowering of convolution, transposed convolution and both gradients of convolution, and of im2col.

A transposed convolution is one convolution for each phase of its output: output elements that lie a stride apart are
reached by the same taps and form a phase. One launch computes all phases.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from rlx.backends.gpu.elementwise.strided import View, contiguous, launch_tree
from rlx.backends.gpu.gemm.choice import stored_pair
from rlx.backends.gpu.gemm.launch import epilogue_tree
from rlx.backends.gpu.program.casts import THREADS, cast_ref, fits, groups_for, quads, stores
from rlx.backends.gpu.program.kernel import KernelDecl, declare, reads, uints, writes
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.backends.gpu.program.steps import Arg, Gemm, Ref
from rlx.backends.gpu.rules.reduce import REDUCE
from rlx.dtypes import DType, f32, promote
from rlx.ir import Node, Tensor
from rlx.ir import expr as ex

CONV = declare(
    KernelDecl(
        "conv",
        about=(
            "y = act(product of weights w and columns read out of x + bias): convolution, transposed "
            "convolution, its gradient to x."
        ),
        grid="a group of 256 for each tile of BM rows x BN columns of each group, phase and split",
        # x, w, bias (f32), taps, places, meta (bodies/conv.h), y, batch, groups, rows, phases, columns, chunk,
        # splits.
        args=(
            *reads(x="TA", w="TB", bias="f32", taps="b16", places="u32", meta="u32"),
            *writes(y="TA"),
            *uints("batch", "groups", "rows", "phases", "columns", "chunk", "splits"),
        ),
        variants={"AB": ("f32_f32", "f32_f16", "f32_bf16", "f16_f16", "bf16_bf16")},
        constants={
            "BM": 64,
            "BN": 64,
            "SPARSE": False,
            "HAS_BIAS": False,
            "ACTIVATION": 0,
            "W_QUADS": False,
            "Y_QUADS": False,
        },
        trials=((64, 64, False, True, 1, True, True), (128, 128, True, False, 0, False, False)),
    )
)
CONV_DIRECT = declare(
    KernelDecl(
        "conv_direct",
        about=(
            "y = act(weights w times what they lie on in x + bias), a thread for each element: convolutions "
            "of few rows a group."
        ),
        grid="a thread for each row, phase and column of each group, in groups of 256",
        # x, w, bias (f32), taps, places, meta (bodies/conv.h), y, batch, groups, rows, phases, columns.
        args=(
            *reads(x="TA", w="TB", bias="f32", taps="b16", places="u32", meta="u32"),
            *writes(y="TA"),
            *uints("batch", "groups", "rows", "phases", "columns"),
        ),
        headers=("body64",),
        variants={"AB": ("f32_f32", "f64_f64", "f32_f16", "f32_bf16", "f16_f16", "bf16_bf16")},
        constants={"SPARSE": False, "HAS_BIAS": False, "ACTIVATION": 0},
        trials=((False, True, 2), (True, False, 0)),
    )
)
CONV_WEIGHT = declare(
    KernelDecl(
        "conv_weight",
        about="y = gradient of a convolution's weights, of its input x and the gradient d of its result.",
        grid="a group of 256 for each tile of BM rows x BN columns of each group and split",
        # x, d, meta (bodies/conv_weight.h), y, batch, groups, rows, columns, chunk, splits.
        args=(
            *reads(x="TI", d="TI", meta="u32"),
            *writes(y="TO"),
            *uints("batch", "groups", "rows", "columns", "chunk", "splits"),
        ),
        variants={"IO": ("f32_f32", "f16_f16", "bf16_bf16", "f16_f32", "bf16_f32")},
        constants={"BM": 64, "BN": 64},
        trials=((64, 128), (128, 64)),
    )
)
CONV_WEIGHT_DIRECT = declare(
    KernelDecl(
        "conv_weight_direct",
        about=(
            "y = gradient of a convolution's weights, of its input x and the gradient d of its result, for "
            "small groups."
        ),
        grid="a group of 256 for each element of y",
        # x, d, meta (bodies/conv_weight.h), y, batch, groups, rows, columns.
        args=(*reads(x="T", d="T", meta="u32"), *writes(y="T"), *uints("batch", "groups", "rows", "columns")),
        headers=("body64",),
        variants={"T": ("f32", "f64", "f16", "bf16")},
    )
)
IM2COL = declare(
    KernelDecl(
        "im2col",
        about="y (lines, taps, positions) = the elements of x under every position of a window; moves bits.",
        grid="a thread for each unit of y, in groups of 256",
        # x, meta (bodies/im2col.h), y, total, units.
        args=(*reads(x="U", meta="u32"), *writes(y="U"), *uints("total", "units")),
        variants={"U": ("b1", "b2", "b4")},
    )
)

_CODE = {None: 0, "relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4, "tanh": 5, "sigmoid": 6}
_FEW_ROWS = 8  # up to this many output channels of a convolution group, one thread sums each element
_TILE_N = 64  # columns of a tile
# Multiply-adds a microsecond of a unit that runs one, two, … workgroups at once, by the rows of a tile.
_RATES = {64: (40e3, 60e3, 72e3, 78e3), 128: (55e3, 85e3, 104e3)}
_JOIN = 4.0  # microseconds that adding up parts takes at least
_WORDS = 7e5  # elements that memory moves in a microsecond
_MANY_GROUPS = 512  # workgroups that a gradient of weights is split into at most, unless its sums are long
_LONG_SUM = 8192  # longer sums are added up in parts
_MAX_SPLITS = 10  # parts that one tree adds up
_MIN_CHUNK = 128
_WEIGHT_CHUNK = 4096
_SMALL_GROUP = 1024  # up to this many weights of a convolution group, a workgroup computes each weight's gradient
_FEATURE = {1: "8bit_storage", 2: "16bit_storage"}
Table = npt.NDArray[np.int32]


def _native(node: Node, features: frozenset[str]) -> bool:
    tensors = (*node.inputs, *node.outputs)
    return all(stores(t.dtype, features, doubles=True) for t in tensors) and fits(*(t.type for t in tensors))


def three(values: Sequence[int], fill: int) -> list[int]:
    """One to three values of spatial axes as three, with `fill` in front."""
    return [fill] * (3 - len(values)) + list(values)


@dataclass(frozen=True, slots=True)
class Reading:
    """How a convolution reads x and w: see bodies/conv.h. `meta` is the kernel's block without the phases, which are in
    `phases`."""

    rows: int
    groups: int
    meta: list[int]
    phases: list[list[int]]
    taps: Table
    places: Table | None

    @property
    def terms(self) -> int:
        return max(p[0] for p in self.phases)

    def columns(self, batch: int) -> int:
        return batch * max(p[2] * p[3] * p[4] for p in self.phases)


def _axis(values: Sequence[int], axis: int) -> npt.NDArray[np.int64]:
    """Values of one of the axes (channel, and three in space) of a table."""
    shape = [1, 1, 1, 1]
    shape[axis] = len(values)
    return np.asarray(values, np.int64).reshape(shape)


def _table(channels: int, offsets: Sequence[Sequence[int]], sizes: Sequence[int]) -> Table:
    """(offset in x, offsets along the axes) of each term: channels, then the offsets of each axis."""
    at = [_axis(o, i + 1) for i, o in enumerate(offsets)]
    where = _axis(range(channels), 0)
    for offset, size in zip(at, sizes, strict=True):
        where = where * size + offset
    parts = np.broadcast_arrays(where, *at)
    return np.ascontiguousarray(np.stack([p.reshape(-1) for p in parts], axis=1), np.int32)


def forward_reading(x: Sequence[int], w: Sequence[int], y: Sequence[int], node: Node) -> Reading:
    """A convolution of shapes x and w into y."""
    attrs, groups = node.attrs, node.attrs["groups"]
    sizes, kernel, counts = three(x[2:], 1), three(w[2:], 1), three(y[2:], 1)
    before = three([a for a, _ in attrs["pads"]], 0)
    dilations = three(attrs["dilations"], 1)
    offsets = [[k * d - a for k in range(n)] for n, d, a in zip(kernel, dilations, before, strict=True)]
    inner, rows, size = w[1], w[0] // groups, math.prod(sizes)
    terms = inner * math.prod(kernel)
    meta = [
        *sizes, *three(attrs["strides"], 1), x[1] * size, inner * size, math.prod(counts),
        counts[1] * counts[2], counts[2], 1, rows * terms, terms, math.prod(y), 0,
    ]  # fmt: skip
    phases = [[terms, 0, *counts, 0, 0, 0]]
    return Reading(rows, groups, meta, phases, _table(inner, offsets, sizes), None)


def backward_reading(x: Sequence[int], w: Sequence[int], y: Sequence[int], node: Node) -> Reading:
    """A transposed convolution of shapes x and w into y."""
    attrs, groups = node.attrs, node.attrs["groups"]
    sizes, kernel, out = three(x[2:], 1), three(w[2:], 1), three(y[2:], 1)
    before = three([a for a, _ in attrs["pads"]], 0)
    strides, dilations = three(attrs["strides"], 1), three(attrs["dilations"], 1)
    inner, channels, size, taps = w[1], w[0] // groups, math.prod(sizes), math.prod(kernel)
    lines = (out[1] * out[2], out[2], 1)
    meta = [
        *sizes, 1, 1, 1, x[1] * size, channels * size, math.prod(out),
        *(s * line for s, line in zip(strides, lines, strict=True)), channels * inner * taps, taps, math.prod(y), 0,
    ]  # fmt: skip
    phases, tables, places = [], [], []
    done = 0
    for phase in product(*(range(min(s, n)) for s, n in zip(strides, out, strict=True))):
        reaching = [
            [k for k in range(n) if (r + a - k * d) % s == 0]
            for n, r, a, d, s in zip(kernel, phase, before, dilations, strides, strict=True)
        ]
        offsets = [
            [(r + a - k * d) // s for k in ks]
            for ks, r, a, d, s in zip(reaching, phase, before, dilations, strides, strict=True)
        ]
        place = _axis(range(channels), 0) * (inner * taps)
        for i, ks in enumerate(reaching):
            place = place + _axis([k * math.prod(kernel[i + 1 :]) for k in ks], i + 1)
        tables.append(_table(channels, offsets, sizes))
        places.append(place.reshape(-1))
        counts = [-(-(n - r) // s) for n, r, s in zip(out, phase, strides, strict=True)]
        start = sum(r * line for r, line in zip(phase, lines, strict=True))
        phases.append([len(tables[-1]), done, *counts, start, 0, 0])
        done += len(tables[-1])
    where = np.concatenate(places).astype(np.int32)
    return Reading(inner, groups, meta, phases, np.concatenate(tables), where)


@lowers("conv", when=_native)
def lower_conv(ctx: Lowering, node: Node) -> None:
    """The product of the weights and columns that are read out of x directly; with a window of one element it is a GEMM
    of the vendor's library."""
    x, w, y = node.inputs[0], node.inputs[1], node.output
    if y.size == 0:
        return
    if ctx.target.library is not None and _pointwise(node) and w.size:
        pair = stored_pair(ctx.storage(x), ctx.storage(w), ctx.storage(y))
        if pair[0] == pair[1]:
            _library(ctx, node, pair[0])
            return
    _convolve(ctx, node, forward_reading(x.shape, w.shape, y.shape, node))


def _pointwise(node: Node) -> bool:
    """Whether every output element is a product of the weights and the channels of one input element."""
    attrs = node.attrs
    plain = attrs["groups"] == 1 and set(attrs["strides"]) == {1} and not any(map(any, attrs["pads"]))
    return plain and math.prod(node.inputs[1].shape[2:]) == 1


def _library(ctx: Lowering, node: Node, dtype: DType) -> None:
    """w (O, C) times each image (C, P); for images of one element, one product of (N, C) and wᵀ. Then the epilogue."""
    x, w, y = node.inputs[0], node.inputs[1], node.output
    a, b = (cast_ref(ctx, ctx.ref(t), ctx.storage(t), dtype, t.size) for t in (w, x))
    target, stored = ctx.ref(y), ctx.storage(y)
    bias = _bias(ctx, node, stored)
    plain = bias is None and node.attrs["activation"] is None
    wide = stored if plain or not dtype.is_half else f32
    made = target if wide == stored else ctx.scratch(y.size * wide.itemsize)
    batch, inner, rows, size = x.shape[0], x.shape[1], w.shape[0], math.prod(x.shape[2:])
    precision = ctx.precision if dtype == f32 else dtype.name
    label = node.label or node.op.name
    kinds = (dtype, dtype, wide)
    if size == 1:
        ctx.emit(Gemm(b, a, made, batch, rows, inner, *kinds, False, True, 1, 0, 0, 0, precision, label))
    else:
        strides = (0, inner * size, rows * size)
        ctx.emit(Gemm(a, b, made, rows, size, inner, *kinds, False, False, batch, *strides, precision, label))
    if not plain:
        _join(ctx, node, made, wide, 1, bias, target, stored)


@lowers("conv_transpose", "conv_grad_input", when=_native)
def lower_conv_transpose(ctx: Lowering, node: Node) -> None:
    """The kernel of convolution, for each phase of the output."""
    x, w, y = node.inputs[0], node.inputs[1], node.output
    if y.size:
        _convolve(ctx, node, backward_reading(x.shape, w.shape, y.shape, node))


def _convolve(ctx: Lowering, node: Node, reading: Reading) -> None:
    x, w, y = node.inputs[0], node.inputs[1], node.output
    if y.size == 0:
        return
    target, stored = ctx.ref(y), ctx.storage(y)
    pair = stored_pair(ctx.storage(x), ctx.storage(w), stored)
    a, b = (cast_ref(ctx, ctx.ref(t), ctx.storage(t), d, t.size) for t, d in zip((x, w), pair, strict=True))
    bias = _bias(ctx, node, stored)
    batch = y.shape[0]
    sparse = reading.places is not None
    activation = _CODE[node.attrs.get("activation")]
    pairs = f"{pair[0]}_{pair[1]}"
    taps = ctx.block(reading.taps.reshape(-1))
    places = ctx.block(reading.places) if reading.places is not None else taps
    meta = ctx.block([*reading.meta, *(v for p in reading.phases for v in p)])
    rows, groups, phases, columns = reading.rows, reading.groups, len(reading.phases), reading.columns(batch)
    if stored.name == "f64":  # a tree applies bias and activation, since trees compute in f64
        later = bias is not None or activation != 0
        made = ctx.scratch(y.size * stored.itemsize) if later else target
        kernel = CONV_DIRECT(AB=pairs, SPARSE=sparse, HAS_BIAS=False, ACTIVATION=0)
        sizes = [batch, groups, rows, phases, columns]
        launches = groups_for(ctx, columns * rows * groups * phases)
        ctx.launch(kernel, launches, [a, b, meta, taps, places, meta, made, *sizes])
        if later:
            _join(ctx, node, made, stored, 1, bias, target, stored)
        return
    if rows <= _FEW_ROWS:
        kernel = CONV_DIRECT(AB=pairs, SPARSE=sparse, HAS_BIAS=bias is not None, ACTIVATION=activation)
        args: list[Arg] = [
            a,
            b,
            bias or meta,
            taps,
            places,
            meta,
            target,
            batch,
            groups,
            rows,
            phases,
            columns,
        ]
        ctx.launch(kernel, groups_for(ctx, columns * rows * groups * phases), args)
        return
    most = _MAX_SPLITS if pair[0] == f32 else 1
    tile_m, chunk, splits = _shape(ctx.target.units, rows, columns, reading.terms, groups * phases, y.size, most)
    tiles = math.ceil(rows / tile_m) * math.ceil(columns / _TILE_N) * groups * phases
    whole = splits == 1
    made = target if whole else ctx.scratch(splits * y.size * pair[0].itemsize)
    kernel = CONV(
        AB=pairs,
        BM=tile_m,
        BN=_TILE_N,
        SPARSE=sparse,
        HAS_BIAS=bias is not None and whole,
        ACTIVATION=activation if whole else 0,
        W_QUADS=not sparse and reading.terms % 4 == 0 and quads(b, itemsize=pair[1].itemsize),
        Y_QUADS=not sparse and reading.meta[8] % 4 == 0 and quads(made, itemsize=pair[0].itemsize),
    )
    args = [a, b, bias or meta, taps, places, meta, made, batch, groups, rows, phases, columns, chunk, splits]
    ctx.launch(kernel, ctx.groups(tiles * splits), args)
    if not whole:
        _join(ctx, node, made, f32, splits, bias, target, stored)


def _bias(ctx: Lowering, node: Node, stored: DType) -> Ref | None:
    """The bias in the dtype in which results of dtype `stored` are computed."""
    if len(node.inputs) < 3:
        return None
    bias = node.inputs[2]
    return cast_ref(ctx, ctx.ref(bias), ctx.storage(bias), promote(stored, f32), bias.size)


def _shape(
    units: int, rows: int, columns: int, terms: int, others: int, size: int, most: int
) -> tuple[int, int, int]:
    """The (rows of a tile, terms of a part, parts) that should take the least time: each unit gets a whole number of
    workgroups, and a unit that runs several at once works faster. The rates were measured on an H200."""
    best = (float("inf"), 64, terms, 1)
    for tile_m in (64, 128) if rows > 64 else (64,):
        tiles = math.ceil(rows / tile_m) * math.ceil(columns / _TILE_N) * others
        for wanted in range(1, most + 1):
            if wanted > 1 and terms < wanted * _MIN_CHUNK:
                break
            chunk = max(8, math.ceil(terms / wanted / 8) * 8)
            splits = max(1, -(-terms // chunk))
            if chunk > _LONG_SUM and wanted < most:
                continue
            each = math.ceil(tiles * splits / units)
            rates = _RATES[tile_m]
            time = each * chunk * tile_m * _TILE_N / rates[min(max(each, 1), len(rates)) - 1]
            if splits > 1:
                time += _JOIN + size * (splits + 2) / _WORDS
            best = min(best, (time, tile_m, chunk, splits))
    return best[1:]


def _join(
    ctx: Lowering,
    node: Node,
    parts: Ref,
    kept: DType,
    splits: int,
    bias: Ref | None,
    target: Ref,
    stored: DType,
) -> None:
    """Adds up the parts in order, with bias and activation, in one pass."""
    y, wide = node.output, promote(stored, f32)
    shape = (y.shape[0], y.shape[1], math.prod(y.shape[2:]))
    nbytes = y.size * kept.itemsize
    inputs = [
        View(Ref(parts.segment, parts.offset + i * nbytes, nbytes), kept, contiguous(shape))
        for i in range(splits)
    ]
    total = ex.arg(0, kept)
    for i in range(1, splits):
        total = total + ex.arg(i, kept)
    arguments = [total]
    if bias is not None:
        arguments.append(ex.arg(splits, wide))
        inputs.append(View(bias, wide, (0, 1, 0)))
    plain = epilogue_tree(kept, wide if bias is not None else None, node.attrs.get("activation"), stored)
    tree = ex.substitute(plain, arguments)
    launch_tree(ctx, [tree], shape, inputs, [View(target, stored, contiguous(shape))])


def window_meta(x: Tensor, counts: Sequence[int], kernel: Sequence[int], node: Node) -> list[int]:
    """Sizes, positions, strides, dilations, padding before and kernel of a window, three of each."""
    attrs = node.attrs
    return [
        *three(x.shape[2:], 1), *three(counts, 1), *three(attrs["strides"], 1),
        *three(attrs.get("dilations", (1,) * len(kernel)), 1), *three([a for a, _ in attrs["pads"]], 0),
        *three(kernel, 1),
    ]  # fmt: skip


@lowers("conv_grad_weight", when=_native)
def lower_conv_grad_weight(ctx: Lowering, node: Node) -> None:
    """Tiles over output channels and weights; the terms are cut into parts, which are added up in a fixed order."""
    (x, d), y = node.inputs, node.output
    if y.size == 0:
        return
    groups, batch = node.attrs["groups"], x.shape[0]
    target, stored = ctx.ref(y), ctx.storage(y)
    a, b = (cast_ref(ctx, ctx.ref(t), ctx.storage(t), stored, t.size) for t in (x, d))
    counts = d.shape[2:]
    size = math.prod(x.shape[2:])
    meta = ctx.block(
        [*window_meta(x, counts, node.attrs["kernel"], node), x.shape[1] * size, x.shape[1] // groups * size]
    )
    rows, columns = y.shape[0] // groups, math.prod(y.shape[1:])
    terms = batch * math.prod(counts)
    if stored.name == "f64" or (rows * columns <= _SMALL_GROUP and rows <= 4 * _FEW_ROWS):
        kernel = CONV_WEIGHT_DIRECT(T=stored.name)
        ctx.launch(kernel, ctx.groups(y.size), [a, b, meta, target, batch, groups, rows, columns])
        return
    tile_m, tile_n = (128 if rows > 64 else 64), (128 if columns > 64 else 64)
    tiles = math.ceil(rows / tile_m) * math.ceil(columns / tile_n) * groups
    splits = max(1, min(_MANY_GROUPS // tiles, terms // _MIN_CHUNK), -(-terms // _WEIGHT_CHUNK))
    chunk = max(8, math.ceil(terms / splits / 8) * 8)
    splits = max(1, -(-terms // chunk))
    end = stored if splits == 1 else f32
    made = target if splits == 1 else ctx.scratch(splits * y.size * 4)
    kernel = CONV_WEIGHT(IO=f"{stored}_{end}", BM=tile_m, BN=tile_n)
    ctx.launch(
        kernel, ctx.groups(tiles * splits), [a, b, meta, made, batch, groups, rows, columns, chunk, splits]
    )
    if splits > 1:
        across, along = 32, THREADS // 32
        reduce = REDUCE(IO=f"f32_{stored}", ACROSS=across, ALONG=along, KIND=0, READS=0, PARTS=0)
        ctx.launch(
            reduce, ctx.groups(math.ceil(y.size / across)), [made, target, 1, splits, y.size, splits, 1, 1.0]
        )


def _movable(node: Node, features: frozenset[str]) -> bool:
    need = _FEATURE.get(node.output.dtype.itemsize)
    return (need is None or need in features) and fits(*(t.type for t in (*node.inputs, *node.outputs)))


@lowers("im2col", when=_movable)
def lower_im2col(ctx: Lowering, node: Node) -> None:
    """One thread copies each unit of the result, without conversion."""
    x, y = node.inputs[0], node.output
    if y.size == 0:
        return
    stored = ctx.storage(y)
    source = cast_ref(ctx, ctx.ref(x), ctx.storage(x), stored, x.size)
    kernel, attrs = node.attrs["kernel"], node.attrs
    counts = [
        (n + a + b - d * (k - 1) - 1) // s + 1
        for n, k, s, d, (a, b) in zip(
            x.shape[2:], kernel, attrs["strides"], attrs["dilations"], attrs["pads"], strict=True
        )
    ]
    unit = min(stored.itemsize, 4)
    units = stored.itemsize // unit
    meta = ctx.block(window_meta(x, counts, kernel, node))
    ctx.launch(
        IM2COL(U=f"b{unit}"),
        groups_for(ctx, y.size * units),
        [source, meta, ctx.ref(y), y.size * units, units],
    )
