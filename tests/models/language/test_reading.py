"""Embeddings and scores of decoders in GGUF files, as the file says that they are made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from rlx.errors import DTypeError, ModelFormatError, RlxError
from rlx.formats import gguf
from rlx.formats.tokenizer.decoding import byte_letters
from rlx.models import load
from tests.models.tiny import formula

D, VOCABULARY, RERANK = 32, 260, "tokenizer.chat_template.rerank"
TEMPLATE = "<|im_start|>Judge.<|im_end|>\n<Query>: {query}\n<Document>: {document}<|im_end|>"
POOLINGS = {"mean": 1, "cls": 2, "last": 3, "rank": 4}


def write(path: Path, pooling: str | None, **changed: Any) -> dict[str, npt.NDArray[np.float32]]:
    """A tiny Qwen3 with a vocabulary of bytes; gives the weights."""
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (VOCABULARY, D), "output_norm.weight": (D,)}
    for i in range(2):
        linear = {"attn_q": (32, D), "attn_k": (16, D), "attn_v": (16, D), "attn_output": (D, 32), "ffn_gate": (48, D),
                  "ffn_up": (48, D), "ffn_down": (D, 48)}  # fmt: skip
        norms = {"attn_norm": D, "ffn_norm": D, "attn_q_norm": 8, "attn_k_norm": 8}
        shapes |= {f"blk.{i}.{n}.weight": s for n, s in linear.items()}
        shapes |= {f"blk.{i}.{n}.weight": (s,) for n, s in norms.items()}
    if pooling == "rank":
        shapes["cls.output.weight"] = (2, D)
    held = {n: formula(n, s, 0.5, 1.0 if len(s) == 1 else 0.0) for n, s in shapes.items()}
    tokens = [*byte_letters(), "<|im_start|>", "<|im_end|>", "<|end|>", "unused"]
    metadata = {
        "general.architecture": "qwen3", "qwen3.block_count": 2, "qwen3.context_length": 256,
        "qwen3.embedding_length": D, "qwen3.feed_forward_length": 48, "qwen3.attention.head_count": 4,
        "qwen3.attention.head_count_kv": 2, "qwen3.attention.key_length": 8, "qwen3.attention.value_length": 8,
        "qwen3.rope.freq_base": 1e4, "qwen3.attention.layer_norm_rms_epsilon": 1e-6, "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": [],
        "tokenizer.ggml.token_type": [1] * 256 + [3, 3, 3, 1], "tokenizer.ggml.eos_token_id": 258,
        "tokenizer.ggml.add_eos_token": True,
    }  # fmt: skip
    metadata |= {} if pooling is None else {"qwen3.pooling_type": POOLINGS[pooling]}
    metadata |= {RERANK: TEMPLATE} if pooling == "rank" else {}
    metadata |= changed
    gguf.write(path, {k: v for k, v in metadata.items() if v is not None}, held)
    return held


@pytest.mark.parametrize("pooling", [None, "mean", "cls", "last"])
def test_the_file_says_what_an_embedding_is_made_of(pooling: Any, tmp_path: Path) -> None:
    write(tmp_path / "x.gguf", pooling)
    with load(tmp_path / "x.gguf", "cpu", context=64) as model:
        ids = [*b"some text", 258]
        states = model.hidden(ids).astype(np.float64)
        exact = {"mean": states.mean(0), "cls": states[0]}.get(pooling, states[-1])
        exact /= np.linalg.norm(exact)
        got = model.embed("some text")
        assert np.abs(got - exact).max() <= 1e-6
        several = model.embed(["some text", "other"])
        assert several.shape == (2, D) and (several[0] == got).all()
        assert (model.embed(ids) == got).all()
        assert np.abs(model.embed("some text", pooling="cls") - model.embed(ids[:1])).max() <= 1e-5
        with pytest.raises(RlxError, match="is no reranker"):
            model.rank("a", ["b"])
        for call, given in (model.embed, (5,)), (model.rank, ("a", 5)), (model.rank, ("a", "b")):
            with pytest.raises(DTypeError):
                call(*given)
        with pytest.raises(RlxError, match="none of mean, cls, last"):
            model.embed("a", pooling="max")


def test_scores_of_a_reranker(tmp_path: Path) -> None:
    held = write(tmp_path / "x.gguf", "rank")
    documents = ["a document", "another", "ends <|im_end|> here"]
    with load(tmp_path / "x.gguf", "cpu", context=128) as model:
        got = model.rank("a query", documents)
        for score, document in zip(got, documents, strict=True):
            text = f"\n<Query>: a query\n<Document>: {document}"  # whose marks are letters
            states = model.hidden([256, *b"Judge.", 257, *text.encode(), 257])
            logits = held["cls.output.weight"].astype(np.float64) @ states[-1]
            assert abs(score - 1 / (1 + np.exp(logits[1] - logits[0]))) <= 1e-6
        with pytest.raises(RlxError, match="is a reranker, which has no embeddings"):
            model.embed("a")
        with pytest.raises(DTypeError, match="a query and a list of documents"):
            model.rank("a", "b")


@pytest.mark.parametrize(
    ("pooling", "changed", "message"),
    [
        ("mean", {"qwen3.pooling_type": 7}, "pooling_type is 7"),
        ("mean", {"qwen3.pooling_type": 4}, "cls.output.weight is None"),
        ("rank", {"qwen3.pooling_type": 3}, "of a reranker, whose pooling_type is another"),
        ("rank", {RERANK: 3}, "expected a text"),
    ],
)
def test_what_is_refused(pooling: str, changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    write(tmp_path / "x.gguf", pooling, **changed)
    with pytest.raises(ModelFormatError, match=message):
        load(tmp_path / "x.gguf", "cpu")


def test_a_reranker_without_its_template(tmp_path: Path) -> None:
    write(tmp_path / "x.gguf", "rank", **{RERANK: None})
    with load(tmp_path / "x.gguf", "cpu") as model, pytest.raises(RlxError, match=f"has no {RERANK}"):
        model.rank("a", ["b"])
