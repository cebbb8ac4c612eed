"""`rlx convert`: a Hugging Face folder of a language model as a GGUF file, or a GGUF file as such a folder."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from rlx.cli.gguf import is_gguf
from rlx.errors import RlxError
from rlx.host.progress import drawn


@contextmanager
def _terminated() -> Iterator[None]:
    """Within this context, SIGTERM and SIGHUP end the command by SystemExit, so that no temporary file stays."""

    def end(number: int, _: object) -> None:
        print(f"rlx: {signal.Signals(number).name}: stopped; nothing is written", file=sys.stderr)
        sys.exit(128 + number)

    before = {}
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) == signal.SIG_DFL:
            before[number] = signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def convert(
    source: Annotated[Path, typer.Argument(help="A Hugging Face folder, or a GGUF file.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The GGUF file, or the new folder.")],
    to: Annotated[
        str | None,
        typer.Option(
            help="Of matrices: F32, F16, BF16, in a GGUF file also Q8_0, Q4_K … Default: as they are, in a folder F16."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a GGUF file that is there.")] = False,
) -> None:
    """Convert a language model's folder to a GGUF file, or a GGUF file to a folder. Neither appears before it is
    whole, and a file that is there already stays unless --force says otherwise."""
    from rlx.formats.files import left_behind
    from rlx.formats.gguf import read
    from rlx.formats.gguf.to_folder import gguf_to_folder
    from rlx.models.language.written import folder_to_gguf

    if not source.exists():
        raise RlxError(f"{source} does not exist; give a Hugging Face folder, or a GGUF file")
    if not (source.is_dir() or is_gguf(source)):
        raise RlxError(f"{source} is no GGUF file; give one, or the folder of config.json and the weights")
    for left in left_behind(output):
        print(f"rlx: {left} was left by a conversion that was killed; it may be deleted", file=sys.stderr)
    try:
        with _terminated(), drawn(source.name):
            if source.is_dir():
                if output.is_dir() or (output.exists() and not force):
                    what = "is a folder" if output.is_dir() else "exists already; --force replaces it"
                    raise RlxError(f"{output} {what}; give the name of a new GGUF file")
                for note in folder_to_gguf(source, output, to and to.lower()):
                    print(f"rlx: {note}", file=sys.stderr)
            else:
                if output.exists():
                    more = "; --force replaces GGUF files alone" if force else ""
                    raise RlxError(f"{output} exists already; give the name of a new folder{more}")
                with read(source) as file:
                    gguf_to_folder(file, output, (to or "f16").lower())
    except RlxError:  # of a file that is missing too, which is an OSError
        raise
    except OSError as error:
        raise RlxError(f"{error.filename or output}: cannot be written: {error.strerror or error}") from error
    size = sum(f.stat().st_size for f in output.iterdir()) if output.is_dir() else output.stat().st_size
    print(f"{output}: {size:,} bytes")
