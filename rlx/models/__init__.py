"""Models that rlx loads from their own files: sentence encoders, language models, and speech to text."""

from rlx.models.as_functions import trainable as trainable
from rlx.models.language.model import LanguageModel as LanguageModel
from rlx.models.loading import load as load
from rlx.models.low_rank import Lora as Lora
from rlx.models.sentence import SentenceEncoder as SentenceEncoder
from rlx.models.speech.transcriber import Transcriber as Transcriber
