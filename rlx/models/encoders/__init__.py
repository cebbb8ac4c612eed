"""The text encoders that rlx knows: each a function from config.json to blocks, and the names of its weights."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from rlx.models.bert import BertConfig
from rlx.models.encoders import deberta, mixers, relative, roberta
from rlx.models.encoders.config import EncoderConfig, settings_of
from rlx.models.language.config import Fields

ARCHITECTURES: dict[str, Callable[[Fields], EncoderConfig]] = {
    **roberta.ARCHITECTURES,
    **relative.ARCHITECTURES,
    **deberta.ARCHITECTURES,
    **mixers.ARCHITECTURES,
}
TYPES = ("bert", *ARCHITECTURES)
# Of encoders that rlx has no code for: the nearest that it has, and what is missing.
MISSING = {
    "new": ("gte", "the settings of code beside the model, which rlx does not run"),
    "modernbert-decoder": ("modernbert", "attention to earlier tokens alone"),
    "xmod": ("xlm-roberta", "adapters of languages"),
    "ibert": ("roberta", "integers between layers"),
    "luke": ("roberta", "entities"),
    "lilt": ("layoutlm", "a second stream for the layout"),
    "bros": ("layoutlm", "distances of boxes"),
    "markuplm": ("layoutlm", "paths in a page"),
    "roc_bert": ("bert", "shapes and sounds of letters"),
    "esm": ("roberta", "the scale of masked proteins"),
    "funnel": ("bert", "layers that pool tokens"),
    "canine": ("bert", "hashes of letters"),
    "xlnet": ("bert", "relative places of Transformer-XL"),
    "xlm": ("bert", "tables of languages"),
    "flaubert": ("bert", "tables of languages"),
    "yoso": ("bert", "attention by hashing"),
    "mra": ("bert", "attention by blocks at several scales"),
    "reformer": ("bert", "attention by hashing"),
    "longt5": ("t5", "local attention with summaries"),
    "switch_transformers": ("t5", "experts"),
    "t5gemma": ("gemma2", "an encoder and a decoder in one"),
    "embedding_gemma2": ("gemma3_text", "images beside texts"),
}  # fmt: skip


def is_encoder(config: Mapping[str, Any]) -> bool:
    """Whether the settings are those of a text encoder."""
    return config.get("model_type") in TYPES


def encoder_config(
    config: Mapping[str, Any], where: str, tensors: Collection[str] = ()
) -> BertConfig | EncoderConfig:
    """The encoder that config.json describes, whose files hold `tensors`.

    Raises: ModelFormatError naming what is missing, wrong or not supported."""
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        return BertConfig.from_dict(config, where)
    return ARCHITECTURES[kind](settings_of(Fields(config, where))).held(tensors)
