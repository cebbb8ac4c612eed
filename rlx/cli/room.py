"""What `rlx inspect` prints of a model's files, GGUF or a folder: settings, types, tensors, and on which devices its
weights fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlx.cli.table import format_table
from rlx.errors import RlxError
from rlx.formats.files import plain, shown

if TYPE_CHECKING:
    from rlx.models.language.config import Fields, LanguageConfig
    from rlx.models.language.placement import Room

_CONTEXTS = (4096, 32_768)
_SHOWN = 3  # elements of a list


def settings(found: Mapping[str, Any]) -> Iterator[str]:
    """A line for each setting; of lists the first elements."""
    for key, value in found.items():
        yield f"{plain(key)}: {_said(value)}"


def _said(value: Any) -> str:
    if isinstance(value, list):
        some = ", ".join(shown(v, 30) for v in value[:_SHOWN])
        return f"[{some}]" if len(value) <= _SHOWN else f"[{some}, …] ({len(value):,} in all)"
    return shown(value, 200)


def types_of(tensors: Iterable[tuple[str, int]]) -> list[str]:
    """A table of types, from the type and the bytes of each tensor."""
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for kind, nbytes in tensors:
        counts[kind] += 1
        sizes[kind] += nbytes
    rows = [(kind, f"{counts[kind]:,}", f"{size:,}") for kind, size in sizes.most_common()]
    return format_table(("type", "tensors", "bytes"), rows, right={"tensors", "bytes"})


def _rooms(sizes: Mapping[str, int], config: LanguageConfig, context: int | None) -> dict[int, Room]:
    """What the layers need, with keys and values in f32 for each of some contexts, or the one given: what a model is
    loaded with, unless `activations` or `cache` say otherwise."""
    from rlx.dtypes import f32
    from rlx.models.language.caches import cache_bytes
    from rlx.models.language.placement import room_of

    asked = _CONTEXTS if context is None else (context,)
    contexts = sorted({min(n, config.positions) for n in asked})  # a model has no longer ones than its own
    return {n: room_of(config, "", sizes, 0, cache_bytes(config, n, f32)) for n in contexts}


def config_of(fields: Fields, source: Any) -> LanguageConfig:
    """The settings of a language model whose tensors `source` has. Raises: RlxError for a model that rlx does not run:
    of another architecture, or with tensors that are missing, or of no use to it."""
    from rlx.models.language.caches import Size
    from rlx.models.language.graph import language_graph
    from rlx.models.language.weights import ModelWeights, architecture_for

    architecture = architecture_for(fields, source)
    weights = ModelWeights(source, architecture, architecture.read(fields), 16, None)
    language_graph(weights.config, Size(1, 1, 16), weights, "logits")
    weights.check()
    return weights.config


def fits(
    config: LanguageConfig | None, sizes: Mapping[str, int], devices: Sequence[str] | None, context: int | None = None
) -> Iterator[str]:
    """A table of devices: free memory, and whether the weights and the keys and values of some lengths fit, or how many
    layers do. `sizes`: the bytes of the weights, by the names that a decoder's have in graphs. None for `config`: no
    keys and values are known, as of an encoder."""
    from rlx.driver.registry import open_device, probe_all

    weights = sum(sizes.values())
    rooms = None if config is None else _rooms(sizes, config, context)
    if context is not None:
        if config is None:
            raise RlxError("--context is for language models; this one keeps no keys and values")
        if context > config.positions:
            yield f"{context:,} tokens are more than the {config.positions:,} that the model was made for"
    titles = ("device", "name", "free", *(f"with {length:,} tokens" for length in rooms or (0,)))
    rows = []
    for name in devices or [info.id for info in probe_all()[0]]:
        try:
            opened = open_device(name)
            info, free = opened.info, opened.free_bytes()
        except RlxError as error:
            if devices is not None and len(devices) == 1:  # other commands fail too if their only device is missing
                raise
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
        # A recurrent model has no keys and values; --cache refuses it.
        caches = {n: sum(room.caches) for n, room in (rooms or {}).items()}
        known = [f"{_size(nbytes)} for {n:,}" for n, nbytes in caches.items() if nbytes]
        told = f"; keys and values in f32: {', '.join(known)}; --cache f16 takes half" if known else ""
        yield f"weights: {_size(weights)}{told}"
        yield from format_table(titles if rooms else ("device", "name", "free", "weights"), rows, right={"free"})


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**30:.2f} GiB" if nbytes >= 2**28 else f"{nbytes / 2**20:.2f} MiB"
