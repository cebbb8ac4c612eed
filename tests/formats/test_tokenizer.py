"""Which tokenizers are run and which refused: all that published sentence encoders use, nothing that could grow without
end, hang, panic or overflow a stack."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlx.errors import ModelFormatError
from rlx.formats.tokenizer import TextTokenizer
from rlx.formats.tokenizer.decoding import read_decoder
from rlx.formats.tokenizer.language import from_folder
from tests.formats import added_tokens, decoders, mutants
from tests.formats import tokenizer_specs as h
from tests.formats.published_tokenizers import PUBLISHED, normalizers, pre_tokenizers, steps, whole
from tests.full import full

TEXTS = ["the cat's 12345 hats", "", "½ ﷺ é e\u0301\tx", "日本 ☃  \n\n a", "aaaa" * 20, " lead"]


def write(folder: Path, spec: Any) -> Path:
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(spec), encoding="utf-8")
    return file


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_kinds_load_and_give_what_the_package_gives(name: str, tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    file = write(tmp_path, PUBLISHED[name])
    known = Tokenizer.from_file(str(file))
    expected = [known.encode(text).ids for text in TEXTS]
    assert [ids.tolist() for ids in TextTokenizer(file, 10_000).ids(TEXTS)] == expected


def test_padding_truncation_and_decoder_of_the_file_are_not_used(tmp_path: Path) -> None:
    plain = TextTokenizer(write(tmp_path, PUBLISHED["BERT"]), 10).ids(TEXTS)
    odd = {
        "padding": {"strategy": {"Fixed": 10**12}, "direction": "Left", "pad_to_multiple_of": 7},
        "truncation": {"max_length": 1, "strategy": "LongestFirst", "stride": 10**9},
        "decoder": {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""},
    }
    changed = TextTokenizer(write(tmp_path, {**PUBLISHED["BERT"], **odd}), 10).ids(TEXTS)
    assert [a.tolist() for a in plain] == [b.tolist() for b in changed]


def test_long_texts_are_taken_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlx.formats.tokenizer.text._CHUNK_CHARACTERS", 1000)
    made = TextTokenizer(write(tmp_path, PUBLISHED["BERT"]), 200)
    words = [*range(60), 300, 0, 100, 1, 400]
    assert [len(ids) for ids in made.ids(["cat " * n for n in words])] == [min(1 + n, 200) for n in words]


def changed(name: str, **parts: Any) -> dict[str, Any]:
    return {**PUBLISHED[name], **parts}


def modelled(make: Any, **fields: Any) -> dict[str, Any]:
    return whole(None, None, None, {**make(), **fields})


FLIPPED = bytearray(h.MAP)
FLIPPED[7] ^= 0x80  # the root's children lie outside the trie
REFUSED: dict[str, tuple[Any, str]] = {
    "a template that repeats its sequence": (
        changed("BERT", post_processor=h.template([h.sequence("A")] * 2)),
        r"post_processor\.single\[1\] is .* each sequence once",
    ),
    "a template without the sequence": (
        changed("BERT", post_processor=h.template([h.marked("[CLS]")])),
        "the sequence A among",
    ),
    "a template whose token is many": (
        changed(
            "BERT",
            post_processor=h.template(
                [h.marked("x")] * 2 + [h.sequence("A")],
                {"x": {"id": "x", "ids": [1] * 60, "tokens": ["x"] * 60}},
            ),
        ),
        "at most 64 special tokens",
    ),
    "ids without tokens": (
        changed(
            "BERT", post_processor=h.template([h.sequence("A")], {"x": {"id": "x", "ids": [1], "tokens": []}})
        ),
        "its ids and as many tokens",
    ),
    "a chain of ByteLevel normalizers": (
        changed("BERT", normalizer=normalizers(*steps("ByteLevel", "ByteLevel"))),
        r"normalizer\.normalizers\[1\] is 'ByteLevel'; expected one ByteLevel at most",
    ),
    "a chain of ByteLevel pre-tokenizers": (
        changed("BERT", pre_tokenizer=pre_tokenizers(h.byte_level(), pre_tokenizers(h.byte_level()))),
        "one ByteLevel at most",
    ),
    "steps that grow together": (
        changed("BERT", normalizer=normalizers(h.replace("a", "ﷺﷺﷺﷺﷺ"), *steps("NFKD"))),
        "make up to 165 bytes of one; expected at most 128",
    ),
    "a map that grows": (
        changed("T5", normalizer=h.precompiled(h.charsmap({b"a": b"b" * 200}))),
        "make up to 200 bytes of one",
    ),
    "too many steps": (changed("BERT", normalizer=normalizers(*steps("NFC") * 16)), "at most 16 steps"),
    "words of any length": (
        modelled(h.wordpiece, max_input_chars_per_word=10**6),
        r"model\.max_input_chars_per_word is 1000000; expected an integer from 1 to 200",
    ),
    "long words of a text that grows": (
        {
            **modelled(h.wordpiece, max_input_chars_per_word=64),
            "normalizer": h.replace("a", "b" * 100),
        },
        "max_input_chars_per_word is 64; expected at most 63 where a text grows 100-fold",
    ),
    "an added token that takes the white space beside it, and is white space": (
        changed("BERT", added_tokens=[h.added(" ", lstrip=True)]),
        "the added token ' ' is ' ' to a search",
    ),
    "one that the normalizer makes white space": (
        changed(
            "BERT", normalizer=h.replace("x", " "), added_tokens=[h.added("x", rstrip=True, normalized=True)]
        ),
        "the added token 'x' is ' ' to a search",
    ),
    "an added token that the normalizer takes away": (
        changed("BERT", normalizer=h.replace("x", ""), added_tokens=[h.added("x", normalized=True)]),
        "the added token 'x' is '' to a search",
    ),
    "a regular expression in a Split": (
        changed("Qwen 2", pre_tokenizer=h.split("(a+)+$")),
        r"pre_tokenizer: the regular expression is '\(a\+\)\+\$'; expected one whose time is known to be linear",
    ),
    "a regular expression in a Replace": (
        changed("BERT", normalizer=h.replace("a+b", "", "Regex")),
        "what follows a repeat without end may fail",
    ),
    "a pattern of another kind": (
        changed("BERT", normalizer={"type": "Replace", "pattern": {"Glob": "a"}, "content": ""}),
        "expected a Regex or a String",
    ),
    "an empty String": (changed("BERT", normalizer=h.replace("", "x")), "a String of 1 to 256 bytes"),
    "no pieces": (modelled(h.unigram, vocab=[]), "expected 1 to 1,048,576 pieces"),
    "an unknown piece that is none": (
        modelled(h.unigram, unk_id=5),
        r"unk_id is 5; expected null or less than",
    ),
    "a score beyond all": (
        modelled(h.unigram, vocab=[["a", 1e300]]),
        r"model\.vocab\[0\] is .* a piece and its score",
    ),
    "a piece as long as a stack": (
        modelled(h.unigram, vocab=[["a" * 10_000, 0.0]]),
        "the longest piece is 10000",
    ),
    "pieces that share nothing": (
        modelled(h.unigram, vocab=[[f"{i * 7919 % 65536:04x}" + "xyz" * 60, 0.0] for i in range(4000)]),
        "pieces that share their beginnings",
    ),
    "a map whose trie leads outside": (
        changed("T5", normalizer=h.precompiled(bytes(FLIPPED))),
        r"precompiled_charsmap is .*; expected a character map of SentencePiece: its trie",
    ),
    "a map cut short": (changed("T5", normalizer=h.precompiled(h.MAP[:100])), "do not hold a trie"),
    "a map that is no base64": (
        changed("T5", normalizer={"type": "Precompiled", "precompiled_charsmap": "☃" * 10}),
        "a character map",
    ),
    "a merge of what is not there": (
        modelled(h.bpe, merges=[["a", "b"]]),
        r"model\.merges\[0\] is \['a', 'b'\]",
    ),
    "a merge shorter than its prefix": (
        modelled(h.bpe, continuing_subword_prefix="##", merges=[["a", "a"]]),
        r"model\.merges\[0\]",
    ),
    "dropout": (modelled(h.bpe, dropout=0.1), "the same text must give the same tokens"),
    "an unknown token that is none": (modelled(h.wordpiece, unk_token="?"), "a token of its vocabulary"),
    "a vocabulary of nothing": (modelled(h.wordlevel, vocab={}), "1 to 1,048,576 tokens"),
    "a token without end": (
        modelled(h.wordlevel, vocab={"[UNK]": 0, "a" * 10**6: 1}),
        "at most 256 characters",
    ),
    "a number below zero": (modelled(h.wordlevel, vocab={"[UNK]": -1}), "numbers a token -1; expected 0 to"),
    "a number that is none": (modelled(h.wordlevel, vocab={"[UNK]": 1.5}), "numbers a token 1.5"),
    "an added token of nothing": (
        changed("BERT", added_tokens=[h.added("")]),
        r"added_tokens\[0\]\.content is ''",
    ),
    "an added token that is too long": (
        changed("BERT", added_tokens=[h.added("a" * 257)]),
        "a text of 1 to 256 bytes",
    ),
    "added tokens by the megabyte": (
        changed("BERT", added_tokens=[h.added(f"{i:0250}", i) for i in range(5000)]),
        "at most 400,000 bytes",
    ),
    "half a character": (changed("BERT", added_tokens=[h.added("\ud800")]), "a lone surrogate"),
    "a normalizer of another kind": (
        changed("BERT", normalizer={"type": "Perl", "code": ""}),
        "normalizer: the type is 'Perl'; expected one that rlx knows to be safe to run: BertNormalizer, Strip",
    ),
    "a field that its kind has not": (
        changed("BERT", pre_tokenizer={"type": "Whitespace", "regex": "(a+)+"}),
        "a field of Whitespace is 'regex'",
    ),
    "a model of another kind": (
        modelled(h.bpe, type="Neural"),
        "the type is 'Neural'; expected .*: BPE, WordPiece",
    ),
    "a part of another kind": (
        changed("BERT", plugins=[]),
        "is not a tokenizer of version 1.0: its parts are",
    ),
    "another version": (changed("BERT", version="2.0"), "is not a tokenizer of version 1.0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_why(name: str, tmp_path: Path) -> None:
    spec, message = REFUSED[name]
    with pytest.raises(ModelFormatError, match=message) as caught:
        TextTokenizer(write(tmp_path, spec), 40)
    told = str(caught.value)
    assert told.startswith(str(tmp_path)) and told.isprintable() and len(told) < 1000


def test_time_grows_as_the_text_does(tmp_path: Path) -> None:
    """A long word in a process that is ended where it takes a minute of the processor: in linear time it takes a
    second, in quadratic time hours."""
    files = []
    for make in (h.wordpiece, h.bpe, h.unigram):
        (tmp_path / make.__name__).mkdir()
        files.append(str(write(tmp_path / make.__name__, whole(None, None, None, make()))))
    code = (
        "import resource, sys\nfrom pathlib import Path\nfrom rlx.formats.tokenizer import TextTokenizer\n"
        "resource.setrlimit(resource.RLIMIT_CPU, (60, 60))\n"
        "for file in sys.argv[1:]:\n    made = TextTokenizer(Path(file), 40)\n"
        "    for letter in 'aé ':\n        print(file, letter, len(made.ids([letter * 100_000])), flush=True)\n"
    )
    subprocess.run([sys.executable, "-c", code, *files], check=True)


def test_damaged_maps_are_refused_or_harmless(tmp_path: Path) -> None:
    ends = []
    for seed in range(40):
        pick = random.Random(seed)
        content = bytearray(h.MAP)
        for _ in range(pick.choice((1, 3, 30))):
            at = pick.randrange(len(content)) if seed % 2 else pick.randrange(4, 2000)
            content[at] ^= 1 << pick.randrange(8)
        file = write(tmp_path, changed("T5", normalizer=h.precompiled(bytes(content))))
        try:
            TextTokenizer(file, 40).ids([*TEXTS, "".join(map(chr, range(1, 0x500)))])
            ends.append("")
        except ModelFormatError as error:
            ends.append(str(error))
    refused = [text for text in ends if text]
    assert 0 < len(refused) < len(ends)
    assert all("precompiled_charsmap" in text or "bytes of one" in text for text in refused)


@pytest.mark.parametrize("kind", ["bombs", "json"])
@pytest.mark.late
def test_some_hundreds_of_bombs(kind: str) -> None:
    """In processes of their own, as `python -m tests.formats.mutants` has them by the ten thousand."""
    found = list(mutants.outcomes(kind, 0, (120 if full() else 60) if kind == "bombs" else 15))
    # The clock and the memory of a machine at work are judged by the long run, with its limits of time.
    assert [e for e in found if e["outcome"] not in ("loaded", "ModelFormatError")] == []
    assert {e["outcome"] for e in found} == {"loaded", "ModelFormatError"}
    assert [e for e in found if e["bytes"] > e["granted"]] == []


@pytest.mark.parametrize("byte_fallback", [True, False])
def test_bytes_are_written_where_the_decoder_says_so(byte_fallback: bool, tmp_path: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    pieces = [("<unk>", 0.0), ("▁a", -1.0), ("▁", -2.0), ("<0x41>", -3.0)]
    made = Tokenizer(models.Unigram(pieces, 0, byte_fallback=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    steps = [decoders.ByteFallback()] if byte_fallback else []
    made.decoder = decoders.Sequence([*steps, decoders.Metaspace()])
    made.save(str(tmp_path / "tokenizer.json"))
    ids = made.encode("a A").ids
    assert from_folder(tmp_path).decode(ids) == made.decode(ids) == ("a A" if byte_fallback else "a <0x41>")


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("text", ["a foo b", "foo a", "a  foo", "foo", "a q r b", "afoo"])
def test_the_space_before_an_added_token(normalized: bool, text: str, tmp_path: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

    pieces = {"a": 0, "b": 1, "▁": 2, "▁a": 3, "▁b": 4}
    made = Tokenizer(models.BPE(pieces, [("▁", "a"), ("▁", "b")]))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    made.decoder = decoders.Sequence(steps)
    made.add_tokens([AddedToken("foo", normalized=normalized), AddedToken("q r", normalized=normalized)])
    made.save(str(tmp_path / "tokenizer.json"))
    ids = made.encode(text).ids
    assert from_folder(tmp_path).decode(ids) == made.decode(ids)


@pytest.mark.parametrize("kind", [*added_tokens.KINDS])
def test_added_tokens_with_each_flag(kind: str, tmp_path: Path) -> None:
    """Ids and texts are those of `tokenizers` (a sample of the sweep in `added_tokens.py`)."""
    for chosen in ((), ("special",), ("normalized",), ("normalized", "special"), ("lstrip", "rstrip", "single_word")):
        flags = {name: name in chosen for name in added_tokens.FLAGS}
        assert not [*filter(None, added_tokens.differences(kind, flags, tmp_path, random.Random(1), 20))], chosen


def test_marks_that_a_normalizer_changes_are_left_out_of_texts(tmp_path: Path) -> None:
    """`tokenizers` 0.23 writes them: it recognizes only marks that the normalizer does not change."""
    from tokenizers import AddedToken

    made = added_tokens.KINDS["Unigram, Prepend"]()
    made.add_tokens([AddedToken("<end>", special=True, normalized=True)])
    made.save(str(tmp_path / "tokenizer.json"))
    got, ids = from_folder(tmp_path), made.encode("a <end>").ids
    assert got.decode(ids) == "a"
    assert got.decode(ids, special=True) == made.decode(ids, skip_special_tokens=False) == "a <end>"


FROZEN = json.loads(decoders.FROZEN.read_text(encoding="utf-8"))["rows"]


def test_each_decoder_writes_what_the_package_wrote() -> None:
    """Texts of `tokenizers` 0.23.3, whole and in pieces (a sample of the sweep in `decoders.py`)."""
    for row in FROZEN:
        writer = read_decoder(row["decoder"], Path("tokenizer.json")).begin(True)
        assert "".join([*map(writer.push, row["tokens"]), writer.end()]) == row["text"], row


def test_random_decoders(tmp_path: Path) -> None:
    found = [*decoders.compared(60, 1, tmp_path / "tokenizer.json")]
    assert len(found) > 150 and not [one for one in found if one[1] == "differs"]


LLAMA: list[dict[str, Any]] = [
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0},
]  # fmt: skip
BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}


@pytest.mark.parametrize(
    "decoder",
    [
        None, BYTES, {"type": "Sequence", "decoders": LLAMA}, {"type": "WordPiece", "prefix": "##", "cleanup": False},
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True},
    ],
    ids=lambda part: "none" if part is None else str(part["type"]),
)  # fmt: skip
def test_a_text_that_goes_on_is_the_whole_text(decoder: Any) -> None:
    """As `generate` and the server write what follows a prompt."""
    made = read_decoder(decoder, Path("tokenizer.json"))
    words = ["▁a", "Ġb", "##c", "d", "▁", "<0x41>", "e"]
    rng = random.Random(0)
    for _ in range(50):
        tokens = [*rng.choices(words, k=4), "d"]  # a text of bytes does not go on
        after = rng.choices(words, k=4)
        whole, front, back = made.begin(True), made.begin(True), made.begin(False)
        texts = [
            "".join([*map(writer.push, part), writer.end()])
            for writer, part in ((whole, [*tokens, *after]), (front, tokens), (back, after))
        ]
        assert texts[0] == texts[1] + texts[2]


def test_bytes_come_with_what_follows_them() -> None:
    """As what they are together is known then: a character, or no UTF-8 at all, also those that would be letters."""
    made = read_decoder({"type": "Sequence", "decoders": LLAMA}, Path("tokenizer.json")).begin(True)
    tokens = ["▁a", "<0xE2>", "<0x82>", "<0xAC>", "▁b", "<0x41>", "<0xFF>", "c", "<0x0A>"]
    assert [made.push(token) for token in tokens] == ["a", "", "", "", "€ b", "", "", "\ufffd\ufffdc", ""]
    assert made.end() == "\n"


def test_bytes_of_tokens() -> None:
    """As grammars read them, and log probabilities tell them: in the midst of a text."""
    tokens = [("ÃĮ", False), ("Ã", False), ("Ã", True), ("Ġa", False)]
    assert read_decoder(BYTES, Path("x")).contents(tokens) == [b"\xc3\x8c", b"\xc3", "Ã".encode(), b" a"]
    parts = {"type": "Sequence", "decoders": LLAMA}
    assert read_decoder(parts, Path("x")).contents([("▁a", False), ("<0xE2>", False)]) == [b" a", b"\xe2"]
    for part, content in (
        ({"type": "BPEDecoder", "suffix": "</w>"}, b"a "),
        ({"type": "CTC", "pad_token": "</w>", "word_delimiter_token": "|", "cleanup": True}, b"a"),
        ({"type": "WordPiece", "prefix": "##", "cleanup": True}, b" a</w>"),
    ):
        assert read_decoder(part, Path("x")).contents([("a</w>", False)] * 2) == [content] * 2


def sequence(*steps: Any) -> dict[str, Any]:
    return {"type": "Sequence", "decoders": [*steps]}


REPLACE = {"type": "Replace", "pattern": {"Regex": "a"}, "content": ""}
REFUSED_DECODERS: list[tuple[Any, str]] = [
    ({"type": "Perl"}, "decoder: the type is 'Perl'; expected one that rlx knows"),
    ("Fuse", "decoder is 'Fuse'; expected an object with a type"),
    ({"type": "Fuse", "x": 1}, "a field of Fuse is 'x'"),
    ({"type": "WordPiece", "prefix": "##"}, "decoder: the fields is .*; expected cleanup too"),
    ({"type": "Strip", "content": "ab", "start": 0, "stop": 0}, "decoder.content is 'ab'; expected a single"),
    ({**REPLACE, "pattern": {"Regex": "(a+)+$"}}, "expected one whose time is known to be linear"),
    (sequence({"type": "Fuse"}, REPLACE), r"decoder.decoders\[1\] is .*no step for single tokens behind Fuse"),
    (sequence({"type": "Fuse"}, sequence({"type": "ByteFallback"})), r"decoders\[1\]\.decoders\[0\] is .*no step"),
    (sequence(BYTES, BYTES), "no step for single tokens"),
    (sequence(*[{"type": "Fuse"}] * 17), "at most 16 steps"),
    (sequence(*[{**REPLACE, "content": "b" * 16}] * 2), "its decoder's steps make up to 256 bytes of one"),
]


@pytest.mark.parametrize(("part", "message"), REFUSED_DECODERS)
def test_decoders_that_are_not_followed_are_named(part: Any, message: str) -> None:
    with pytest.raises(ModelFormatError, match=message):
        read_decoder(part, Path("tokenizer.json"))
