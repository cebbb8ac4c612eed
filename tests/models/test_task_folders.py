"""Sparse, late-interaction, cross-encoder and classifier folders beside what sentence-transformers 6.2.0 and the
pipelines of transformers 5.24.0 give for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from tests.models.task_folders import (
    AGGREGATIONS,
    DOCUMENTS,
    FOLDERS,
    FROZEN,
    PAIRS,
    QUERIES,
    TEXTS,
    write,
)


@pytest.fixture(scope="module")
def frozen() -> dict[str, Any]:
    return dict(json.loads(FROZEN.read_text()))


def folders(task: str) -> list[str]:
    return [name for name, given in FOLDERS.items() if given["task"] == task]


def load(folder: Path, name: str, device: str = "cpu") -> Any:
    return rlx.models.load(write(folder, name), device, engine="numpy" if device == "cpu" else None)


def near(got: Any, exact: Any) -> None:
    expected = np.array(exact)
    assert np.shape(got) == expected.shape
    if expected.size:
        assert np.max(np.abs(np.asarray(got) - expected)) <= 2e-6 * max(1.0, np.max(np.abs(expected)))


@pytest.mark.parametrize("name", folders("sparse"))
@pytest.mark.sample(2, vulkan=1)
def test_sparse_vectors(name: str, device: str, frozen: dict[str, Any], tmp_path: Path) -> None:
    with load(tmp_path, name, device) as model:
        assert model.task == "sparse" and model.width == len(frozen[name]["texts"][0])
        for key, rows in (("texts", model.encode_sparse(TEXTS)),
                          ("three", model.encode_sparse(TEXTS[:2], max_active_dims=3))):  # fmt: skip
            for (indices, values), exact in zip(rows, frozen[name][key], strict=True):
                assert indices.dtype == np.int32 and values.dtype == np.float32 and (np.diff(indices) > 0).all()
                assert np.flatnonzero(exact).tolist() == indices.tolist()
                near(values, np.array(exact)[indices])


@pytest.mark.parametrize("name", folders("scores"))
@pytest.mark.sample(2, vulkan=1)
def test_scores(name: str, device: str, frozen: dict[str, Any], tmp_path: Path) -> None:
    exact = frozen[name]
    with load(tmp_path, name, device) as model:
        near(model.predict(PAIRS), exact["pairs"])
        near(model.predict(PAIRS[:2], apply_softmax=True), exact["softmax"])
        near(model.predict(PAIRS, batch_size=2), exact["pairs"])
        if "rank" in exact:
            found = model.rank(QUERIES[0], DOCUMENTS, top_k=3, return_documents=True)
            assert [(r["corpus_id"], r["text"]) for r in found] == [(r["corpus_id"], r["text"]) for r in exact["rank"]]
            near([r["score"] for r in found], [r["score"] for r in exact["rank"]])
            scores = model.rank(QUERIES[0], DOCUMENTS)
            assert [r["score"] for r in found] == sorted(scores.tolist(), reverse=True)[:3]
        for found, expected in zip(model.classify([TEXTS[0], PAIRS[0]], top_k=None), exact["classify"], strict=True):
            assert [one["label"] for one in found] == [one["label"] for one in expected]
            near([one["score"] for one in found], [one["score"] for one in expected])


@pytest.mark.parametrize("name", folders("tokens"))
@pytest.mark.sample(3, vulkan=1)
def test_late_interaction(name: str, device: str, frozen: dict[str, Any], tmp_path: Path) -> None:
    exact = frozen[name]
    with load(tmp_path, name, device) as model:
        queries = model.encode_tokens(QUERIES, task="query")
        documents = model.encode_tokens(DOCUMENTS, task="document")
        plain = model.encode_tokens(DOCUMENTS[:2], prompt="cold ")
        for key, rows in (("queries", queries), ("documents", documents), ("plain", plain)):
            for row, expected in zip(rows, exact[key], strict=True):
                near(row, np.reshape(expected, (len(expected), model.width)))
        scores = model.score(QUERIES, DOCUMENTS)
        near(scores, exact["score"])
        assert (model.score(queries, documents) == scores).all()
        near(model.rank(QUERIES[1], DOCUMENTS), exact["score"][1])


@pytest.mark.parametrize("name", folders("labels"))
def test_labels_of_tokens(name: str, device: str, frozen: dict[str, Any], tmp_path: Path) -> None:
    exact = frozen[name]
    texts = [TEXTS[0], TEXTS[2], TEXTS[5], "The mountain, unknownword and windmill melts."]
    with load(tmp_path, name, device) as model:
        found = {way: model.classify_tokens(texts, aggregation=way) for way in AGGREGATIONS}
        found["all"] = model.classify_tokens(texts[:1], ignore_labels=["STONE"])
    for way, rows in found.items():
        for row, expected in zip(rows, exact[way], strict=True):
            near([one.pop("score") for one in row], [one["score"] for one in expected])
            assert row == [{k: v for k, v in one.items() if k != "score"} for one in expected]


@pytest.mark.parametrize("name", [n for n in FOLDERS if n != "splade of a limited number, an old folder"])
@pytest.mark.sample(4)
def test_functions_in_float64(name: str, frozen: dict[str, Any], tmp_path: Path) -> None:
    """What a folder's head makes of states, as a function of the weights."""
    exact, task = np.array(frozen[name]["f64"]), FOLDERS[name]["task"]
    function, weights = rlx.models.trainable(write(tmp_path, name), dtype="f64")
    tokenizer = function.files.tokenizer
    given: list[Any] = list(PAIRS[:2]) if task == "scores" else [TEXTS[2]] if task == "tokens" else [TEXTS[0]]
    found = []
    for text in given:
        ((ids, kinds),) = tokenizer.pairs([text])
        if task == "tokens":
            ids = function.files.late.rows([text], None)[0].ids
            kinds = np.zeros_like(ids)
        run = rlx.jit(function, device="cpu")
        got = run(weights, ids[None], np.ones((1, len(ids)), np.bool_), kinds[None])
        found.append(np.asarray(got)[0])
    got = np.array(found) if task != "labels" else found[0]
    if task == "tokens":
        got = got[:, function.files.late.rows(given, None)[0].kept]
    assert got.dtype == np.float64 and got.shape == exact.shape
    assert np.abs(got - exact).max() <= 1e-11
