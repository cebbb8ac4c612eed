"""A language model split over ranks: which part of each weight a rank has, and where ranks add partial sums.

docs/design/ranks.md ("A model over cards") says what was decided."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

import rlx.ops as ops
from rlx.dtypes import DType, bf16, f16, f32
from rlx.errors import ShapeError, UnsupportedOp
from rlx.ir import Tensor, apply
from rlx.models.language.config import Attention, LanguageConfig
from rlx.packed import PackedArray
from rlx.packed.array import part_of
from rlx.records import Record, replace

AXIS = "model"  # the axis of the mesh
Span = tuple[int, int]
_MIXERS = {"attention", "mlp", "experts"}  # the mixers that can be split
_FINEST = 256  # inner widths are split at multiples of this, or of a smaller power of two, or of blocks if longer


class Part(Record):
    """A rank's part of a weight whose shape in the file is `whole`: a range of one axis. Without an axis the first rank
    has the whole weight, the others zeros."""

    whole: tuple[int, ...]
    axis: int | None
    start: int = 0
    stop: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        if self.axis is None:
            return self.whole
        return (*self.whole[: self.axis], self.stop - self.start, *self.whole[self.axis + 1 :])

    def of(self, value: npt.NDArray[Any] | PackedArray) -> npt.NDArray[Any] | PackedArray:
        """This part of the whole weight."""
        if self.axis is not None:
            return part_of(value, self.axis, self.start, self.stop)
        return np.asarray(value) if self.start == 0 else np.zeros_like(np.asarray(value))


class TensorParallel(Record):
    """One rank's part of a model: its query heads and KV heads, the inner widths of its MLPs, experts and shared
    experts, and its range of the vocabulary. `who` are the attributes of collectives among the ranks, `sums` the dtype
    in which they add, None for that of activations."""

    rank: int
    count: int
    who: tuple[tuple[str, Any], ...]
    sums: DType | None
    config: LanguageConfig  # the whole model's settings
    heads: Span = (0, 0)
    kv_heads: Span = (0, 0)
    inner: Span = (0, 0)
    expert: Span = (0, 0)
    shared: Span = (0, 0)
    vocabulary: Span = (0, 0)

    def within(self, program: str) -> TensorParallel:
        """The same for one program, whose collectives then carry its name for the ranks to compare."""
        who = dict(self.who)
        return replace(self, who=tuple({**who, "card": f"{program} of {who['card']}"}.items()))

    def local(self) -> LanguageConfig:
        """The settings of this rank's part, which is a smaller model."""
        c = self.config
        a, e = c.attention, c.experts
        if a is not None:
            slopes = a.alibi[slice(*self.heads)]
            a = replace(a, heads=_length(self.heads), kv_heads=_length(self.kv_heads), alibi=slopes)
        if e is not None:
            e = replace(e, inner=_length(self.expert), shared=_length(self.shared))
        return replace(c, attention=a, experts=e, inner=_length(self.inner))

    def part(self, name: str, shape: tuple[int, ...]) -> Part | None:
        """The part of the file's weight that this rank holds as a weight of this name and shape; None for all of it."""
        if name == "lm_head.weight":
            return self._cut(shape, 0, self.vocabulary, self.config.vocabulary)
        block, _, rest = name.removeprefix("layers.").partition(".")[2].partition(".")
        product, _, kind = rest.rpartition(".")
        a, e = self.config.attention, self.config.experts
        if block == "self_attn" and a is not None:
            each = product == "" or (a.qk_norm == "heads" and product.endswith("_norm"))  # one number, or row, per head
            n = 1 if each else a.head_size
            if product in ("q_proj", "q_gate") or rest == "sinks":
                return self._cut(shape, 0, self.heads, a.heads, n)
            if product in ("k_proj", "v_proj"):
                return self._cut(shape, 0, self.kv_heads, a.kv_heads, n)
            if product in ("q_norm", "k_norm") and a.qk_norm in ("heads", "row"):
                of = (self.heads, a.heads) if product == "q_norm" else (self.kv_heads, a.kv_heads)
                return self._cut(shape, 0, *of, n)
            if product == "o_proj":
                return self._cut(shape, 1, self.heads, a.heads, n) if kind == "weight" else self._first(shape)
        if block == "mlp":
            of, at = (self.inner, self.config.inner), 0
            if e is not None and product.startswith("experts."):
                of, at = (self.expert, e.inner), 1
            elif e is not None and product.startswith("shared_expert."):
                of = (self.shared, e.shared)
            product = product.rpartition(".")[2]
            if product in ("gate_proj", "up_proj"):
                return self._cut(shape, at, *of)
            if product == "down_proj":
                return self._cut(shape, at + 1, *of) if kind == "weight" else self._first(shape)
        return None

    def _cut(self, shape: tuple[int, ...], axis: int, span: Span, whole: int, each: int = 1) -> Part:
        return Part((*shape[:axis], whole * each, *shape[axis + 1 :]), axis, span[0] * each, span[1] * each)

    def _first(self, shape: tuple[int, ...]) -> Part:
        return Part(shape, None, self.rank)

    # -- in a graph

    def summed(self, x: Tensor) -> Tensor:
        """The sum of a block's result over the ranks, in x's dtype. Two f16 or bf16 numbers are added without widening:
        the result is the same as rounding their f32 sum, since a sum that f32 cannot hold is never near a tie."""
        alike = x.dtype in (f16, bf16) and self.sums == f32 and self.count == 2
        wide = x if alike or self.sums is None else ops.cast(x, self.sums)
        return ops.cast(apply("all_reduce", wide, how="sum", **dict(self.who)), x.dtype)

    def mean_of_rows(self, mean: Tensor, norm: str) -> Tensor:
        """The mean over whole rows, from the mean over this rank's part of them; `norm` names the norm of q or k."""
        a = self.config.attention
        assert a is not None
        own, heads = (self.heads, a.heads) if norm.endswith(".q_norm") else (self.kv_heads, a.kv_heads)
        return apply("all_reduce", mean * (_length(own) / heads), how="sum", **dict(self.who))

    def gathered(self, logits: Tensor) -> Tensor:
        """The ranks' logits concatenated, (rows, vocabulary)."""
        most = self.share
        if logits.shape[1] < most:
            logits = ops.pad(logits, ((0, 0), (0, most - logits.shape[1])))
        whole = apply("all_gather", ops.transpose(logits, (1, 0)), **dict(self.who))
        return ops.transpose(whole, (1, 0))[:, : self.config.vocabulary]

    @property
    def share(self) -> int:
        """The rows of the output matrix on each rank; the last may have fewer."""
        return -(-self.config.vocabulary // self.count)


def parts_of(
    config: LanguageConfig, where: str, blocks: Callable[[str], int], count: int,
    who: Callable[[int], Mapping[str, Any]], sums: DType | None,
) -> Sequence[TensorParallel]:  # fmt: skip
    """How a model is split over `count` ranks. `blocks` gives the number of elements along a weight's last axis that
    the file's format keeps together.

    Raises: UnsupportedOp for a part that cannot be split, ShapeError for sizes that cannot be divided among the ranks.
    """
    _refuse(config, where)

    def finest(end: str) -> int:
        return math.lcm(*(blocks(f"layers.{i}.{end}.weight") for i in range(config.layers)))

    def widths(end: str, whole: int, what: str) -> list[Span]:
        if not whole:
            return [(0, 0)] * count
        block = finest(end)
        units = [block << i for i in range(9) if (block << i) <= max(block, _FINEST) and whole % (block << i) == 0]
        largest = {unit: -(-whole // unit // count) * unit for unit in units if whole // unit >= count}
        if not largest:
            raise ShapeError(f"tensor_parallel={count}: {where} has {what} of {whole}, in blocks of {block}, of which "
                             f"{count} ranks have none each; take fewer ranks")  # fmt: skip
        unit = min(largest, key=lambda unit: (largest[unit], -unit))
        return _spans(whole // unit, count, unit)

    a, e = config.attention, config.experts
    heads = kv_heads = [(0, 0)] * count
    if a is not None:
        heads, kv_heads = _heads(a, finest("self_attn.o_proj"), count, where)
    inner = widths("mlp.down_proj", config.inner, "inner activations")
    expert = widths("mlp.experts.down_proj", e.inner if e else 0, "experts")
    shared = widths("mlp.shared_expert.down_proj", e.shared if e else 0, "a shared expert")
    each = -(-config.vocabulary // count)
    if each * (count - 1) >= config.vocabulary:
        raise ShapeError(f"tensor_parallel={count}: {where} knows {config.vocabulary} tokens; take fewer ranks")
    rows = [(each * rank, min(each * (rank + 1), config.vocabulary)) for rank in range(count)]
    return [
        TensorParallel(rank, count, tuple(who(rank).items()), sums, config, heads[rank], kv_heads[rank], inner[rank],
                       expert[rank], shared[rank], rows[rank])
        for rank in range(count)
    ]  # fmt: skip


def _refuse(config: LanguageConfig, where: str) -> None:
    """Raises: UnsupportedOp for a model with parts that cannot be split."""
    a, odd = config.attention, sorted(set(config.mixers) - _MIXERS)
    if a is not None and a.latent is not None and "latent" not in odd:
        odd.append("latent")
    if config.layer_inputs is not None or config.inners or (a is not None and (a.sizes or a.lent)):
        raise UnsupportedOp(f"tensor_parallel: {where} has layers of several sizes, with inputs of their own, or that "
                            "attend to others' keys, which are not cut; layers_on= places whole layers")  # fmt: skip
    if odd:
        raise UnsupportedOp(f"tensor_parallel: {where} has layers of {', '.join(odd)}, which are not cut over devices; "
                            "layers_on= places whole layers")  # fmt: skip
    if a is not None and a.qk_norm == "row" and config.norm != "rms":
        raise UnsupportedOp(f"tensor_parallel: {where} has layer norms of whole rows of q and k, which would be cut; "
                            "layers_on= places whole layers")  # fmt: skip
    if config.mlp_norm or (a is not None and a.out_norm):
        raise UnsupportedOp(f"tensor_parallel: {where} has a norm before the last product of a block, whose rows would "
                            "be cut; layers_on= places whole layers")  # fmt: skip


def _heads(a: Attention, block: int, count: int, where: str) -> tuple[list[Span], list[Span]]:
    """Each rank's range of query heads, and of KV heads."""
    heads, kv_heads, size = a.heads, a.kv_heads, a.head_size
    group = heads // kv_heads
    if kv_heads >= count:
        unit = next(u for u in range(1, block + 1) if u * group * size % block == 0)
        if kv_heads % unit == 0 and kv_heads // unit >= count:
            spans = _spans(kv_heads // unit, count, unit)
            return [(start * group, stop * group) for start, stop in spans], spans
    elif a.qk_norm != "row":  # a KV head is on several ranks, which divide its query heads
        unit = next(u for u in range(1, block + 1) if u * size % block == 0)
        of = [stop - start for start, stop in _spans(count, kv_heads, 1)]  # how many ranks have each KV head
        if group % unit == 0 and group // unit >= max(of):
            own = [(j, start, stop) for j, n in enumerate(of) for start, stop in _spans(group // unit, n, unit)]
            return [(j * group + start, j * group + stop) for j, start, stop in own], [(j, j + 1) for j, _, _ in own]
    more = f", whose columns of o_proj are in blocks of {block}" if block > 1 else ""
    raise ShapeError(
        f"tensor_parallel={count}: {where} has {heads} heads and {kv_heads} key heads of {size}{more}; {count} ranks "
        "can neither share these nor repeat key heads so that each has some; take another number of ranks"
    )


def _spans(units: int, count: int, unit: int) -> list[Span]:
    """`units` divided among `count` ranks; the first ranks have one more if they do not divide evenly."""
    each, more = divmod(units, count)
    ends = [unit * (each * rank + min(rank, more)) for rank in range(count + 1)]
    return list(pairwise(ends))


def _length(span: Span) -> int:
    return span[1] - span[0]
