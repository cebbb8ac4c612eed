"""Models that rlx loads from their own files."""

from rlx.models.sentence import SentenceEncoder as SentenceEncoder
from rlx.models.sentence import load as load
