"""The pool hands on the smallest buffer that suffices, stays within its limits, and frees everything once."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlx.driver.memory.pool import MAX_BUFFERS, BufferPool
from tests.threads import at_once


@dataclass(eq=False)
class Memory:
    nbytes: int
    freed: int = 0


def make(budget: int = 1 << 40, max_buffers: int = MAX_BUFFERS) -> BufferPool[Memory]:
    def free(memory: Memory) -> None:
        memory.freed += 1

    return BufferPool(free, budget, max_buffers)


def test_smallest_that_suffices() -> None:
    pool = make()
    small, middle, large = Memory(100), Memory(200), Memory(300)
    for memory in (large, small, middle):
        pool.give(memory)
    assert pool.take(150) is middle
    assert pool.take(150) is large
    assert pool.take(150) is None
    assert pool.take(100) is small
    assert len(pool) == pool.nbytes == 0


def test_capacity_is_the_key_not_what_was_asked() -> None:
    pool = make()
    memory = Memory(4096)
    pool.give(memory)
    assert pool.take(10) is memory
    pool.give(memory)
    assert pool.take(4096) is memory


def test_small_request_does_not_pin_a_large_buffer() -> None:
    pool = make()
    pool.give(Memory(1 << 30))
    assert pool.take(4096) is None
    assert pool.take(1 << 28) is not None


def test_smallest_evicted_first_by_count() -> None:
    pool = make()
    given_back = [Memory(n) for n in range(100, 100 + MAX_BUFFERS)]
    for memory in given_back:
        pool.give(memory)
    pool.give(Memory(1000))
    assert [m.nbytes for m in given_back if m.freed] == [100]
    tiny = Memory(1)
    pool.give(tiny)
    assert tiny.freed == 1
    assert len(pool) == MAX_BUFFERS


def test_smallest_evicted_first_by_bytes() -> None:
    pool = make(budget=100)
    small, large = Memory(30), Memory(60)
    pool.give(small)
    pool.give(large)
    pool.give(Memory(40))
    assert (small.freed, large.freed, pool.nbytes) == (1, 0, 100)
    beyond = Memory(101)
    pool.give(beyond)
    assert beyond.freed == 1
    assert pool.nbytes == 100


def test_trim_and_close() -> None:
    pool = make()
    first, second = Memory(10), Memory(20)
    pool.give(first)
    assert pool.trim() == 10
    assert pool.trim() == 0
    pool.close()
    pool.close()
    pool.give(second)
    assert (first.freed, second.freed, len(pool)) == (1, 1, 0)


def test_limits_are_not_negative() -> None:
    with pytest.raises(ValueError, match="negative"):
        make(budget=-1)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5000)), max_size=80), st.integers(0, 20000))
def test_never_twice_never_too_small(steps: list[tuple[bool, int]], budget: int) -> None:
    pool = make(budget)
    out: list[Memory] = []
    everything: list[Memory] = []
    for taking, nbytes in steps:
        if taking or not out:
            memory = pool.take(nbytes)
            if memory is None:
                memory = Memory(nbytes)
                everything.append(memory)
            assert memory.nbytes >= nbytes
            assert not memory.freed
            assert all(memory is not other for other in out)
            out.append(memory)
        else:
            pool.give(out.pop(nbytes % len(out)))
        assert len(pool) <= MAX_BUFFERS
        assert pool.nbytes <= budget
    pool.close()
    for memory in out:
        pool.give(memory)
    assert all(memory.freed == 1 for memory in everything)


def test_threads() -> None:
    pool = make(max_buffers=4)
    held: set[int] = set()
    lock = threading.Lock()

    def work(seed: int) -> None:
        for i in range(300):
            nbytes = (seed * 131 + i * 17) % 500 + 1
            memory = pool.take(nbytes) or Memory(nbytes)
            with lock:
                assert id(memory) not in held and not memory.freed, "a buffer in two hands, or a freed one"
                held.add(id(memory))
            with lock:
                held.discard(id(memory))
            pool.give(memory)

    at_once(8, work)
    assert len(pool) <= 4
