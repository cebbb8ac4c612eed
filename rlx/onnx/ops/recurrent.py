"""RNN, GRU and LSTM: short sequences are unrolled, since their length is known; long ones are a scan."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rlx import ops as o
from rlx.ir import Tensor
from rlx.onnx.reader.call import Call, Result
from rlx.onnx.reader.table import op
from rlx.records import Record

FEW_STEPS = 16  # a sequence up to this length is unrolled
Activation = Callable[[Tensor], Tensor]


def _activation(c: Call, name: str, alpha: float | None, beta: float | None) -> Activation:
    def or_default(value: float | None, default: float) -> float:
        return default if value is None else value

    table: dict[str, Activation] = {
        "sigmoid": o.sigmoid,
        "tanh": o.tanh,
        "relu": o.relu,
        "softplus": o.softplus,
        "softsign": lambda x: o.div(x, o.add(o.abs(x), 1)),
        "affine": lambda x: o.add(o.mul(x, or_default(alpha, 1.0)), or_default(beta, 0.0)),
        "leakyrelu": lambda x: o.leaky_relu(x, or_default(alpha, 0.01)),
        "thresholdedrelu": lambda x: o.where(o.greater(x, or_default(alpha, 1.0)), x, 0),
        "scaledtanh": lambda x: o.mul(o.tanh(o.mul(x, or_default(beta, 1.0))), or_default(alpha, 1.0)),
        "hardsigmoid": lambda x: o.hard_sigmoid(x, or_default(alpha, 0.2), or_default(beta, 0.5)),
        "elu": lambda x: o.elu(x, or_default(alpha, 1.0)),
    }
    if name.lower() not in table:
        raise c.bad(f"activation {name!r}; expected one of {', '.join(table)}")
    return table[name.lower()]


Product = Callable[[Tensor], Tensor]
# For the number of a direction: the functions that multiply by its weights of the input and of the state.
Products = Callable[[int], tuple[Product, Product]]


class _Direction(Record):
    """The weights of one direction, ready for products from the left."""

    times_w: Product  # (…, input) → (…, gates·hidden)
    times_r: Product  # (…, hidden) → (…, gates·hidden)
    r: Tensor  # (hidden, gates·hidden)
    wb: Tensor | None  # (gates·hidden,)
    rb: Tensor | None
    peepholes: Tensor | None  # (3·hidden,), of an LSTM
    activations: list[Activation]
    mixes: bool  # whether a product depends on all rows, so that those of ended sequences must be 0


Step = Callable[[Call, Tensor, _Direction, list[Tensor]], list[Tensor]]


def _parts(t: Tensor, count: int) -> list[Tensor]:
    return list(o.split(t, count, t.ndim - 1))


def _clipped(c: Call, t: Tensor) -> Tensor:
    limit = c.float("clip", 0.0)
    return o.clip(t, -limit, limit) if limit else t


def _plus(t: Tensor, bias: Tensor | None) -> Tensor:
    return t if bias is None else o.add(t, bias)


def _rnn_step(c: Call, x: Tensor, d: _Direction, state: list[Tensor]) -> list[Tensor]:
    total = o.add(_plus(x, d.wb), _plus(d.times_r(state[0]), d.rb))
    return [d.activations[0](_clipped(c, total))]


def _gru_step(c: Call, x: Tensor, d: _Direction, state: list[Tensor]) -> list[Tensor]:
    f, g = d.activations
    h = state[0]
    xz, xr, xh = _parts(_plus(x, d.wb), 3)
    before = bool(c.int("linear_before_reset", 0))
    first = h.shape[-1] * (3 if before else 2)  # columns of R that multiply the state as it is
    products = _plus(d.times_r(h) if before else o.matmul(h, d.r[:, :first]), None if d.rb is None else d.rb[:first])
    hz, hr, *hh = _parts(products, 3 if before else 2)
    z, r = f(_clipped(c, o.add(xz, hz))), f(_clipped(c, o.add(xr, hr)))
    if before:
        inner = o.mul(r, hh[0])
    else:
        inner = _plus(o.matmul(o.mul(r, h), d.r[:, first:]), None if d.rb is None else d.rb[first:])
    new = g(_clipped(c, o.add(xh, inner)))
    return [o.add(o.mul(o.sub(1.0, z), new), o.mul(z, h))]


def _lstm_step(c: Call, x: Tensor, d: _Direction, state: list[Tensor]) -> list[Tensor]:
    f, g, last = d.activations
    h, cell = state
    i, out, forget, new = _parts(o.add(_plus(x, d.wb), _plus(d.times_r(h), d.rb)), 4)
    pi, po, pf = _parts(d.peepholes, 3) if d.peepholes is not None else (None, None, None)
    if pi is not None and pf is not None:
        i, forget = o.add(i, o.mul(pi, cell)), o.add(forget, o.mul(pf, cell))
    i = f(_clipped(c, i))
    forget = o.sub(1.0, i) if c.int("input_forget", 0) else f(_clipped(c, forget))
    cell = o.add(o.mul(forget, cell), o.mul(i, g(_clipped(c, new))))
    if po is not None:
        out = o.add(out, o.mul(po, cell))
    return [o.mul(f(_clipped(c, out)), last(cell)), cell]


def _recurrent(
    c: Call, gates: int, defaults: list[str], states: int, step: Step, products: Products | None = None
) -> list[Result]:
    x, w, r = c.x(0), c.x(1), c.x(2)
    if x.ndim != 3 or w.ndim != 3 or r.ndim != 3:
        raise c.bad(f"X {x.shape}, W {w.shape}, R {r.shape}; expected three dimensions each")
    batch_first = bool(c.int("layout", 0))
    x = o.transpose(x, (1, 0, 2)) if batch_first else x
    batch = x.shape[1]
    hidden = r.shape[2]
    direction = c.str("direction", "forward")
    count = 2 if direction == "bidirectional" else 1
    if direction not in ("forward", "reverse", "bidirectional"):
        raise c.bad(f"direction {direction!r}; expected forward, reverse or bidirectional")
    if w.shape != (count, gates * hidden, x.shape[2]) or r.shape != (count, gates * hidden, hidden):
        raise c.bad(
            f"X {x.shape}, W {w.shape}, R {r.shape} for {count} directions of {gates} gates do not fit"
        )
    initial = [_initial(c, 5 + k, count, batch, hidden, x, batch_first) for k in range(states)]
    lengths = c.opt(4)
    if lengths is not None:
        if lengths.shape != (batch,):
            raise c.bad(f"sequence_lens are {lengths.shape}; expected ({batch},)")
        c.limited(lengths, "sequence_lens", x.shape[0])
    results: list[Tensor] = []
    finals: list[list[Tensor]] = [[] for _ in range(states)]
    for k in range(count):
        d = _direction(c, k, count, gates, hidden, defaults, products)
        backwards = direction == "reverse" or k == 1
        ys, ends = _run(c, x, d, [s[k] for s in initial], lengths, backwards, step)
        results.append(ys)
        for final, end in zip(finals, ends, strict=True):
            final.append(end)
    y = o.stack(results, 1)  # (steps, directions, batch, hidden)
    ends = [o.stack(final, 0) for final in finals]
    if batch_first:
        y = o.transpose(y, (2, 0, 1, 3))
        ends = [o.transpose(e, (1, 0, 2)) for e in ends]
    return [y, *ends]


def _initial(
    c: Call, i: int, count: int, batch: int, hidden: int, x: Tensor, batch_first: bool
) -> list[Tensor]:
    state = c.opt(i)
    if state is None:
        return [c.tensor(np.zeros((batch, hidden), x.dtype.np))] * count
    state = o.transpose(state, (1, 0, 2)) if batch_first and state.ndim == 3 else state
    if state.shape != (count, batch, hidden):
        raise c.bad(f"the initial state is {state.shape}; expected {(count, batch, hidden)}")
    return [state[k] for k in range(count)]


def _direction(
    c: Call, k: int, count: int, gates: int, hidden: int, defaults: list[str], products: Products | None
) -> _Direction:
    n = len(defaults)
    names = c.attrs.get("activations") or defaults * count
    alphas, betas = c.floats("activation_alpha", []), c.floats("activation_beta", [])
    if c.kind == "RNN" and len(names) > count:  # the schema's default is for two directions
        names = names[:count]
    if len(names) != n * count:
        raise c.bad(f"activations {names}; expected {n * count}")
    chosen = [
        _activation(c, name, alphas[i] if i < len(alphas) else None, betas[i] if i < len(betas) else None)
        for i, name in enumerate(names[k * n : (k + 1) * n], start=k * n)
    ]
    bias, p = c.opt(3), c.opt(7) if gates == 4 else None
    size = gates * hidden
    if bias is not None and bias.shape != (count, 2 * size):
        raise c.bad(f"B is {bias.shape}; expected {(count, 2 * size)}")
    w, r = o.transpose(c.x(1)[k]), o.transpose(c.x(2)[k])
    times_w, times_r = (
        products(k) if products is not None else (lambda t: o.matmul(t, w), lambda t: o.matmul(t, r))
    )
    return _Direction(
        times_w, times_r, r, None if bias is None else bias[k, :size],
        None if bias is None else bias[k, size:], None if p is None else p[k], chosen, products is not None,
    )  # fmt: skip


def _run(
    c: Call,
    x: Tensor,
    d: _Direction,
    state: list[Tensor],
    lengths: Tensor | None,
    backwards: bool,
    step: Step,
) -> tuple[Tensor, list[Tensor]]:
    """The results of every step, and the last states."""
    if lengths is not None and backwards and d.mixes:  # reversed first: each starts at its own end
        ys, ends = _run(c, _turned(c, x, lengths), d, state, lengths, False, step)
        return _turned(c, ys, lengths), ends
    steps = x.shape[0]
    all_x = d.times_w(x)  # every step's product at once

    def one(state: list[Tensor], x: Tensor, t: Tensor | int) -> tuple[list[Tensor], Tensor]:
        if lengths is None:
            new = step(c, x, d, state)
            return new, new[0]
        seen = state
        if d.mixes:
            seen = [o.where(o.reshape(o.greater_equal(lengths, t), (-1, 1)), state[0], 0), *state[1:]]
        new = step(c, x, d, seen)
        # Past the end of a sequence the state stays and the result is 0.
        here = o.reshape(o.greater(lengths, t), (-1, 1))
        return [o.where(here, n, s) for n, s in zip(new, state, strict=True)], o.where(here, new[0], 0)

    if steps > FEW_STEPS:
        numbers = None if lengths is None else c.tensor(np.arange(steps, dtype=lengths.dtype.np))
        ends, ys = o.scan(lambda s, row: one(s, *row), state, (all_x, numbers), reverse=backwards)
        return ys, ends
    rows: list[Tensor] = []
    for t in reversed(range(steps)) if backwards else range(steps):
        state, y = one(state, all_x[t], t)
        rows.append(y)
    if not rows:
        return c.tensor(np.zeros((0, *state[0].shape), x.dtype.np)), state
    return o.stack(rows[::-1] if backwards else rows, 0), state


def _turned(c: Call, x: Tensor, lengths: Tensor) -> Tensor:
    """(steps, batch, …) with each sequence reversed; the padding after it stays in place."""
    t = c.tensor(np.arange(x.shape[0], dtype=lengths.dtype.np)[:, None])
    places = o.where(o.less(t, lengths), o.sub(o.sub(lengths, 1), t), t)
    index = o.expand(o.reshape(places, (*places.shape, *(1,) * (x.ndim - 2))), x.shape)
    return o.gather_elements(x, index, 0)


@op("RNN", since=7)
def rnn(c: Call) -> list[Result]:
    return _recurrent(c, 1, ["Tanh"], 1, _rnn_step)


@op("GRU", since=7)
def gru(c: Call) -> list[Result]:
    return _recurrent(c, 3, ["Sigmoid", "Tanh"], 1, _gru_step)


@op("LSTM", since=7)
def lstm(c: Call, products: Products | None = None) -> list[Result]:
    return _recurrent(c, 4, ["Sigmoid", "Tanh", "Tanh"], 2, _lstm_step, products)
