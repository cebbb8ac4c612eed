"""python docs/site/notebooks.py FOLDER: the tutorials as Jupyter notebooks, their commands as cells of the shell."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import jupytext
from reference import DOCS, SOURCE


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for page in sorted((DOCS / "tutorials").glob("*.md")):
        text = re.sub(r"\]\((\.\./(?:\.\./)?)([^)]*)\)", lambda m: f"]({_address(m[1], m[2])})", page.read_text("utf-8"))
        jupytext.write(jupytext.reads(text, fmt="md"), folder / f"{page.stem}.ipynb")


def _address(up: str, place: str) -> str:
    """Of a link that leaves the tutorials, since a notebook is opened anywhere."""
    return f"{SOURCE}/{'raw' if place.endswith(('.svg', '.png')) else 'blob'}/HEAD/{'' if up == '../../' else 'docs/'}{place}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
