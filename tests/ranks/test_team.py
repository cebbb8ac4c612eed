"""Threads that stay, one for each rank."""

from __future__ import annotations

import gc
import signal
import threading
import weakref

import pytest

from rlx.errors import RankLost
from rlx.ranks.collect import Group
from rlx.ranks.team import Team, team_of


def test_each_rank_makes_its_calls_in_order() -> None:
    team = team_of({"r": 3}, ("cpu",) * 3)
    seen: list[list[int]] = [[], [], []]
    for i in range(20):
        team.begin(lambda rank, i=i: seen[rank].append(i))  # type: ignore[misc]
    assert team.each(lambda rank: (rank, threading.current_thread().name)) == [(r, f"rlx rank {r}") for r in range(3)]
    assert seen == [list(range(20))] * 3


def test_an_error_of_one_rank_ends_the_call_of_all_and_no_later_one() -> None:
    team = team_of({"r": 2}, ("cpu",) * 2)

    def meet(rank: int, fails: bool = False) -> str:
        if fails and rank == 1:
            raise ValueError("no")
        Group(team.mesh.world, rank, (0, 1)).meet(lambda: "here")  # type: ignore[arg-type]
        return "met"

    for _ in range(3):
        with pytest.raises(ValueError, match="no"):
            team.each(lambda rank: meet(rank, True))
        assert team.each(meet) == ["met", "met"]
    begun = team.begin(lambda rank: meet(rank, True))
    with pytest.raises(ValueError, match="no"):  # also of calls that nobody waited for
        team.each(meet)
    assert [type(e) for e in begun.errors] == [ValueError, RankLost]


def test_teams_of_the_same_devices_share_threads_but_no_errors() -> None:
    """So programs of two models begin in one order on all ranks, whatever threads they are begun by."""
    team, other = team_of({"r": 2}, ("cpu", "cpu")), team_of({"r": 2}, ["cpu", "cpu"])
    three = team_of({"r": 3}, ("cpu",) * 3)

    def threads(of: Team) -> list[threading.Thread]:
        return of.each(lambda rank: threading.current_thread())

    assert threads(team) == threads(other) != threads(three)[:2]
    team.begin(lambda rank: 1 // 0)
    assert other.each(lambda rank: rank) == [0, 1]
    with pytest.raises(ZeroDivisionError):
        team.each(lambda rank: rank)


def test_threads_that_wait_keep_nothing_of_their_last_call() -> None:
    class Model:
        pass

    model, team = Model(), team_of({"r": 2}, ("cpu", "cpu"))
    team.each(lambda rank, model=model: rank)  # type: ignore[misc]
    known = weakref.ref(model)
    team_of({"r": 2}, ("cpu", "cpu")).each(lambda rank: rank)
    del model
    gc.collect()
    assert known() is None


def test_an_interrupt_while_a_call_is_under_way_reaches_the_caller() -> None:
    team, go = team_of({"r": 2}, ("cpu", "cpu")), threading.Event()

    def call(rank: int) -> None:
        if rank == 0:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        go.wait(1)  # an interrupt just before the caller waits comes when this ends

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            team.each(call)
    finally:
        signal.signal(signal.SIGINT, before)
    go.set()
    assert team.each(lambda rank: rank) == [0, 1]  # after what was under way


def test_no_thread_starts_before_the_first_call() -> None:
    begun = threading.active_count()
    team = team_of({"r": 7}, ("cpu",) * 7)
    assert threading.active_count() == begun
    team.each(lambda rank: rank)
    assert threading.active_count() == begun + 7
