"""What `rlx inspect` prints of a GGUF file: its metadata, its tensors, and on which devices its weights fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rlx.cli.table import format_table
from rlx.errors import RlxError
from rlx.formats.files import plain, shown
from rlx.formats.gguf import GgufFile, read
from rlx.formats.gguf.reader import MAGIC
from rlx.formats.gguf.types import type_name

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


def cache_nbytes(file: GgufFile, context: int) -> int | None:
    """The bytes of keys and values in f16 for so many tokens; None for a model that says nothing of them."""
    from rlx.errors import ModelFormatError
    from rlx.formats.gguf.model import GgufModel

    try:
        config = GgufModel(file).config
    except ModelFormatError:
        return None
    heads = config.get("num_key_value_heads", config.get("n_head"))
    size = config.get("head_dim") or config.get("n_embd", 0) // max(config.get("n_head", 1), 1)
    layers = config.get("num_hidden_layers", config.get("n_layer", 0))
    return None if heads is None else 2 * 2 * heads * size * layers * context


def _contexts(file: GgufFile) -> list[int]:
    """Numbers of tokens to plan for: none beyond what the model was made for, where the file says that."""
    most = file.metadata.get(f"{file.metadata.get('general.architecture')}.context_length")
    return sorted({min(n, most) if isinstance(most, int) and most > 0 else n for n in _CONTEXTS})


def _fits(file: GgufFile, weights: int, devices: Sequence[str] | None) -> Iterator[str]:
    """A table of devices: free memory, and whether the weights and the keys and values of some lengths fit."""
    from rlx.driver.registry import open_device, probe_all

    caches = [(context, cache_nbytes(file, context)) for context in _contexts(file)]
    titles = ("device", "name", "free", *(f"with {context:,} tokens" for context, _ in caches))
    rows = []
    for name in devices or [info.id for info in probe_all()[0]]:
        try:
            opened = open_device(name)
            info, free = opened.info, opened.free_bytes()
        except RlxError as error:
            yield f"{plain(name)}: {' '.join(str(error).split())}"
            continue
        cells = []
        for _, cache in caches:
            need = weights + (cache or 0)
            cells.append("fits" if need <= free else f"lacks {(need - free) / 2**30:.1f} GiB")
        rows.append((info.id, info.name, f"{free / 2**30:.1f} GiB", *cells))
    if rows:
        known = ", ".join(f"{cache / 2**30:.2f} GiB for {n:,}" for n, cache in caches if cache is not None)
        told = known or "not known for this architecture"
        yield f"weights: {weights / 2**30:.2f} GiB; keys and values in f16: {told}"
        yield from format_table(titles, rows, right={"free"})
