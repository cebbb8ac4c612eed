"""An op's NumPy reference and its decomposition into other ops, made from its row program (`rlx.ir.rows`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlx.autodiff.pullback import vjp_by_parts
from rlx.dtypes import DType, as_dtype, f64, i32, rounded
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Attrs, Expr, Op, Tensor, TensorType, apply, register
from rlx.ir.expr import linearize
from rlx.ir.op import Decompose, Infer, Reference, Vjp
from rlx.ir.rows import ROW_PRIMS, Layout, Rows, elements_of, program_of
from rlx.ops import reduce
from rlx.ops.base import cast_to, check_float, check_inputs
from rlx.ops.elementwise.fused import tensor_of_prim
from rlx.ops.elementwise.prims import PRIM_FUNCTIONS
from rlx.ops.numeric import F32_MAX, Array, centred, working

_INDEX = np.dtype(np.int64)


def reference_of(rows: Rows, single: bool = True) -> Reference:
    """The NumPy reference of a row program, which returns an array (`single`) or a tuple of arrays."""

    def reference(*arrays: Any, **attrs: Any) -> Any:
        ins = [np.asarray(a) for a in arrays]
        dtypes = [as_dtype(a.dtype) for a in ins]
        work = working(dtypes[0])
        like = rows.places.index("element")
        layout = rows.layout(ins[like].shape, attrs)
        wide = [a.astype(work.np, copy=False) if d.is_float else a for a, d in zip(ins, dtypes, strict=True)]
        trees = program_of(rows, dtypes, work, attrs)
        varying = elements_of(trees, rows.places)
        with np.errstate(all="ignore"):
            values = _evaluated(trees, wide, rows, layout)
            made = []
            for i, (tree, source) in enumerate(zip(trees, rows.stored, strict=False)):
                view = layout.view("element" if tree in varying else "row")
                value = np.moveaxis(np.broadcast_to(values[tree], _last(view, layout)), _ends(layout), layout.axes)
                if i < len(rows.summed) and rows.summed[i]:
                    value = _over_rows(value, layout)
                else:
                    value = value.reshape(ins[like].shape if tree in varying else row_shape(rows, layout))
                if isinstance(source, int):
                    dtype = ins[source].dtype
                else:  # all outputs of the oracle are f64
                    dtype = work.np if source is None or work == f64 else attrs[source].np
                made.append(rounded(value, dtype))
        return made[0] if single else tuple(made)

    return reference


def _over_rows(x: Array, layout: Layout) -> Array:
    """Pairwise sums over all axes but those of the weights, as one flat array."""
    first = np.moveaxis(x, layout.weights, range(len(layout.weights)))
    count = math.prod(layout.shape[i] for i in layout.weights)
    return np.asarray(np.sum(np.ascontiguousarray(first.reshape(count, x.size // max(count, 1))), axis=1))


def row_shape(rows: Rows, layout: Layout) -> tuple[int, ...]:
    """The shape of an output with one value per row."""
    view = layout.view("row")
    return view if rows.keepdims else tuple(n for i, n in enumerate(view) if i not in layout.axes)


def _ends(layout: Layout) -> tuple[int, ...]:
    """The row's axes in the arrays that NumPy evaluates: the last ones, as NumPy sums pairwise only along memory."""
    return tuple(range(-len(layout.axes), 0))


def _last(shape: tuple[int, ...], layout: Layout) -> tuple[int, ...]:
    return (*(n for i, n in enumerate(shape) if i not in layout.axes), *(shape[i] for i in layout.axes))


def _evaluated(trees: Sequence[Expr], arrays: Sequence[Array], rows: Rows, layout: Layout) -> dict[Expr, Array]:
    """The value of each node of the trees, with a row's axes last."""
    whole, ends = _last(layout.shape, layout), _ends(layout)
    values: dict[Expr, Array] = {}

    def flat(e: Expr) -> Array:
        """A node's value, broadcast to whole rows with a row's elements along one axis."""
        full = np.broadcast_to(values[e], whole)
        return full.reshape(*whole[: len(whole) - len(ends)], layout.length)

    def index(e: Expr) -> Array:
        one = np.clip(values[e], 0, max(layout.length - 1, 0)).astype(_INDEX)
        return one.reshape(*one.shape[: len(whole) - len(ends)], 1)

    def reduced(e: Expr) -> Array:
        x = flat(e.args[0])
        if e.prim == "row_pick":
            value = np.take_along_axis(x, index(e.args[1]), -1) if x.size else x[..., :1]
        elif e.prim in ("row_max", "row_min"):
            least = -np.inf if e.prim == "row_max" else np.inf
            extreme = np.max if e.prim == "row_max" else np.min
            value = extreme(x, axis=-1, keepdims=True, initial=least)
        else:
            value = np.sum(x, axis=-1, keepdims=True)
            value = value / x.dtype.type(layout.length) if e.prim == "row_mean" else value
        return np.asarray(value).reshape(*value.shape[:-1], *(1,) * len(ends))

    for e in linearize(trees):
        if e.prim == "arg":
            assert isinstance(e.value, int)
            a = arrays[e.value].reshape(layout.view(rows.places[e.value]))
            values[e] = np.ascontiguousarray(np.moveaxis(a, layout.axes, ends))
        elif e.prim == "lit":
            values[e] = np.asarray(e.value, e.dtype.np)
        elif e.prim == "less_mean":
            x = flat(e.args[0])
            values[e] = (centred(x) if x.size else x).reshape(whole)
        elif e.prim == "row_at":
            values[e] = (np.arange(layout.length) == index(e.args[0])).reshape(whole)
        elif e.prim in ROW_PRIMS:
            values[e] = reduced(e)
        elif e.prim == "cast":
            values[e] = values[e.args[0]].astype(e.dtype.np)
        else:
            values[e] = np.asarray(PRIM_FUNCTIONS[e.prim](*(values[a] for a in e.args)), e.dtype.np)
    return values


def decompose_of(rows: Rows) -> Callable[[Sequence[Tensor], Attrs], tuple[Tensor, ...]]:
    """The decomposition of a row program into other ops, which returns a tensor for each output."""

    def decompose(inputs: Sequence[Tensor], attrs: Attrs) -> tuple[Tensor, ...]:
        like = inputs[rows.places.index("element")]
        layout, work = rows.layout(like.shape, attrs), working(inputs[0].dtype)
        trees = program_of(rows, [t.dtype for t in inputs], work, attrs)
        varying = elements_of(trees, rows.places)
        values: dict[Expr, Tensor] = {}
        if not like.size:
            values = {tree: cast_to(apply("copy", like), tree.dtype) for tree in trees if tree in varying}
        for e in linearize([tree for tree in trees if tree not in values]):
            values[e] = _tensor(e, values, inputs, rows, layout)
        made = []
        for i, (tree, source) in enumerate(zip(trees, rows.stored, strict=False)):
            t, shape = values[tree], like.shape if tree in varying else row_shape(rows, layout)
            if i < len(rows.summed) and rows.summed[i]:
                others = tuple(a for a in range(len(layout.shape)) if a not in layout.weights)
                t = apply("sum", _shaped(t, layout.shape), axes=others, keepdims=False)
                shape = (math.prod(t.shape),)
            made.append(cast_to(_shaped(t, shape), _stored(source, inputs, work, attrs)))
        return tuple(made)

    return decompose


def _shaped(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    if math.prod(x.shape) != math.prod(shape):
        x = apply("expand", x, shape=shape)
    return x if x.shape == shape else apply("reshape", x, shape=shape)


def _tensor(e: Expr, values: dict[Expr, Tensor], inputs: Sequence[Tensor], rows: Rows, layout: Layout) -> Tensor:
    """The tensor of a node; `values` has those of its arguments."""
    graph = inputs[0].graph
    if e.prim == "arg":
        assert isinstance(e.value, int)
        return cast_to(_shaped(inputs[e.value], layout.view(rows.places[e.value])), e.dtype)
    if e.prim not in ROW_PRIMS:
        return tensor_of_prim(graph, e, [values[a] for a in e.args], layout.shape)
    axes, x = layout.axes, values[e.args[0]]
    if e.prim == "less_mean":
        return reduce.less_mean(x, axes)
    if e.prim in ("row_at", "row_pick"):
        index = apply("clip", values[e.args[-1]], min=0, max=layout.length - 1)
        numbers = np.arange(layout.length, dtype=i32.np)
        shape = tuple(n if i in axes else 1 for i, n in enumerate(layout.shape))
        here = apply("equal", index, graph.constant(numbers.reshape(shape)))
        # `where` selects the element: a product with one-hot rows would give 0 · -inf = NaN if another element is -inf.
        return here if e.prim == "row_at" else apply("sum", apply("where", here, x, 0), axes=axes, keepdims=True)
    name = e.prim.removeprefix("row_")
    if not layout.length and name in ("max", "min"):
        nothing = graph.constant(-math.inf if name == "max" else math.inf, e.dtype)
        return apply("expand", nothing, shape=layout.view("row"))
    return apply(name, x, axes=axes, keepdims=True)


def infer_of(name: str, rows: Rows) -> Callable[[Sequence[TensorType], Attrs], tuple[TensorType, ...]]:
    """Infers the outputs' types. All inputs are required: floats of the shapes that `rows.places` names."""

    def infer(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
        check_inputs(name, types, len(rows.places))
        like = types[rows.places.index("element")]
        if not like.rank:
            raise ShapeError(f"{name}: the input is a scalar; expected at least one axis")
        layout = rows.layout(like.shape, attrs)
        shapes = {"element": like.shape, "row": row_shape(rows, layout)}
        shapes["weight"] = (math.prod(layout.shape[i] for i in layout.weights),)
        for i, (t, place) in enumerate(zip(types, rows.places, strict=True)):
            check_float(name, t.dtype, f"input {i}")
            if t.shape != shapes[place]:
                raise ShapeError(f"{name}: input {i} is {t.shape}; expected {shapes[place]}, a value for each {place}")
        for key in rows.numbers:
            if not isinstance(attrs[key], float) or not abs(attrs[key]) <= F32_MAX:
                raise DTypeError(f"{name}: {key} is {attrs[key]!r}; expected a float that f32 holds")
        work = working(types[0].dtype)
        trees = program_of(rows, [t.dtype for t in types], work, attrs)
        varying = elements_of(trees, rows.places)
        dtypes = (_stored(source, types, work, attrs) for source in rows.stored)
        return tuple(
            TensorType(shapes["element" if tree in varying else "row"], dtype)
            for tree, dtype in zip(trees, dtypes, strict=True)
        )

    return infer


def _stored(source: int | str | None, like: Sequence[TensorType | Tensor], work: DType, attrs: Attrs) -> DType:
    """The dtype of an output, given its entry in `Rows.stored`."""
    if source is None:
        return work
    dtype: DType = attrs[source] if isinstance(source, str) else like[source].dtype
    return dtype


def row_op(
    name: str, family: str, rows: Rows, judge: str, infer: Infer | None = None, vjp: Vjp | None = None,
    single: bool = True, **traits: Any,
) -> Op:  # fmt: skip
    """Registers an op whose reference and decomposition are made from its row program, as are its types and gradients
    where `infer` and `vjp` are None. `single`: it has one output."""
    several = decompose_of(rows)
    decompose: Decompose = (lambda inputs, attrs: several(inputs, attrs)[0]) if single else several
    types = infer_of(name, rows)
    infer = infer or ((lambda ins, attrs: types(ins, attrs)[0]) if single else types)
    vjp = vjp or vjp_by_parts(several)
    return register(
        Op(name, family, infer, reference_of(rows, single), judge, vjp, rows=rows, decompose=decompose, **traits)
    )
