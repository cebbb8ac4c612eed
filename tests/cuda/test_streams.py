"""The two streams of a capture: what each step waits for, in a record of the calls that a capture makes."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

from rlx.backends.cuda.recorder import _Fork
from rlx.backends.gpu.program.steps import Copy, FileKernel, Launch, Ref
from rlx.driver.closing import Resources

MAIN, SIDE, ASIDE, EVENT = 1, 2, 3, 7
LAUNCH = Launch(FileKernel("scale"), (1, 1, 1), (), (), ())
COPY = Copy(Ref("arena0", 0, 4), Ref("arena0", 4, 4))


class Order:
    """Which steps are complete before the next one of a stream begins, by CUDA's rules for streams and events."""

    def __init__(self) -> None:
        self.before: dict[int, set[int]] = {MAIN: set(), SIDE: set()}
        self.recorded: set[int] = set()
        self.joined = {MAIN}

    def eventRecord(self, event: int, stream: int) -> None:
        assert event == EVENT and stream in self.joined
        self.recorded = set(self.before[stream])

    def streamWaitEvent(self, stream: int, event: int) -> None:
        assert event == EVENT
        self.joined.add(stream)
        self.before[stream] |= self.recorded

    def enqueue(self, stream: int, step: int) -> set[int]:
        assert stream in self.joined, "the stream is no part of the capture"
        waited = set(self.before[stream])
        self.before[stream].add(step)
        return waited


def captured(steps: list[Any], barriers: set[int]) -> tuple[list[set[int]], list[int], Order]:
    """For each step the steps that it waits for, and its stream."""
    order = Order()
    device: Any = SimpleNamespace(
        api=SimpleNamespace(runtime=order), fork_event=EVENT, capture_streams=(MAIN, SIDE), aside_stream=ASIDE
    )
    fork, waited, streams = _Fork(device, Resources()), [], []
    fork.join()
    for i, step in enumerate(steps):
        if i in barriers:
            fork.join()
        streams.append(fork.stream(step))
        waited.append(order.enqueue(streams[-1], i))
    fork.join()
    return waited, streams, order


def test_a_step_waits_for_all_before_its_barrier() -> None:
    pick = random.Random(0)
    for _ in range(300):
        count = pick.randrange(12)
        steps = [pick.choice((LAUNCH, LAUNCH, COPY)) for _ in range(count)]
        barriers = {i for i in range(1, count) if pick.random() < 0.3}
        waited, streams, order = captured(steps, barriers)
        for i, before in enumerate(waited):
            last = max((b for b in barriers if b <= i), default=0)
            assert before >= set(range(last)), (i, sorted(barriers), streams)
        assert order.before[MAIN] == set(range(count)), "the capture ends before all steps"


def test_launches_between_barriers_take_turns_and_copies_stay_on_the_first_stream() -> None:
    steps = [LAUNCH, LAUNCH, COPY, LAUNCH, LAUNCH, COPY]
    waited, streams, _ = captured(steps, {4})
    assert streams == [MAIN, SIDE, MAIN, MAIN, MAIN, MAIN]
    assert waited[1] == set(), "the second launch waits for the first"
