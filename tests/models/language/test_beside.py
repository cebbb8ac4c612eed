"""Tokens of prompts beside the steps of a batch: texts are those of runs of their own, and others wait no longer."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlx.errors import DTypeError, GraphError, OutOfDeviceMemory
from rlx.models import load
from rlx.models.language import batch as module
from rlx.models.language.batch import Batch
from rlx.models.language.decoder import Sampling
from rlx.models.language.graph import Picking
from rlx.models.language.shaping import Penalties
from tests.models.language import tiny
from tests.models.language.test_adapters import SMALL, matrices, write
from tests.models.language.test_batch import Multiples
from tests.models.language.test_families import folder_of

TOKENS = np.random.default_rng(5).integers(3, 60, 700).astype(np.int32)
Job = tuple[Any, int, dict[str, Any]]  # a prompt, how many tokens are to follow it, settings


def texts(batch: Batch, jobs: list[Job], beside: int) -> list[list[tuple[int, str]]]:
    """The tokens of sequences of which one begins at each step, if there is room; prompts are computed by themselves
    where `beside` is 0 or no sequence steps."""
    tokens: dict[int, list[tuple[int, str]]] = {}
    left = list(jobs)
    while left or batch.free < len(batch._held):
        if left and batch.free:
            prompt, count, settings = left.pop(0)
            fresh = {"constraint": lambda: Multiples(7), "penalties": lambda: Penalties(60, 1.3, 0.5, 0.25, {9: 2.0})}
            options = {name: fresh[name]() if name in fresh else value for name, value in settings.items()}
            tokens[batch.begin(prompt, count, **options)] = []
        here = beside if batch.stepping else 0
        if not here:
            batch.fill(30)
        for token in batch.step(3, here):
            tokens[token.sequence].append((token.token, token.ended))
    return list(tokens.values())


@pytest.mark.parametrize(
    ("config", "pages", "lookup"),
    [("GEMMA", None, True), *(pytest.param(config, pages, lookup, marks=pytest.mark.late) for config, pages, lookup in
                              (("GEMMA", 12, False), ("LLAMA", None, False), ("LLAMA", 12, True)))],
)  # fmt: skip
def test_prompts_beside_steps_change_no_token(
    config: str, pages: int | None, lookup: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Greedy texts and draws, with masks, penalties, ends and adapters; prompts that begin with what slots or pages
    hold, one of one token, and more of them than pages have room for. A layer with a window has a ring of rows, which
    begin anew within the longest prompt. Each token of a prompt is computed once, or not at all."""
    folder = tiny.write_language_model(tmp_path / "m", {**getattr(tiny, config), "max_position_embeddings": 1024})
    jobs: list[Job] = [
        (TOKENS[:90], 14, {}), (TOKENS[:150], 9, {"sampling": Sampling(0.9, seed=3)}), (TOKENS[:1], 5, {}),
        (TOKENS[:590], 6, {"priority": 1}), (TOKENS[100:170], 9, {"constraint": True}),
        (TOKENS[:149], 8, {"adapter": "small"}), (TOKENS[:160], 12, {"ends": frozenset({5, 9, 31, 40})}),
        (TOKENS[200:203], 20, {"penalties": True}), (TOKENS[:130], 4, {"scored": True}),
    ]  # fmt: skip
    with load(folder, "cpu", context=640) as model:
        model.load_adapter("small", write(tmp_path / "a", matrices(tiny.LLAMA, SMALL, 3, "small"), SMALL, r=3))
        everything = Picking(False, None, False, True, False, True, False, True)
        with model.batch(3, pages=pages, lookup=lookup) as batch:
            batch.prepare(everything)
            want = texts(batch, jobs, 0)
            assert {4, 5} < {len(text) for text in want}
        with model.batch(3, pages=pages, lookup=lookup) as batch:
            batch.prepare(everything)
            parts, together, run = list[int](), list[int](), batch._run

            def counted(going: Any, count: int, given: Any = ()) -> Any:
                parts.append(sum(part.shape[1] for part in given))
                together.append(len(given))
                return run(going, count, given)

            monkeypatch.setattr(batch, "_run", counted)
            assert texts(batch, jobs, 50) == want
        assert batch.prompted + batch.shared == sum(len(prompt) for prompt, *_ in jobs)
        assert sum(parts) > 500 and (pages or max(together) == 3)


@pytest.mark.late
@pytest.mark.parametrize("pages", [None, pytest.param(7, marks=pytest.mark.full)])
def test_prompts_beside_steps_on_vulkan(pages: int | None, tmp_path: Path) -> None:
    folder = tiny.write_language_model(tmp_path, {**tiny.LLAMA, "max_position_embeddings": 256})
    jobs: list[Job] = [(TOKENS[:1], 9, {}), (TOKENS[:70], 4, {}), (TOKENS[:69], 5, {})]
    by_device = []
    for device in ("cpu", "vulkan"):
        with load(folder, device, context=128) as model, model.batch(2, pages=pages) as batch:
            by_device.append(texts(batch, jobs, 40 if device == "vulkan" else 0))
            assert device == "cpu" or {key[4] for key in batch._decoder._programs} == {0, 62}
    assert by_device[0] == by_device[1]


def test_a_run_that_fails_takes_no_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither those of prompts beside it, nor the last one of a prompt."""
    with load(tiny.write_language_model(tmp_path), "cpu", context=64) as model, model.batch(3) as batch:
        want = [list(model.tokens(prompt, 6)) for prompt in (TOKENS[:4], TOKENS[:20], TOKENS[7:8])]
        numbers, made, whole = [batch.add(TOKENS[:4], 6)], batch.step(), batch._run
        numbers += [batch.begin(TOKENS[:20], 6), batch.begin(TOKENS[7:8], 6)]

        def full(*given: Any) -> Any:
            raise OutOfDeviceMemory("full")

        monkeypatch.setattr(batch, "_run", full)
        with pytest.raises(OutOfDeviceMemory):
            batch.step(1, 30)
        monkeypatch.setattr(batch, "_run", whole)
        assert batch.prompted == 4
        made += [token for _ in range(7) for token in batch.step(1, 30)]
    assert [[token.token for token in made if token.sequence == number] for number in numbers] == want


def timed(batch: Batch, monkeypatch: pytest.MonkeyPatch, late: list[float]) -> list[tuple[int, int]]:
    """Makes a step of a batch take a second, and a run with a part of a prompt three and what is taken from `late`;
    prompts may take a half of the steps' time, as one beside one sequence does. The batch then has a sequence whose
    steps have been timed. Returns: the steps and the parts of each run, to which later runs are added."""
    clock, runs, run = 0.0, list[tuple[int, int]](), batch._run
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: clock))
    monkeypatch.setattr(module, "SHARE", {"cpu": 0.2})

    def taken(going: Any, count: int, parts: Any = ()) -> Any:
        nonlocal clock
        clock += 3.0 * len(parts) + (late.pop() if parts and late else 0.0) or count
        runs.append((count, len(parts)))
        return run(going, count, parts)

    monkeypatch.setattr(batch, "_run", taken)
    batch.add(TOKENS[:3], 300)
    for most in (4, 1, 1):
        batch.step(most)
    return runs


def test_prompts_take_a_share_of_the_steps_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run with a part of a prompt is followed by three steps or four; by a few more where something else holds one up
    for long."""
    late = list[float]()
    folder = tiny.write_language_model(tmp_path, {**tiny.LLAMA, "max_position_embeddings": 512})
    with load(folder, "cpu", context=400) as model, model.batch(3) as batch:
        timed(batch, monkeypatch, late)
        batch.begin(TOKENS[:380], 3)
        taken = []
        for i in range(60):
            late += [1000.0] if i == 30 else []  # something else holds one run up
            before = batch.prompted
            batch.step(1, 20)
            taken.append(batch.prompted - before)
    parts = [i for i, count in enumerate(taken) if count]
    steps = np.diff(parts[3:]).tolist()
    assert len(parts) > 9 and {taken[i] for i in parts} == {20} and {4, 5} >= {*steps[:3]}
    assert max(steps) < 12 and parts[-1] > 48


def test_prompts_take_no_more_where_several_steps_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How long a run with a part takes is found out before several are begun at once."""
    folder = tiny.write_language_model(tmp_path, {**tiny.LLAMA, "max_position_embeddings": 512})
    with load(folder, "cpu", context=400) as model, model.batch(3) as batch:
        runs = timed(batch, monkeypatch, [])
        batch.begin(TOKENS[:380], 3)
        runs.clear()
        while (parts := sum(n for _, n in runs)) < 15:
            batch.step(8, 20)
    assert 3 * (parts - 3) <= sum(count for count, _ in runs) - parts <= 5 * parts


@pytest.mark.parametrize("length", [125, 128])
def test_a_prompt_that_fills_the_context_joins_several_steps(length: int, tmp_path: Path) -> None:
    """It takes no pages beyond those of its context."""
    folder = tiny.write_language_model(tmp_path, {**tiny.LLAMA, "max_position_embeddings": 128})
    jobs: list[Job] = [(TOKENS[:3], 40, {}), (TOKENS[:length], 9, {})]
    with load(folder, "cpu", context=128) as model:
        want = [list(model.tokens(prompt, count)) for prompt, count, _ in jobs]
        with model.batch(2, pages=6) as batch:
            numbers = [batch.add(*jobs[0][:2]), batch.begin(*jobs[1][:2])]
            made = [token for _ in range(12) for token in batch.step(8, 200)]
    assert [[token.token for token in made if token.sequence == number] for number in numbers] == want


def test_a_limit_within_which_all_tokens_are_is_none(tmp_path: Path) -> None:
    """Its draws are those of no limit, and sort nothing."""
    assert Sampling(0.8, top_p=1.0, min_p=0.0).picking == Picking(False)
    with load(tiny.write_language_model(tmp_path), "cpu", context=32) as model, model.batch(2) as batch:
        batch.add([4, 7], 8, Sampling(1.5, top_p=1.0, seed=3))
        assert batch._held[0] is not None and batch._held[0].picking == Picking(False)
        tokens = [token.token for _ in range(8) for token in batch.step()]
        assert tokens == list(model.tokens([4, 7], 8, Sampling(1.5, seed=3)))


def test_all_layers_keys_must_have_a_kernel_of_pages(tmp_path: Path) -> None:
    """Layers with windows have heads of 8 elements, the others of 12, which no kernel of Vulkan reads from pages."""
    for device, fuses in (("cpu", True), ("vulkan", False)):
        with load(folder_of("gemma4_text-0", tmp_path / device), device, context=32) as model, model.batch(2) as batch:
            assert batch.fuses is fuses


def test_what_cannot_be_beside_is_refused(tmp_path: Path) -> None:
    with load(tiny.write_mamba(tmp_path), "cpu", context=32) as model, model.batch(2) as batch:
        assert not batch.fuses
        with pytest.raises(GraphError, match="by runs of their own; call fill"):
            batch.step(1, 4)
        with pytest.raises(DTypeError, match="beside is -1; expected an integer from 0"):
            batch.step(1, -1)
