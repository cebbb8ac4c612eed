"""Choices of algorithms that were measured: their lines, and who wins where lowering chooses."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import pytest

from rlx.backends.cuda.target import cuda_target
from rlx.backends.gpu.attention import choice as attention
from rlx.backends.gpu.gemm import choice as gemm
from rlx.backends.gpu.gemm.product import Product
from rlx.backends.gpu.program.candidates import Chooser, cheapest, text_of
from rlx.backends.gpu.program.executable import lower_graph
from rlx.backends.gpu.program.target import MatrixUnits, Target
from rlx.backends.gpu.rules.conv import choice as conv
from rlx.backends.vulkan.target import vulkan_target
from rlx.driver import Limits
from rlx.driver.memory.planner import plan
from rlx.dtypes import bf16, f16, f32
from rlx.ir import Graph
from rlx.ops import conv as conv2d
from rlx.ops import relu

LIMITS = Limits(subgroup=32, shared_bytes=48 << 10, dynamic_shared_bytes=227 << 10)
FEATURES = frozenset("subgroup coopmat bf16_coopmat 16bit_storage wgmma".split())
TARGETS = [cuda_target(FEATURES, LIMITS), vulkan_target(FEATURES, LIMITS, False)]


@dataclass(frozen=True, slots=True)
class _Kernel:
    algorithm: ClassVar[str] = "kernel"
    cost: tuple[float, ...]
    tile: str
    parts: int = field(default=1)


KERNELS = [_Kernel((1,), "s"), _Kernel((0,), "l"), _Kernel((2,), "s", 2)]
PROBLEM = conv.Problem(64, 196, 576, 1, 12544, bf16, matrices=bf16, units=72)


def test_a_line_says_what_is_not_zero() -> None:
    assert text_of(PROBLEM) == (
        "conv rows=64 columns=196 terms=576 products=1 size=12544 dtype=bf16 matrices=bf16 units=72"
    )
    product = Product(4, 8, 16, ((2, 64, 0),), False, True)
    assert text_of(gemm.Problem(product, f16, f16, f32, "f32", aligned=True)) == (
        "gemm m=4 n=8 k=16 batch=2x64x0 transpose_b a=f16 b=f16 c=f32 precision=f32 aligned"
    )
    assert text_of(("weight", PROBLEM)).startswith("conv weight rows=64 ")
    assert text_of(KERNELS[2]) == "kernel tile=s parts=2"


@pytest.mark.parametrize("target", TARGETS, ids=["cuda", "vulkan"])
def test_candidates_of_a_problem_differ_in_their_lines(target: Target) -> None:
    product = Product(64, 1024, 512, (), False, True)
    lists = [
        conv.candidates(target, PROBLEM), conv.weight_candidates(target, PROBLEM),
        conv.candidates(target, replace(PROBLEM, dtype=f32, matrices=None, library=True)),
        *(gemm.candidates(target, gemm.Problem(replace(product, m=m), t, t, t, "f32", aligned=True))
          for m in (1, 4, 64, 4096) for t in (f32, bf16)),
        *(attention.candidates(target, attention.Problem(2, 8, 8, sq, 128, 64, t, "bf16", True))
          for sq in (1, 256) for t in (f32, bf16)),
        attention.gradients(target, attention.Problem(2, 8, 8, 256, 256, 64, bf16, "bf16", True)),
    ]  # fmt: skip
    for candidates in lists:
        assert len({text_of(c) for c in candidates}) == len(candidates) > 1


def test_choices_go_before_the_rules_where_they_name_a_candidate() -> None:
    choices = {text_of(PROBLEM): "kernel tile=s parts=2", text_of(("weight", PROBLEM)): "kernel tile=x"}
    chooser = Chooser(cheapest, choices)
    chooser.node = "conv%1"
    assert chooser(PROBLEM, KERNELS) is KERNELS[2]
    assert chooser(("weight", PROBLEM), KERNELS) is KERNELS[1]  # there is no such candidate
    assert chooser(replace(PROBLEM, rows=65), KERNELS) is KERNELS[1]
    assert chooser(PROBLEM, KERNELS[:1]) is KERNELS[0]  # as where a test forces another
    assert chooser.applied == {text_of(PROBLEM): "kernel tile=s parts=2"}
    assert [d.node for d in chooser.decisions] == ["conv%1"] * 4
    assert [d.chosen for d in chooser.decisions] == [KERNELS[2], KERNELS[1], KERNELS[1], KERNELS[0]]


def test_a_target_without_choices_is_asked_itself() -> None:
    target = Target(matrices=MatrixUnits(), choose=lambda problem, candidates: candidates[-1])
    assert Chooser(target.choose)(PROBLEM, KERNELS) is KERNELS[2]


@pytest.mark.parametrize("target", TARGETS, ids=["cuda", "vulkan"])
def test_each_node_is_chosen_for_with_all_its_candidates(target: Target) -> None:
    """Also where the same problem was asked about before: by another layer, or for the order of elements."""
    graph = Graph("network")
    h = graph.input("x", (2, 16, 12, 12), "bf16")
    for layer in range(3):
        h = relu(conv2d(h, graph.input(f"w{layer}", (16, 16, 3, 3), "bf16"), pads=1))
    graph.output("y", h)
    lowering, _ = lower_graph(graph, plan(graph), target, "bf16")
    asked = [d for d in lowering.chooser.decisions if d.node.startswith("conv")]
    assert len({d.node for d in asked}) == 3 and min(len(d.candidates) for d in asked) > 4
