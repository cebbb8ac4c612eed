"""Models that rlx loads from their own files: sentence encoders, language models, and speech to text."""

from typing import TYPE_CHECKING

from rlx.lazy import by_need as _by_need

if TYPE_CHECKING:
    from rlx.models.as_functions import trainable as trainable
    from rlx.models.language.model import LanguageModel as LanguageModel
    from rlx.models.loading import load as load
    from rlx.models.low_rank import Lora as Lora
    from rlx.models.sentence import SentenceEncoder as SentenceEncoder
    from rlx.models.speech.transcriber import Transcriber as Transcriber

_by_need(
    __name__,
    {
        "trainable": "rlx.models.as_functions",
        "LanguageModel": "rlx.models.language.model",
        "load": "rlx.models.loading",
        "Lora": "rlx.models.low_rank",
        "SentenceEncoder": "rlx.models.sentence",
        "Transcriber": "rlx.models.speech.transcriber",
    },
)
