"""What the model and the added tokens of a tokenizer.json may hold; `parts` checks the other parts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from rlx.errors import ModelFormatError
from rlx.formats.files import shown
from rlx.formats.tokenizer.parts import (
    MAX_ID,
    MAX_TEXT,
    Check,
    Walk,
    anything,
    is_count,
    is_flag,
    is_text,
    or_null,
)

MAX_TOKENS = 1 << 20  # published vocabularies have up to 500,000
MAX_ADDED_BYTES = 400_000  # bytes of all added tokens: building their search automaton takes a microsecond for each
MAX_WORD = (
    200  # longest word that WordPiece splits, in time cubic in its length; published: 100
)
MAX_LOOK = 1 << 13  # growth times the longest piece (Unigram): the steps for a byte of text
MAX_LOOK_WORD = 40 * 100**2  # growth times the square of the longest word (WordPiece): BERT's takes a fifth
MAX_SCORE = 1e6
NODE_BYTES = 280  # memory of a node of Unigram's trie, which has one for every byte of a piece not shared with another

MODELS: Mapping[str, Mapping[str, Check]] = {
    "BPE": {
        "vocab": anything,
        "merges": anything,
        "dropout": anything,
        "unk_token": or_null(is_text()),
        "continuing_subword_prefix": or_null(is_text()),
        "end_of_word_suffix": or_null(is_text()),
        "fuse_unk": is_flag,
        "byte_fallback": is_flag,
        "ignore_merges": is_flag,
    },
    "WordPiece": {
        "vocab": anything,
        "unk_token": is_text(1),
        "continuing_subword_prefix": is_text(),
        "max_input_chars_per_word": is_count(1, MAX_WORD),
    },
    "WordLevel": {"vocab": anything, "unk_token": is_text(1)},
    "Unigram": {"vocab": anything, "unk_id": or_null(is_count(0, MAX_ID)), "byte_fallback": is_flag},
}
_ADDED: Mapping[str, Mapping[str, Check]] = {
    "added token": {
        "id": anything,
        "content": is_text(1),
        **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), is_flag),
    }
}


def check_model(walk: Walk, part: Any, room: int) -> None:
    """Checks that `tokenizers` runs the model without a panic, in time linear in the text and in at most about `room`
    bytes of memory. Requires: the walk has counted the growth.

    Raises: ModelFormatError.
    """
    older = None  # old files have no type; their fields identify it
    if isinstance(part, dict) and "type" not in part:
        older = (
            "BPE" if "merges" in part else "Unigram" if isinstance(part.get("vocab"), list) else "WordPiece"
        )
        older = older if older != "WordPiece" or "max_input_chars_per_word" in part else "WordLevel"
    kind = walk.fields(part, "model", MODELS, older)
    vocab = part.get("vocab")
    if kind == "Unigram":
        _unigram(walk, part, vocab, room)
        return
    if not isinstance(vocab, dict) or not 0 < len(vocab) <= MAX_TOKENS:
        walk.refuse("model.vocab", vocab, f"1 to {MAX_TOKENS:,} tokens and their numbers")
    _check_ids(walk, vocab.values())
    longest = max(map(len, vocab))
    if longest > MAX_TEXT:
        walk.refuse("model.vocab", max(vocab, key=len), f"tokens of at most {MAX_TEXT} characters")
    unknown = part.get("unk_token", None if kind == "BPE" else "[UNK]" if kind == "WordPiece" else "<unk>")
    if unknown is not None and unknown not in vocab and not (kind == "BPE" and unknown == ""):
        walk.refuse("model.unk_token", unknown, "a token of its vocabulary")
    if kind == "WordPiece":
        longest = part.get("max_input_chars_per_word", 100)
        _look(walk, "max_input_chars_per_word", longest, math.isqrt(int(MAX_LOOK_WORD / walk.growth)))
    elif kind == "BPE":
        if part.get("dropout") not in (None, 0):
            walk.refuse("model.dropout", part["dropout"], "null: the same text must give the same tokens")
        _merges(walk, part, vocab)


def check_added(walk: Walk, added: Any) -> None:
    """Checks that the added tokens are short and few enough to be searched quickly. Raises: ModelFormatError."""
    if not isinstance(added, list) or len(added) > MAX_TOKENS:
        walk.refuse("added_tokens", added, f"a list of at most {MAX_TOKENS:,} tokens")
    for i, token in enumerate(added):
        walk.fields(token, f"added_tokens[{i}]", _ADDED, "added token")
        if "type" in token or not {"id", "content"} <= token.keys():
            walk.refuse(f"added_tokens[{i}]", token, "an id and a content")
    _check_ids(walk, (token["id"] for token in added))
    total = sum(len(token["content"].encode(errors="replace")) for token in added)
    if total > MAX_ADDED_BYTES:
        walk.refuse("the size of added_tokens", total, f"at most {MAX_ADDED_BYTES:,} bytes")


def _unigram(walk: Walk, part: dict[str, Any], vocab: Any, room: int) -> None:
    if not isinstance(vocab, list) or not 0 < len(vocab) <= MAX_TOKENS:
        walk.refuse("model.vocab", vocab, f"1 to {MAX_TOKENS:,} pieces and their scores")
    for i, entry in enumerate(vocab):
        match entry:
            case [str(), float() | int() as score] if type(score) is not bool and abs(score) <= MAX_SCORE:
                continue
        walk.refuse(
            f"model.vocab[{i}]", entry, f"a piece and its score, from {-MAX_SCORE:g} to {MAX_SCORE:g}"
        )
    unknown = part.get("unk_id")
    if unknown is not None and unknown >= len(vocab):
        walk.refuse("model.unk_id", unknown, f"null or less than the {len(vocab):,} pieces")
    pieces = [entry[0].encode(errors="replace") for entry in vocab]
    longest = max(map(len, pieces))
    _look(walk, "the longest piece", longest, int(MAX_LOOK / walk.growth))
    if NODE_BYTES * sum(map(len, pieces)) > room and NODE_BYTES * _nodes(pieces, longest) > room:
        walk.refuse(
            "the size of model.vocab",
            len(vocab),
            f"pieces that share their beginnings: they would take more than {room:,} bytes of memory",
        )


def _nodes(pieces: list[bytes], longest: int) -> int:
    """The number of nodes of a trie of the pieces: their bytes, minus the prefix that each shares with the one before
    it."""
    rows = np.sort(np.array(pieces, f"S{longest}"))
    letters = rows.view(np.uint8).reshape(len(rows), longest)
    nodes = int((letters[0] != 0).sum())
    for start in range(1, len(rows), 4096):
        part = letters[start : start + 4096]
        same = part == letters[start - 1 : start - 1 + len(part)]
        shared = np.logical_and.accumulate(same, axis=1)
        nodes += int((~shared & (part != 0)).sum())
    return nodes


def _merges(walk: Walk, part: dict[str, Any], vocab: dict[str, int]) -> None:
    merges = part.get("merges")
    if not isinstance(merges, list) or len(merges) > 2 * MAX_TOKENS:
        walk.refuse("model.merges", merges, f"a list of at most {2 * MAX_TOKENS:,} merges")
    prefix = part.get("continuing_subword_prefix") or ""
    for i, merge in enumerate(merges):
        pair = merge.split(" ") if isinstance(merge, str) else merge
        match pair:
            case [str(left), str(right)] if (
                left in vocab
                and right in vocab
                and right.startswith(prefix)
                and left + right[len(prefix) :] in vocab
            ):
                continue
        walk.refuse(f"model.merges[{i}]", merge, "two tokens whose union is a token of the vocabulary too")


def _look(walk: Walk, what: str, longest: int, most: int) -> None:
    if longest > most:
        grown = f"at most {most} where a text grows {float(walk.growth):,.0f}-fold"
        walk.refuse(f"model: {what}", longest, grown)


def _check_ids(walk: Walk, ids: Iterable[Any]) -> None:
    for number in ids:
        if type(number) is not int or not 0 <= number <= MAX_ID:
            raise ModelFormatError(f"{walk.file}: numbers a token {shown(number)}; expected 0 to {MAX_ID}")
