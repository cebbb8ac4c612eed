"""`rlx rerank`: the documents of a file in the order in which they answer a query."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from rlx.cli.embed import read_lines
from rlx.cli.options import Device
from rlx.errors import RlxError
from rlx.host.progress import drawn


def rerank(
    model: Annotated[
        Path, typer.Argument(help="The folder of a cross-encoder or of late interaction, or a reranker's GGUF file.")
    ],
    query: Annotated[str, typer.Argument(help="What the documents are to answer.")],
    file: Annotated[str, typer.Argument(help="Text, one document a line; - reads standard input.")] = "-",
    device: Device = "auto",
    dtype: Annotated[str | None, typer.Option(help='Keep the matrices as "f16" or "bf16".')] = None,
    prompt_name: Annotated[
        str | None, typer.Option(help="The model's prompt before the query. Default: as the folder says.")
    ] = None,
    top: Annotated[int | None, typer.Option(help="How many documents are printed. Default: all.", min=1)] = None,
) -> None:
    """Order documents by how well they answer a query, and print them with their scores, the best first.

    Blank lines are no documents.
    """
    from rlx.models import LanguageModel, SentenceEncoder, load

    documents = [line for line in read_lines(file) if line.strip()]
    if not documents:
        raise RlxError(f"{'standard input' if file == '-' else file}: no documents to order")
    with load(model, device, dtype=dtype) as made, drawn(only="encoding"):
        if isinstance(made, LanguageModel):
            if prompt_name is not None:
                raise RlxError(f"{made.where}: prompts by name are in sentence-transformers folders only")
            scores: Any = made.rank(query, documents)
        elif isinstance(made, SentenceEncoder):
            scores = made.rank(query, documents, prompt_name=prompt_name)
        else:
            raise RlxError(f"{model} holds a model of speech, which orders no documents")
    for i in np.argsort(-scores, kind="stable")[:top]:
        print(f"{scores[i]:.4f}  {documents[i]}")
