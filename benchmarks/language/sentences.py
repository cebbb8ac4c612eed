"""Texts of mixed lengths through a sentence encoder, beside sentence-transformers where that is installed.

    python benchmarks/language/sentences.py FOLDER [--texts 1000] [--device cpu] [--threads 1] [--rounds 3] [--words 16]

FOLDER is a model's, or the name of a shape with random weights, which transformers makes: minilm (6 layers of 384) or
base (BERT's 12 of 768). Prints texts a second, with their tokenizing, of batches of 32 and of 100 texts one by one, in
turns: of rlx, of rlx with each text in a row of its own, and of sentence-transformers; then the tokens of padding that
each computes, in percent of the tokens of texts. Lengths are drawn from a gamma distribution, as those of the STS
benchmark are spread (`--words` is their mean); the words are of the folder's own tokenizer. sentence-transformers
computes on CUDA where rlx does, both in f32 with exact products; beside Vulkan it is left out.
"""

from __future__ import annotations

import json
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from tokenizers import Tokenizer

from benchmarks.harness import Table, once, options, version
from rlx.models import SentenceEncoder, load

BATCH = 32
SHAPES = {"minilm": (6, 384), "base": (12, 768)}  # layers and width


def random_folder(folder: Path, shape: str) -> Path:
    """A BERT of random weights that sentence-transformers reads too, whose words are made of syllables."""
    import torch
    from tokenizers import models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel

    layers, width = SHAPES[shape]
    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    syllables = [a + b for a in "bcdfghjklmnprstvwz" for b in "aeiou"]
    words = [*marks, *syllables, *(a + b for a in syllables for b in syllables)]
    vocabulary = {word: i for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.save(str(folder / "tokenizer.json"))
    torch.manual_seed(0)
    made = BertModel(BertConfig(vocab_size=30522, hidden_size=width, num_hidden_layers=layers, num_attention_heads=12,
                                intermediate_size=4 * width, max_position_embeddings=512))  # fmt: skip
    made.save_pretrained(folder)
    kind = "sentence_transformers.models"
    parts = [{"idx": i, "name": str(i), "path": path, "type": f"{kind}.{name}"}
             for i, (path, name) in enumerate([("", "Transformer"), ("1_Pooling", "Pooling")])]  # fmt: skip
    pooling = folder / "1_Pooling"
    pooling.mkdir()
    for path, content in (
        (folder / "modules.json", parts),
        (folder / "sentence_bert_config.json", {"max_seq_length": 512, "do_lower_case": False}),
        (folder / "tokenizer_config.json", {
            "tokenizer_class": "BertTokenizer", "pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]",
            "sep_token": "[SEP]", "mask_token": "[MASK]", "model_max_length": 512}),
        (pooling / "config.json", {"word_embedding_dimension": width, "pooling_mode_mean_tokens": True}),
    ):  # fmt: skip
        path.write_text(json.dumps(content))
    return folder


def texts_of(folder: Path, count: int, words: float, seed: int = 0) -> list[str]:
    """Texts of words that are one token each."""
    rng = np.random.default_rng(seed)
    vocabulary = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab()
    known = sorted(word for word in vocabulary if word.isascii() and word.isalpha() and word.islower())
    lengths = np.clip(rng.gamma(3.2, words / 3.2, count), 2, 400).astype(int)
    return [" ".join(rng.choice(known, n)) for n in lengths]


def apart(encoder: SentenceEncoder, texts: Sequence[str]) -> None:
    """Each text in a row of its own."""
    for _, feeds, size in encoder.batches(texts, BATCH):
        encoder.compiled(*size).run(feeds)


def padding(encoder: SentenceEncoder, texts: Sequence[str]) -> dict[str, float]:
    """The percentages of padding: of rlx, with rows of one text, and of batches of the longest text in them."""
    ids = encoder.ids(texts)
    lengths = sorted(map(len, ids), reverse=True)
    ours = sum(feeds["ids"].size for _, feeds in encoder.runs(ids, BATCH))
    rows = sum(feeds["ids"].size for _, feeds, _ in encoder.batches(texts, BATCH))
    longest = sum(lengths[i] * len(lengths[i : i + BATCH]) for i in range(0, len(lengths), BATCH))
    return {name: 100 * (n / sum(lengths) - 1) for name, n in (("rlx", ours), ("rows", rows), ("longest", longest))}


def peer(folder: Path, threads: int, device: str) -> Any:
    """The model in sentence-transformers, or None where that is not installed or has no such device."""
    if not version("sentence-transformers") or device.startswith("vulkan"):
        return None
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    return SentenceTransformer(str(folder), device=device)


def turns(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """The times of calls that take turns, each once a round, after a round that warms up."""
    times = [{name: once(call) for name, call in calls.items()} for _ in range(rounds + 1)][1:]
    return {name: [found[name] for found in times] for name in calls}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("folder")
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--words", type=float, default=16)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = random_folder(Path(made), asked.folder) if asked.folder in SHAPES else Path(asked.folder)
        measure(folder, asked)


def measure(folder: Path, asked: Namespace) -> None:
    texts = texts_of(folder, asked.texts, asked.words)
    one_by_one = texts[:100]
    threads = asked.threads if asked.device == "cpu" else None
    with load(folder, asked.device, threads=threads) as encoder:
        other = peer(folder, asked.threads, asked.device)
        batched: dict[str, Callable[[], Any]] = {"rlx": partial(encoder.encode, texts, batch_size=BATCH)}
        alone: dict[str, Callable[[], Any]] = {"rlx": lambda: [encoder.encode([t]) for t in one_by_one]}
        batched["rlx, a row a text"] = partial(apart, encoder, texts)
        if other is not None:
            name = f"sentence-transformers {version('sentence-transformers')}"
            batched[name] = partial(other.encode, texts, batch_size=BATCH, show_progress_bar=False)
            alone[name] = lambda: [other.encode([t], show_progress_bar=False) for t in one_by_one]
            apart_by = np.abs(other.encode(texts[:50]) - encoder.encode(texts[:50])).max()
            print(f"largest difference of embeddings: {apart_by:.1e}")
        table = Table({"": "32", "texts/s, batch 32": "18.0f", "one by one": "12.0f"})
        table.head()
        many, few = (turns(calls, asked.rounds) for calls in (batched, alone))
        for name, times in many.items():
            table.row(name, len(texts) / min(times), len(one_by_one) / min(few[name]) if name in few else None)
        print("padding, %: " + ", ".join(f"{name} {value:.1f}" for name, value in padding(encoder, texts).items()))


if __name__ == "__main__":
    main()
