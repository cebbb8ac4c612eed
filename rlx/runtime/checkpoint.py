"""checkpoint: a function whose intermediate values are recomputed for its gradient instead of being kept."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal

from rlx.autodiff import pullback
from rlx.errors import DTypeError, GraphError, ShapeError
from rlx.ir import Tensor, apply, inline
from rlx.ir.body import TracedBody
from rlx.ir.checks import add_check
from rlx.ir.types import is_index
from rlx.ops.pytree import unflatten
from rlx.ops.with_rule import Grads, Rule, with_rule
from rlx.runtime.jit import Shared, tracing
from rlx.runtime.keywords import keywords
from rlx.runtime.trees import as_leaves, check_function, home, outputs_of, taken


@keywords
def checkpoint(
    fun: Callable[..., Any],
    *,
    policy: Literal["all", "auto"] = "all",
    budget: int | None = None,
    static_argnums: int | Sequence[int] = (),
) -> Callable[..., Any]:
    """fun, with a gradient that recomputes the intermediate values instead of keeping them.

    Memory for time. Numerics: the same ops; a device that fuses them otherwise may round gradients otherwise.
    Wrap parts of a network, such as each of its layers. Arguments are pytrees of arrays; those at `static_argnums`, and
    whatever holds no array, are passed on as they are. fun may close over tensors, which have their gradients too.

    With policy="auto" the planner chooses what is recomputed, so that the arena of the program that contains fun has at
    most `budget` bytes: inputs, results and intermediate values, without weights and donated arrays. Wrap the whole
    loss or step: `jit(checkpoint(step, policy="auto", budget=2_000_000_000))`. Numerics: every value
    keeps its bits, since the optimized program's own nodes are repeated.
    Raises: what fun raises; GraphError, DTypeError and ShapeError for a policy and a budget that do not fit; where the
    program is compiled, ByteLimitExceeded for a budget that cannot be reached, with what can.
    """
    check_function("checkpoint", fun)
    if policy not in ("all", "auto"):
        raise GraphError(f'checkpoint: policy is {policy!r}; expected "all", or "auto" with a budget')
    if policy == "auto":
        return _within(fun, _checked(budget), static_argnums)
    if budget is not None:
        raise GraphError('checkpoint: a budget goes with policy="auto"; without that everything is computed again')
    static = {static_argnums} if isinstance(static_argnums, int) else set(static_argnums)

    def apply_it(*args: Any, **kwargs: Any) -> Any:
        tree, leaves = taken(([a for i, a in enumerate(args) if i not in static], kwargs))
        graph = home("checkpoint", leaves)
        xs = as_leaves(graph, leaves)
        body = TracedBody("checkpoint", graph, [t.type for t in xs])
        with body.tracing():
            rest, named = unflatten(tree, body.given)
            own = iter(rest)
            returned = fun(*(a if i in static else next(own) for i, a in enumerate(args)), **named)
            out, ys = outputs_of("checkpoint", fun, body, returned)
        whole = body.finish([*ys, *(index for _, index, _ in body.checks)], body.captured)
        operands = (*xs, *body.captured)
        results = inline(whole, graph, operands)
        for (what, _, limits), index in zip(body.checks, results[len(ys) :], strict=True):
            add_check(graph, what, index, limits)

        def back(arguments: Sequence[Tensor], grads: Grads) -> Grads:
            # Without `again` the recomputed nodes would equal the original ones and be merged with them.
            wrt = [apply("again", t) for t in arguments]
            outs = inline(whole, home("checkpoint", wrt), wrt)[: len(ys)]
            return pullback(outs, grads, wrt, stop=True)

        return unflatten(out, with_rule(results[: len(ys)], operands, Rule(len(ys), back, None)))

    return _traced_or_jitted(fun, apply_it, static_argnums)


def _traced_or_jitted(
    fun: Callable[..., Any], apply_it: Callable[..., Any], static_argnums: int | Sequence[int]
) -> Callable[..., Any]:
    """Calls `apply_it` inside a traced function, and outside one a program made of it."""
    jitted = Shared(functools.wraps(fun)(apply_it), "auto", None, static_argnums, (), "checkpoint")

    @functools.wraps(fun)
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        if tracing() or any(isinstance(x, Tensor) for x in taken((args, kwargs))[1]):
            return apply_it(*args, **kwargs)
        return jitted(*args, **kwargs)

    return checkpointed


def _checked(budget: Any) -> int:
    """The budget as an int. Raises: DTypeError, ShapeError if it is not a number of bytes."""
    if isinstance(budget, bool) or not (is_index(budget) or isinstance(budget, float)):
        raise DTypeError(f'checkpoint: budget is {budget!r}; with policy="auto" give a number of bytes, such as 2e9')
    if not 0 < budget < 2**63:
        raise ShapeError(f"checkpoint: budget is {budget!r}; expected a number of bytes, more than 0")
    return int(budget)


def _within(fun: Callable[..., Any], budget: int, static_argnums: int | Sequence[int]) -> Callable[..., Any]:
    """fun, which also sets the budget of the graph that it is traced into; of several budgets the smallest holds."""

    def apply_it(*args: Any, **kwargs: Any) -> Any:
        graph = home("checkpoint", taken((args, kwargs))[1])
        while graph.outer is not None:
            graph = graph.outer
        graph.budget = budget if graph.budget is None else min(budget, graph.budget)
        return fun(*args, **kwargs)

    return _traced_or_jitted(fun, apply_it, static_argnums)
