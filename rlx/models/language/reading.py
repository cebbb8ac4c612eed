"""What embedding and reranking models compute from a decoder's states: a vector of a text, or a score of a query and a
document."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from rlx.errors import ModelFormatError, RlxError, ShapeError, meant
from rlx.formats.files import shown
from rlx.formats.gguf.encoders import RERANK, pooling_of
from rlx.formats.gguf.model import SCORES
from rlx.formats.gguf.reader import GgufFile
from rlx.formats.heads import LogitScore
from rlx.formats.tokenizer.chat import ChatTemplate
from rlx.formats.tokenizer.language import MAX_TEMPLATE, LanguageTokenizer
from rlx.models.labels import sigmoid
from rlx.models.language.config import LanguageConfig
from rlx.packed import PackedArray
from rlx.records import Record, field

Pooled = Literal["mean", "cls", "last"]
POOLINGS: tuple[Pooled, ...] = ("mean", "cls", "last")
F32 = npt.NDArray[np.float32]


class Reading(Record):
    """How states are read: `pooling` for embeddings, and `prompts` by name, one of which may be put before each text.
    For a reranker `rows`, f32 (answers, width), give the logits of its answers after the last token of `template`, into
    which the query and the document are inserted."""

    pooling: Pooled = "last"
    rows: F32 | None = None
    template: str = ""
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None

    def before(self, name: str | None, where: str) -> str:
        """The text to put before each text. Raises: RlxError for an unknown name of a prompt."""
        name = self.default_prompt if name is None else name
        if name is not None and name not in self.prompts:
            there = f"it has {', '.join(sorted(self.prompts))}" if self.prompts else "its files have none"
            raise RlxError(f"{where}: no prompt has the name {shown(name)}{meant(name, self.prompts)}; {there}")
        return "" if name is None else self.prompts[name]

    def prompt(self, tokenizer: LanguageTokenizer, query: str, document: str, where: str) -> list[int]:
        """The tokens of a query and a document. Special tokens written in these are plain characters. Raises:
        RlxError."""
        if self.rows is None:
            raise RlxError(f"{where} is no reranker; embed() gives vectors, whose products are similarities")
        if not self.template:
            raise RlxError(f"{where}: has no {RERANK}, by which a query and a document become a prompt")
        vocabulary = tokenizer.vocabulary
        texts = sorted((vocabulary.tokens[i] for i in vocabulary.control | vocabulary.added), key=len, reverse=True)
        marks = re.compile("|".join(map(re.escape, texts))) if texts else re.compile(r"(?!)")
        ids: list[int] = []
        places = {"{query}": query, "{document}": document}

        def put(part: str) -> None:
            filled = re.sub(r"\{query\}|\{document\}", lambda found: places[found[0]], part)
            if filled:
                ids.extend(tokenizer.encode(filled, special=False))

        at = 0
        for mark in marks.finditer(self.template):
            put(self.template[at : mark.start()])
            ids += tokenizer.encode(mark[0], special=False, parse_special=True)
            at = mark.end()
        put(self.template[at:])
        return ids

    def score(self, state: F32) -> float:
        """The probability of the first answer."""
        assert self.rows is not None
        logits = self.rows.astype(np.float64) @ state
        parts = np.exp(logits - logits.max())
        return float(parts[0] / parts.sum())


class ChatReading(Reading):
    """How the states of a cross-encoder's folder are read: its chat template makes the prompt."""

    told: LogitScore | None = None

    def prompt(
        self, tokenizer: LanguageTokenizer, query: str, document: str, where: str, system: str | None = None
    ) -> list[int]:
        """The tokens of a query and a document by the chat template, after a `system` message or the folder's default
        one. Raises: RlxError, ShapeError for more tokens than the folder allows."""
        assert self.told is not None
        before = self.before(None, where) if system is None else system
        messages = [{"role": "system", "content": before}] if before else []
        messages += [{"role": "query", "content": query}, {"role": "document", "content": document}]
        options = {"add_generation_prompt": False, **self.told.options}
        text = ChatTemplate.of(tokenizer).render(messages, **options)
        if query.strip() not in text or document.strip() not in text:
            raise RlxError(f"{where}: its chat template leaves out a query or a document")
        ids = tokenizer.encode(text, special=False, parse_special=True)
        if self.told.longest is not None and len(ids) > self.told.longest:
            most = self.told.longest
            raise ShapeError(f"rank: a prompt of {len(ids)} tokens; {where} takes {most}: shorten the texts")
        return ids

    def score(self, state: F32) -> float:
        """The activation of the difference of the two logits."""
        assert self.rows is not None and self.told is not None
        logits = self.rows.astype(np.float64) @ state
        apart = float(logits[0] - (logits[1] if len(logits) > 1 else 0.0))
        return apart if self.told.activation is None else float(sigmoid(np.array(apart)))


def chat_reading(told: LogitScore, tensors: Mapping[str, Any], config: LanguageConfig, where: str) -> ChatReading:
    """The reading of a cross-encoder's folder; `tensors` include the output matrix. Raises: ModelFormatError for logits
    that are not simply a product with that matrix."""
    if config.logit_scale != 1.0 or config.logit_softcap is not None:
        raise ModelFormatError(f"{where}: is a cross-encoder with scaled or capped logits, which are not there")
    names = ("lm_head.weight", "model.embed_tokens.weight", "embed_tokens.weight")
    table = next((name for name in (names[1:] if config.tied else names) if name in tensors), None)
    if table is None or "lm_head.bias" in tensors:
        raise ModelFormatError(f"{where}: is a cross-encoder whose logits are no product with {names[0]}")
    ids = [id for id in (told.yes, told.no) if id is not None]
    held = tensors[table]
    if max(ids) >= held.shape[0]:
        raise ModelFormatError(f"{where}: LogitScore names token {max(ids)}; the model knows {held.shape[0]} tokens")
    rows = (held.dequantize() if isinstance(held, PackedArray) else np.asarray(held))[ids]
    return ChatReading(
        "last", rows.astype(np.float32), told=told, prompts=told.prompts, default_prompt=told.default_prompt
    )


def reading_of(file: GgufFile) -> Reading:
    """The reading that a decoder's open file asks for. Raises: ModelFormatError."""
    pooling, scores = pooling_of(file), file.tensors.get(SCORES)
    if pooling != "rank":
        if scores is not None:
            raise ModelFormatError(f"{file.path}: has the tensor {SCORES} of a reranker, whose pooling_type is another")
        return Reading() if pooling is None else Reading(pooling)
    if file.metadata.get("general.architecture") != "qwen3":
        raise ModelFormatError(f"{file.path}: is a reranker; of decoders rlx has code for those of Qwen3 alone")
    width = file.metadata.get(f"{file.metadata.get('general.architecture')}.embedding_length")
    if scores is None or len(scores.shape) != 2 or scores.shape[0] < 2 or scores.shape[1] != width:
        came = None if scores is None else scores.shape
        raise ModelFormatError(f"{file.path}: {SCORES} is {came}; a reranker has two or more rows of {width}")
    template = file.metadata.get(RERANK, "")
    if not isinstance(template, str) or len(template) > MAX_TEMPLATE:
        raise ModelFormatError(f"{file.path}: {RERANK} is {shown(template)}, expected a text")
    held = scores.read()
    rows = held.dequantize() if isinstance(held, PackedArray) else np.asarray(held).astype(np.float32)
    return Reading("last", np.asarray(rows, np.float32), template)


def pooled(states: F32, pooling: Pooled = "last", normalize: bool = True, truncate_dim: int | None = None) -> F32:
    """The embedding, f32 (width,) or its first `truncate_dim` numbers, from the states after a text's tokens, f32
    (tokens, width)."""
    vector = states.mean(0, dtype=np.float64) if pooling == "mean" else states[0 if pooling == "cls" else -1]
    vector = vector[:truncate_dim]
    size = float(np.linalg.norm(vector)) if normalize else 1.0
    return np.asarray(vector / max(size, 1e-12), np.float32)
