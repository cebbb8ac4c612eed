"""Threads that stay, one for each rank."""

from __future__ import annotations

import gc
import threading

import pytest

import rlx
from rlx.errors import RankLost, ShapeError
from rlx.ranks.collect import Group
from rlx.ranks.team import Team, team_of


def test_each_rank_makes_its_calls_in_order() -> None:
    team = Team(rlx.Mesh({"r": 3}, devices=("cpu",) * 3))
    seen: list[list[int]] = [[], [], []]
    for i in range(20):
        team.begin(lambda rank, i=i: seen[rank].append(i))  # type: ignore[misc]
    assert team.each(lambda rank: (rank, threading.current_thread().name)) == [(r, f"rlx rank {r}") for r in range(3)]
    assert seen == [list(range(20))] * 3


def test_an_error_of_one_rank_ends_the_call_of_all_and_no_later_one() -> None:
    team = Team(rlx.Mesh({"r": 2}, devices=("cpu",) * 2, timeout=20))

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


def test_the_same_devices_have_one_team_as_long_as_somebody_has_it() -> None:
    """So programs of two models begin in one order on all ranks, whatever threads they are begun by."""
    team = team_of({"r": 2}, ("cpu", "cpu"))
    assert team_of({"r": 2}, ["cpu", "cpu"]) is team and team_of({"r": 3}, ("cpu",) * 3) is not team
    threads = team.each(lambda rank: threading.current_thread())
    del team
    gc.collect()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_ranks_that_are_no_threads_have_no_team() -> None:
    with pytest.raises(ShapeError, match="no threads"):
        Team(rlx.Mesh({"r": 1}))
