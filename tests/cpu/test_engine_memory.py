"""The compiled engine writes no byte outside its results: odd sizes and single elements, between guard bytes."""

from __future__ import annotations

import pytest

import rlx
from rlx.backends.cpu import choice
from rlx.conformance.fuzz import PlanVariant, run
from rlx.conformance.guarded import GUARD_BYTES
from rlx.conformance.random_graphs import RandomGraph
from rlx.driver.registry import open_device
from tests.cpu.programs import data, graph_of
from tests.full import some

pytestmark = pytest.mark.skipif(
    choice.why_not() is not None, reason=f"no compiled engine: {choice.why_not()}"
)


def every_family(x: rlx.Tensor, image: rlx.Tensor, at: rlx.Tensor) -> tuple[rlx.Tensor, ...]:
    """Results of (3, 17), (1, 3, 5, 17) and (3, 1): the last vector of each row has one element."""
    one, row, kernel = x[:1, :1], x[0], image[:, :, :3, :3]
    return (
        rlx.sum(x), rlx.max(one), rlx.mean(x, axis=1), rlx.sum(x, axis=0), rlx.min(image, axis=(0, 2)),
        rlx.softmax(x), rlx.softmax(x, axis=0), rlx.log_softmax(one), rlx.logsumexp(row, axis=0),
        rlx.logsumexp(x, axis=0), rlx.layer_norm(x, row, row), rlx.rms_norm(one, one[0]),
        rlx.group_norm(image, 1, x[:, 0], x[:, 1]), rlx.layer_norm_channels(image, x[:, 0], x[:, 1]),
        rlx.argmax(x, axis=0), rlx.cumsum(x, axis=1), rlx.cumsum(x, axis=0),
        rlx.attention(image, image, image), rlx.attention(image[:, :, :1], image, image),
        rlx.max_pool(image, 2), rlx.avg_pool(image, 3, strides=2, pads=1), rlx.resize(image, (3, 17)),
        rlx.transpose(x, (1, 0)), rlx.expand(one, (5, 17)), x[::-1, ::-2], rlx.concat([x, x[:1]], axis=0),
        rlx.pad(x, ((1, 0), (0, 1))), rlx.gather(x, at[:, 0], axis=1), rlx.gather_elements(x, at, axis=1),
        rlx.dynamic_slice(row, at[0], (1,)), rlx.dynamic_update_slice(x, one, at[:2, 0]),
        rlx.exp(x) * row, rlx.exp(one), rlx.tanh(rlx.transpose(x, (1, 0))), rlx.greater(x, row),
        x @ rlx.transpose(x, (1, 0)), rlx.conv(image, kernel), row @ rlx.transpose(x, (1, 0)),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", some(["bf16", "f32", "f16"], 1))
def test_no_kernel_writes_outside_its_result(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_CPU", "compiled")
    arrays = [data((3, 17), dtype), data((1, 3, 5, 17), dtype), data((3, 1), "i64") % 3]
    graph = graph_of(every_family, arrays)
    feeds = {f"x{i}": a for i, a in enumerate(arrays)}
    way = PlanVariant("bump", inplace=False, guard=GUARD_BYTES)
    assert run(graph, RandomGraph(0, graph, feeds), open_device("cpu"), way)[1] == []
