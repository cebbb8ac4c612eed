"""The architectures that rlx knows: each a function from config.json to blocks, and the names of its weights."""

from __future__ import annotations

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

ARCHITECTURES: dict[str, Architecture] = {
    name: architecture
    for module in (
        llama, qwen, gemma, phi3, gpt2, olmo, gpt_oss, mamba, qwen_next, mixtral, variants, phi, neox, gptj, alibi, opt,
        cohere, granite, glm, deepseek, lfm2, hybrid,
    )  # fmt: skip
    for name, architecture in module.ARCHITECTURES.items()
}
OTHERS = ("bert", "whisper")  # models that are read, and are no language models


def architecture_of(fields: Fields) -> Architecture:
    """The architecture that `model_type` names.

    Raises: ModelFormatError for an unknown one, and for a model whose tokens attend to later ones."""
    kind = fields.content.get("model_type")
    result = ARCHITECTURES.get(kind) if isinstance(kind, str) else None
    if result is None:
        known = ", ".join(sorted([*ARCHITECTURES, *OTHERS]))
        raise ModelFormatError(f"{fields.where}: model_type is {shown(kind)}; rlx knows {known}")
    fields.must_be("is_causal", True)
    fields.must_be("use_bidirectional_attention", False, None)
    return result
