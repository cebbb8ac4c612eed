"""`rlx convert`: a Hugging Face folder of a language model as a GGUF file, a GGUF file as such a folder, or in other
types."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from rlx.cli.gguf import is_gguf
from rlx.errors import RlxError
from rlx.host.progress import drawn

T = TypeVar("T")


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


def _mixed(folder: Path, output: Path, mixture: str) -> list[str]:
    """Writes a folder as a GGUF file in a mixture of types, by way of a temporary file with the weights unchanged."""
    from tempfile import TemporaryDirectory

    from rlx.formats.gguf import read
    from rlx.formats.gguf.requantize import requantize
    from rlx.models.language.written import folder_to_gguf

    with TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as beside:
        plain = Path(beside) / "plain.gguf"
        notes = folder_to_gguf(folder, plain)
        with read(plain) as file:
            return [*notes, *requantize(file, output, mixture)]


def _one_of(word: T | None, option: T | None, name: str) -> T | None:
    """The value given as a word or by an option. Raises: RlxError if both are given."""
    if word is not None and option is not None:
        raise RlxError(f"convert: {word}, and {name} {option}: give one of them")
    return word if option is None else option


def convert(
    source: Annotated[Path, typer.Argument(help="A Hugging Face folder, or a GGUF file.")],
    target: Annotated[
        Path | None, typer.Argument(metavar="OUTPUT", help="The GGUF file, or the new folder.", show_default=False)
    ] = None,
    kind: Annotated[
        str | None, typer.Argument(metavar="TYPE", help="As --to, as llama.cpp's commands take it.", show_default=False)
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", "--outfile", help="In place of the second word.")
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to", "--outtype",
            help="Of matrices: F32, F16, BF16, in a GGUF file also Q8_0, Q4_K …, or llama.cpp's mixtures Q4_K_M, "
            "Q5_K_M, Q4_K_S, Q5_K_S. Default: as they are, in a folder F16."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a GGUF file that is there.")] = False,
) -> None:
    """Convert a language model's folder to a GGUF file, or a GGUF file to a folder, or to a GGUF file of other types:
    where --to is a packed type, or the output's name ends in .gguf. None appears before it is whole, and a file that is
    there already stays unless --force says otherwise."""
    from rlx.formats.files import left_behind
    from rlx.formats.gguf import read
    from rlx.formats.gguf.convert import FLOATS
    from rlx.formats.gguf.requantize import MIXTURES, requantize
    from rlx.formats.gguf.to_folder import gguf_to_folder
    from rlx.models.language.written import folder_to_gguf

    output, to = _one_of(target, output, "--output"), _one_of(kind, to, "--to")
    if not source.exists():
        raise RlxError(f"{source} does not exist; give a Hugging Face folder, or a GGUF file")
    if not (source.is_dir() or is_gguf(source)):
        raise RlxError(f"{source} is no GGUF file; give one, or the folder of config.json and the weights")
    if output is None:
        raise RlxError(f"convert: no output; rlx convert {source} -o model.gguf names the file to write")
    for left in left_behind(output):
        print(f"rlx: {left} was left by a conversion that was killed; it may be deleted", file=sys.stderr)
    try:
        with _terminated(), drawn(source.name):
            packed = to is not None and to.lower() not in FLOATS
            if source.is_dir() or packed or output.suffix == ".gguf":
                if output.is_dir() or (output.exists() and not force):
                    what = "is a folder" if output.is_dir() else "exists already; --force replaces it"
                    raise RlxError(f"{output} {what}; give the name of a new GGUF file")
                if output.exists() and output.samefile(source):
                    raise RlxError(f"{output} is the file to read; give another name")
                if not source.is_dir():
                    if to is None:
                        raise RlxError(f"{source} is a GGUF file already; --to says which types the other one has")
                    with read(source) as file:
                        notes = requantize(file, output, to)
                elif to is not None and to.lower() in MIXTURES:
                    notes = _mixed(source, output, to)
                else:
                    notes = folder_to_gguf(source, output, to and to.lower())
                for note in notes:
                    print(f"rlx: {note}", file=sys.stderr)
            else:
                if output.exists():
                    more = "; --force replaces GGUF files alone" if force else ""
                    raise RlxError(f"{output} exists already; give the name of a new folder{more}")
                with read(source) as file:
                    gguf_to_folder(file, output, (to or "f16").lower())
    except RlxError:  # A missing file's error is an OSError too.
        raise
    except OSError as error:
        raise RlxError(f"{error.filename or output}: cannot be written: {error.strerror or error}") from error
    size = sum(f.stat().st_size for f in output.iterdir()) if output.is_dir() else output.stat().st_size
    print(f"{output}: {size:,} bytes")
