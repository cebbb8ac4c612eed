"""The repository's address, which pyproject.toml has in one place, and links into the repository."""

from __future__ import annotations

import posixpath
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
UNKNOWN = "links into the repository are left out: its address, `repository` in pyproject.toml ([tool.rlx]), is empty"
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\((?![a-z]+:|[#/])([^)#\s]+)(#[^)\s]*)?\)")


def repository() -> str:
    """The address, or "" where it is not known."""
    with open(ROOT / "pyproject.toml", "rb") as file:
        address: str = tomllib.load(file)["tool"]["rlx"]["repository"]
    return address.rstrip("/")


def linked(text: str, folder: str, source: str) -> str:
    """Markdown of a page in a folder of the repository whose address is `source`: its links to files are addresses;
    without an address, their words alone."""

    def link(match: re.Match[str]) -> str:
        picture, words, file, section = match.groups(default="")
        path = posixpath.normpath(posixpath.join(folder, file))
        if not (ROOT / path).exists():
            return match[0]
        place = f"{source}/{'raw' if picture else 'blob'}/HEAD/{path}{section}"
        return f"{picture}[{words}]({place})" if source else words

    return _LINK.sub(link, text)
