"""Penalties, a bias, min-p and grammars in `LanguageModel.generate`, beside float64 logits."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlx.errors import DTypeError, GraphError
from rlx.models import LanguageModel, load
from rlx.models.language.shaping import Penalties
from tests.models.language import tiny

PROMPT = [int(token) for token in tiny.TOKENS[:9]]
CONFIG = {**tiny.LLAMA, "vocab_size": 140}
SHAPED: list[dict[str, Any]] = [
    {"repetition_penalty": 1.8},
    {"repetition_penalty": 0.5, "frequency_penalty": 0.7},
    {"presence_penalty": 1.5, "logit_bias": {17: 3.0, 42: -np.inf, 5: -2.0}},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_language_model(tmp_path_factory.mktemp("shaping") / "m", CONFIG, text=True)


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[LanguageModel]:
    with load(folder, "cpu") as made:
        yield made


def shaped(
    tokens: list[int], answer: list[int], repetition_penalty: float = 1.0, frequency_penalty: float = 0.0,
    presence_penalty: float = 0.0, logit_bias: dict[int, float] | None = None,
) -> Any:  # fmt: skip
    """The logits after the tokens in float64, by the definitions of the settings."""
    logits = tiny.logits(CONFIG, np.array(tokens, np.int32))[-1]
    for token in set(tokens):
        logits[token] *= repetition_penalty if logits[token] < 0 else 1 / repetition_penalty
    for token, value in (logit_bias or {}).items():
        logits[token] += value
    for token, count in Counter(answer).items():
        logits[token] -= presence_penalty + frequency_penalty * count
    return logits


def text_of(model: LanguageModel, tokens: list[int]) -> str:
    """The text of tokens, of which those beyond the vocabulary have none."""
    return model.tokenizer.decode(token for token in tokens if token in model.tokenizer.vocabulary.tokens)


@pytest.mark.parametrize("settings", SHAPED, ids=" ".join)
@pytest.mark.sample(4, vulkan=1)
def test_the_likeliest_of_changed_logits(device: str, settings: dict[str, Any], folder: Path) -> None:
    answer: list[int] = []
    for _ in range(8):
        answer.append(int(shaped(PROMPT + answer, answer, **settings).argmax()))
    assert answer != tiny.greedy(CONFIG, np.array(PROMPT, np.int32), 8), "the settings change nothing"
    own = {name.removesuffix("_penalty").removeprefix("logit_"): value for name, value in settings.items()}
    with load(folder, device) as model:
        assert list(model.tokens(PROMPT, 8, penalties=Penalties(CONFIG["vocab_size"], **own))) == answer
        text = text_of(model, answer)
        assert "".join(model.generate(PROMPT, 8, **settings)) == text
        assert "".join(model.generate(PROMPT, 8, **settings)) == text, "a second answer begins with no counts"
    with load(folder, layers_on={"cpu": 2}) as model:
        assert "".join(model.generate(PROMPT, 8, **settings)) == text


def test_another_call_between_two_tokens(model: LanguageModel) -> None:
    whole = list(model.generate(PROMPT, 8, **SHAPED[1]))
    pieces = model.generate(PROMPT, 8, **SHAPED[1])
    first = [next(pieces), next(pieces)]
    model.logits(PROMPT[:3])
    assert [*first, *pieces] == whole


def test_min_p_draws_from_the_likely_alone(model: LanguageModel) -> None:
    logits = tiny.logits(CONFIG, np.array(PROMPT, np.int32))[-1]
    order = np.argsort(-logits)
    least = float(np.exp((logits[order[2]] + logits[order[3]]) / 2 - logits[order[0]]))  # keeps three tokens
    allowed = {text_of(model, [int(token)]) for token in order[:3]}
    drawn = {"".join(model.generate(PROMPT, 1, temperature=1.0, min_p=least, seed=seed)) for seed in range(40)}
    assert drawn == allowed
    with pytest.raises(DTypeError, match=r"min_p is 0\.1 beside a temperature of 0"):
        model.generate(PROMPT, 1, min_p=0.1)


def test_what_is_refused(model: LanguageModel) -> None:
    with pytest.raises(DTypeError, match=r"bias of token 3 is nan; expected a number, or -inf"):
        model.generate(PROMPT, 1, logit_bias={3: float("nan")})
    with pytest.raises(DTypeError, match="bias has the token 140; expected ids from 0 to 139"):
        model.generate(PROMPT, 1, logit_bias={140: 1.0})
    with pytest.raises(DTypeError, match="a repetition above 0"):
        model.generate(PROMPT, 1, repetition_penalty=0.0)
    with pytest.raises(GraphError, match="no temperature, penalties, bias or grammar"):
        model.generate(PROMPT, 1, presence_penalty=1.0, lookup=True)


NUMBERS = {"type": "array", "items": {"enum": [1, 22]}, "minItems": 2, "maxItems": 3}
GBNF = 'root ::= item ("," item){2} "."  # three\nitem ::= [ab]+ | "cc"\n'


@pytest.mark.parametrize(
    ("settings", "pattern"),
    [
        ({"json_schema": NUMBERS}, r"\[\s*(1|22)\s*(,\s*(1|22)\s*){1,2}\]"),
        ({"json_schema": '{"const": [1, 2]}'}, r"\[\s*1\s*,\s*2\s*\]"),
        ({"grammar": GBNF}, r"([ab]+|cc)(,([ab]+|cc)){2}\."),
        ({"grammar": "start: /[xy]{3}/"}, "[xy]{3}"),
    ],
    ids=["schema", "text", "gbnf", "lark"],
)
def test_a_grammar_makes_the_whole_answer(model: LanguageModel, settings: dict[str, Any], pattern: str) -> None:
    pytest.importorskip("llguidance", reason="needs rlx[serve]")
    # The letters' tokens alone: the tiny model would else repeat one letter of an endless item for ever.
    bias = dict.fromkeys(model.tokenize(",.c]", special=False), 9.0)
    for seed in range(3):
        text = "".join(model.generate("ab", temperature=1.0, seed=seed, logit_bias=bias, **settings))
        assert re.fullmatch(pattern, text) and model.stats.ended == "stop", text


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"grammar": "root ::= ("}, "no GBNF that can be read: Expected '"),
        ({"grammar": 'start ::= "a"'}, "root"),
        ({"grammar": "start: ("}, "not supported"),
        ({"json_schema": "{"}, "is no JSON"),
        ({"json_schema": 3}, "expected a JSON schema"),
        ({"json_schema": {"type": "numbr"}}, "not supported"),
        ({"json_schema": {}, "grammar": "start: /x/"}, "give one of them"),
    ],
    ids=str,
)
def test_a_grammar_that_is_none(model: LanguageModel, settings: dict[str, Any], words: str) -> None:
    pytest.importorskip("llguidance", reason="needs rlx[serve]")
    with pytest.raises(DTypeError, match=words):
        model.generate("ab", **settings)
