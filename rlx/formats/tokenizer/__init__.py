"""Text to token numbers, by a folder's tokenizer.json, of which every part is checked before the package reads it."""

from rlx.formats.tokenizer.text import TextTokenizer as TextTokenizer
from rlx.formats.tokenizer.text import TokenIds as TokenIds
