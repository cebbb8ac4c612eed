"""Encoders with BERT's blocks under other names, and RoBERTa's, whose positions begin after the padding token's row."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from rlx.models.encoders.config import ACTS, BERT, LLAMA, MOST_TYPES, PLAIN, EncoderConfig, encoder
from rlx.models.language.config import (
    MOST_HEADS,
    MOST_INNER,
    MOST_LAYERS,
    MOST_POSITIONS,
    MOST_TOKENS,
    MOST_WIDTH,
    Fields,
)

_XL = {"first_norm": "encoder.layer.#.attention.self_attn_layer_norm", "second_norm": "encoder.layer.#.LayerNorm"}
_LN = {"first_norm": "encoder.layer.#.attention.ln", "second_norm": "encoder.layer.#.ln", "last_norm": "encoder.ln"}
_PRE = {"first_norm": "encoder.layer.#.attention.LayerNorm",
        "second_norm": "encoder.layer.#.intermediate.LayerNorm", "last_norm": "LayerNorm"}  # fmt: skip
HEADS = ("lm_head.", "classifier.", "qa_outputs.")


def behind_padding(f: Fields, skipped: int | None = None) -> dict[str, Any]:
    """Places that count from behind the padding token's row, and skip that token."""
    rows = f.count("max_position_embeddings", MOST_POSITIONS)
    skipped = f.count("pad_token_id", rows - 2, least=0) if skipped is None else skipped
    first = skipped + 1
    return {"places": rows, "first_place": first, "skipped": skipped, "max_position_embeddings": rows - first}


def roberta(
    f: Fields, names: dict[str, str] | None = None, prefix: str = "roberta.", more_unused: tuple[str, ...] = (),
    **changed: Any,
) -> EncoderConfig:  # fmt: skip
    unused = (*HEADS, *more_unused)
    return encoder(f, {**PLAIN, **(names or {})}, prefix=prefix, unused=unused, **behind_padding(f), **changed)


def xlm_roberta_xl(f: Fields) -> EncoderConfig:
    return roberta(f, _XL, placement="pre", embedding_norm=False)


def roberta_prelayernorm(f: Fields) -> EncoderConfig:
    return roberta(f, _PRE, "roberta_prelayernorm.", placement="pre")


def megatron(f: Fields) -> EncoderConfig:
    return encoder(f, {**PLAIN, **_LN}, prefix="bert.", placement="pre", embedding_norm=False, unused=HEADS)


def narrow(f: Fields, prefix: str, where: str = "embeddings_project", size: str = "embedding_size",
           **changed: Any) -> EncoderConfig:  # fmt: skip
    """Embeddings of their own width, which a product brings to the model's."""
    own, width = f.count(size, MOST_WIDTH), f.count("hidden_size", MOST_WIDTH)
    names = {**BERT, "project": where}
    if own == width and where == "embeddings_project":
        del names["project"]
    unused = (*HEADS, "generator_", "discriminator_", "sequence_summary.")
    settings = {"names": names, "embedding_width": own, "prefix": prefix, "unused": unused, **changed}
    return encoder(f, **settings)


def ernie(f: Fields) -> EncoderConfig:
    tasks: tuple[tuple[str, int], ...] = ()
    if f.flag("use_task_id", False):
        tasks = (("embeddings.task_type_embeddings", f.count("task_type_vocab_size", MOST_TYPES)),)
    return encoder(f, prefix="ernie.", zeros=tasks, unused=HEADS)


def layoutlm(f: Fields) -> EncoderConfig:
    """Texts without boxes, whose corners and sizes are all 0."""
    rows = f.count("max_2d_position_embeddings", MOST_POSITIONS)
    zeros = tuple((f"embeddings.{axis}_position_embeddings", rows) for axis in "xyxyhw")
    return encoder(f, prefix="layoutlm.", zeros=zeros, unused=HEADS)


def big_bird(f: Fields) -> EncoderConfig:
    """Full attention, which transformers takes for short texts; its sparse blocks draw keys at random."""
    longest = f.count("max_position_embeddings", MOST_POSITIONS)
    if f.choice("attention_type", {"original_full": "full", "block_sparse": "sparse"}) == "sparse":
        blocks = 5 + 2 * f.count("num_random_blocks", MOST_TOKENS, least=0)
        longest = min(longest, blocks * f.count("block_size", MOST_TOKENS))
    scale = math.sqrt(f.count("hidden_size", MOST_WIDTH)) if f.flag("rescale_embeddings", False) else 1.0
    plain = frozenset() if f.flag("use_bias", True) else frozenset("qkv")
    return encoder(f, prefix="bert.", max_position_embeddings=longest, embedding_scale=scale, plain=plain, unused=HEADS)


def bert_generation(f: Fields) -> EncoderConfig:
    return encoder(f, prefix="bert.", type_vocab_size=0, unused=("lm_head.",))


def distilbert(f: Fields) -> EncoderConfig:
    layer = "transformer.layer.#."
    names = {
        **{part: f"{layer}attention.{part}_lin" for part in "qkv"}, "out": f"{layer}attention.out_lin",
        "first_norm": f"{layer}sa_layer_norm", "second_norm": f"{layer}output_layer_norm",
        "up": f"{layer}ffn.lin1", "down": f"{layer}ffn.lin2",
        **{part: BERT[part] for part in ("words", "places", "embedding_norm")},
    }  # fmt: skip
    return encoder(
        f, names, prefix="distilbert.", intermediate_size=f.count("hidden_dim", MOST_INNER),
        hidden_act=f.choice("activation", ACTS), layer_norm_eps=1e-12, unused=("vocab_", "pre_classifier.", *HEADS),
    )  # fmt: skip


def albert(f: Fields) -> EncoderConfig:
    """ALBERT: the layers of a group share their weights."""
    layers, groups = f.count("num_hidden_layers", MOST_LAYERS), f.count("num_hidden_groups", MOST_LAYERS)
    each = f.count("inner_group_num", MOST_LAYERS)
    layer = "encoder.albert_layer_groups.#."
    names = {
        **{part: f"{layer}attention.{name}" for part, name in zip("qkv", ("query", "key", "value"), strict=True)},
        "out": f"{layer}attention.dense", "first_norm": f"{layer}attention.LayerNorm", "up": f"{layer}ffn",
        "down": f"{layer}ffn_output", "second_norm": f"{layer}full_layer_layer_norm",
        "project": "encoder.embedding_hidden_mapping_in",
        **{part: BERT[part] for part in ("words", "places", "kinds", "embedding_norm")},
    }  # fmt: skip
    if groups > layers:
        f.wrong("num_hidden_groups", f"at most the {layers} layers")

    def shared(index: int) -> str:
        layer, inner = divmod(index, each)
        return f"{int(layer / (layers / groups))}.albert_layers.{inner}"

    return narrow(f, "albert.", names["project"], names=names, shared=shared, num_hidden_layers=layers * each,
                  unused=("predictions.", "sop_classifier.", *HEADS))  # fmt: skip


def turned(f: Fields, own: dict[str, str], plain: Iterable[str] = (), **changed: Any) -> EncoderConfig:
    """Encoders with RoPE in all layers. Files name their tensors as in `own`, with q, k and v as one product, or as
    Llama."""
    width, heads = f.count("hidden_size", MOST_WIDTH), f.count("num_attention_heads", MOST_HEADS)
    size = f.count("head_dim", MOST_WIDTH, width // heads)
    ropes = (f.rope(size),) * f.count("num_hidden_layers", MOST_LAYERS)
    base = {part: BERT[part] for part in ("words", "kinds", "embedding_norm")}
    other = {**base, **LLAMA, **changed.pop("other", {})}
    settings = {"head_size": size, "ropes": ropes, "gated": True, "unused": HEADS, "joined": True, **changed}
    otherwise = {"names": other, "joined": False, "plain": frozenset(plain)}
    return encoder(f, {**base, **own}, plain=frozenset((*plain, *(("qkv",) if "q" in plain else ()))),
                   otherwise=otherwise, **settings)  # fmt: skip


def nomic(f: Fields) -> EncoderConfig:
    layer = "encoder.layers.#."
    own = {"embedding_norm": "emb_ln", "qkv": f"{layer}attn.Wqkv", "out": f"{layer}attn.out_proj",
           "up": f"{layer}mlp.fc11", "gate": f"{layer}mlp.fc12", "down": f"{layer}mlp.fc2",
           "first_norm": f"{layer}norm1", "second_norm": f"{layer}norm2"}  # fmt: skip
    return turned(f, own, ("q", "k", "v", "out", "gate", "up", "down"), prefix="nomic_bert.")


def gte(f: Fields) -> EncoderConfig:
    layer = "encoder.layer.#."
    own = {"qkv": f"{layer}attention.qkv_proj", "out": f"{layer}attention.o_proj", "up": f"{layer}mlp.up_gate_proj",
           "down": f"{layer}mlp.down_proj", "first_norm": f"{layer}attn_ln",
           "second_norm": f"{layer}mlp_ln"}  # fmt: skip
    return turned(f, own, ("gate", "up"), prefix="new.", late_gate=True)


def jina_v3(f: Fields) -> EncoderConfig:
    layer = "encoder.layers.#."
    own = {"embedding_norm": "emb_ln", "qkv": f"{layer}mixer.Wqkv", "out": f"{layer}mixer.out_proj",
           "up": f"{layer}mlp.fc1", "down": f"{layer}mlp.fc2", "first_norm": f"{layer}norm1",
           "second_norm": f"{layer}norm2"}  # fmt: skip
    other = {"up": "layers.#.mlp.fc1", "down": "layers.#.mlp.fc2"}
    return turned(f, own, prefix="roberta.", gated=False, other=other)


ARCHITECTURES = {
    **dict.fromkeys(("roberta", "camembert", "xlm-roberta"), roberta),
    "data2vec-text": lambda f: roberta(f, prefix="data2vec_text."),
    "xlm-roberta-xl": xlm_roberta_xl,
    "roberta-prelayernorm": roberta_prelayernorm,
    "megatron-bert": megatron,
    "electra": lambda f: narrow(f, "electra."),
    "rembert": lambda f: narrow(f, "rembert.", "encoder.embedding_hidden_mapping_in", "input_embedding_size"),
    "splinter": lambda f: encoder(f, prefix="splinter.", unused=("splinter_qass.", *HEADS)),
    "ernie": ernie,
    "layoutlm": layoutlm,
    "big_bird": big_bird,
    "bert-generation": bert_generation,
    "distilbert": distilbert,
    "albert": albert,
    "nomic_bert": nomic,
    "gte": gte,
    "jina_embeddings_v3": jina_v3,
}
