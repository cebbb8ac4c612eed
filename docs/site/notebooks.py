"""python docs/site/notebooks.py FOLDER: the tutorials as Jupyter notebooks, their commands as cells of the shell."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import jupytext
from reference import DOCS, SOURCE, say_placeholder


def main(folder: Path) -> None:
    say_placeholder()
    folder.mkdir(parents=True, exist_ok=True)
    for page in sorted((DOCS / "tutorials").glob("*.md")):
        text = re.sub(r"\]\(((?:\.\./)*)([^):]*)\)", _address, page.read_text("utf-8"))
        jupytext.write(jupytext.reads(text, fmt="md"), folder / f"{page.stem}.ipynb")


def _address(link: re.Match[str]) -> str:
    """A link to a file as the address of that file, since a notebook is opened anywhere."""
    folder = {"": "docs/tutorials/", "../": "docs/", "../../": ""}[link[1]]
    return f"]({SOURCE}/{'raw' if link[2].endswith(('.svg', '.png')) else 'blob'}/HEAD/{folder}{link[2]})"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
