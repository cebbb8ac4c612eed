"""`rlx finetune`: a language model or a sentence encoder and a data file to an adapter, or to a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rlx.cli.options import Device
from rlx.cli.outputs import check_name
from rlx.errors import RlxError
from rlx.host.progress import drawn


def finetune(
    model: Annotated[Path, typer.Argument(help="A Hugging Face folder, or a GGUF file, whose weights stay packed.")],
    data: Annotated[
        Path, typer.Argument(help="JSON lines, JSON, CSV or Parquet: messages; prompt and completion; or text.")
    ],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The folder of the adapter.")] = None,
    show_example: Annotated[
        bool, typer.Option("--show-example", help="Print an example, which of it counts, and end.")
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="Train all weights instead of an adapter.")] = False,
    rank: Annotated[int, typer.Option(help="Of the adapter.", min=1)] = 8,
    alpha: Annotated[float, typer.Option(help="Corrections are multiplied by alpha / rank.")] = 16.0,
    rslora: Annotated[bool, typer.Option("--rslora", help="Multiply by alpha / √rank.")] = False,
    dora: Annotated[bool, typer.Option("--dora", help="Train the magnitudes of outputs too.")] = False,
    target: Annotated[
        list[str] | None, typer.Option(help="A module to adapt, such as q_proj; may be repeated. Default: all linear.")
    ] = None,
    epochs: Annotated[float, typer.Option(help="Passes over the data.")] = 1.0,
    steps: Annotated[int | None, typer.Option(help="Steps, in place of --epochs.", min=1)] = None,
    batch: Annotated[int, typer.Option(help="Rows of a step.", min=1)] = 8,
    accumulate: Annotated[int, typer.Option(help="Parts that a batch is worked through in.", min=1)] = 1,
    length: Annotated[int, typer.Option(help="Tokens of the longest example; longer ones are left out.")] = 2048,
    rate: Annotated[float, typer.Option(help="The learning rate.")] = 2e-4,
    schedule: Annotated[str, typer.Option(help='How the rate falls: "linear", "cosine" or "constant".')] = "linear",
    warmup: Annotated[float, typer.Option(help="The part of the steps in which the rate rises.")] = 0.03,
    decay: Annotated[float, typer.Option(help="AdamW's weight decay.")] = 0.0,
    clip: Annotated[float, typer.Option(help="The greatest norm of the gradients.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the adapter, the order and the split.", min=0)] = 0,
    pack: Annotated[bool, typer.Option("--pack/--no-pack", help="Whether short examples share rows.")] = True,
    dtype: Annotated[str | None, typer.Option(help='Keep matrices as "f32", "f16" or "bf16".')] = None,
    quantize: Annotated[str | None, typer.Option(help="Pack the base's matrices, such as nf4 or q8_0.")] = None,
    activations: Annotated[
        str | None, typer.Option(help='Tensors between layers: "f32", "f16", or "bf16", to which products then round.')
    ] = None,
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Compute layers again for the gradient: less memory.")
    ] = False,
    evaluation: Annotated[
        str | None, typer.Option("--eval", help="A data file to evaluate with, or a part of the examples, as 0.1.")
    ] = None,
    evaluate_every: Annotated[int | None, typer.Option("--eval-every", help="Steps. Default: an epoch's.")] = None,
    patience: Annotated[int | None, typer.Option(help="Stop after so many evaluations that are no better.")] = None,
    save_every: Annotated[int, typer.Option(help="Steps between two checkpoints.", min=1)] = 100,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    skip_broken: Annotated[bool, typer.Option("--skip-broken", help="Leave out and count broken records.")] = False,
    merge: Annotated[
        Path | None, typer.Option(help="Write the model with the adapter in it too: a folder, or a .gguf file.")
    ] = None,
    zero: Annotated[
        int, typer.Option(help="1: under mpiexec each rank keeps a part of the optimizer's state.")
    ] = 0,
    device: Device = "auto",
) -> None:
    """Fine-tune a language model by examples: an adapter that `rlx generate --adapter` takes, PEFT and llama.cpp too.

    Of messages the answers are learned, of a prompt and its completion the completion, of a text all of it. Weights
    that are packed stay so.
    """
    from rlx.finetune import Settings
    from rlx.finetune import finetune as run
    from rlx.models import Lora

    if show_example:
        _show(model, data, length, skip_broken)
        return
    if out is None:
        raise RlxError("finetune: --out names the folder of the adapter; give one")
    check_name("--out", out)
    unused = {"--rank": rank != 8, "--alpha": alpha != 16, "--rslora": rslora, "--dora": dora, "--target": target}
    if full and any(unused.values()):
        named = ", ".join(name for name, is_set in unused.items() if is_set)
        raise RlxError(f"finetune: --full trains all weights and no adapter, which {named} would shape; leave it out")
    lora = None if full else Lora(rank, alpha, rslora, dora, tuple(target) if target else "all-linear")
    settings = Settings(
        model=model, data=data, out=out, lora=lora, epochs=epochs, steps=steps, batch=batch, accumulate=accumulate,
        length=length, rate=rate, schedule=schedule, warmup=warmup, decay=decay, clip=clip, seed=seed, packed=pack,
        dtype=dtype, quantize=quantize, activations=activations, recompute=recompute,
        evaluation=_evaluation(evaluation), evaluate_every=evaluate_every, patience=patience, save_every=save_every,
        resume=resume, skip_broken=skip_broken, device=device, merge=merge, zero=zero,
        progress=True,
    )  # fmt: skip
    try:
        with drawn(only="loading"):
            run(settings, lambda line: print(line, flush=True))
    except RlxError:  # A missing file's error is an OSError too.
        raise
    except OSError as error:
        raise RlxError(f"{error.filename or out}: cannot be written: {error.strerror or error}") from error


def _evaluation(text: str | None) -> Any:
    """A part of the examples where a number is given, else a file."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return Path(str(text))


def _show(model: Path, data: Path, length: int, skipped: bool) -> None:
    from rlx.finetune.data import LeftOut
    from rlx.finetune.examples import examples_of, shown_example
    from rlx.finetune.model import tokenizer_of

    tokenizer, left = tokenizer_of(model), LeftOut(data, skipped)
    examples = examples_of(data, tokenizer, length, left)
    for line in shown_example(examples[0], tokenizer):
        print(line)
    if left.count:
        print(left)
