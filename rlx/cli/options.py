"""The arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

OnnxOrSaved = Annotated[Path, typer.Argument(help="An ONNX model, or a program that CompiledGraph.save wrote.")]
AnyModel = Annotated[
    Path | None,
    typer.Argument(
        help="An ONNX model, a saved program, a language model or a sentence encoder (a GGUF file or a folder).",
        show_default=False,
    ),
]
FileOrFolder = Annotated[
    Path, typer.Argument(help="An ONNX file, or a Hugging Face folder with a BERT sentence encoder.")
]


def _devices(incomplete: str) -> list[str]:
    """What a shell offers for a device."""
    from rlx.driver.registry import devices

    return [name for name in ("auto", *(info.id for info in devices())) if name.startswith(incomplete)]


Device = Annotated[
    str, typer.Option(help='"auto", "cpu", "vulkan", "cuda", or one with a number.', autocompletion=_devices)
]
Devices = Annotated[
    list[str] | None,
    typer.Option(help="A device; may be repeated. Default: all but software drivers.", autocompletion=_devices),
]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        help="name=file.npy or name=[1,2], an input of an ONNX model; may be repeated, also for the items of a "
        "sequence. Without a name the model's one input, and of a file.npz the arrays by their names. The others are "
        "random."
    ),
]
Dims = Annotated[
    list[str] | None,
    typer.Option(
        help="symbol=length of a dimension, or input.axis=length of one without a name; may be repeated. Not given, it "
        "is 1 for random inputs, or a length that the model takes."
    ),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict/--no-strict",
        help="Whether departures of an ONNX model from its format are errors, or warnings: outputs of other shapes "
        "than declared, unknown attributes, domains that are not imported.",
    ),
]
MaxBytes = Annotated[
    int | None,
    typer.Option(
        help="What a program of an ONNX model may make beyond its inputs and weights. Default: 1 GiB, and 64 times "
        "their bytes.",
        min=0,
    ),
]
MaxSteps = Annotated[
    int | None,
    typer.Option(
        help="How many steps it may take: a node run in a loop, 8 KiB written, or 2^18 multiplications of a product; "
        "one for each node comes on top. Default: 262144, and an eighth of the bytes of inputs and weights.",
        min=0,
    ),
]
Seconds = Annotated[
    float, typer.Option(help="How long the command may take before it stops with what it has. 0: no limit.", min=0)
]
Seed = Annotated[int, typer.Option(help="Of the random inputs.", min=0)]
Precision = Annotated[str, typer.Option(help='Of products: "f32", "tf32", "f16", "bf16" or "int8".')]
