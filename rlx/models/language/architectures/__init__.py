"""The architectures that rlx knows: each a function from config.json to blocks, and the names of its weights."""

from __future__ import annotations

import difflib

from rlx.errors import ModelFormatError
from rlx.formats.files import shown
from rlx.models.language.architectures import (
    alibi,
    cohere,
    deepseek,
    gemma,
    glm,
    gpt2,
    gpt_oss,
    gptj,
    granite,
    hybrid,
    latest,
    lfm2,
    llama,
    mamba,
    mixtral,
    neox,
    olmo,
    opt,
    phi,
    phi3,
    qwen,
    qwen_next,
    variants,
)
from rlx.models.language.architectures.base import Architecture
from rlx.models.language.config import Fields

_MODULES = (
    llama, qwen, gemma, phi3, gpt2, olmo, gpt_oss, mamba, qwen_next, mixtral, variants, phi, neox, gptj, alibi, opt,
    cohere, granite, glm, deepseek, lfm2, hybrid, latest,
)  # fmt: skip
ARCHITECTURES: dict[str, Architecture] = {
    name: architecture for module in _MODULES for name, architecture in module.ARCHITECTURES.items()
}
OTHERS = ("bert", "whisper")  # models that are read, and are no language models
# Of families that rlx has no code for: the nearest that it has, and what is missing.
MISSING = {
    "deepseek_v32": ("deepseek_v3", "the indexer of sparse attention"),
    "gemma3n_text": ("gemma3_text", "embeddings of each layer, AltUp, and caches that layers share"),
    "gemma4_text": ("gemma3_text", "embeddings of each layer, and caches that layers share"),
    "llama4_text": ("llama", "chunks of attention, and weights of experts on their inputs"),
    "doge": ("llama", "masks that it computes"),
    "jetmoe": ("mixtral", "attention with experts"),
    "xglm": ("opt", "positions of sines"),
    "ctrl": ("gpt2", "positions of sines"),
    "zamba": ("jamba", "blocks of attention that layers share"),
    "zamba2": ("bamba", "blocks of attention that layers share"),
    "kimi_linear": ("deepseek_v3", "Kimi's delta attention"),
    "recurrent_gemma": ("gemma2", "the linear recurrent unit"),
    "longcat_flash": ("deepseek_v3", "two blocks of attention in a layer, and experts that do nothing"),
    "diffllama": ("llama", "differential attention"),
    "rwkv": ("mamba", "RWKV's recurrence"),
    "xlstm": ("mamba", "xLSTM's recurrence"),
}  # fmt: skip


def architecture_of(fields: Fields) -> Architecture:
    """The architecture that `model_type` names.

    Raises: ModelFormatError for an unknown one, and for a model whose tokens attend to later ones."""
    kind = fields.content.get("model_type")
    result = ARCHITECTURES.get(kind) if isinstance(kind, str) else None
    if result is None:
        raise ModelFormatError(f"{fields.where}: model_type is {shown(kind)}; {_nearest(kind)}")
    fields.must_be("is_causal", True)
    fields.must_be("use_bidirectional_attention", False, None)
    return result


def _nearest(kind: object) -> str:
    """What rlx knows in place of a family that it does not."""
    known = sorted([*ARCHITECTURES, *OTHERS])
    listed = f"rlx knows {', '.join(known)}"
    if not isinstance(kind, str):
        return listed
    if kind in MISSING:
        near, what = MISSING[kind]
        return f"{listed}; the nearest is {near}, which lacks {what}"
    alike = difflib.get_close_matches(kind, known, 1, 0.6)
    return f"{listed}; the nearest name is {alike[0]}" if alike else listed
