"""Cross-encoders that are language models beside what sentence-transformers 6.2.0 gives for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jinja2", reason="needs rlx[hf]")

import rlx
from rlx.errors import ModelFormatError, RlxError, ShapeError
from tests.models.logit_score import CASES, DOCUMENTS, FROZEN, QUERY, write


def load(folder: Path) -> Any:
    return rlx.models.load(folder, "cpu", engine="numpy", context=64)


@pytest.mark.parametrize("name", CASES)
def test_scores(name: str, tmp_path: Path) -> None:
    exact = json.loads(FROZEN.read_text())[name]
    with load(write(tmp_path, name)) as model:
        assert np.abs(model.rank(QUERY, DOCUMENTS) - exact[0]).max() <= 2e-6
        assert np.abs(model.rank(QUERY, DOCUMENTS, prompt="boat") - exact[1]).max() <= 2e-6
        best = model.rank(QUERY, DOCUMENTS, top_k=2, return_documents=True)
        order = np.argsort(-np.array(exact[0]))[:2]
        assert [(one["corpus_id"], one["text"]) for one in best] == [(i, DOCUMENTS[i]) for i in order]


def test_prompts_and_lengths(tmp_path: Path) -> None:
    with load(write(tmp_path, "prompt and generation")) as model:
        named = {name: model.rank(QUERY, DOCUMENTS, prompt_name=name) for name in ("web", "other")}
        assert (named["web"] == model.rank(QUERY, DOCUMENTS)).all()
        assert (named["other"] == model.rank(QUERY, DOCUMENTS, prompt="")).all()
        with pytest.raises(RlxError, match=r"'wep' \(did you mean 'web'\?\); it has document, other, query, web"):
            model.rank(QUERY, DOCUMENTS, prompt_name="wep")
        with pytest.raises(RlxError, match="give one of them"):
            model.rank(QUERY, DOCUMENTS, prompt_name="web", prompt="a")
        with pytest.raises(ShapeError, match="takes 40: shorten the texts"):
            model.rank(QUERY, ["cat " * 50])
        with pytest.raises(RlxError, match="is a reranker, which has no embeddings"):
            model.embed("cat")


def _changed(folder: Path, file: str, **changed: Any) -> None:
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))


@pytest.mark.parametrize(
    ("file", "changed", "message"),
    [
        ("1_LogitScore/config.json", {"true_token_id": "yes"}, "true_token_id is 'yes'"),
        ("1_LogitScore/config.json", {"true_token_id": 999}, "names token 999"),
        ("sentence_bert_config.json", {"transformer_task": "fill-mask"}, "transformer_task is 'fill-mask'"),
        ("sentence_bert_config.json", {"processing_kwargs": {"text": {"max_length": 3}}}, "processing_kwargs"),
        ("sentence_bert_config.json", {"modality_config": {"text": {}}}, "modality_config"),
        ("config_sentence_transformers.json", {"activation_fn": "torch.nn.modules.activation.Tanh"}, "Sigmoid or"),
    ],
)
def test_what_files_get_wrong(file: str, changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    _changed(write(tmp_path, "two tokens"), file, **changed)
    with pytest.raises(ModelFormatError, match=message):
        load(tmp_path)


def test_templates_that_leave_a_text_out(tmp_path: Path) -> None:
    write(tmp_path, "two tokens")
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    with load(tmp_path) as model, pytest.raises(RlxError, match="leaves out a query or a document"):
        model.rank(QUERY, ["a dog runs"])
