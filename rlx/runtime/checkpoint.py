"""checkpoint: a function whose values in between are computed again for its gradient, instead of being kept."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from rlx.autodiff import pullback
from rlx.ir import Tensor, apply, inline
from rlx.ir.body import TracedBody
from rlx.ir.checks import add_check
from rlx.ops.pytree import unflatten
from rlx.ops.with_rule import Grads, Rule, with_rule
from rlx.runtime.jit import Jitted, tracing
from rlx.runtime.keywords import keywords
from rlx.runtime.trees import as_leaves, check_function, home, outputs_of, taken


@keywords
def checkpoint(fun: Callable[..., Any], *, static_argnums: int | Sequence[int] = ()) -> Callable[..., Any]:
    """fun, whose gradient computes what lies between arguments and results again, instead of keeping it.

    Memory for time. Numerics: the same ops; a device that fuses them otherwise may round gradients otherwise.
    Wrap parts of a network, such as each of its layers. Arguments are pytrees of arrays; those at `static_argnums`, and
    whatever holds no array, are passed on as they are. fun may close over tensors, which have their gradients too.
    Raises: what fun raises.
    """
    check_function("checkpoint", fun)
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
        given = (*xs, *body.captured)
        made = inline(whole, graph, given)
        for (what, _, limits), index in zip(body.checks, made[len(ys) :], strict=True):
            add_check(graph, what, index, limits)

        def back(arguments: Sequence[Tensor], grads: Grads) -> Grads:
            # Without `again` the nodes would be equal to those of the first time, and shared with them.
            wrt = [apply("again", t) for t in arguments]
            outs = inline(whole, home("checkpoint", wrt), wrt)[: len(ys)]
            return pullback(outs, grads, wrt, stop=True)

        return unflatten(out, with_rule(made[: len(ys)], given, Rule(len(ys), back, None)))

    jitted = Jitted(functools.wraps(fun)(apply_it), "auto", None, static_argnums, (), "checkpoint")

    @functools.wraps(fun)
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        if tracing() or any(isinstance(x, Tensor) for x in taken((args, kwargs))[1]):
            return apply_it(*args, **kwargs)
        return jitted(*args, **kwargs)

    return checkpointed
