"""What callers and files of text encoders may get wrong, and what is cut of embeddings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.errors import DTypeError, ModelFormatError, RlxError, ShapeError
from tests.models import sentence_folders, task_folders
from tests.models.task_folders import DOCUMENTS, FOLDERS, QUERIES, write
from tests.models.tiny import formula, write_safetensors


def load(folder: Path) -> Any:
    return rlx.models.load(folder, "cpu", engine="numpy")


@pytest.mark.parametrize("name", ["mean", "list", "truncated", "dense after normalize"])
def test_the_first_numbers_of_embeddings(name: str, tmp_path: Path) -> None:
    texts = ["the cat", "dog", ""]
    with load(sentence_folders.write(tmp_path, name)) as model:
        whole = model.encode(texts, truncate_dim=model.whole_width)
        assert model.whole_width >= model.width == model.encode(texts).shape[1]
        assert (model.encode(texts) == whole[:, : model.width]).all()
        for count in (1, 7, 19):
            cut = model.encode(texts, truncate_dim=count)
            assert (cut == whole[:, :count]).all()
            assert np.abs(model.embed("the cat", truncate_dim=count) - cut[0]).max() <= 2e-6
            unit = model.encode(texts, truncate_dim=count, normalize_embeddings=True)
            size = np.linalg.norm(cut.astype(np.float64), axis=1, keepdims=True)
            assert np.abs(unit - cut / np.maximum(size, 1e-12)).max() <= 1e-7
        for wrong, error in ((0, ShapeError), (-3, ShapeError), (model.whole_width + 1, ShapeError), (2.0, DTypeError),
                             ("8", DTypeError), (True, DTypeError)):  # fmt: skip
            with pytest.raises(error, match=r"encode: truncate_dim is .*, expected an integer from 1 to"):
                model.encode(texts, truncate_dim=wrong)


METHODS: dict[str, Any] = {
    "encode": lambda m: m.encode(["a"]), "embed": lambda m: m.embed("a"),
    "encode_sparse": lambda m: m.encode_sparse(["a"]), "encode_tokens": lambda m: m.encode_tokens(["a"]),
    "score": lambda m: m.score(["a"], ["b"]), "predict": lambda m: m.predict([("a", "b")]),
    "rank": lambda m: m.rank("a", ["b"]), "classify": lambda m: m.classify(["a"]),
    "classify_tokens": lambda m: m.classify_tokens(["a"]),
}  # fmt: skip
HAVE = {
    "embeddings": ("encode", "embed"), "sparse": ("encode_sparse",), "tokens": ("encode_tokens", "score", "rank"),
    "scores": ("predict", "rank", "classify"), "labels": ("classify_tokens",),
}  # fmt: skip


@pytest.mark.parametrize("task", HAVE)
def test_what_a_folder_is_not_for(task: str, tmp_path: Path) -> None:
    if task == "embeddings":
        sentence_folders.write(tmp_path, "mean")
    else:
        write(tmp_path, next(name for name, given in FOLDERS.items() if given["task"] == task))
    with load(tmp_path) as model:
        assert model.task == task
        for name, call in METHODS.items():
            if name in HAVE[task]:
                call(model)
            else:
                with pytest.raises(RlxError, match=rf"^\w+: .* has no .*; it has .*, by .*{HAVE[task][0]}"):
                    call(model)


def test_what_callers_get_wrong(tmp_path: Path) -> None:
    with load(write(tmp_path / "x", "cross-encoder")) as model:
        for pairs in ("ab", [("a",)], ["ab"], [("a", 5)], [("a", "b", "c")], 7):
            with pytest.raises(DTypeError, match="predict"):
                model.predict(pairs)
        with pytest.raises(RlxError, match=r"activation is 'sigmoyd' \(did you mean 'sigmoid'\?\)"):
            model.predict([("a", "b")], activation="sigmoyd")
        assert model.predict([]).shape == (0,) and model.rank("a", []).shape == (0,)
        assert model.rank("a", [], top_k=3) == []
        for top, error in ((0, ShapeError), ("3", DTypeError), (1.0, DTypeError)):
            with pytest.raises(error, match="rank: top_k"):
                model.rank("a", ["b"], top_k=top)
        with pytest.raises(DTypeError, match="write"):
            model.rank("a", "b")
        with pytest.raises(DTypeError, match="the query is a list, expected str"):
            model.rank(["a"], ["b"])
        with pytest.raises(ShapeError, match="text 1 has more than the 40 tokens"):
            model.classify(["a", "cat " * 60])
        assert len(model.classify(["a", "cat " * 60], truncate=True)) == 2
        with pytest.raises(DTypeError, match="expected one of softmax, sigmoid, none"):
            model.classify(["a"], function="tanh")
        raw, usual = (model.predict([("a", "b")], activation=way)[0] for way in ("identity", None))
        assert usual == pytest.approx(1 / (1 + np.exp(-raw)), abs=1e-6)
        assert "corpus_id" in model.rank("a", ["b"], return_documents=False)[0]
    with load(write(tmp_path / "y", "cross-encoder of three labels")) as model:
        with pytest.raises(RlxError, match="3 labels, which rank nothing"):
            model.rank("a", ["b"])
        assert model.labels == ("A", "B", "C") and model.predict([]).shape == (0, 3)
    with load(write(tmp_path / "z", "splade")) as model:
        with pytest.raises(ShapeError, match="max_active_dims is 0"):
            model.encode_sparse(["a"], max_active_dims=0)
        with pytest.raises(RlxError, match="no prompt has the name 'quary'"):
            model.encode_sparse(["a"], prompt_name="quary")
        assert model.encode_sparse([]) == []
    with load(write(tmp_path / "l", "labels of tokens")) as model:
        with pytest.raises(RlxError, match="expected one of none, simple, first, average, max"):
            model.classify_tokens(["a"], aggregation="mean")
        with pytest.raises(ShapeError, match="let truncate=True cut it"):
            model.classify_tokens(["cat " * 60])


def test_scores_of_late_interaction_by_definition(tmp_path: Path) -> None:
    """Beside the sum of the largest products, written out; vectors of any texts, also of none."""
    with load(write(tmp_path, "late interaction")) as model:
        rng = np.random.default_rng(0)
        queries = [rng.normal(size=(n, 8)).astype(np.float32) for n in (3, 1, 7)]
        documents = [rng.normal(size=(n, 8)).astype(np.float32) for n in (5, 0, 2, 9)]
        got = model.score(queries, documents)
        for i, q in enumerate(queries):
            for j, d in enumerate(documents):
                exact = (q.astype(np.float64) @ d.T.astype(np.float64)).max(1).sum() if len(d) else -1e9
                assert got[i, j] == pytest.approx(exact, rel=2e-6, abs=2e-6)
        assert model.score([], documents).shape == (0, 4) and model.score(queries, []).shape == (3, 0)
        with pytest.raises(ShapeError, match="expected one width"):
            model.score(queries, [np.zeros((2, 9), np.float32)])
        with pytest.raises(ShapeError, match=r"documents has an array of shape \(8,\)"):
            model.score(queries, [np.zeros(8, np.float32)])
        with pytest.raises(DTypeError, match="write"):
            model.score("the cat", list(DOCUMENTS))
        with pytest.raises(RlxError, match="expected 'query', 'document' or None"):
            model.encode_tokens(list(QUERIES), task="passage")


def test_batches_change_nothing(tmp_path: Path) -> None:
    texts = [*task_folders.TEXTS, *DOCUMENTS]
    with load(write(tmp_path, "splade, sum of double logarithms, prompt")) as model:
        for one, many in zip(texts, model.encode_sparse(texts, batch_size=3), strict=True):
            (alone,) = model.encode_sparse([one])
            assert (alone[0] == many[0]).all() and np.abs(alone[1] - many[1]).max() <= 2e-6


def _changed(folder: Path, file: str, **changed: Any) -> None:
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))


@pytest.mark.parametrize(
    ("name", "file", "changed", "message"),
    [
        ("splade", "1_SpladePooling/config.json", {"pooling_strategy": "mean"}, "pooling_strategy is 'mean'"),
        ("splade", "1_SpladePooling/config.json", {"activation_function": "gelu"}, "activation_function is 'gelu'"),
        ("splade", "config_sentence_transformers.json", {"max_active_dims": 0}, "max_active_dims is 0"),
        ("splade", "config_sentence_transformers.json", {"model_type": "Other"}, "model_type is 'Other'"),
        ("splade", "sentence_bert_config.json", {"transformer_task": "x"}, "transformer_task is 'x'"),
        ("splade", "sentence_bert_config.json", {"processing_kwargs": {"text": {}}}, "processing_kwargs"),
        ("splade", "config.json", {"model_type": "bird"}, "model_type is 'bird'"),
        ("cross-encoder", "config.json", {"id2label": {"1": "A"}}, "id2label"),
        ("cross-encoder", "config.json", {"id2label": {"0": "A", "1": "B"}}, r"classifier.*shape \(1, 24\)"),
        ("cross-encoder", "config.json", {"num_labels": 3}, "num_labels is 3"),
        ("cross-encoder", "config.json", {"problem_type": "x"}, "problem_type is 'x'"),
        ("cross-encoder", "config_sentence_transformers.json", {"activation_fn": "mine.Fn"}, "activation_fn is 'mine"),
        ("queries filled up", "sentence_bert_config.json", {"query_expansion": {"strategy": "x"}}, "strategy is 'x'"),
        ("queries filled up", "sentence_bert_config.json",
         {"query_expansion": {"strategy": "fixed", "length": 99}}, "length of query_expansion is 99"),
        ("queries filled up", "sentence_bert_config.json",
         {"query_expansion": {"strategy": "fixed", "length": 9, "token": "zzz"}}, "'zzz', which is no token"),
        ("queries filled up", "sentence_bert_config.json", {"query_length": 5}, "query_length is 5, expected at least"),
        ("queries filled up", "sentence_bert_config.json", {"document_length": 41}, "document_length is 41"),
        ("queries filled up", "2_MultiVectorMask/config.json", {"keep_only_token_ids": ["a"]}, "keep_only_token_ids"),
        ("queries filled up", "2_MultiVectorMask/config.json", {"skiplist_words": 5}, "skiplist_words is 5"),
        ("queries filled up", "3_Normalize/config.json", {"module_input_name": "sentence_embedding"}, "module_input"),
        ("queries filled up", "1_Dense/config.json", {"module_output_name": "scores"}, "module_output_name is 'sc"),
        ("PyLate 3", "config_sentence_transformers.json", {"do_query_expansion": 1}, "do_query_expansion is 1"),
        ("Stanford's ColBERT", "artifact.metadata", {"query_maxlen": -1}, "query_maxlen is -1"),
        ("labels of tokens", "config.json", {"id2label": ["O"]}, "id2label"),
    ],
)  # fmt: skip
def test_what_files_get_wrong(name: str, file: str, changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    _changed(write(tmp_path, name), file, **changed)
    with pytest.raises(ModelFormatError, match=message):
        load(tmp_path)


@pytest.mark.parametrize(
    ("name", "kind"), [("splade", "Normalize"), ("cross-encoder", "Dense"), ("queries filled up", "TokenPooling")]
)
def test_modules_that_are_not_there(name: str, kind: str, tmp_path: Path) -> None:
    file = write(tmp_path, name) / "modules.json"
    modules = json.loads(file.read_text())
    modules.append({"idx": 9, "name": "9", "path": "9_X", "type": f"sentence_transformers.base.modules.x.{kind}"})
    file.write_text(json.dumps(modules))
    with pytest.raises(ModelFormatError, match=f"{kind}.*not supported for"):
        load(tmp_path)


def test_weights_of_heads(tmp_path: Path) -> None:
    given = task_folders.tensors(FOLDERS["cross-encoder"])
    for gone in ("classifier.bias", "bert.pooler.dense.weight"):
        write(tmp_path, "cross-encoder")
        write_safetensors(tmp_path / "model.safetensors", {n: w for n, w in given.items() if n != gone})
        with pytest.raises(ModelFormatError, match=f"missing.*{gone.removeprefix('bert.')}"):
            load(tmp_path)
    write_safetensors(tmp_path / "model.safetensors", {**given, "other.weight": formula("x", (2, 2), 1.0)})
    with pytest.raises(ModelFormatError, match=r"extra 'other.weight'"):
        load(tmp_path)


def test_half_precision(tmp_path: Path) -> None:
    for name, run in (
        ("splade", lambda m: np.concatenate([v for _, v in m.encode_sparse(["the cat sleeps", "dog"])])),
        ("cross-encoder", lambda m: m.predict([("the cat", "a dog"), ("stone", "")])),
        ("late interaction", lambda m: m.score(["the cat"], list(DOCUMENTS))),
    ):
        folder = write(tmp_path / name, name)
        with load(folder) as model, rlx.models.load(folder, "cpu", dtype="bf16") as half:
            exact, got = run(model), run(half)
        if exact.shape == got.shape:  # numbers near 0 may be on its other side
            assert 1e-7 < np.abs(exact - got).max() < 0.1
