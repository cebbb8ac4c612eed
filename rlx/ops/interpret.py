"""Evaluation of a graph node by node with the ops' NumPy references; in float64 this is the oracle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.errors import GraphError, ShapeError
from rlx.ir import Graph, Node, bodies
from rlx.ops.elementwise.fused import evaluate as evaluate_fused
from rlx.ops.numeric import convert
from rlx.packed import PackedArray

Array = npt.NDArray[Any]


def evaluate(graph: Graph, feeds: Mapping[str, npt.ArrayLike | PackedArray], upcast: bool = True) -> dict[int, Array]:
    """The value of every tensor by its id.

    `feeds` gives inputs, params and states by name (states not given are zero). With `upcast` floats are computed in
    float64 whatever their dtype, except that values of half-precision leaves and casts to a half are rounded to that
    half (float64 feeds of f32 leaves keep all their digits); integers and bools keep their dtypes. Without `upcast`
    every node computes in its own dtypes.
    Raises: GraphError for a missing feed, ShapeError for one of another shape.
    """
    values: dict[int, Array] = {}
    for node in graph.nodes:
        results = evaluate_node(node, values, feeds, upcast)
        values.update(zip((t.id for t in node.outputs), results, strict=True))
    return values


def evaluate_node(
    node: Node, values: Mapping[int, Array], feeds: Mapping[str, npt.ArrayLike | PackedArray], upcast: bool = True
) -> tuple[Array, ...]:
    """The outputs of one node, given the values of its inputs by id and the feeds by name. Raises: as evaluate."""
    if node.op.leaf:
        return (_widen(_leaf(node, feeds, upcast), upcast),)
    result = apply_reference(node, [values[t.id] for t in node.inputs], upcast)
    for t, value in zip(node.outputs, result, strict=True):
        if value.shape != t.type.array_shape:
            raise ShapeError(f"{node}: the reference gives {value.shape}; infer says {t.type.array_shape}")
    return result


def apply_reference(node: Node, inputs: list[Array], upcast: bool) -> tuple[Array, ...]:
    """The outputs of one node for the given inputs."""
    if node.op.name == "cast":
        # With `upcast` a cast to f32 or f64 must not round: only casts to halves, integers and bools change values.
        dtype = node.attrs["dtype"]
        if upcast and dtype.is_float and not dtype.is_half:
            return (inputs[0].astype(np.float64),)
        return (_widen(convert(inputs[0], dtype), upcast),)
    if node.op.name == "fused":
        return evaluate_fused(inputs, node.attrs, upcast)
    if bodies(node):
        return tuple(node.op.reference(*inputs, **node.attrs, upcast=upcast))
    results = node.op.reference(*inputs, **node.attrs)
    outs = results if isinstance(results, tuple) else (results,)
    types = [t.dtype for t in node.outputs]
    if upcast:
        return tuple(
            np.asarray(v, np.float64 if d.is_float else None) for v, d in zip(outs, types, strict=True)
        )
    return tuple(np.asarray(v).astype(d.np, copy=False) for v, d in zip(outs, types, strict=True))


def run_body(body: Graph, inputs: Sequence[Array], upcast: bool) -> list[Array]:
    """The outputs of a control op's body for values of its inputs and params."""
    names = (*body.inputs, *body.params)
    values = evaluate(body, dict(zip(names, inputs, strict=True)), upcast)
    return [values[t.id] for t in body.outputs.values()]


def _leaf(node: Node, feeds: Mapping[str, npt.ArrayLike | PackedArray], upcast: bool) -> Array:
    if node.op.name == "constant":
        return np.asarray(node.attrs["value"])
    name, t = node.attrs["name"], node.output
    if name in feeds:
        feed = feeds[name]
        value = feed.data if isinstance(feed, PackedArray) else np.asarray(feed)
        if value.shape != t.type.array_shape:
            raise ShapeError(f"{node.op.name} {name!r}: got shape {value.shape}, expected {t.type.array_shape}")
        if t.dtype.is_packed:
            return value
        keep = upcast and value.dtype == np.float64 and t.dtype.is_float and not t.dtype.is_half
        return value if keep else convert(value, t.dtype)
    if node.op.name == "state":
        return np.zeros(t.type.array_shape, t.dtype.np)
    raise GraphError(f"{node.op.name} {name!r}: no value given; the feeds are {sorted(feeds)}")


def _widen(value: Array, upcast: bool) -> Array:
    return value.astype(np.float64) if upcast and np.dtype(value.dtype).kind in "fV" else value
