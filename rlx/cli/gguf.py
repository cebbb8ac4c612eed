"""What `rlx inspect` prints of a GGUF file: its metadata, its tensors, and on which devices its weights fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rlx.cli.room import config_of, fits, settings, types_of
from rlx.cli.table import format_table
from rlx.errors import RlxError
from rlx.formats.files import begins_with, plain
from rlx.formats.gguf import GgufFile, read
from rlx.formats.gguf.reader import MAGIC
from rlx.formats.gguf.types import type_name

if TYPE_CHECKING:
    from rlx.models.language.config import LanguageConfig


def is_gguf(file: Path) -> bool:
    """Whether a file begins as GGUF files do."""
    return begins_with(file, MAGIC)


def inspect_gguf(
    path: Path, tensors: bool, devices: Sequence[str] | None, context: int | None = None
) -> Iterator[str]:
    """Lines that describe the file; `tensors` lists every tensor, and `context` is the one to look for room for."""
    with read(path) as file:
        yield f"GGUF of version {file.version}, {file.nbytes:,} bytes, {len(file.tensors):,} tensors"
        yield from settings(file.metadata)
        yield from types_of((type_name(t.dtype), t.nbytes) for t in file.tensors.values())
        if tensors:
            listed = [
                (
                    plain(t.name),
                    type_name(t.dtype),
                    "x".join(map(str, t.shape)),
                    f"{t.nbytes:,}",
                    f"{t.offset:,}",
                )
                for t in file.tensors.values()
            ]
            titles = ("tensor", "type", "shape", "bytes", "at byte")
            yield from format_table(titles, listed, right={"bytes", "at byte"})
        try:
            config = _config(file)
        except RlxError as error:
            yield f"rlx does not run it: {' '.join(str(error).split())}"
            return
        yield from fits(config, {_named(t.name): t.nbytes for t in file.tensors.values()}, devices,
                        context)  # fmt: skip


def _named(name: str) -> str:
    """A tensor's name as graphs have it, as far as it says the layer."""
    name = f"layers.{name[4:]}" if name.startswith("blk.") else name
    return name.replace("token_embd.", "embed_tokens.")


def _config(file: GgufFile) -> LanguageConfig | None:
    """The settings of a language model; None for an encoder. Raises: RlxError for a model that rlx does not run."""
    from rlx.formats.gguf.encoders import ENCODERS
    from rlx.formats.gguf.model import GgufModel
    from rlx.models.language.config import Fields
    from rlx.models.sentence import read_gguf

    if file.metadata.get("general.architecture") in ENCODERS:
        read_gguf(file)
        return None
    model = GgufModel(file)
    return config_of(Fields({**model.config, "rope_partial": True}, model.where), model)
