"""AdamW in 8 bits beside a float64 statement of its format, loss scaling beside torch's, f32 masters, averages, what a
step launches, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import rlx
from rlx import optim
from rlx.errors import DTypeError, GraphError, ShapeError
from tests.outside import outside

Array = npt.NDArray[Any]


def _values(signed: bool) -> Array:
    """The 256 values of the dynamic code in order: 7 decades, each cut into equal parts whose middles are values."""
    found = [0.0, 1.0]
    for i in range(7):
        edges = np.linspace(0.1, 1.0, (2**i if signed else 2 ** (i + 1)) + 1) * 10.0 ** (i - 6)
        middles = (edges[:-1] + edges[1:]) / 2
        found += [*middles, *(-middles if signed else [])]
    return np.sort(found)


def _nearest(x: Array, signed: bool) -> tuple[Array, Array]:
    """Codes and values: blocks of 256 scaled by their largest magnitude, the nearest value of each element."""
    blocks = np.concatenate([x.ravel(), np.zeros(-x.size % 256)]).reshape(-1, 256)
    scales = np.abs(blocks).max(1, keepdims=True)
    parts = blocks / np.where(scales > 0, scales, 1)
    values = _values(signed)
    codes = np.abs(parts[..., None] - values).argmin(-1)
    return codes, (values[codes] * scales).ravel()[: x.size].reshape(x.shape)


def _held(bits: Any, signed: bool, shape: tuple[int, ...]) -> Array:
    whole = _values(signed)[np.asarray(bits.codes)] * np.asarray(bits.scales, np.float64)
    return np.asarray(whole.ravel()[: int(np.prod(shape))].reshape(shape))


def test_8_bit_states_are_the_nearest_values_of_the_format() -> None:
    rng = np.random.default_rng(0)
    shape = (3, 700)
    g = (rng.standard_normal(shape) * 10.0 ** rng.uniform(-8, 2, shape)).astype(np.float32)
    g[0, :300] = 0
    opt = optim.adamw_8bit(1e-2, min_size=0, weight_decay=0.1)
    p, state = np.ones(shape, np.float32), opt.init(np.zeros(shape, np.float32))
    assert len(_values(True)) == len(_values(False)) == 256
    assert not _held(state.mu, True, shape).any() and not _held(state.nu, False, shape).any()
    update = rlx.jit(opt.update)
    m, v = np.zeros(shape), np.zeros(shape)
    for step in range(1, 4):
        move, state = update(g, state, p)
        m, v = 0.9 * m + 0.1 * g.astype("f8"), 0.999 * v + 0.001 * g.astype("f8") ** 2
        want = -1e-2 * (m / (1 - 0.9**step) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8) + 0.1 * p)
        np.testing.assert_allclose(move, want, rtol=2e-4, atol=1e-6)
        for bits, exact, signed in ((state.mu, m, True), (state.nu, v, False)):
            codes, values = _nearest(exact, signed)
            assert bits.codes.dtype == np.uint8 and bits.codes.shape == (9, 256) and bits.scales.shape == (9, 1)
            off = np.asarray(bits.codes, int) - codes
            # A number halfway between two values may round to either in f32.
            assert np.abs(off).max() <= 1 and (off != 0).mean() < 1e-3
            np.testing.assert_allclose(_held(bits, signed, shape), values, rtol=0.3, atol=1e-12)
        m, v = _held(state.mu, True, shape), _held(state.nu, False, shape)


def test_8_bit_adamw_lowers_the_loss_as_f32_does() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((2048, 32)).astype("f4"), rng.standard_normal((2048, 8)).astype("f4")
    params = {"w": rng.standard_normal((32, 32)).astype("f4") / 6, "v": rng.standard_normal((32, 8)).astype("f4") / 6}

    def loss(p: Any) -> Any:
        return rlx.mean((rlx.tanh(x @ p["w"]) @ p["v"] - y) ** 2)

    found = []
    for opt in (optim.adamw(3e-3), optim.adamw_8bit(3e-3, min_size=1024)):

        def step(p: Any, state: Any, opt: optim.Optimizer = opt) -> Any:
            value, g = rlx.value_and_grad(loss)(p)
            updates, state = opt.update(g, state, p)
            return value, optim.apply_updates(p, updates), state

        train = rlx.jit(step, donate=("p", "state"), out="device")
        p, state = params, opt.init(params)
        for _ in range(500):
            value, p, state = train(p, state)
        found.append(float(value))
    assert isinstance(state.mu["w"], optim.Bits8) and not isinstance(state.mu["v"], optim.Bits8)
    assert 0.1 < found[0] < 0.95 and abs(found[1] / found[0] - 1) < 0.01


def _scales(overflows: list[int], start: float, interval: int) -> tuple[list[float], Array]:
    opt = optim.scale_loss(optim.sgd(1.0), start, interval)
    update, p = rlx.jit(opt.update), np.zeros(2, np.float32)
    state, seen = opt.init(p), []
    for k, overflow in enumerate(overflows):
        g = np.array([float(state.scale), np.inf if overflow % 2 else np.nan], np.float32) if overflow else np.full(
            2, state.scale, np.float32)  # fmt: skip
        moved, state = update(g, state, p)
        np.testing.assert_array_equal(moved, [0.0, 0.0] if overflow else [-1.0, -1.0], err_msg=str(k))
        seen.append(float(state.scale))
    return seen, state.inner.count


@pytest.mark.judged
def test_the_loss_scale_is_torchs() -> None:
    torch = outside("torch")
    overflows = [0, 0, 1, 0, 0, 0, 0, 2, 1, 0]
    for start in (4.0, 2.0**127):
        scale, tracker, want = torch.tensor(start), torch.tensor(0, dtype=torch.int32), []
        for overflow in overflows:
            torch._amp_update_scale_(scale, tracker, torch.tensor(float(bool(overflow))), 2.0, 0.5, 2)
            want.append(float(scale))
        seen, steps = _scales(overflows, start, 2)
        assert seen == want
        assert steps == overflows.count(0)
    assert _scales([1, 1], 1.0, 2)[0] == [1.0, 1.0]  # torch's falls to 0, and stays there


def test_masters_add_up_steps_that_halves_would_lose() -> None:
    for dtype in ("bf16", "f16"):
        p = {"w": np.asarray(rlx.array(np.ones(3, np.float32)).astype(dtype))}
        opt = optim.scale_loss(optim.with_masters(optim.sgd(2.0**-12)))
        state = opt.init(p)
        small = np.asarray(rlx.array(np.full(3, 2.0**-10, np.float32)).astype(dtype))

        def step(p: Any, state: Any, g: Any = small, opt: optim.Optimizer = opt) -> Any:
            updates, state = opt.update({"w": rlx.cast(g * rlx.cast(state.scale, g.dtype), g.dtype)}, state, p)
            return optim.apply_updates(p, updates), state

        train = rlx.jit(step)
        for _ in range(8):
            p, state = train(p, state)
        masters = state.inner.weights["w"]
        np.testing.assert_array_equal(masters, np.full(3, 1 - 8 * 2.0**-22, np.float32))
        assert p["w"].dtype == small.dtype
        np.testing.assert_array_equal(p["w"], masters.astype(small.dtype))


def test_averages_are_their_definition() -> None:
    rng = np.random.default_rng(2)
    seen = rng.standard_normal((6, 4))
    for debias in (True, False):
        avg = optim.ema(0.9, debias)
        update, state, mean = rlx.jit(avg.update), avg.init({"w": seen[0]}), np.zeros(4)
        for k, value in enumerate(seen, 1):
            shown, state = update({"w": value}, state)
            mean = 0.9 * mean + 0.1 * value
            np.testing.assert_allclose(shown["w"], mean / (1 - 0.9**k if debias else 1), rtol=1e-13)
    np.testing.assert_allclose(optim.incremental_update(seen[0], seen[1], 0.1), 0.1 * seen[0] + 0.9 * seen[1])


@pytest.mark.parametrize(
    "opt, fixed", [(optim.sgd(0.1, 0.9), 1), (optim.adamw(1e-3), 1), (optim.lion(1e-3), 1), (optim.adamw_8bit(1e-3), 1)]
)
def test_a_step_launches_once_for_each_small_parameter_and_copies_nothing(opt: optim.Optimizer, fixed: int) -> None:
    params = {f"p{i}": np.ones(8 + i, np.float32) for i in range(6)}

    def step(params: Any, state: Any) -> Any:
        updates, state = opt.update(rlx.tree.map(lambda p: p * 2 + 1, params), state, params)
        return optim.apply_updates(params, updates), state

    train = rlx.jit(step, donate=("params", "state"), out="device")
    train(params, opt.init(params))
    program = train.report()
    nodes = [line for line in str(program).splitlines() if line.startswith("  native")]
    assert len(nodes) == len(params) + fixed
    assert "arena 0 bytes" in str(program) or "arena 512 bytes" in str(program)  # the two corrections of adamw


def test_bad_settings_and_trees_say_what_was_expected() -> None:
    w = np.ones((2, 3), np.float32)
    with pytest.raises(ShapeError, match="max_norm is nan"):
        optim.clip_by_global_norm(float("nan"))
    with pytest.raises(ShapeError, match=r"b2 is 1\.0; expected a number of at least 0, below 1"):
        optim.adamw(1e-3, b2=1.0)
    with pytest.raises(ShapeError, match="learning_rate is -1"):
        optim.sgd(-1)
    with pytest.raises(ShapeError, match=r"decay is 1\.5"):
        optim.ema(1.5)
    with pytest.raises(ShapeError, match="growth_interval is 0"):
        optim.scale_loss(optim.sgd(0.1), growth_interval=0)
    with pytest.raises(ShapeError, match="min_size is -1"):
        optim.adamw_8bit(1e-3, min_size=-1)
    for opt in (optim.with_masters(optim.sgd(0.1)), optim.ema(0.9), optim.adamw_8bit(1e-3)):
        with pytest.raises(DTypeError, match="parameters are floats"):
            opt.init({"n": np.arange(3)})
    for opt in (optim.sgd(0.1, 0.9), optim.ema(0.9), optim.accumulate(optim.sgd(0.1), 2)):
        with pytest.raises(GraphError, match=r"the state .*one structure"):
            rlx.jit(opt.update)({"v": w}, opt.init({"w": w}))
    masters = optim.with_masters(optim.sgd(0.1))
    for opt in (optim.adamw(1e-3), optim.lion(1e-3), optim.muon(1e-3), optim.adafactor(), masters):
        with pytest.raises(ShapeError, match=r"gradient 0 is \(3,\) and its place in params \(2, 3\)"):
            rlx.jit(opt.update)({"w": w[0]}, opt.init({"w": w}), {"w": w})
