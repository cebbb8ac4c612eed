"""`rlx classify`: the labels of texts, or of their tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlx.cli.embed import read_lines
from rlx.cli.options import Device
from rlx.errors import RlxError
from rlx.host.progress import drawn


def classify(
    folder: Annotated[Path, typer.Argument(help="The folder of a classifier of texts, or of tokens.")],
    file: Annotated[str, typer.Argument(help="Text, one a line; - reads standard input.")] = "-",
    device: Device = "auto",
    dtype: Annotated[str | None, typer.Option(help='Keep the matrices as "f16" or "bf16".')] = None,
    top: Annotated[int | None, typer.Option(help="How many labels of a text are printed. Default: 1.", min=1)] = None,
    aggregation: Annotated[
        str | None, typer.Option(help='Of tokens: "none", "simple" (the default), "first", "average" or "max".')
    ] = None,
    truncate: Annotated[bool, typer.Option("--truncate", help="Cut texts that are too long.")] = False,
) -> None:
    """Label texts, or the tokens of texts.

    Line i has the labels of line i of the file, each behind its score. Labels of tokens have lines of their own, with
    the number of the text, where in it they begin and end, the score, the label, and the word.
    """
    from rlx.models import SentenceEncoder, load

    texts = read_lines(file)
    with load(folder, device, dtype=dtype) as model, drawn(only="encoding"):
        if not isinstance(model, SentenceEncoder):
            raise RlxError(f"{folder} holds no classifier of texts")
        if model.task == "labels":
            if top is not None:
                raise RlxError("classify: --top is for labels of texts; these are labels of tokens")
            way = "simple" if aggregation is None else aggregation
            found = model.classify_tokens(texts, aggregation=way, truncate=truncate)  # type: ignore[arg-type]
            for number, row in enumerate(found, 1):
                for one in row:
                    label = one.get("entity") or one["entity_group"]
                    print(f"{number}:{one['start']}-{one['end']}  {one['score']:.4f}  {label}  {one['word']}")
            return
        if aggregation is not None:
            raise RlxError("classify: --aggregation is for labels of tokens; these are labels of texts")
        for row in model.classify(texts, top_k=top or 1, truncate=truncate):
            print("  ".join(f"{one['score']:.4f} {one['label']}" for one in row))
