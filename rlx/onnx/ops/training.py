"""Gradients of tensors computed so far in the graph, and one step of an optimizer: Adagrad, Adam, Momentum."""

from __future__ import annotations

from rlx import ops as o
from rlx.autodiff import gradients
from rlx.ir import Tensor
from rlx.onnx.reader.call import Call, Value
from rlx.onnx.reader.table import op

TRAINING = "ai.onnx.preview.training"


def _groups(c: Call, count: int) -> tuple[Tensor, Tensor, list[tuple[Tensor, ...]]]:
    """The rate, the number of steps so far in the rate's dtype, and for each tensor its `count` inputs: itself, its
    gradient and the optimizer's state."""
    rate, steps = o.reshape(c.x(0), ()), o.reshape(c.x(1), ())
    n, rest = divmod(len(c.inputs) - 2, count)
    if rest or n == 0:
        raise c.bad(f"has {len(c.inputs)} inputs; expected 2 and {count} for each tensor")
    groups = [tuple(c.x(2 + k + i * n) for i in range(count)) for k in range(n)]
    if any(len({t.shape for t in group}) > 1 or len({t.dtype for t in group}) > 1 for group in groups):
        raise c.bad("a tensor differs in shape or type from its gradient or from what is kept of it")
    return rate, o.cast(steps, rate.dtype), groups


def _regular(c: Call, x: Tensor, gradient: Tensor) -> Tensor:
    """The gradient plus that of the regularization, half the squared norm."""
    return o.add(o.mul(x, c.float("norm_coefficient", 0.0)), gradient)


def _results(c: Call, updates: list[tuple[Tensor, ...]]) -> list[Value]:
    """The new tensors, then the optimizer's state of each."""
    n = len(updates)
    return [Value(updates[k][i], c.dtype(2 + k)) for i in range(len(updates[0])) for k in range(n)]


@op("Gradient", domain=TRAINING)
def gradient(c: Call) -> list[Value]:
    """The derivative of the sum of y's elements with respect to each of xs. The inputs must be the tensors of those
    names: rlx does not compute y again for others."""
    names, target = [*c.ints("xs", []), *c.ints("zs", [])], c.str("y")
    held = [c.scope.get(name) for name in (*names, target)]
    values = [v for v in held if isinstance(v, Value) and v.tensor.dtype.is_float]
    if len(values) != len(held) or len(names) != len(c.inputs):
        raise c.bad(
            f"xs and zs {names[:9]} for {len(c.inputs)} inputs and y {target!r}; expected names of floats"
        )
    if any(c.value(k).tensor is not v.tensor for k, v in enumerate(values[:-1])):
        raise c.unsupported("its inputs are not the tensors that xs and zs name")
    wanted = values[: len(c.ints("xs", []))]
    grads = gradients(values[-1].tensor, [v.tensor for v in wanted], 1.0)
    return [Value(t, v.dtype) for t, v in zip(grads, wanted, strict=True)]


@op("Adagrad", domain=TRAINING)
def adagrad(c: Call) -> list[Value]:
    rate, steps, groups = _groups(c, 3)
    rate = o.div(rate, o.add(o.mul(steps, c.float("decay_factor", 0.0)), 1.0))
    updates: list[tuple[Tensor, ...]] = []
    for x, gradient, squares in groups:
        g = _regular(c, x, gradient)
        squares = o.add(squares, o.mul(g, g))
        size = o.add(o.sqrt(squares), c.float("epsilon", 0.0))
        updates.append((o.sub(x, o.div(o.mul(o.cast(rate, x.dtype), g), size)), squares))
    return _results(c, updates)


@op("Adam", domain=TRAINING)
def adam(c: Call) -> list[Value]:
    rate, steps, groups = _groups(c, 4)
    alpha, beta = c.float("alpha", 0.9), c.float("beta", 0.999)
    # Both averages start at zero; this corrects the bias.
    short = o.div(o.sqrt(o.sub(1.0, o.pow(beta, steps))), o.sub(1.0, o.pow(alpha, steps)))
    rate = o.where(o.greater(steps, 0.0), o.mul(rate, short), rate)
    updates: list[tuple[Tensor, ...]] = []
    for x, gradient, mean, squares in groups:
        g = _regular(c, x, gradient)
        mean = o.add(o.mul(mean, alpha), o.mul(g, 1.0 - alpha))
        squares = o.add(o.mul(squares, beta), o.mul(o.mul(g, g), 1.0 - beta))
        size = o.add(o.sqrt(squares), c.float("epsilon", 0.0))
        new = o.sub(x, o.div(o.mul(o.cast(rate, x.dtype), mean), size))
        updates.append((o.mul(new, 1.0 - c.float("norm_coefficient_post", 0.0)), mean, squares))
    return _results(c, updates)


@op("Momentum", domain=TRAINING)
def momentum(c: Call) -> list[Value]:
    rate, steps, groups = _groups(c, 3)
    alpha, mode = c.float("alpha"), c.str("mode")
    if mode not in ("standard", "nesterov"):
        raise c.bad(f"mode is {mode!r}; expected standard or nesterov")
    weight = o.where(o.greater(steps, 0.0), c.float("beta"), 1.0)
    updates: list[tuple[Tensor, ...]] = []
    for x, gradient, moving in groups:
        g = _regular(c, x, gradient)
        moving = o.add(o.mul(moving, alpha), o.mul(o.cast(weight, x.dtype), g))
        step = o.add(g, o.mul(moving, alpha)) if mode == "nesterov" else moving
        updates.append((o.sub(x, o.mul(o.cast(rate, x.dtype), step)), moving))
    return _results(c, updates)
