"""Data-parallel steps: each rank works on its rows of a batch, and takes the mean of all ranks' gradients.

Every rank is given the whole batch and takes its own rows. The means are those of one rank with the whole batch: a rank
with fewer rows has a smaller weight, and one without rows computes a row with weight 0. After the mean, loss,
gradients and state have the same bits on all ranks, so that optimizers, clipping and the test for NaN and infinity need
not know about ranks."""

from __future__ import annotations

import functools
import math
import operator
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rlx import ops
from rlx.dtypes import f32, f64
from rlx.errors import GraphError, ShapeError
from rlx.ir import Tensor
from rlx.ops.pytree import unflatten
from rlx.ops.scatter import rows_added
from rlx.packed import PackedArray
from rlx.ranks.collect import Group
from rlx.ranks.mesh import Mesh, ranks_along
from rlx.runtime.array import Array
from rlx.train.leaves import Leaves, taken_apart

BUCKET_BYTES = 80 << 20  # limit on the gradients that one collective takes


class Ranks(NamedTuple):
    """The ranks of a mesh along one axis, which share the rows of a batch."""

    mesh: Mesh
    axis: str

    @property
    def size(self) -> int:
        return self.mesh.axes[self.axis]

    @property
    def place(self) -> int:
        return self.mesh.index(self.axis)

    @property
    def first(self) -> bool:
        """Whether this rank writes the files."""
        return self.mesh.rank == 0

    def group(self) -> Group:
        world = self.mesh.world
        assert world is not None
        return Group(world, self.mesh.rank, ranks_along(self.mesh.axes, (self.axis,), self.mesh.rank))


class Share(NamedTuple):
    """A rank's rows of a batch. `weight` is the weight of its means in the mean of all ranks, 1 if all have equally
    many rows; `card` is a text that identifies the program of this batch where the ranks' programs differ."""

    types: Leaves
    leaves: list[Any]
    weight: float = 1.0
    card: str | None = None


def ranks_of(mesh: Any) -> Ranks | None:
    """The ranks of a mesh that share batches: along "data", or its only axis. None if that is a single rank.

    Raises: GraphError for a mesh of several axes without "data", and for anything that is not a mesh."""
    if mesh is None:
        return None
    if not isinstance(mesh, Mesh):
        raise GraphError(f"training: mesh is {mesh!r}; expected an rlx.Mesh")
    if "data" not in mesh.axes and len(mesh.axes) > 1:
        raise GraphError(f"training: the mesh has axes {', '.join(mesh.axes)}; name the one that shares batches 'data'")
    axis = "data" if "data" in mesh.axes else next(iter(mesh.axes))
    return Ranks(mesh, axis) if mesh.axes[axis] > 1 else None


def share_of(ranks: Ranks | None, batch: Leaves, leaves: Sequence[Any]) -> Share:
    """This rank's part of a batch: its rows of each array, along the first axis; arrays of rank 0 unchanged.

    Raises: ShapeError if there are no rows, or if arrays have different numbers of rows, not all multiples of the
    number of ranks."""
    if ranks is None:
        return Share(batch, list(leaves))
    n, place = ranks.size, ranks.place
    rows = {t.shape[0] for t in batch.types if t.shape}
    even = all(count % n == 0 for count in rows)
    if not rows or 0 in rows or not (even or len(rows) == 1):
        there = ", ".join(f"{name} {t}" for name, t in batch.by_name.items())
        raise ShapeError(
            f"training: the batch has {there}; {n} ranks share its rows: give at least one, and along the first axis "
            f"of all arrays equally many, or a multiple of {n}"
        )
    own: list[Any] = []
    weight, card = 1.0, None
    for x, t in zip(leaves, batch.types, strict=True):
        if not t.shape:
            own.append(x)
            continue
        start, end = t.shape[0] * place // n, t.shape[0] * (place + 1) // n
        if not even:
            weight, card = (end - start) * n / t.shape[0], f"a training step on {', '.join(map(str, batch.types))}"
        at = slice(start, end) if end > start else slice(0, 1)  # a row of weight 0
        own.append((x.numpy() if isinstance(x, Array) else x)[at])
    types, own = taken_apart(unflatten(batch.skeleton, own), "batch")
    return Share(types, own, weight, card)


class _Parts(NamedTuple):
    """What ranks exchange of a gradient: an array that they sum, and rows with their indices along its first axis,
    which each rank adds to that sum."""

    whole: Tensor | None
    indices: Tensor | None = None
    rows: Tensor | None = None


def _parts(ranks: Ranks, x: Tensor, weight: float) -> _Parts:
    narrow = halves_of(x, weight)
    # Over n ranks an all-reduce in f32 moves 2(n - 1)/n times its bytes, a gather of the halves (n - 1)/2 times these.
    table = rows_added(narrow) if weight == 1.0 else None
    if table is not None and ranks.size * table[2].type.nbytes < narrow.type.nbytes:
        rest, indices, rows = table
        return _Parts(rest if rest is None or ranks.size < 4 else ops.cast(rest, x.dtype), indices, rows)
    return _Parts(narrow if ranks.size < 4 else x)


class Means(NamedTuple):
    """The means of gradients, and what says whether they are finite: no array of `tested` may hold NaN or infinity, and
    `sound` has to be true on every rank. It covers the halves that this rank sends, which it can test while they move,
    and tables to which rows were added; None where there are neither, and with ZeRO."""

    slopes: list[Tensor]
    tested: list[Tensor]
    sound: Tensor | None = None


def mean_gradients(ranks: Ranks, slopes: Sequence[Tensor], weight: float) -> Means:
    """The mean of each gradient over the ranks. Gradients are summed in buckets, in the order in which the backward
    pass computes them, so that the sums can begin while it goes on. Of an embedding the rows of the tokens are
    gathered: if its table is the head too, the head's gradient is known first and its sum need not wait. No work of the
    backward pass hides the sum of the last bucket; adding the rows to the table does, and the test of the halves."""
    parts = [_parts(ranks, x, weight) for x in slopes]
    indices = [None if p.indices is None else ops.all_gather(p.indices, ranks.axis) for p in parts]
    sent = {i: p.whole for i, p in enumerate(parts) if p.whole is not None}
    rows = {i: p.rows for i, p in enumerate(parts) if p.rows is not None}
    groups = [[[*sent][k] for k in group] for group in buckets([*sent.values()], [slopes[i] for i in sent])]
    known = dict(zip([(i, "sent") for i in sent] + [(i, "rows") for i in rows],
                     _order([*sent.values(), *rows.values()]), strict=True))  # fmt: skip
    calls = [(max(known[i, "sent"] for i in group), "sent", group) for group in groups]
    calls += [(known[i, "rows"], "rows", [i]) for i in rows]
    every: dict[int, Tensor] = {}
    found: dict[int, tuple[Tensor, range]] = {}  # a gradient's terms in a bucket: where each begins
    tested: list[Tensor] = []
    own: list[Tensor] = []
    for _, what, group in sorted(calls, key=lambda call: call[0]):
        if what == "rows":
            every[group[0]] = ops.all_gather(rows[group[0]], ranks.axis)
            continue
        table = joined([sent[i] for i in group])
        moved = table.dtype != slopes[group[0]].dtype
        whole = ops.all_gather(table, ranks.axis) if moved else _mean(ranks, table, weight)
        (own if moved else tested).append(table if moved else whole)
        at = 0
        for i in group:
            found[i] = whole, range(at, whole.size, table.size)
            at += sent[i].size

    def summed(i: int) -> Tensor:
        x, (whole, starts) = slopes[i], found[i]
        terms = [ops.reshape(whole[s : s + sent[i].size], x.shape) for s in starts]
        return mean_of([ops.cast(t, x.dtype) for t in terms])

    means: dict[int, Tensor] = {}
    for i, table in every.items():
        where, x = indices[i], slopes[i]
        assert where is not None
        added = ops.cast(table, x.dtype) / float(ranks.size)
        if i in found:
            means[i] = ops.scatter_add(summed(i), where, added)
        else:
            means[i] = ops.segment_sum(added, where, x.shape[0])
    sound = ops.all_finite(*own, *means.values()) if own or means else None
    means |= {i: summed(i) for i in found if i not in means}
    return Means([means[i] for i in range(len(slopes))], tested, sound)


def mean_of(arrays: Sequence[Tensor]) -> Tensor:
    """The mean of arrays in f32 that hold halves. It is finite where they are, since they are first divided by a power
    of two, which changes no bit of the mean."""
    if len(arrays) == 1:
        return arrays[0]
    power = 2.0 ** math.ceil(math.log2(len(arrays)))
    total = functools.reduce(operator.add, [x / power for x in arrays])
    return total if power == len(arrays) else total / (len(arrays) / power)


def buckets(tensors: Sequence[Tensor], gradients: Sequence[Tensor] | None = None) -> list[list[int]]:
    """The indices of tensors in the order in which they are computed, in groups of one dtype and of at most
    BUCKET_BYTES (or of one larger tensor). Their `gradients`, whose halves they may be, also have one dtype in a group,
    in which its mean is computed."""
    order = _order(tensors)
    kinds = [(x.dtype, own.dtype) for x, own in zip(tensors, gradients or tensors, strict=True)]
    groups: list[list[int]] = []
    room = 0
    for i in sorted(range(len(tensors)), key=order.__getitem__)[::-1]:
        nbytes = tensors[i].type.nbytes
        if not groups or kinds[groups[-1][-1]] != kinds[i] or nbytes > room:
            groups.append([])
            room = BUCKET_BYTES
        groups[-1].append(i)
        room -= nbytes
    return [group[::-1] for group in groups[::-1]]


def _order(tensors: Sequence[Tensor]) -> list[int]:
    """When each tensor is computed: the id of the latest tensor that it depends on which no elementwise op or movement
    makes."""
    known: dict[int, int] = {}
    stack = list(tensors)
    while stack:
        t = stack[-1]
        behind = t.node.inputs if t.node.op.family in ("elementwise", "movement") else ()
        if missing := [x for x in behind if x.id not in known]:
            stack += missing
            continue
        known[t.id] = max((known[x.id] for x in behind), default=-1 if t.node.op.is_constant else t.id)
        stack.pop()
    return [known[t.id] for t in tensors]


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """The elements of all tensors, one tensor after the other."""
    flat = [ops.reshape(x, (-1,)) for x in tensors]
    return flat[0] if len(flat) == 1 else ops.concat(flat)


def halves_of(x: Tensor, weight: float) -> Tensor:
    """The tensor of halves that a gradient in f32 was cast from, with half the bytes to move; else the gradient
    itself."""
    wide = x.node.op.converts and x.dtype == f32 and x.node.inputs[0].dtype.is_half
    return x.node.inputs[0] if wide and weight == 1.0 else x


def weighted(x: Tensor, weight: float) -> Tensor:
    """A rank's term of a sum over the ranks."""
    return x if weight == 1.0 else x * weight if weight else ops.zeros_like(x)


def _mean(ranks: Ranks, x: Tensor, weight: float) -> Tensor:
    return ops.all_reduce(weighted(x, weight), ranks.axis, op="mean")


def mean_numbers(ranks: Ranks, numbers: Sequence[Tensor], weight: float) -> list[Tensor]:
    """The mean over the ranks of each scalar, all of them in one all_reduce."""
    wide = f64 if any(x.dtype == f64 for x in numbers) else f32
    whole = _mean(ranks, ops.stack([ops.cast(x, wide) for x in numbers]), weight)
    return [whole[i] for i in range(len(numbers))]


def mean_state(ranks: Ranks, leaves: Sequence[Tensor], weight: float) -> list[Tensor]:
    """The loss function's new state over the ranks: the mean of floats, the first rank's values of other dtypes."""
    return [_mean(ranks, x, weight) if x.dtype.is_float else ops.broadcast(x, ranks.axis) for x in leaves]


def agree(ranks: Ranks, what: str, settings: Sequence[str], arrays: Sequence[tuple[str, Any]]) -> None:
    """Checks that all ranks have the same settings and arrays (these by checksum).

    Raises: RanksDisagree with the first line that differs."""
    sums = [f"{name}: {_checksum(x):08x}" for name, x in arrays]
    text = "\n".join([what, *settings, *sums])
    ranks.group().meet(lambda: text)


def _checksum(x: Any) -> int:
    if isinstance(x, Array):
        x = x.numpy()
    raw = np.ascontiguousarray(x.data if isinstance(x, PackedArray) else np.asarray(x)).reshape(-1).view(np.uint8)
    return zlib.crc32(raw.data)


def gathered_rows(ranks: Ranks, rows: Sequence[np.ndarray[Any, Any]], count: int) -> list[np.ndarray[Any, Any]]:
    """The metrics of `count` batches in their order. Each rank has `rows` of every n-th batch and of the first one."""
    n, width = ranks.size, rows[0].size
    own = list(rows) if ranks.place == 0 else list(rows[1:])
    turns = -(-count // n)
    table = np.zeros((turns, width), rows[0].dtype)
    table[: len(own)] = own or table[:0]
    group = ranks.group()
    group.meet(lambda: f"the evaluation of {count} batches with {width} metrics")
    whole = group.all_gather(table).reshape(n, turns, width)
    return [whole[i % n, i // n] for i in range(count)]
