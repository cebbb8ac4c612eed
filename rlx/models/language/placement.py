"""Which layers of a language model are on which device, and what they need there."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from rlx.errors import DTypeError, OutOfDeviceMemory, ShapeError
from rlx.models.language.config import SHARED, LanguageConfig
from rlx.models.language.pages import pages_for
from rlx.records import Record
from rlx.runtime import Session

Shares = Sequence[tuple[str, int | None]]  # a device and how many layers; None: as many as fit, or the rest
_NUMBER = re.compile(r"[a-z_]+\.(\d+)(?:\.|$)")  # layers.3.mlp…, keys.3
# Weights that are used before the first layer.
_FIRST = ("embed_tokens.", "positions.", "embed_tokens_per_layer.", "per_layer_", "altup_projections.")
_MORE = "such as 'cuda:0=20,cpu'"


def shares_of(layers_on: str | Mapping[str, int]) -> Shares:
    """The devices of `layers_on`, in the order of the layers.

    Raises: DTypeError for a setting of another form, ShapeError for numbers below 1 and for a device that is named
    twice.
    """
    if isinstance(layers_on, str):
        result: list[tuple[str, int | None]] = []
        for part in layers_on.split(","):
            name, equals, number = (text.strip() for text in part.partition("="))
            if not name or (equals and not (number.isascii() and number.isdigit() and len(number) < 10)):
                raise DTypeError(f"layers_on {layers_on!r:.80}: {part!r:.40} is no device with a number, {_MORE}")
            result.append((name, int(number) if equals else None))
    elif isinstance(layers_on, Mapping):
        result = list(layers_on.items())
    else:
        raise DTypeError(f"layers_on is {layers_on!r:.80}; expected a text, {_MORE}, or a dict of such numbers")
    for name, count in result:
        if not isinstance(name, str) or type(count) not in (int, type(None)):
            raise DTypeError(f"layers_on: {name!r:.40} has {count!r:.40}; expected a device and a number of layers")
        if count is not None and count < 1:
            raise ShapeError(f"layers_on: {name} has {count} layers; expected 1 or more, or leave the device out")
    if len({name for name, _ in result}) < len(result) or not result:
        raise ShapeError(f"layers_on {layers_on!r:.80}: expected each device once, {_MORE}")
    return result


def layer_of(name: str) -> int | None:
    """The layer that a weight or a state belongs to, by its name; None if it belongs to no layer."""
    found = _NUMBER.match(name)
    return None if found is None else int(found[1])


class Room(Record, slots=False):
    """The memory that a model needs: bytes of weights and of caches per layer, and of weights before the first and
    after the last layer; `both` are bytes of weights that are in the two latter, which a device with both layers stores
    once. Every device has the RoPE tables."""

    where: str
    weights: tuple[int, ...]
    caches: tuple[int, ...]
    before: int
    after: int
    tables: int
    both: int = 0

    def need(self, layers: range, loaded: bool = False) -> tuple[int, int]:
        """The bytes of the weights and of the caches of some layers; without weights where these are `loaded`."""
        held = sum(self.weights[layers.start : layers.stop]) + self.tables
        first, last = layers.start == 0, layers.stop == len(self.weights)
        held += first * self.before + last * self.after - (first and last) * self.both
        return 0 if loaded else held, sum(self.caches[layers.start : layers.stop])

    def times(self, n: int) -> Room:
        """The memory that n such models need."""
        weights, caches = (tuple(n * size for size in sizes) for sizes in (self.weights, self.caches))
        return Room(self.where, weights, caches, n * self.before, n * self.after, n * self.tables, n * self.both)

    def fitting(self, start: int, free: int) -> int:
        """How many layers from `start` on fit into `free` bytes."""
        ends = range(len(self.weights), start, -1)
        return next((end - start for end in ends if sum(self.need(range(start, end))) <= free), 0)

    def split(self, shares: Shares, free: Sequence[int]) -> list[range]:
        """The layers of each device. Raises: ShapeError for numbers that do not add up to the model's layers,
        OutOfDeviceMemory for a device without room for one layer."""
        total, at, result = len(self.weights), 0, []
        if len(shares) > total:
            raise ShapeError(f"layers_on: {len(shares)} devices for the {total} layers of {self.where}; give fewer")
        for i, (name, count) in enumerate(shares):
            last, later = i == len(shares) - 1, sum(n or 1 for _, n in shares[i + 1 :])
            if count is None:
                fit = min(self.fitting(at, free[i]), total - at - later)
                count = total - at if last else fit
                if count < 1 and total - at - later >= 1:
                    need = sum(self.need(range(at, at + 1)))
                    raise OutOfDeviceMemory(
                        f"layer {at} of {self.where} needs {need:,} bytes; {name} has {free[i]:,} free: no layer "
                        "fits; leave the device out"
                    )
            result.append(range(at, at + count))
            at += count
        if at != total or any(not layers for layers in result):
            given = ", ".join(name if count is None else f"{name}={count}" for name, count in shares)
            raise ShapeError(f"layers_on {given!r}: {self.where} has {total} layers; expected numbers of that sum")
        return result


def room_of(
    config: LanguageConfig, where: str, nbytes: Mapping[str, int], tables: int, caches: tuple[int, ...]
) -> Room:
    """The room that a model needs, from the bytes of its weights by name and of each layer's caches."""
    layers, before, after, both = [0] * config.layers, 0, 0, 0
    tables += sum(size for name, size in nbytes.items() if name.startswith(SHARED))  # any device may need them
    for name, size in nbytes.items():
        number = layer_of(name) if name.startswith("layers.") else None
        if number is not None:
            layers[number] += size
            continue
        if name.startswith(SHARED):
            continue
        first, tied = name.startswith(_FIRST), name.startswith("embed_tokens.") and config.tied
        before += first * size
        after += (not first or tied) * size
        both += tied * size
    return Room(where, tuple(layers), caches, before, after, tables, both)


def check_room(
    room: Callable[[int], Room], sessions: Sequence[tuple[Session, int | None]], slots: int, context: int, loaded: bool,
    pages: int = 0,
) -> list[range]:  # fmt: skip
    """The layers of each session's device. `room` gives the memory needed for a context; weights that are `loaded` do
    not count. The caches are those of `slots` contexts, or `pages` pages.

    Raises: OutOfDeviceMemory with what is needed, what is free, and what would fit; ShapeError as `Room.split`."""
    r, free = room(context), [session.device.free_bytes() for session, _ in sessions]
    names = [session.info.id for session, _ in sessions]
    layers = r.split([(name, n) for name, (_, n) in zip(names, sessions, strict=True)], free)
    for i, own in enumerate(layers):
        weights, caches = r.need(own, loaded)
        if weights + caches <= free[i]:
            continue
        fit = 0 if loaded else r.fitting(own.start, free[i])
        what = r.where if len(own) == len(r.weights) else f"layers {own.start} to {own.stop - 1} of {r.where}"
        hints = []
        if pages:
            each = caches // pages
            if (most := max(0, free[i] - weights) // each) > pages_for(context):
                hints.append(f"pages={most} would fit")
        elif longest := _longest(room, own, context, loaded, free[i]):
            hints.append(f"context={longest} would fit")
        rest = names[i + 1 :] or [name for name in ("cpu",) if name not in names]
        if fit and rest:
            others = "".join(f",{name}" for name in rest)
            hints.append(f"{fit} of these layers would fit: layers_on='{names[i]}={fit}{others}'")
        elif weights > free[i]:
            hints.append("a file of fewer bits a weight would fit")
        held = f"{pages} pages" if pages else f"{slots} x {context} tokens"
        raise OutOfDeviceMemory(
            f"{what} needs {weights:,} bytes for its weights and {caches:,} for the caches of {held}; {names[i]} has "
            f"{free[i]:,} free: {', or '.join(hints) or 'close other programs of the device'}"
        )
    return layers


def check_lent(config: LanguageConfig, where: str, parts: Sequence[range]) -> None:
    """Checks that no layer attends to keys and values of a layer on another device, or follows the choice of such a
    layer. Raises: ShapeError."""
    a = config.attention
    indexer = a.latent.indexer if a is not None and a.latent is not None else None
    for index, own in ((index, layers) for layers in parts for index in layers):
        if a is not None and a.source(index) not in own:
            raise ShapeError(
                f"layers_on: layer {index} of {where} attends to the keys of layer {a.source(index)}, which is on "
                f"another device; let one device have all layers from {min(a.lent)} on"
            )
        if indexer is not None and indexer.sources[index] not in own:
            raise ShapeError(
                f"layers_on: layer {index} of {where} attends to the tokens that layer {indexer.sources[index]} "
                "chooses, which is on another device; let one device have both"
            )


def check_rooms(
    room: Callable[[int], Room], sessions: Sequence[tuple[Session, int | None]], slots: int, context: int, loaded: bool,
    pages: int = 0,
) -> list[range]:  # fmt: skip
    """The layers of each rank's session: all, since each rank has a part of every layer, whose need `room` gives.
    Several sessions may be on one device. Raises: OutOfDeviceMemory as `check_room`."""
    result: list[range] = []
    for session, _ in sessions:
        beside = sum(other.device is session.device for other, _ in sessions)
        result += check_room(lambda c, n=beside: room(c).times(n), [(session, None)], slots, context, loaded, pages)  # type: ignore[misc]
    return result


def _longest(room: Callable[[int], Room], layers: range, context: int, loaded: bool, free: int) -> int:
    """The longest context that fits into `free` bytes, a multiple of 64; 0 if none does."""
    low, high = 0, context // 64
    while low < high:
        middle = (low + high + 1) // 2
        fits = sum(room(64 * middle).need(layers, loaded)) <= free
        low, high = (middle, high) if fits else (low, middle - 1)
    return 64 * low
