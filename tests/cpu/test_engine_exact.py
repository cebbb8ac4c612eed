"""What tolerances of conformance cases would hide: roundings at ties, exponentials of rows to the last digits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import rlx
from rlx.backends.cpu import choice, runner
from rlx.backends.cpu.compile import addresses
from rlx.backends.cpu.ir import I64, Kernel, pointers, sizes
from rlx.backends.cpu.machine import this_machine
from rlx.backends.cpu.movement import RowCopy
from rlx.backends.cpu.segment import Segment
from rlx.backends.cpu.step import EngineStep

pytestmark = pytest.mark.skipif(
    choice.why_not() is not None, reason=f"no compiled engine: {choice.why_not()}"
)


def on_engine(function: Any, *arrays: Any) -> Any:
    return rlx.jit(function, device=rlx.Session("cpu", engine="compiled"))(*arrays)


@pytest.mark.parametrize(("dtype", "digits"), [(np.float16, 11), (ml_dtypes.bfloat16, 8)])
def test_results_of_rows_are_rounded_to_even(dtype: Any, digits: int) -> None:
    """Sums that lie halfway between two halves."""
    half = 2.0**-digits
    x = np.array([[1, half], [1 + 2 * half, half], [-1, -half], [-1 - 2 * half, -half]], dtype)
    wanted = np.array([1, 1 + 4 * half, -1, -1 - 4 * half], dtype)
    np.testing.assert_array_equal(on_engine(lambda x: rlx.sum(x, axis=1), x), wanted)


@pytest.mark.parametrize("n", [64, 37])
def test_a_softmax_is_as_good_as_its_exponentials(n: int) -> None:
    x = np.random.default_rng(0).integers(-40 << 16, 0, (64, n)).astype(np.float32) / 2**16  # exact differences
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    wanted = e / e.sum(1, keepdims=True)
    made = on_engine(lambda x: rlx.softmax(x, axis=1), x)
    assert np.abs(made / wanted - 1).max() < 4 * 2.0**-23


def test_a_sum_of_f64_keeps_what_its_additions_lose() -> None:
    """Ones between two large numbers: each is less than the last digit of the sums that they are added to."""
    x = np.zeros((16, 4096))
    x[:, 512:-512] = 1
    x[:, 0], x[:, -512] = 2.0**60, -(2.0**60)
    made = on_engine(lambda x: rlx.sum(x, axis=1), x)
    np.testing.assert_array_equal(made, np.full(16, 4096 - 1024))


def test_one_query_of_a_growing_row_of_keys() -> None:
    """Scores that grow over some blocks of keys: what was added up before counts less and less."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 2, n, 32)).astype(np.float32) for n in (1, 700, 700))
    k += np.linspace(0, 0.3, 700, dtype=np.float32)[:, None] * q
    made = on_engine(rlx.attention, q, k, v)
    scores = (q.astype(np.float64) @ k.swapaxes(2, 3)) / np.sqrt(32)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    np.testing.assert_allclose(made, shares / shares.sum(-1, keepdims=True) @ v, atol=2e-6)


def test_a_later_part_of_a_cache_may_outweigh_all_others() -> None:
    """By so much that exponentials of the difference leave the range."""
    keys = np.zeros((1, 600, 1, 16), np.float32)
    keys[0, 400] = 35  # a score of 140
    values = np.random.default_rng(0).standard_normal(keys.shape).astype(np.float32)
    q, k, v = (np.full((1, 1, 16), x, np.float32) for x in (1, 0, 0))
    y, _, _ = on_engine(rlx.attention_step, q, k, v, keys, values, np.array([599], np.int32))
    np.testing.assert_allclose(y[0, 0], values[0, 400, 0], rtol=1e-6)


@dataclass(frozen=True)
class Uneven:
    """The last item, which a worker takes, is so long that the others are done before."""

    args = pointers("out") + sizes("items")

    def ir(self) -> str:
        k = Kernel("kernel", self.args)
        out, items = k.args("out", "items")
        with k.loop(k.first, k.last) as item:
            total = k.variable(k.const(I64, 1))
            with k.loop(0, k.select(k.cmp("eq", item + 1, items), k.const(I64, 3_000_000), 200_000)) as i:
                total.value = total.value * 3 + i
            k.store(total.value | 1, k.at(out, item, I64))
        return k.text()


def test_a_step_is_whole_before_the_next_reads_it() -> None:
    on, items = this_machine(), 16
    assert on is not None
    out, seen = np.zeros(items, np.int64), np.zeros(items, np.int64)
    steps = [
        EngineStep(Uneven(), Uneven.args(out=out, items=items), items, cost_ns=1e5),
        EngineStep(RowCopy(4, on.vector_bytes), RowCopy.args(source=out, target=seen, n=2 * items), 1),
    ]
    lead, work, *places = addresses([*runner.specs(on), *(s.spec for s in steps)], on)
    segment = Segment()
    segment.steps = steps
    segment.finish(places, lead, work, 3)
    for _ in range(8):
        out[:] = 0
        segment()
        assert (seen != 0).all()
