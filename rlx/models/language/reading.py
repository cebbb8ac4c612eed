"""What embedding and reranking models make of a decoder's states: a vector of a text, or a score of a query and a
document."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt

from rlx.errors import ModelFormatError, RlxError, meant
from rlx.formats.files import shown
from rlx.formats.gguf.encoders import RERANK, pooling_of
from rlx.formats.gguf.model import SCORES
from rlx.formats.gguf.reader import GgufFile
from rlx.formats.huggingface import ModelFolder
from rlx.formats.tokenizer.language import MAX_TEMPLATE, LanguageTokenizer
from rlx.packed import PackedArray
from rlx.records import Record, field

Pooled = Literal["mean", "cls", "last"]
POOLINGS: tuple[Pooled, ...] = ("mean", "cls", "last")
F32 = npt.NDArray[np.float32]


class Reading(Record):
    """How states are read: `pooling` for embeddings, whether these have length 1, and the prompts by name, of which one
    may stand before each text; of a reranker `rows`, f32 (answers, width), which give the logits of its answers after
    the last token of `template` with the query and the document in their places. `refused`: why the files' embeddings
    are not there."""

    pooling: Pooled = "last"
    rows: F32 | None = None
    template: str = ""
    normalize: bool = True
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    refused: str = ""

    def before(self, name: str | None, where: str) -> str:
        """What stands before each text. Raises: RlxError for the name of no prompt."""
        name = self.default_prompt if name is None else name
        if name is not None and name not in self.prompts:
            there = f"it has {', '.join(sorted(self.prompts))}" if self.prompts else "its files have none"
            raise RlxError(f"{where}: no prompt has the name {shown(name)}{meant(name, self.prompts)}; {there}")
        return "" if name is None else self.prompts[name]

    def prompt(self, tokenizer: LanguageTokenizer, query: str, document: str, where: str) -> list[int]:
        """The tokens of a query and a document. Marks that stand in these are letters. Raises: RlxError."""
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


def reading_of(file: GgufFile) -> Reading:
    """How an open file of a decoder wants its states read. Raises: ModelFormatError."""
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


def reading_of_folder(folder: ModelFolder) -> Reading:
    """How the sentence-transformers files of a decoder's folder want its states read; as it is without such files."""
    if not (folder.path / "modules.json").exists():
        return Reading()
    try:
        modules = folder.sentence_modules()
    except ModelFormatError as error:  # the model makes text nevertheless
        return Reading(refused=str(error))
    kind = next((known for known in POOLINGS if (known,) == modules.pooling), None)
    refused = ""
    if kind is None or not {"normalize"}.issuperset(modules.steps) or not modules.include_prompt:
        refused = (f"{folder.path / 'modules.json'}: embeddings of a decoder are one of {', '.join(POOLINGS)} of all "
                   "its tokens, which are then perhaps normalized; these files want more")  # fmt: skip
    return Reading(
        kind or "last", normalize=bool(modules.steps), prompts=modules.prompts,
        default_prompt=modules.default_prompt, refused=refused,
    )  # fmt: skip


def pooled(states: F32, pooling: Pooled = "last", normalize: bool = True, truncate_dim: int | None = None) -> F32:
    """One vector, f32 (width,), of the states after a text's tokens, f32 (tokens, width), or the first numbers of
    it."""
    vector = states.mean(0, dtype=np.float64) if pooling == "mean" else states[0 if pooling == "cls" else -1]
    vector = vector[:truncate_dim]
    size = float(np.linalg.norm(vector)) if normalize else 1.0
    return np.asarray(vector / max(size, 1e-12), np.float32)
