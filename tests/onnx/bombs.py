"""ONNX bombs: small files that ask for much. A seed decides the family, the numbers and what reads the result; the same
seed is the same file. `python -m tests.onnx.mutants --bombs --count 10000` loads, compiles and runs them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.onnx.bomb_numbers import NUMBERS
from tests.onnx.bomb_parts import Made, Rng
from tests.onnx.bomb_sizes import LARGE
from tests.onnx.bomb_structures import STRUCTURES
from tests.onnx.models import I64, node
from tests.onnx.mutations import Mutant

BUDGET = 32 << 20
FAMILIES: dict[str, Callable[[Rng], Made | bytes]] = {f.__name__: f for f in (*LARGE, *NUMBERS, *STRUCTURES)}

# What reads a bomb's result: nothing, an op, or one that needs its value while the program is built.
TAILS: tuple[Callable[[Rng, str], list[Any]], ...] = (
    lambda rng, t: [node("Identity", t, "y")],
    lambda rng, t: [node("Neg", t, "y")],
    lambda rng, t: [node("ReduceSum", t, "y", keepdims=0)],
    lambda rng, t: [node("Shape", t, "dims"), node("Cast", "dims", "y", to=1)],
    lambda rng, t: [node("NonZero", t, "y")],
    lambda rng, t: [
        node("ReduceMax", t, "m", keepdims=0),
        node("Cast", "m", "n", to=I64),
        node("Range", "zero n one", "y"),
    ],
    lambda rng, t: [node("Cast", t, "c", to=9), node("Compress", f"{t} c", "y")],
    lambda rng, t: [node("Unique", t, "y")],
    lambda rng, t: [node("Mul", f"{t} {t}", "q"), node("Add", f"q {t}", "y")],
    lambda rng, t: [node("Softmax", t, "q"), node("Transpose", "q", "y")],
    lambda rng, t: [node("Cast", t, "y", to=rng.choice((1, 6, 7, 8, 10, 11, 13, 16)))],
    lambda rng, t: [node("CumSum", f"{t} zero", "y")],
    lambda rng, t: [node("TopK", f"{t} ones", "v y")],
)


def bomb(seed: int) -> Mutant:
    """The file of a seed, two of three with a budget of their own."""
    rng = random.Random(seed)
    name = rng.choice(list(FAMILIES))
    made = FAMILIES[name](rng)
    content = made if isinstance(made, bytes) else assembled(rng, made)
    return Mutant(name, "bomb of bombs", content, budget=rng.choice((None, BUDGET, BUDGET)))


def assembled(rng: Rng, made: Made) -> bytes:
    """The model around a bomb's nodes: its result is t."""
    nodes, weights = list(made.nodes), dict(made.weights)
    if rng.random() < 0.15 and not made.sequence:  # twice: what is allowed once may be too much then
        nodes += [helper.make_node("Mul", ["t", "t"], ["t2"])]
        nodes += rng.choice(TAILS)(rng, "t2")
    elif made.sequence:
        tail = rng.choice(("SequenceLength", "SequenceAt", "ConcatFromSequence", "Identity"))
        more = {"ConcatFromSequence": {"axis": rng.choice((0, -1))}}.get(tail, {})
        nodes.append(node(tail, "t zero" if tail == "SequenceAt" else "t", "y", **more))
    else:
        nodes += rng.choice(TAILS)(rng, "t")
    weights |= {"zero": np.array(0), "one": np.array(1), "ones": np.array([1])}
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])]
    graph = helper.make_graph(
        nodes,
        "g",
        inputs,
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items()],
    )
    imports = [
        helper.make_opsetid("", made.opset),
        helper.make_opsetid("f", 1),
        helper.make_opsetid("com.microsoft", 1),
    ]
    return bytes(
        helper.make_model(
            graph, opset_imports=imports, functions=list(made.functions), ir_version=10
        ).SerializeToString()
    )
