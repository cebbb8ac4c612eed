"""Fine-tuning of sentence encoders beside sentence-transformers, whose losses sentence_course.json has."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.errors import DataError, GraphError, RlxError, ShapeError
from rlx.finetune import Settings, finetune
from rlx.finetune.adapter_files import read_peft
from rlx.finetune.sentences import SentenceTask
from rlx.models import Lora, load, trainable
from tests.finetune.sentence_course import FILE, KINDS, settings_of
from tests.finetune.tiny import write_lines
from tests.models import task_folders
from tests.models.encoders import families
from tests.models.encoders.families import case_folder
from tests.models.tiny import SENTENCES, write_model, write_tokenizer

FROZEN = json.loads(FILE.read_text())["losses"]


@pytest.mark.late(kind=["triples", "scores"])
@pytest.mark.parametrize("kind", KINDS)
def test_twenty_losses_are_those_of_sentence_transformers(kind: str, tmp_path: Path) -> None:
    settings = settings_of(kind, tmp_path)
    finetune(settings, lambda line: None)
    lines = (settings.out / "training" / "metrics.jsonl").read_text().splitlines()
    losses = [found["loss"] for found in map(json.loads, lines) if "loss" in found]
    np.testing.assert_allclose(losses, FROZEN[kind], rtol=2e-4)
    with load(settings.out / "model", "cpu") as trained, load(settings.model, "cpu") as before:
        assert np.abs(trained.encode(["the cat"]) - before.encode(["the cat"])).max() > 0.01


def test_an_adapter_of_an_encoder_is_written_beside_the_merged_model(tmp_path: Path) -> None:
    settings = replace(settings_of("scores", tmp_path), lora=Lora(2, targets=("query", "value")), evaluation=0.25)
    lines: list[str] = []
    finetune(settings, lines.append)
    assert lines[0].startswith("data: 12 scores, of at most 16 tokens; 4 to evaluate with")
    adapter = read_peft(settings.out)
    config = json.loads((settings.out / "adapter_config.json").read_text())
    assert config["task_type"] == "FEATURE_EXTRACTION" and "encoder.layer.1.attention.self.value" in adapter
    function, weights = trainable(settings.model)
    adapted, _ = function.adapted(settings.lora, weights)
    ids = function.files.tokenizer.ids(["the green boat"])[0][None]
    with load(settings.out / "model", "cpu") as merged:
        wanted = merged.encode(["the green boat"])
    vectors = adapted(adapter, weights, ids, np.ones(ids.shape, bool))
    np.testing.assert_allclose(vectors, wanted, atol=1e-5)


def test_a_folder_without_a_tokenizer_is_a_function_of_ids_and_reads_no_text(tmp_path: Path) -> None:
    settings = settings_of("scores", tmp_path)
    whole, weights = trainable(settings.model, "f64")
    ids = np.array([[1, 2, 3]], np.int32)
    wanted = whole(weights, ids, ids > 0)
    (settings.model / "tokenizer.json").unlink()
    function, weights = trainable(settings.model, "f64")
    np.testing.assert_array_equal(function(weights, ids, ids > 0), wanted)
    with pytest.raises(RlxError, match=r"has no tokenizer\.json, which text needs"):
        finetune(settings, lambda line: None)


def test_vectors_are_the_loaded_encoders_and_slopes_those_of_differences(tmp_path: Path) -> None:
    function, weights = trainable(write_model(tmp_path), "f64")
    with load(tmp_path, "cpu") as encoder:
        rows, feeds, _ = next(encoder.batches(list(SENTENCES)))
        wanted = encoder.encode(list(SENTENCES))[rows]
    ids, mask = feeds["ids"], feeds["mask"]
    found = function(weights, ids, mask)[: len(rows)]
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    rng = np.random.default_rng(0)
    by, step = rng.standard_normal((len(ids), found.shape[1])), 1e-6
    loss = rlx.jit(lambda weights: rlx.sum(function(weights, ids, mask) * by), device="cpu")
    slopes = rlx.grad(lambda weights: rlx.sum(function(weights, ids, mask) * by), device="cpu")(weights)
    way = {n: rng.standard_normal(w.shape) for n, w in weights.items()}
    ends = [loss({n: w + sign * step * way[n] for n, w in weights.items()}) for sign in (1, -1)]
    along = sum(float((slopes[n] * way[n]).sum()) for n in weights)
    assert along == pytest.approx(float(ends[0] - ends[1]) / (2 * step), rel=1e-5)


def test_what_is_cut_and_what_is_not_evaluated_is_said(tmp_path: Path) -> None:
    settings = settings_of("pairs", tmp_path)
    long = [{"anchor": "the cat " * 300, "positive": "a cat"}] * 4
    held = write_lines(tmp_path / "held.jsonl", [{"anchor": "a", "positive": "b"}] * 7)
    lines: list[str] = []
    SentenceTask(replace(settings, data=write_lines(tmp_path / "l.jsonl", long), evaluation=held), lines.append)
    assert lines == [
        "data: 4 records of 2 texts, of at most 40 tokens; 7 to evaluate with, of which 4 fill whole batches",
        "4 texts have all 40 tokens that the encoder takes, which cuts what is longer",
    ]


def test_what_cannot_be_is_told(tmp_path: Path) -> None:
    settings = settings_of("pairs", tmp_path)
    for records, error, why in (
        ([{"a": "b"}], DataError, r"has the columns \['a'\]; expected anchor and positive"),
        ([{"anchor": "a", "positive": 3}], DataError, "line 1: positive is 3; expected a text"),
        ([{"sentence1": "a", "sentence2": "b", "score": "x"}], DataError, "line 1: score is 'x'; expected a number"),
        ([{"anchor": "a", "positive": "b", "negative": "c", "score": 1}], DataError,
         "line 1: has 'score' and 'negative'"),
        ([{"sentence1": "a", "sentence2": "b", "score": 4.2}], DataError, "score is 4.2; expected a number from -1 to"),
        ([{"anchor": "a", "positive": "b"}, {"anchor": "a", "positive": "b", "negative_1": "c"}], DataError,
         "line 2: has 'negative_1', which the first record has not"),
        ([{"anchor": "a", "positive": "b"}], DataError, "1 examples do not fill a batch of 4"),
    ):
        given = replace(settings, data=write_lines(tmp_path / "odd.jsonl", records))
        with pytest.raises(error, match=why):
            finetune(given, lambda line: None)
    with pytest.raises(RlxError, match="accumulate is for language models"):
        finetune(replace(settings, accumulate=2), lambda line: None)
    with pytest.raises(RlxError, match="an encoder is merged into a folder"):
        finetune(replace(settings, lora=Lora(2), merge=tmp_path / "m.gguf"), lambda line: None)
    with pytest.raises(RlxError, match="recompute is for language models"):
        finetune(replace(settings, recompute=True), lambda line: None)
    for name, value in {"context": 8, "checkpoint": True, "dims": {"a": 2}}.items():
        with pytest.raises(RlxError, match=f"trainable: {name} is for .* models; leave it out"):
            trainable(settings.model, **{name: value})
    function, weights = trainable(settings.model)
    ids, mask = np.ones((1, 3), np.int32), np.ones((1, 3), bool)
    some: dict[str, Any] = dict(list(weights.items())[1:])
    with pytest.raises(GraphError, match=r"the weights have no '.*give all that rlx.models.trainable gave"):
        function(some, ids, mask)
    with pytest.raises(ShapeError, match=r"mask is bool\[1, 2\]; expected \(1, 3\)"):
        function(weights, ids, mask[:, :2])


def test_what_is_evaluated_with_is_of_the_kind_that_is_trained_with(tmp_path: Path) -> None:
    settings = replace(settings_of("pairs", tmp_path), steps=1)
    of = {
        "long": [{"anchor": f"{i} " * 9, "positive": "b"} for i in range(2)],
        "one": [{"anchor": "a", "positive": "b"}],
        "triples": [{"anchor": "a", "positive": "b", "negative": "c"}] * 2,
        "scores": [{"sentence1": "a", "sentence2": "b", "score": 1}] * 2,
    }
    held = {name: write_lines(tmp_path / f"{name}.jsonl", records) for name, records in of.items()}
    short = write_lines(tmp_path / "short.jsonl", [{"anchor": "a", "positive": "b"}] * 4)
    assert finetune(replace(settings, data=short, evaluation=held["long"]), lambda line: None)["evaluation"] > 0
    for name, why in {"one": r"one\.jsonl: what is evaluated with is one pair",
                      "triples": "records of 3 texts, and .* of 2 texts",
                      "scores": "holds scores, and .*both must be of one kind"}.items():  # fmt: skip
        with pytest.raises(DataError, match=why):
            finetune(replace(settings, out=tmp_path / "other", evaluation=held[name]), lambda line: None)
    with pytest.raises(DataError, match="a batch is one pair, which there is nothing to tell apart from"):
        finetune(replace(settings, out=tmp_path / "other", batch=1), lambda line: None)


@pytest.mark.parametrize("case", ["qwen3-0", pytest.param("gemma3_text-0", marks=pytest.mark.late)])
def test_language_models_that_embed(case: str, tmp_path: Path) -> None:
    """Their adapters have the names of the class without a head, which sentence-transformers loads."""
    folder = case_folder(case, tmp_path / "base", json.loads(families.FROZEN.read_text())["cases"])
    write_tokenizer(folder / "tokenizer.json")
    pairs = [{"anchor": "the cat", "positive": "a dog runs"}, {"anchor": "a stone", "positive": "the river"}]
    data, out = write_lines(tmp_path / "data.jsonl", pairs), tmp_path / "out"
    settings = Settings(model=folder, data=data, out=out, lora=Lora(2, 4), steps=1, batch=2, length=16, device="cpu")
    finetune(settings, lambda line: None)
    assert "layers.0.self_attn.q_proj" in read_peft(out)
    with load(folder, "cpu", engine="numpy") as before, load(out / "model", "cpu", engine="numpy") as after:
        assert 1e-7 < np.abs(before.encode(["the cat"]) - after.encode(["the cat"])).max() < 1


@pytest.mark.parametrize("task", ["cross-encoder", "late interaction", "several labels at once"])
def test_models_of_other_tasks_are_refused(task: str, tmp_path: Path) -> None:
    """Their outputs are no vectors to compare: a cosine of scores would be learned as 1."""
    settings = replace(settings_of("pairs", tmp_path), model=task_folders.write(tmp_path / "other", task))
    with pytest.raises(RlxError, match=r"finetune: .*other is a .*, which has no embeddings; it has"):
        finetune(settings, lambda line: None)
    assert not settings.out.exists()


def test_an_encoder_without_products_for_an_adapter(tmp_path: Path) -> None:
    """SqueezeBERT's are of groups of columns."""
    folder = case_folder("squeezebert-0", tmp_path / "base", json.loads(families.FROZEN.read_text())["cases"])
    function, weights = trainable(folder)
    with pytest.raises(GraphError, match="none of its products is by a matrix that an adapter corrects; train all"):
        function.adapted(Lora(1), weights)
