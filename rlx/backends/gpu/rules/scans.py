"""Lowering of the recurrences: each is one launch for a whole sequence."""

from __future__ import annotations

import math

from rlx.backends.gpu.elementwise.strided import View, launch_tree
from rlx.backends.gpu.program.casts import cast_ref, groups_for, native, quads
from rlx.backends.gpu.program.kernel import FLOATS, KernelDecl, declare, floats, reads, uints, updates, writes
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.backends.gpu.program.steps import Arg, Ref
from rlx.backends.gpu.rules.reduce import reduce_middle
from rlx.backends.gpu.rules.rows import power
from rlx.dtypes import DType, f32
from rlx.ir import Node, Tensor, expr
from rlx.ops.scans import conv, delta, selective
from rlx.ops.scans.operands import optional

SELECTIVE_SCAN = declare(
    KernelDecl(
        "selective_scan",
        about="The selective scan of x (batch, length, channels), with `width` channels a head.",
        grid="a group of 128 for each 128 / LANES channels of each group of heads and batch: `items`",
        args=(
            *reads(
                x="T",
                delta="T",
                decay="f32",
                gain="T",
                reading="T",
                skip="f32",
                gate="T",
                state="f32",
                bias="f32",
            ),
            *writes(y="T", last="f32"),
            *uints("items", "length", "channels", "width", "groups", "blocks"),
        ),
        headers=("prims",),
        variants={"T": FLOATS},
        constants={"LANES": 4, "STATES": 16, "STEPS": 16, "GIVEN": 0, "SCALAR": False, "ALIGNED": False},
        trials=((4, 16, 16, 31, False, True), (1, 5, 8, 0, False, False), (8, 128, 4, 20, True, False)),
        threads=128,
    )
)
SELECTIVE_SCAN_GRAD = declare(
    KernelDecl(
        "selective_scan_grad",
        about="The gradient of the selective scan of x (batch, length, channels), with `width` channels a head.",
        grid="a group of 128 for each 128 / LANES channels of each group of heads and batch: `items`",
        args=(
            *reads(
                dy="f32",
                dlast="f32",
                x="f32",
                delta="f32",
                decay="f32",
                gain="f32",
                reading="f32",
                state="f32",
            ),
            *updates(work="f32"),
            *writes(dx="f32", ddelta="f32", da="f32", dstate="f32"),
            *uints("items", "length", "channels", "width", "groups", "blocks"),
        ),
        headers=("prims",),
        constants={"LANES": 4, "STATES": 16, "STEPS": 16, "SCALAR": False, "STATE": False},
        trials=((4, 16, 16, False, True), (1, 3, 8, True, False), (64, 250, 4, False, False)),
        threads=128,
    )
)
DELTA_RULE = declare(
    KernelDecl(
        "delta_rule",
        about="The gated delta rule over values (batch, length, heads, values), `per` heads a key.",
        grid="a group of 128 for each 128 / LANES rows of the state of each head and batch: `items`",
        args=(
            *reads(query="T", key="T", value="T", beta="f32", gate="f32", state="f32"),
            *writes(o="T", last="f32"),
            *uints("items", "length", "heads", "values", "per", "blocks"),
            *floats("scale"),
        ),
        headers=("prims",),
        variants={"T": FLOATS},
        constants={"LANES": 8, "KEYS": 128, "STEPS": 8, "GIVEN": 0, "ALIGNED": False},
        trials=((8, 128, 8, 3, True), (1, 3, 8, 0, False), (16, 250, 4, 1, False)),
        threads=128,
        subgroups=True,
    )
)
DELTA_RULE_GRAD = declare(
    KernelDecl(
        "delta_rule_grad",
        about="The gradient of the gated delta rule over values (batch, length, heads, values), `per` heads a key.",
        grid="a group of 128 for each 128 / LANES rows of the state of each head and batch: `items`",
        args=(
            *reads(
                d_o="f32", dlast="f32", query="f32", key="f32", value="f32", beta="f32", gate="f32", state="f32"
            ),
            *updates(work="f32"),
            *writes(dvalue="f32", dstate="f32"),
            *uints("items", "length", "heads", "values", "per", "blocks", "given"),
            *floats("scale"),
        ),
        headers=("prims",),
        constants={"LANES": 8, "KEYS": 128, "STEPS": 16},
        trials=((32, 128, 16), (1, 3, 16), (64, 250, 16)),
        threads=128,
        subgroups=True,
    )
)
CAUSAL_CONV = declare(
    KernelDecl(
        "causal_conv",
        about="A short causal convolution of each channel of x (batch, length, channels).",
        grid="a thread for each of `total` = batch * (runs + 1) * channels",
        args=(
            *reads(x="T", w="T", bias="T", state="T"),
            *writes(y="T", last="T"),
            *uints("total", "length", "channels", "runs"),
        ),
        headers=("prims",),
        variants={"T": FLOATS},
        constants={"WIDTH": 4, "RUN": 8, "GIVEN": 0},
        trials=((4, 8, 7), (8, 1, 2), (2, 4, 0)),
    )
)

_THREADS = 128
_SHARED_BYTES = 16 << 10  # shared memory that every device has, and with which several workgroups are resident
_QUADS = 4  # the most quads of a state per thread, as long as more threads can share it
_THREADS_TO_FILL = 1 << 15  # the number of threads that fills a device
_ROW = 1024  # states of a channel, or columns of a row, that a row of threads holds in registers at most
_KEPT = 16  # a gradient stores the state of every 16th step
_MAX_WORKSPACE_FLOATS = 1 << 28  # the most floats of workspace for a gradient


def _lanes(pieces: int, rows: int) -> int:
    """The number of threads for a row of `pieces` quads: as few as can hold it, or more where the rows alone do not
    fill the device."""
    least = min(32, power(-(-pieces // _QUADS)))
    return min(32, max(least, min(power(pieces), power(-(-_THREADS_TO_FILL // max(rows, 1))))))


def _steps(nbytes_a_step: int, length: int) -> int:
    """How many steps go through shared memory at a time."""
    return min(16, power(length), 1 << max(0, (_SHARED_BYTES // nbytes_a_step).bit_length() - 1))


def _given(
    ctx: Lowering, more: dict[str, Tensor], names: tuple[str, ...], like: dict[str, DType], unread: Ref
) -> list[Ref]:
    """The optional operands in the kernel's dtypes; `unread` stands in for those that are not given."""
    return [
        cast_ref(ctx, ctx.ref(more[n]), ctx.storage(more[n]), like[n], more[n].size) if n in more else unread
        for n in names
    ]


def _flags(more: dict[str, Tensor], names: tuple[str, ...]) -> int:
    return sum(1 << i for i, name in enumerate(names) if name in more)


def _cast(ctx: Lowering, t: Tensor, dtype: DType) -> Ref:
    return cast_ref(ctx, ctx.ref(t), ctx.storage(t), dtype, t.size)


def _native(node: Node, features: frozenset[str]) -> bool:
    """Whether a row of threads can hold the last axis of the state."""
    return native(node, features) and node.outputs[1].shape[-1] <= _ROW


@lowers("selective_scan", when=_native)
def lower_selective_scan(ctx: Lowering, node: Node) -> None:
    """A row of threads for each channel, which walks the sequence with the states in registers."""
    x, step, a, b, c = node.inputs[:5]
    y, last = node.outputs
    more = optional("selective_scan", node.inputs, 5, selective.NAMES, node.attrs["operands"])
    s = selective.sizes_of(x, a, b)
    if last.size == 0:
        return
    stored = ctx.storage(y)
    pieces = -(-s.states // 4)
    lanes = _lanes(pieces, s.batch * s.channels)
    channels = _THREADS // lanes
    blocks = math.ceil(s.channels // s.groups / channels)
    items = s.batch * s.groups * blocks
    refs = [_cast(ctx, t, d) for t, d in ((x, stored), (step, stored), (a, f32), (b, stored), (c, stored))]
    like = {"D": f32, "z": stored, "state": f32, "bias": f32}
    refs += _given(ctx, more, selective.NAMES, like, refs[2])
    refs += [ctx.ref(y), ctx.ref(last)]
    rows = [refs[-1], *([] if s.scalar else refs[2:3]), *(refs[7:8] if "state" in more else [])]
    kernel = SELECTIVE_SCAN(
        T=stored.name,
        LANES=lanes,
        STATES=s.states,
        STEPS=_steps(4 * (2 * channels + 8 * pieces + 2 * _THREADS), s.length),
        GIVEN=_flags(more, selective.NAMES) | 16 * node.attrs["softplus"],
        SCALAR=s.scalar,
        ALIGNED=s.states % 4 == 0 and quads(*rows, itemsize=4) == 1,
    )
    args: list[Arg] = [*refs]
    args += [items, s.length, s.channels, s.width, s.groups, blocks]
    ctx.launch(kernel, ctx.groups(items), args)


def _grad_sizes(node: Node) -> tuple[selective.Sizes, int, int]:
    """The sizes of a gradient, the threads of a channel, and the workgroups of a group of heads and batch."""
    s = selective.sizes_of(node.inputs[2], node.inputs[4], node.inputs[5])
    lanes = power(-(-s.states // 4))
    return s, lanes, math.ceil(s.channels // s.groups * lanes / _THREADS)


def _grad_scratch(s: selective.Sizes, blocks: int) -> tuple[int, int]:
    """The floats of workspace for the gradient: states, and each workgroup's partial sums for B (C has equally
    many)."""
    kept = s.batch * math.ceil(s.length / _KEPT) * s.channels * s.states
    return kept, s.batch * s.length * s.groups * blocks * s.states


def _grad_native(node: Node, features: frozenset[str]) -> bool:
    s, lanes, blocks = _grad_sizes(node)
    kept, sums = _grad_scratch(s, blocks)
    return native(node, features) and lanes <= _THREADS // 2 and kept + 2 * sums <= _MAX_WORKSPACE_FLOATS


def _fill_zeros(ctx: Lowering, node: Node) -> None:
    """Zeros in every output that has elements."""
    for t in node.outputs:
        if t.size:
            launch_tree(ctx, [expr.lit(0.0, f32)], (t.size,), [], [View(ctx.ref(t), f32, (1,))])


@lowers("selective_scan_grad", when=_grad_native)
def lower_selective_scan_grad(ctx: Lowering, node: Node) -> None:
    """One launch for a whole sequence, then sums of its workgroups' partial results for B, C, and where needed delta
    and A."""
    dx, ddelta, da, db, dc, dstate = (ctx.ref(t) for t in node.outputs)
    s, lanes, blocks = _grad_sizes(node)
    if dstate.nbytes == 0:
        _fill_zeros(ctx, node)
        return
    refs = [_cast(ctx, t, f32) for t in node.inputs]
    kept, sums = _grad_scratch(s, blocks)
    work = ctx.scratch(4 * (kept + 2 * sums))
    each = ctx.scratch(4 * s.batch * s.length * s.channels) if s.width > 1 else ddelta
    slots = lanes if s.scalar else s.states
    of_a = da if s.batch == 1 and not s.scalar else ctx.scratch(4 * s.batch * s.channels * slots)
    kernel = SELECTIVE_SCAN_GRAD(
        LANES=lanes, STATES=s.states, STEPS=_KEPT, SCALAR=s.scalar, STATE=bool(node.attrs["operands"])
    )
    items = s.batch * s.groups * blocks
    state = refs[7] if node.attrs["operands"] else refs[1]  # never read where none is given
    args: list[Arg] = [*refs[:7], state, work, dx, each, of_a, dstate]
    args += [items, s.length, s.channels, s.width, s.groups, blocks]
    ctx.launch(kernel, ctx.groups(items), args)

    def total(x: Ref, y: Ref, outer: int, n: int, inner: int) -> None:
        if y.nbytes:
            reduce_middle(ctx, 0, x, f32, y, f32, (outer, n, inner), 1.0, 0)

    for i, gradient in enumerate((db, dc)):
        parts = Ref(work.segment, work.offset + 4 * (kept + i * sums), 4 * sums)
        total(parts, gradient, s.batch * s.length * s.groups, blocks, s.states)
    if s.width > 1:
        total(each, ddelta, s.batch * s.length * s.heads, s.width, 1)
    if s.scalar:
        rows = ctx.scratch(4 * s.batch * s.heads) if s.batch > 1 else da
        total(of_a, rows, s.batch * s.heads, s.width * lanes, 1)
        of_a = rows
    if s.batch > 1:
        total(of_a, da, 1, s.batch, da.nbytes // 4)


@lowers("gated_delta_rule", when=_native)
def lower_gated_delta_rule(ctx: Lowering, node: Node) -> None:
    """A row of threads for each row of the state, which walks the sequence with that row in registers."""
    q, k, v, beta = node.inputs[:4]
    o, last = node.outputs
    more = optional("gated_delta_rule", node.inputs, 4, delta.NAMES, node.attrs["operands"])
    s = delta.sizes_of(k, v)
    if last.size == 0:
        return
    stored = ctx.storage(o)
    pieces = -(-s.keys // 4)
    lanes = _lanes(pieces, s.batch * s.heads * s.values)
    rows = _THREADS // lanes
    blocks = math.ceil(s.values / rows)
    items = s.batch * s.heads * blocks
    steps = _steps(4 * (8 * pieces + rows + 2 + _THREADS + 1), s.length)
    refs = [_cast(ctx, t, d) for t, d in ((q, stored), (k, stored), (v, stored), (beta, f32))]
    refs += _given(ctx, more, delta.NAMES, dict.fromkeys(delta.NAMES, f32), refs[3])
    refs += [ctx.ref(o), ctx.ref(last)]
    states = [refs[-1], *(refs[5:6] if "state" in more else [])]
    kernel = DELTA_RULE(
        T=stored.name,
        LANES=lanes,
        KEYS=s.keys,
        STEPS=steps,
        GIVEN=_flags(more, delta.NAMES),
        ALIGNED=s.keys % 4 == 0 and quads(*states, itemsize=4) == 1,
    )
    args: list[Arg] = [*refs]
    args += [items, s.length, s.heads, s.values, s.heads // s.key_heads, blocks, node.attrs["scale"]]
    ctx.launch(kernel, ctx.groups(items), args)


def _rule_grad_sizes(node: Node) -> tuple[delta.Sizes, int, int]:
    """The sizes of a gradient, the threads of a row of the state, and the workgroups of a head."""
    s = delta.sizes_of(node.inputs[3], node.inputs[4])
    lanes = power(-(-s.keys // 4))
    return s, lanes, math.ceil(s.values * lanes / _THREADS)


def _rule_grad_scratch(s: delta.Sizes, blocks: int) -> tuple[int, int, int]:
    """The floats of workspace for the gradient: states, and each workgroup's partial sums for q (k has equally many)
    and for beta."""
    kept = s.batch * math.ceil(s.length / _KEPT) * s.heads * s.values * s.keys
    each = s.batch * s.length * s.heads * blocks
    return kept, each * s.keys, each


def _rule_grad_native(node: Node, features: frozenset[str]) -> bool:
    s, lanes, blocks = _rule_grad_sizes(node)
    kept, wide, each = _rule_grad_scratch(s, blocks)
    return native(node, features) and lanes <= _THREADS // 2 and kept + 2 * (wide + each) <= _MAX_WORKSPACE_FLOATS


@lowers("gated_delta_rule_grad", when=_rule_grad_native)
def lower_gated_delta_rule_grad(ctx: Lowering, node: Node) -> None:
    """One launch for a whole sequence, then sums of its workgroups' partial results for q, k, beta and g."""
    dq, dk, dv, dbeta, dg, dstate = (ctx.ref(t) for t in node.outputs)
    s, lanes, blocks = _rule_grad_sizes(node)
    if dstate.nbytes == 0:
        _fill_zeros(ctx, node)
        return
    more = optional("gated_delta_rule_grad", node.inputs, 6, delta.NAMES, node.attrs["operands"])
    refs = [_cast(ctx, t, f32) for t in node.inputs[:6]]
    refs += _given(ctx, more, delta.NAMES, dict.fromkeys(delta.NAMES, f32), refs[5])
    kept, wide, each = _rule_grad_scratch(s, blocks)
    work = ctx.scratch(4 * (kept + 2 * (wide + each)))
    kernel = DELTA_RULE_GRAD(LANES=lanes, KEYS=s.keys, STEPS=_KEPT)
    items, per = s.batch * s.heads * blocks, s.heads // s.key_heads
    args: list[Arg] = [*refs, work, dv, dstate]
    args += [items, s.length, s.heads, s.values, per, blocks, _flags(more, delta.NAMES), node.attrs["scale"]]
    ctx.launch(kernel, ctx.groups(items), args)
    rows, at = s.batch * s.length, kept
    for gradient, outer, n, inner in (
        (dq, rows * s.key_heads, per * blocks, s.keys),
        (dk, rows * s.key_heads, per * blocks, s.keys),
        (dbeta, rows * s.heads, blocks, 1),
        (dg, rows * s.heads, blocks, 1),
    ):
        size = outer * n * inner
        if size:
            parts = Ref(work.segment, work.offset + 4 * at, 4 * size)
            reduce_middle(ctx, 0, parts, f32, gradient, f32, (outer, n, inner), 1.0, 0)
        at += size


@lowers("causal_conv", when=native)
def lower_causal_conv(ctx: Lowering, node: Node) -> None:
    """Each thread computes a few steps of a channel; one more per channel writes its last inputs."""
    x, w = node.inputs[:2]
    y, last = node.outputs
    more = optional("causal_conv", node.inputs, 2, conv.NAMES, node.attrs["operands"])
    if last.size == 0:
        return
    stored = ctx.storage(y)
    batch, length, channels = x.shape
    run = min(8, power(length)) if x.size > _THREADS_TO_FILL * 8 or length < 8 else 1
    runs = math.ceil(length / run)
    refs = [_cast(ctx, t, stored) for t in (x, w)]
    refs += _given(ctx, more, conv.NAMES, dict.fromkeys(conv.NAMES, stored), refs[0])
    flags = _flags(more, conv.NAMES) | 4 * (node.attrs["activation"] is not None)
    total = batch * (runs + 1) * channels
    args: list[Arg] = [*refs, ctx.ref(y), ctx.ref(last), total, length, channels, runs]
    ctx.launch(
        CAUSAL_CONV(T=stored.name, WIDTH=w.shape[1], RUN=run, GIVEN=flags), groups_for(ctx, total), args
    )
