"""Forward mode and vmap of ops, a sample of `python -m tests.ops.transforms_sweep`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlx.conformance.case import cases_of
from rlx.ir import NOT_DIFFERENTIABLE, REGISTRY
from rlx.ops.batching import how
from tests.ops.by_family import GRADIENTS
from tests.ops.transforms_sweep import batched_ops, bound, patterns, slope, small_cases, tangents, vmapped

DIFFERENTIABLE = sorted(n for n, op in REGISTRY.items() if op.vjp is not NOT_DIFFERENTIABLE)
# One of each rule of batching, of what goes by parts and in a loop, and of control ops.
SAMPLE = {
    "add", "attention", "batch_norm", "causal_conv", "cond", "conv_grad_weight", "dynamic_slice", "gather",
    "lora_matmul", "matmul", "packed_matmul", "random_bits", "reshape", "scan", "scatter", "sum", "while_loop",
}  # fmt: skip


@pytest.mark.full(op=set(DIFFERENTIABLE) - SAMPLE)
@pytest.mark.parametrize("op", DIFFERENTIABLE)
def test_tangents_are_gradients_transposed_and_differences(op: str) -> None:
    dots, differences = tangents(GRADIENTS[op][0], 0)
    assert dots <= 1e-13 and differences <= 1e-11, (dots, differences)


@pytest.mark.parametrize(
    "function, derivative",
    [
        (lambda h: np.sin(1.0 + h), np.cos(1.0)),
        (lambda h: np.abs(h + 1e-4) + np.exp(h), 2.0),
        (lambda h: np.array([np.log(0.01 + h), 1e6 * h, 3.0]), [100.0, 1e6, 0.0]),
    ],
)
def test_extrapolated_differences_keep_ten_digits(function: Any, derivative: Any) -> None:
    np.testing.assert_allclose(slope(function, 0.25), derivative, rtol=1e-11, atol=1e-11)


@pytest.mark.full(op=set(batched_ops()) - SAMPLE)
@pytest.mark.parametrize("op", batched_ops())
def test_vmap_is_one_example_after_the_other(op: str) -> None:
    (case,) = small_cases(op, 1)
    for flags in patterns(case):
        error = vmapped(case, flags)
        assert error <= bound(case), (case.id, flags, error)


def test_vmap_by_parts_whose_constants_are_large() -> None:
    """The mask of attention with causal sums is a constant that bodies share."""
    case = next(c for c in cases_of("attention_sums") if c.name == "f64-2x70x8x24-joined")
    assert vmapped(case, [True]) <= bound(case)


def test_how_many_ops_are_batched_by_which_means() -> None:
    ways = [how(REGISTRY[op]) for op in batched_ops() if REGISTRY[op].family != "custom"]
    assert ways.count("loop") <= 4, [op for op in batched_ops() if how(REGISTRY[op]) == "loop"]
