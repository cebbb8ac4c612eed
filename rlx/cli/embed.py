"""`rlx embed`: sentences from a file to embeddings, or to the answers of a query."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import numpy.typing as npt
import typer

from rlx.cli.options import Device
from rlx.cli.outputs import check_file, check_folder
from rlx.errors import RlxError
from rlx.host.progress import drawn

if TYPE_CHECKING:
    from rlx.models import LanguageModel


def embed(
    folder: Annotated[
        Path, typer.Argument(help="A folder of a sentence encoder or a language model, or a GGUF file of either.")
    ],
    file: Annotated[str, typer.Argument(help="Text, one sentence a line; - reads standard input.")] = "-",
    device: Device = "auto",
    dtype: Annotated[str | None, typer.Option(help='Keep the matrices as "f16" or "bf16".')] = None,
    out: Annotated[Path | None, typer.Option(help="Write the embeddings here, as a NumPy .npy file.")] = None,
    query: Annotated[str | None, typer.Option(help="Print the sentences nearest to this text.")] = None,
    prompt_name: Annotated[
        str | None, typer.Option(help="The model's prompt before each sentence. Default: as the folder says.")
    ] = None,
    query_prompt_name: Annotated[
        str | None, typer.Option(help="The model's prompt before the query. Default: as the folder says.")
    ] = None,
    top: Annotated[int, typer.Option(help="How many sentences a query prints.", min=1)] = 3,
    truncate_dim: Annotated[
        int | None, typer.Option(help="Keep so many first numbers of embeddings. Default: as the folder says.", min=1)
    ] = None,
    normalize: Annotated[
        bool, typer.Option("--normalize", help="Bring embeddings to length 1, after they are cut.")
    ] = False,
    sparse: Annotated[bool, typer.Option("--sparse", help="The sparse vectors of a SPLADE folder.")] = False,
    ray: Annotated[
        bool, typer.Option("--ray", help="A Parquet file or a folder of them, by actors of Ray; --out is a folder.")
    ] = False,
    column: Annotated[str | None, typer.Option(help="With --ray, the column of the texts. Default: text.")] = None,
    actors: Annotated[
        int | None, typer.Option(help="With --ray, how many models run at once. Default: as many as fit.", min=1)
    ] = None,
    threads: Annotated[int | None, typer.Option(help="With --ray, of each actor on a CPU. Default: 1.", min=1)] = None,
) -> None:
    """Embed sentences, or find those nearest to a query.

    Row i of the result is line i of the file, blank lines included.
    Without --out or --query the rows are printed, one line of numbers each.
    With --sparse a row is index:value of each number that is not 0, and --out writes SciPy's .npz of a CSR matrix.
    With --ray the rows of Parquet files get a column "embedding", in their order.
    """
    from rlx.models import LanguageModel, Transcriber, load

    of_ray = {"--column": column, "--actors": actors, "--threads": threads}
    if ray:
        others = {"--query": query, "--query-prompt-name": query_prompt_name, "--sparse": sparse or None}
        if idle := [option for option, value in others.items() if value is not None]:
            raise RlxError(f"embed: --ray writes embeddings of Parquet files, which {', '.join(idle)} is not for")
        _by_ray(folder, file, out, column or "text", actors, device=device, threads=threads, dtype=dtype,
                prompt_name=prompt_name, truncate_dim=truncate_dim, normalize=normalize)  # fmt: skip
        return
    if idle := [option for option, value in of_ray.items() if value is not None]:
        raise RlxError(f"embed: {', '.join(idle)} is for --ray, which is missing")
    if file.endswith(".parquet"):
        raise RlxError(f"{file}: Parquet files are embedded with --ray, which needs pip install 'rlx[ray]'")
    check_file("--out", out)
    sentences = read_lines(file)
    listed = [i for i, sentence in enumerate(sentences) if sentence.strip()]  # blank lines are no answers to a query
    if query is None and query_prompt_name is not None:
        raise RlxError("embed: --query-prompt-name is for the text of --query, which is missing")
    if query is not None and not listed:
        raise RlxError(f"{'standard input' if file == '-' else file}: no sentences to search in")
    with load(folder, device, dtype=dtype) as encoder, drawn(only="encoding"):
        if isinstance(encoder, Transcriber):
            raise RlxError(f"{folder} holds a Whisper model, which writes what it hears; `rlx transcribe` takes it")
        if isinstance(encoder, LanguageModel):  # unlike encoders it puts no special tokens around a text
            before = encoder.reading.before(prompt_name, encoder.where)
            _check_tokens(encoder, sentences, before, "standard input" if file == "-" else file)
        settings: Any = {}
        if sparse != (getattr(encoder, "task", None) == "sparse"):
            what = "has no sparse vectors; leave out" if sparse else "has sparse vectors; add"
            raise RlxError(f"{folder} {what} --sparse")
        if sparse and (truncate_dim is not None or normalize):
            raise RlxError("embed: --truncate-dim and --normalize are for embeddings; these are sparse vectors")
        if truncate_dim is not None:
            settings["truncate_dim"] = truncate_dim
        if normalize:
            settings["normalize" if isinstance(encoder, LanguageModel) else "normalize_embeddings"] = True

        def vectors_of(texts: list[str], name: str | None) -> Any:
            named = {} if name is None else {"prompt_name": name}
            if sparse:
                return Rows(encoder.encode_sparse(texts, **named), encoder.width)
            return encoder.embed(texts, **named, **settings)

        vectors = vectors_of(sentences, prompt_name)
        if out is not None:
            _save(out, vectors)
            size = f"{vectors.shape[0]} x {vectors.shape[1]}"
            print(f"{out}: {size} f32 from {encoder.session.info.id}", file=sys.stderr)
        if query is not None:
            scores = vectors @ vectors_of([query], query_prompt_name)[0]
            for i in sorted(listed, key=lambda i: -scores[i])[:top]:
                print(f"{scores[i]:.4f}  {sentences[i]}")
        elif out is None:
            for row in vectors.texts() if sparse else vectors:
                print(row if sparse else " ".join(f"{value:.9g}" for value in row))  # nine digits identify every f32


def _by_ray(
    folder: Path, file: str, out: Path | None, column: str, actors: int | None, threads: int | None, **settings: Any
) -> None:
    from rlx import bulk

    if out is None:
        raise RlxError("embed: --ray writes Parquet files; --out names the folder for them")
    check_folder("--out", out)
    if out.exists() and any(out.iterdir()):  # Ray would add files beside those of another run
        raise RlxError(f"--out: {out} is not empty; name a new folder")
    data = bulk.embed(file, folder, column, actors=actors, threads=threads, **settings)
    data.context.execution_options.preserve_order = True
    bulk.write(data, out)


class Rows:
    """Sparse vectors, (n, width), as the rows of a matrix."""

    def __init__(self, rows: Sequence[Any], width: int) -> None:
        self.shape = (len(rows), width)
        self.rows = rows

    def __getitem__(self, index: int) -> npt.NDArray[np.float32]:
        whole = np.zeros(self.shape[1], np.float32)
        indices, values = self.rows[index]
        whole[indices] = values
        return whole

    def __matmul__(self, other: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return np.array([values @ other[indices] for indices, values in self.rows], np.float32)

    def texts(self) -> Iterator[str]:
        for indices, values in self.rows:
            yield " ".join(f"{i}:{value:.9g}" for i, value in zip(indices, values, strict=True))

    def save(self, file: Any) -> None:
        """Writes the file that scipy.sparse.load_npz reads."""
        parts = [np.concatenate([row[k] for row in self.rows] or [np.zeros(0, kind)]) for k, kind in
                 ((0, np.int32), (1, np.float32))]  # fmt: skip
        ends = np.cumsum([0, *(len(indices) for indices, _ in self.rows)]).astype(np.int32)
        np.savez_compressed(file, indices=parts[0], indptr=ends, format=np.array(b"csr"), shape=np.array(self.shape),
                            data=parts[1])  # fmt: skip


def _check_tokens(model: LanguageModel, sentences: list[str], before: str, name: str) -> None:
    if not sentences:
        raise RlxError(f"{name}: no sentences to embed")
    for number, sentence in enumerate(sentences, 1):
        if not len(model.tokenize(before + sentence)):
            raise RlxError(f"{name}: line {number} has no tokens, and {model.where} no embedding of it; leave it out")


def read_lines(file: str) -> list[str]:
    if file == "-" and sys.stdin.isatty():
        print("reading sentences from the terminal, one a line; end with Ctrl-D", file=sys.stderr)
    name = "standard input" if file == "-" else file
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        text = data.decode("utf-8-sig")
    except OSError as error:
        hint = "; a text itself comes by a pipe: echo \"a sentence\" | rlx …" if not Path(file).suffix else ""
        raise RlxError(f"{name}: cannot be read: {error.strerror or error}{hint}") from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise RlxError(f"{name}: line {line} is not UTF-8 text: {error.reason}") from error
    lines = text.split("\n")  # not splitlines, which splits at more: row i must be line i of other tools
    if lines[-1] == "":
        del lines[-1]
    return [line.removesuffix("\r") for line in lines]


def _save(out: Path, vectors: npt.NDArray[np.float32] | Rows) -> None:
    try:
        with out.open("wb") as target:  # np.save itself would add .npy to the name
            if isinstance(vectors, Rows):
                vectors.save(target)
            else:
                np.save(target, vectors)
    except OSError as error:
        raise RlxError(f"{out}: cannot be written: {error.strerror or error}") from error
