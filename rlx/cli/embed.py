"""`rlx embed`: sentences from a file to embeddings, or to the answers of a query."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from rlx.errors import RlxError


def embed(
    folder: Annotated[Path, typer.Argument(help="A Hugging Face folder with a BERT sentence encoder.")],
    file: Annotated[str, typer.Argument(help="Text, one sentence a line; - reads standard input.")] = "-",
    device: Annotated[
        str, typer.Option(help='"auto", "cpu", "vulkan", "cuda", or one with a number.')
    ] = "auto",
    dtype: Annotated[str | None, typer.Option(help='Keep the matrices as "f16" or "bf16".')] = None,
    out: Annotated[Path | None, typer.Option(help="Write the embeddings here, as a NumPy .npy file.")] = None,
    query: Annotated[str | None, typer.Option(help="Print the sentences nearest to this text.")] = None,
    top: Annotated[int, typer.Option(help="How many sentences a query prints.", min=1)] = 3,
) -> None:
    """Embed sentences. Without --out or --query, print one line of numbers a sentence."""
    from rlx.models import load

    sentences = _read_lines(file)
    encoder = load(folder, device, dtype=dtype)
    vectors = encoder.encode(sentences)
    if out is not None:
        with out.open("wb") as target:
            np.save(target, vectors)
        print(
            f"{out}: {vectors.shape[0]} x {vectors.shape[1]} f32 from {encoder.session.info.id}",
            file=sys.stderr,
        )
    if query is not None:
        scores = vectors @ encoder.encode([query])[0]
        for i in np.argsort(-scores, kind="stable")[:top]:
            print(f"{scores[i]:.4f}  {sentences[i]}")
    elif out is None:
        for row in vectors:
            print(" ".join(f"{value:.8g}" for value in row))


def _read_lines(file: str) -> list[str]:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise RlxError(f"{file}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise RlxError(f"{file}: is not UTF-8 text: {error}") from error
    return [line for line in text.splitlines() if line.strip()]
