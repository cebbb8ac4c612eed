"""Encoders and rerankers of GGUF files beside NumPy's float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.errors import DTypeError, ModelFormatError, RlxError, ShapeError
from tests.models import gguf_encoders as made
from tests.models.tiny import SENTENCES

# "the cat sleeps near the cold river ." by the vocabulary of tests.models.tiny
CAT = [2, 5, 7, 15, 20, 5, 14, 10, 29, 3]


def nmse(got: Any, exact: Any) -> float:
    return float(np.sum((np.asarray(got) - exact) ** 2) / np.sum(np.asarray(exact) ** 2))


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
@pytest.mark.parametrize("arch", made.ARCHITECTURES)
@pytest.mark.sample(2, vulkan=1)
def test_an_embedding(arch: str, pooling: str, device: str, tmp_path: Path) -> None:
    held = made.write(tmp_path / "x.gguf", arch, pooling)
    exact = made.embedding(made.states(arch, held, CAT, [0] * len(CAT)), pooling)
    with rlx.models.load(tmp_path / "x.gguf", device) as model:
        assert nmse(model.embed("The cat sleeps near the cold river."), exact) <= 1e-11
        several = model.embed(list(SENTENCES))
        assert several.shape == (len(SENTENCES), made.D)
        assert nmse(several[0], exact) <= 1e-11


@pytest.mark.parametrize("arch", ["bert", pytest.param("jina-bert-v2", marks=pytest.mark.late)])
def test_packed_matrices_stay_packed(arch: str, tmp_path: Path) -> None:
    held = made.write(tmp_path / "x.gguf", arch, packed="q8_0")
    exact = made.embedding(made.states(arch, held, CAT, [0] * len(CAT)), "mean")
    with rlx.models.load(tmp_path / "x.gguf", "cpu") as model:
        assert nmse(model.embed(["the cat sleeps near the cold river ."])[0], exact) <= 1e-11
        kinds = {name: str(t.dtype) for name, t in model.graph(1, 16).params.items()}
    assert kinds["encoder.layer.0.intermediate.dense.weight"] == "q8_0"
    assert kinds["embeddings.word_embeddings.weight"] == "q8_0"


@pytest.mark.late("vulkan")
def test_scores_of_a_reranker(device: str, tmp_path: Path) -> None:
    held = made.write(tmp_path / "x.gguf", "bert", "rank")
    documents = ["the dog runs", "stone bread", "the dog runs over the cold boat"]
    with rlx.models.load(tmp_path / "x.gguf", device) as model:
        got = model.rank("a cat", documents)
        tokens = [model.tokens(text).tolist()[1:-1] for text in ("a cat", *documents)]
        with pytest.raises(RlxError, match="is a reranker, which has no embeddings"):
            model.embed("a cat")
        with pytest.raises(ShapeError, match="the query has 43 tokens, of the model's 40"):
            model.rank("cat " * 41, documents)
        with pytest.raises(DTypeError):
            model.rank("a", "b")
        assert model.rank("cat " * 36, ["dog " * 9]).shape == (1,)  # the document is cut
    for one, second in zip(got, tokens[1:], strict=True):
        ids = [2, *tokens[0], 3, *second, 3]
        kinds = [0] * (len(tokens[0]) + 2) + [1] * (len(second) + 1)
        exact = made.score(held, made.states("bert", held, ids, kinds))
        assert abs(one - exact) <= 1e-5 * max(1.0, abs(exact))


def test_long_texts_are_cut_before_their_last_mark(tmp_path: Path) -> None:
    made.write(tmp_path / "x.gguf", "bert")
    with rlx.models.load(tmp_path / "x.gguf", "cpu") as model:
        (ids,) = model._tokenizer.ids(["cat " * 60])
        assert len(ids) == 40 and ids[0] == 2 and ids[-1] == 3
        with pytest.raises(RlxError, match="is an encoder of texts, which has no scores"):
            model.rank("a", ["b"])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"pooling": None}, "says no pooling_type"),
        ({"bert.pooling_type": 9}, "pooling_type is 9; expected 0 to 4"),
        ({"bert.pooling_type": 4}, "a reranker without the matrix cls.output.weight"),
        ({"pooling": "rank", "bert.pooling_type": 1}, "has a classifier, but a pooling_type of embeddings"),
        ({"bert.attention.causal": True}, "attention.causal is True; rlx has no code for other than False"),
        ({"bert.attention.head_count": 5}, "hidden_size is 32, expected a multiple of the 5 attention heads"),
        ({"bert.block_count": 0}, "block_count is 0"),
        ({"bert.block_count": 1000}, "missing 'encoder.layer.2"),
        ({"bert.feed_forward_length": 63}, "has shape"),
        ({"arch": "nomic-bert", "nomic-bert.rope.freq_base": 0.5}, "a base above 1"),
        ({"arch": "nomic-bert", "nomic-bert.attention.head_count": 32}, "heads of an even size"),
    ],
)
def test_what_is_refused(changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    arch, pooling = changed.pop("arch", "bert"), changed.pop("pooling", "mean")
    made.write(tmp_path / "x.gguf", arch, pooling, **changed)
    with pytest.raises(ModelFormatError, match=message):
        rlx.models.load(tmp_path / "x.gguf", "cpu")


def test_caches_are_of_language_models(tmp_path: Path) -> None:
    made.write(tmp_path / "x.gguf", "bert")
    with pytest.raises(DTypeError, match="cache is for language models"):
        rlx.models.load(tmp_path / "x.gguf", "cpu", cache="q8_0")
