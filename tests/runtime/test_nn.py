"""Layers beside torch's with the same weights: values and gradients, in f32 at 1e-6 and in f64 at 1e-12."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import nn
from rlx.errors import DTypeError, GraphError, ShapeError
from tests.outside import outside

KEY = rlx.random.key(3)


def _attention_of(torch: Any, layer: Any, heads: int, kv: int, causal: bool) -> Callable[..., Any]:
    """torch's grouped attention, of the same four products."""

    def run(x: Any) -> Any:
        q, k, v = (torch.nn.functional.linear(x, layer[n]["weight"], layer[n]["bias"]) for n in "qkv")
        size = q.shape[-1] // heads
        q, k, v = (t.reshape(*t.shape[:2], -1, size).transpose(1, 2) for t in (q, k, v))
        k, v = (t.repeat_interleave(heads // kv, 1) for t in (k, v))
        made = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        made = made.transpose(1, 2).reshape(x.shape)
        return torch.nn.functional.linear(made, layer["out"]["weight"], layer["out"]["bias"])

    return run


def _stateful(torch: Any, p: Any, kind: Any) -> Callable[..., Any]:
    """A module of torch as a function of x, with parameters that have gradients."""
    return lambda x: torch.func.functional_call(kind, p, (x,))


def _multihead(torch: Any, p: Any, causal: bool) -> Callable[..., Any]:
    whole = torch.nn.MultiheadAttention(12, 3, batch_first=True, dtype=p["q"]["weight"].dtype)
    packed = {
        "in_proj_weight": torch.cat([p[n]["weight"] for n in "qkv"]),
        "in_proj_bias": torch.cat([p[n]["bias"] for n in "qkv"]),
        "out_proj.weight": p["out"]["weight"], "out_proj.bias": p["out"]["bias"],
    }  # fmt: skip
    mask = torch.ones(5, 5, dtype=torch.bool).triu(1) if causal else None
    return lambda x: torch.func.functional_call(whole, packed, (x, x, x), {"attn_mask": mask})[0]


def _lstm(torch: Any, p: Any) -> Callable[..., Any]:
    own = {f"{k}_l0": v for k, v in p.items()}
    module = torch.nn.LSTM(4, 3, bias="bias_hh" in p, dtype=p["weight_ih"].dtype)
    return lambda x: torch.func.functional_call(module, own, (x,))[0]


# Name: shape of x, parameters of (key, dtype), the layer, torch's of (torch, parameters as tensors).
LAYERS: dict[str, tuple[tuple[int, ...], Any, Any, Any]] = {
    "linear": ((2, 5, 6), lambda k, d: nn.linear_init(k, 6, 4, dtype=d), nn.linear,
               lambda t, p: lambda x: t.nn.functional.linear(x, p["weight"], p["bias"])),
    "linear without bias": ((5, 6), lambda k, d: nn.linear_init(k, 6, 4, bias=False, dtype=d), nn.linear,
                            lambda t, p: lambda x: t.nn.functional.linear(x, p["weight"])),
    "layer_norm": ((3, 7), lambda k, d: nn.norm_init(7, dtype=d), nn.layer_norm,
                   lambda t, p: lambda x: t.nn.functional.layer_norm(x, (7,), p["weight"], p["bias"])),
    "rms_norm": ((3, 7), lambda k, d: nn.norm_init(7, bias=False, dtype=d), nn.rms_norm,
                 lambda t, p: lambda x: t.nn.functional.rms_norm(x, (7,), p["weight"], 1e-6)),
    "group_norm": ((2, 6, 4, 3), lambda k, d: nn.norm_init(6, dtype=d), lambda p, x: nn.group_norm(p, x, 3),
                   lambda t, p: lambda x: t.nn.functional.group_norm(x, 3, p["weight"], p["bias"])),
    "conv": ((2, 4, 7, 6), lambda k, d: nn.conv_init(k, 4, 6, 3, groups=2, dtype=d),
             lambda p, x: nn.conv(p, x, stride=2, padding=1, groups=2),
             lambda t, p: lambda x: t.nn.functional.conv2d(x, p["weight"], p["bias"], 2, 1, groups=2)),
    "conv same": ((2, 3, 9), lambda k, d: nn.conv_init(k, 3, 5, 4, axes=1, dtype=d),
                  lambda p, x: nn.conv(p, x, padding="same", dilation=2),
                  lambda t, p: lambda x: t.nn.functional.conv1d(x, p["weight"], p["bias"], padding="same", dilation=2)),
    "attention": ((2, 5, 12), lambda k, d: nn.attention_init(k, 12, 3, dtype=d), lambda p, x: nn.attention(p, x, 3),
                  lambda t, p: _multihead(t, p, False)),
    "attention causal": ((2, 5, 12), lambda k, d: nn.attention_init(k, 12, 3, dtype=d),
                         lambda p, x: nn.attention(p, x, 3, causal=True), lambda t, p: _multihead(t, p, True)),
    "attention grouped": ((2, 5, 12), lambda k, d: nn.attention_init(k, 12, 6, 2, dtype=d),
                          lambda p, x: nn.attention(p, x, 6, causal=True),
                          lambda t, p: _attention_of(t, p, 6, 2, True)),
    "lstm": ((6, 2, 4), lambda k, d: nn.lstm_init(k, 4, 3, dtype=d), lambda p, x: nn.lstm(p, x)[0], _lstm),
    "lstm without bias": ((6, 2, 4), lambda k, d: nn.lstm_init(k, 4, 3, bias=False, dtype=d),
                          lambda p, x: nn.lstm(p, x)[0], _lstm),
}  # fmt: skip


def _compared(torch: Any, layer: Any, theirs: Any, params: Any, x: Any, exact: float) -> None:
    weights = np.random.default_rng(1).standard_normal(rlx.eval_shape(layer, params, x).shape).astype(x.dtype)

    def loss(params: Any, x: Any) -> Any:
        y = layer(params, x)
        return rlx.sum(y * weights), y

    (_, mine), gradients = rlx.value_and_grad(loss, (0, 1), has_aux=True)(params, x)
    tensors = rlx.tree.map(lambda a: torch.tensor(np.array(a), requires_grad=True), (params, x))
    y = theirs(torch, tensors[0])(tensors[1])
    (y * torch.tensor(weights)).sum().backward()
    want = rlx.tree.map(lambda t: t.grad.numpy(), tensors)
    for a, b in zip([mine, *rlx.tree.leaves(gradients)], [y.detach().numpy(), *rlx.tree.leaves(want)], strict=True):
        np.testing.assert_allclose(a, b, rtol=10 * exact, atol=exact * max(1, np.abs(b).max()))


@pytest.mark.judged
@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_torchs(name: str) -> None:
    torch = outside("torch")
    shape, init, layer, theirs = LAYERS[name]
    x = np.random.default_rng(0).standard_normal(shape)
    for dtype, exact in (("f32", 1e-6), ("f64", 1e-12)):
        params = rlx.tree.map(lambda a: np.asarray(a) + a.dtype.type(0.1), rlx.jit(init, static_argnums=1)(KEY, dtype))
        assert all(a.dtype == rlx.dtypes.as_dtype(dtype).np for a in rlx.tree.leaves(params))
        _compared(torch, layer, theirs, params, x.astype(rlx.dtypes.as_dtype(dtype).np), exact)


@pytest.mark.judged
@pytest.mark.parametrize("shape", [(6, 3), (4, 3, 5), (2, 3, 4, 2)])
def test_batch_norm_and_its_statistics_are_torchs(shape: tuple[int, ...]) -> None:
    torch = outside("torch")
    kind = getattr(torch.nn, f"BatchNorm{max(1, len(shape) - 2)}d")(3, dtype=torch.float64)
    params, state = nn.batch_norm_init(3, "f64")
    rng = np.random.default_rng(2)
    params["weight"] = rng.standard_normal(3)
    with torch.no_grad():
        kind.weight.copy_(torch.tensor(params["weight"]))
    layer = rlx.jit(nn.batch_norm, static_argnames="training")
    for training in (True, True, False):
        x = rng.standard_normal(shape) * 3 + 1
        kind.train(training)
        leaf = torch.tensor(x, requires_grad=True)
        want = kind(leaf)
        mine, state = layer(params, state, x, training=training)
        np.testing.assert_allclose(mine, want.detach().numpy(), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(state["mean"], kind.running_mean.numpy(), rtol=1e-12)
        np.testing.assert_allclose(state["var"], kind.running_var.numpy(), rtol=1e-12)
        weights = rng.standard_normal(shape)
        (want * torch.tensor(weights)).sum().backward()

        def loss(x: Any, held: Any = state, training: bool = training, weights: Any = weights) -> Any:
            return rlx.sum(nn.batch_norm(params, held, x, training)[0] * weights)

        np.testing.assert_allclose(rlx.grad(loss)(x), leaf.grad.numpy(), rtol=1e-11, atol=1e-11)


def test_initializers_have_their_variance_and_bounds() -> None:
    shape = (64, 32, 3, 3)
    fan_in, fan_out = 32 * 9, 64 * 9
    bounds = {nn.xavier_uniform: (6 / (fan_in + fan_out)) ** 0.5, nn.kaiming_uniform: (6 / fan_in) ** 0.5}
    for init, bound in bounds.items():
        drawn = np.asarray(init(KEY, shape, "f32"))
        assert drawn.shape == shape and np.abs(drawn).max() <= bound
        np.testing.assert_allclose(drawn.std(), bound / 3**0.5, rtol=0.02)
    deviations = {
        nn.xavier_normal: (2 / (fan_in + fan_out)) ** 0.5, nn.kaiming_normal: (2 / fan_in) ** 0.5,
        nn.lecun_normal: fan_in**-0.5, nn.normal(0.3): 0.3,
    }  # fmt: skip
    for init, deviation in deviations.items():
        drawn = np.asarray(init(KEY, shape, "f32"))
        np.testing.assert_allclose(drawn.std(), deviation, rtol=0.02)
        np.testing.assert_array_equal(drawn, init(KEY, shape, "f32"))
    assert not np.asarray(nn.zeros(KEY, (2, 3))).any() and np.asarray(nn.ones(KEY, (2, 3))).all()
    params = nn.linear_init(KEY, 100, 50)
    assert params["weight"].shape == (50, 100) and np.abs(np.asarray(params["weight"])).max() <= 0.1
    assert 0.05 < np.abs(np.asarray(params["bias"])).max() <= 0.1
    assert nn.conv_init(KEY, 4, 6, (3, 5), groups=2)["weight"].shape == (6, 2, 3, 5)
    table = nn.embedding_init(KEY, 7, 3)
    np.testing.assert_array_equal(nn.embedding(table, np.array([[1, 6]])), np.asarray(table["weight"])[[[1, 6]]])


def test_a_network_of_layers_trains_with_dropout_and_statistics() -> None:
    keys = rlx.random.split(KEY, 3)
    norm, state = nn.batch_norm_init(16)
    params = {"up": nn.linear_init(keys[0], 4, 16), "norm": norm, "out": nn.linear_init(keys[1], 16, 1)}
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 4)).astype(np.float32)
    y = x[:, :1] * x[:, 1:2]

    def forward(p: Any, state: Any, x: Any, key: Any, training: bool) -> Any:
        hidden, state = nn.batch_norm(p["norm"], state, rlx.relu(nn.linear(p["up"], x)), training)
        return nn.linear(p["out"], nn.dropout(key, hidden, 0.1, training)), state

    def loss(p: Any, state: Any, key: Any) -> Any:
        made, state = forward(p, state, x, key, True)
        return rlx.mean((made - y) ** 2), state

    optimizer = rlx.optim.adam(1e-2)

    @rlx.jit
    def step(p: Any, held: Any, state: Any, key: Any) -> Any:
        (value, state), gradient = rlx.value_and_grad(loss, has_aux=True)(p, state, key)
        updates, held = optimizer.update(gradient, held, p)
        return value, rlx.optim.apply_updates(p, updates), held, state

    held, seen = optimizer.init(params), []
    for n in range(150):
        value, params, held, state = step(params, held, state, rlx.random.fold_in(keys[2], n))
        seen.append(float(value))
    assert np.mean(seen[-10:]) < 0.5 * seen[0]
    assert np.asarray(state["mean"]).any()
    made, after = forward(params, state, x, None, False)
    assert float(np.mean((np.asarray(made) - y) ** 2)) < 0.5 * seen[0] and after["mean"] is state["mean"]


@pytest.mark.parametrize("kept", ["all", "without biases", "one bias", "a half weight"])
def test_attention_of_many_rows_is_that_of_few(kept: str) -> None:
    """Many rows are multiplied by the joined weights, where those can be joined."""
    params = nn.attention_init(KEY, 12, 6, 2, bias=kept != "without biases", dtype="f64")
    if kept == "one bias":
        del params["k"]["bias"]
    elif kept == "a half weight":
        params["v"]["weight"] = np.asarray(params["v"]["weight"]).astype(np.float16)
    x = np.random.default_rng(0).standard_normal((64, 16, 12))

    def loss(params: Any, x: Any) -> Any:
        y = nn.attention(params, x, 6, causal=True)
        return rlx.sum(rlx.sin(y)), y

    of: Any = rlx.value_and_grad(loss, has_aux=True)
    (_, whole), gradient = of(params, x)
    parts = [of(params, part) for part in np.split(x, 2)]
    np.testing.assert_allclose(whole, np.concatenate([y for (_, y), _ in parts]), rtol=1e-12, atol=1e-12)
    total = rlx.tree.map(lambda a, b: np.asarray(a, np.float64) + np.asarray(b, np.float64), *(g for _, g in parts))
    exact = 1e-3 if kept == "a half weight" else 1e-12
    for a, b in zip(rlx.tree.leaves(gradient), rlx.tree.leaves(total), strict=True):
        np.testing.assert_allclose(a, b, rtol=exact, atol=exact * 100)


def test_attention_takes_lists_as_linear_does() -> None:
    params = nn.attention_init(KEY, 12, 6, 2)
    x = np.random.default_rng(1).standard_normal((64, 16, 12)).astype(np.float32)
    expected = nn.attention(params, x, 6)
    listed = rlx.tree.map(lambda a: np.asarray(a).tolist(), params)
    for found in (nn.attention(listed, x, 6), nn.attention(params, x.tolist(), 6)):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_joined_weights_refuse_what_layers_refuse() -> None:
    params = nn.attention_init(KEY, 12, 6, 2)
    params["q"]["bias"], params["k"]["bias"] = params["k"]["bias"], params["q"]["bias"]
    with pytest.raises(ShapeError):
        nn.attention(params, np.ones((64, 16, 12), np.float32), 6)


def test_bad_layers_say_what_was_expected() -> None:
    x = np.ones((2, 4), np.float32)
    norm, state = nn.batch_norm_init(4)
    refused = [
        (ShapeError, "n_in is 0", lambda: nn.linear_init(KEY, 0, 3)),
        (ShapeError, "n_out is 2.5", lambda: nn.linear_init(KEY, 2, 2.5)),  # type: ignore[arg-type]
        (ShapeError, "no multiples of 2 groups", lambda: nn.conv_init(KEY, 3, 4, 3, groups=2)),
        (ShapeError, "multiples, each of the next", lambda: nn.attention_init(KEY, 12, 5)),
        (ShapeError, "expected .out, in, …", lambda: nn.xavier_normal(KEY, (3,), "f32")),
        (GraphError, "mode 'fan'", lambda: nn.variance_scaling(1.0, "fan", "normal")),  # type: ignore[arg-type]
        (GraphError, "have no 'weight'.*parameters come first", lambda: nn.linear(x, {"weight": x})),  # type: ignore[arg-type]
        (GraphError, "have no 'mean'", lambda: nn.batch_norm(norm, {}, x, True)),
        (ShapeError, "more than one value a channel", lambda: nn.batch_norm(norm, state, x[:1], True)),
        (ShapeError, 'padding="same" with stride 2',
         lambda: nn.conv(nn.conv_init(KEY, 2, 2, 3, axes=1), np.ones((1, 2, 8), np.float32), 2, "same")),
        (ShapeError, "expected .length, batch, n_in.", lambda: nn.lstm(nn.lstm_init(KEY, 4, 3), x)),
        (DTypeError, "the key is None", lambda: nn.dropout(None, x, 0.1)),
    ]  # fmt: skip
    for error, text, call in refused:
        with pytest.raises(error, match=text):
            call()
