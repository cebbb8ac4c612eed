"""Files and folders that commands write, looked at before the work whose results would be lost."""

from __future__ import annotations

import os
from pathlib import Path

from rlx.errors import RlxError


def check_file(option: str, file: Path | None) -> None:
    """Raises: RlxError for a file that cannot be written: a folder has its name, or its folder is missing or closed."""
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
    """Raises: RlxError for a folder that cannot be made or written into."""
    if folder is None:
        return
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise RlxError(f"{option}: {folder} cannot be written: {there} is a file")
    if not os.access(there, os.W_OK):
        raise RlxError(f"{option}: {folder} cannot be written: this user may not write into {there}")
