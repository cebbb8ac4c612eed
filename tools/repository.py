"""The repository's address, which pyproject.toml has in one place, and whether it is one."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def repository() -> str:
    """The address, of which the package's links, those of the site and of notebooks are made."""
    with open(ROOT / "pyproject.toml", "rb") as file:
        address: str = tomllib.load(file)["tool"]["rlx"]["repository"]
    return address


def placeholder(address: str) -> str:
    """What is wrong with an address on a host that cannot be (RFC 2606); "" for any other."""
    host = address.split("/")[2].partition(":")[0]
    if not re.search(r"(^|\.)(example|invalid|test|localhost|example\.(com|net|org))$", host):
        return ""
    return (
        f"the repository's address is a placeholder, {address}, to which the links of the package and the pages lead: "
        "set `repository` in pyproject.toml ([tool.rlx]) before a release (CONTRIBUTING.md, To release)"
    )
