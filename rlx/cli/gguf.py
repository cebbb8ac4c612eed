"""What `rlx inspect` prints of a GGUF file: its metadata, its tensors, and on which devices its weights fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlx.cli.table import format_table
from rlx.errors import RlxError
from rlx.formats.files import plain, shown
from rlx.formats.gguf import GgufFile, read
from rlx.formats.gguf.reader import MAGIC
from rlx.formats.gguf.types import type_name

if TYPE_CHECKING:
    from rlx.models.language.config import LanguageConfig
    from rlx.models.language.placement import Room

_CONTEXTS = (4096, 32_768)
_SHOWN = 3  # elements of a list


def is_gguf(file: Path) -> bool:
    """Whether a file begins as GGUF files do."""
    try:
        with file.open("rb") as opened:
            return opened.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def inspect_gguf(path: Path, tensors: bool, devices: Sequence[str] | None) -> Iterator[str]:
    """Lines that describe the file; `tensors` lists every tensor."""
    with read(path) as file:
        yield f"GGUF of version {file.version}, {file.nbytes:,} bytes, {len(file.tensors):,} tensors"
        for key, value in file.metadata.items():
            yield f"{plain(key)}: {_said(value)}"
        counts: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        for tensor in file.tensors.values():
            counts[type_name(tensor.dtype)] += 1
            sizes[type_name(tensor.dtype)] += tensor.nbytes
        rows = [(kind, f"{counts[kind]:,}", f"{size:,}") for kind, size in sizes.most_common()]
        yield from format_table(("type", "tensors", "bytes"), rows, right={"tensors", "bytes"})
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
        yield from _fits(file, sum(sizes.values()), devices)


def _said(value: Any) -> str:
    if isinstance(value, list):
        some = ", ".join(shown(v, 30) for v in value[:_SHOWN])
        return f"[{some}]" if len(value) <= _SHOWN else f"[{some}, …] ({len(value):,} in all)"
    return shown(value, 200)


def _config(file: GgufFile) -> LanguageConfig | None:
    """The settings of the model; None for one of which rlx knows no architecture."""
    from rlx.formats.gguf.model import GgufModel
    from rlx.models.language.architectures import architecture_of
    from rlx.models.language.config import Fields

    try:
        model = GgufModel(file)
        fields = Fields(model.config, model.where)
        return architecture_of(fields).read(fields)
    except RlxError:
        return None


def _rooms(file: GgufFile, config: LanguageConfig) -> dict[int, Room]:
    """What the layers need, with keys and values in f32 for each of some contexts: what a model is loaded with, unless
    `activations` or `cache` say otherwise."""
    from rlx.dtypes import f32
    from rlx.models.language.caches import cache_bytes
    from rlx.models.language.placement import room_of

    def named(name: str) -> str:
        name = f"layers.{name[4:]}" if name.startswith("blk.") else name
        return name.replace("token_embd.", "embed_tokens.")

    sizes = {named(tensor.name): tensor.nbytes for tensor in file.tensors.values()}
    contexts = sorted({min(n, config.positions) for n in _CONTEXTS})  # none beyond what the model was made for
    return {n: room_of(config, "", sizes, 0, cache_bytes(config, n, f32)) for n in contexts}


def _fits(file: GgufFile, weights: int, devices: Sequence[str] | None) -> Iterator[str]:
    """A table of devices: free memory, and whether the weights and the keys and values of some lengths fit, or how many
    layers do. An encoder keeps no keys and values."""
    from rlx.driver.registry import open_device, probe_all

    config = _config(file)
    rooms = None if config is None else _rooms(file, config)
    titles = ("device", "name", "free", *(f"with {context:,} tokens" for context in rooms or (0,)))
    rows = []
    for name in devices or [info.id for info in probe_all()[0]]:
        try:
            opened = open_device(name)
            info, free = opened.info, opened.free_bytes()
        except RlxError as error:
            yield f"{plain(name)}: {' '.join(str(error).split())}"
            continue
        cells = []
        for room in [None] if rooms is None else rooms.values():
            need = weights + (sum(room.caches) if room is not None else 0)
            said = "fits" if need <= free else f"lacks {(need - free) / 2**30:.1f} GiB"
            if need > free and room is not None:
                said += f"; {room.fitting(0, free)} of {len(room.weights)} layers fit"
            cells.append(said)
        rows.append((info.id, info.name, f"{free / 2**30:.1f} GiB", *cells))
    if rows:
        known = [f"{_size(sum(room.caches))} for {n:,}" for n, room in (rooms or {}).items()]
        told = f"; keys and values in f32: {', '.join(known)}; --cache f16 takes half" if known else ""
        yield f"weights: {_size(weights)}{told}"
        yield from format_table(titles if rooms else ("device", "name", "free", "weights"), rows, right={"free"})


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**30:.2f} GiB" if nbytes >= 2**28 else f"{nbytes / 2**20:.2f} MiB"
