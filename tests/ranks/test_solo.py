"""One rank by itself: its program without the others, what it would have sent them, and how long that takes."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
from rlx.errors import GraphError
from rlx.ranks.links import Link, Links, stops
from rlx.runtime.solo import Meeting, SoloMesh, SoloSession, meetings_of

LINK = Link.of(5e-6, 100e9)


def test_the_time_of_a_collective() -> None:
    near = Links(LINK)
    assert near.seconds("all_reduce", 1e8, 1) == 0.0
    assert near.seconds("all_reduce", 1e8, 2) == pytest.approx(5e-6 + 1e8 / 100e9)
    assert near.seconds("all_reduce", 1e8, 8) == pytest.approx(3 * 5e-6 + 2 * 7 / 8 * 1e8 / 100e9)
    assert near.seconds("all_gather", 1e7, 4) == pytest.approx(2 * 5e-6 + 3 / 4 * 4e7 / 100e9)
    assert near.seconds("reduce_scatter", 4e7, 4) == pytest.approx(2 * 5e-6 + 3 / 4 * 4e7 / 100e9)
    far = Links(LINK, Link.of(20e-6, 10e9), 8)
    assert far.seconds("all_reduce", 1e8, 8) == pytest.approx(near.seconds("all_reduce", 1e8, 8))
    between = 3 * 20e-6 + 2 * 7 / 8 * 1e8 / 8 / 10e9
    assert far.seconds("all_reduce", 1e8, 64) == pytest.approx(near.seconds("all_reduce", 1e8, 8) + between)


def test_a_measured_link_is_linear_between_its_points() -> None:
    link = Link(((4096.0, 4e-6), (8192.0, 5e-6), (1048576.0, 20e-6)))
    times = [Links(link).seconds("all_reduce", n, 2) for n in (0, 4096, 6144, 8192, 2 * 1048576)]
    slope = 15e-6 / (1048576 - 8192)
    assert times == pytest.approx([4e-6, 4e-6, 4.5e-6, 5e-6, 20e-6 + slope * 1048576])


def test_the_first_number_that_does_less_than_half_each() -> None:
    assert stops((1, 2, 8), (100.0, 190.0, 390.0)) == 8
    assert stops((1, 2, 8), (100.0, 190.0, 410.0)) is None


def test_a_program_without_the_others_and_its_meetings() -> None:
    session, mesh = SoloSession("cpu", engine="numpy"), SoloMesh({"data": 4})
    graph = rlx.Graph("rank")
    x = graph.input("x", (8, 2))

    def step(total: rlx.Tensor, row: rlx.Tensor) -> tuple[rlx.Tensor, rlx.Tensor]:
        total = total + rlx.all_reduce(row, "data")
        return total, total

    with mesh:
        graph.output("sum", rlx.all_reduce(x, "data"))
        graph.output("whole", rlx.all_gather(x, "data"))
        graph.output("part", rlx.reduce_scatter(x, "data"))
        graph.output("sums", rlx.scan(step, rlx.zeros_like(x[0]), x)[1])
    with session.compile(graph) as program:
        meetings = session.meetings[program]
        values = np.arange(16, dtype=np.float32).reshape(8, 2)
        got = program.run({"x": values})
    each = [Meeting(op, 64, 1) for op in ("all_reduce", "all_gather", "reduce_scatter")]
    assert meetings == [*each, Meeting("all_reduce", 8, 8)]
    assert got["sum"].tolist() == values.tolist() and got["part"].tolist() == values[:2].tolist()
    assert got["whole"].tolist() == np.tile(values, (4, 1)).tolist()
    assert got["sums"].tolist() == np.cumsum(values, 0).tolist()


def test_meetings_in_a_loop_without_a_number_of_steps_are_refused() -> None:
    graph = rlx.Graph("rank")
    x = graph.input("x", ())
    with SoloMesh({"data": 2}):
        y = rlx.while_loop(lambda v: v < 9.0, lambda v: rlx.all_reduce(v, "data") + 1.0, x)
    graph.output("y", y)
    with pytest.raises(GraphError, match="how often ranks meet in a while_loop is not known"):
        meetings_of(graph)
