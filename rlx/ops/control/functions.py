"""Control flow that runs on the device: cond, while_loop, scan. Their functions are traced once, into bodies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlx.dtypes import DType
from rlx.errors import DTypeError, GraphError, ShapeError
from rlx.ir import Graph, Tensor, TensorType, apply
from rlx.ir.body import TracedBody
from rlx.ir.checks import add_check
from rlx.ir.graph import graph_of, traced_into
from rlx.ir.types import is_length
from rlx.ir.values import is_foreign
from rlx.ops.pytree import flatten, is_number, unflatten

PyTree = Any  # a pytree: a tensor, or nested tuples, lists and dicts of tensors


def cond(pred: Any, then_fn: Callable[..., PyTree], else_fn: Callable[..., PyTree], *operands: PyTree) -> PyTree:
    """The result of `then_fn(*operands)` where `pred` is true, else of `else_fn(*operands)`; only that branch runs.

    Besides the operands, the functions may use any tensor of the surrounding graph. Both must return pytrees of tensors
    with one structure and the same types. Shape, dtype: those of the results; pred is a bool of rank 0. A Python bool
    selects its branch while the graph is built. Gradient: that of the branch taken. Numerics: those of the branch.
    Raises: DTypeError, ShapeError, GraphError when the branches or pred do not fit.
    """
    _check_functions("cond", "rlx.where chooses between values", then_fn=then_fn, else_fn=else_fn)
    if isinstance(pred, bool | np.bool_):
        return (then_fn if pred else else_fn)(*operands)
    leaves: list[Any] = []
    skeleton = flatten(operands, leaves, leaf=is_number)
    graph = _home("cond", (pred, *leaves))
    pred = check_predicate("cond", graph, pred)
    captured_operands = [_tensor(graph, x) for x in leaves]
    types = [t.type for t in captured_operands]
    traced = []
    for name, function in (("then", then_fn), ("otherwise", else_fn)):
        body = TracedBody(name, graph, types)
        with body.tracing():
            outputs: list[Any] = []
            shape = flatten(function(*unflatten(skeleton, body.given)), outputs, leaf=is_number)
            traced.append((body, shape, [_tensor(body, x) for x in outputs]))
    (then, shape, outs), (other, other_shape, other_outs) = traced
    if shape != other_shape:
        raise GraphError(
            f"cond: the branches give results of different structure: {_text(shape)} and {_text(other_shape)}; "
            "return one structure from both"
        )
    for i, (a, b) in enumerate(zip(outs, other_outs, strict=True)):
        same_type(f"cond: result {i} of the branches", a.type, b.type)
    n, checks = len(outs), [*then.checks, *other.checks]
    with then.tracing():
        outs += [t for _, t, _ in then.checks] + [_inside(then, t, limits) for _, t, limits in other.checks]
    with other.tracing():
        other_outs += [_inside(other, t, limits) for _, t, limits in then.checks] + [t for _, t, _ in other.checks]
    captured = list({t.id: t for t in (*then.captured, *other.captured)}.values())
    attrs = {"then": then.finish(outs, captured), "otherwise": other.finish(other_outs, captured)}
    results = graph.add("cond", (pred, *captured_operands, *captured), attrs)
    for (what, _, limits), index in zip(checks, results[n:], strict=True):
        add_check(graph, what, index, limits)
    return unflatten(shape, results[:n])


def switch(index: Any, branches: Sequence[Callable[..., PyTree]], *operands: PyTree) -> PyTree:
    """The result of `branches[index](*operands)`; only that branch runs. An index out of range counts as the nearest.

    A Python int selects its branch while the graph is built. Otherwise as cond, of which there is one for each branch
    but the last. Raises: GraphError for no branches, DTypeError for an index that is no integer of rank 0.
    """
    functions = list(branches)
    if not functions:
        raise GraphError("switch: there are no branches; give functions of the operands, one or more")
    _check_functions("switch", "each of the operands", **{f"branch {i}": f for i, f in enumerate(functions)})
    if isinstance(index, int | np.integer) and not isinstance(index, bool):
        return functions[min(max(int(index), 0), len(functions) - 1)](*operands)
    leaves: list[Any] = []
    flatten(operands, leaves, leaf=is_number)
    at = _tensor(_home("switch", (index, *leaves)), index)
    if at.ndim or not at.dtype.is_int:
        raise DTypeError(f"switch: the index is {at.type}; expected an integer of rank 0")

    def among(first: int) -> Callable[..., PyTree]:
        if first == len(functions) - 1:
            return functions[first]
        return lambda *args: cond(apply("less", at, first + 1), functions[first], among(first + 1), *args)

    return among(0)(*operands)


def while_loop(
    cond_fn: Callable[[PyTree], Any],
    body_fn: Callable[[PyTree], PyTree],
    init: PyTree,
    *,
    max_steps: int | None = None,
) -> PyTree:
    """The last carry of `carry = init; while cond_fn(carry): carry = body_fn(carry)`.

    init is a pytree of tensors and numbers; the body must return the same structure and types, but that Python's
    numbers in init take the dtypes that it returns. The functions may use any tensor of the surrounding graph. Shape,
    dtype: init's. Gradient: with `max_steps`, that of a scan of as many
    steps, which keeps all carries; without, an UnsupportedOp. rlx.jvp needs no limit. A loop that would exceed
    `max_steps` stops the run with StepLimitExceeded; by default there is no limit.
    Raises: DTypeError, ShapeError, GraphError when the functions' results do not fit.
    """
    _check_functions("while_loop", "each of the carry", cond_fn=cond_fn, body_fn=body_fn)
    if max_steps is not None and not _is_count(max_steps):
        raise ShapeError(
            f"while_loop: max_steps is {max_steps!r}; expected a number of steps, or None for no limit"
        )
    leaves: list[Any] = []
    skeleton = flatten(init, leaves, leaf=is_number)
    if not leaves:
        raise GraphError("while_loop: init holds no tensor; a loop without a carry computes nothing")
    graph = _home("while_loop", leaves)
    return _widening(graph, leaves, lambda first: _while(graph, cond_fn, body_fn, skeleton, first, max_steps))


def _while(
    graph: Graph, cond_fn: Callable[[PyTree], Any], body_fn: Callable[[PyTree], PyTree], skeleton: Any,
    first: _Start, max_steps: int | None,
) -> PyTree:  # fmt: skip
    start = list(first.carry)
    going = check_predicate("while_loop", graph, cond_fn(unflatten(skeleton, start)))
    body = TracedBody("body", graph, [t.type for t in start])
    with body.tracing():
        carried = _carried("while_loop", body, body_fn(unflatten(skeleton, body.given)), skeleton, first)
        again = check_predicate("while_loop", body, cond_fn(unflatten(skeleton, carried)))
        n = len(carried)
        for _, index, limits in body.checks:  # the first index of each row that is outside stays in the carry
            before = body.more(index.type)
            outside = apply("logical_or", apply("less", before, limits[0]), apply("greater", before, limits[1]))
            carried.append(apply("where", outside, before, index))
    start += [_inside(graph, index, limits) for _, index, limits in body.checks]
    limit = None if max_steps is None else int(max_steps)
    attrs = {"body": body.finish([again, *carried], body.captured), "max_steps": limit}
    outs = graph.add("while_loop", (going, *start, *body.captured), attrs)
    for (what, _, limits), index in zip(body.checks, outs[n:], strict=True):
        add_check(graph, what, index, limits)
    return unflatten(skeleton, outs[:n])


def scan(
    f: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]],
    init: PyTree,
    xs: PyTree = None,
    length: int | None = None,
    reverse: bool = False,
) -> tuple[PyTree, PyTree]:
    """The last carry and all ys of `carry, y = f(carry, x)` for each x of xs along axis 0, starting with carry = init.

    init, xs and y are pytrees of tensors, or None; with xs None, `length` steps are made. With `reverse` the last x
    comes first, and y[i] still belongs to x[i]. f may use any tensor of the surrounding graph. Shape, dtype: the carry
    keeps init's, but that Python's numbers there take the dtypes that f returns; ys have the shape (number of steps,
    *y.shape). Gradient: a scan in the other direction over the carries, which a second run of the steps computes.
    Raises: DTypeError, ShapeError, GraphError when lengths or the results of f do not fit.
    """
    _check_functions("scan", "of the carry and one x", f=f)
    carries: list[Any] = []
    slices: list[Any] = []
    carry_skeleton = flatten(init, carries, leaf=is_number)
    x_skeleton = flatten(xs, slices, leaf=is_number)
    graph = _home("scan", (*carries, *slices))
    rows = [_tensor(graph, x) for x in slices]
    steps = _length(rows, length)

    def run(start: _Start) -> tuple[PyTree, PyTree]:
        return _scan(graph, f, (carry_skeleton, x_skeleton), start, rows, steps, bool(reverse))

    result: tuple[PyTree, PyTree] = _widening(graph, carries, run)
    return result


def _scan(
    graph: Graph, f: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]], skeletons: tuple[Any, Any],
    start: _Start, rows: list[Tensor], steps: int, reverse: bool,
) -> tuple[PyTree, PyTree]:  # fmt: skip
    carry_skeleton, x_skeleton = skeletons
    n = len(start.carry)
    types = [t.type for t in start.carry] + [TensorType(t.shape[1:], t.dtype) for t in rows]
    body = TracedBody("body", graph, types)
    with body.tracing():
        carry, x = unflatten(carry_skeleton, body.given[:n]), unflatten(x_skeleton, body.given[n:])
        result: Any = f(carry, x)
        if not isinstance(result, tuple) or len(result) != 2:
            kind = f"a tuple of {len(result)}" if isinstance(result, tuple) else type(result).__name__
            raise GraphError(f"scan: f must give a pair (carry, y), it gave {kind}; y may be None")
        results = _carried("scan", body, result[0], carry_skeleton, start)
        ys: list[Any] = []
        y_skeleton = flatten(result[1], ys, leaf=is_number)
        results += [_tensor(body, y) for y in ys]
        results += [index for _, index, _ in body.checks]
    if not results:
        raise GraphError("scan: there is neither a carry nor a y; nothing would be computed")
    attrs = {
        "body": body.finish(results, body.captured),
        "carries": n,
        "length": steps,
        "reverse": reverse,
    }
    outs = graph.add("scan", (*start.carry, *rows, *body.captured), attrs)
    end = n + len(ys)
    for (what, _, limits), index in zip(body.checks, outs[end:], strict=True):
        add_check(graph, what, index, limits)
    return unflatten(carry_skeleton, outs[:n]), unflatten(y_skeleton, outs[n:end])


def _check_functions(op: str, advice: str, **functions: Any) -> None:
    for name, function in functions.items():
        if not callable(function):
            raise GraphError(f"{op}: {name} is {type(function).__name__}; expected a function ({advice})")


def check_predicate(op: str, graph: Graph, pred: Any) -> Tensor:
    """The predicate as a bool tensor of rank 0; a Python bool becomes a constant. Raises: DTypeError, ShapeError."""
    if isinstance(pred, Tensor):
        t = traced_into(graph).reach(pred, op)
    elif isinstance(pred, bool | np.bool_):
        return graph.constant(bool(pred))
    elif isinstance(pred, np.ndarray) or is_foreign(pred):
        t = graph.constant(pred)
    else:
        raise DTypeError(f"{op}: the predicate is {type(pred).__name__}; expected a bool tensor of rank 0")
    if t.dtype.kind != "b":
        raise DTypeError(f"{op}: the predicate is {t.type}; expected bool[]; compare it first (`x != 0`)")
    if t.shape != ():
        raise ShapeError(
            f"{op}: the predicate is {t.type}; expected bool[], one value: use rlx.any or rlx.all"
        )
    return t


def same_type(what: str, a: TensorType, b: TensorType) -> None:
    """Checks that two types are equal. Raises: DTypeError, ShapeError, which show both types."""
    if a.dtype != b.dtype:
        raise DTypeError(f"{what}: {a} and {b}; expected one type; cast one of them")
    if a != b:
        raise ShapeError(f"{what}: {a} and {b}; expected one type; shapes are static here")


def _home(op: str, leaves: Sequence[Any]) -> Graph:
    """The graph that the op's node goes into: that of the first tensor, or the body being traced."""
    for x in leaves:
        if isinstance(x, Tensor):
            return traced_into(x.graph)
    return graph_of(op, ())


def _tensor(graph: Graph, x: Any) -> Tensor:
    return graph.reach(x, "a control op") if isinstance(x, Tensor) else graph.constant(x)


def _inside(graph: Graph, index: Tensor, limits: Any) -> Tensor:
    """An index within the limits, which stands for that of a check whose body does not run."""
    return graph.constant(np.full(index.shape, limits[0], index.dtype.np), index.dtype)


class _Start(NamedTuple):
    """The carry that a loop begins with, and the types of the Python numbers in it, by position."""

    carry: list[Tensor]
    numbers: dict[int, type]


class _Wider(Exception):
    """The dtypes that a loop's body returns for carries that began as Python numbers, by position."""

    def __init__(self, dtypes: dict[int, DType]) -> None:
        self.dtypes = dtypes


def _widening(graph: Graph, leaves: Sequence[Any], run: Callable[[_Start], Any]) -> Any:
    """Runs `run`, which traces a loop, again with the dtypes that its body returns for Python numbers in the carry, as
    jax.lax's loops do."""
    kinds = [x.weak if isinstance(x, Tensor) else type(x) for x in leaves]
    start = _Start([_tensor(graph, x) for x in leaves], {i: k for i, k in enumerate(kinds) if k in (int, float)})
    while True:
        try:
            return run(start)
        except _Wider as wider:
            for i, dtype in wider.dtypes.items():
                x, _ = leaves[i], start.numbers.pop(i)
                t = graph.reach(x.as_dtype(dtype), "a loop") if isinstance(x, Tensor) else graph.constant(x, dtype)
                start.carry[i] = t


def _carried(op: str, body: TracedBody, result: PyTree, skeleton: Any, start: _Start) -> list[Tensor]:
    """The new carry, checked against the structure and types of the old one; numbers take the old one's dtypes.

    Raises: _Wider if the loop has to begin with other dtypes; GraphError, DTypeError, ShapeError."""
    leaves: list[Any] = []
    structure = flatten(result, leaves, leaf=is_number)
    if structure != skeleton:
        raise GraphError(
            f"{op}: the carry goes in as {_text(skeleton)} and comes back as {_text(structure)}; expected one structure"
        )
    carried = []
    wider: dict[int, DType] = {}
    for i, (x, old) in enumerate(zip(leaves, body.given, strict=False)):
        kind = x.weak if isinstance(x, Tensor) else type(x)
        if kind not in (bool, int, float) or (kind is float and not old.dtype.is_float):
            t = _tensor(body, x)
        else:
            t = body.reach(x.as_dtype(old.dtype), op) if isinstance(x, Tensor) else body.constant(x, old.dtype)
        number = start.numbers.get(i)
        fits = t.dtype.is_float or (number is int and t.dtype.is_int)
        if number is not None and t.shape == () and t.dtype != old.dtype and fits:
            wider[i] = t.dtype
        else:
            same_type(f"{op}: carry {i} goes in and comes back as", old.type, t.type)
        carried.append(t)
    if wider:
        raise _Wider(wider)
    return carried


def _is_count(n: Any) -> bool:
    return is_length(n) and n >= 0


def _length(rows: Sequence[Tensor], length: int | None) -> int:
    if length is not None and not _is_count(length):
        raise ShapeError(f"scan: length is {length!r}; expected a number of steps")
    lengths = set() if length is None else {int(length)}
    for i, t in enumerate(rows):
        if not t.shape:
            raise ShapeError(f"scan: xs {i} is {t.type}; expected at least the axis that is scanned")
        lengths.add(t.shape[0])
    if len(lengths) != 1:
        said = f"xs are {', '.join(str(t.type) for t in rows) or 'none'} and length is {length}"
        raise ShapeError(f"scan: {said}; expected one number of steps")
    return lengths.pop()


def _text(skeleton: Any) -> str:
    """A skeleton as text for messages, with * for a tensor."""
    kind = skeleton[0]
    if kind == "leaf":
        return "*"
    if kind == "static":
        return repr(skeleton[1].value)
    if kind == "dict":
        return "{" + ", ".join(f"{k!r}: {_text(v)}" for k, v in skeleton[1]) + "}"
    items = [_text(v) for v in skeleton[1]]
    if kind == "list":
        return f"[{', '.join(items)}]"
    name = "" if kind == "tuple" else kind.__name__
    return f"{name}({', '.join(items)}{',' if len(items) == 1 else ''})"


__all__ = ["cond", "scan", "switch", "while_loop"]
