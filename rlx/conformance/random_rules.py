"""The rules of random graphs: each adds one op, or a few that belong together, to a builder's graph.

This module defines what a rule is; the rules are in the ops' conformance records (`rlx.conformance.cases`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rlx.ir import Tensor

if TYPE_CHECKING:
    from rlx.conformance.random_graphs import Builder

MAX_ELEMENTS = 4096
Made = tuple[Tensor, ...]

# Rules are drawn by number. Those named here keep their numbers, so that a seed always makes the same graph from them;
# other rules follow, in the order of their families.
_ORDER = """
    sin cos tanh erf sigmoid silu gelu relu exp log sqrt rsqrt reciprocal round floor ceil neg abs sign copy
    logical_not add sub maximum minimum mul div pow equal not_equal less less_equal greater greater_equal
    logical_and logical_or logical_xor add_scalar mul_scalar bounded_mul square where clip cast cast_float
    reshape transpose expand slice rows own_row concat sum mean max min prod matmul matmul_transposed softmax
    layer_norm rms_norm attention gather half_weights attention_variants attention_grad cond while_loop
    scan_steps nested_control gradient atan asinh softplus mish elu selu leaky_relu hard_sigmoid hard_swish tan
    asin acos sinh cosh acosh atanh exp2 expm1 log2 log10 log1p cbrt trunc isnan isinf isfinite inside mod fmod
    floor_divide atan2 bitwise_and bitwise_or bitwise_xor left_shift right_shift bitwise_not pad repeated
    rearranged grouped_matmul products_of_one lora_matmul conv conv_transpose conv_grad_input max_pool resize
    grid_sample arg sort top_k scan log_softmax logsumexp gather_wild gather_elements scatter scatter_elements
    nd dynamic one_hot group_norm layer_norm_channels batch_norm add_layer_norm add_rms_norm residual_norm rope
    cross_entropy fake_quantize softmax_grad layer_norm_grad rms_norm_grad group_norm_grad
""".split()


@dataclass(frozen=True)
class Rule:
    """One rule: `add` adds nodes to a builder's graph and gives the tensors that later rules may use.

    A `rough` rule may turn a small error into a large one, and is left out of smooth graphs.
    """

    name: str
    add: Callable[[Builder], Made]
    rough: bool = False


def rule(name: str, *, rough: bool = False) -> Callable[[Callable[[Builder], Made]], Rule]:
    """A decorator that makes a function the `add` of a rule."""
    return lambda add: Rule(name, add, rough)


def in_order(rules: Iterable[Rule]) -> list[Rule]:
    """Each rule once, in the order of their numbers."""
    numbers = {name: i for i, name in enumerate(_ORDER)}
    unique = {r.name: r for r in rules}
    return sorted(unique.values(), key=lambda r: numbers.get(r.name, len(numbers)))


def is_number(t: Tensor) -> bool:
    return t.dtype.kind != "b"


def is_float(t: Tensor) -> bool:
    return t.dtype.is_float


def joined(*tensors: Tensor) -> float:
    """The number of elements of the tensors' broadcast; infinity if they do not broadcast."""
    try:
        return math.prod(np.broadcast_shapes(*(t.shape for t in tensors)))
    except ValueError:
        return math.inf
