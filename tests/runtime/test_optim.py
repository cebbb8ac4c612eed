"""Optimizers over 100 steps in float64 beside torch's, and beside what optax makes (optax_steps.json)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import rlx
from rlx import optim
from rlx.errors import DTypeError, GraphError, ShapeError
from tests.devices import device_here
from tests.outside import outside
from tests.runtime.optax_steps import STEPS, problem

PARAMS, X, Y = problem()
OPTAX = json.loads(Path(__file__).with_name("optax_steps.json").read_text(encoding="utf-8"))


def _loss(p: Any) -> Any:
    return rlx.mean((rlx.tanh(X @ p["w"] + p["b"]) @ p["t"] - Y) ** 2)


def _steps(optimizer: optim.Optimizer, params: Any = PARAMS, steps: int = STEPS) -> Any:
    def step(params: Any, state: Any) -> Any:
        updates, state = optimizer.update(rlx.grad(_loss)(params), state, params)
        return optim.apply_updates(params, updates), state

    jitted = rlx.jit(step, donate=("params",), out="device")
    state = optimizer.init(params)
    for _ in range(steps):
        params, state = jitted(params, state)
    return {k: np.asarray(v) for k, v in params.items()}


TORCH = {
    "SGD": (optim.sgd(0.1), {"lr": 0.1}),
    "SGD momentum": (optim.sgd(0.1, 0.9), {"lr": 0.1, "momentum": 0.9}),
    "SGD nesterov": (optim.sgd(0.1, 0.9, nesterov=True), {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "Adam": (optim.adam(1e-2), {"lr": 1e-2}),
    "AdamW": (optim.adamw(1e-2, weight_decay=0.1), {"lr": 1e-2, "weight_decay": 0.1}),
    "Adafactor": (optim.adafactor(1e-2, weight_decay=0.1), {"lr": 1e-2, "weight_decay": 0.1}),
}


@pytest.mark.judged
@pytest.mark.parametrize("name", TORCH)
def test_steps_are_torchs(name: str) -> None:
    torch = outside("torch")
    optimizer, options = TORCH[name]
    leaves = {k: torch.tensor(v, requires_grad=True) for k, v in PARAMS.items()}
    theirs = getattr(torch.optim, name.split()[0])(list(leaves.values()), **options)
    x, y = torch.tensor(X), torch.tensor(Y)
    for _ in range(STEPS):
        theirs.zero_grad()
        ((torch.tanh(x @ leaves["w"] + leaves["b"]) @ leaves["t"] - y) ** 2).mean().backward()
        theirs.step()
    mine = _steps(optimizer)
    for key, leaf in leaves.items():
        np.testing.assert_allclose(mine[key], leaf.detach().numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "name, optimizer",
    {
        "lion": optim.lion(1e-2, weight_decay=0.1),
        "muon": optim.muon(1e-2, weight_decay=0.1),
        "clipped adamw": optim.chain(optim.clip_by_global_norm(0.1), optim.adamw(1e-2)),
    }.items(),
)
def test_steps_are_optaxs(name: str, optimizer: optim.Optimizer) -> None:
    mine = _steps(optimizer)
    for key, value in OPTAX[name].items():
        np.testing.assert_allclose(mine[key], value, rtol=1e-12, atol=1e-12)


def test_decay_by_group_and_schedules() -> None:
    only = optim.adamw(0.1, weight_decay=0.5, mask=lambda params: {k: v.ndim > 1 for k, v in params.items()})
    zero = {k: np.zeros_like(v) for k, v in PARAMS.items()}
    updates = rlx.jit(lambda g, s, p: only.update(g, s, p)[0])(zero, only.init(PARAMS), PARAMS)
    np.testing.assert_allclose(updates["w"], -0.05 * PARAMS["w"], rtol=1e-14)
    assert not updates["b"].any()
    bent = rlx.jit(optim.warmup_cosine_decay_schedule(0.0, 1e-2, 10, 80, 1e-3))
    for n in (0, 4, 10, 45, 80, 99):
        cosine = 0.5 * (1 + np.cos(np.pi * min(1.0, max(0, n - 10) / 70)))
        want = n * 1e-3 if n < 10 else 1e-3 + (1e-2 - 1e-3) * cosine
        np.testing.assert_allclose(bent(np.int32(n)), want, rtol=1e-13, atol=0)
    line = rlx.jit(optim.linear_schedule(1.0, 0.0, 4))
    assert [float(line(np.int32(n))) for n in (0, 1, 4, 9)] == [1.0, 0.75, 0.0, 0.0]


def test_accumulate_steps_with_the_mean() -> None:
    opt = optim.accumulate(optim.sgd(0.5, 0.9), 3)
    update = rlx.jit(opt.update)
    gradients = [np.array([1.0, n]) for n in range(6)]
    state, seen = opt.init(gradients[0]), []
    for g in gradients:
        u, state = update(g, state)
        seen.append(u)
    first, second = np.mean(gradients[:3], 0), np.mean(gradients[3:], 0)
    want = [0 * first, 0 * first, -0.5 * first, 0 * first, 0 * first, -0.5 * (0.9 * first + second)]
    np.testing.assert_allclose(seen, want, rtol=1e-14)


@pytest.mark.parametrize("masters", [False, True])
def test_gradients_of_halves_are_added_up_in_f32(masters: bool) -> None:
    """1 + 8 · 2⁻⁹: a sum in bf16, whose place at 1 is 2⁻⁷, would stay 1."""
    gradients = [np.full(2, v, ml_dtypes.bfloat16) for v in (1.0, *(2.0**-9,) * 8)]
    inner = optim.with_masters(optim.sgd(1.0)) if masters else optim.sgd(1.0)
    opt, params = optim.accumulate(inner, 9), np.zeros(2, ml_dtypes.bfloat16)
    update, state = rlx.jit(opt.update, device="cpu"), opt.init(params)
    for g in gradients:
        updates, state = update(g, state, params)
    mean = (1 + 2.0**-6) / 9
    np.testing.assert_allclose(np.asarray(updates, np.float64), -mean, rtol=1e-6 if masters else 2.0**-9)
    if masters:
        np.testing.assert_allclose(state.inner.weights, -mean, rtol=1e-6)


def test_the_first_steps_of_adam_in_f32_are_those_of_float64() -> None:
    """The corrections 1 - b2**n of small n keep all digits: as a difference they had three."""
    g = np.array([0.3, -2.0, 1e-3])
    optimizer = optim.adam(1.0)
    p, state, m, v = np.zeros(3, np.float32), optimizer.init(np.zeros(3, np.float32)), np.zeros(3), np.zeros(3)
    for n in range(1, 4):
        updates, state = rlx.jit(optimizer.update, device="cpu")(g.astype(np.float32) * n, state, p)
        m, v = 0.9 * m + 0.1 * g * n, 0.999 * v + 0.001 * (g * n) ** 2
        want = -m / (1 - 0.9**n) / (np.sqrt(v / (1 - 0.999**n)) + 1e-8)
        np.testing.assert_allclose(updates, want, rtol=5e-7)


def test_a_step_in_f32_keeps_its_dtypes_and_lowers_the_loss() -> None:
    small = {k: v.astype(np.float32) for k, v in PARAMS.items()}
    after = _steps(optim.adamw(1e-2), small, 30)
    assert all(v.dtype == np.float32 for v in after.values())
    loss = rlx.jit(_loss)
    assert loss(after) < loss(small)


@pytest.mark.parametrize("name", ["f2", "f4", "f8"])
def test_states_and_updates_keep_their_types_in_a_trace_and_outside(name: str) -> None:
    params = {"w": np.ones((2, 3), name), "b": np.ones(3, name)}
    gradients = {"w": np.full((2, 3), 0.5, name), "b": np.ones(3, name)}
    twice = optim.accumulate(optim.sgd(0.1), 2)
    for opt in (optim.adam(0.1), optim.adafactor(), optim.lion(0.1), optim.muon(0.1), twice):
        state = opt.init(params)
        updates, after = rlx.jit(opt.update)(gradients, state, params)
        at_once = opt.update(gradients, state, params)[0]
        np.testing.assert_allclose(np.asarray(at_once["w"], "f8"), np.asarray(updates["w"], "f8"), rtol=1e-2)
        moved = rlx.jit(optim.apply_updates)(params, updates)
        assert moved["w"].dtype == params["w"].dtype
        assert [x.dtype for x in rlx.tree.leaves(after)] == [x.dtype for x in rlx.tree.leaves(state)]


def test_refusals_say_what_was_expected() -> None:
    opt = optim.adamw(1e-3)
    with pytest.raises(DTypeError, match="parameters are floats"):
        opt.init({"n": np.arange(3)})
    with pytest.raises(GraphError, match="needs params"):
        rlx.jit(lambda g: opt.update(g, opt.init(PARAMS))[0])(PARAMS)
    with pytest.raises(GraphError, match="one structure"):
        rlx.jit(lambda g, p: opt.update(g, opt.init(p), p)[0])({"w": PARAMS["w"]}, PARAMS)


def _many() -> dict[str, Any]:
    """As many parameters as a language model of six layers has, in five sizes."""
    rng = np.random.default_rng(3)
    shapes = [(8, 24), (24,), (8, 8), (8,), (8, 32), (32,), (8,), (8,)]
    return {f"{i}.{k}": rng.standard_normal(s).astype(np.float32) for i in range(6) for k, s in enumerate(shapes)}


def _first_move(name: str, g: Any, norm: float) -> Any:
    """The first step from g, whose gradient is g too, in float64."""
    if name == "lion":
        return g - 1e-3 * (np.sign(g) + 1e-3 * g)
    scaled = g / max(1.0, norm) if name == "clipped adamw" else g
    return g - 1e-3 * (scaled / (np.abs(scaled) + 1e-8) + 1e-4 * g)


@pytest.mark.parametrize(
    "name, optimizer, launches",
    [
        ("adamw", optim.adamw(1e-3), 8),
        ("lion", optim.lion(1e-3), 14),
        ("clipped adamw", optim.chain(optim.clip_by_global_norm(1.0), optim.adamw(1e-3)), 19),
    ],
)
def test_small_parameters_take_few_launches(name: str, optimizer: optim.Optimizer, launches: int) -> None:
    def step(params: Any, state: Any, gradients: Any) -> Any:
        updates, state = optimizer.update(gradients, state, params)
        return optim.apply_updates(params, updates), state

    params = _many()
    jitted = rlx.jit(step, device=device_here("vulkan").info.id, donate=("params", "state"))
    moved, _ = jitted(params, optimizer.init(params), params)
    report = jitted.report()[-1]
    assert sum(len(d.steps) for d in report) <= launches
    norm = np.sqrt(sum(np.sum(p.astype(np.float64) ** 2) for p in params.values()))
    for key, p in params.items():
        np.testing.assert_allclose(moved[key], _first_move(name, p.astype(np.float64), norm), rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize(
    "name, optimizer, launches", [("adafactor", optim.adafactor(), 92), ("muon", optim.muon(1e-3), 125)]
)
@pytest.mark.parametrize("device", ["cpu", "vulkan"])
def test_parameters_of_a_size_share_launches_and_move_as_alone(
    name: str, optimizer: optim.Optimizer, launches: int, device: str
) -> None:
    """The reductions and products of equally large parameters are few launches; each moves as it does alone, by Muon up
    to the rounding of products, which a device may sum in another order for a stack."""

    def step(params: Any, state: Any, gradients: Any) -> Any:
        updates, state = optimizer.update(gradients, state, params)
        return optim.apply_updates(params, updates), state

    params = _many() | {"scale": np.float32(0.5), "kernels": np.ones((2, 3, 4), np.float32)}
    jitted = rlx.jit(step, device=device_here(device).info.id)
    moved, state = jitted(params, optimizer.init(params), params)
    if device == "vulkan":
        assert sum(len(d.steps) for d in jitted.report()[-1]) <= launches
    for key in ("0.0", "5.0", "3.1", "2.4", "scale", "kernels"):
        own = {key: params[key]}
        alone, own_state = jitted(own, optimizer.init(own), own)
        among = {key: moved[key]}, [{key: t[key]} for t in state[1:]]
        for ours, theirs in zip(rlx.tree.leaves((alone, own_state[1:])), rlx.tree.leaves(among), strict=True):
            if name == "muon":
                np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6, strict=True)
            else:
                np.testing.assert_array_equal(ours, theirs, strict=True)


def test_parameters_beyond_the_limit_come_in_several_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    params = {str(i): np.full((4, 4), i + 1.0) + np.eye(4) for i in range(5)}
    for optimizer in (optim.adafactor(), optim.muon(1e-3)):
        whole = optimizer.update(params, optimizer.init(params), params)[0]
        monkeypatch.setattr(optim, "_STACKED", 40)
        parts = optimizer.update(params, optimizer.init(params), params)[0]
        monkeypatch.undo()
        for key in params:
            np.testing.assert_allclose(whole[key], parts[key], rtol=1e-12)  # BLAS may sum a stack in another order.


def test_global_norm_of_many_arrays_of_several_dtypes() -> None:
    rng = np.random.default_rng(4)
    arrays = [rng.standard_normal((3, n)).astype(t) for n in range(1, 9) for t in ("f4", "f8", "f2")]
    arrays.append(rng.standard_normal(70_000).astype(np.float32))
    want = np.sqrt(sum(float(np.sum(a.astype(np.float64) ** 2)) for a in arrays))
    np.testing.assert_allclose(float(np.asarray(optim.global_norm(arrays))), want, rtol=1e-6)


@pytest.mark.parametrize("make", [optim.sgd, optim.adamw, optim.lion, optim.adafactor, optim.muon])
def test_a_rate_that_is_no_number_is_refused(make: Any) -> None:
    with pytest.raises(DTypeError, match="learning_rate is 'fast'; expected a number"):
        make("fast")


@pytest.mark.parametrize("optimizer", [
    optim.sgd(0.1, 0.9), optim.adam(0.1), optim.adamw_8bit(0.1, min_size=1), optim.lion(0.1), optim.adafactor(),
    optim.muon(0.1),
])  # fmt: skip
def test_a_state_of_other_parameters_is_refused(optimizer: optim.Optimizer) -> None:
    g = {"a": np.ones((2, 3))}
    with pytest.raises(GraphError, match=r"and the state .*expected one structure"):
        optimizer.update(g, optimizer.init({"b": np.ones((2, 3))}), g)


@pytest.mark.parametrize("optimizer", [optim.sgd(0.1, 0.9), optim.adam(0.1), optim.lion(0.1), optim.muon(0.1)])
def test_a_state_of_other_shapes_is_refused(optimizer: optim.Optimizer) -> None:
    with pytest.raises(ShapeError, match=r"gradient 0 is .*its place in the state"):
        optimizer.update(np.ones(3), optimizer.init(np.ones(4)), np.ones(3))


def test_errors_name_the_optimizer_that_was_called() -> None:
    with pytest.raises(ShapeError, match=r"optim\.adam: learning_rate"):
        optim.adam(-1.0)


@pytest.mark.parametrize(
    "optimizer",
    [
        optim.sgd(0.1), optim.sgd(0.1, 0.9), optim.adam(0.1), optim.lion(0.1), optim.adafactor(0.1),
        optim.ema(0.9), optim.accumulate(optim.sgd(0.1), 2), optim.with_masters(optim.sgd(0.1)),
        optim.scale_loss(optim.sgd(0.1)), optim.chain(optim.sgd(0.1), optim.ema(0.9)),
    ],
)  # fmt: skip
def test_arguments_in_another_order_are_refused(optimizer: optim.Optimizer) -> None:
    params = {"w": np.ones(3, np.float32)}
    for state in (params, None, (), optimizer):
        with pytest.raises(GraphError, match=r"the state is a \w+; expected .* that init\(params\)"):
            optimizer.update(params, state, params)
