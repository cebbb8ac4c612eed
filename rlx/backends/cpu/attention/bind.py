"""Binds attention: few queries one by one, others in blocks; queries of heads that share keys can be in one block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.backends.cpu.attention.blocks import Attention
from rlx.backends.cpu.attention.rows import AttentionRow
from rlx.backends.cpu.compile import KernelSpec
from rlx.backends.cpu.context import Array
from rlx.backends.cpu.elementwise import tree_step
from rlx.backends.cpu.rowwise import LOADED, STORED, name_of
from rlx.backends.cpu.step import Declined, EngineContext, EngineStep, engine
from rlx.dtypes import as_dtype, f32
from rlx.ir import Node
from rlx.ir.expr import arg, cast
from rlx.ops.attention.parts import NO_TOKENS, ByToken, heads_first, rest
from rlx.ops.packed_attention import BLOCK

_MAX_HEAD_ELEMENTS = 512  # a block's are on the stack, and a row's are unrolled in the code
_FEW_QUERIES = 2  # so few, over all heads that share keys, would leave most lanes of a block empty
_PAGED_QUERIES = 16  # up to so many queries read a sequence's pages in place; more read a copy


@engine("attention")
def bind_attention(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    mask_tensor, lengths = rest("attention", node.inputs[3:])
    tokens: ByToken = node.attrs.get("tokens", NO_TOKENS)
    y = outs[0].swapaxes(1, 2) if ByToken.Y in tokens else outs[0]
    q, k, v, *others = heads_first(ins, tokens)
    dtype = name_of(q)
    mask = None if mask_tensor is None else np.broadcast_to(others[0], (*q.shape[:3], k.shape[2]))
    if dtype not in LOADED or k.shape[2] == 0 or not all(_steps(a)[3] == 1 for a in (q, k, v, y)):
        return None
    if q.shape[3] > _MAX_HEAD_ELEMENTS:
        raise Declined(f"heads of {q.shape[3]} elements; the kernels take {_MAX_HEAD_ELEMENTS}")
    kinds = ("f64", "bool") if dtype == "f64" else (*STORED, "bool")
    if mask is not None and (name_of(mask) not in kinds or _steps(mask)[3] not in (0, 1)):
        return None
    return _Bound(node, q, k, v, y, mask, others[-1] if lengths is not None else None, dtype, ctx).steps()


@engine("packed_attention")
def bind_packed(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    mask_tensor, lengths = rest("packed_attention", node.inputs[5:])
    q, k, k_scales, v, v_scales = (x.swapaxes(1, 2) for x in ins[:5])
    y, dtype, others = outs[0].swapaxes(1, 2), name_of(q), ins[5:]
    mask = None if mask_tensor is None else np.broadcast_to(others[0], (*q.shape[:3], k.shape[2]))
    if k.shape[2] == 0 or q.shape[2] > _FEW_QUERIES or not all(_steps(a)[3] == 1 for a in (q, k, v, y)):
        return None
    if q.shape[3] > _MAX_HEAD_ELEMENTS:
        raise Declined(f"heads of {q.shape[3]} elements; the kernels take {_MAX_HEAD_ELEMENTS}")
    if mask is not None and (name_of(mask) not in (*STORED, "bool") or _steps(mask)[3] not in (0, 1)):
        return None
    # The scales must lie where their integers' positions say.
    if any([BLOCK * n for n in _steps(s)[:3]] != _steps(x)[:3] for x, s in ((k, k_scales), (v, v_scales))):
        return None
    bound = _Bound(node, q, k, v, y, mask, others[-1] if lengths is not None else None, dtype, ctx)
    bound.scales = (k_scales, v_scales)
    return [bound.step(0, bound.rows, 0)]


@engine("paged_attention")
def bind_paged(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    q, pools, y = ins[0].swapaxes(1, 2), [x.swapaxes(1, 2) for x in ins[1:3]], outs[0].swapaxes(1, 2)
    table, lengths, *scales = ins[3:]
    rows, by_head = pools[0].shape[2], [x.swapaxes(1, 2) for x in scales]
    if q.shape[2] > _PAGED_QUERIES or name_of(q) not in STORED or table.size * rows == 0:
        return None
    # The scales must lie where their integers' positions say.
    if any([BLOCK * n for n in _steps(s)[:3]] != _steps(x)[:3] for s, x in zip(by_head, pools, strict=False)):
        return None
    if table.strides[-1] != table.itemsize or not all(_steps(a)[3] == 1 for a in (q, *pools, y)):
        return None
    if q.shape[3] > _MAX_HEAD_ELEMENTS:
        raise Declined(f"heads of {q.shape[3]} elements; the kernels take {_MAX_HEAD_ELEMENTS}")
    keys, values = (_as_of_each(x, table) for x in pools)
    bound = _Bound(node, q, keys, values, y, None, lengths, name_of(q), ctx)
    bound.table, bound.pools, bound.scales = table, (pools[0], pools[1]), tuple(by_head)
    return [bound.step(0, bound.rows, 0)]


def _as_of_each(pool: Array, table: Array) -> Array:
    """A pool of pages (pages, heads, rows, size) as a view with, for each sequence, all rows that its table names: only
    its shape and strides are used, for kernels; its elements must not be read."""
    (_, heads, rows, size), strides = pool.shape, pool.strides
    shape = (len(table), heads, table.shape[1] * rows, size)
    return np.lib.stride_tricks.as_strided(pool, shape, (0, *strides[1:]))


def _steps(a: Array) -> list[int]:
    """Strides in elements; 0 for axes of length 1, except the last."""
    strides = [s // a.itemsize if n > 1 else 0 for s, n in zip(a.strides, a.shape, strict=True)]
    return [*strides[:-1], strides[-1] or (1 if a.shape[-1] == 1 else 0)]


class _Bound:
    """One attention as steps: one step for whole blocks of queries, one for the queries that remain."""

    def __init__(
        self,
        node: Node,
        q: Array,
        k: Array,
        v: Array,
        y: Array,
        mask: Array | None,
        lengths: Array | None,
        dtype: str,
        ctx: EngineContext,
    ) -> None:
        self.node, self.q, self.k, self.v, self.y = node, q, k, v, y
        self.mask, self.lengths, self.dtype, self.ctx = mask, lengths, dtype, ctx
        self.group = q.shape[1] // k.shape[1]
        # With few queries, those of all heads that share keys go into the same vectors.
        self.lanes = ctx.machine.lanes(64 if dtype == "f64" else 32)
        self.folded = self.group > 1 and q.shape[2] < self.lanes
        self.rows = q.shape[2] * (self.group if self.folded else 1)
        self.packed = False
        self.scales: tuple[Array, ...] = ()  # scales of keys and values of 8 bits
        self.table: Array | None = None  # the pages of each sequence
        self.pools: tuple[Array, ...] = ()

    def steps(self) -> list[EngineStep]:
        lanes = self.lanes
        if self.rows <= _FEW_QUERIES or self.dtype == "f64":
            return [self.step(0, self.rows, 0)]
        needed = -(-self.rows // lanes)
        most = 4 if self.q.shape[3] <= 64 and self.ctx.machine.registers == 32 else 3  # what fits into the caches
        vectors = min(most, needed)
        whole = self.rows // (vectors * lanes)
        if most == 4 and needed == whole * most + 1 and needed > 1:
            whole -= 1  # a single vector that remains is joined to the last block, which then has five
        left = self.rows - whole * vectors * lanes
        steps = self._pack()
        if whole:
            steps.append(self.step(0, whole * vectors * lanes, vectors))
        if left:
            steps.append(self.step(self.rows - left, left, -(-left // lanes)))
        return steps

    def _pack(self) -> list[EngineStep]:
        """Copies each head's keys and values to contiguous f32 rows where enough queries read them: rows a power of two
        apart would share few cache sets."""
        few = self.rows < 12 * self.lanes
        if few or (self.lengths is not None and 16 * self.rows < self.k.shape[2]):
            return []
        self.packed = True
        steps: list[EngineStep] = []
        for name in ("k", "v"):
            x: Array = getattr(self, name)
            if x.dtype == np.float32 and _steps(x)[2] in (0, x.shape[3]):
                continue
            packed = self.ctx.borrow(4 * x.size).view(np.float32).reshape(x.shape)
            dtype = as_dtype(x.dtype)
            step = tree_step([cast(arg(0, dtype), f32)], [x], [packed], self.ctx)
            assert step is not None
            steps.append(step)
            setattr(self, name, packed)
        return steps

    def step(self, start: int, count: int, vectors: int) -> EngineStep:
        node, q, k, v, y, mask = self.node, self.q, self.k, self.v, self.y, self.mask
        (batch, heads, n_q, size), n_k = q.shape, k.shape[2]
        machine = self.ctx.machine
        qs, ks, vs, ys = map(_steps, (q, k, v, y))
        ms = [0, 0, 0, 0] if mask is None else [s // mask.itemsize for s in mask.strides]
        causal, window, cap = node.attrs["causal"], node.attrs.get("window"), node.attrs.get("softcap")
        span = max(1, vectors * self.lanes)
        blocks = -(-count // span)
        # The rows of all blocks; lanes past the last row repeat it.
        row = np.minimum(np.arange(blocks * span), count - 1) + start
        head, query = np.divmod(row, n_q) if self.folded else (np.zeros_like(row), row)
        tables: dict[str, Any] = {
            "q_offsets": head * qs[1] + query * qs[2],
            "y_offsets": head * ys[1] + query * ys[2],
            "mask_offsets": head * ms[1] + query * ms[2],
            "places": (query - n_q).astype(np.int32),
            "least": (query - n_q).reshape(blocks, span).min(1),
            "most": (query - n_q).reshape(blocks, span).max(1),
        }
        name, by_query = "" if mask is None else name_of(mask), bool(tables["mask_offsets"].any())
        flags = causal, window is not None, cap is not None, self.lengths is not None, self.lanes
        spec: KernelSpec = Attention(
            self.dtype, size, vectors, name, by_query, *flags, machine.registers, self.packed
        )
        if not vectors:
            page = self.pools[0].shape[2] if self.pools else 0
            spec = AttentionRow(self.dtype, size, name, ms[3] == 1, *flags, packed=bool(self.scales), page=page)
        outer = self.group if self.folded else 1  # query heads of an item
        arrays = {"q": q, "k": k, "v": v, "y": y, "mask": mask, "lengths": self.lengths, **tables}
        pages: dict[str, Any] = {}
        if self.table is not None:
            apart = (x.strides[0] // x.itemsize for x in (self.table, *self.pools))
            arrays |= {"table": self.table}
            pages = dict(zip(("table_row", "k_page", "v_page"), apart, strict=True), pages=len(self.pools[0]))
        args = spec.args(
            **arrays, **pages, **dict(zip(("k_scales", "v_scales"), self.scales, strict=False)), heads=heads // outer,
            blocks=blocks, group=1 if self.folded else self.group, n_k=n_k, rows=count,
            window=min(window or 0, n_q + n_k), q_batch=qs[0], q_head=qs[1] * outer, k_batch=ks[0], k_head=ks[1],
            k_row=ks[2], v_batch=vs[0], v_head=vs[1], v_row=vs[2], y_batch=ys[0], y_head=ys[1] * outer,
            mask_batch=ms[0], mask_head=ms[1] * outer, mask_key=ms[3],
            length_stride=int(self.lengths is not None and self.lengths.size > 1), scale=node.attrs["scale"],
            cap=cap or 1.0,
        )  # fmt: skip
        cost = span * n_k * (size * 0.02 + 0.3) * 16 / self.lanes
        items = batch * heads // outer * blocks
        return EngineStep(
            spec,
            args,
            items,
            keep=(*tables.values(), *arrays.values(), *self.scales),
            cost_ns=cost,
        )
