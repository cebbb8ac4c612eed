"""The compiled engine's step of attention: vectors of several lengths, any division of its items, states in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import rlx
from rlx.backends.cpu import choice
from rlx.backends.cpu.machine import Machine
from rlx.conformance.case import Case, cases_of
from tests.cpu.processors import on_machines
from tests.cpu.test_engine_products import bound, run

pytestmark = pytest.mark.skipif(
    choice.why_not() is not None, reason=f"no compiled engine: {choice.why_not()}"
)
Array = npt.NDArray[Any]
_NAMES = ("f32-f32-2x6x2x16x131-turned8", "bf16-f16", "f32-bf16-2x8x2x64x300-turned12p", "f32-f32-1x7x1x64x33",
          "f16-f16-3x8x2x64x150", "f32-f32-1x4x4x256x140", "ring250", "f32-f32-2x3x3x6x7")  # fmt: skip


def _chosen() -> list[Case]:
    found = [c for c in cases_of("attention_step") if not c.has_f64 and all(np.prod(s.shape) for s in c.inputs)]
    return [next(c for c in found if name in c.id) for name in _NAMES if any(name in c.id for c in found)]


@on_machines
@pytest.mark.parametrize("case", _chosen(), ids=lambda c: c.id)
@pytest.mark.sample(8)
def test_parts_of_the_work_give_the_same_bits(case: Case, machine: Machine) -> None:
    graph = case.graph()
    node = next(iter(graph.outputs.values())).node
    ins = [np.array(a, order="C") for a in case.arrays()]
    made = []
    for pieces in (1, 2, 5):
        outs = [np.zeros(t.type.array_shape, t.dtype.np) for t in node.outputs]
        run(bound(node, ins, outs, machine, False), machine, pieces)
        made.append(outs)
    assert case.check({f"y{i}": o for i, o in enumerate(made[0])}).ok
    assert all(a.tobytes() == b.tobytes() for outs in made[1:] for a, b in zip(made[0], outs, strict=True))


def test_threads_of_a_long_cache_give_the_same_bits() -> None:
    """A step over 3,000 rows that numbers of threads share, and over few of them; nothing is left to NumPy."""
    rng = np.random.default_rng(4)
    feeds: dict[str, Array] = {n: rng.standard_normal((1, h, 64)).astype(np.float32)
                               for n, h in (("q", 8), ("k", 2), ("v", 2))}  # fmt: skip
    caches = [rng.standard_normal((1, 3000, 2, 64)).astype(np.float32) for _ in range(2)]
    seen = []
    for threads in (1, 2, 4):
        g = rlx.Graph("step")
        q, k, v = (g.input(n, x.shape) for n, x in feeds.items())
        keys, values = (g.state(n, caches[0].shape) for n in ("keys", "values"))
        y, *fresh = rlx.attention_step(q, k, v, keys, values, g.input("at", (1,), "i32"))
        g.output("y", y)
        for name, t in zip(("keys", "values"), fresh, strict=True):
            g.update(name, t)
        with rlx.Session("cpu", engine="compiled", threads=threads).compile(g) as exe:
            for name, x in zip(("keys", "values"), caches, strict=True):
                exe.set_state(name, x)
            assert not [d for d in exe.report().nodes if d.by == "numpy"]
            seen.append([exe.run({**feeds, "at": np.array([at], np.int32)})["y"].tobytes() for at in (2999, 70, 0)])
    assert seen[0] == seen[1] == seen[2]
