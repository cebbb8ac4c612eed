"""Losses and fake quantization as users call them, against torch; and the errors of the norm family."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from rlx.autodiff import gradients
from rlx.conformance.oracle import evaluate
from rlx.dtypes import f16, f64
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Graph
from tests.outside import outside


@pytest.fixture
def torch() -> Any:
    """Imported by the first test: it takes seconds, also of runs that select none of these."""
    return outside("torch")


def _both(build: Any, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The value of a function and its gradient."""
    g = Graph()
    t = g.input("x", x.shape, f64)
    y = build(t)
    seed = g.constant(np.arange(1, y.size + 1, dtype=np.float64).reshape(y.shape))
    (d,) = gradients(y, [t], seed)
    values = evaluate(g, {"x": x})
    return values[y.id], values[d.id]


@pytest.mark.judged
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("axis", [1, -1])
def test_cross_entropy_is_torchs(torch: Any, reduction: Any, axis: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 6, 5) if axis == 1 else (4, 5, 6))
    labels = rng.integers(0, 6, (4, 5))
    labels[1, 2:] = -100
    got, grad = _both(lambda t: rlx.cross_entropy(t, labels, axis=axis, reduction=reduction), x)
    leaf = torch.tensor(x, requires_grad=True)
    logits = leaf if axis == 1 else leaf.movedim(-1, 1)
    want = torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels), reduction=reduction)
    seed = torch.arange(1, want.numel() + 1, dtype=torch.float64).reshape(want.shape)
    (slope,) = torch.autograd.grad(want, leaf, seed)
    np.testing.assert_allclose(got, want.detach().numpy(), rtol=1e-12)
    np.testing.assert_allclose(grad, slope.numpy(), rtol=1e-10, atol=1e-14)


def test_all_labels_ignored() -> None:
    x = np.ones((2, 3))
    labels = np.full(2, -100)
    mean, _ = _both(lambda t: rlx.cross_entropy(t, labels), x)
    assert np.isnan(mean)
    loss, grad = _both(lambda t: rlx.cross_entropy(t, labels, reduction="none"), x)
    np.testing.assert_array_equal(loss, 0)
    np.testing.assert_array_equal(grad, 0)


@pytest.mark.judged
@pytest.mark.parametrize("signed, narrow, bits", [(True, True, 8), (True, False, 4), (False, False, 8)])
@pytest.mark.parametrize("axis", [None, 1])
@pytest.mark.parametrize("asymmetric", [False, True])
def test_fake_quantize_is_torchs(
    torch: Any, signed: bool, narrow: bool, bits: int, axis: int | None, asymmetric: bool
) -> None:
    rng = np.random.default_rng(bits)
    x = (rng.standard_normal((3, 5, 7)) * 4).astype(np.float32)
    n = 1 if axis is None else 5
    scale = (rng.random(n) * 0.1 + 0.01).astype(np.float32)
    zero = rng.integers(0, 7, n).astype(np.int32) if asymmetric else np.zeros(n, np.int32)
    low = (-(2 ** (bits - 1)) if signed else 0) + narrow
    high = 2 ** (bits - 1) - 1 if signed else 2**bits - 1
    leaf = torch.tensor(x, requires_grad=True)
    s, z = torch.from_numpy(scale), torch.from_numpy(zero)
    if axis is None:
        want = torch.fake_quantize_per_tensor_affine(leaf, s, z, low, high)
    else:
        want = torch.fake_quantize_per_channel_affine(leaf, s, z, axis, low, high)
    (slope,) = torch.autograd.grad(want, leaf, torch.ones_like(want))
    g = Graph()
    t = g.input("x", x.shape)
    y = rlx.fake_quantize(t, scale, zero if asymmetric else None, bits=bits, signed=signed, narrow=narrow, axis=axis)
    (d,) = gradients(y, [t], g.constant(np.ones(x.shape, np.float32)))
    values = evaluate(g, {"x": x}, upcast=False)
    np.testing.assert_array_equal(values[y.id], want.detach().numpy())
    np.testing.assert_array_equal(values[d.id], slope.numpy())
    assert 0 < np.mean(values[d.id]) < 1


@pytest.mark.judged
def test_residual_norms_give_both(torch: Any) -> None:
    rng = np.random.default_rng(4)
    x, r, w = rng.standard_normal((3, 8)), rng.standard_normal((3, 8)), rng.standard_normal(8)
    g = Graph()
    given = [g.input(n, a.shape, f64) for n, a in (("x", x), ("r", r), ("w", w))]
    total, y = rlx.add_rms_norm(*given, eps=0.1)
    s2, y2 = rlx.add_layer_norm(*given, given[2])
    values = evaluate(g, {"x": x, "r": r, "w": w})
    np.testing.assert_array_equal(values[total.id], x + r)
    np.testing.assert_array_equal(values[s2.id], x + r)
    wide = torch.from_numpy(x + r)
    want = torch.nn.functional.rms_norm(wide, (8,), torch.from_numpy(w), 0.1)
    np.testing.assert_allclose(values[y.id], want.numpy(), rtol=1e-12)
    want = torch.nn.functional.layer_norm(wide, (8,), torch.from_numpy(w), torch.from_numpy(w), 1e-5)
    np.testing.assert_allclose(values[y2.id], want.numpy(), rtol=1e-12)


def test_what_is_refused() -> None:
    g = Graph()
    x, c, one = g.input("x", (2, 6, 4)), g.input("c", (6,)), g.input("one", (4,))
    n, flat = g.input("n", (2, 6, 4), "i32"), g.input("flat", (7,))
    with pytest.raises(ShapeError, match=r"group_norm: 6 channels of \(2, 6, 4\) do not fall into 4 groups"):
        rlx.group_norm(x, 4, c, c)
    with pytest.raises(ShapeError, match=r"group_norm: gamma is \(4,\); expected \(6,\)"):
        rlx.group_norm(x, 2, one, c)
    with pytest.raises(ShapeError, match=r"layer_norm_channels: the input is \(7,\)"):
        rlx.layer_norm_channels(flat, flat, flat)
    with pytest.raises(DTypeError, match=r"layer_norm_channels: eps is -1\.0"):
        rlx.layer_norm_channels(x, c, c, -1.0)
    with pytest.raises(ShapeError, match=r"batch_norm: var is \(4,\); expected \(6,\)"):
        rlx.batch_norm(x, c, c, c, one)
    with pytest.raises(ShapeError, match="batch_norm: the input is"):
        rlx.batch_norm(flat, flat, flat, flat, flat)
    with pytest.raises(ShapeError, match=r"add_layer_norm: x is .*the residual"):
        rlx.add_layer_norm(x, one, one, one)
    with pytest.raises(ShapeError, match=r"add_rms_norm: rms_norm: gamma is \(6,\)"):
        rlx.add_rms_norm(x, x, c)
    with pytest.raises(ShapeError, match="gradient is"):
        g.add("layer_norm_grad", (c, x, one), {"eps": 1e-5, "beta": None})
    with pytest.raises(DTypeError, match="beta is 'f32'"):
        g.add("rms_norm_grad", (x, x, one), {"eps": 1e-5, "beta": "f32"})
    with pytest.raises(ShapeError, match="softmax_grad: axis -1 is not normalized"):
        g.add("softmax_grad", (x, x), {"axis": -1})
    with pytest.raises(DTypeError, match="softmax_grad: the softmax must be a float"):
        g.add("softmax_grad", (n, n), {"axis": 1})


def test_what_the_losses_refuse() -> None:
    g = Graph()
    x = g.input("x", (2, 6))
    with pytest.raises(ShapeError, match=r"label 6 is none of the 6 classes 0 to 5, nor ignore_index -100"):
        rlx.cross_entropy(x, np.array([1, 6]))
    with pytest.raises(ShapeError, match=r"labels are \(3,\); expected \(2,\)"):
        rlx.cross_entropy(x, g.input("three", (3,), "i32"))
    with pytest.raises(DTypeError, match="labels are f32"):
        rlx.cross_entropy(x, g.input("floats", (2,)))
    with pytest.raises(DTypeError, match="reduction is 'total'"):
        rlx.cross_entropy(x, g.input("two", (2,), "i32"), reduction="total")  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="at least one class"):
        rlx.cross_entropy(g.input("none", (2, 0)), g.input("some", (2,), "i32"))
    assert rlx.cross_entropy(g.input("h", (2, 6), f16), g.input("l", (2,), "i64")).dtype.name == "f32"


def test_what_fake_quantize_refuses() -> None:
    g = Graph()
    x = g.input("x", (2, 6))
    with pytest.raises(ShapeError, match=r"scale is \(6,\) and axis None"):
        rlx.fake_quantize(x, np.ones(6))
    with pytest.raises(ShapeError, match=r"scale is \(6,\); expected \(2,\), axis 0"):
        rlx.fake_quantize(x, np.ones(6), axis=0)
    with pytest.raises(DTypeError, match="zero_point is f64"):
        rlx.fake_quantize(x, 0.1, np.array(0.5))
    with pytest.raises(DTypeError, match="bits is 1"):
        rlx.fake_quantize(x, 0.1, bits=1)
    with pytest.raises(DTypeError, match="low 3, high 3"):
        g.add("fake_quantize", (x, g.constant(np.float32(1))), {"low": 3, "high": 3})
