"""Added tokens with each combination of flags, in vocabularies of each kind: ids and texts of rlx beside those of the
package `tokenizers`. `python -m tests.formats.added_tokens` prints how many were compared and how many differ."""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from rlx.formats.tokenizer.language import from_folder

FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
# `tokenizers` 0.23 decodes the letters of zöp as bytes in byte-level vocabularies, which gives U+FFFD; rlx gives zöp.
CONTENTS = ("<tool>", "Qux", "<a b>", "zöp")
_BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
_WORDS = ("he", "llo", "a", "b", "tool", "x", "q", "wor", "ld", "z", "o", "l", "t", "h", "e", "w", "r", "d", "ö")


def _byte_level() -> Tokenizer:
    vocabulary = {letter: i for i, letter in enumerate(_BYTES)}
    made = Tokenizer(models.BPE({**vocabulary, "he": 256, "Ġa": 257}, [("h", "e"), ("Ġ", "a")]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


def _metaspace(normalizer: bool) -> Tokenizer:
    words = ["<unk>", "▁", *_WORDS, "▁a", "▁he", "<", ">"]
    made = Tokenizer(models.Unigram([(w, -float(i)) for i, w in enumerate(words)], 0, False))
    if normalizer:  # as Llama's files have it
        made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        made.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
    else:
        made.pre_tokenizer = pre_tokenizers.Metaspace()
        made.decoder = decoders.Metaspace()
    return made


def _word_piece() -> Tokenizer:
    words = ["[UNK]", *_WORDS, "##llo", "##ld", "##o", "##b", "<", ">"]
    made = Tokenizer(models.WordPiece({w: i for i, w in enumerate(dict.fromkeys(words))}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece(cleanup=False)
    return made


# If a normalizer changes a special token, `tokenizers` 0.23 no longer recognizes it and writes it although special
# tokens are to be left out; rlx leaves it out.
_NORMALIZED = ("Unigram, Prepend", "WordPiece")
KINDS = {
    "byte-level BPE": _byte_level,
    "Unigram, Metaspace": lambda: _metaspace(False),
    "Unigram, Prepend": lambda: _metaspace(True),
    "WordPiece": _word_piece,
}


def differences(kind: str, flags: dict[str, bool], folder: Path, rng: random.Random, texts: int) -> Iterator[Any]:
    """What differs, or "" where nothing does, for random texts and ids of one kind of vocabulary with added tokens."""
    wanted = KINDS[kind]()
    wanted.add_tokens([AddedToken(content, **flags) for content in CONTENTS])
    wanted.save(str(folder / "tokenizer.json"))
    got = from_folder(folder)
    count = wanted.get_vocab_size()
    ids = [int(wanted.token_to_id(content) or 0) for content in CONTENTS]
    for _ in range(texts):
        text = "".join(rng.choice([*CONTENTS, *_WORDS, " ", "  ", " "]) for _ in range(rng.randrange(1, 9)))
        for parsed in (True, False):
            wanted.encode_special_tokens = not parsed
            want, have = wanted.encode(text).ids, got.encode(text, parse_special=parsed)
            yield "" if want == have else ("encode", text, want, have)
        drawn = [rng.choice([rng.randrange(count), *ids]) for _ in range(rng.randrange(1, 7))]
        rows: list[list[int]] = [wanted.encode(text).ids, drawn]
        for tokens, special in itertools.product(rows, (True, False)):
            told = wanted.decode(tokens, skip_special_tokens=not special), got.decode(tokens, special=special)
            mark = flags["special"] and not special and flags["normalized"] and kind in _NORMALIZED
            if (mark and {*tokens} & {*ids}) or (kind == "byte-level BPE" and ids[3] in tokens):
                continue  # see _NORMALIZED and CONTENTS
            yield "" if told[0] == told[1] else ("decode", special, [wanted.id_to_token(i) for i in tokens], *told)


def sweep(texts: int, seed: int = 0) -> Iterator[tuple[str, dict[str, bool], list[Any]]]:
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            for values in itertools.product((False, True), repeat=len(FLAGS)):
                flags = dict(zip(FLAGS, values, strict=True))
                yield kind, flags, [*differences(kind, flags, Path(folder), rng, texts)]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.formats.added_tokens", description=__doc__)
    parser.add_argument("--texts", type=int, default=40, help="of each kind and combination of flags")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", type=int, default=0, help="so many of what differs, of each combination")
    args = parser.parse_args(arguments)
    counts: dict[str, list[int]] = {}
    for kind, flags, compared in sweep(args.texts, args.seed):
        row = counts.setdefault(kind, [0, 0])
        row[0] += len(compared)
        row[1] += sum(map(bool, compared))
        for one in [one for one in compared if one][: args.show]:
            print(json.dumps([kind, [name for name, value in flags.items() if value], *one], ensure_ascii=False))
    for kind, (tried, wrong) in counts.items():
        print(f"{kind} | {tried} ids and texts compared | {wrong} differ")
    return 1 if any(wrong for _, wrong in counts.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
