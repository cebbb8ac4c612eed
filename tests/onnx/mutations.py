"""Mutants: sound models damaged in ways that a seed decides. The same seed is the same file."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tests.onnx import mutant_fields as fields
from tests.onnx import mutant_nodes as nodes
from tests.onnx.mutant_bases import some_base, whole
from tests.onnx.mutant_bombs import BOMBS
from tests.onnx.mutant_fields import NUMBERS, Rng

Change = Callable[[onnx.ModelProto, Rng], Any]
CHANGES: dict[str, Change] = {
    f.__name__: f
    for f in (
        fields.dims, fields.lengths, fields.element_types, fields.values, nodes.names, nodes.listed,
        nodes.order, nodes.cycle, nodes.copies, nodes.removed, nodes.operators, nodes.versions, nodes.attribute_values,
        nodes.attribute_types, nodes.attribute_names, fields.ranks, fields.kinds_of_type, fields.sparse, nodes.calls,
        nodes.spliced,
    )
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """What was done to which model, and the file that came of it; `lay` puts other files beside it, `budget` is the
    `max_bytes` that it is loaded with."""

    kind: str
    base: str
    content: bytes
    lay: Callable[[Path], None] | None = None
    budget: int | None = None


def mutant(seed: int) -> Mutant:
    """The mutant of a seed: the first ones cut the smallest model at each of its bytes."""
    if seed < len(whole("tiny")):
        return Mutant("cut at every byte", "tiny", whole("tiny")[:seed])
    rng = Rng(seed)
    draw = rng.random()
    if draw < 0.25:
        base = some_base(rng)
        return Mutant("bytes", base, damaged(whole(base), rng))
    if draw < 0.33:
        return outside(rng)
    if draw < 0.38:
        name, made = rng.choice(list(BOMBS.items()))
        return Mutant(name, "bomb", made(rng))
    base = some_base(rng)
    model = onnx.ModelProto.FromString(whole(base))
    names = rng.choices(list(CHANGES), k=rng.choice((1, 1, 1, 2, 3)))
    for name in names:
        CHANGES[name](model, rng)
    content = model.SerializeToString()
    return Mutant(names[0], base, damaged(content, rng) if rng.random() < 0.05 else content)


def damaged(content: bytes, rng: Rng) -> bytes:
    """Bytes changed, put in, taken out, copied from elsewhere, cut off."""
    made = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        at = rng.randrange(len(made) or 1)
        match rng.randrange(7):
            case 0:
                made[at : at + 1] = bytes([rng.randrange(256)])
            case 1 if made:
                made[at] ^= 1 << rng.randrange(8)
            case 2:
                made[at:at] = rng.randbytes(rng.randrange(1, 9))
            case 3:
                del made[at : at + rng.randrange(1, 9)]
            case 4:
                start = rng.randrange(len(made) or 1)
                made[at:at] = made[start : start + rng.randrange(1, 40)]
            case 5:
                made[at:at] = b"\xff" * rng.randrange(1, 10) + b"\x01"  # a number of many bytes
            case _:
                del made[rng.randrange(len(made) + 1) :]
    return bytes(made)


def outside(rng: Rng) -> Mutant:
    """External data that leads elsewhere, lies about its length, or is no plain file."""
    model = onnx.ModelProto.FromString(whole("outside"))
    entries = {e.key: e for e in model.graph.initializer[0].external_data}
    places = (
        "weights.bin", "../secret", "/etc/passwd", "link", "hard", "folder/weights.bin", "inside/weights.bin", "pipe",
        "absent", "", ".", "..", "a\\b", "weights.bin\0", "./weights.bin", "inside/../weights.bin", "~/x", "a" * 5000,
        "mutant.onnx", "/dev/zero", "inside",
    )  # fmt: skip
    match rng.randrange(4):
        case 0 | 1:
            entries["location"].value = rng.choice(places)
        case 2:
            number = rng.choice((*map(str, NUMBERS), "", "x", "0x10", " 8", "9" * 40, "+8", "٣"))
            entries[rng.choice(("offset", "length"))].value = number
        case _:
            change = rng.choice((fields.dims, fields.element_types, fields.lengths, fields.ranks))
            change(model, rng)
    if rng.random() < 0.2:
        model.graph.initializer[0].external_data.add(
            key=rng.choice(("location", "checksum", "else")), value="x"
        )
    return Mutant("external data", "outside", model.SerializeToString(), lay)


def lay(folder: Path) -> None:
    """The files that mutants of external data point to."""
    content = np.arange(8, dtype=np.float32).tobytes()
    (folder / "weights.bin").write_bytes(content)
    (folder.parent / "secret").write_bytes(content)
    (folder / "inside").mkdir(exist_ok=True)
    (folder / "inside" / "weights.bin").write_bytes(content)
    for name, make in (
        ("link", lambda p: os.symlink(folder.parent / "secret", p)),
        ("hard", lambda p: os.link(folder.parent / "secret", p)),
        ("folder", lambda p: os.symlink(folder.parent, p)),
        ("pipe", os.mkfifo),
    ):
        if not (folder / name).is_symlink() and not (folder / name).exists():
            make(folder / name)
