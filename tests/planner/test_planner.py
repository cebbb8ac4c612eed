"""Plans of random graphs and random interval problems, judged by an independent replay on shadow memory."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import rlx
from rlx.driver import MemoryPlan
from rlx.driver.memory.plan import ALIGNMENT, LiveRange
from rlx.driver.memory.planner import moved, packing, plan, plan_bump, plan_reuse, storage
from rlx.driver.memory.planner.packing import Block
from rlx.driver.memory.views import is_alias
from rlx.errors import ArenaError, GraphError, OutOfDeviceMemory
from rlx.ir import Graph, Tensor
from tests.full import full
from tests.planner.shadow import faults
from tests.planner.toys import ADD, COPY, MIX, NORM, RESHAPE, SLICE, graphs, stores

MANY = settings(max_examples=500 if full() else 100)


@MANY
@given(graphs(), st.sampled_from(("reuse", "bump")), st.booleans(), st.sampled_from((0, 256)))
def test_no_live_byte_is_overwritten(g: Graph, planner: str, inplace: bool, guard: int) -> None:
    made = plan(g, planner=planner, inplace=inplace, guard=guard, **stores(g))
    assert faults(g, made) == []
    arena = [s for s in made.slots.values() if s.segment.startswith("arena")]
    assert all(s.end + (guard if s.nbytes else 0) <= made.segments[s.segment] for s in arena)
    assert all(made.slots[t.id].offset % ALIGNMENT == 0 for t in g.tensors() if t.id not in made.alias_of)
    assert all(s.offset % 16 == 0 for s in made.slots.values())
    assert made.arena_bytes >= made.max_live_bytes


@MANY
@given(graphs(), st.booleans())
def test_the_arena_is_split_where_the_device_limits_an_allocation(g: Graph, inplace: bool) -> None:
    limit = max([-(-t.type.nbytes // ALIGNMENT) * ALIGNMENT for t in g.tensors()] + [ALIGNMENT]) + 300
    made = plan_reuse(g, max_alloc_bytes=limit, inplace=inplace, **stores(g))
    assert faults(g, made) == []
    assert all(n <= limit for n in made.segments.values())
    apart = plan_bump(g, max_alloc_bytes=limit, **stores(g))
    assert faults(g, apart) == []
    assert all(n <= limit for n in apart.segments.values())


@MANY
@given(graphs(), st.sampled_from(("reuse", "bump")))
def test_a_plan_moved_to_other_weights_and_states_is_the_plan_made_for_them(g: Graph, planner: str) -> None:
    here = stores(g)
    there = {kind: {n: s._replace(segment=f"other.{n}", offset=s.offset + 512) for n, s in slots.items()}
             for kind, slots in here.items()}  # fmt: skip
    made = plan(g, planner=planner, **there)
    assert moved(plan(g, planner=planner, **here), g, there["param_slots"], there["state_slots"]) == made


@settings(max_examples=300 if full() else 60)
@given(graphs())
def test_the_bump_planner_gives_every_tensor_its_own_bytes(g: Graph) -> None:
    made = plan_bump(g, **stores(g))
    taken: dict[str, list[tuple[int, int]]] = {}
    for t in g.tensors():
        slot = made.slots[t.id]
        if slot.nbytes:
            taken.setdefault(slot.segment, []).append((slot.offset, slot.end))
    for spans in taken.values():
        spans.sort()
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
    assert made.alias_of == {}
    assert made.arena_bytes == made.no_reuse_bytes


@settings(max_examples=300 if full() else 60)
@given(graphs())
def test_reuse_is_never_larger_than_its_parts(g: Graph) -> None:
    made, apart = plan_reuse(g, **stores(g)), plan_bump(g, **stores(g))
    assert made.max_live_bytes <= made.arena_bytes <= apart.arena_bytes == made.no_reuse_bytes
    assert made.max_live_bytes <= apart.max_live_bytes


blocks = st.lists(
    st.builds(
        lambda size, a, b: Block(size * ALIGNMENT, min(a, b), max(a, b)),
        st.one_of(st.integers(0, 6), st.integers(0, 4000)),
        st.integers(0, 30),
        st.integers(0, 30),
    ),
    max_size=40,
)


def overlaps(problem: Sequence[Block], places: Sequence[tuple[int, int]]) -> bool:
    """Whether two blocks that are alive at one step share bytes; compares all pairs."""
    for i, (a, (arena_a, at_a)) in enumerate(zip(problem, places, strict=True)):
        for b, (arena_b, at_b) in zip(problem[:i], places[:i], strict=True):
            together = any(b.first <= step <= b.last for step in range(a.first, a.last + 1))
            apart = arena_a != arena_b or at_a + a.nbytes <= at_b or at_b + b.nbytes <= at_a
            if together and not apart and a.nbytes and b.nbytes:
                return True
    return False


@MANY
@given(blocks, st.sampled_from((1 << 62, 4000 * ALIGNMENT)))
def test_interval_problems(problem: list[Block], limit: int) -> None:
    found = packing.pack(problem, limit)
    assert not overlaps(problem, found.places)
    for b, (arena, at) in zip(problem, found.places, strict=True):
        assert at >= 0 and at + b.nbytes <= found.sizes[arena] <= limit
    live = [sum(b.nbytes for b in problem if b.first <= t <= b.last) for t in range(31)]
    assert packing.max_live(problem) == max(live) <= sum(found.sizes) <= sum(b.nbytes for b in problem)


@settings(max_examples=200 if full() else 40)
@given(blocks)
def test_every_order_gives_a_sound_packing(problem: list[Block]) -> None:
    for order in packing._orders(problem):
        assert sorted(order) == list(range(len(problem)))
        assert not overlaps(problem, packing.first_fit(problem, order, 1 << 62).places)


# -- planted faults: each must be found within 5000 examples


def _early(graph: Graph) -> dict[int, int]:
    """A planted fault: last uses one node too early, wherever a tensor is used at all."""
    last = {t.id: i for i, node in enumerate(graph.nodes) for t in (*node.inputs, *node.outputs)}
    made = {t.id: i for i, node in enumerate(graph.nodes) for t in node.outputs}
    return {t: max(i - 1, made[t]) for t, i in last.items()}


def _inputs_die(graph: Graph) -> dict[int, LiveRange]:
    lives, last = storage.tensor_live_ranges(graph), storage.last_uses(graph)
    for t in graph.inputs.values():
        lives[t.id] = LiveRange(0, last[t.id])
    return lives


def _outputs_overlap_inputs(graph: Graph) -> dict[int, LiveRange]:
    """A planted fault: outputs whose live range begins after their node."""
    lives = storage.tensor_live_ranges(graph)
    return {t: LiveRange(min(v.first + (v.first > 0), v.last), v.last) for t, v in lives.items()}


def _whole_way(graph: Graph) -> dict[int, Tensor]:
    """A planted fault: donations that overwrite results."""
    found: dict[int, Tensor] = {}
    for name, t in graph.updates.items():
        if t is not graph.states[name] and not t.node.op.leaf:
            found.update(dict.fromkeys(storage._donation_path(t, graph.states[name]), graph.states[name]))
    return found


FAULTS: dict[str, tuple[str, Any]] = {
    "freed one node early": ("planner.storage.last_uses", _early),
    "freed output": ("planner.storage.kept_to_the_end", lambda graph: []),
    "overwritten while still needed": ("planner.storage._is_last_use", lambda layout, x, step: True),
    "in place over an operand read meanwhile": ("planner.storage._is_sole_reader", lambda layout, node, x: True),
    "in place over another size": ("planner.storage.may_take_over", lambda node, position, t: True),
    "view at the wrong place": (
        "planner.storage.view_offset",
        lambda node: 0 if node.op.name == "slice" else None,
    ),
    "view of a state that changes": ("planner.storage._may_view", lambda *a: True),
    "state overwritten while still needed": ("planner.storage.may_overwrite", lambda *a: True),
    "state overwritten before what may fail": ("planner.storage.after_last_failure", lambda graph: 0),
    "result made in a state on the way to its new value": ("planner.storage.donations", _whole_way),
    "input overwritten before the next run": ("planner.tensor_live_ranges", _inputs_die),
    "output born late": ("planner.tensor_live_ranges", _outputs_overlap_inputs),
}


class _Found(Exception):
    """Raised where a fault is found, which ends the search."""


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.late
def test_planted_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, fault = FAULTS[name]
    monkeypatch.setattr(f"rlx.driver.memory.{target}", fault)

    @settings(
        max_examples=5000,
        derandomize=True,
        database=None,
        phases=[Phase.generate],  # the first example that shows the fault is enough: it is not shrunk
        suppress_health_check=list(HealthCheck),
        deadline=None,
    )
    @given(graphs())
    def search(g: Graph) -> None:
        if faults(g, plan_reuse(g, **stores(g))):
            raise _Found

    with pytest.raises(_Found):
        search()


# -- single rules


def chain(*, keep: bool = False) -> tuple[Graph, list[Tensor]]:
    g = Graph("chain")
    x = g.input("x", (64, 64))
    a = g.add(MIX, (x, x))[0]
    b = g.add(ADD, (a, x))[0]
    c = g.add(ADD, (b, x))[0]
    g.output("y", c)
    if keep:
        g.output("b", b)
    return g, [x, a, b, c]


def test_in_place_takes_over_a_dying_input() -> None:
    g, (x, a, b, c) = chain()
    made = plan_reuse(g)
    assert made.slots[a.id].offset == made.slots[b.id].offset == made.slots[c.id].offset
    assert made.alias_of == {b.id: a.id, c.id: b.id}
    assert made.slots[x.id].offset != made.slots[a.id].offset
    assert made.arena_bytes == made.max_live_bytes == 2 * 64 * 64 * 4
    assert not is_alias(b.node, made)


def test_in_place_spares_outputs_and_can_be_off() -> None:
    g, (_, _, b, c) = chain(keep=True)
    made = plan_reuse(g)
    assert made.slots[b.id].offset != made.slots[c.id].offset
    assert plan_reuse(g, inplace=False).alias_of == {}


def test_views_cost_nothing_and_chain() -> None:
    g = Graph("views")
    x = g.input("x", (4, 16))
    r = g.add(RESHAPE, (x,), {"shape": (8, 8)})[0]
    s = g.add(SLICE, (r,), {"starts": (2, 0), "stops": (6, 8), "steps": (1, 1)})[0]
    odd = g.add(SLICE, (r,), {"starts": (0, 1), "stops": (8, 8), "steps": (1, 1)})[0]
    g.output("s", s)
    g.output("odd", odd)
    made = plan_reuse(g)
    assert made.slots[s.id].offset == made.slots[x.id].offset + 2 * 8 * 4
    assert is_alias(r.node, made) and is_alias(s.node, made) and not is_alias(odd.node, made)
    assert not is_alias(r.node, plan_bump(g))


@pytest.mark.parametrize("n, kept", [(64, True), (128, False)])
def test_a_crumb_does_not_keep_the_loaf(n: int, kept: bool) -> None:
    """It does where the loaf is smaller than a step is worth."""
    g = Graph("crumb")
    x = g.input("x", (n, n))
    big = g.add(MIX, (x, x))[0]
    row = g.add(SLICE, (big,), {"starts": (n - 1, 0), "stops": (n, n), "steps": (1, 1)})[0]
    g.output("row", row)
    made = plan_reuse(g)
    assert (row.id in made.alias_of) is kept


def test_leaves_as_outputs_keep_their_slots() -> None:
    g = Graph("leaves")
    x, w, c = g.input("x", (3,)), g.param("w", (4,)), g.constant(np.arange(5, dtype=np.int32))
    g.output("x", x)
    g.output("w", w)
    g.output("c", c)
    g.output("again", w)
    g.output("flat", g.add(RESHAPE, (w,), {"shape": (2, 2)})[0])
    given = stores(g)
    made = plan_reuse(g, **given)
    assert made.slots[w.id] == given["param_slots"]["w"]
    assert made.slots[g.outputs["flat"].id].segment == "w_w"
    assert made.slots[x.id].segment == "arena0"
    assert made.slots[c.id].segment == "const"
    assert made.segments == {"arena0": 256, "const": 256}


def test_a_result_that_views_a_changing_state_is_copied() -> None:
    g = Graph("state")
    s, x = g.state("s", (8, 8)), g.input("x", (8, 8))
    g.update("s", g.add(ADD, (s, x))[0])
    old = g.add(COPY, (s,))[0]
    g.output("old", old)
    made = plan_reuse(g, **stores(g))
    assert old.id not in made.alias_of and made.slots[old.id].segment == "arena0"
    assert made.slots[g.updates["s"].id].segment == "arena0"


def test_a_changing_state_itself_cannot_be_a_result() -> None:
    g = Graph("state")
    s, x = g.state("s", (8, 8)), g.input("x", (8, 8))
    g.update("s", g.add(ADD, (s, x))[0])
    g.output("old", s)
    with pytest.raises(GraphError, match=r"output 'old' is state 's' itself.*isolate_results"):
        plan_reuse(g, **stores(g))


def test_a_state_that_stays_may_be_a_result() -> None:
    g = Graph("state")
    s = g.state("s", (8, 8))
    g.update("s", s)
    g.output("s", s)
    assert plan_reuse(g, **stores(g)).slots[s.id].segment == "s_s"


def test_the_same_tensor_twice_is_in_place_only_elementwise() -> None:
    g = Graph("twice")
    x = g.input("x", (16,))
    a = g.add(MIX, (x,))[0]
    b = g.add(ADD, (a, a))[0]
    c = g.add(NORM, (b, b))[0]
    g.output("c", c)
    made = plan_reuse(g)
    assert made.alias_of == {b.id: a.id}


def test_zero_size_tensors_have_empty_slots() -> None:
    g = Graph("empty")
    x = g.input("x", (0, 4))
    g.output("y", g.add(ADD, (x, x))[0])
    made = plan_reuse(g)
    assert made.segments == {"arena0": 0, "const": 0}
    assert {s.nbytes for s in made.slots.values()} == {0}
    assert made.overhead == 1.0


def test_past_four_gib() -> None:
    g = Graph("large")
    x = g.input("x", (1 << 31,))
    y = g.add(MIX, (x,))[0]
    g.output("y", y)
    made = plan_reuse(g)
    assert made.slots[x.id].nbytes == 1 << 33
    assert made.arena_bytes == 1 << 34
    split = plan_reuse(g, max_alloc_bytes=1 << 33)
    assert split.segments == {"arena0": 1 << 33, "arena1": 1 << 33, "const": 0}


def test_errors_say_what_to_do() -> None:
    g = Graph("errors")
    x, w = g.input("x", (1000, 1000)), g.param("w", (4,))
    g.output("y", g.add(MIX, (x,))[0])
    with pytest.raises(ArenaError, match=r"param 'w' \(f32\[4\]\) has no slot"):
        plan_reuse(g)
    with pytest.raises(ArenaError, match=r"param 'w' is f32\[4\], 16 bytes; the slot given is"):
        plan_reuse(g, param_slots={"w": made_slot(w, nbytes=8)})
    with pytest.raises(OutOfDeviceMemory, match=r"4000000 bytes; the device allocates at most 1000000 bytes"):
        plan_reuse(g, max_alloc_bytes=1_000_000, **stores(g))
    with pytest.raises(GraphError, match="planner 'best' is not one of reuse, bump"):
        plan(g, planner="best")


def made_slot(t: Tensor, nbytes: int) -> Any:
    from rlx.driver import Slot

    return Slot("weights0", 0, nbytes, t.dtype)


def transformer(layers: int, batch: int, length: int, width: int, heads: int) -> Graph:
    """A graph with the shapes and live ranges of a BERT-like encoder, without its arithmetic."""
    g = Graph("transformer")
    flat, wide = (batch, length, width), (batch, length, 4 * width)

    def op(shape: tuple[int, ...], *xs: Tensor) -> Tensor:
        y = g.add(MIX, xs[:1])[0] if xs[0].shape == shape else None
        if y is not None and len(xs) == 1:
            return y
        like = g.constant(np.zeros((1,) * len(shape), np.float32))
        from tests.planner.toys import EXPAND

        return g.add(
            MIX, (g.add(EXPAND, (like,), {"shape": shape})[0], *(x for x in xs if x.shape == shape))
        )[0]

    x = op(flat, g.input("ids", (batch, length)))
    for _ in range(layers):
        q, k, v = (op(flat, x) for _ in range(3))
        scores = op((batch, heads, length, length), q, k)
        probs = g.add(NORM, (scores,))[0]
        mixed = op(flat, probs, v)
        x = g.add(NORM, (g.add(ADD, (op(flat, mixed), x))[0],))[0]
        up = g.add(ADD, (op(wide, x),))[0]
        x = g.add(NORM, (g.add(ADD, (op(flat, up), x))[0],))[0]
    g.output("y", x)
    return g


@pytest.mark.parametrize(
    "shape", [(6, 8, 128, 384, 12), (6, 1, 16, 384, 12), (12, 1, 512, 768, 12), (4, 3, 77, 96, 3)]
)
def test_transformers_reach_the_bound(shape: tuple[int, ...]) -> None:
    made: MemoryPlan = plan_reuse(transformer(*shape))
    assert made.overhead <= 1.01
    assert made.arena_bytes < made.no_reuse_bytes / 5


def test_parts_that_are_all_read_later_stay_where_they_are() -> None:
    """Together they are the whole storage, which their copies would only double; but for the last ones, for which all
    of it would have to stay."""
    g = Graph("parts")
    whole = g.input("x", (512, 512), "f32") * 2.0
    parts = [rlx.reshape(whole[32 * i : 32 * i + 32], (16, 1024)) for i in range(16)]
    total = rlx.sum(whole)
    for i, part in enumerate(parts):
        g.output(f"y{i}", part * total)
    memory = plan(g)
    assert sum(is_alias(part.node, memory) for part in parts) == 13


def test_a_small_part_that_is_read_later_is_copied() -> None:
    g = Graph("part")
    whole = g.input("x", (512, 512), "f32") * 2.0
    part = whole[:32]
    g.output("y", part * rlx.sum(whole))
    assert not is_alias(part.node, plan(g))
