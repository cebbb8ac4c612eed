"""A stamp of rlx's own sources, so that cached results of other versions of them are not used."""

from __future__ import annotations

import os
from functools import cache

from rlx.host.digest import sha256

_ROOT = os.path.dirname(os.path.dirname(__file__))


@cache
def stamp(*folders: str) -> bytes:
    """A digest of the places, sizes and times of the sources in these folders of rlx, such as "backends/cpu", and of
    the files beside its folders. Reading the sources would take ten times as long; Python uses the same data to tell
    whether its bytecode is stale."""
    listed: list[str] = []
    left = [_ROOT, *(os.path.join(_ROOT, *folder.split("/")) for folder in folders)]
    while left:
        folder = left.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                name = entry.name
                if name.endswith((".py", ".h", ".json", ".pack")):
                    status = entry.stat()
                    listed.append(f"{entry.path}\0{status.st_size}\0{status.st_mtime_ns}")
                elif folder != _ROOT and "." not in name and name != "__pycache__" and entry.is_dir():
                    left.append(entry.path)
    return sha256("\n".join(sorted(listed)).encode("utf-8", "surrogateescape")).digest()
