"""Reading the files of a model folder: names that cannot lead out of it, and JSON objects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlx.errors import ModelFormatError
from rlx.host.files import OBJECT_BYTES as OBJECT_BYTES
from rlx.host.files import beginning as beginning
from rlx.host.files import begins_with as begins_with
from rlx.host.files import folder_made_whole as folder_made_whole
from rlx.host.files import json_bytes as json_bytes
from rlx.host.files import left_behind as left_behind
from rlx.host.files import open_regular as open_regular
from rlx.host.files import parse_json as parse_json
from rlx.host.files import plain as plain
from rlx.host.files import read_bytes as read_bytes
from rlx.host.files import shown as shown
from rlx.host.files import written_whole as written_whole

MAX_NAME_CHARACTERS = 255
MAX_JSON_BYTES = 16_000_000  # a config has a few thousand


def read_json(path: Path, limit: int = MAX_JSON_BYTES, per_byte: int = 0, infinity: bool = False) -> dict[str, Any]:
    """The JSON object in a file of at most `limit` bytes; its objects may take `OBJECT_BYTES` and `per_byte` more for
    each byte of the file. `infinity` as in `parse_json`.

    Raises: ModelFormatError.
    """
    text = read_bytes(path, limit)
    return check_object(parse_json(text, path, OBJECT_BYTES + per_byte * len(text), infinity), path)


def check_object(value: Any, path: Path) -> dict[str, Any]:
    """`value` itself. Raises: ModelFormatError when it is not a JSON object."""
    if not isinstance(value, dict):
        raise ModelFormatError(f"{path}: the JSON is a {type(value).__name__}, expected an object")
    return value


def file_inside(folder: Path, name: object, where: Path) -> Path:
    """The path of a file that a model's own file `where` names: it must be directly in `folder`, and no link out of it.

    In a Hugging Face cache a snapshot's files are links into the `blobs` folder beside it: these are followed.
    Raises: ModelFormatError.
    """
    refused = ModelFormatError(f"{where}: {shown(name)} is not a name inside the model's folder")
    if not isinstance(name, str) or name in ("", ".", "..") or any(c in name for c in "/\\"):
        raise refused
    if not name.isprintable() or len(name) > MAX_NAME_CHARACTERS:  # messages show the path as it is
        raise refused
    path = folder / name
    try:
        root, real = folder.resolve(), path.resolve()
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: a link that leads to itself
        raise refused from error
    roots = [root] + ([root.parent.parent / "blobs"] if root.parent.name == "snapshots" else [])
    if not any(real.is_relative_to(r) for r in roots):
        raise refused
    return path
