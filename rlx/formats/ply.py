"""Reading and writing .ply files of splats, binary and little endian, with every claim of the header checked.

A header of lines says which elements follow, how many, and their properties; then come the elements' numbers without
gaps. Files are untrusted: what the header promises is compared with the size of the file before anything is read.
Follows Turk, "The PLY Polygon File Format", 1994; the properties are those of Kerbl et al.'s files.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from rlx.errors import DTypeError, ModelFormatError, ShapeError
from rlx.formats.files import open_regular, shown, written_whole
from rlx.host.other_attributes import explain

Array = npt.NDArray[Any]

MAX_HEADER_BYTES = 1 << 16
MAX_DIGITS = 15  # digits of a number of elements
_TYPES = {
    "char": "i1", "int8": "i1", "uchar": "u1", "uint8": "u1", "short": "<i2", "int16": "<i2", "ushort": "<u2",
    "uint16": "<u2", "int": "<i4", "int32": "<i4", "uint": "<u4", "uint32": "<u4", "float": "<f4", "float32": "<f4",
    "double": "<f8", "float64": "<f8",
}  # fmt: skip
_REQUIRED = [
    "x", "y", "z", "opacity", *(f"scale_{i}" for i in range(3)), *(f"rot_{i}" for i in range(4)),
    *(f"f_dc_{i}" for i in range(3)),
]  # fmt: skip
_RESTS = (0, 9, 24, 45)  # coefficients after the first, over three colours, for degrees 0 to 3


class Splats(NamedTuple):
    """Splats as `rlx.splats.render` takes them, in f32: means (n, 3), scales (n, 3), rotations (n, 4), opacities (n,),
    colors (n, k, 3)."""

    means: Array
    scales: Array
    rotations: Array
    opacities: Array
    colors: Array


explain(Splats)


def read_ply(path: str | os.PathLike[str]) -> Splats:
    """The splats of a .ply file. Files hold logarithms of scales and logits of opacities, which are converted to scales
    and opacities; rotations are returned as stored. Properties that do not belong to splats are skipped.

    Raises: ModelFormatError for a file that is damaged, is of another kind, or lacks a property.
    """
    path = path_of("read_ply", path)
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        rows = _rows(file, size, path)
    names = rows.dtype.names or ()
    missing = [name for name in _REQUIRED if name not in names]
    if missing:
        raise ModelFormatError(
            f"{path}: its vertices lack the properties {', '.join(missing)}: these are no splats"
        )
    rest = sum(name.startswith("f_rest_") for name in names)
    if rest not in _RESTS or any(f"f_rest_{i}" not in names for i in range(rest)):
        raise ModelFormatError(
            f"{path}: {rest} properties f_rest_*; expected {', '.join(map(str, _RESTS))} of them, from 0"
        )

    def columns(stem: str, count: int) -> Array:
        result = np.empty((len(rows), count), np.float32)
        with np.errstate(over="ignore"):
            for i in range(count):
                result[:, i] = rows[f"{stem}{i}"]
        return result

    with np.errstate(all="ignore"):
        dc, others = columns("f_dc_", 3), columns("f_rest_", rest)
        return Splats(
            np.stack([rows[c].astype(np.float32) for c in "xyz"], axis=1),
            np.exp(columns("scale_", 3).astype(np.float64)).astype(np.float32),
            columns("rot_", 4),
            (1 / (1 + np.exp(-rows["opacity"].astype(np.float64)))).astype(np.float32),
            # All coefficients of one colour are adjacent.
            np.concatenate([dc[:, None], others.reshape(len(rows), 3, rest // 3).transpose(0, 2, 1)], axis=1),
        )


def write_ply(
    path: str | os.PathLike[str], means: Any, scales: Any, rotations: Any, opacities: Any, colors: Any
) -> None:
    """Writes splats, as `rlx.splats.render` takes them, whole or not at all. Files hold coefficients of harmonics: of
    plain colors (n, 3) that of degree 0, which gives the same colour.

    A scale of 0 and an opacity of 0 or 1 become infinities, which `read_ply` reads back as they were. A scale below 0
    is written as its absolute value, of which `render` draws the same.
    Raises: ShapeError for arrays that are no splats, for opacities outside [0, 1], and for plain colors below 0;
    DTypeError; OSError.
    """
    arrays = splat_arrays("write_ply", means, scales, rotations, opacities, colors, plain=True)
    place, sizes, turns, covers, coefficients = arrays
    if coefficients.ndim == 2:
        if (coefficients < 0).any():
            raise ShapeError(f"write_ply: colors go down to {np.nanmin(coefficients):g}; harmonics give none below 0")
        coefficients = (coefficients[:, None] - 0.5) * np.sqrt(4 * np.pi)
    if not ((covers >= 0) & (covers <= 1)).all():
        raise ShapeError(
            f"write_ply: the opacities go from {np.nanmin(covers):g} to {np.nanmax(covers):g}; expected numbers from 0 "
            "to 1, since files hold their logits"
        )
    n, k = coefficients.shape[:2]
    rest = 3 * (k - 1)
    names = ["x", "y", "z", "nx", "ny", "nz"]
    names += [*(f"f_dc_{i}" for i in range(3)), *(f"f_rest_{i}" for i in range(rest))]
    names += ["opacity", *(f"scale_{i}" for i in range(3)), *(f"rot_{i}" for i in range(4))]
    with np.errstate(all="ignore"):
        logits = np.log(covers) - np.log1p(-covers)
        columns = [
            place,
            np.zeros((n, 3)),
            coefficients[:, 0],
            coefficients[:, 1:].transpose(0, 2, 1).reshape(n, rest),
        ]
        table = np.concatenate([*columns, logits[:, None], np.log(np.abs(sizes)), turns], axis=1).astype("<f4")
    lines = [
        "ply",
        "format binary_little_endian 1.0",
        f"element vertex {n}",
        *(f"property float {k}" for k in names),
    ]
    with written_whole(path_of("write_ply", path)) as file:
        file.write("".join(f"{line}\n" for line in (*lines, "end_header")).encode("ascii"))
        file.write(table.tobytes())


def splat_arrays(
    what: str, means: Any, scales: Any, rotations: Any, opacities: Any, colors: Any, plain: bool = False
) -> tuple[Array, Array, Array, Array, Array]:
    """The arrays of splats in float64; `plain` takes colors (n, 3) too. Raises: ShapeError, DTypeError."""
    arrays = []
    arguments = {"means": means, "scales": scales, "rotations": rotations, "opacities": opacities, "colors": colors}
    for name, values in arguments.items():
        try:
            arrays.append(np.asarray(values))
        except ValueError as error:  # lists of unequal lengths
            raise ShapeError(f"{what}: {name} are lists of unequal lengths; expected an array") from error
    n, hues = len(arrays[0]) if arrays[0].ndim else 0, arrays[4].shape
    expected = [(n, 3), *([(n, k, 3) for k in (1, 4, 9, 16)])][0 if plain else 1 :]
    if [a.shape for a in arrays[:4]] != [(n, 3), (n, 3), (n, 4), (n,)] or hues not in expected:
        raise ShapeError(
            f"{what}: the arrays are {', '.join(str(a.shape) for a in arrays)}; expected (n, 3), (n, 3), (n, 4), "
            f"(n,) and {'(n, 3) or ' if plain else ''}(n, k, 3) with k of 1, 4, 9 or 16"
        )
    if any(a.dtype.kind not in "fiu" for a in arrays):
        raise DTypeError(f"{what}: the arrays are {', '.join(str(a.dtype) for a in arrays)}; expected floats")
    place, sizes, turns, covers, coefficients = (a.astype(np.float64) for a in arrays)
    return place, sizes, turns, covers, coefficients


def path_of(what: str, path: Any) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise ModelFormatError(f"{what}: path is {path!r:.60}; expected a path, as in {what}('splats.ply')")
    return Path(path)


def _rows(file: BinaryIO, size: int, path: Path) -> Array:
    """The vertices of a file, whose size is what the header says."""
    text = file.read(min(size, MAX_HEADER_BYTES))
    head, marker, _ = text.partition(b"\nend_header\n")
    if not text.startswith(b"ply\n") or not marker:
        raise ModelFormatError(
            f"{path}: does not begin with a header of a .ply file: 'ply', and 'end_header' within "
            f"{MAX_HEADER_BYTES:,} bytes"
        )
    elements = _elements(head.decode("latin-1").split("\n")[1:], path)
    start, vertices = len(head) + len(marker), None
    need = start
    for name, count, dtype in elements:
        if name == "vertex":
            vertices = need, count, dtype
        need += count * dtype.itemsize
    if need != size:
        raise ModelFormatError(f"{path}: the header describes {need:,} bytes; the file has {size:,}")
    if vertices is None:
        raise ModelFormatError(f"{path}: has no element 'vertex'")
    at, count, dtype = vertices
    file.seek(at)
    content = file.read(count * dtype.itemsize)
    if len(content) != count * dtype.itemsize:
        raise ModelFormatError(f"{path}: changed its size while it was read")
    return np.frombuffer(content, dtype) if content else np.zeros(count, dtype)


def _elements(lines: list[str], path: Path) -> list[tuple[str, int, np.dtype[Any]]]:
    """The elements of a header: name, number, and the type of one."""

    def wrong(line: str, what: str) -> NoReturn:
        raise ModelFormatError(f"{path}: the header's line {shown(line)}: {what}")

    elements: list[tuple[str, int, list[tuple[str, str]]]] = []
    formats = 0
    for line in lines:
        words = line.split()
        match words:
            case ["comment" | "obj_info", *_]:
                continue
            case ["format", *kind]:
                formats += 1
                if kind != ["binary_little_endian", "1.0"] or formats > 1:
                    wrong(line, "expected once, as 'format binary_little_endian 1.0'")
            case ["element", name, count]:
                if not (count.isascii() and count.isdigit() and len(count) <= MAX_DIGITS):
                    wrong(line, "expected a number of elements")
                if any(name == other for other, _, _ in elements):
                    wrong(line, "this element stands twice")
                elements.append((name, int(count), []))
            case ["property", kind, name]:
                if kind not in _TYPES:
                    wrong(line, f"the type is none of {', '.join(_TYPES)}")
                if not elements:
                    wrong(line, "it belongs to no element")
                if any(name == other for other, _ in elements[-1][2]):
                    wrong(line, "this property stands twice")
                elements[-1][2].append((name, _TYPES[kind]))
            case _:
                wrong(line, "not understood; lists are no part of splats")
    if not formats:
        raise ModelFormatError(f"{path}: the header has no line 'format binary_little_endian 1.0'")
    bare = [name for name, count, fields in elements if count and not fields]
    if bare:
        raise ModelFormatError(f"{path}: element {shown(bare[0])} has no properties")
    return [(name, count, np.dtype(fields)) for name, count, fields in elements]
