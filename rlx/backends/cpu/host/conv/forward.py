"""Convolution on the CPU: GEMMs with columns (im2col) made block by block; 1x1 kernels need no columns. Also im2col."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from rlx.backends.cpu.context import Array, BindContext, Step
from rlx.backends.cpu.host.conv.depthwise import bind_depthwise
from rlx.backends.cpu.host.conv.last import rows_alike
from rlx.backends.cpu.host.elementwise.evaluate import bind_trees
from rlx.backends.cpu.host.kernels import cpu_kernel
from rlx.backends.cpu.host.matmul import integers
from rlx.backends.cpu.host.matmul.blas import MIN_IN_LIST, load_team
from rlx.backends.cpu.host.matmul.dense import epilogue_of, in_one_call, multiply
from rlx.backends.cpu.host.movement import copies
from rlx.backends.cpu.host.rows import F32, working
from rlx.backends.cpu.host.windows import padded, view_windows
from rlx.ir import Node

_NS_A_FLOP = 1 / 100
_COLUMNS_ELEMENTS = 1 << 18  # a block of columns stays in the second-level cache
_RESULT_ELEMENTS = 1 << 18  # a result stays there until its epilogue
_MIN_PART = 96  # least rows, or output positions, of a GEMM in a batched call


@cpu_kernel("conv")
def bind_conv(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    x, w, out = ins[0], ins[1], outs[0]
    dtype = working(out.dtype)
    steps: list[Step] = []
    if w.size == 0:
        steps.append(partial(np.copyto, out, 0, "unsafe"))
        return steps + _finish(node, out, ins, out, slice(None), ctx, None)
    w = padded(w, (), dtype, 0, ctx, steps)
    if w.shape[1] == 1 and node.attrs["groups"] > 1:
        x = padded(x, (), dtype, 0, ctx, steps)

        def finish(sums: Array, result: Array, channels: slice, thread: int) -> list[Step]:
            return _finish(node, sums, ins, result, channels, ctx, thread, axis=0)

        return steps + bind_depthwise(node.attrs, x, w, out, ctx, finish)
    x = padded(x, node.attrs["pads"], dtype, 0, ctx, steps)
    return steps + _Columns(node, x, w, ins, out, ctx).steps()


def _finish(
    node: Node, result: Array, ins: Sequence[Array], out: Array, channels: slice, ctx: BindContext, thread: int | None,
    axis: int = 1,
) -> list[Step]:  # fmt: skip
    """The epilogue of some channels, which lie along `axis`: bias, activation and rounding, from `result` to `out`."""
    tree = epilogue_of(node)
    if tree is None:
        return [] if result is out else [partial(np.copyto, out, result)]
    bias = [ins[2][channels].reshape(-1, *(1,) * (out.ndim - 1 - axis))] if len(ins) == 3 else []
    return bind_trees([tree], [result, *bias], [out], ctx, thread)


class _Columns:
    """A convolution as GEMMs of weights (groups, rows, terms) with columns: each is one output position's input."""

    def __init__(
        self, node: Node, x: Array, w: Array, ins: Sequence[Array], out: Array, ctx: BindContext
    ) -> None:
        self.node, self.ins, self.out, self.x, self.ctx = node, ins, out, x, ctx
        attrs, self.kernel = node.attrs, w.shape[2:]
        self.counts, self.groups = out.shape[2:], attrs["groups"]
        self.rows, self.inner = w.shape[0] // self.groups, w.shape[1]
        self.terms, self.places = self.inner * math.prod(self.kernel), math.prod(self.counts)
        self.weights = w.reshape(self.groups, self.rows, self.terms)
        self.target = out.reshape(len(out), self.groups, self.rows, self.places)
        self.plain = (
            math.prod(self.kernel) == 1 and set(attrs["strides"]) == {1} and x.shape[2:] == self.counts
        )
        self.seen = view_windows(x, self.kernel, attrs["strides"], attrs["dilations"], self.counts)
        # The GEMM adds to a result filled with the bias, which saves the pass that would add it. With `batch_invariant`
        # some rows are computed twice, so nothing may be added to what they hold.
        self.onto = len(ins) == 3 and out.dtype == x.dtype == F32 and ctx.blas is not None and not ctx.batch_invariant
        self.work = 2.0 * out.size * self.terms * _NS_A_FLOP

    def steps(self) -> list[Step]:
        # Making the columns costs little beside the GEMM where there are more rows than output positions.
        quick = self.plain or self.rows * self.groups > self.places
        small = len(self.out) == 1 and self.out.size <= _RESULT_ELEMENTS and quick
        in_turn = small and self.out.dtype == self.x.dtype == F32 and not self.ctx.batch_invariant
        return self._in_turn() if in_turn and load_team() is not None else self._by_threads()

    def _in_turn(self) -> list[Step]:
        """All columns of the single image, then all GEMMs in one batched call, then the epilogue. Each is too little
        work to wake our own threads for."""
        columns, steps = self._columns(0, slice(0, self.groups * self.inner), slice(0, self.counts[0]), 0)
        columns = columns.reshape(self.groups, self.terms, self.places)
        products = [
            (self.weights[g][r], columns[g][:, p], self.target[0, g][r, p])
            for g in range(self.groups)
            for r, p in self._cut()
        ]
        every = slice(None)
        steps += [*self._begun(self.out, every, axis=1), *self._products(products)]
        return steps + self._finished(self.out, self.out, every, None, axis=1)

    def _products(self, products: list[tuple[Array, Array, Array]]) -> list[Step]:
        listed = in_one_call(products, self.ctx, self.onto) if len(products) > 1 else None
        if listed is not None:
            return [listed]

        def bind(piece: int, thread: int) -> list[Step]:
            return multiply(*products[piece], self.ctx, thread, onto=self.onto)

        return self.ctx.split(len(products), self.work, bind)

    def _cut(self) -> list[tuple[slice, slice]]:
        """Blocks of the longer axis, rows or output positions: one for each thread of the library where they are large
        enough. The executable's own number of threads has no influence, so that any gives the same bits."""
        team = load_team()
        assert team is not None
        longest = max(self.rows, self.places)
        most = self.rows * self.places * self.terms // MIN_IN_LIST
        parts = max(1, min(-(-team.threads // self.groups), most, longest // _MIN_PART))
        step = -(-longest // parts)
        step += -step % 16
        cut = [slice(i, min(longest, i + step)) for i in range(0, longest, step)]
        whole = slice(None)
        return [(s, whole) if self.rows >= self.places else (whole, s) for s in cut]

    def _columns(self, n: int, channels: slice, block: slice, thread: int) -> tuple[Array, list[Step]]:
        """The columns (terms, positions) of some channels for a block of output rows, and the copy that makes them."""
        line = self.places // self.counts[0]
        count = channels.stop - channels.start
        if self.plain:
            part = slice(block.start * line, block.stop * line)
            return self.x[n, channels].reshape(count, self.places)[:, part], []
        shape = (count * math.prod(self.kernel), (block.stop - block.start) * line)
        columns = self.ctx.scratch(shape, self.x.dtype, thread)
        at: Any = (n, channels, *(slice(None),) * len(self.kernel), block)
        source = self.seen[at]
        return columns, [partial(np.copyto, columns.reshape(source.shape), source)]

    def _begun(self, sums: Array, channels: slice, axis: int) -> list[Step]:
        """Fills the result of some channels, which lie along `axis`, with the bias where there is `onto`."""
        if not self.onto:
            return []
        return [partial(np.copyto, sums, self.ins[2][channels].reshape(-1, *(1,) * (sums.ndim - 1 - axis)))]

    def _finished(
        self, sums: Array, result: Array, channels: slice, thread: int | None, axis: int
    ) -> list[Step]:
        if self.onto:
            tree = epilogue_of(self.node, bias=False)
            return [] if tree is None else bind_trees([tree], [sums], [result], self.ctx, thread)
        return _finish(self.node, sums, self.ins, result, channels, self.ctx, thread, axis)

    def _by_threads(self) -> list[Step]:
        """One piece of work for each image, group and block of output rows: columns, GEMM and epilogue follow one
        another while the data are in the cache."""
        blocks = self._blocks()
        pieces = [(n, g, block) for n in range(len(self.out)) for g in range(self.groups) for block in blocks]
        line = self.places // self.counts[0]
        x, ctx, marks = self.x, self.ctx, self.ctx.mark()

        def bind(piece: int, thread: int) -> list[Step]:
            ctx.back_to(marks, thread)
            n, g, block = pieces[piece]
            columns, steps = self._columns(n, slice(g * self.inner, (g + 1) * self.inner), block, thread)
            result = self.target[n, g][:, block.start * line : block.stop * line]
            sums = result if result.dtype == x.dtype else ctx.scratch(result.shape, x.dtype, thread)
            every = slice(g * self.rows, (g + 1) * self.rows)
            steps += self._begun(sums, every, axis=0)
            steps += product(self.weights[g], columns, sums, ctx, thread, self.onto)
            return steps + self._finished(sums, result, every, thread, axis=0)

        return ctx.split(len(pieces), self.work + 0.3 * self.terms * self.places * len(self.out), bind)

    def _blocks(self) -> list[slice]:
        """Rows of the output in blocks of equal height, an even number of them. They too depend on the shape alone."""
        height, line = self.counts[0], self.places // self.counts[0]
        most = max(1, min(_COLUMNS_ELEMENTS // max(1, self.terms * line), _RESULT_ELEMENTS // max(1, self.rows * line)))
        parts = -(-height // most)
        if parts > 1 or len(self.out) * self.groups == 1:
            parts += parts % 2
        most = -(-height // min(parts, height))
        return [slice(i, min(height, i + most)) for i in range(0, height, most)]


def product(a: Array, b: Array, out: Array, ctx: BindContext, thread: int, onto: bool = False) -> list[Step]:
    """out = a @ b, or out += that with `onto`: f32 by BLAS, other dtypes by NumPy. With `ctx.batch_invariant` every row
    is summed in the same order."""
    if integers.by_floats(a, b, out):
        return [integers.multiply(a, b, out, ctx, thread)]
    steps: list[Step] = []
    for rows in rows_alike(len(a)) if ctx.batch_invariant else [slice(None)]:
        left, target = a[rows], out[rows]
        steps += (
            multiply(left, b, target, ctx, thread, onto=onto)
            if out.dtype == F32
            else [partial(np.matmul, left, b, target)]
        )
    return steps


@cpu_kernel("im2col")
def bind_im2col(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    attrs, x = node.attrs, ins[0]
    kernel = attrs["kernel"]
    steps: list[Step] = []
    wide = padded(x, attrs["pads"], x.dtype, 0, ctx, steps)
    counts = tuple(
        (n - d * (k - 1) - 1) // s + 1
        for n, k, s, d in zip(wide.shape[2:], kernel, attrs["strides"], attrs["dilations"], strict=True)
    )
    seen = view_windows(wide, kernel, attrs["strides"], attrs["dilations"], counts)
    return steps + copies(seen, outs[0].reshape(seen.shape), ctx)
