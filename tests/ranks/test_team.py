"""Threads that stay, one for each rank."""

from __future__ import annotations

import threading

import pytest

import rlx
from rlx.errors import RankLost, ShapeError
from rlx.ranks.collect import Group
from rlx.ranks.team import Team


def test_each_rank_makes_its_calls_in_order() -> None:
    team = Team(rlx.Mesh({"r": 3}, devices=("cpu",) * 3))
    seen: list[list[int]] = [[], [], []]
    for i in range(20):
        team.begin(lambda rank, i=i: seen[rank].append(i))  # type: ignore[misc]
    assert team.each(lambda rank: (rank, threading.current_thread().name)) == [(r, f"rlx rank {r}") for r in range(3)]
    assert seen == [list(range(20))] * 3
    team.close()


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
    team.close()


def test_ranks_that_are_no_threads_have_no_team() -> None:
    with pytest.raises(ShapeError, match="no threads"):
        Team(rlx.Mesh({"r": 1}))
