"""Encoders of GGUF files (BERT, XLM-RoBERTa, Nomic BERT, Jina BERT v2), with the settings and names of a BERT folder;
and `pooling_type`, which says what embedding and reranking models compute from the states."""

from __future__ import annotations

from typing import Any, Literal

from rlx.errors import ModelFormatError
from rlx.formats.files import shown
from rlx.formats.gguf.model import MAX_LAYERS, GgufModel
from rlx.formats.gguf.names import Family
from rlx.formats.gguf.reader import GgufFile

Pooling = Literal["mean", "cls", "last", "rank"]
POOLINGS: tuple[Pooling | None, ...] = (None, "mean", "cls", "last", "rank")  # indexed by llama.cpp's numbers
RERANK = "tokenizer.chat_template.rerank"

_BLOCK = {
    "attention.self.query": "attn_q", "attention.self.key": "attn_k", "attention.self.value": "attn_v",
    "attention.self.qkv": "attn_qkv", "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm", "intermediate.dense": "ffn_up", "intermediate.gate": "ffn_gate",
    "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm",
}  # fmt: skip
_TOP = {
    "embeddings.word_embeddings": "token_embd", "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types", "embeddings.LayerNorm": "token_embd_norm",
    "classifier.dense": "cls", "classifier.out_proj": "cls.output",
}  # fmt: skip
_COUNTS = {
    "num_hidden_layers": "block_count", "max_position_embeddings": "context_length", "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length", "num_attention_heads": "attention.head_count",
}  # fmt: skip


def _family(architecture: str) -> Family:
    return Family(
        architecture, "bert", _BLOCK, top=_TOP, layers="encoder.layer", counts=_COUNTS,
        numbers={"layer_norm_eps": "attention.layer_norm_epsilon"}, class_name="BertModel",
    )  # fmt: skip


_POSITIONS = {"bert": "learned", "nomic-bert": "rotary", "jina-bert-v2": "alibi"}
_ACTIVATIONS = {"bert": "gelu", "nomic-bert": "silu", "jina-bert-v2": "gelu"}  # the original models' value
ENCODERS = {name: _family(name) for name in _POSITIONS}


def pooling_of(file: GgufFile) -> Pooling | None:
    """What an embedding model computes from its states: the mean of all, the first (cls) or last token's state, or a
    score ("rank"). None if the file does not say. Raises: ModelFormatError for an unknown number."""
    key = f"{file.metadata.get('general.architecture')}.pooling_type"
    number = file.metadata.get(key, 0)
    if type(number) is not int or not 0 <= number < len(POOLINGS):
        raise ModelFormatError(f"{file.path}: {key} is {shown(number)}; expected 0 to {len(POOLINGS) - 1}")
    return POOLINGS[number]


class GgufEncoder(GgufModel):
    """The encoder of an open GGUF file. `config` has the settings of BERT's config.json and others that BERT lacks:
    `positions` ("learned", "rotary" or "alibi"), `gated`, `joined` (q, k and v are one matrix), the `plain` products
    (without biases), and for a reranker `labels` and `dense_head`.

    Raises: ModelFormatError, as GgufModel."""

    families = ENCODERS

    def _config(self) -> dict[str, Any]:
        family, arch, file = self.family, self.family.architecture, self.file
        config: dict[str, Any] = {"model_type": "bert", "hidden_act": _ACTIVATIONS[arch]}
        for names, kind in ((family.counts, int), (family.numbers, float)):
            config |= {name: self._setting(f"{arch}.{key}", kind, name) for name, key in names.items()}
        self._check_settings(config)
        if not 0 < config["num_hidden_layers"] <= MAX_LAYERS:
            self._refuse(f"{arch}.block_count is {config['num_hidden_layers']}; expected 1 to {MAX_LAYERS:,}")
        config["vocab_size"] = self._rows("token_embd.weight")
        config["type_vocab_size"] = self._rows("token_types.weight") if "token_types.weight" in file.tensors else 0
        config["positions"] = _POSITIONS[arch]
        if arch == "nomic-bert":
            config["rope_theta"] = self._setting(f"{arch}.rope.freq_base", float, "rope_theta")
        first = {theirs: f"blk.0.{ours}" for theirs, ours in _BLOCK.items()}
        there = {name for name, ours in first.items() if f"{ours}.weight" in file.tensors}
        config["joined"], config["gated"] = "attention.self.qkv" in there, "intermediate.gate" in there
        config["plain"] = sorted(name for name in there if f"{first[name]}.bias" not in file.tensors)
        config["dense_head"] = "cls.weight" in file.tensors
        config["labels"] = self._rows("cls.output.weight") if "cls.output.weight" in file.tensors else 0
        return config

    def _rows(self, name: str) -> int:
        table = self.file.tensors.get(name)
        if table is None or len(table.shape) != 2:
            self._refuse(f"has no matrix {name}")
        return table.shape[0]
