"""The public functions of the recurrences: shapes that they accept, and what they say of others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from rlx.autodiff import gradients
from rlx.conformance.oracle import evaluate
from rlx.errors import DTypeError, RlxError, ShapeError
from rlx.ir import Graph, Tensor
from tests.outside import outside

Array = np.ndarray[Any, np.dtype[Any]]


def _inputs(*shapes: tuple[int, ...], dtype: str = "f32") -> list[Tensor]:
    graph = Graph("scans")
    return [graph.input(f"x{i}", s, dtype) for i, s in enumerate(shapes)]


def _values(made: tuple[Tensor, ...]) -> list[Array]:
    graph = made[0].graph
    rng = np.random.default_rng(0)
    values = evaluate(graph, {n: rng.standard_normal(t.shape) for n, t in graph.inputs.items()})
    return [values[t.id] for t in made]


def test_groups_and_skips_may_be_left_out() -> None:
    """B and C of three axes are one group, and D of one number a head is repeated for its channels."""
    x, delta, a, b, c, d = _inputs((2, 3, 4, 5), (2, 3, 4), (4,), (2, 3, 6), (2, 3, 6), (4,))
    y, state = rlx.selective_scan(x, delta, a, b, c, d)
    assert (y.shape, state.shape) == ((2, 3, 4, 5), (2, 4, 5, 6))
    b4, c4 = (rlx.reshape(t, (2, 3, 1, 6)) for t in (b, c))
    wide = rlx.broadcast_to(rlx.reshape(d, (4, 1)), (4, 5))
    y4, state4 = rlx.selective_scan(x, delta, a, b4, c4, wide)
    made = _values((y, state, y4, state4))
    np.testing.assert_array_equal(made[0], made[2])
    np.testing.assert_array_equal(made[1], made[3])


def test_a_gate_of_one_is_the_plain_rule() -> None:
    q, k, v, beta = _inputs((1, 4, 1, 3), (1, 4, 1, 3), (1, 4, 2, 5), (1, 4, 2))
    plain = rlx.gated_delta_rule(q, k, v, None, beta)
    gated = rlx.gated_delta_rule(q, k, v, rlx.zeros_like(beta), beta, scale=3**-0.5)
    for a, b in zip(_values(plain + gated)[:2], _values(plain + gated)[2:], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.parametrize("half", ["f16", "bf16"])
def test_states_are_f32_beside_halves(half: str) -> None:
    x, delta, b, c = _inputs((1, 2, 3), (1, 2, 3), (1, 2, 4), (1, 2, 4), dtype=half)
    a = x.graph.input("a", (3, 4), "f32")
    y, state = rlx.selective_scan(x, delta, a, b, c)
    assert (y.dtype.name, state.dtype.name) == (half, "f32")
    y, state = rlx.causal_conv(x, x.graph.input("w", (3, 4), half))
    assert (y.dtype.name, state.dtype.name) == (half, half)


def _mamba(torch: Any, x: Any, delta: Any, a: Any, b: Any, c: Any, d: Any, z: Any) -> Any:
    F = torch.nn.functional
    h, rows, step = 0.0, [], F.softplus(delta)
    for t in range(x.shape[1]):
        dt = step[:, t, :, None]
        h = torch.exp(dt * a) * h + dt * x[:, t, :, None] * b[:, t, None]
        rows.append((h * c[:, t, None]).sum(-1))
    return (torch.stack(rows, 1) + d * x) * F.silu(z)


def _delta_rule(torch: Any, q: Any, k: Any, v: Any, g: Any, beta: Any) -> Any:
    S, rows, one = 0.0, [], torch.eye(k.shape[-1], dtype=k.dtype)
    for t in range(q.shape[1]):
        key, b = k[:, t, :, None, :], beta[:, t, :, None, None]
        erase = one - b * key.transpose(-1, -2) @ key
        S = torch.exp(g[:, t, :, None, None]) * S @ erase if t else 0.0
        S = S + b * v[:, t, :, :, None] @ key
        rows.append((S @ q[:, t, :, :, None])[..., 0])
    return torch.stack(rows, 1) / q.shape[-1] ** 0.5


def _conv(torch: Any, x: Any, w: Any, bias: Any) -> Any:
    F = torch.nn.functional
    rows = F.pad(x.transpose(1, 2), (w.shape[1] - 1, 0))
    return F.silu(F.conv1d(rows, w[:, None], bias, groups=len(w))).transpose(1, 2)


@pytest.mark.judged
@pytest.mark.parametrize(
    "judge, build, shapes",
    [
        (
            _mamba,
            lambda *t: rlx.selective_scan(*t, delta_softplus=True)[0],
            ((2, 9, 4), (2, 9, 4), (4, 3), (2, 9, 3), (2, 9, 3), (4,), (2, 9, 4)),
        ),
        (
            _delta_rule,
            lambda *t: rlx.gated_delta_rule(*t)[0],
            ((2, 6, 2, 4), (2, 6, 2, 4), (2, 6, 2, 3), (2, 6, 2), (2, 6, 2)),
        ),
        (_conv, lambda *t: rlx.causal_conv(*t, activation="silu")[0], ((2, 9, 4), (4, 4), (4,))),
    ],
    ids=["selective_scan", "gated_delta_rule", "causal_conv"],
)
def test_values_and_gradients_are_those_of_a_loop_of_torch(judge: Any, build: Any, shapes: Any) -> None:
    """Written as the papers write them; the factors are so small that states do not grow."""
    torch = outside("torch")
    rng = np.random.default_rng(2)
    arrays = [rng.uniform(-0.5, 0.5, s) for s in shapes]
    graph = Graph("loops")
    xs = [graph.input(f"x{i}", s, "f64") for i, s in enumerate(shapes)]
    y = build(*xs)
    d = rng.standard_normal(y.shape)
    found = gradients(y, xs, graph.constant(d))
    values = evaluate(graph, {f"x{i}": a for i, a in enumerate(arrays)})
    leaves = [torch.tensor(a, requires_grad=True) for a in arrays]
    made = judge(torch, *leaves)
    np.testing.assert_allclose(values[y.id], made.detach().numpy(), rtol=1e-11, atol=1e-12)
    wanted = torch.autograd.grad(made, leaves, torch.from_numpy(d))
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(values[got.id], want.numpy(), rtol=1e-10, atol=1e-11)


_SCAN = ((1, 2, 6), (1, 2, 6), (6, 4), (1, 2, 4), (1, 2, 4))
_RULE = ((1, 2, 1, 3), (1, 2, 1, 3), (1, 2, 2, 5), (1, 2, 2), (1, 2, 2))


@pytest.mark.parametrize(
    "op, shapes, error, message",
    [
        (
            "selective_scan",
            ((2, 6), *_SCAN[1:]),
            ShapeError,
            r"x is f32\[2,6\]; expected \(batch, length, chann",
        ),
        (
            "selective_scan",
            (*_SCAN[:2], (6,), *_SCAN[3:]),
            ShapeError,
            r"A is f32\[6\] for x .*\(channels, states",
        ),
        ("selective_scan", (*_SCAN[:3], (1, 2, 4, 4), (1, 2, 4, 4)), ShapeError, "groups that divides 6"),
        (
            "selective_scan",
            (*_SCAN[:4], (1, 2, 5)),
            ShapeError,
            r"C is f32\[1,2,1,5\]; expected the shape \(1, 2,",
        ),
        (
            "selective_scan",
            (_SCAN[0], (1, 2, 5), *_SCAN[2:]),
            ShapeError,
            r"delta is f32\[1,2,5\]; expected the",
        ),
        ("selective_scan", (*_SCAN, (5,)), ShapeError, r"D is f32\[5\]; expected the shape \(6,\)"),
        ("selective_scan", (*_SCAN, (6,), (1, 2, 5)), ShapeError, r"z is f32\[1,2,5\]"),
        (
            "selective_scan",
            (*_SCAN[:3], (1, 3, 2), _SCAN[4]),
            ShapeError,
            r"B is f32\[1,3,2\] beside x .*\(batch, length",
        ),
        (
            "gated_delta_rule",
            ((1, 2, 3), *_RULE[1:]),
            ShapeError,
            r"q is f32\[1,2,3\]; expected \(batch, length, he",
        ),
        (
            "gated_delta_rule",
            (*_RULE[:2], (1, 2, 0, 5), (1, 2, 0), (1, 2, 0), (1, 0, 5, 4)),
            ShapeError,
            "state is",
        ),
        (
            "gated_delta_rule",
            ((1, 2, 3, 3), (1, 2, 3, 3), *_RULE[2:]),
            ShapeError,
            "heads that divides v's 2",
        ),
        (
            "gated_delta_rule",
            (*_RULE, (1, 2, 3, 5)),
            ShapeError,
            r"state is .*; expected the shape \(1, 2, 5, 3\)",
        ),
        (
            "causal_conv",
            ((1, 2), (2, 4)),
            ShapeError,
            r"x is f32\[1,2\]; expected \(batch, length, channels\)",
        ),
        ("causal_conv", ((1, 5, 3), (3, 1)), ShapeError, "with a width of 2 to 8"),
        ("causal_conv", ((1, 5, 3), (3, 9)), ShapeError, "with a width of 2 to 8"),
        (
            "causal_conv",
            ((1, 5, 3), (4, 3)),
            ShapeError,
            r"w is f32\[4,3\] beside x f32\[1,5,3\]; expected as many channels",
        ),
        ("causal_conv", ((1, 5, 3), (3, 3), (3,), (1, 3, 3)), ShapeError, r"expected the shape \(1, 2, 3\)"),
    ],
)
def test_bad_shapes(op: str, shapes: Any, error: type[RlxError], message: str) -> None:
    with pytest.raises(error, match=f"{op}: .*{message}"):
        getattr(rlx, op)(*_inputs(*shapes))


def test_names_in_messages_are_those_of_the_arguments() -> None:
    *given, bias = _inputs(*_SCAN, (5,))
    with pytest.raises(
        ShapeError, match=r"selective_scan: delta_bias is f32\[5\]; expected the shape \(6,\)"
    ):
        rlx.selective_scan(*given, delta_bias=bias)


def test_bad_attributes() -> None:
    rule = _inputs(*_RULE)
    with pytest.raises(DTypeError, match="scale is 'half'; expected a number"):
        rlx.gated_delta_rule(*rule, scale="half")  # type: ignore[arg-type]
    for scale in (1e300, float("nan")):
        with pytest.raises(ShapeError, match="expected a number that f32 holds"):
            rlx.gated_delta_rule(*rule, scale=scale)
    x, w = _inputs((1, 5, 3), (3, 4))
    with pytest.raises(DTypeError, match=r"activation is 'relu'; expected None or \"silu\""):
        rlx.causal_conv(x, w, activation="relu")
    attrs = {"operands": ("state", "bias"), "activation": None}
    with pytest.raises(DTypeError, match="expected a tuple of bias, state, in this order"):
        x.graph.add("causal_conv", (x, w, w, w), attrs)
    with pytest.raises(ShapeError, match=r"takes 2 inputs and 1 named \('bias',\), got 2"):
        x.graph.add("causal_conv", (x, w), {"operands": ("bias",), "activation": None})
