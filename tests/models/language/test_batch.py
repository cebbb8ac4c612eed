"""Batches: prompts taken in by parts between steps, and tokens that constraints allow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from rlx.models import load
from rlx.models.language.decoder import Sampling
from tests.models.language import tiny


@pytest.mark.few_on_vulkan(0)
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
                for sequence, token, _ in batch.step():
                    made[sequence].append(token)
        assert list(made.values()) == alone
        assert taken[:7] == [4, 4, 4, 4, 4, 1, 1] and not any(taken[7:])


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
            for sequence, token, end in batch.step(4):
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
