"""Barriers are placed where byte ranges of steps conflict, and nowhere else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlx.backends.gpu.program.barriers import ByteRanges, place_barriers, placed
from rlx.backends.gpu.program.steps import Copy, FileKernel, Launch, Ref, Step

KERNEL = FileKernel("k")


def step(reads: list[Ref], writes: list[Ref]) -> Launch:
    return Launch(KERNEL, (1, 1, 1), (*reads, *writes), tuple(reads), tuple(writes))


A, B, C = (Ref("arena0", i * 256, 256) for i in range(3))


@pytest.mark.parametrize(
    "first, second, wanted",
    [
        (step([], [A]), step([A], [B]), {1}),  # read after write
        (step([A], [B]), step([], [A]), {1}),  # write after read
        (step([], [A]), step([], [A]), {1}),  # write after write
        (step([A], [B]), step([A], [C]), set()),  # two reads
        (step([], [A]), step([], [B]), set()),
        (step([], [Ref("arena0", 0, 300)]), step([Ref("arena0", 299, 1)], []), {1}),
        (step([], [Ref("arena0", 0, 300)]), step([Ref("arena0", 300, 1)], []), set()),
        (step([], [A]), step([Ref("weights0", 0, 256)], [B]), set()),
        (step([], [A]), step([Ref("arena0", 10, 0)], [B]), set()),  # no bytes
        (step([], [Ref("arena0", 10, 0)]), step([A], [B]), set()),
        (step([A], [A]), step([B], [B]), set()),  # in place
        (Copy(A, B), step([B], [C]), {1}),
        (Copy(A, B), Copy(C, A), {1}),
    ],
)
def test_pairs(first: Step, second: Step, wanted: set[int]) -> None:
    assert place_barriers([first, second]) == wanted


def test_none_for_nothing() -> None:
    assert place_barriers([]) == frozenset()
    assert place_barriers([step([A], [B])]) == frozenset()


def test_one_barrier_serves_all_steps_after_it() -> None:
    steps = [step([], [A]), step([], [B]), step([A], [C]), step([B], [])]
    assert place_barriers(steps) == {2}


def test_reuse_of_a_slot_that_the_graph_does_not_show() -> None:
    # The second step overwrites the bytes of A, which the first may still be reading.
    assert place_barriers([step([A], [C]), step([B], [A])]) == {1}


refs = st.builds(
    lambda segment, offset, nbytes: Ref(segment, offset, nbytes),
    st.sampled_from(["arena0", "weights0"]),
    st.integers(0, 60),
    st.integers(0, 12),
)
lists = st.lists(refs, max_size=3)


def conflict(first: Step, second: Step) -> bool:
    """Whether two steps conflict, compared byte by byte."""

    def touched(some: tuple[Ref, ...]) -> set[tuple[str, int]]:
        return {(r.segment, i) for r in some for i in range(r.offset, r.end)}

    w1, w2 = touched(first.writes), touched(second.writes)
    return bool(w1 & (touched(second.reads) | w2) or touched(first.reads) & w2)


@given(st.lists(st.tuples(lists, lists), max_size=25))
def test_every_conflict_is_ordered_and_no_barrier_is_idle(data: list[tuple[list[Ref], list[Ref]]]) -> None:
    steps = [step(reads, writes) for reads, writes in data]
    placed = place_barriers(steps)
    epoch = [sum(b <= i for b in placed) for i in range(len(steps))]
    for j in range(len(steps)):
        conflicts = [i for i in range(j) if epoch[i] == epoch[j] and conflict(steps[i], steps[j])]
        assert not conflicts
    for b in placed:  # each is needed: a step since the barrier before it conflicts with the one behind it
        assert any(conflict(steps[i], steps[b]) for i in range(b) if epoch[i] == epoch[b] - 1)


@given(st.lists(st.tuples(lists, lists, st.booleans()), max_size=25))
def test_steps_aside_are_ordered_with_what_they_conflict_with(data: list[tuple[list[Ref], list[Ref], bool]]) -> None:
    steps = [step(reads, writes) for reads, writes, _ in data]
    may = {id(s): aside for s, (_, _, aside) in zip(steps, data, strict=True)}
    barriers, aside, awaited = placed(steps, lambda s: may[id(s)])
    assert all(data[i][2] for i in aside) and set(awaited) <= barriers
    done: set[int] = set()  # what is known to be done at the last barrier
    begun: set[int] = set()  # steps that are not aside
    before: list[set[int]] = []  # what each step is behind
    last: set[int] = set()  # the last step aside, and what it is behind
    for j in range(len(steps)):
        if j in awaited:
            assert awaited[j] in aside and awaited[j] < j
            begun |= before[awaited[j]] | {awaited[j]}
        if j in barriers:
            done = done | begun
        if j in aside:
            before.append(done | last)
            last = before[-1] | {j}
        else:
            before.append(set(done))
            begun.add(j)
        assert before[j] >= {i for i in range(j) if conflict(steps[i], steps[j])}
        assert not data[j][2] or before[j] >= {i for i in aside if i < j}  # also where the step is not aside itself


def test_a_step_aside_is_awaited_by_what_reads_it() -> None:
    steps = [step([], [A]), step([A], [A]), step([], [B]), step([B], [C]), step([A], []), step([C], [])]
    collective = steps[1]
    assert placed(steps, lambda s: s is collective) == ({1, 3, 4}, {1}, {4: 1})
    assert not placed(steps[:2] + steps[4:], lambda s: s is collective).aside  # the next step needs it


@given(st.lists(refs, max_size=20), refs)
def test_byte_ranges(added: list[Ref], asked: Ref) -> None:
    ranges = ByteRanges()
    held = set()
    for r in added:
        ranges.add(r)
        held |= {(r.segment, i) for i in range(r.offset, r.end)}
    assert ranges.meets(asked) == any((asked.segment, i) in held for i in range(asked.offset, asked.end))
    ranges.clear()
    assert not ranges.meets(asked)
