"""custom_vjp, custom_jvp: functions whose derivatives their author writes. As JAX's."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from rlx import tree
from rlx.errors import GraphError
from rlx.ir import Tensor, apply
from rlx.ir.body import TracedBody
from rlx.ir.op import Leaf
from rlx.ops.composite import zeros_like
from rlx.ops.pytree import is_number, unflatten
from rlx.ops.with_rule import Grads, Rule, with_rule
from rlx.runtime.jit import Jitted, tracing
from rlx.runtime.trees import (
    as_leaves,
    check_function,
    home,
    name_of,
    outputs_of,
    prefixed,
    same_tree,
    same_types,
    signature_args,
    taken,
)


class _Custom(ABC):
    """A function with a derivative rule, called like any other: inside traced functions, or with arrays."""

    _what = ""

    def __init__(self, fun: Callable[..., Any], nondiff_argnums: Sequence[int] = ()) -> None:
        check_function(self._what, fun)
        functools.update_wrapper(self, fun)
        self.fun = fun
        self.nondiff_argnums = tuple(nondiff_argnums)
        self._jitted = Jitted(self._apply, "auto", None, self.nondiff_argnums, (), self._what)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        args = signature_args(self.fun, args, kwargs)
        if tracing() or any(isinstance(x, Tensor) for x in taken(args)[1]):
            return self._apply(*args)
        return self._jitted(*args)

    @abstractmethod
    def _rule(
        self, args: list[Any], places: list[int], tree: Any, out: Any, results: Sequence[Tensor]
    ) -> Rule: ...

    def _apply(self, *args: Any) -> Any:
        name = name_of(self.fun)
        wrong = [i for i in self.nondiff_argnums if not 0 <= i < len(args)]
        if wrong:
            raise GraphError(
                f"{self._what}: nondiff_argnums has {wrong[0]}, and {name} was given {len(args)} arguments; "
                "count from 0"
            )
        places = [i for i in range(len(args)) if i not in self.nondiff_argnums]
        tree, leaves = taken(tuple(args[i] for i in places))
        graph = home(self._what, leaves)
        # New tensors, so that what the function computes from its arguments differs from what it closes over.
        xs = [apply("cast", t, dtype=t.dtype) for t in as_leaves(graph, leaves)]
        begin = len(graph.nodes)
        out, ys = outputs_of(
            self._what, self.fun, graph, self.fun(*_filled(args, places, unflatten(tree, xs)))
        )
        inside = {id(t) for t in xs}
        for node in graph.nodes[begin:]:
            for t in node.inputs:
                if id(t) not in inside and t.dtype.is_float and not _constant(t):
                    raise GraphError(
                        f"{self._what}: {name} uses {t!r}, which is not one of its arguments: its rule says nothing of "
                        "it; pass it as an argument"
                    )
            if not isinstance(graph, TracedBody) or node.op.leaf is not Leaf.PARAM:  # a body's are captures
                inside.update(id(t) for t in node.outputs)
        results = with_rule(ys, xs, self._rule(list(args), places, tree, out, ys))
        return unflatten(out, results)


def _constant(t: Tensor) -> bool:
    """Whether it is a constant of its graph or of a graph around it."""
    while isinstance(t.graph, TracedBody) and t.node.op.leaf is Leaf.PARAM:
        t = t.graph.around(t)
    return t.node.op.is_constant


def _filled(args: Sequence[Any], places: Sequence[int], values: Sequence[Any]) -> list[Any]:
    """The arguments with the values at these places."""
    filled = list(args)
    for i, value in zip(places, values, strict=True):
        filled[i] = value
    return filled


class custom_vjp(_Custom):
    """A function with a gradient of the author's own: `f.defvjp(fwd, bwd)`.

    fwd(*arguments) returns (the result, residuals); bwd(residuals, cotangent of the result) returns a tuple with the
    gradient of each argument, None for zeros. `nondiff_argnums` are arguments that are no arrays (functions, strings,
    numbers that are static): bwd gets them first. Pytrees, vmap, jvp (bwd is transposed, so it must be linear in the
    cotangent) and further derivatives work. Where nothing is differentiated, fun itself runs; its value and fwd's must
    be the same. Raises: GraphError for a missing rule, results of another structure, or floats that fun closes over.
    """

    _what = "custom_vjp"

    def __init__(self, fun: Callable[..., Any], nondiff_argnums: Sequence[int] = ()) -> None:
        super().__init__(fun, nondiff_argnums)
        self.fwd: Callable[..., Any] | None = None
        self.bwd: Callable[..., Any] | None = None

    def defvjp(self, fwd: Callable[..., Any], bwd: Callable[..., Any]) -> None:
        """Gives the rule: fwd(*arguments) -> (result, residuals), bwd(residuals, cotangent) -> gradients."""
        check_function("custom_vjp.defvjp", fwd)
        check_function("custom_vjp.defvjp", bwd)
        self.fwd, self.bwd = fwd, bwd

    def _rule(
        self, args: list[Any], places: list[int], tree: Any, out: Any, results: Sequence[Tensor]
    ) -> Rule:
        fwd, bwd, name = self.fwd, self.bwd, name_of(self.fun)
        if fwd is None or bwd is None:
            raise GraphError(f"custom_vjp: {name} has no rule; write {name}.defvjp(fwd, bwd)")
        statics = [args[i] for i in self.nondiff_argnums]

        def back(xs: Sequence[Tensor], grads: Grads) -> Grads:
            pair = fwd(*_filled(args, places, unflatten(tree, xs)))
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise GraphError(
                    f"custom_vjp: fwd of {name} gave {pair!r}; expected a pair (result, residuals)"
                )
            graph = home("custom_vjp", xs)
            same_tree("custom_vjp", f"the result of {name}", out, "that of fwd", taken(pair[0])[0])
            ys = as_leaves(graph, taken(pair[0])[1])
            same_types("custom_vjp", f"the result of {name}", results, "that of fwd", ys)
            full = [zeros_like(y) if d is None else d for y, d in zip(ys, grads, strict=True)]
            returned = bwd(*statics, pair[1], unflatten(out, full))
            if not isinstance(returned, tuple | list) or len(returned) != len(places):
                raise GraphError(
                    f"custom_vjp: bwd of {name} gave {returned!r}; expected a tuple with a gradient, or None, for each "
                    f"of its {len(places)} arguments"
                )
            what, expected = f"custom_vjp: what bwd of {name} gives", "expected a gradient for each array"
            leaves = prefixed(what, tree, tuple(returned), lambda v: v is None or is_number(v), expected)
            floats: list[Tensor | None] = []
            for x, d in zip(xs, leaves, strict=True):
                if d is None or not x.dtype.is_float:
                    floats.append(None)
                    continue
                (t,) = as_leaves(graph, [d])
                same_types("custom_vjp", f"an argument of {name}", [x], "the gradient from bwd", [t])
                floats.append(t)
            return floats

        return Rule(len(results), back, None)


class custom_jvp(_Custom):
    """A function with tangents of the author's own: `f.defjvp(rule)`, also as a decorator of the rule.

    rule(primals, tangents), two tuples of the arguments, returns (the result, its tangent), which must be linear in the
    tangents: the gradient is the rule transposed. `nondiff_argnums`: as in custom_vjp; the rule gets these first.
    Raises: as custom_vjp.
    """

    _what = "custom_jvp"

    def __init__(self, fun: Callable[..., Any], nondiff_argnums: Sequence[int] = ()) -> None:
        super().__init__(fun, nondiff_argnums)
        self.jvp: Callable[..., Any] | None = None

    def defjvp(self, jvp: Callable[..., Any]) -> Callable[..., Any]:
        """Gives the rule: jvp(primals, tangents) -> (result, tangent of the result)."""
        check_function("custom_jvp.defjvp", jvp)
        self.jvp = jvp
        return jvp

    def defjvps(self, *rules: Callable[..., Any] | None) -> None:
        """Gives a rule for each argument: rule(its tangent, the result, *primals) -> its part of the result's tangent.

        The parts are added; None stands for an argument without influence on the result. Raises: GraphError with
        nondiff_argnums, as JAX does, and if the function is called with more or fewer arguments than there are rules.
        """
        name = name_of(self.fun)
        if self.nondiff_argnums:
            raise GraphError(f"custom_jvp.defjvps: {name} has nondiff_argnums; write {name}.defjvp(rule)")
        for rule in rules:
            if rule is not None:
                check_function("custom_jvp.defjvps", rule)

        def jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
            if len(rules) != len(primals):
                raise GraphError(
                    f"custom_jvp.defjvps: {name} has {len(rules)} rules and was given {len(primals)} arguments; "
                    "expected a rule, or None, for each"
                )
            result = self(*primals)
            parts = [r(t, result, *primals) for r, t in zip(rules, tangents, strict=True) if r is not None]
            return result, tree.map(lambda y, *ds: sum(ds, zeros_like(y)), result, *parts)

        self.jvp = jvp

    def _rule(
        self, args: list[Any], places: list[int], tree: Any, out: Any, results: Sequence[Tensor]
    ) -> Rule:
        rule, name = self.jvp, name_of(self.fun)
        if rule is None:
            raise GraphError(f"custom_jvp: {name} has no rule; write {name}.defjvp(rule)")
        statics = [args[i] for i in self.nondiff_argnums]

        def forward(xs: Sequence[Tensor], tangents: Grads) -> Grads:
            full = [zeros_like(x) if d is None else d for x, d in zip(xs, tangents, strict=True)]
            pair = rule(*statics, unflatten(tree, xs), unflatten(tree, full))
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise GraphError(
                    f"custom_jvp: the rule of {name} gave {pair!r}; expected a pair (result, its tangent)"
                )
            structure, leaves = taken(pair[1])
            same_tree("custom_jvp", f"the result of {name}", out, "the tangent of the rule", structure)
            tangent_tensors = as_leaves(home("custom_jvp", xs), leaves)
            floats = [(y, t) for y, t in zip(results, tangent_tensors, strict=True) if y.dtype.is_float]
            same_types("custom_jvp", f"the result of {name}", [y for y, _ in floats], "the tangent of the rule",
                       [t for _, t in floats])  # fmt: skip
            return [t if y.dtype.is_float else None for y, t in zip(results, tangent_tensors, strict=True)]

        return Rule(len(results), None, forward)
