"""Lowering needs nothing of a device but its Target: it works for an invented one; a tuner chooses among candidates; a
plug-in's rule is taken before the built-in one."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.gpu.attention import choice as attention_choice
from rlx.backends.gpu.gemm import choice as gemm_choice
from rlx.backends.gpu.program.candidates import C, cheapest
from rlx.backends.gpu.program.executable import lower_graph
from rlx.backends.gpu.program.lowering import Lowering, override, runs_natively
from rlx.backends.gpu.program.steps import Copy, FileKernel, HostCall, Launch, Step, TreeKernel
from rlx.backends.gpu.program.target import Target
from rlx.driver import Limits
from rlx.driver.memory.planner import plan
from rlx.dtypes import bf16
from rlx.errors import UnsupportedOp
from rlx.ir import Graph, Node
from rlx.passes import optimize
from tests.gpu import lowered
from tests.gpu.lowered import carried_out, close

# A target such as a CPU of eight cores that runs compiled kernels.
EIGHT = Target(limits=Limits(shared_bytes=16 << 10, subgroup=1), units=8, software=True, packs=False)


def _layer() -> Graph:
    """A graph of a product with bias and activation, a norm, an attention and a sum."""
    g = Graph("layer")
    x = g.input("x", (20, 32))
    w, b = g.constant(np.eye(32, dtype=np.float32) * 2), g.constant(np.ones(32, np.float32))
    h = rlx.layer_norm(rlx.matmul(x, w, b, activation="gelu"), b, b)
    heads = rlx.transpose(rlx.reshape(h, (1, 20, 2, 16)), (0, 2, 1, 3))
    g.output("y", rlx.sum(rlx.attention(heads, heads, heads), axis=2))
    return g


def _names(steps: Sequence[Step]) -> list[str]:
    kernels = [s.kernel for s in steps if isinstance(s, Launch)]
    return [k.stem if isinstance(k, FileKernel) else "tree" for k in kernels]


def _lowered(g: Graph, target: Target, precision: str = "f32") -> Lowering:
    g, _ = optimize(g, support=lambda n: "native" if n.op.leaf or runs_natively(n, target) else "host")
    lowering, _ = lower_graph(g, plan(g), target, precision)
    return lowering


def test_a_target_of_no_known_backend_is_lowered_for() -> None:
    lowering = _lowered(_layer(), EIGHT)
    assert all(isinstance(s, Launch | Copy) for s in lowering.steps)
    names = _names(lowering.steps)
    assert "matmul" in names and "attention" in names
    kernels = [s.kernel for s in lowering.steps if isinstance(s, Launch)]
    tiles = [dict(k.defines)["TILE"] for k in kernels if isinstance(k, FileKernel) and k.stem == "matmul"]
    assert tiles == ["s"] and not any(k.packed for k in kernels if isinstance(k, TreeKernel))
    assert not {"backend", "kind", "features", "limits"} & set(dir(lowering))


def test_what_the_units_are_decides_how_sums_are_cut() -> None:
    sizes = gemm_choice.Product(64, 64, 2048, (), False, False)
    problem = gemm_choice.Problem(sizes, rlx.f32, rlx.f32, rlx.f32, "f32")
    parts = {}
    for units in (1, 8, 132):
        chosen = gemm_choice.choose(Target(units=units), problem)
        assert isinstance(chosen, gemm_choice.FmaTiles)
        parts[units] = chosen.split_k
    assert parts == {1: 1, 8: 8, 132: 8}
    wide = gemm_choice.Product(384, 1536, 4096, (), True, False)
    chosen = gemm_choice.choose(Target(units=132), replace(problem, product=wide))
    assert isinstance(chosen, gemm_choice.FmaTiles) and (chosen.tile, chosen.split_k) == ("l", 7)  # 252 workgroups


def test_a_tuner_chooses_among_the_candidates() -> None:
    asked: list[Hashable] = []

    def tuner(problem: Hashable, found: Sequence[C], /) -> C:
        """Always chooses the costliest candidate, with products in two parts."""
        asked.append(problem)
        assert len(found) > 1 and cheapest(problem, found) in found
        chosen: Any = max(found, key=lambda c: c.cost)
        return replace(chosen, split_k=2) if isinstance(chosen, gemm_choice.FmaTiles) else chosen

    tuned = replace(EIGHT, choose=tuner)
    names = _names(_lowered(_layer(), tuned).steps)
    assert names != _names(_lowered(_layer(), EIGHT).steps)
    assert "matmul_rows" in names or names.count("tree") > 1
    assert {type(p) for p in asked} == {gemm_choice.Problem, attention_choice.Problem}
    assert len({hash(p) for p in asked}) == len(set(asked))  # problems are keys of a table of measured times


def test_candidates_are_those_that_the_target_can_run() -> None:
    half = gemm_choice.Problem(gemm_choice.Product(64, 64, 64, (), False, False), bf16, bf16, bf16, "f32")
    plain = {c.algorithm for c in gemm_choice.candidates(EIGHT, half)}
    assert plain == {"fma", "rows"}
    words = lowered.FEATURES | {"coopmat", "bf16_coopmat", "subgroup"}
    rich = lowered.cuda_target(words, Limits(shared_bytes=48 << 10, dynamic_shared_bytes=227 << 10))
    assert {c.algorithm for c in gemm_choice.candidates(rich, half)} == {"library", "mma", "fma", "rows"}
    attention = attention_choice.Problem(1, 8, 8, 64, 64, 64, bf16, "f32")
    assert {c.algorithm for c in attention_choice.candidates(EIGHT, attention)} == {"tiles", "decode"}
    assert "matrix" in {c.algorithm for c in attention_choice.candidates(rich, attention)}


# -- rules of plug-ins


@pytest.fixture
def taken_back() -> Iterator[list[Any]]:
    """The rules that a test registers, withdrawn after it."""
    withdraw: list[Any] = []
    yield withdraw
    for each in withdraw:
        each()


def _softmax() -> Graph:
    g = Graph("softmax")
    g.output("y", rlx.softmax(g.input("x", (3, 5)), axis=1))
    return g


def test_a_plug_in_overrides_a_rule_on_the_targets_it_names(taken_back: list[Any]) -> None:
    def copies(ctx: Lowering, node: Node) -> None:
        ctx.copy(ctx.ref(node.inputs[0]), ctx.ref(node.output))

    taken_back.append(override("softmax", copies, when=lambda node, target: target.units == 8))
    assert [type(s) for s in _lowered(_softmax(), EIGHT).steps] == [Copy]
    assert _names(_lowered(_softmax(), replace(EIGHT, units=9)).steps) == ["softmax"]
    taken_back.pop()()
    assert _names(_lowered(_softmax(), EIGHT).steps) == ["softmax"]


def test_the_last_rule_is_asked_first_and_a_rule_may_be_for_what_had_none(taken_back: list[Any]) -> None:
    made: list[str] = []
    for name in ("first", "second"):
        taken_back.append(override("softmax", lambda ctx, node, name=name: made.append(name)))  # type: ignore[misc]
    _lowered(_softmax(), EIGHT)
    assert made == ["second"]
    wide = Graph("f64")
    wide.output("y", wide.add("softmax", [wide.input("x", (3, 5), rlx.f64)], {"axis": 1})[0])
    lowering, _ = lower_graph(wide, plan(wide), EIGHT, "f32")
    assert made == ["second", "second"] and not any(isinstance(s, HostCall) for s in lowering.steps)
    with pytest.raises(UnsupportedOp, match="there is no op 'soft_max'"):
        override("soft_max", lambda ctx, node: None)


@pytest.mark.vulkan
def test_the_steps_for_a_made_up_target_compute_what_the_graph_says() -> None:
    g = Graph("product")
    x, w = (np.random.default_rng(i).standard_normal((40, 40)).astype(np.float32) for i in (0, 1))
    g.output("y", rlx.matmul(g.input("x", x.shape), g.input("w", w.shape)))
    planned = plan(g, planner="bump")
    lowering, _ = lower_graph(g, planned, EIGHT, "f32")
    got = carried_out(g, planned, lowering, [x, w], "vulkan")["y"]
    close(got, x.astype(np.float64) @ w.astype(np.float64))
