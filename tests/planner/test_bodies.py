"""Bodies of control ops in a plan share free memory, and overlap no slot that is alive while they run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import rlx
from rlx.driver import MemoryPlan
from rlx.driver.memory.plan import OuterSegment
from rlx.driver.memory.planner import plan

MEGABYTE = 1 << 20


def program() -> rlx.Graph:
    """Large values before a cond whose branches have large values of their own, one of them in a loop."""
    g = rlx.Graph("branches")
    x = g.input("x", (MEGABYTE // 4,))
    held = rlx.exp(x)
    before = rlx.sum(rlx.cumsum(rlx.flip(rlx.sin(x), 0)))
    twice = lambda t: rlx.cumsum(rlx.flip(rlx.cumsum(rlx.flip(t, 0)), 0))  # noqa: E731
    looped = lambda t: rlx.scan(lambda c, _: (twice(c), None), twice(t), None, length=3)[0]  # noqa: E731
    g.output("y", rlx.cond(before > 0, twice, looped, x) + held)
    return g


def touched(made: MemoryPlan) -> Iterator[tuple[str, int, int]]:
    """The bodies' slots as (segment by its name in the outer plan, first byte, end)."""
    for body in made.bodies.values():
        slots = ((s.segment, s.offset, s.end) for s in body.plan.slots.values() if s.nbytes)
        for segment, first, end in (*slots, *touched(body.plan)):
            if isinstance(segment, OuterSegment):
                yield segment.name, first, end


def test_branches_share_what_is_free_meanwhile() -> None:
    made = plan(program())
    assert (
        made.total_bytes <= 6.1 * MEGABYTE
    )  # x, `held`, the result, and the three tensors of the loop
    assert made.overhead == pytest.approx(1.0, abs=0.05)
    assert made.total_bytes * 2 < plan(program(), planner="bump").total_bytes


def test_nothing_alive_is_touched_but_what_is_bound() -> None:
    graph = program()
    made = plan(graph)
    (at,) = (i for i, n in enumerate(graph.nodes) if n.op.name == "cond")
    bound = {t.id for t in (*graph.nodes[at].inputs, *graph.nodes[at].outputs)}
    alive = [
        made.slots[t]
        for t, life in made.live_ranges.items()
        if life.first <= at <= life.last and t not in bound
    ]
    assert alive and any(True for _ in touched(made))
    for segment, first, end in touched(made):
        for slot in alive:
            assert slot.segment != segment or end <= slot.offset or slot.end <= first


def test_a_body_too_large_for_one_allocation_keeps_memory_of_its_own() -> None:
    made = plan(program(), max_alloc_bytes=MEGABYTE + 4096)
    assert all(n <= MEGABYTE + 4096 for n in made.segments.values())
    assert any(body.plan.arena_bytes >= MEGABYTE for body in made.bodies.values())
