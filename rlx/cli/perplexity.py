"""`rlx perplexity`: how well a language model predicts a text."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from rlx.cli.generate import Model, chosen_model
from rlx.cli.groups import spread
from rlx.cli.language import Loading, ModelName, text_of
from rlx.errors import RlxError
from rlx.host.progress import drawn, report
from rlx.records import replace

_LENGTH = 512  # tokens of a chunk


@spread
def perplexity(
    model: Model = None,
    text: Annotated[
        Path | None, typer.Argument(metavar="TEXT", help="A text file; - reads standard input.", show_default=False)
    ] = None,
    *,
    name: ModelName = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="The text file.")] = None,
    chunks: Annotated[int | None, typer.Option(help="How many chunks at most. Default: all whole ones.", min=1)] = None,
    loading: Loading,
) -> None:
    """Say how well a language model predicts a text: its perplexity, less is better, with the standard error.

    As llama.cpp's tool: in chunks of --context tokens (512), of which those of the second half count.
    """
    if name is not None and model is not None and text is None:  # then the first word is the text
        model, text = None, model
    path = chosen_model("perplexity", model, name)
    if (text is None) == (file is None):
        raise RlxError("perplexity: expected one text file: rlx perplexity model.gguf -f text.txt")
    source = text if file is None else file
    assert source is not None
    whole = sys.stdin.read() if str(source) == "-" else text_of(source)
    from rlx.models.language.perplexity import perplexities

    loading = replace(loading, context=_LENGTH if loading.context is None else loading.context)
    with loading.load(path) as made, drawn("perplexity"):
        length = min(loading.context or made.context, made.context)
        last = None
        for last in perplexities(made, whole.removesuffix("\n"), length, chunks):
            report("reading", last.chunk, last.chunks)
        assert last is not None
        where = made.decoder.where
    size = f"{last.tokens:,} tokens, the second halves of {last.chunks:,} chunks of {length:,}"
    print(f"perplexity: {last.value:.4f} ± {last.error:.5f}, of {size}, on {where}")
