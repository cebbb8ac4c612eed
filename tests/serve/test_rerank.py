"""`/v1/rerank` of cross-encoders, late interaction, and rerankers in GGUF."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette", reason="needs rlx[serve]")
pytest.importorskip("uvicorn", reason="needs rlx[serve]")

import rlx
from rlx.errors import RlxError
from rlx.serve.encoder import EncoderService
from rlx.serve.limits import Limits
from tests.models import gguf_encoders, sentence_folders, task_folders
from tests.models.language import test_reading
from tests.models.task_folders import DOCUMENTS, QUERIES
from tests.serve.served import served

RERANK = "/v1/rerank"
ASKED = {"model": "tiny", "query": QUERIES[0], "documents": [*DOCUMENTS]}


def _write(folder: Path, kind: str) -> Path:
    if kind in task_folders.FOLDERS:
        return task_folders.write(folder / "x", kind)
    if kind == "encoder in GGUF":
        gguf_encoders.write(folder / "x.gguf", "bert", "rank")
    else:
        test_reading.write(folder / "x.gguf", "rank")
    return folder / "x.gguf"


@pytest.mark.parametrize(
    "kind", ["cross-encoder without an activation, prompt", "queries filled up", "encoder in GGUF", "decoder in GGUF"]
)
def test_documents_are_ordered_by_their_scores(kind: str, tmp_path: Path) -> None:
    texts = ["dog", "a b", "some text", "the cat"] if kind == "decoder in GGUF" else list(DOCUMENTS)
    asked = {**ASKED, "documents": texts}
    with served(_write(tmp_path, kind)) as server:
        exact = server.model.rank(QUERIES[0], texts)
        order = np.argsort(-exact, kind="stable").tolist()
        status, found = server.ask(RERANK, asked)
        assert status == 200 and {*found} == {"id", "object", "model", "results", "usage"} and found["model"] == "tiny"
        assert [r["index"] for r in found["results"]] == order
        assert [r["document"]["text"] for r in found["results"]] == [texts[i] for i in order]
        scores = np.array([r["relevance_score"] for r in found["results"]])
        assert np.abs(scores - exact[order]).max() <= 2e-6 * max(1.0, np.abs(exact).max())
        assert found["usage"]["total_tokens"] == found["usage"]["prompt_tokens"] > 4
        body = {**asked, "documents": [{"text": text} for text in texts], "top_n": 2, "return_documents": False}
        status, found = server.ask("/v2/rerank", body)
        assert status == 200 and [{*r} for r in found["results"]] == [{"index", "relevance_score"}] * 2
        assert [r["index"] for r in found["results"]] == order[:2]
        assert len(server.ask(RERANK, {**asked, "top_n": 99})[1]["results"]) == 4
        status, found = server.ask("/v1/embeddings", {"model": "tiny", "input": "a"})
        assert status == 400 and "reranker" in found["error"]["message"]


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    with served(task_folders.write(tmp_path / "x", "cross-encoder")) as server:
        for more, param in (
            ({"query": None}, "query"), ({"query": ["a"]}, "query"), ({"documents": []}, "documents"),
            ({"documents": "a"}, "documents"), ({"documents": ["a", 5]}, "documents"),
            ({"documents": [{"body": "a"}]}, "documents[0].text"),
            ({"documents": [{"text": "a", "title": "b"}]}, "documents[0].title"), ({"top_n": 0}, "top_n"),
            ({"top_n": 1.5}, "top_n"), ({"return_documents": "yes"}, "return_documents"),
            ({"max_tokens_per_doc": 5}, "max_tokens_per_doc"), ({"documents": ["a"] * 257}, "documents"),
        ):  # fmt: skip
            status, found = server.ask(RERANK, {**ASKED, **more})
            assert status == 400 and found["error"]["param"] == param, (more, found)
        assert server.ask(RERANK, {**ASKED, "model": "other"})[0] == 404


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_models_of_embeddings_order_nothing(kind: str, tmp_path: Path) -> None:
    if kind == "encoder":
        path = sentence_folders.write(tmp_path / "x", "mean")
    else:
        path = tmp_path / "x.gguf"
        test_reading.write(path, "mean")
    with served(path) as server:
        status, found = server.ask(RERANK, ASKED)
        assert status == 400 and found["error"]["param"] == "model", found


@pytest.mark.parametrize("kind", ["splade", "labels of tokens", "cross-encoder of three labels"])
def test_models_without_a_route_are_refused(kind: str, tmp_path: Path) -> None:
    model: Any
    folder = task_folders.write(tmp_path, kind)
    with rlx.models.load(folder, "cpu", engine="numpy") as model, pytest.raises(RlxError, match="no route"):
        EncoderService(model, "tiny", limits=Limits())
