"""Random tokenizers with random decoders: texts of rlx, whole and as they come piece by piece, beside those of the
package `tokenizers`. `python -m tests.formats.decoders` prints how many were compared and how many differ; `--freeze N`
writes N of them to decoders.json, from which a test reads them."""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tokenizers

from rlx.errors import ModelFormatError
from rlx.formats.tokenizer.decoding import byte_letters, read_decoder
from rlx.formats.tokenizer.language import from_folder

FROZEN = Path(__file__).with_suffix(".json")
_BYTES = byte_letters()
_WORDS = ("a", "b", "foo", "##o", "##", "▁", "▁▁", "▁a", "a▁b", "▁.", ".", "?", ",", "'", "n't", "'s", "do", "not", "|",
          "||", "<pad>", "a</w>", "</w>", "x</w>y", "é", "日", " ", "  ", " a ", "aaa", "İ", "\n", "_a", "a_", "__",
          "<0x4>", "<0xZZ>", "<0x041>", "<0x+1>")  # fmt: skip
_ADDED = ("<X>", "hello", " sp ", "tool call", "▁w", "foo!", "&&", "ab", "Qux", ".", "##o", "<0x42>", "<0xE2>")
_SCHEMES = ("always", "first", "never")
_TEXTS = ("hello foo! &&bar", "a <X> b<X>, tool call ab", " sp  sp x", "", "   ", "ﬁne Ⅷ Qux", "é 日 ▁w . 's don't")


def _step(rng: random.Random) -> dict[str, Any]:
    flag = rng.random() < 0.5
    letter = rng.choice(" ▁_a")
    kinds: list[dict[str, Any]] = [
        {"type": "ByteLevel", "add_prefix_space": flag, "trim_offsets": flag, "use_regex": flag},
        {"type": "Metaspace", "replacement": rng.choice("▁▁▁_"), "prepend_scheme": rng.choice(_SCHEMES), "split": flag},
        {"type": "WordPiece", "prefix": rng.choice(["##", "##", "", "▁"]), "cleanup": flag},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": letter, "start": rng.randrange(3), "stop": rng.choice([0, 0, 1, 2])},
        {"type": "BPEDecoder", "suffix": rng.choice(["</w>", "a"])},
        {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": rng.choice(["|", "a"]), "cleanup": flag},
        {"type": "Replace", "pattern": {"String": rng.choice(["▁", "a", "##", "||", " .", "aa"])},
         "content": rng.choice([" ", "", "b", "a▁"])},
        {"type": "Replace", "pattern": {"Regex": rng.choice(["a", "[ab]", "a{2}"])}, "content": rng.choice(["", "xy"])},
    ]  # fmt: skip
    return rng.choice(kinds)


def decoder(rng: random.Random) -> Any:
    kind = rng.randrange(8)
    if kind == 0:
        return None
    if kind < 4:
        return _step(rng)
    steps = [_step(rng) for _ in range(rng.randrange(5))]
    if kind == 4 and steps:
        steps[0] = {"type": "Sequence", "decoders": [steps[0], _step(rng)]}
    return {"type": "Sequence", "decoders": steps}


def tokenizer(rng: random.Random) -> dict[str, Any]:
    """A tokenizer.json."""
    pool = [*_WORDS, *rng.sample(_BYTES, 40), *(f"<0x{b:02X}>" for b in rng.sample(range(256), 30))]
    pool += [f"<0x{b:02x}>" for b in (0x41, 0xE2, 0x82, 0xAC)]
    words = ["<unk>", *sorted({*rng.sample(pool, 60)})]
    ids = {word: i for i, word in enumerate(words)}
    models: list[dict[str, Any]] = [
        {"type": "WordPiece", "vocab": ids, "unk_token": "<unk>", "continuing_subword_prefix": "##",
         "max_input_chars_per_word": 40},
        {"type": "BPE", "vocab": ids, "merges": [], "unk_token": "<unk>", "byte_fallback": rng.random() < 0.5},
        {"type": "Unigram", "vocab": [[w, -1.0 * i] for w, i in ids.items()], "unk_id": 0,
         "byte_fallback": rng.random() < 0.5},
        {"type": "WordLevel", "vocab": ids, "unk_token": "<unk>"},
    ]  # fmt: skip
    normalizers: list[Any] = [
        None, None, {"type": "NFKC"}, {"type": "Lowercase"}, {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    ]  # fmt: skip
    cuts: list[Any] = [
        None, {"type": "BertPreTokenizer"},
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": rng.choice(_SCHEMES), "split": rng.random() < 0.5},
        {"type": "ByteLevel", "add_prefix_space": rng.random() < 0.5, "trim_offsets": True, "use_regex": True},
    ]  # fmt: skip
    names = ("single_word", "lstrip", "rstrip", "normalized", "special")
    added = [
        {"id": len(words) + i, "content": content, **{name: rng.random() < 0.5 for name in names}}
        for i, content in enumerate(rng.sample([a for a in _ADDED if a not in ids], rng.randrange(6)))
    ]
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": rng.choice(normalizers), "pre_tokenizer": rng.choice(cuts), "post_processor": None,
        "decoder": decoder(rng), "model": rng.choice(models),
    }  # fmt: skip


def pieces(file: Path, ids: list[int], special: bool) -> tuple[str, str]:
    """The text of ids by rlx, whole and as it comes."""
    ours = from_folder(file.parent)
    stream = ours.stream(special=special, begins=True)
    return ours.decode(ids, special=special), "".join([*map(stream.push, ids), stream.end()])


def drawn(rng: random.Random, file: Path) -> Iterator[tuple[dict[str, Any], list[int], bool, str]]:
    """Tokenizers, ids and the texts that the package gives, where it gives one and rlx is to give the same."""
    spec = tokenizer(rng)
    file.write_text(json.dumps(spec), encoding="utf-8")
    theirs = tokenizers.Tokenizer.from_file(str(file))
    # Marks that a normalizer changes, which the package writes where they are to be left out.
    changed = {
        token["id"] for token in spec["added_tokens"]
        if token["special"] and token["normalized"] and theirs.normalizer is not None
        and theirs.normalizer.normalize_str(token["content"]) != token["content"]
    }  # fmt: skip
    rows = [theirs.encode(text, add_special_tokens=False).ids for text in rng.sample(_TEXTS, 2)]
    rows = [row + rng.choices(range(theirs.get_vocab_size()), k=rng.randrange(5)) for row in rows]
    rows += [rng.choices(range(theirs.get_vocab_size()), k=rng.randrange(9)) for _ in range(2)]
    for ids in rows:
        special = rng.random() < 0.5
        if changed & {*ids} and not special:
            continue
        try:
            with _quiet():
                text = theirs.decode(ids, skip_special_tokens=not special)
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # a Strip of more letters than there are
                raise
            continue
        yield spec, ids, special, text


@contextmanager
def _quiet() -> Iterator[None]:
    """Within this context, what the package writes to stderr before it panics is dropped."""
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def compared(count: int, seed: int, file: Path) -> Iterator[tuple[Any, str, str, tuple[str, str] | str]]:
    """For each text of `count` tokenizers: the decoder, what differs or was refused, and both texts."""
    rng = random.Random(seed)
    for _ in range(count):
        for spec, ids, special, text in drawn(rng, file):
            try:
                got: tuple[str, str] | str = pieces(file, ids, special)
            except ModelFormatError as error:
                yield spec["decoder"], "refused", text, str(error)
                continue
            yield spec["decoder"], "" if got == (text, text) else "differs", text, got


def freeze(count: int, seed: int, file: Path) -> None:
    """Writes what the package gives for the most varied ids of each of `count` tokenizers whose decoder rlx reads."""
    rng, rows = random.Random(seed), []
    while len(rows) < count:
        found = [(ids, text) for spec, ids, _, text in drawn(rng, file) if text.isprintable()]
        spec, tokens = parse(file), tokenizers.Tokenizer.from_file(str(file))
        try:
            read_decoder(spec["decoder"], file)
        except ModelFormatError:
            continue
        if found and not spec["added_tokens"]:
            ids, text = max(found, key=lambda one: len({*one[0]}))
            rows.append({"decoder": spec["decoder"], "tokens": [*map(tokens.id_to_token, ids)], "text": text})
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    FROZEN.write_text(f'{{"tokenizers": "{tokenizers.__version__}", "rows": [\n{lines}\n]}}\n', encoding="utf-8")


def parse(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.formats.decoders", description=__doc__)
    parser.add_argument("--tokenizers", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", type=int, default=5, help="so many of what differs")
    parser.add_argument("--freeze", type=int, default=0)
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tokenizer.json"
        if args.freeze:
            freeze(args.freeze, args.seed, file)
            return 0
        counts = {"": 0, "refused": 0, "differs": 0}
        why: dict[str, int] = {}
        for part, verdict, text, got in compared(args.tokenizers, args.seed, file):
            counts[verdict] += 1
            if isinstance(got, str):
                reason = got.partition("expected ")[2]
                why[reason] = why.get(reason, 0) + 1
            elif verdict and counts["differs"] <= args.show:
                print(json.dumps([part, text, *got], ensure_ascii=False))
    print(f"{counts['']} texts as in tokenizers {tokenizers.__version__}, {counts['differs']} differ")
    for reason, count in sorted(why.items()):
        print(f"{count} refused: expected {reason}")
    return 1 if counts["differs"] else 0


if __name__ == "__main__":
    sys.exit(main())
