"""`rlx embed`: sentences from a file to embeddings, or to the answers of a query."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import numpy.typing as npt

from rlx.cli.arguments import Argument, option
from rlx.cli.options import Device
from rlx.errors import RlxError
from rlx.host.progress import drawn

if TYPE_CHECKING:
    from rlx.models import LanguageModel


def embed(
    folder: Annotated[Path, Argument(help="A BERT sentence encoder's folder, or a GGUF file of embeddings.")],
    file: Annotated[str, Argument(help="Text, one sentence a line; - reads standard input.")] = "-",
    device: Device = "auto",
    dtype: Annotated[str | None, option(help='Keep the matrices as "f16" or "bf16".')] = None,
    out: Annotated[Path | None, option(help="Write the embeddings here, as a NumPy .npy file.")] = None,
    query: Annotated[str | None, option(help="Print the sentences nearest to this text.")] = None,
    prompt_name: Annotated[
        str | None, option(help="The model's prompt before each sentence. Default: as the folder says.")
    ] = None,
    query_prompt_name: Annotated[
        str | None, option(help="The model's prompt before the query. Default: as the folder says.")
    ] = None,
    top: Annotated[int, option(help="How many sentences a query prints.", min=1)] = 3,
) -> None:
    """Embed sentences, or find those nearest to a query.

    Row i of the result is line i of the file, blank lines included.
    Without --out or --query the rows are printed, one line of numbers each.
    """
    from rlx.models import LanguageModel
    from rlx.models import load as load_file
    from rlx.models.sentence import load as load_folder

    sentences = _read_lines(file)
    listed = [i for i, sentence in enumerate(sentences) if sentence.strip()]  # a blank line cannot be an answer
    if query is None and query_prompt_name is not None:
        raise RlxError("embed: --query-prompt-name is for the text of --query, which is missing")
    if query is not None and not listed:
        raise RlxError(f"{'standard input' if file == '-' else file}: no sentences to search in")
    load: Any = load_folder if folder.is_dir() else load_file  # a folder of a language model makes text
    with load(folder, device, dtype=dtype) as encoder, drawn(only="encoding"):
        if isinstance(encoder, LanguageModel):  # it has no marks of its own around a text
            _check_tokens(encoder, sentences, "standard input" if file == "-" else file)
            if prompt_name is not None or query_prompt_name is not None:
                raise RlxError(f"{encoder.where}: prompts by name are in sentence-transformers folders only")
        by_name: Any = {} if prompt_name is None else {"prompt_name": prompt_name}
        vectors = encoder.embed(sentences, **by_name)
        if out is not None:
            _save(out, vectors)
            size = f"{vectors.shape[0]} x {vectors.shape[1]}"
            print(f"{out}: {size} f32 from {encoder.session.info.id}", file=sys.stderr)
        if query is not None:
            by_name = {} if query_prompt_name is None else {"prompt_name": query_prompt_name}
            scores = vectors @ encoder.embed(query, **by_name)
            for i in sorted(listed, key=lambda i: -scores[i])[:top]:
                print(f"{scores[i]:.4f}  {sentences[i]}")
        elif out is None:
            for row in vectors:
                print(" ".join(f"{value:.9g}" for value in row))  # nine digits identify every f32


def _check_tokens(model: LanguageModel, sentences: list[str], name: str) -> None:
    if not sentences:
        raise RlxError(f"{name}: no sentences to embed")
    for number, sentence in enumerate(sentences, 1):
        if not len(model.tokenize(sentence)):
            raise RlxError(f"{name}: line {number} has no tokens, and {model.where} no embedding of it; leave it out")


def _read_lines(file: str) -> list[str]:
    if file == "-" and sys.stdin.isatty():
        print("reading sentences from the terminal, one a line; end with Ctrl-D", file=sys.stderr)
    name = "standard input" if file == "-" else file
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise RlxError(f"{name}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise RlxError(f"{name}: line {line} is not UTF-8 text: {error.reason}") from error
    lines = text.split("\n")  # not splitlines, which splits at more: row i must be line i of other tools
    if lines[-1] == "":
        del lines[-1]
    return [line.removesuffix("\r") for line in lines]


def _save(out: Path, vectors: npt.NDArray[np.float32]) -> None:
    try:
        with out.open("wb") as target:  # np.save itself would add .npy to the name
            np.save(target, vectors)
    except OSError as error:
        raise RlxError(f"{out}: cannot be written: {error.strerror or error}") from error
