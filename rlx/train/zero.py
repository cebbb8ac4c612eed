"""ZeRO, stage 1: each rank keeps and updates a part of the optimizer's state.

A parameter's elements, in row-major order, are cut into one equal part per rank, the last padded with zeros. In a step
each rank takes its part of the mean gradients and updates its part of the parameters with its part of the state; then
all parameters are gathered whole. Checkpoints hold whole states, so that training resumes from them on any number of
ranks, with ZeRO or without. Follows Rajbhandari et al., 2020."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rlx import ops
from rlx.errors import GraphError
from rlx.ir import Tensor, TensorType
from rlx.optim import Optimizer
from rlx.ranks.place import PLACE
from rlx.train.leaves import Leaves, taken_apart
from rlx.train.ranks import Means, Ranks, buckets, halves_of, joined, mean_of, weighted

Array = npt.NDArray[Any]


class Cut(NamedTuple):
    """The optimizer's state as this rank keeps it, its initial values, and the types of the whole leaves by name.
    `names` are the leaves divided among ranks; the others, such as counts, are the same on all ranks."""

    state: Leaves
    values: list[Any]
    whole: Mapping[str, TensorType]
    names: frozenset[str]


def cut_state(ranks: Ranks, optimizer: Optimizer, parameters: Leaves, held: Sequence[Any]) -> Cut:
    """The state of an optimizer over parts of the parameters.

    Raises: GraphError for an optimizer whose state does not have one number per element of a parameter."""
    parts = [part_of(ranks, np.asarray(x)) for x in held]
    state, values = taken_apart(optimizer.init(parameters.tree(parts)), "optimizer")
    blank = [np.broadcast_to(np.zeros((), t.dtype.np), t.shape) for t in parameters.types]
    whole, _ = taken_apart(optimizer.init(parameters.tree(blank)), "optimizer")
    # Probes: with parameters of distinct lengths, a leaf's length tells which parameter it belongs to.
    count = len(parts)
    probes = []
    for first in (3, 3 + count):
        lengths = [np.zeros(first + i, p.dtype) for i, p in enumerate(parts)]
        probes.append(taken_apart(optimizer.init(parameters.tree(lengths)), "optimizer")[0])
    names = set()
    if not whole.names == state.names == probes[0].names == probes[1].names:
        raise _not_by_element(f"there are {', '.join(whole.names[:4])}")
    for name, own, t, a, b in zip(state.names, state.types, whole.types, *(p.types for p in probes), strict=True):
        if own == t == a == b:
            continue
        at = a.shape[0] - 3 if len(a.shape) == 1 else -1
        one_each = 0 <= at < count and b.shape == (3 + count + at,) and own.shape == parts[at].shape
        if not one_each or t.shape != parameters.types[at].shape:
            raise _not_by_element(f"{name} is {t}")
        names.add(name)
    return Cut(state, values, whole.by_name, frozenset(names))


def _not_by_element(what: str) -> GraphError:
    return GraphError(
        f"training: zero=1 cuts the optimizer's state over the ranks, but {what}, which is not a number for each "
        "element of a parameter: give an optimizer that works element by element, such as adamw, or leave zero out"
    )


def part_of(ranks: Ranks, x: Array) -> Array:
    """This rank's part of an array, 1-D."""
    length = _length(ranks, x.size)
    part = x.reshape(-1)[length * ranks.place :][:length]
    return np.concatenate([part, np.zeros(length - part.size, x.dtype)]) if part.size < length else part.copy()


def whole_of(ranks: Ranks, part: Array, whole: TensorType) -> Array:
    """The whole array, gathered from the ranks' parts. Requires: all ranks call it."""
    return ranks.group().all_gather(part)[: whole.numel].reshape(whole.shape)


def _length(ranks: Ranks, size: int) -> int:
    return -(-size // ranks.size)


def _filled(ranks: Ranks, x: Tensor) -> Tensor:
    """A tensor's elements, padded with zeros so that the ranks' parts are equally long."""
    flat, missing = ops.reshape(x, (-1,)), _length(ranks, x.size) * ranks.size - x.size
    return ops.concat([flat, ops.zeros((missing,), x.dtype)]) if missing else flat


def _by_rank(ranks: Ranks, tensors: Sequence[Tensor]) -> Tensor:
    """The first rank's part of each tensor, then the second rank's, and so on."""
    filled = [_filled(ranks, x) for x in tensors]
    lengths = [x.size // ranks.size for x in filled]
    if len(filled) == 1:
        return filled[0]
    return ops.concat([x[r * n : (r + 1) * n] for r in range(ranks.size) for x, n in zip(filled, lengths, strict=True)])


def own_parts(ranks: Ranks, tensors: Sequence[Tensor]) -> list[Tensor]:
    """This rank's part of each tensor, where it lies."""
    start = ops.stack([ops.axis_index(ranks.axis), 0])
    filled = [_filled(ranks, x) for x in tensors]
    tables = [ops.reshape(x, (ranks.size, x.size // ranks.size)) for x in filled]
    return [ops.reshape(ops.dynamic_slice(x, start, (1, x.shape[1])), (-1,)) for x in tables]


def scattered_means(ranks: Ranks, slopes: Sequence[Tensor], weight: float) -> Means:
    """This rank's part of the mean over the ranks of each gradient, summed in buckets as by `mean_gradients`."""
    parts: list[Tensor] = list(slopes)
    tested: list[Tensor] = []
    sent = [halves_of(x, weight) for x in slopes]
    for bucket in buckets(sent, slopes):
        table = _by_rank(ranks, [sent[i] for i in bucket])
        moved = sent[bucket[0]] is not slopes[bucket[0]]
        if moved:
            every = ops.all_to_all(table, ranks.axis, 0, 0)
        else:
            every = ops.reduce_scatter(weighted(table, weight), ranks.axis, op="mean")
        tested.append(every)
        at, size = 0, table.size // ranks.size
        for i in bucket:
            length = _length(ranks, slopes[i].size)
            terms = [every[s : s + length] for s in range(at, every.size, size)]
            parts[i] = mean_of([ops.cast(t, slopes[i].dtype) for t in terms])
            at += length
    return Means(parts, tested)


def gathered(ranks: Ranks, parts: Sequence[Tensor], like: Sequence[Tensor]) -> list[Tensor]:
    """The whole tensors, of the shapes of `like`, gathered from the ranks' parts. These gathers run after the
    optimizer's state was updated in place, so that losing a rank voids it (`spoils`)."""
    whole: list[Tensor] = list(parts)
    for bucket in buckets(parts):
        table = joined([parts[i] for i in bucket])
        before, PLACE.spoils = PLACE.spoils, True
        try:
            every = ops.all_gather(table, ranks.axis)
        finally:
            PLACE.spoils = before
        at = 0
        for i in bucket:
            starts = range(at, every.size, table.size)
            flat = joined([every[start : start + parts[i].size] for start in starts])
            whole[i] = ops.reshape(flat[: like[i].size], like[i].shape)
            at += parts[i].size
    return whole
