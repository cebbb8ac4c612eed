"""Reverse-mode differentiation: gradients of a tensor, appended to its graph."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.autodiff.pullback import pullback
from rlx.errors import DTypeError, GraphError, ShapeError
from rlx.ir import Tensor
from rlx.ir.graph import apply


def gradients(output: Tensor, wrt: Sequence[Tensor], seed: Tensor | float | None = None) -> list[Tensor]:
    """The gradient of `output` with respect to each tensor of `wrt`, as new nodes of the same graph.

    Shape and dtype: those of the tensor of `wrt`. Requires: float tensors, all of one graph. `seed` is the gradient
    of `output` itself, of its type; None stands for 1 and requires an `output` of one element.
    After: gradients are zero where `output` does not depend on the tensor. A tensor of `wrt` may be computed from
    another: each gets its whole derivative. Second derivatives are gradients of gradients.
    Raises: GraphError, ShapeError, DTypeError for arguments that do not fit; UnsupportedOp for an op without a
    gradient on a path between them. Follows Griewank and Walther, Evaluating Derivatives, 2008, chapter 3.
    """
    for what, t in (("output", output), *((f"wrt[{i}]", t) for i, t in enumerate(wrt))):
        if not isinstance(t, Tensor):
            raise GraphError(f"gradients: {what} is {type(t).__name__}; expected a Tensor")
        if t.graph is not output.graph:
            raise GraphError(
                f"gradients: {what} belongs to graph {t.graph.name!r}, not {output.graph.name!r}"
            )
        if not t.dtype.is_float:
            raise DTypeError(
                f"gradients: {what} is {t.type}; only floats have gradients: leave it out, in `grad` by an argument of "
                "its own that argnums does not name"
            )
    if seed is None:
        if output.size != 1:
            raise ShapeError(
                f"gradients: output is {output.type}; give a seed of that type, or a single element"
            )
        seed = 1.0
    if not isinstance(seed, Tensor):
        seed = _full_like(output, float(seed))
    if seed.type != output.type:
        raise ShapeError(f"gradients: seed is {seed.type}; expected {output.type}, the type of output")
    grads = pullback([output], [seed], wrt)
    return [_full_like(t, 0.0) if d is None else d for t, d in zip(wrt, grads, strict=True)]


def _full_like(x: Tensor, value: float) -> Tensor:
    return apply("expand", x.graph.constant(value, x.dtype), shape=x.shape)
