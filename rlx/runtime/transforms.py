"""Transformations of functions: vjp, jvp, hvp, jacfwd, jacrev, hessian, vmap, eval_shape. Names and order as in JAX.

Each works on arrays, for which it compiles a program as `jit` does, shared by calls with the same graph (`shared.py`),
and inside a traced function, to which it adds nodes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from rlx.autodiff import pullback, pushforward
from rlx.dtypes import as_dtype
from rlx.errors import DTypeError, GraphError, ShapeError
from rlx.ir import Graph, Tensor, TensorType, apply
from rlx.ir.body import TracedBody
from rlx.ir.checks import add_check
from rlx.ir.graph import TRACING, traced_into
from rlx.ir.types import is_index
from rlx.ops.batching import spread, sweep
from rlx.ops.complex_numbers import beside_pairs, conjugated, refuse_complex
from rlx.ops.composite import zeros_like
from rlx.ops.pytree import flatten, is_number, unflatten
from rlx.runtime.arguments import StaticNames, StaticNums
from rlx.runtime.jit import Jitted, Shared, Transformed, argument_numbers, check_twice, grad, tracing
from rlx.runtime.keywords import keywords
from rlx.runtime.outs import Out
from rlx.runtime.session import Target
from rlx.runtime.trees import (
    as_leaves,
    check_function,
    home,
    name_of,
    outputs_of,
    prefixed,
    same_tree,
    same_types,
    sources,
    taken,
)
from rlx.runtime.trees import statics as statics_of


def _now(what: str, function: Callable[..., Any], *args: Any) -> Any:
    """The function's results: inlined if an argument is a tensor or a function is being traced, else computed now."""
    if tracing() or any(isinstance(x, Tensor) for x in taken(args)[1]):
        return function(*args)
    return Shared(function, "auto", None, (), (), what)(*args)


def _auxiliary(what: str, function: Any, returned: Any, has_aux: bool) -> tuple[Any, Any]:
    if not has_aux:
        return returned, None
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise GraphError(
            f"{what}: with has_aux {name_of(function)} must return two things, the result first; got {returned!r}"
        )
    return returned


def _like(derivatives: Any, values: Any) -> Any:
    """The derivatives, with Python numbers among them cast to the dtypes of the values that they belong to."""
    (tree, ds), (_, xs) = taken(derivatives), taken(values)
    if len(ds) != len(xs) or not any(type(d) in (int, float) for d in ds):
        return derivatives
    kinds = [as_dtype(x.dtype) if hasattr(x, "dtype") else None for x in xs]
    return unflatten(tree, [d if type(d) not in (int, float) or kind is None else kind.np.type(d)
                            for d, kind in zip(ds, kinds, strict=True)])  # fmt: skip


def _or_zeros(t: Tensor, d: Tensor | None) -> Tensor:
    return zeros_like(t) if d is None else d


# -- forward and reverse mode


def jvp(
    fun: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False
) -> tuple[Any, ...]:
    """(fun(*primals), its derivative along the tangents): forward mode.

    `primals` and `tangents` are tuples or lists of the arguments, pytrees of floats, of one structure and the same
    types. With `has_aux` fun returns a pair, whose second part is appended to the result. Tangents of integer results
    are None. Works inside traced functions, through every op that has a gradient, and loops of any length; and on
    arrays, where each call traces fun anew but compiles only graphs that are new (jit saves the tracing too).
    Raises: GraphError where structures differ, ShapeError and DTypeError where types do, DTypeError for integers,
    UnsupportedOp for an op that is not differentiable. Follows Griewank and Walther, Evaluating Derivatives, chapter 3.
    """
    check_function("jvp", fun)
    for what, value in (("primals", primals), ("tangents", tangents)):
        if not isinstance(value, tuple | list) or hasattr(value, "_fields"):
            raise GraphError(
                f"jvp: {what} is {type(value).__name__}; expected a tuple or list of fun's arguments: "
                "jvp(f, (x,), (t,))"
            )
    name = name_of(fun)

    def pushed(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, ...]:
        (tree, leaves), (other, ds) = taken(tuple(primals)), taken(tuple(tangents))
        same_tree("jvp", "primals", tree, "tangents", other)
        graph = home("jvp", [*leaves, *ds])
        xs: list[Tensor] = []
        for i, primal in enumerate(primals):
            xs += sources("jvp", name, i, as_leaves(graph, taken(primal)[1]))
        given = as_leaves(graph, ds)
        same_types("jvp", "a primal", xs, "the tangent", given)
        result, aux = _auxiliary("jvp", fun, fun(*unflatten(tree, xs)), has_aux)
        out, ys = outputs_of("jvp", fun, graph, result)
        found = [
            _or_zeros(y, d) if y.dtype.is_float else None
            for y, d in zip(ys, pushforward(ys, given, xs), strict=True)
        ]
        both = unflatten(out, ys), unflatten(out, found)
        return (*both, aux) if has_aux else both

    made: tuple[Any, ...] = _now("jvp", pushed, primals, _like(tuple(tangents), tuple(primals)))
    return made


def vjp(fun: Callable[..., Any], *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """(fun(*primals), a function from cotangents of the result to the tuple of those of the primals): reverse mode.

    The arguments are pytrees of floats; the cotangents have the structure and types of fun's result (for integers in
    it they may be anything). With `has_aux` fun returns a pair, whose second part is appended to the result. On arrays
    the returned function is a program of its own that computes fun again; in a traced function both are in one program.
    Raises: as jvp.
    """
    check_function("vjp", fun)
    name = name_of(fun)

    def run(primals: Sequence[Any]) -> _Run:
        leaves = taken(primals)[1]
        graph = home("vjp", leaves)
        xs: list[Tensor] = []
        trees = []
        for i, primal in enumerate(primals):
            tree, own = taken(primal)
            trees.append((tree, len(own)))
            xs += sources("vjp", name, i, as_leaves(graph, own))
        result, aux = _auxiliary("vjp", fun, fun(*unflatten(taken(primals)[0], xs)), has_aux)
        out, ys = outputs_of("vjp", fun, graph, result)
        return _Run(trees, xs, out, ys, unflatten(out, ys), aux)

    def pulled(at: _Run, cotangents: Any) -> tuple[Any, ...]:
        tree, leaves = taken(conjugated(_like(cotangents, at.value)))
        same_tree("vjp", f"the result of {name}", at.out, "the cotangent", tree)
        graph = home("vjp", at.ys)
        ds: list[Tensor | None] = []
        for y, leaf in zip(at.ys, leaves, strict=True):
            if not y.dtype.is_float:
                ds.append(None)
                continue
            (d,) = as_leaves(graph, [leaf])
            same_types("vjp", f"the result of {name}", [y], "the cotangent", [d])
            ds.append(d)
        found = iter([_or_zeros(x, d) for x, d in zip(at.xs, pullback(at.ys, ds, at.xs), strict=True)])
        return tuple(conjugated(unflatten(tree, list(islice(found, count)))) for tree, count in at.trees)

    if tracing() or any(isinstance(x, Tensor) for x in taken(primals)[1]):
        at = run(primals)
        pull: Callable[[Any], Any] = functools.partial(pulled, at)
        return (at.value, pull, at.aux) if has_aux else (at.value, pull)

    def valued(primals: Sequence[Any]) -> tuple[Any, Any]:
        at = run(primals)
        return at.value, at.aux

    result, aux = Shared(valued, "auto", None, (), (), "vjp")(primals)
    back = Shared(lambda primals, cotangents: pulled(run(primals), cotangents), "auto", None, (), (), "vjp")

    def at_once(cotangents: Any) -> Any:
        return back(primals, _like(cotangents, result))

    return (result, at_once, aux) if has_aux else (result, at_once)


class _Run(NamedTuple):
    """A traced call of vjp's function: each primal's structure and leaf count, the leaves' tensors, the result."""

    trees: list[tuple[Any, int]]
    xs: list[Tensor]
    out: Any
    ys: list[Tensor]
    value: Any
    aux: Any


def linearize(fun: Callable[..., Any], *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """(fun(*primals), a function from tangents of the primals to the tangent of the result), as jax.linearize.

    The returned function computes fun again with each tangent; inside a traced function both are in one program.
    With `has_aux` fun returns a pair, whose second part is appended to the result. Raises: as jvp.
    """
    check_function("linearize", fun)

    def pushed(*tangents: Any) -> Any:
        return jvp(fun, primals, tangents, has_aux)[1]

    def now(primals: Sequence[Any]) -> Any:
        return fun(*primals)

    result = _now("linearize", now, primals)
    value, aux = _auxiliary("linearize", fun, result, has_aux)
    return (value, pushed, aux) if has_aux else (value, pushed)


def hvp(fun: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
    """The Hessian of a scalar-valued function at the primals, times the tangents, without the matrix: jvp of grad.

    `primals` and `tangents`: as in jvp. The result is like the gradient: for one primal a pytree like it, for several
    a tuple of them. Costs a few gradients. Raises: as jvp and grad.
    """
    check_function("hvp", fun)
    if not isinstance(primals, tuple | list):
        raise GraphError(
            f"hvp: primals is {type(primals).__name__}; expected a tuple or list of fun's arguments: hvp(f, (x,), (t,))"
        )
    argnums = 0 if len(primals) == 1 else tuple(range(len(primals)))
    return jvp(grad(fun, argnums), primals, tangents)[1]


@keywords
def jacfwd(
    fun: Callable[..., Any],
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    *,
    device: Target = "auto",
    static_argnums: StaticNums = (),
    static_argnames: StaticNames = (),
    out: Out = "host",
) -> Jitted[..., Any]:
    """The Jacobian of a function with respect to the arguments `argnums`, column by column: forward mode.

    For a result leaf of shape r and an argument leaf of shape a it has shape (*r, *a). The leaves of the result's
    structure are replaced by the argument's structure (by a tuple of these for a tuple of argnums). All columns are
    computed at once, by `vmap`. Good where there are fewer inputs than outputs. With `has_aux` fun returns a pair, and
    so does this.
    Other arguments as in `grad`. Raises: as jvp, of results that are integers too.
    """
    return _jacobian("jacfwd", fun, argnums, has_aux, _columns, device, static_argnums, static_argnames, out)


@keywords
def jacrev(
    fun: Callable[..., Any],
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    *,
    device: Target = "auto",
    static_argnums: StaticNums = (),
    static_argnames: StaticNames = (),
    out: Out = "host",
) -> Jitted[..., Any]:
    """The Jacobian of a function, row by row: reverse mode. Good where there are fewer outputs than inputs.

    Shapes, structure, arguments and errors: as jacfwd.
    """
    return _jacobian("jacrev", fun, argnums, has_aux, _rows, device, static_argnums, static_argnames, out)


@keywords
def hessian(
    fun: Callable[..., Any],
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    *,
    device: Target = "auto",
    static_argnums: StaticNums = (),
    static_argnames: StaticNames = (),
    out: Out = "host",
) -> Jitted[..., Any]:
    """The matrix of second derivatives of a function: jacfwd of jacrev.

    A scalar function of an argument of shape a gives (*a, *a). For a pytree argument each leaf of its structure is
    replaced by that structure again. Other arguments and errors as jacfwd.
    """
    check_function("hessian", fun)
    inner = jacrev(fun, argnums, has_aux)
    return jacfwd(inner, argnums, has_aux, device=device, static_argnums=static_argnums,
                  static_argnames=static_argnames, out=out)  # fmt: skip


def _jacobian(
    what: str, fun: Any, argnums: Any, has_aux: bool, rule: Any, device: Any, nums: Any, names: Any, out: Any
) -> Jitted[..., Any]:
    check_function(what, fun)
    numbers = argument_numbers(what, argnums)
    name = name_of(fun)

    @functools.wraps(fun)
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        given = list(args)
        graph = home(what, taken((args, kwargs))[1])
        trees: list[tuple[Any, list[Tensor]]] = []
        check_twice(what, numbers, len(args))
        for i in numbers:
            if not is_index(i) or not -len(args) <= i < len(args):
                raise GraphError(
                    f"{what}: there is no argument {i!r}; {name} was given {len(args)} by position, and argnums counts "
                    "these from 0"
                )
            tree, leaves = taken(args[i])
            xs = sources(what, name, i, as_leaves(graph, leaves))
            if not xs:
                raise GraphError(
                    f"{what}: argument {i} of {name} holds no array; give floats, or leave it out of argnums"
                )
            given[i] = unflatten(tree, xs)
            refuse_complex(what, f"argument {i} of {name}", tree)
            trees.append((tree, xs))
        result, aux = _auxiliary(what, fun, fun(*given, **kwargs), has_aux)
        skeleton, ys = outputs_of(what, fun, graph, result)
        refuse_complex(what, f"the result of {name}", skeleton)
        for y in ys:
            if not y.dtype.is_float:
                raise DTypeError(
                    f"{what}: {name} gives {y.type}, which has no derivative; cast it to a float, or return it "
                    "by has_aux"
                )
        flat = [x for _, xs in trees for x in xs]
        found = rule(graph, ys, flat)  # each y has a row of Jacobians, one for each x
        made = []
        for row in found:
            parts, start = [], 0
            for tree, xs in trees:
                parts.append(unflatten(tree, row[start : start + len(xs)]))
                start += len(xs)
            made.append(parts[0] if is_index(argnums) else tuple(parts))
        jac = unflatten(skeleton, made)
        return (jac, aux) if has_aux else jac

    return Transformed(jacobian, device, None, nums, names, what, out)


def _rows(graph: Graph, ys: Sequence[Tensor], xs: Sequence[Tensor]) -> list[list[Tensor]]:
    def pulled(y: Tensor, d: Tensor) -> list[Tensor]:
        return [_or_zeros(x, g) for x, g in zip(xs, pullback([y], [d], xs), strict=True)]

    result = []
    for y in ys:
        found = _along(graph, y, functools.partial(pulled, y))
        result.append([apply("reshape", g, shape=(*y.shape, *x.shape)) for g, x in zip(found, xs, strict=True)])
    return result


def _columns(graph: Graph, ys: Sequence[Tensor], xs: Sequence[Tensor]) -> list[list[Tensor]]:
    def pushed(x: Tensor, d: Tensor) -> list[Tensor]:
        return [_or_zeros(y, t) for y, t in zip(ys, pushforward(ys, [d], [x]), strict=True)]

    rows: list[list[Tensor]] = [[] for _ in ys]
    for x in xs:
        found = _along(graph, x, functools.partial(pushed, x))
        for row, t, y in zip(rows, found, ys, strict=True):
            last = apply("transpose", t, perm=(*range(1, y.ndim + 1), 0))
            row.append(apply("reshape", last, shape=(*y.shape, *x.shape)))
    return rows


def _along(graph: Graph, like: Tensor, rule: Callable[[Tensor], list[Tensor]]) -> list[Tensor]:
    """Applies a rule, linear in a tensor of the type of `like`, to each unit tensor of that type."""
    n = like.size
    units = graph.constant(np.arange(n, dtype=np.int32))
    basis = apply("one_hot", units, depth=n, axis=1, dtype=like.dtype, on=1.0, off=0.0)
    basis = apply("reshape", basis, shape=(n, *like.shape))
    return _mapped(graph, [like.type], [basis], n, lambda given: rule(given[0]))


def _mapped(
    graph: Graph,
    types: Sequence[TensorType],
    xs: Sequence[Tensor],
    size: int,
    rule: Callable[[list[Tensor]], list[Any]],
) -> list[Tensor]:
    """`rule` applied to each example of xs, whose examples have these types; results have an axis of examples in
    front."""
    outs, flags = _traced_once(graph, types, xs, size, rule)
    return [t if flag else spread(t, size) for t, flag in zip(outs, flags, strict=True)]


def _traced_once(
    graph: Graph,
    types: Sequence[TensorType],
    xs: Sequence[Tensor],
    size: int,
    rule: Callable[[list[Tensor]], list[Any]],
) -> tuple[list[Tensor], list[bool]]:
    graph = traced_into(graph)
    body = TracedBody("vmap", graph, types)
    with body.tracing():
        made = as_leaves(body, rule(list(body.given)))
    known = {t.id: (x, True) for t, x in zip(body.given, xs, strict=True)}
    known.update((number, (outer, False)) for number, outer in body.captures())
    outputs = [*made, *(index for _, index, _ in body.checks)]
    outs, flags = sweep(body, known, outputs, size, graph)
    for (what, _, limits), index in zip(body.checks, outs[len(made) :], strict=True):
        add_check(graph, what, index, limits)
    return outs[: len(made)], flags[: len(made)]


# -- vmap


@keywords
def vmap(
    fun: Callable[..., Any],
    in_axes: Any = 0,
    out_axes: Any = 0,
    *,
    axis_size: int | None = None,
    device: Target = "auto",
    static_argnums: StaticNums = (),
    static_argnames: StaticNames = (),
    out: Out = "host",
) -> Jitted[..., Any]:
    """A function of one example, made one of many: fun is applied to each slice of its arguments along an axis.

    `in_axes` says along which axis each argument is sliced: an int for all, or a tuple with an int, None (not sliced:
    all examples share it) or a pytree of these for each; keyword arguments are sliced along axis 0. `out_axes` says
    where each result has the examples' axis; None requires a result that is the same for all. `axis_size` is the number
    of examples, needed where nothing is sliced. Axes may be negative. vmaps nest, and go with grad, jvp, jit, scan,
    cond, while_loop and random keys in either order.

    Every op works on all examples at once, by a rule or by the ops that it decomposes into, or one after the other in a
    loop on the device; docs/ops.md says which. Where a cond's predicate differs among examples both branches run;
    a while_loop runs until all have ended. Numerics: sums may be taken in another order than for one example.
    Other arguments as in `jit`.
    Raises: ShapeError for an axis that an argument does not have and for sizes that differ, GraphError for in_axes or
    out_axes that do not fit the arguments, DTypeError for packed weights that are to be sliced.
    """
    check_function("vmap", fun)
    name = name_of(fun)
    for what, axes in (("in_axes", in_axes), ("out_axes", out_axes)):
        leaves: list[Any] = []
        odd = list(statics_of(flatten(axes, leaves, leaf=_is_axis)))
        odd += [v for v in leaves if isinstance(v, bool)]
        if odd:
            raise GraphError(
                f"vmap: {what} holds {odd[0]!r}; expected ints and None, alone or in tuples, lists and dicts"
            )
    if not isinstance(in_axes, int | tuple | list | None):
        raise GraphError(
            f"vmap: in_axes is {in_axes!r}; expected an int, None, or a tuple with an entry for each argument, as in "
            f"in_axes=({in_axes!r},)"
        )
    if axis_size is not None and not is_index(axis_size):
        raise ShapeError(f"vmap: axis_size is {axis_size!r}; expected the number of examples")

    @functools.wraps(fun)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        tree, leaves = taken((args, kwargs))
        labels, axes = _sliced(name, in_axes, args, kwargs)
        graph = home("vmap", leaves)
        tensors = as_leaves(graph, leaves)
        axes = [_checked_axis(*of) for of in zip(tensors, axes, labels, strict=True)]
        size = _examples(name, tensors, axes, labels, axis_size)
        xs = [_first(t, axis) for t, axis in zip(tensors, axes, strict=True) if axis is not None]
        state: dict[str, Any] = {}

        def one(given: list[Tensor]) -> list[Any]:
            rest = iter(given)
            own = [next(rest) if axis is not None else t for t, axis in zip(tensors, axes, strict=True)]
            inner_args, inner_kwargs = unflatten(tree, own)
            state["tree"], result = taken(fun(*inner_args, **inner_kwargs))
            if not result:
                raise GraphError(f"vmap: {name} gave no array; return what it computes")
            return result

        outs, flags = _traced_once(graph, [TensorType(x.shape[1:], x.dtype) for x in xs], xs, size, one)
        places = prefixed(f"vmap: out_axes of {name}", state["tree"], out_axes, _is_axis,
                          "give an int or None, or a container like the result's")  # fmt: skip
        places = beside_pairs(places, state["tree"], [t.ndim + (not f) for t, f in zip(outs, flags, strict=True)])
        return unflatten(
            state["tree"], [_placed(t, f, p, size, name) for t, f, p in zip(outs, flags, places, strict=True)]
        )

    return Transformed(mapped, device, None, static_argnums, static_argnames, "vmap", out)


def _sliced(
    name: str, in_axes: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[str], list[int | None]]:
    """For each leaf of the arguments its name in errors, and the axis along which in_axes slices it."""
    if not isinstance(in_axes, int | None) and len(in_axes) != len(args):
        raise GraphError(
            f"vmap: in_axes is {in_axes!r}, {len(in_axes)} entries, and {name} was given {len(args)} arguments by "
            "position; expected one entry for each"
        )
    entries = [in_axes] * len(args) if isinstance(in_axes, int | None) else in_axes
    labels: list[str] = []
    axes: list[int | None] = []
    for at, value, entry in (
        *zip(range(len(args)), args, entries, strict=True), *((k, kwargs[k], 0) for k in sorted(kwargs))
    ):  # fmt: skip
        skeleton, own = taken(value)
        found = prefixed(f"vmap: the entry of in_axes for argument {at} of {name}", skeleton, entry, _is_axis,
                         "give an int or None, or a container like the argument's")  # fmt: skip
        axes += beside_pairs(found, skeleton, [np.ndim(x) if not hasattr(x, "ndim") else x.ndim for x in own])
        labels += [f"argument {at} of {name}"] * len(own)
    return labels, axes


def _checked_axis(t: Tensor, axis: int | None, label: str) -> int | None:
    """An axis of in_axes, counted from the front."""
    if axis is None:
        return None
    if not -t.ndim <= axis < t.ndim:
        raise ShapeError(
            f"vmap: {label} is {t.type}, which has no axis {axis}; write its axis of examples in in_axes, or "
            "None to share it"
        )
    if t.dtype.is_packed:
        raise DTypeError(f"vmap: {label} is {t.type}: packed weights are not sliced; write None for it in in_axes")
    return axis % t.ndim


def _examples(
    name: str, tensors: Sequence[Tensor], axes: Sequence[int | None], labels: Sequence[str], axis_size: int | None
) -> int:
    """How many examples there are, on which all sliced arguments and axis_size must agree."""
    sizes = {
        t.shape[axis]: f"{label}, {t.type} along axis {axis}"
        for t, axis, label in zip(tensors, axes, labels, strict=True)
        if axis is not None
    }
    if axis_size is not None:
        sizes.setdefault(int(axis_size), "axis_size")
    if len(sizes) > 1:
        said = "; ".join(f"{n}: {where}" for n, where in sizes.items())
        raise ShapeError(f"vmap: there are different numbers of examples: {said}; expected one")
    if not sizes:
        raise GraphError(f"vmap: no argument of {name} is sliced; give in_axes an int for one, or axis_size")
    return next(iter(sizes))


def _first(t: Tensor, axis: int) -> Tensor:
    """The tensor with this axis moved to the front."""
    return t if axis == 0 else apply("transpose", t, perm=(axis, *(i for i in range(t.ndim) if i != axis)))


def _is_axis(value: Any) -> bool:
    return value is None or isinstance(value, int)


def _placed(t: Tensor, flag: bool, place: int | None, size: int, name: str) -> Tensor:
    """A result with the examples' axis at the position that out_axes gives."""
    if place is None:
        if flag:
            raise GraphError(
                f"vmap: out_axes is None for a result of {name} that differs among examples ({t.type}, examples "
                "first); give the axis that they are to have"
            )
        return t
    if not flag:
        t = spread(t, size)
    if not -t.ndim <= place < t.ndim:
        raise ShapeError(
            f"vmap: out_axes {place} for a result of {name} that has {t.ndim} axes with that of examples"
        )
    place %= t.ndim
    return (
        t if place == 0 else apply("transpose", t, perm=(*range(1, place + 1), 0, *range(place + 1, t.ndim)))
    )


# -- shapes


def eval_shape(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a function would return, as types (`shape`, `dtype`) in place of arrays, without computing anything.

    Arguments are pytrees of arrays, numbers, or anything with a shape and a dtype, such as rlx.ir.TensorType.
    Raises: what tracing the function raises.
    """
    check_function("eval_shape", fun)
    graph = Graph(name_of(fun))
    leaves: list[Any] = []
    tree = flatten(
        (args, kwargs), leaves, leaf=lambda v: is_number(v) or (hasattr(v, "shape") and hasattr(v, "dtype"))
    )
    given = [
        x if isinstance(x, bool | int | float) and not hasattr(x, "shape")
        else graph.input(f"x{i}", x.shape, as_dtype(x.dtype))
        for i, x in enumerate(leaves)
    ]  # fmt: skip
    inner_args, inner_kwargs = unflatten(tree, given)
    around, TRACING.graph, TRACING.body = (TRACING.graph, TRACING.body), graph, None
    try:
        skeleton, found = taken(fun(*inner_args, **inner_kwargs))
        types = [t.type for t in as_leaves(graph, found)]
    finally:
        TRACING.graph, TRACING.body = around
    return unflatten(skeleton, types)
