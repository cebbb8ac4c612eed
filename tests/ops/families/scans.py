"""Judges (loops of torch in float64) and gradient cases of the recurrences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rlx import ops
from rlx.ir import Tensor
from rlx.ir.graph import apply_multi
from tests.ops.gradient_cases import Gradients, whole
from tests.ops.judging import Array, Judge
from tests.outside import outside


def _pair(run: Callable[..., tuple[Any, Any]]) -> Judge:
    """A judge of two outputs."""

    def judge(*arrays: Array, operands: tuple[str, ...], **attrs: Any) -> list[Array]:
        torch = outside("torch")
        given = [torch.from_numpy(np.array(a)) for a in arrays]
        required = len(given) - len(operands)
        with torch.no_grad():
            made = run(torch, *given[:required], dict(zip(operands, given[required:], strict=True)), **attrs)
        return [t.numpy() for t in made]

    return judge


def _selective(
    torch: Any, x: Any, delta: Any, a: Any, b: Any, c: Any, more: dict[str, Any], softplus: bool
) -> tuple[Any, Any]:
    """Channel by channel, as two matrices of states and channels; heads are written out as channels first."""
    F = torch.nn.functional
    delta = delta + more.get("bias", 0.0)
    delta = F.softplus(delta, threshold=200.0) if softplus else delta
    width = x.shape[3] if x.dim() == 4 else 1
    wide = x.reshape(*x.shape[:2], x.shape[2] * width)
    delta = delta.repeat_interleave(width, 2)
    decay = a.unsqueeze(1).expand(a.shape[0], b.shape[3]) if a.dim() == 1 else a
    decay = decay.repeat_interleave(width, 0)
    b, c = (m.repeat_interleave(wide.shape[2] // m.shape[2], 2) for m in (b, c))
    flat = (x.shape[0], wide.shape[2], b.shape[3])
    h = more["state"].reshape(flat) if "state" in more else wide.new_zeros(flat)
    rows = []
    for t in range(x.shape[1]):
        step = delta[:, t, :, None]
        h = torch.exp(step * decay) * h + step * wide[:, t, :, None] * b[:, t]
        rows.append(torch.einsum("bcn,bcn->bc", h, c[:, t]))
    y = torch.stack(rows, 1).reshape(x.shape) if rows else x
    y = y + more["D"] * x if "D" in more else y
    y = y * F.silu(more["z"]) if "z" in more else y
    return y, h.reshape(x.shape[0], *x.shape[2:], b.shape[3])


def _selective_back(dy: Array, dlast: Array, *inputs: Array, operands: tuple[str, ...]) -> list[Array]:
    """torch.autograd's gradients of all inputs, and of the zero state where none is given."""
    torch = outside("torch")
    leaves = [torch.tensor(np.array(a), requires_grad=True) for a in inputs]
    state = leaves[-1] if operands else torch.zeros(dlast.shape, dtype=torch.float64, requires_grad=True)
    made = _selective(torch, *leaves[:5], {"state": state}, False)
    wrt = [*leaves[:5], state]
    d = [torch.from_numpy(np.array(t)) for t in (dy, dlast)]
    found = torch.autograd.grad(made, wrt, d, allow_unused=True)
    return [np.zeros(t.shape) if g is None else g.numpy() for t, g in zip(wrt, found, strict=True)]


def _rule(
    torch: Any, q: Any, k: Any, v: Any, beta: Any, more: dict[str, Any], scale: float
) -> tuple[Any, Any]:
    """Head by head: the state decays, then gives up what it held for the key, and takes the value."""
    batch, length, heads, _ = v.shape
    per = heads // k.shape[2]
    shape = (batch, heads, v.shape[3], k.shape[3])
    last = more["state"].clone() if "state" in more else torch.zeros(shape, dtype=v.dtype)
    o = torch.zeros_like(v)
    for i in range(batch):
        for head in range(heads):
            S = last[i, head].clone()
            for t in range(length):
                key = k[i, t, head // per]
                S = S * torch.exp(more["g"][i, t, head]) if "g" in more else S
                S = S + torch.outer(beta[i, t, head] * (v[i, t, head] - (S * key).sum(1)), key)
                o[i, t, head] = (S * (q[i, t, head // per] * scale)).sum(1)
            last[i, head] = S
    return o, last


def _rule_back(
    do: Array, dlast: Array, *inputs: Array, operands: tuple[str, ...], scale: float
) -> list[Array]:
    """torch.autograd's gradients of all inputs, and of no gate and the zero state where none is given."""
    torch = outside("torch")
    leaves = [torch.tensor(np.array(a), requires_grad=True) for a in inputs]
    more = dict(zip(operands, leaves[4:], strict=True))
    for name, shape in (("g", inputs[3].shape), ("state", dlast.shape)):
        more.setdefault(name, torch.zeros(shape, dtype=torch.float64, requires_grad=True))
    made = _rule(torch, *leaves[:4], more, scale)
    wrt = [*leaves[:4], more["g"], more["state"]]
    d = [torch.from_numpy(np.array(t)) for t in (do, dlast)]
    pairs = [(t, g) for t, g in zip(made, d, strict=True) if t.requires_grad]
    found = torch.autograd.grad([t for t, _ in pairs], wrt, [g for _, g in pairs], allow_unused=True)
    return [np.zeros(t.shape) if g is None else g.numpy() for t, g in zip(wrt, found, strict=True)]


def _conv(torch: Any, x: Any, w: Any, more: dict[str, Any], activation: str | None) -> tuple[Any, Any]:
    F = torch.nn.functional
    before = more["state"] if "state" in more else x.new_zeros((x.shape[0], w.shape[1] - 1, x.shape[2]))
    rows = torch.cat([before, x], 1)
    last = rows[:, x.shape[1] :]
    if not x.numel():
        return x, last
    # A convolution by a library may multiply with zeros of other channels, which NaN would pass: one channel at a time.
    y = torch.stack([F.conv1d(rows[:, None, :, i], w[None, None, i])[:, 0] for i in range(x.shape[2])], dim=2)
    y = y + more["bias"] if "bias" in more else y
    return (F.silu(y) if activation else y), last


def _scan(operands: str = "", **attrs: Any) -> Callable[..., Tensor]:
    names = operands.split()

    def build(x: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor, *more: Tensor) -> Tensor:
        return whole(
            ops.selective_scan(
                x, ops.tanh(delta), ops.tanh(a), b, c, **dict(zip(names, more, strict=True)), **attrs
            )
        )

    return build


def _scan_back(*given: Tensor) -> Tensor:
    operands = ("state",) if len(given) == 8 else ()
    return whole(apply_multi("selective_scan_grad", *given, operands=operands))


def _delta(*inputs: Tensor) -> Tensor:
    q, k, v, g, beta, *state = inputs
    return whole(ops.gated_delta_rule(q, ops.tanh(k) * 0.5, v, g, beta, *state))


def _delta_back(*given: Tensor) -> Tensor:
    operands = ("g", "state")[: len(given) - 6]
    return whole(apply_multi("gated_delta_rule_grad", *given, operands=operands, scale=0.5))


def _plain(q: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Tensor:
    return whole(ops.gated_delta_rule(q, k * 0.3, v, None, beta, scale=0.5))


def _convolved(*inputs: Tensor) -> Tensor:
    return whole(ops.causal_conv(*inputs, activation="silu"))


JUDGES: dict[str, Judge] = {
    "torch: the recurrence of Mamba in a loop": _pair(_selective),
    "torch.autograd of the recurrence of Mamba": _selective_back,
    "torch: the gated delta rule in a loop": _pair(_rule),
    "torch.autograd of the gated delta rule": _rule_back,
    "torch.nn.functional.conv1d": _pair(_conv),
}
GRADIENTS: Gradients = {
    "selective_scan": [
        (_scan(), [(1, 3, 2), (1, 3, 2), (2, 2), (1, 3, 2), (1, 3, 2)], None),
        (_scan("D z state delta_bias", delta_softplus=True),
         [(2, 3, 2), (2, 3, 2), (2, 3), (2, 3, 2, 3), (2, 3, 2, 3), (2,), (2, 3, 2), (2, 2, 3), (2,)], None, 2e-4),
        (_scan("D z state"),
         [(1, 3, 2, 2), (1, 3, 2), (2,), (1, 3, 1, 2), (1, 3, 1, 2), (2,), (1, 3, 2, 2), (1, 2, 2, 2)], None),
    ],
    "selective_scan_grad": [
        (_scan_back,
         [(1, 2, 2), (1, 2, 2), (1, 2, 2), (1, 2, 2), (2, 2), (1, 2, 1, 2), (1, 2, 1, 2), (1, 2, 2)], None, 2e-4),
        (_scan_back,
         [(1, 2, 2, 1), (1, 2, 1, 1), (1, 2, 2, 1), (1, 2, 2), (2,), (1, 2, 1, 1), (1, 2, 1, 1)], None, 2e-4),
    ],
    "gated_delta_rule": [
        (_delta, [(1, 3, 1, 2), (1, 3, 1, 2), (1, 3, 2, 3), (1, 3, 2), (1, 3, 2), (1, 2, 3, 2)], None),
        (_plain, [(2, 2, 1, 2), (2, 2, 1, 2), (2, 2, 1, 2), (2, 2, 1)], None),
    ],
    "gated_delta_rule_grad": [
        (_delta_back,
         [(1, 2, 2, 2), (1, 2, 2, 2), (1, 2, 1, 2), (1, 2, 1, 2), (1, 2, 2, 2), (1, 2, 2), (1, 2, 2), (1, 2, 2, 2)],
         None, 2e-4),
    ],
    "causal_conv": [
        (_convolved, [(2, 5, 3), (3, 4), (3,), (2, 3, 3)], None),
        (lambda x, w: whole(ops.causal_conv(x, w)), [(1, 4, 2), (2, 2)], None),
    ],
}  # fmt: skip
