"""The arrays of a model folder checked against the weights that a model expects, with every difference named at
once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.errors import ModelFormatError
from rlx.formats.files import shown
from rlx.packed import PackedArray

Floats = npt.NDArray[np.float32]
_ADDED = ("position_embeddings.weight", "token_type_embeddings.weight")  # tables whose rows are sliced
_NUMBER = re.compile(r"\.\d+\.")
_NO_NAMES: Mapping[str, str] = {}
_MAX_NAMED = 200  # differences named in one message; the others are counted


def file_names(
    wanted: Iterable[str], tensors: Iterable[str], prefix: str = "", aliases: Mapping[str, str] = _NO_NAMES
) -> dict[str, str]:
    """The name in files of each wanted weight that they hold: with or without `prefix`, else by an alias."""
    bare = {name.removeprefix(prefix): name for name in tensors}
    ways = ((name, (name, aliases.get(name))) for name in wanted)
    return {name: bare[way] for name, each in ways if (way := next((w for w in each if w in bare), None)) is not None}


def match_weights(
    wanted: Mapping[str, tuple[int, ...]],
    tensors: Mapping[str, Any],
    where: str,
    prefix: str = "",
    unused: tuple[str, ...] = (),
    aliases: Mapping[str, str] = _NO_NAMES,
) -> dict[str, Any]:
    """The wanted arrays as f32, packed products and words as they are; names in the files may begin with `prefix`, and
    may be `aliases`. The files may also hold names that begin with one of `unused`, in which "#" is the number of a
    layer, and aliases beside the weights.

    Raises: ModelFormatError naming every weight that is missing, extra, present twice, of a wrong shape or not a float.
    """
    found = file_names(wanted, tensors, prefix, aliases)
    seen, aside = set[str](), set(aliases.values())
    problems = []
    for original in tensors:
        name = original.removeprefix(prefix)
        if name in wanted and name in seen:
            problems.append(f"{shown(name)} stands there with and without {prefix!r}")
        elif name not in wanted and name not in aside and not _NUMBER.sub(".#.", name).startswith(unused):
            problems.append(f"extra {shown(original)}")
        seen.add(name)
    result: dict[str, Any] = {}
    for name, shape in wanted.items():
        if name not in found:
            problems.append(f"missing {name!r} {shape}")
            continue
        array = tensors[found[name]]
        if array.shape != shape:
            problems.append(f"{name!r} has shape {array.shape}, expected {shape}")
        elif isinstance(array, PackedArray):
            result[name] = array if array.ndim == 2 and not name.endswith(_ADDED) else array.dequantize()
        elif array.dtype.name not in ("float32", "float16", "bfloat16"):
            problems.append(f"{name!r} has dtype {array.dtype}, expected f32, f16 or bf16")
        else:
            result[name] = array.astype(np.float32, copy=False)
    if problems:
        rest = len(problems) - _MAX_NAMED
        listed = problems[:_MAX_NAMED] + ([f"and {rest} more"] if rest > 0 else [])
        raise ModelFormatError(f"{where}: the weights do not fit config.json: {'; '.join(listed)}")
    return result
