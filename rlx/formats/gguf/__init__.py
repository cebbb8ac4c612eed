"""GGUF files: `read` gives their metadata and tensors, `write` makes them."""

from rlx.formats.gguf.reader import GgufFile as GgufFile
from rlx.formats.gguf.reader import GgufTensor as GgufTensor
from rlx.formats.gguf.reader import read as read
from rlx.formats.gguf.writer import write as write
