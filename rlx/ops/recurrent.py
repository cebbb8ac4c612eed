"""lstm and gru: recurrent layers with torch's weights; a long sequence is a scan, a short one is unrolled."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlx.dtypes import promote
from rlx.errors import ShapeError
from rlx.ir import Tensor
from rlx.ops import composite
from rlx.ops.base import TensorLike, cast_to, floats, tensors
from rlx.ops.composite import full_like
from rlx.ops.control.functions import scan
from rlx.ops.elementwise import unary
from rlx.ops.matmul import matmul
from rlx.ops.movement import strided as movement

FEW_STEPS = 16  # a sequence up to this length is unrolled

State = tuple[Tensor, ...]
# (the row of one step, the state) -> the state after it, whose first tensor is the result
Step = Callable[[Tensor, State], State]


def lstm(
    x: TensorLike,
    w_ih: TensorLike,
    w_hh: TensorLike,
    b_ih: TensorLike | None = None,
    b_hh: TensorLike | None = None,
    state: tuple[TensorLike, TensorLike] | None = None,
    *,
    reverse: bool = False,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """One direction of one layer of an LSTM: the results of all steps, and the last (h, c).

    Shape: x (steps, batch, inputs), w_ih (4·hidden, inputs), w_hh (4·hidden, hidden), biases (4·hidden,), h and c of
    the state, zeros by default, (batch, hidden); gives (steps, batch, hidden) and the state. The gates are torch's:
    input, forget, cell, output (ONNX has input, output, forget, cell). `reverse` runs from the last step; the results
    stay where their inputs are. Dtype: promoted, of x, weights and biases. Gradient: to all, through time. Numerics: as
    rlx.matmul. Raises: ShapeError. Follows Hochreiter and Schmidhuber, 1997, with the forget gate of Gers et al., 2000.
    """
    operands = _operands("lstm", 4, x, w_ih, w_hh, b_ih, b_hh, state, 2)
    rows, recur, bias, start = operands

    def step(row: Tensor, state: State) -> State:
        h, c = state
        i, f, g, o = composite.split(row + matmul(h, recur, bias, transpose_b=True), 4, -1)
        c = unary.sigmoid(f) * c + unary.sigmoid(i) * unary.tanh(g)
        return unary.sigmoid(o) * unary.tanh(c), c

    ys, (h, c) = _over_time(step, rows, start, reverse)
    return ys, (h, c)


def gru(
    x: TensorLike,
    w_ih: TensorLike,
    w_hh: TensorLike,
    b_ih: TensorLike | None = None,
    b_hh: TensorLike | None = None,
    state: TensorLike | None = None,
    *,
    reverse: bool = False,
) -> tuple[Tensor, Tensor]:
    """One direction of one layer of a GRU: the results of all steps, and the last of them.

    Shape: as rlx.lstm, with 3·hidden for 4·hidden and one state (batch, hidden). The gates are torch's: reset, update,
    new; the reset gate multiplies the product with the state and its bias (ONNX: update, reset, new, and
    linear_before_reset = 1). Dtype, gradient, numerics, errors: as rlx.lstm. Follows Cho et al., 2014.
    """
    rows, recur, bias, start = _operands(
        "gru", 3, x, w_ih, w_hh, b_ih, b_hh, None if state is None else (state,), 1
    )

    def step(row: Tensor, state: State) -> State:
        (h,) = state
        xr, xz, xn = composite.split(row, 3, -1)
        hr, hz, hn = composite.split(matmul(h, recur, bias, transpose_b=True), 3, -1)
        z = unary.sigmoid(xz + hz)
        return ((1 - z) * unary.tanh(xn + unary.sigmoid(xr + hr) * hn) + z * h,)

    ys, (h,) = _over_time(step, rows, start, reverse)
    return ys, h


def _operands(
    op: str,
    gates: int,
    x: TensorLike,
    w_ih: TensorLike,
    w_hh: TensorLike,
    b_ih: TensorLike | None,
    b_hh: TensorLike | None,
    state: Sequence[TensorLike] | None,
    states: int,
) -> tuple[Tensor, Tensor, Tensor | None, State]:
    """The products of all steps with the inputs' weights, the state's weights and bias, and the first state."""
    if state is not None and (not isinstance(state, tuple | list) or len(state) != states):
        raise ShapeError(f"{op}: the state is {state!r}; expected {states} tensors (batch, hidden)")
    listed = [x, w_ih, w_hh, b_ih, b_hh, *(state or ())]
    operands = iter(floats(*tensors(op, *(v for v in listed if v is not None))))
    xs, wi, wh, bi, bh, *first = (None if v is None else next(operands) for v in listed)
    assert xs is not None and wi is not None and wh is not None
    hidden = wh.shape[-1] if wh.ndim == 2 else 0
    if xs.ndim != 3 or wi.shape != (gates * hidden, xs.shape[2]) or wh.shape != (gates * hidden, hidden):
        raise ShapeError(
            f"{op}: x {xs.shape}, w_ih {wi.shape}, w_hh {wh.shape}; expected (steps, batch, inputs), ({gates}·hidden, "
            f"inputs), ({gates}·hidden, hidden)"
        )
    for name, bias in (("b_ih", bi), ("b_hh", bh)):
        if bias is not None and bias.shape != (gates * hidden,):
            raise ShapeError(f"{op}: {name} is {bias.shape}; expected {(gates * hidden,)}")
    for t in first:
        if t is not None and t.shape != (xs.shape[1], hidden):
            raise ShapeError(f"{op}: the state is {t.shape}; expected {(xs.shape[1], hidden)}")
    # The rows have the dtype of the states, since a scan's state keeps its dtype; half weights are read as they are.
    dtype = promote(xs.dtype, wi.dtype, wh.dtype, *(b.dtype for b in (bi, bh) if b is not None))
    rows = matmul(cast_to(xs, dtype), wi, bi, transpose_b=True)
    zero = movement.expand(rows.graph.constant(0, rows.dtype), (xs.shape[1], hidden))
    return rows, wh, bh, tuple(cast_to(t, rows.dtype) for t in first if t is not None) or (zero,) * states


def _over_time(step: Step, rows: Tensor, state: State, reverse: bool) -> tuple[Tensor, State]:
    steps = rows.shape[0]
    if steps > FEW_STEPS:

        def one(state: State, row: Tensor) -> tuple[State, Tensor]:
            state = step(row, state)
            return state, state[0]

        end, ys = scan(one, state, rows, reverse=reverse)
        return ys, end
    outputs = []
    for t in reversed(range(steps)) if reverse else range(steps):
        state = step(movement.index(rows, t), state)
        outputs.append(state[0])
    if not outputs:
        return movement.expand(full_like(state[0], 0), (0, *state[0].shape)), state
    return composite.stack(outputs[::-1] if reverse else outputs, 0), state


__all__ = ["gru", "lstm"]
