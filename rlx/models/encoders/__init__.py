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
