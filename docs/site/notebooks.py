"""python docs/site/notebooks.py FOLDER: the tutorials as Jupyter notebooks, their commands as cells of the shell."""

from __future__ import annotations

import sys
from pathlib import Path

import jupytext
from reference import DOCS, SOURCE, linked, say_unknown


def main(folder: Path) -> None:
    say_unknown()
    folder.mkdir(parents=True, exist_ok=True)
    for page in sorted((DOCS / "tutorials").glob("*.md")):
        text = linked(page.read_text("utf-8"), "docs/tutorials", SOURCE)  # a notebook is opened anywhere
        jupytext.write(jupytext.reads(text, fmt="md"), folder / f"{page.stem}.ipynb")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
