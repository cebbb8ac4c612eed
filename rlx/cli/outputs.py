"""Files and folders that commands write, looked at before the work whose results would be lost."""

from __future__ import annotations

import os
from pathlib import Path

from rlx.errors import RlxError

# Endings of names that mean a format.
_FORMATS = frozenset(
    ".bin .csv .gguf .html .jpg .json .md .npy .npz .onnx .parquet .pdf .png .pt .rlx .safetensors .svg .tsv .txt .xml "
    ".yaml .zip".split()
)


def check_name(option: str, path: Path | None, *suffixes: str) -> None:
    """Raises: RlxError for -, which is no standard output here, and, where the suffixes of what is written are given,
    for a name whose suffix means another format."""
    if path is None:
        return
    if str(path) == "-":
        raise RlxError(f"{option} -: nothing is written to standard output so; give a name, such as "
                       f"out{suffixes[0] if suffixes else ''}")  # fmt: skip
    suffix = path.suffix.lower()
    if suffixes and suffix in _FORMATS and suffix not in suffixes:
        raise RlxError(f"{option} {path}: what is written is {' or '.join(suffixes)}, not {suffix}: name it "
                       f"{path.with_suffix(suffixes[0]).name}")  # fmt: skip


def check_file(option: str, file: Path | None, *suffixes: str) -> None:
    """Raises: RlxError for a file that cannot be written: a folder has its name, or its folder is missing or closed;
    and as `check_name`."""
    check_name(option, file, *suffixes)
    if file is None:
        return
    if file.is_dir():
        why = "a folder has this name"
    elif not file.parent.is_dir():
        why = f"there is no folder {file.parent}"
    elif not os.access(file if file.exists() else file.parent, os.W_OK):
        why = "this user may not write there"
    else:
        return
    raise RlxError(f"{option}: {file} cannot be written: {why}")


def check_folder(option: str, folder: Path | None) -> None:
    """Raises: RlxError for a folder that cannot be made or written into, and as `check_name`."""
    check_name(option, folder)
    if folder is None:
        return
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise RlxError(f"{option}: {folder} cannot be written: {there} is a file")
    if not os.access(there, os.W_OK):
        raise RlxError(f"{option}: {folder} cannot be written: this user may not write into {there}")
