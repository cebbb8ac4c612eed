"""The tokenizers of encoders' families: tokenizer.json as the classes of transformers write it, and the same ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlx.formats.tokenizer import TextTokenizer
from tests.outside import outside

TEXTS = ("The old <mask> boat, near 3 rivers!", "", "  naïve  Übung ", "水と stone\nbread", "a" * 9, "[MASK] ok </s>",
         "x2 ½ ﬁne … — “quoted”")  # fmt: skip
LETTERS = [*"abcdefghijklmnopqrstuvwxyzABCDEFGHTUÜü ï0123½,.!?"]
WORDS = ["the", "old", "boat", "near", "river", "##s", "stone", "bread", "水", "と", "x", "##2", "ok", "3", ","]


def pieces(*marks: str) -> list[tuple[str, float]]:
    """A vocabulary of SentencePiece: marks, then words and letters with and without the space before them."""
    found = [*(f"▁{w}" for w in ("the", "The", "old", "boat", "near", "river", "stone", "bread", "ok")), "▁", "ing"]
    return [(m, 0.0) for m in marks] + [(p, -2.0 - i / 8) for i, p in enumerate([*found, *LETTERS])]


def byte_pairs(*marks: str) -> dict[str, Any]:
    """A vocabulary of byte pairs: marks, all bytes, and a few merges."""
    from tokenizers.pre_tokenizers import ByteLevel

    merges = [("t", "h"), ("th", "e"), ("Ġ", "b"), ("o", "l"), ("ol", "d"), ("Ġ", "old")]
    listed = [*marks, *sorted(ByteLevel.alphabet()), *(a + b for a, b in merges)]
    return {"vocab": {token: i for i, token in enumerate(listed)}, "merges": merges}


def words(*marks: str) -> dict[str, Any]:
    return {"vocab": {token: i for i, token in enumerate([*marks, *WORDS])}}


CLASSES: dict[str, tuple[str, Any]] = {
    "roberta": ("RobertaTokenizer", lambda: byte_pairs("<s>", "<pad>", "</s>", "<unk>", "<mask>")),
    "longformer": ("RobertaTokenizer",
                   lambda: {"add_prefix_space": True, **byte_pairs("<s>", "<pad>", "</s>", "<unk>", "<mask>")}),
    "deberta": ("DebertaTokenizer", lambda: byte_pairs("[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]")),
    "xlm-roberta": ("XLMRobertaTokenizer", lambda: {"vocab": pieces("<s>", "<pad>", "</s>", "<unk>", "<mask>")}),
    "camembert": ("CamembertTokenizer", lambda: {"vocab": pieces(
        "<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED", "<s>", "</s>", "<mask>")}),
    "albert": ("AlbertTokenizer", lambda: {"vocab": pieces("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")}),
    "rembert": ("RemBertTokenizer", lambda: {"vocab": pieces("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")}),
    "t5": ("T5Tokenizer", lambda: {"vocab": pieces("<pad>", "</s>", "<unk>"), "extra_ids": 3}),
    "deberta-v2": ("DebertaV2Tokenizer", lambda: {"vocab": pieces("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")}),
    "deberta-v2 by points": ("DebertaV2Tokenizer", lambda: {
        "vocab": pieces("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), "do_lower_case": True, "split_by_punct": True}),
    "mpnet": ("MPNetTokenizer", lambda: words("<s>", "<pad>", "</s>", "[UNK]", "<mask>")),
    "electra": ("BertTokenizer", lambda: words("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")),
    "big_bird": ("BigBirdTokenizer", lambda: {"vocab": pieces(
        "<pad>", "</s>", "<s>", "<unk>", "[SEP]", "[MASK]", "[CLS]")}),
    "qwen3": ("Qwen2Tokenizer", lambda: byte_pairs("<|endoftext|>")),
}  # fmt: skip


@pytest.mark.judged
@pytest.mark.late(family=tuple(CLASSES)[1:])
@pytest.mark.parametrize("family", CLASSES)
def test_ids_of_a_family(family: str, tmp_path: Path) -> None:
    transformers = outside("transformers")
    name, make = CLASSES[family]
    theirs = getattr(transformers, name)(**make())
    theirs.save_pretrained(tmp_path)
    ours = TextTokenizer(tmp_path / "tokenizer.json", 16)
    want = [theirs(text, truncation=True, max_length=16)["input_ids"] for text in TEXTS]
    assert [ids.tolist() for ids in ours.ids(TEXTS)] == want
    assert len({tuple(ids) for ids in want}) == len(TEXTS)
