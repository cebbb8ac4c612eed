"""Batches: prompts taken in by parts between steps, and tokens that constraints allow."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from rlx.errors import DTypeError, OutOfDeviceMemory, RlxError
from rlx.models import load
from rlx.models.language.batch import Batch, Token
from rlx.models.language.decoder import Sampling
from rlx.models.language.graph import Picking
from rlx.models.language.shaping import Penalties
from rlx.models.language.speculation import Guesser, Pace
from tests.models.language import tiny
from tests.models.language.test_adapters import LARGE, SMALL, matrices, write


@pytest.mark.sample(vulkan=0)
def test_a_prompt_taken_in_between_steps_changes_no_token(device: str, tmp_path: Path) -> None:
    folder = tiny.write_language_model(tmp_path, tiny.GEMMA)
    prompts = [[5, 9, 11], tiny.TOKENS.tolist(), [3]]
    with load(folder, device, context=48) as model:
        alone = [list(model.tokens(prompt, 12)) for prompt in prompts]
        with model.batch(3) as batch:
            made: dict[int, list[int]] = {batch.add(prompts[0], 12): []}
            made[batch.begin(prompts[1], 12)] = []
            made[batch.begin(prompts[2], 12)] = []
            taken = []
            while batch.free < 3:
                taken.append(batch.fill(4))
                for sequence, token, *_ in batch.step():
                    made[sequence].append(token)
        assert list(made.values()) == alone
        assert taken[:7] == [4, 4, 4, 4, 4, 1, 1] and not any(taken[7:])


def test_steps_end_where_the_context_of_a_sequence_does(tmp_path: Path) -> None:
    """Its last token has no row in the caches, so further steps would compute it anew from the row before."""
    with load(tiny.write_language_model(tmp_path), "cpu", context=24) as model, model.batch(3) as batch:
        prompts = [tiny.TOKENS.tolist(), [4, 7], [*tiny.TOKENS.tolist(), 9]]
        want = [list(model.tokens(prompt)) for prompt in prompts]
        made: dict[int, list[int]] = {batch.add(prompt): [] for prompt in prompts}
        while batch.free < 3:
            for sequence, token, *_ in batch.step(8):
                made[sequence].append(token)
    assert list(made.values()) == want and [len(tokens) for tokens in want] == [4, 23, 3]


class Multiples:
    """Multiples of a number, each greater than the last, until none is left below 30."""

    def __init__(self, factor: int) -> None:
        self.factor, self.least = factor, 0

    def mask(self, words: npt.NDArray[np.int32]) -> None:
        bits = np.zeros(32 * len(words), np.uint8)
        bits[[i for i in range(self.least, 60) if i % self.factor == 0]] = 1
        words[:] = np.packbits(bits, bitorder="little").view(np.int32)

    def take(self, token: int) -> bool:
        self.least = token + 1
        return token >= 30


@pytest.mark.late("vulkan")
def test_constraints_allow_tokens(device: str, tmp_path: Path) -> None:
    """Each token is the likeliest of those that its sequence allows; a sequence beside it is not changed."""
    folder = tiny.write_language_model(tmp_path, tiny.LLAMA)
    prompt = [4, 7, 33]
    with load(folder, device, context=32) as model, model.batch(3) as batch:
        plain = list(model.tokens(prompt, 20))
        numbers = [batch.add(prompt, 20, constraint=Multiples(f)) for f in (3, 5)] + [batch.add(prompt, 20)]
        made: dict[int, list[int]] = {number: [] for number in numbers}
        ended = {}
        while batch.free < 3:
            for sequence, token, end, _ in batch.step(4):
                made[sequence].append(token)
                ended[sequence] = end
        for number, factor in zip(numbers, (3, 5), strict=False):
            whole, least = list(prompt), 0
            for token in made[number]:
                allowed = np.arange(least + (-least) % factor, 60, factor)
                logits = tiny.logits(tiny.LLAMA, np.array(whole))[-1]
                assert token == allowed[logits[allowed].argmax()]
                whole.append(token)
                least = token + 1
            assert whole[-1] >= 30 and ended[number] == "stop"
        assert made[numbers[2]] == plain and ended[numbers[2]] == "length"
        if device == "cpu":
            batch.add(prompt, 1, Sampling(0.8, top_p=0.9, seed=3), constraint=Multiples(7))
            assert batch.step()[0].token % 7 == 0


def run(batch: Batch, slots: int, most: int = 3) -> dict[int, list[Token]]:
    """The tokens of all sequences until none is left; prompts are taken in by three tokens between two steps."""
    made: dict[int, list[Token]] = {}
    while batch.free < slots:
        batch.fill(3)
        for token in batch.step(most):
            made.setdefault(token.sequence, []).append(token)
    return made


@pytest.mark.late("vulkan")
def test_rows_of_a_recurrent_model_keep_their_states(device: str, tmp_path: Path) -> None:
    """While others' prompts come in, after those that held the slot before, and while steps run ahead of an end."""
    prompts, counts = [[3, 4, 5, 6, 7], [9], [2, 8, 8, 1, 0, 5, 6, 7, 3, 2], [4, 4], [7, 1, 1]], [4, 9, 6, 9, 5]
    with load(tiny.write_mamba(tmp_path), device, context=32) as model:
        alone = [list(model.tokens(prompt, count)) for prompt, count in zip(prompts, counts, strict=True)]
        with model.batch(2) as batch:
            made: list[list[int]] = []
            for some in (slice(0, 2), slice(2, 4), slice(4, 5)):
                for prompt, count in zip(prompts[some], counts[some], strict=True):
                    batch.begin(prompt, count)
                made += [[token.token for token in tokens] for _, tokens in sorted(run(batch, 2).items())]
        assert made == alone


@pytest.mark.late("vulkan")
def test_draws_among_the_likeliest_are_those_of_a_sequence_alone(device: str, tmp_path: Path) -> None:
    ways = [Sampling(1.5, top_k=3, seed=5), Sampling(1.5, top_k=7, top_p=0.8, seed=6), Sampling()]
    ways.append(Sampling(1.5, seed=5))
    with load(tiny.write_language_model(tmp_path), device, context=32) as model, model.batch(4) as batch:
        alone = [list(model.tokens([4, 7], 9, way)) for way in ways]
        for way in ways:
            batch.begin([4, 7], 9, way)
        made = sorted(run(batch, 4).items())
    assert [[token.token for token in tokens] for _, tokens in made] == alone
    assert alone[0] != alone[3]


@pytest.mark.late("vulkan")
def test_scores_are_logarithms_of_the_models_probabilities(device: str, tmp_path: Path) -> None:
    """In float64, whatever the draws and the constraint; a sequence that asks for none has none."""
    prompt = [4, 7, 33, 1]
    with load(tiny.write_language_model(tmp_path), device, context=32) as model, model.batch(3) as batch:
        batch.begin(prompt, 6, Sampling(2.0, top_k=5, seed=3), scored=True)
        batch.begin(prompt, 6, constraint=Multiples(5), scored=True)
        batch.begin(prompt, 6)
        made = [tokens for _, tokens in sorted(run(batch, 3).items())]
    assert [token.scores for token in made[2]] == [None] * 6
    for tokens in made[:2]:
        whole = list(prompt)
        for token in tokens:
            logits = tiny.logits(tiny.LLAMA, np.array(whole))[-1]
            want = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
            assert token.scores is not None
            assert token.scores.own == pytest.approx(want[token.token], abs=1e-5)
            assert list(token.scores.likeliest) == np.argsort(-want)[:20].tolist()
            assert token.scores.logarithms == pytest.approx(np.sort(want)[::-1][:20], abs=1e-5)
            whole.append(token.token)


@pytest.mark.late("vulkan")
def test_each_sequence_has_the_adapter_that_it_names(device: str, tmp_path: Path) -> None:
    prompt, names = [5, 9, 11, 5, 9], [None, "small", "all", "small", "rank"]
    with load(tiny.write_language_model(tmp_path / "model"), device, context=32) as model:
        for name, targets, rank in (("small", SMALL, 3), ("all", LARGE, 3), ("rank", SMALL, 5)):
            arrays = matrices(tiny.LLAMA, targets, rank, name)
            model.load_adapter(name, write(tmp_path / name, arrays, targets, r=rank))
        alone = [list(model.tokens(prompt, 10, adapter=name)) for name in names]
        with model.batch(5) as batch:
            for name in names:
                batch.begin(prompt, 10, adapter=name)
            made = sorted(run(batch, 5).items())
            with pytest.raises(RlxError, match="no adapter 'other' in this batch; it has 'small', 'all', 'rank'"):
                batch.begin(prompt, adapter="other")
    assert [[token.token for token in tokens] for _, tokens in made] == alone
    assert len({*map(tuple, alone)}) == 4


class Counted(Multiples):
    def __init__(self) -> None:
        super().__init__(3)
        self.asked = 0

    def mask(self, words: npt.NDArray[np.int32]) -> None:
        self.asked += 1
        super().mask(words)


def test_a_mask_is_made_for_the_last_part_of_a_prompt_alone(tmp_path: Path) -> None:
    with load(tiny.write_language_model(tmp_path), "cpu", context=32) as model, model.batch(2) as batch:
        constraint = Counted()
        batch.begin(tiny.TOKENS, 1, constraint=constraint)
        taken = []
        while some := batch.fill(4):
            taken.append(some)
        assert len(taken) > 3 and constraint.asked == 1
        assert batch.step()[0].token % 3 == 0


def test_a_prompt_that_fails_leaves_its_slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the device in the run of a prompt: no slot is lost, and the same prompt can be taken in again."""
    prompt = [5, 9, 11, 5, 9]
    with load(tiny.write_language_model(tmp_path / "model"), "cpu", context=32) as model, model.batch(2) as batch:
        want, whole = list(model.tokens(prompt, 4)), batch._decoder.take

        def full(*given: Any) -> Any:
            raise OutOfDeviceMemory("full")

        number = batch.begin(prompt, 4)
        monkeypatch.setattr(batch._decoder, "take", full)
        with pytest.raises(OutOfDeviceMemory):
            batch.fill()
        with pytest.raises(OutOfDeviceMemory):
            batch.add(prompt[:3])
        assert batch.free == 1
        monkeypatch.setattr(batch._decoder, "take", whole)
        assert batch.fill() == 5
        assert [made.token for _ in range(4) for made in batch.step() if made.sequence == number] == want


def test_steps_are_those_that_were_run(tmp_path: Path) -> None:
    with load(tiny.write_language_model(tmp_path), "cpu", context=32) as model, model.batch(2) as batch:
        batch.add([4, 7], 20)
        batch.step(4)
        assert batch.steps == 4
        batch.add([4, 7], 20, scored=True)
        batch.step(4)  # one of all
        assert batch.steps == 5


class Slow(Multiples):
    """Multiples whose masks are there once a test lets them."""

    def __init__(self, factor: int) -> None:
        super().__init__(factor)
        self.free = threading.Event()

    def mask(self, words: npt.NDArray[np.int32]) -> None:
        assert self.free.wait(60)
        super().mask(words)


@pytest.mark.parametrize("pages", [pytest.param(None, marks=pytest.mark.late), 4])
def test_a_slow_mask_delays_its_own_sequence_alone(pages: int | None, tmp_path: Path) -> None:
    """Others run on while a mask is computed, before a prompt's last part and between two steps; the texts are those of
    masks that are there at once."""
    folder = tiny.write_language_model(tmp_path, tiny.GEMMA)
    prompt = [4, 7, 33]
    with load(folder, "cpu", context=32) as model:
        with model.batch(2) as batch:
            number = batch.add(prompt, 12, constraint=Multiples(7))
            want = [token for token in _until_free(batch) if token.sequence == number]
        alone = list(model.tokens([5, 9], 29))
        slow = Slow(7)
        with model.batch(2, pages=pages) as batch:
            first, other = batch.begin(prompt, 12, constraint=slow), batch.add([5, 9], 29)
            assert batch.fill() == 0
            made = [*batch.step(3), *batch.step(4)]
            slow.free.set()
            while not batch.fill():
                pass
            slow.free.clear()
            made += batch.step(2)
            slow.free.set()
            made += batch.step()
            slow.free.clear()
            made += [token for _ in range(3) for token in batch.step(2)]
            slow.free.set()
            made += _until_free(batch)
    assert [token.token for token in made if token.sequence == other] == alone
    assert [(t.token, t.ended) for t in made if t.sequence == first] == [(t.token, t.ended) for t in want]


def _until_free(batch: Batch) -> list[Token]:
    made = []
    while batch.free < 2:
        made += batch.step()
    return made


def test_more_than_a_sequence_needs_changes_no_token(tmp_path: Path) -> None:
    """Sequences that come to programs for masks, draws, limits, penalties and scores get what those made for them
    alone give, and wait for no compilation."""
    folder = tiny.write_language_model(tmp_path, tiny.GEMMA)
    everything = Picking(False, None, True, True, True, True, True, True)
    settings: list[dict[str, Any]] = [
        {}, {"sampling": Sampling(0.8, seed=3)}, {"sampling": Sampling(0.8, 5, 0.9, 4, 0.05)},
        {"constraint": Multiples(7)}, {"penalties": Penalties(60, 1.3, 0.5, 0.25, {9: 2.0})}, {"scored": True},
    ]  # fmt: skip

    def tokens(batch: Batch) -> list[Token]:
        numbers = [batch.add([4, 7, 33], 9, **_again(one)) for one in settings]
        made = []
        while batch.free < len(settings):
            made += batch.step()
        return sorted(made, key=lambda token: numbers.index(token.sequence))

    with load(folder, "cpu", context=32) as model:
        with model.batch(6) as batch:
            want = []
            for one in settings:
                number = batch.add([4, 7, 33], 9, **_again(one))
                while batch.free < 6:
                    want += [(t.token, t.ended) for t in batch.step() if t.sequence == number]
        with model.batch(6) as batch:
            assert batch.lacks(Sampling()) == Picking(False)
            batch.prepare(everything)
            assert batch.lacks(Sampling(0.8, 5, 0.9, 4, 0.05), Multiples(7)) is None
            known = {*batch._decoder._programs}
            assert [(token.token, token.ended) for token in tokens(batch)] == want
            assert {key for key in batch._decoder._programs if key not in known} == set()


def _again(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings whose constraint and penalties are at their beginning."""
    made = dict(settings)
    if "constraint" in made:
        made["constraint"] = Multiples(7)
    if "penalties" in made:
        made["penalties"] = Penalties(60, 1.3, 0.5, 0.25, {9: 2.0})
    return made


def test_the_last_of_the_least_urgent_gives_its_pages_back(tmp_path: Path) -> None:
    """Where those that run need more pages than there are, the greatest priority waits, whenever it came."""
    folder = tiny.write_language_model(tmp_path, {**tiny.GEMMA, "max_position_embeddings": 256})
    prompts = [list(range(3, 53)), list(range(5, 55)), list(range(4, 54))]
    with load(folder, "cpu", context=192) as model:
        alone = [list(model.tokens(prompt, 60)) for prompt in prompts]
        with model.batch(3, pages=5) as batch:
            numbers = [batch.add(p, 60, priority=priority) for p, priority in zip(prompts, (2, 0, 1), strict=True)]
            made: dict[int, list[int]] = {number: [] for number in numbers}
            ended = []
            while batch.free < 3:
                batch.fill()
                for token in batch.step():
                    made[token.sequence].append(token.token)
                    ended += [numbers.index(token.sequence)] if token.ended else []
    assert [made[number] for number in numbers] == alone
    assert ended == [1, 2, 0]


def _texts(batch: Batch, prompts: list[list[int]], settings: list[dict[str, Any]], most: int = 4) -> list[list[int]]:
    """The tokens of prompts that all begin at once."""
    numbers = [batch.begin(prompt, 24, **_again(one)) for prompt, one in zip(prompts, settings, strict=True)]
    made: dict[int, list[int]] = {number: [] for number in numbers}
    while batch.free < len(batch._held):
        batch.fill()
        for token in batch.step(most):
            made[token.sequence].append(token.token)
    return [made[number] for number in numbers]


@pytest.mark.parametrize(
    ("config", "pages"), [("GEMMA", 9), pytest.param("LLAMA", None, marks=pytest.mark.late)]
)
def test_guesses_change_no_token(
    config: str, pages: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every run that can try guesses does: greedy texts and draws, of sequences that begin and end beside each other,
    in caches with windows and without, are those of steps; guesses that are never right too."""
    folder = tiny.write_language_model(tmp_path, {**getattr(tiny, config), "max_position_embeddings": 128})
    prompts = [[4, 7, 33] * 5, [5, 9] * 6 + [11], list(range(3, 40)), [8]]
    draws = [{"sampling": sampling} for sampling in (Sampling(0.3, seed=5), Sampling(0.9, 3, seed=1))]
    settings: list[dict[str, Any]] = [{}, draws[0], {}, draws[1]]
    monkeypatch.setattr(Pace, "of", lambda pace, kind: 1.0 if kind == 1 else None)
    with load(folder, "cpu", context=100) as model:
        with model.batch(4, pages=pages) as batch:
            want = _texts(batch, prompts, settings)
        with model.batch(4, pages=pages, lookup=True) as batch:
            assert _texts(batch, prompts, settings) == want
            assert batch.tried > batch.right > 0
            monkeypatch.setattr(Guesser, "guess", lambda one, most: [59 - t for t in one.history[-most:]][:most])
            assert _texts(batch, prompts, settings) == want
            with_masks = [*settings[:3], {"constraint": Multiples(7)}]
            again = _texts(batch, prompts, with_masks)
        with model.batch(4, pages=pages) as batch:
            assert again == _texts(batch, prompts, with_masks)


def test_guesses_are_tried_where_they_pay() -> None:
    """By what was right of late and what runs took: not where a run of several rows takes too long, nor where guesses
    are wrong; what came without a run tells too."""
    one = Guesser([1, 2, 3, 1, 2, 3, 1])
    assert one.guess(3) == [2, 3, 1] and one.expected(0) == 0
    before = one.expected(3)
    one.take([2, 3, 1])
    assert one.expected(3) > before and one.history[-3:] == [2, 3, 1]
    one.guess(3)
    after = one.expected(3)
    one.take([9, 9])
    assert one.guess(3) == [] and one.expected(3) < after
    for _ in range(30):
        one.guesses = [5, 5]
        one.take([6])
    assert one.expected(7) < 0.1
    pace = Pace()
    for seconds in (100.0, 1.0, 1.0, 2.0):
        pace.add(8, seconds)
    assert pace.of(1) is None and 1.0 < (pace.of(8) or 0) < 2.0


def test_guesses_of_models_that_take_nothing_back_are_refused(tmp_path: Path) -> None:
    folder = tiny.write_mamba(tmp_path)
    with load(folder, "cpu", context=32) as model, pytest.raises(DTypeError, match="lookup: the model is recurrent"):
        model.batch(2, lookup=True)
