"""Functions of arrays of a length n, and their results by NumPy in float64, computed without any padding.

In `poisoned` arrays the zeros that padding consists of become NaN, which no result may show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import rlx

Array = Any
DIM = rlx.Dim("n", max=16)


@dataclass(frozen=True)
class Network:
    """`function` on arrays of a length (`arrays`), with the axes `dims`; `oracle` on these arrays in float64."""

    function: Callable[..., Any]
    oracle: Callable[..., Any]
    arrays: Callable[[np.random.Generator, int], tuple[Any, ...]]
    dims: dict[str, Any]


def poisoned(x: Any) -> Any:
    return x / rlx.cast(rlx.not_equal(x, 0), x.dtype)


def softmax(x: Array, axis: int = -1) -> Array:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def norm(x: Array) -> Array:
    c = x - x.mean(-1, keepdims=True)
    return c / np.sqrt((c * c).mean(-1, keepdims=True) + 1e-5)


def _heads(x: Any) -> Any:
    return x.reshape(x.shape[0], x.shape[1], 2, 4).transpose(0, 2, 1, 3)


def _attended(x: Array, causal: bool) -> Array:
    h = _heads(norm(x))
    scores = h @ h.swapaxes(-1, -2) / 2
    if causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    return (softmax(scores) @ h).transpose(0, 2, 1, 3).reshape(x.shape) + x


def _attention(x: Any, causal: bool) -> Any:
    x = poisoned(x)
    h = rlx.layer_norm(x, np.ones(8, np.float32), np.zeros(8, np.float32))
    q = rlx.transpose(rlx.reshape(h, (*x.shape[:2], 2, 4)), (0, 2, 1, 3))
    y = rlx.attention(q, q, q, causal=causal)
    y = rlx.reshape(rlx.transpose(y, (0, 2, 1, 3)), x.shape) + x
    return y, rlx.mean(y, axis=1)


def _loss(w: Any, x: Any, y: Any) -> Any:
    h = rlx.tanh(poisoned(x) @ w["a"] + w["b"])
    return rlx.mean((h @ w["c"] - y) ** 2)


def _loss_gradient(w: Any, x: Array, y: Array) -> Any:
    h = np.tanh(x @ w["a"] + w["b"])
    d = 2 * (h @ w["c"] - y) / y.size
    dh = d @ w["c"].T * (1 - h * h)
    return {"a": x.T @ dh, "b": dh.sum(0), "c": h.T @ d}


def _conv(x: Any, w: Any) -> Any:
    h = rlx.relu(rlx.conv(poisoned(x), w, pads=1))
    return rlx.mean(rlx.max_pool(h, 2), axis=(2, 3))


def _conv_oracle(x: Array, w: Array) -> Array:
    x = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    seen = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))
    h = np.maximum(np.einsum("nchwij,kcij->nkhw", seen, w), 0)
    n, k, height, width = h.shape
    return h.reshape(n, k, height // 2, 2, width // 2, 2).max((3, 5)).mean((2, 3))


def _in_time(x: Any, w: Any) -> Any:
    """A strided convolution along the axis of unknown length: its windows end in zeros."""
    h = rlx.conv(poisoned(x), w, pads=1, strides=2)
    return h, rlx.mean(h, axis=2)


def _in_time_oracle(x: Array, w: Array) -> Any:
    seen = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (0, 0), (1, 1))), 3, 2)[:, :, ::2]
    h = np.einsum("nctj,kcj->nkt", seen, w)
    return h, h.mean(2)


def _along(x: Any) -> Any:
    p = poisoned(x)
    flat = rlx.reshape(p, (-1, 4))
    return (
        rlx.cumsum(p, axis=1), rlx.cumsum(p, axis=1, reverse=True), rlx.argmax(p, axis=1), rlx.argmin(flat, axis=0),
        rlx.softmax(p, axis=1), rlx.logsumexp(p, axis=1), rlx.sort(p, axis=1), rlx.sort(p, axis=1, descending=True),
        rlx.argsort(p, axis=1), rlx.max(p, axis=1), rlx.min(flat, axis=0), p[:, -1], rlx.flip(p, 1),
        rlx.concat([p, p * 2], axis=1), rlx.matmul(rlx.transpose(p, (0, 2, 1)), p), rlx.cumsum(flat, axis=0),
        p * np.log(x.shape[1]), rlx.sum(p, axis=1) / x.shape[1], rlx.pad(p, ((0, 0), (2, 1), (0, 0)), value=3.0),
        rlx.mean((p - rlx.mean(p)) ** 2), rlx.roll(p, 1, 1), rlx.cumprod(p, axis=1, exclusive=True),
    )  # fmt: skip


def _along_oracle(x: Array) -> Any:
    flat = x.reshape(-1, 4)
    return (
        x.cumsum(1), np.flip(np.flip(x, 1).cumsum(1), 1), x.argmax(1), flat.argmin(0), softmax(x, 1),
        np.log(np.exp(x).sum(1)), np.sort(x, 1), np.flip(np.sort(x, 1), 1), np.argsort(x, 1), x.max(1), flat.min(0),
        x[:, -1], np.flip(x, 1), np.concatenate([x, 2 * x], 1), x.swapaxes(1, 2) @ x, flat.cumsum(0),
        x * np.log(x.shape[1]), x.mean(1), np.pad(x, ((0, 0), (2, 1), (0, 0)), constant_values=3.0), x.var(),
        np.roll(x, 1, 1), np.concatenate([np.ones_like(x[:, :1]), x.cumprod(1)[:, :-1]], 1),
    )  # fmt: skip


def _recurrent(x: Any, w: Any) -> Any:
    """x (batch, time, 4): the last state of a scan and its rows, and the gradient of w through it."""

    def scanned(w: Any) -> Any:
        start = rlx.expand(rlx.sum(w) * 0, (x.shape[0], 4))
        rows = rlx.transpose(poisoned(x), (1, 0, 2))
        return rlx.scan(lambda h, r: ((h := rlx.tanh(h @ w + r)), h * 2), start, rows)

    return *scanned(w), rlx.grad(lambda w: rlx.mean(scanned(w)[0] ** 2))(w)


def _recurrent_oracle(x: Array, w: Array) -> Any:
    states = [np.zeros((len(x), 4))]
    for row in x.swapaxes(0, 1):
        states.append(np.tanh(states[-1] @ w + row))
    d, dw = 2 * states[-1] / states[-1].size, np.zeros_like(w)
    for before, h in zip(states[-2::-1], states[:0:-1], strict=True):
        d = d * (1 - h * h)
        dw, d = dw + before.T @ d, d @ w.T
    return states[-1], 2 * np.stack(states[1:]), dw


def _controlled(x: Any) -> Any:
    """A loop that ends by a sum over the length, and a branch that is chosen by one."""
    x = poisoned(x)
    grown = rlx.while_loop(lambda c: rlx.sum(c * c) < 100.0, lambda c: c * 1.5 + rlx.mean(c), x)
    return grown, rlx.cond(rlx.sum(x) > 0, lambda: rlx.mean(x, axis=0), lambda: rlx.max(x, axis=0))


def _controlled_oracle(x: Array) -> Any:
    chosen, grown = x.mean(0) if x.sum() > 0 else x.max(0), x
    while (grown * grown).sum() < 100:
        grown = grown * 1.5 + grown.mean()
    return grown, chosen


def _embedding_gradient(e: Array, i: Array) -> Array:
    d = np.zeros_like(e)
    rows = e[i].mean(1) * 2 / i.shape[1] / (i.shape[0] * e.shape[1])
    np.add.at(d, i, np.repeat(rows[:, None], i.shape[1], 1))
    return d


def _floats(*shapes: tuple[int, ...]) -> Callable[[np.random.Generator, int], tuple[Any, ...]]:
    """Arrays of these shapes, in which -1 is the length."""

    def made(rng: np.random.Generator, n: int) -> tuple[Any, ...]:
        return tuple(
            rng.standard_normal([n if k == -1 else k for k in shape], dtype=np.float32) for shape in shapes
        )

    return made


def _weights(rng: np.random.Generator, n: int) -> tuple[Any, ...]:
    a, b, c, x, y = _floats((5, 6), (6,), (6, 3), (-1, 5), (-1, 3))(rng, n)
    return {"a": a, "b": b, "c": c}, x, y


def _ids(rng: np.random.Generator, n: int) -> tuple[Any, ...]:
    return _floats((7, 4))(rng, n)[0], rng.integers(0, 7, (3, n)).astype(np.int32)


NETWORKS = {
    "perceptron": Network(
        lambda x, w, v: rlx.softmax(rlx.relu(poisoned(x) @ w) @ v),
        lambda x, w, v: softmax(np.maximum(x @ w, 0) @ v),
        _floats((-1, 5), (5, 6), (6, 3)),
        {"x": (DIM, None)},
    ),
    "mean over a sequence": Network(
        lambda x: rlx.mean(poisoned(x), axis=1), lambda x: x.mean(1), _floats((3, -1, 4)), {"x": (None, DIM)}
    ),
    "attention over a sequence": Network(
        lambda x: _attention(x, False),
        lambda x: (_attended(x, False), _attended(x, False).mean(1)),
        _floats((2, -1, 8)),
        {"x": {1: DIM}},
    ),
    "causal attention": Network(
        lambda x: _attention(x, True),
        lambda x: (_attended(x, True), _attended(x, True).mean(1)),
        _floats((2, -1, 8)),
        {"x": {1: DIM}},
    ),
    "attention of a batch": Network(
        lambda x: _attention(x, True)[0], lambda x: _attended(x, True), _floats((-1, 5, 8)), {"x": DIM}
    ),
    "convolutions of a batch": Network(
        _conv, _conv_oracle, _floats((-1, 3, 6, 6), (4, 3, 3, 3)), {"x": (DIM,)}
    ),
    "convolution along the length": Network(
        _in_time, _in_time_oracle, _floats((2, 3, -1), (4, 3, 3)), {"x": (None, None, DIM)}
    ),
    "gradient of a mean loss": Network(
        lambda w, x, y: rlx.grad(_loss)(w, x, y), _loss_gradient, _weights, {"x": (DIM,), "y": ("n",)}
    ),
    "gradient of an embedding": Network(
        lambda e, i: rlx.grad(lambda e: rlx.mean(rlx.mean(rlx.gather(e, i), axis=1) ** 2))(e),
        _embedding_gradient,
        _ids,
        {"i": (None, DIM)},
    ),
    "recurrence over a batch": Network(
        _recurrent, _recurrent_oracle, _floats((-1, 3, 4), (4, 4)), {"x": (DIM,)}
    ),
    "recurrence over the length": Network(
        _recurrent, _recurrent_oracle, _floats((2, -1, 4), (4, 4)), {"x": (None, DIM)}
    ),
    "a loop and a branch": Network(_controlled, _controlled_oracle, _floats((-1, 4)), {"x": (DIM,)}),
    "ops along the length": Network(_along, _along_oracle, _floats((3, -1, 4)), {"x": (None, DIM)}),
}
