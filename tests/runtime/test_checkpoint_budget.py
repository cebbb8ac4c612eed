"""checkpoint(policy="auto", budget=bytes): the arena fits the budget, and every bit stays."""

from __future__ import annotations

import pickle
from typing import Any, Literal

import numpy as np
import pytest

import rlx
from rlx import optim
from rlx.errors import ByteLimitExceeded, DTypeError, GraphError, ShapeError

RNG = np.random.default_rng(0)


def _draw(*shape: int) -> Any:
    return (RNG.standard_normal(shape) * 0.1).astype(np.float32)


def _gpt(width: int = 32, layers: int = 2, words: int = 61, tokens: int = 32) -> Any:
    return {
        "words": _draw(words, width), "places": _draw(tokens, width),
        "layers": [{"qkv": _draw(width, 3 * width), "out": _draw(width, width), "up": _draw(width, 4 * width),
                    "down": _draw(4 * width, width), "gamma": _draw(width) + 1} for _ in range(layers)],
    }  # fmt: skip


def _loss(p: Any, ids: Any) -> Any:
    x = rlx.embedding(p["words"], ids) + p["places"]
    for layer in p["layers"]:
        parts = rlx.split(rlx.rms_norm(x, layer["gamma"]) @ layer["qkv"], 3, -1)
        q, k, v = (t.reshape((*t.shape[:2], 2, -1)).transpose((0, 2, 1, 3)) for t in parts)
        seen = rlx.attention(q, k, v, causal=True).transpose((0, 2, 1, 3)).reshape(x.shape)
        x = x + seen @ layer["out"]
        x = x + rlx.gelu(rlx.rms_norm(x, layer["gamma"]) @ layer["up"]) @ layer["down"]
    logits = (x @ p["words"].T).reshape((-1, p["words"].shape[0]))
    return rlx.mean(rlx.cross_entropy(logits, ids.reshape((-1,))))


OPTIMIZER = optim.adamw(1e-3)
IDS = RNG.integers(0, 61, (4, 32)).astype(np.int32)


def _step(params: Any, state: Any, ids: Any) -> Any:
    value, gradient = rlx.value_and_grad(_loss)(params, ids)
    updates, state = OPTIMIZER.update(gradient, state, params)
    return value, optim.apply_updates(params, updates), state


@pytest.mark.late(engine="compiled")
@pytest.mark.parametrize("engine", ["numpy", "compiled"])
def test_a_gpt_step_fits_half_of_its_arena_with_the_same_bits(engine: Literal["numpy", "compiled"]) -> None:
    params = _gpt()
    given = (params, OPTIMIZER.init(params), IDS)
    session = rlx.Session("cpu", engine=engine)
    plain = rlx.jit(_step, device=session, donate=("params", "state"))
    want = plain(*given)
    arena = plain.report()[-1].plan.arena_bytes
    half = arena // 2
    spared = rlx.jit(
        rlx.checkpoint(_step, policy="auto", budget=half), device=session, donate=("params", "state")
    )
    got = spared(*given)
    plan, nodes = spared.report()[-1].plan, len(spared.report()[-1].nodes)
    assert plan.arena_bytes <= half
    assert len(plain.report()[-1].nodes) < nodes < 1.6 * len(plain.report()[-1].nodes)
    for a, b in zip(rlx.tree.leaves(want), rlx.tree.leaves(got), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_budget_belongs_to_the_program_that_the_function_becomes_part_of() -> None:
    params = _gpt(layers=2)
    arena = rlx.Session("cpu").compile(rlx.grad(_loss).graph(params, IDS)).plan.arena_bytes
    budget = int(0.7 * arena)
    inner = rlx.checkpoint(_loss, policy="auto", budget=budget)
    outer = rlx.checkpoint(rlx.grad(_loss), policy="auto", budget=budget)
    for f in (rlx.grad(inner), rlx.jit(lambda p, ids: outer(p, ids))):
        graph = f.graph(params, IDS)
        assert rlx.Session("cpu").compile(graph).plan.arena_bytes <= budget
        assert rlx.Session("cpu").compile(pickle.loads(pickle.dumps(graph))).plan.arena_bytes <= budget
        for a, b in zip(rlx.tree.leaves(f(params, IDS)), rlx.tree.leaves(rlx.grad(_loss)(params, IDS)), strict=True):
            np.testing.assert_array_equal(a, b)
    whole = rlx.checkpoint(_loss, policy="auto", budget=1e12)  # called on arrays, with room for everything
    assert whole(params, IDS) == rlx.jit(_loss)(params, IDS)


def test_what_a_users_function_gives_is_not_computed_again() -> None:
    twice = rlx.custom_op("twice_for_budget", lambda x: x * 2, lambda types, attrs: types[0])
    x = np.linspace(-1, 1, 1 << 14, dtype=np.float32)

    def f(x: Any) -> Any:
        kept = [twice(x), *(rlx.cumsum(x * float(k)) for k in range(1, 6))]
        z = rlx.cumsum(x)
        for y in reversed(kept):
            z = rlx.cumsum(rlx.sin(z * y))
        return rlx.sum(z)

    session = rlx.Session("cpu")
    plain = session.compile(rlx.jit(f).graph(x))
    spared = session.compile(rlx.jit(rlx.checkpoint(f, policy="auto", budget=plain.plan.arena_bytes * 0.7)).graph(x))
    assert spared.plan.arena_bytes <= 0.7 * plain.plan.arena_bytes
    assert [n.op.name for n in spared.program.nodes].count("twice_for_budget") == 1
    assert len(spared.program.nodes) > len(plain.program.nodes)
    assert spared(x) == plain(x)


def test_budgets_that_do_not_fit_say_what_was_expected() -> None:
    def f(x: Any) -> Any:
        return rlx.sum(rlx.sin(x) * rlx.cos(rlx.cumsum(x)))

    for budget in (None, True, "2 GB", [1]):
        with pytest.raises(DTypeError, match="give a number of bytes"):
            rlx.checkpoint(f, policy="auto", budget=budget)  # type: ignore[arg-type]
    for number in (float("nan"), float("inf"), 0, -5):
        with pytest.raises(ShapeError, match="expected a number of bytes, more than 0"):
            rlx.checkpoint(f, policy="auto", budget=number)  # type: ignore[arg-type]
    with pytest.raises(GraphError, match='expected "all", or "auto"'):
        rlx.checkpoint(f, policy="some")  # type: ignore[arg-type]
    with pytest.raises(GraphError, match='a budget goes with policy="auto"'):
        rlx.checkpoint(f, budget=100)
    x = np.ones(1 << 12, np.float32)
    with pytest.raises(ByteLimitExceeded, match=r"the budget is 100 bytes of arena; the program takes [\d,]+, and "):
        rlx.jit(rlx.checkpoint(rlx.grad(f), policy="auto", budget=100))(x)


def test_a_saved_program_and_varying_lengths_keep_the_budget(tmp_path: Any) -> None:
    def f(x: Any) -> Any:
        kept = [rlx.cumsum(x * float(k)) for k in range(1, 8)]
        z = rlx.cumsum(x)
        for y in reversed(kept):
            z = rlx.cumsum(rlx.sin(z * y))
        return rlx.sum(z)

    x = np.linspace(-1, 1, 4096, dtype=np.float32)
    plain = rlx.jit(f, device="cpu")
    want = plain(x)
    budget = int(0.7 * plain.report()[-1].plan.arena_bytes)
    spared = rlx.jit(rlx.checkpoint(f, policy="auto", budget=budget), device="cpu")
    spared.save(tmp_path / "program", x)
    with rlx.load_program(tmp_path / "program") as program:
        assert program.plan.arena_bytes <= budget == program.graph.budget
        assert program(x) == want
    lengths = {"x": rlx.Dim("n", max=4096)}
    tight = rlx.jit(rlx.checkpoint(f, policy="auto", budget=16), device="cpu", dims=lengths)
    with pytest.raises(ByteLimitExceeded, match="the budget is 16 bytes"):
        tight(x)
