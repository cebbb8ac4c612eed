"""Settings of GGUF files that llama.cpp v0.5.0 follows, and what it makes of them: the last logits of a tiny model for
each way to say how its rotary embedding is scaled, and T5's token ids. By hand, with the folder of llama.cpp's
libraries for the CPU (of its release v0.5.0):  python -m tests.formats.gguf.llamacpp FOLDER"""

from __future__ import annotations

import ctypes as c
import itertools
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from rlx.formats import gguf
from tests.models.tiny import formula

FROZEN = Path(__file__).with_name("llamacpp.json")
IDS = [i * 7 % 32 for i in range(40)]
_YARN = {"scaling.type": "yarn", "scaling.original_context_length": 64}
ROPES: dict[str, dict[str, Any]] = {
    "plain": {}, "factor": {"scaling.factor": 4.0}, "old key": {"scale_linear": 4.0},
    "both": {"scaling.factor": 2.0, "scale_linear": 4.0}, "none": {"scaling.type": "none", "scaling.factor": 4.0},
    "linear, old key": {"scaling.type": "linear", "scale_linear": 4.0}, "factor 0": {"scaling.factor": 0.0},
    "factor 0, old key": {"scaling.factor": 0.0, "scale_linear": 4.0}, "stretched": {"scale_linear": 0.5},
    "linear, factor 0": {"scaling.type": "linear", "scaling.factor": 0.0}, "yarn": {**_YARN, "scaling.factor": 4.0},
    "yarn, old key": {**_YARN, "scale_linear": 4.0},
}  # fmt: skip
TOKENS = ["<pad>", "</s>", "<unk>", "▁a", "a", "▁", "b", "▁b", "ab", "▁▁", "▁ab", "c", *(f"x{i}" for i in range(20))]
SCORES = [0.0, 0.0, 0.0, -2.0, -3.0, -2.5, -3.5, -3.0, -4.0, -4.5, -4.2, -5.0, *[-9.0] * 20]
TEXTS = ("a b", "  a  b ", "ab", "", "a   c", "b  ", "ca", "\tb", "a\t  ", "  \n a\t\tb")
LONG = " ".join(TEXTS[i * 5 % 7] for i in range(40))
# Texts with a mark before them, and without.
BEGINNINGS: list[dict[str, Any]] = [
    {}, {"tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.add_bos_token": True},
]  # fmt: skip
FLAGS = list(itertools.product((None, True, False), repeat=2))  # add_space_prefix, remove_extra_whitespaces


def write(path: Path, more: dict[str, Any], tensors: dict[str, Any] | None = None) -> Path:
    """A model of one layer; `more` are settings, None for none."""
    size, d = len(TOKENS), 64
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (size, d), "output_norm": (d,), "output": (size, d)}
    wide = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    shapes |= {f"blk.0.{n}": (d, d) for n in wide} | {f"blk.0.{n}_norm": (d,) for n in ("attn", "ffn")}
    made = {
        f"{n}.weight": formula(n, s, 0.5) if len(s) > 1 else formula(n, s, 0.1, 1.0) for n, s in shapes.items()
    }
    counts = {
        "block_count": 1, "context_length": 256, "embedding_length": d, "feed_forward_length": d,
        "attention.head_count": 2, "attention.head_count_kv": 2, "attention.layer_norm_rms_epsilon": 1e-5,
    }  # fmt: skip
    metadata = {
        "general.architecture": "llama", **{f"llama.{k}": v for k, v in counts.items()},
        "tokenizer.ggml.model": "t5", "tokenizer.ggml.tokens": TOKENS, "tokenizer.ggml.scores": SCORES,
        "tokenizer.ggml.token_type": [3, 3, 2, *[1] * 29], "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 2, "tokenizer.ggml.padding_token_id": 0, **more,
    }  # fmt: skip
    gguf.write(path, {k: v for k, v in metadata.items() if v is not None}, made | (tensors or {}))
    return path


def rope(name: str) -> dict[str, Any]:
    return {f"llama.rope.{key}": value for key, value in ROPES[name].items()}


def flags(which: tuple[bool | None, bool | None]) -> dict[str, Any]:
    return {"tokenizer.ggml.add_space_prefix": which[0], "tokenizer.ggml.remove_extra_whitespaces": which[1]}


class _Params(c.Structure):  # passed by value; only its first fields are touched
    _fields_ = [("raw", c.c_int32 * 128)]


class _Batch(c.Structure):
    _fields_ = [("n", c.c_int32), *((name, c.c_void_p) for name in ("token", "embd", "pos", "count", "seq", "logits"))]


class Judge:
    def __init__(self, folder: Path) -> None:
        def library(stem: str) -> Any:
            return c.CDLL(str(next(folder.glob(f"{stem}*"))), c.RTLD_GLOBAL)

        library("libggml-base.")
        library("libggml.").ggml_backend_load_all_from_path(str(folder).encode())
        self.lib = lib = library("libllama.")
        lib.llama_backend_init()
        for name in ("llama_model_default_params", "llama_context_default_params"):
            getattr(lib, name).restype = _Params
        for name in ("llama_model_load_from_file", "llama_init_from_model", "llama_model_get_vocab"):
            getattr(lib, name).restype = c.c_void_p
        lib.llama_model_load_from_file.argtypes = [c.c_char_p, _Params]
        lib.llama_init_from_model.argtypes = [c.c_void_p, _Params]
        lib.llama_model_get_vocab.argtypes = [c.c_void_p]
        lib.llama_batch_get_one.restype, lib.llama_batch_get_one.argtypes = _Batch, [c.c_void_p, c.c_int32]
        lib.llama_decode.argtypes = [c.c_void_p, _Batch]
        lib.llama_get_logits.restype, lib.llama_get_logits.argtypes = c.POINTER(c.c_float), [c.c_void_p]
        lib.llama_vocab_bos.argtypes = lib.llama_vocab_get_add_bos.argtypes = [c.c_void_p]
        lib.llama_vocab_n_tokens.argtypes = lib.llama_free.argtypes = lib.llama_model_free.argtypes = [c.c_void_p]
        lib.llama_vocab_get_add_bos.restype = c.c_bool
        lib.llama_batch_init.restype, lib.llama_batch_init.argtypes = _Batch, [c.c_int32] * 3
        lib.llama_get_logits_ith.restype = c.POINTER(c.c_float)
        lib.llama_get_logits_ith.argtypes = [c.c_void_p, c.c_int32]
        lib.llama_tokenize.argtypes = [c.c_void_p, c.c_char_p, c.c_int32, c.c_void_p, c.c_int32, c.c_bool, c.c_bool]

    def model(self, path: Path) -> Any:
        return self.lib.llama_model_load_from_file(str(path).encode(), self.lib.llama_model_default_params())

    def logits(self, path: Path) -> list[float]:
        params = self.lib.llama_context_default_params()
        params.raw[0] = 256
        context = self.lib.llama_init_from_model(self.model(path), params)
        ids = (c.c_int32 * len(IDS))(*IDS)
        assert not self.lib.llama_decode(context, self.lib.llama_batch_get_one(ids, len(IDS)))
        return [float(f"{v:.6g}") for v in self.lib.llama_get_logits(context)[: len(TOKENS)]]

    def ids(self, path: Path, text: str) -> list[int]:
        room, vocabulary = (c.c_int32 * 64)(), self.lib.llama_model_get_vocab(self.model(path))
        content = text.encode()
        return list(room[: self.lib.llama_tokenize(vocabulary, content, len(content), room, 64, False, False)])

    def perplexity(self, path: Path, text: str, length: int) -> tuple[float, int]:
        """Of a text in chunks of `length` tokens, and how many of them count, as llama-perplexity computes it."""
        model = self.model(path)
        vocabulary = self.lib.llama_model_get_vocab(model)
        size, content = self.lib.llama_vocab_n_tokens(vocabulary), text.encode()
        room = (c.c_int32 * (len(content) + 8))()
        count = self.lib.llama_tokenize(vocabulary, content, len(content), room, len(room), True, False)
        params = self.lib.llama_context_default_params()
        params.raw[0] = params.raw[1] = params.raw[2] = length  # the context, and the largest batches
        threads = next(i for i in range(4, 10) if params.raw[i] == params.raw[i + 1] == 4)
        params.raw[threads] = params.raw[threads + 1] = 1
        losses = []
        for at in range(0, count - length + 1, length):
            ids = list(room[at : at + length])
            context, batch = self.lib.llama_init_from_model(model, params), self.lib.llama_batch_init(length, 0, 1)
            whole = c.POINTER(c.c_int32)
            tokens, places, counts = (c.cast(getattr(batch, name), whole) for name in ("token", "pos", "count"))
            sequences, marked = c.cast(batch.seq, c.POINTER(whole)), c.cast(batch.logits, c.POINTER(c.c_int8))
            for i, token in enumerate(ids):
                tokens[i], places[i], counts[i], marked[i] = token, i, 1, i >= length // 2
                sequences[i][0] = 0
            if self.lib.llama_vocab_get_add_bos(vocabulary):
                tokens[0] = self.lib.llama_vocab_bos(vocabulary)
            batch.n = length
            assert not self.lib.llama_decode(context, batch)
            for i in range(length // 2, length - 1):
                row = np.ctypeslib.as_array(self.lib.llama_get_logits_ith(context, i), (size,)).astype(np.float64)
                losses.append(np.log(np.exp(row - row.max()).sum()) + row.max() - row[ids[i + 1]])
            self.lib.llama_free(context)
        self.lib.llama_model_free(model)
        return float(np.exp(np.mean(losses))), len(losses)


def main() -> None:
    judge = Judge(Path(sys.argv[1]).resolve())
    with tempfile.TemporaryDirectory() as work:
        path = Path(work) / "x.gguf"
        logits = {name: judge.logits(write(path, rope(name))) for name in ROPES}
        told = [judge.perplexity(write(path, {**rope("plain"), **more}), LONG, 16)[0] for more in BEGINNINGS]
        ids = [[judge.ids(write(path, flags(which)), text) for text in TEXTS] for which in FLAGS]
    rows = ",\n".join(f" {json.dumps(name)}: {json.dumps(np.round(v, 4).tolist())}" for name, v in logits.items())
    rest = f'"perplexities": {[round(v, 5) for v in told]},\n"ids": {json.dumps(ids)}'
    FROZEN.write_text(f'{{"version": "v0.5.0", "ropes": {{\n{rows}}},\n{rest}}}\n')


if __name__ == "__main__":
    main()
