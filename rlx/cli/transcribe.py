"""`rlx transcribe`: what is said in a WAV file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from rlx.cli.options import Device
from rlx.errors import FileMissing, RlxError
from rlx.host.progress import drawn


def transcribe(
    folder: Annotated[Path, typer.Argument(help="A Hugging Face folder with a Whisper model.")],
    file: Annotated[Path, typer.Argument(help="A WAV file of integer samples, at any rate.")],
    device: Device = "auto",
    language: Annotated[str | None, typer.Option(help='Its code, such as "en". Default: as the model hears.')] = None,
    task: Annotated[str, typer.Option(help='"transcribe", or "translate" to English.')] = "transcribe",
    timestamps: Annotated[bool, typer.Option(help="A line for each segment, with its times.")] = False,
    dtype: Annotated[str | None, typer.Option(help='Keep the matrices as "f16" or "bf16".')] = None,
    activations: Annotated[str | None, typer.Option(help="The tensors between layers: f32, f16, bf16.")] = None,
) -> None:
    """Write down what is said in a sound file, by a Whisper model. Text is printed as it is made."""
    from rlx.models import Transcriber, load

    if not file.exists():
        raise FileMissing(f"{file} does not exist; give a WAV file", file)
    if not file.is_file():
        raise RlxError(f"{file} is no file; give a WAV file")
    with drawn(only="loading"):
        model = load(folder, device, dtype=dtype, activations=activations)
    with model:
        if not isinstance(model, Transcriber):
            raise RlxError(f"{folder} holds no Whisper model; rlx transcribe takes the folder of one")
        for part in model.segments(file, language=language, task=task, timestamps=timestamps):
            if timestamps:
                print(f"[{_clock(part.start)} - {_clock(part.end)}] {part.text.strip()}", flush=True)
            else:
                print(part.text, end="", flush=True)
        if not timestamps:
            print()
        if language is None and model.language is not None:
            print(f"language: {model.language}", file=sys.stderr)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(seconds, 60)
    return f"{int(minutes):02}:{rest:05.2f}"
