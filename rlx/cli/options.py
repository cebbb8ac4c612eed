"""The arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from rlx.cli.arguments import Argument, option

OnnxOrSaved = Annotated[Path, Argument(help="An ONNX model, or a program that CompiledGraph.save wrote.")]
FileOrFolder = Annotated[
    Path, Argument(help="An ONNX file, or a Hugging Face folder with a BERT sentence encoder.")
]
Device = Annotated[str, option(help='"auto", "cpu", "vulkan", "cuda", or one with a number.')]
Devices = Annotated[
    list[str] | None, option(help="A device; may be repeated. Default: all but software drivers.")
]
Inputs = Annotated[
    list[str] | None,
    option(
        help="name=file.npy, an input of an ONNX model; may be repeated, also for the items of a sequence. The others "
        "are random."
    ),
]
Dims = Annotated[
    list[str] | None,
    option(
        help="symbol=length of a dimension, or input.axis=length of one without a name; may be repeated. Not given, it "
        "is 1 for random inputs, or a length that the model takes."
    ),
]
Strict = Annotated[
    bool,
    option(
        "--strict/--no-strict",
        help="Whether departures of an ONNX model from its format are errors, or warnings: outputs of other shapes "
        "than declared, unknown attributes, domains that are not imported.",
    ),
]
MaxBytes = Annotated[
    int | None,
    option(
        help="What a program of an ONNX model may make beyond its inputs and weights. Default: 1 GiB, and 64 times "
        "their bytes.",
        min=0,
    ),
]
MaxSteps = Annotated[
    int | None,
    option(
        help="How many steps it may take: a node run in a loop, 8 KiB written, or 2^18 multiplications of a product; "
        "one for each node comes on top. Default: 262144, and an eighth of the bytes of inputs and weights.",
        min=0,
    ),
]
Seconds = Annotated[
    float, option(help="How long the command may take before it stops with what it has. 0: no limit.", min=0)
]
Seed = Annotated[int, option(help="Of the random inputs.", min=0)]
Precision = Annotated[str, option(help='Of products: "f32", "tf32", "f16", "bf16" or "int8".')]
