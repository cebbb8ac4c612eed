"""Attention over keys and values in pages by NumPy: the pages that a query sees are copied, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.backends.cpu.context import Array, BindContext, Step
from rlx.backends.cpu.host.attention.cache import bind_cached
from rlx.backends.cpu.host.kernels import cpu_kernel
from rlx.backends.cpu.host.packed_attention import PackedPiece, PackedRows
from rlx.ir import Node


class _Head:
    """The rows of one key head of a sequence."""

    def __init__(self, pool: Array, pages: Array) -> None:
        self._pool, self._pages = pool, pages  # (pages, rows, size), (n,)
        self.dtype = pool.dtype

    def __len__(self) -> int:
        return len(self._pages) * int(self._pool.shape[1])

    def __getitem__(self, where: slice) -> Array:
        rows = self._pool.shape[1]
        first = where.start // rows
        pages = np.clip(self._pages[first : -(-where.stop // rows)], 0, len(self._pool) - 1)
        rows_of_pages: Array = self._pool[pages].reshape(-1, self._pool.shape[2])
        return rows_of_pages[where.start - first * rows : where.stop - first * rows]


class _Pages:
    """Keys or values of all sequences, as (batch, heads, length, size)."""

    def __init__(self, pool: Array, table: Array) -> None:
        self._pool, self._table = pool, table
        self.shape = (len(table), pool.shape[2], table.shape[1] * pool.shape[1], pool.shape[3])

    def __getitem__(self, where: tuple[int, int]) -> _Head:
        b, head = where
        return _Head(self._pool[:, :, head], self._table[b])


class _PackedHead(_Head):
    """The rows of one key head of a sequence, integers and their scales."""

    def __init__(self, pool: Array, scales: Array, pages: Array) -> None:
        super().__init__(pool, pages)
        self._scales = _Head(scales, pages)

    def __getitem__(self, where: slice) -> Any:
        return PackedRows(super().__getitem__(where), self._scales[where])


class _PackedPages(_Pages):
    """Keys or values of all sequences, integers and their scales."""

    def __init__(self, pool: Array, scales: Array, table: Array) -> None:
        super().__init__(pool, table)
        self._scales = scales

    def __getitem__(self, where: tuple[int, int]) -> _Head:
        b, head = where
        return _PackedHead(self._pool[:, :, head], self._scales[:, :, head], self._table[b])


@cpu_kernel("paged_attention")
def bind_paged_attention(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    q, k, v, table, lengths, *scales = ins
    q, y = q.swapaxes(1, 2), outs[0].swapaxes(1, 2)
    if not scales:
        return bind_cached(node, q, _Pages(k, table), _Pages(v, table), None, lengths, y, ctx)
    keys, values = (_PackedPages(t, by, table) for t, by in zip((k, v), scales, strict=True))
    return bind_cached(node, q, keys, values, None, lengths, y, ctx, PackedPiece)
