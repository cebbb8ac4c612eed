"""Sphinx's settings: `make docs` builds the site into .cache/docs."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE / "site")]

import reference  # noqa: E402 - of this folder

_project = tomllib.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
project, version = _project["name"], _project["version"]
release, author, copyright = version, "The rlx authors", "The rlx authors, Apache-2.0"
extensions = ["myst_parser"]
myst_heading_anchors = 3
exclude_patterns = ["site"]
html_static_path, html_css_files = ["site/static"], ["site.css"]
html_extra_path = ["generated/live"]  # pages of their own
# Annotations are shown as they are written; those of the type checker's own names would be links to nowhere.
python_use_unqualified_type_names = True
python_display_short_literal_types = True
html_theme, html_title = "furo", f"{project} {version}"
highlight_language = "text"  # of blocks that name none: what programs print
smartquotes_action = "q"  # two dashes are those of options
html_show_sphinx, html_copy_source = False, False


def _rewrite(app: Any, name: str, source: list[str]) -> None:
    source[0] = reference.rewritten(source[0], (HERE / name).parent)


def _write_splats(folder: Path) -> None:
    """The page of the gallery's splats, which examples/splats.py has learned."""
    import rlx
    from examples.splats import BACKGROUND, CAMERA

    folder.mkdir(parents=True, exist_ok=True)
    splats = rlx.splats.read_ply(HERE / "site/splats.ply")
    title = "Splats that learned a picture"
    rlx.splats.write_page(folder / "learned-splats.html", *splats, camera=CAMERA, background=BACKGROUND, title=title)


def setup(app: Any) -> None:
    reference.say_unknown()
    reference.write()
    _write_splats(HERE / "generated/live")
    # Part of each page's links, so that all are read again where it changes.
    app.add_config_value("repository", reference.SOURCE, "env")
    app.connect("source-read", _rewrite)
