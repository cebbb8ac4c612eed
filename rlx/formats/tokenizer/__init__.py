"""Text to token ids by a folder's tokenizer.json, whose parts are all checked before the package `tokenizers` reads
it."""

from rlx.formats.tokenizer.text import TextTokenizer as TextTokenizer
from rlx.formats.tokenizer.text import TokenIds as TokenIds
