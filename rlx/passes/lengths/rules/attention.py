"""Attention: queries stay apart; keys behind the true length are hidden, and their values zero."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rlx.dtypes import i32
from rlx.ir import Node, Tensor
from rlx.passes.lengths.axes import Axis, Layout, is_fixed, joined
from rlx.passes.lengths.site import Made, Site, rule

_QUERY, _KEY, _VALUE = 0, 1, 2


@rule("attention")
def attention(site: Site) -> Made:
    if site.node.attrs.get("tokens"):
        raise site.refuse("heads are in the rows of tokens")
    batch = _batch(site, 0)
    return site.repeat(_hidden(site, 0), (batch, *site.layouts[_QUERY][1:]))


@rule("attention_grad")
def attention_grad(site: Site) -> Made:
    """Padded queries add nothing to the gradients of keys and values: they and their gradients are zero."""
    batch = _batch(site, 1)
    replaced = dict(_hidden(site, 1))
    if not site.fixed(1, 2):
        replaced |= {i: site.masked(i, (2,), 0.0) for i in (0, 1)}
        m = _mask(site, 1)
        if m is not None:
            rows = len(site.layouts[m]) - 2
            if rows >= 0 and not site.fixed(m, rows):
                value = True if site.inputs[m].dtype.kind == "b" else 0.0
                before = replaced.get(m, site.inputs[m])
                replaced[m] = site.maker.masked(before, site.layouts[m], (rows,), value, site.node)
    q, k, v = site.layouts[1:4]
    return site.repeat(replaced, *[(batch, *p[1:]) for p in (q, k, v)])


def _mask(site: Site, first: int) -> int | None:
    """The input that is a mask; the number of keys, of integers, comes after it."""
    i = first + 3
    return i if i < len(site.inputs) and not site.inputs[i].dtype.is_int else None


def _lengths(site: Site, first: int) -> int | None:
    i = len(site.inputs) - 1
    return i if i >= first + 3 and site.inputs[i].dtype.is_int else None


def _batch(site: Site, first: int) -> Axis:
    """The axis of the batch, once all operands are known to fit each other."""
    q, k, v = site.layouts[first : first + 3]
    shape = site.node.inputs[first].shape
    for i in range(first, first + 3):
        site.expect_fixed(i, (1, 3), "the number of heads, or their size, is unknown")
        if not site.fixed(i, 2):
            site.prefix(i, 2)
    keys = joined([k[2], v[2]], site.node.inputs[first + 1].shape[2])
    batches = [p[0] for p in (q, k, v)]
    m, n = _mask(site, first), _lengths(site, first)
    if m is not None:
        layout: Layout = site.layouts[m]
        if len(layout) == 4:
            batches.append(layout[0])
        wanted = (q[2], keys)
        for axis, own in zip(layout[-2:], wanted[-len(layout) :] if len(layout) < 2 else wanted, strict=True):
            if not is_fixed(axis):
                joined([axis, own], site.node.inputs[m].shape[layout.index(axis)])
    if n is not None and site.layouts[n]:
        batches.append(site.layouts[n][0])
    return joined(batches, shape[0])


def _hidden(site: Site, first: int) -> Mapping[int, Tensor]:
    """The operands that hide the keys behind the true length."""
    attrs = site.node.attrs
    query, key = first + _QUERY, first + _KEY
    placed = attrs["causal"] or attrs.get("window") is not None
    lengths = _lengths(site, first)
    queries_fixed = site.fixed(query, 2)
    if placed and not queries_fixed:
        if lengths is not None:
            raise site.refuse("kv_len places queries by their number, which is unknown")
        # The last query has the position of the last key: with equal padding the distance stays what it was.
        site.require(
            lambda node: _distance(node, first),
            f"{site.node.name}: queries and keys are padded by different lengths",
        )
    if site.fixed(key, 2):
        return {}
    if not placed or queries_fixed:
        n = site.length(key, 2)
        if lengths is None:
            return {len(site.inputs): n}
        return {lengths: site.add("minimum", _i32(site, site.inputs[lengths]), n)}
    result = {i: site.masked(i, (2,), 0.0) for i in (key, first + _VALUE)}
    if attrs["causal"]:
        return result
    return result | _with_mask(site, first, site.mask(site.layouts[key][2]))


def _distance(node: Node, first: int) -> int:
    q, k = node.inputs[first : first + 2]
    return k.shape[2] - q.shape[2]


def _i32(site: Site, x: Tensor) -> Tensor:
    return x if x.dtype == i32 else site.add("cast", x, dtype=i32)


def _with_mask(site: Site, first: int, keys: Tensor) -> dict[int, Tensor]:
    m = _mask(site, first)
    if m is None:
        return {first + 3: site.add("reshape", keys, shape=(1, 1, 1, *keys.shape))}
    mask = site.inputs[m]
    if mask.dtype.kind == "b":
        return {m: site.add("logical_and", mask, keys)}
    return {m: site.add("where", keys, mask, site.constant(-math.inf, mask.dtype))}
