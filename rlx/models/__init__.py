"""Models that rlx loads from their own files: sentence encoders and language models."""

from rlx.models.language.model import LanguageModel as LanguageModel
from rlx.models.loading import load as load
from rlx.models.sentence import SentenceEncoder as SentenceEncoder
