"""Sparse latent attention, whose tokens an indexer chooses: DeepSeek-V3.2 (2025), and GLM-5 (Zhipu, 2026), where layers
may follow the choice of earlier ones."""

from __future__ import annotations

from rlx.models.language.architectures.base import Architecture, by_class, renamed
from rlx.models.language.architectures.deepseek import (
    SHARED,
    absorbed,
    dense_layers,
    latent_and_experts,
    latent_attention,
    routed,
)
from rlx.models.language.config import (
    MOST_HEADS,
    MOST_LAYERS,
    MOST_POSITIONS,
    MOST_WIDTH,
    Fields,
    Indexer,
    LanguageConfig,
)
from rlx.records import replace

_WORDS = {"F": "full", "S": "shared"}


def _sparse(f: Fields, architecture: str, interleaved: bool, sources: tuple[int, ...]) -> LanguageConfig:
    """`interleaved` is that of the indexer's ropes; attention's own are."""
    f.must_be("rope_interleave", True)
    f.must_be("indexer_rope_interleave", interleaved)
    experts, first = routed(f, len(sources))
    f.count("q_lora_rank", MOST_WIDTH)  # the indexer reads the queries' latents
    a = latent_attention(f, len(sources), True)
    assert a.latent is not None
    heads, kept = f.count("index_n_heads", MOST_HEADS), f.count("index_topk", MOST_POSITIONS)
    size = f.count("index_head_dim", MOST_WIDTH, least=a.latent.turned)
    own = Indexer(heads, size, kept, interleaved, sources)
    a = replace(a, latent=replace(a.latent, indexer=own))
    return latent_and_experts(f, architecture, a, experts=experts, dense=dense_layers(f, lambda i: i in first))


def deepseek_v32(f: Fields) -> LanguageConfig:
    return _sparse(f, "deepseek_v32", False, tuple(range(f.count("num_hidden_layers", MOST_LAYERS))))


def glm_moe_dsa(f: Fields) -> LanguageConfig:
    sources: list[int] = []
    for index, kind in enumerate(_kinds(f)):
        sources.append(index if kind == "full" else sources[-1])
    return _sparse(f, "glm_moe_dsa", True, tuple(sources))


def _kinds(f: Fields) -> list[str]:
    """Which layers choose tokens ("full"), and which follow the one before ("shared"): by `indexer_types`, else by
    `index_topk_pattern`, of words or letters, else by two numbers."""
    layers = f.count("num_hidden_layers", MOST_LAYERS)
    for name in ("indexer_types", "index_topk_pattern"):
        pattern = f.content.get(name)
        if pattern is None:
            continue
        kinds = [_WORDS.get(one, one) for one in pattern] if isinstance(pattern, str) else pattern
        known = isinstance(kinds, list) and all(kind in ("full", "shared") for kind in kinds)
        if not known or len(kinds) != layers or kinds[0] != "full":
            f.wrong(name, f"a list of {layers} words, full or shared, of which the first is full")
        return kinds
    every, offset = (f.count(n, MOST_LAYERS, d) for n, d in (("index_topk_freq", 1), ("index_skip_topk_offset", 2)))
    return ["shared" if max(i - offset + 1, 0) % every else "full" for i in range(layers)]


ARCHITECTURES = {
    "deepseek_v32": Architecture(by_class(deepseek_v32), renamed(SHARED, absorbed)),
    "glm_moe_dsa": Architecture(by_class(glm_moe_dsa), renamed(SHARED, absorbed)),
}
