#!/usr/bin/env bash
# Claim: added tokens of a tokenizer.json do not come back as written through the decoder of `tokenizers`.
# A good guess: an added token is decoded as its content, and skip_special_tokens leaves out each token whose `special`
# is true.
# What is so: (1) a byte-level decoder takes the letters of an added token, as those of the model's, for bytes: zöp, whose
# letters all stand for bytes, comes back as z, U+FFFD, p, while z☃p comes back. (2) A special token with
# `normalized: true` whose text a normalizer changes (▁ before it, as in Llama's files) is no longer known as special:
# skip_special_tokens=True writes it.
# Why it matters: a runtime that turns ids into text by that package corrupts tokens that a fine-tune added, and shows
# marks of the chat format to users; one that decodes by itself differs from it and has to say so.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps tokenizers==0.23.3

"$folder/venv/bin/python" - <<'PYTHON'
import tokenizers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

print(f"tokenizers {tokenizers.__version__}")
letters = sorted(pre_tokenizers.ByteLevel.alphabet())
made = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
made.add_tokens([AddedToken("zöp", normalized=False), AddedToken("z☃p", normalized=False)])
texts = {text: made.decode(made.encode(text).ids) for text in ("zöp", "z☃p", "ö")}
print("byte-level, text and what comes back:", texts)
assert texts == {"zöp": "z\ufffdp", "z☃p": "z☃p", "ö": "ö"}

pieces = Tokenizer(models.BPE({"a": 0, "▁": 1, "▁a": 2}, [("▁", "a")]))
pieces.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
pieces.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
pieces.add_tokens([AddedToken("<end>", special=True, normalized=True), AddedToken("<bye>", special=True, normalized=False)])
ids = pieces.encode("a <end>").ids, pieces.encode("a<bye>").ids
shown = [pieces.decode(row, skip_special_tokens=True) for row in ids]
print("special tokens to be skipped: normalized", repr(shown[0]), "and not", repr(shown[1]))
assert shown == ["a <end>", "a"]
PYTHON
