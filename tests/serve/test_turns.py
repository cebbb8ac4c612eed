"""Whose turn it is among sequences that wait, and that none waits for the programs of another."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("starlette", reason="needs rlx[serve]")
pytest.importorskip("uvicorn", reason="needs rlx[serve]")

from rlx.models.language.batch import Batch
from rlx.serve.queue import FairQueue
from tests.serve.served import GREEDY, PROMPT, TEXT, Served, served


class One(NamedTuple):
    client: tuple[str, str]
    number: int = 0
    priority: int = 0


def _turns(queue: FairQueue[One], count: int, tokens: int = 10) -> list[One]:
    """The next ones, each of which takes so many tokens and has ended when the next one begins."""
    made = []
    for _ in range(count):
        one = queue.order[0]
        queue.begin(one)
        queue.charge(one, tokens)
        queue.end(one)
        made.append(one)
    return made


def test_clients_share_whatever_each_asks_at_once() -> None:
    queue: FairQueue[One] = FairQueue()
    for number in range(9):
        queue.add(One(("a", ""), number))
    for number in range(3):
        queue.add(One(("b", ""), number))
    order = _turns(queue, 8)
    assert [one.client[0] for one in order] == [*"abababaa"]
    assert [one.number for one in order] == [0, 0, 1, 1, 2, 2, 3, 4]
    assert len(queue) == 4


def test_users_share_what_their_address_has() -> None:
    queue: FairQueue[One] = FairQueue()
    for user in ("x", "x", "x", "x", "y", "y"):
        queue.add(One(("a", user)))
    for _ in range(4):
        queue.add(One(("b", "")))
    assert [one.client for one in _turns(queue, 8)] == [
        ("a", "x"), ("b", ""), ("a", "y"), ("b", ""), ("a", "x"), ("b", ""), ("a", "y"), ("b", ""),
    ]  # fmt: skip


def test_long_texts_count_by_their_tokens_and_turns_are_not_saved_up() -> None:
    queue: FairQueue[One] = FairQueue()
    a, b = One(("a", "")), One(("b", ""))
    queue.add(a)
    queue.begin(a)
    queue.charge(a, 100)
    for number in range(20):
        queue.add(One(("a", ""), number))
        queue.add(One(("b", ""), number))
    assert {one.client[0] for one in _turns(queue, 10)} == {"b"}
    assert [one.client[0] for one in _turns(queue, 4)] == [*"abab"]
    for number in range(3):
        queue.add(One(("late", ""), number))
    assert sorted(one.client[0] for one in _turns(queue, 6)) == ["a", "a", "b", "b", "late", "late"]
    assert b not in queue and a not in queue


def test_the_least_priority_comes_first() -> None:
    queue: FairQueue[One] = FairQueue()
    for number, priority in enumerate((0, 5, -1, 0, -1)):
        queue.add(One(("a", ""), number, priority))
    assert [one.number for one in _turns(queue, 5)] == [2, 4, 0, 3, 1]
    assert not len(queue) and not queue._had and not queue._floor


def test_a_server_gives_slots_by_priority_and_client(folder: Path) -> None:
    """While two answers take both slots, others wait; they begin by priority, then in turns of users."""
    with served(folder, slots=2) as server:
        began: list[str] = []
        batch, begin = server.service.engine.batch, server.service.engine.batch.begin
        batch.begin = lambda ids, *args, **more: (began.append(str(ids[1:2])), begin(ids, *args, **more))[1]  # type: ignore
        held = [server.begun({**GREEDY, "prompt": [9, 3], "max_tokens": 190}) for _ in range(2)]
        gate = threading.Event()
        step = batch.step
        batch.step = lambda *given: (gate.wait(60), step(*given))[1]  # type: ignore[method-assign]
        asked = [("x", 0), ("x", 0), ("x", 0), ("y", 0), ("z", -1)]
        answers, threads = [], []
        for number, (user, priority) in enumerate(asked):
            body = {**PROMPT, "prompt": [9, 10 + number], "user": user, "priority": priority}
            thread = threading.Thread(target=lambda body=body: answers.append(server.ask(TEXT, body)[0]))
            thread.start()
            threads.append(thread)
            server.until(lambda now, n=number: now["rlx_sequences_waiting"] == n + 1)  # type: ignore[misc]
        gate.set()
        for connection in held:
            connection.close()
        for thread in threads:
            thread.join(60)
        assert began == ["[3]", "[3]", "[14]", "[10]", "[13]", "[11]", "[12]"] and answers == [200] * 5


@pytest.mark.parametrize("priority", [1001, -1001, "high", 0.5])
def test_priorities_out_of_range_are_refused(priority: Any, server: Served) -> None:
    status, answer = server.ask(TEXT, {**PROMPT, "priority": priority})
    assert status == 400 and "priority is" in answer["error"]["message"]


def test_answers_go_on_while_the_programs_of_a_first_kind_are_built(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first request for JSON waits for its programs, which another thread builds; others are answered meanwhile,
    also those that come after it, and it then gets the text that it gets alone."""
    asked = {**GREEDY, "prompt": "x", "max_tokens": 9, "response_format": {"type": "json_object"}}
    with served(folder) as server:
        want = server.ask(TEXT, asked)[1]["choices"][0]["text"]
    gate, prepare = threading.Event(), Batch.prepare

    def later(batch: Batch, *pickings: Any) -> None:
        if any(picking.masked for picking in pickings):
            assert gate.wait(60)
        prepare(batch, *pickings)

    monkeypatch.setattr(Batch, "prepare", later)
    with served(folder) as server:
        server.service.engine.batch.prepare()
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(server.ask(TEXT, asked)))
        thread.start()
        server.until(lambda now: now["rlx_sequences_waiting"] == 1)
        assert server.ask(TEXT, {**PROMPT, "max_tokens": 40})[0] == 200
        with server.sent({**asked, "temperature": 1, "stream": True}):
            server.until(lambda now: now["rlx_sequences_waiting"] == 2)
        server.until(lambda now: now["rlx_sequences_waiting"] == 1)
        assert not found
        gate.set()
        thread.join(60)
        assert found[0][0] == 200 and found[0][1]["choices"][0]["text"] == want


def test_programs_that_cannot_be_built_fail_their_request_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = Batch.prepare

    def fails(batch: Batch, *pickings: Any) -> None:
        if any(picking.scored for picking in pickings):
            raise MemoryError("no room for these")
        prepare(batch, *pickings)

    monkeypatch.setattr(Batch, "prepare", fails)
    with served(folder) as server:
        for _ in range(2):
            status, answer = server.ask(TEXT, {**PROMPT, "logprobs": 1})
            assert status == 500 and "no room for these" in answer["error"]["message"]
        assert server.ask(TEXT, PROMPT)[0] == 200
