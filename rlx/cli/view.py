"""`rlx view`: a page for browsers that shows the splats of a .ply file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlx.cli.outputs import check_file
from rlx.errors import RlxError


def view(
    file: Annotated[Path, typer.Argument(help="A .ply file of splats.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The page. Default: the file's name with .html, here.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a page that is there.")] = False,
) -> None:
    """Write a page that shows the splats of a .ply file, for any browser with WebGL 2, and offline too."""
    from rlx.formats.ply import read_ply
    from rlx.formats.splats_page import write_page

    splats = read_ply(file)
    page = Path(f"{file.stem}.html") if out is None else out
    check_file("--out", page, ".html")
    if page.exists() and not force:
        raise RlxError(f"view: {page} exists already; --force replaces it")
    write_page(page, *splats, title=file.name)
    print(f"{page}: {len(splats.means):,} splats, {page.stat().st_size:,} bytes; open it in a browser")
