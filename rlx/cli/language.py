"""The options of language models that several commands share, under their own names and those of llama.cpp."""

from __future__ import annotations

import os
import re
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from rlx.cli.options import Device, Precision
from rlx.errors import RlxError
from rlx.host.progress import drawn
from rlx.records import Record, replace

_WHOLE = 1 << 30  # tokens, more than any model's context: `load` then takes the model's own
_BIAS = re.compile(r"(\d+)(?:=(?=[-+.\di])|(?=[-+]))([-+]?(?:inf|\d+(?:\.\d*)?|\.\d+))", re.ASCII)

ModelName = Annotated[
    Path | None, typer.Option("--model", "-m", help="The model, in place of the first word.", show_default=False)
]
GpuLayers = Annotated[
    str | None,
    typer.Option(
        "--gpu-layers", "--n-gpu-layers", "-ngl", metavar="N",
        help="The last N layers on the GPU and the first on the CPU; all where the model has no more; auto: as many as "
        "fit.",
    ),
]  # fmt: skip


class Loading(Record, slots=False, kw_only=True):
    """Where and how a language model is loaded."""

    device: Device = "auto"
    context: Annotated[
        int | None,
        typer.Option(
            "--context", "--ctx-size", "-c",
            help="How many tokens prompt and answer may have; 0: all that the model was made for. Default: 4096, or "
            "those of the model.",
            min=0,
        ),
    ] = None  # fmt: skip
    dtype: Annotated[
        str | None, typer.Option(help='Keep matrices as "f32", "f16" or "bf16"; packed ones stay packed.')
    ] = None
    activations: Annotated[str | None, typer.Option(help='Tensors between layers: "f32", "f16" or "bf16".')] = None
    cache: Annotated[str | None, typer.Option(help='Keys and values: "f32", "f16", "bf16" or "q8_0".')] = None
    engine: Annotated[str | None, typer.Option(help='Kernels on the CPU: "numpy" or "compiled".')] = None
    threads: Annotated[
        int | None, typer.Option("--threads", "-t", help="Of the CPU. Default: all processors.", min=1)
    ] = None
    layers_on: Annotated[
        str | None,
        typer.Option(help='Layers on several devices, such as "cuda:0=20,cpu"; without a number as many as fit.'),
    ] = None
    gpu_layers: GpuLayers = None
    tensor_parallel: Annotated[
        int | None,
        typer.Option(
            "--tensor-parallel", "--tensor-parallel-size", "-tp", metavar="N",
            help="Cut the matrices over N GPUs, or ranks of the CPU; under mpiexec -n N a rank a process.", min=1,
        ),
    ] = None  # fmt: skip
    sums: Annotated[
        str | None, typer.Option(help='In which --tensor-parallel adds: "f32", "f16" or "bf16". Default: f32.')
    ] = None
    prefill_chunk: Annotated[
        int | None,
        typer.Option(help="Tokens of a prompt in one run. Default: 512; 2048 on a GPU of 40 GB and more.", min=16),
    ] = None
    precision: Precision = "f32"

    def load(self, model: Path, all_kinds: bool = False) -> Any:
        """The language model of a command, or with `all_kinds` a sentence encoder, or a transcriber. Raises: RlxError
        for what makes no text, and as `rlx.models.load`."""
        from rlx.models import LanguageModel, SentenceEncoder, load

        device, layers_on = self._placed(model)
        self._check_engine(device, layers_on)
        context = {None: 4096, 0: _WHOLE}.get(self.context, self.context)
        with drawn(only="loading"):
            made = load(
                model, device, context=cast(int, context), dtype=self.dtype, activations=self.activations,
                cache=self.cache, engine=cast(Any, self.engine), threads=self.threads, layers_on=layers_on,
                prefill_chunk=self.prefill_chunk, precision=self.precision, tensor_parallel=self.tensor_parallel,
                sums=self.sums,
            )  # fmt: skip
        if not isinstance(made, LanguageModel):
            if all_kinds:
                return made
            made.close()
            if not isinstance(made, SentenceEncoder):
                raise RlxError(f"{model} holds a Whisper model, which writes what it hears; `rlx transcribe` takes it")
            raise RlxError(f"{model} holds a sentence encoder, which makes no text; `rlx embed` takes it")
        if self.context is not None and made.context < self.context:
            what = f"was made for {made.context:,} tokens, which is its context now, not {self.context:,}"
            print(f"rlx: {model} {what}", file=sys.stderr)
        if made.decoder.rank:  # a process of mpiexec beside the first, which prints
            sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 it lasts as long as the process
        return made

    def load_draft(self, model: Path | None) -> Any:
        """A context with the model that guesses, None where there is none: all of it on one device."""
        return nullcontext() if model is None else self._whole().load(model)

    def _whole(self) -> Loading:
        return replace(self, layers_on=None, gpu_layers=None, tensor_parallel=None, sums=None)

    def _placed(self, model: Path) -> tuple[str, str | None]:
        """The device, and `layers_on`, as `rlx.models.load` takes them. Raises: RlxError for a --gpu-layers that is no
        number, beside others that name devices, or where there is no GPU."""
        asked = self.gpu_layers
        if asked is None:
            return self.device, self.layers_on
        if self.layers_on is not None:
            raise RlxError("--gpu-layers and --layers-on both say where layers go; give one of them")
        if not (asked in ("all", "auto") or (asked.isascii() and asked.isdigit())):
            raise RlxError(f"--gpu-layers {asked}: expected a number of layers, all, or auto for as many as fit")
        from rlx.driver.registry import find_device

        info = find_device(self.device)
        if asked.strip("0") == "":
            if info.kind == "cpu" or self.device == "auto":
                return "cpu", None
            raise RlxError(f"--gpu-layers {asked} leaves --device {self.device} no layer; leave one of them out")
        if info.kind == "cpu":
            raise RlxError(f"--gpu-layers {asked}: {self._no_gpu()}; leave it out, or give 0, for the CPU")
        if asked == "all":
            return info.id, None
        layers = layers_of(model)
        if asked != "auto" and int(asked) >= layers:
            return info.id, None
        return "auto", f"{info.id},cpu" if asked == "auto" else f"cpu={layers - int(asked)},{info.id}"

    def _check_engine(self, device: str, layers_on: str | None) -> None:
        """Raises: RlxError for an engine of the CPU beside a GPU that runs the whole model."""
        if self.engine is None or layers_on is not None or self.tensor_parallel is not None:
            return
        from rlx.driver.registry import find_device

        if (info := find_device(device)).kind != "cpu":
            raise RlxError(f"--engine {self.engine} is of the CPU, and the model runs on {info.id}; give --device cpu, "
                           "or leave it out")  # fmt: skip

    def _no_gpu(self) -> str:
        if self.device != "auto":
            return f"--device {self.device} is no GPU"
        return "no GPU is here that rlx takes by itself (`rlx devices` says why)"


def layers_of(model: Path) -> int:
    """How many layers a language model's files say that it has. Raises: RlxError for what is no such model."""
    from rlx.formats.gguf.model import GgufModel
    from rlx.formats.gguf.reader import GgufFile
    from rlx.formats.huggingface import ModelFolder
    from rlx.models.language.architectures import architecture_of
    from rlx.models.language.config import Fields
    from rlx.models.loading import check_path

    check_path("--gpu-layers", model)
    if model.is_dir():
        fields = Fields(ModelFolder(model).config, str(model / "config.json"))
        return architecture_of(fields).read(fields).layers
    with GgufFile(model) as file:
        source = GgufModel(file)
        fields = Fields({**source.config, "rope_partial": True}, source.where)
        return architecture_of(fields).read(fields).layers


class Drawing(Record, slots=False):
    """How tokens are picked."""

    temperature: Annotated[
        float, typer.Option("--temperature", "--temp", help="0 takes the likeliest token each time.", min=0)
    ] = 0.0
    top_k: Annotated[
        int | None, typer.Option(help="Draw from so many of the likeliest tokens; 0: from all.", min=0)
    ] = None
    top_p: Annotated[
        float | None, typer.Option(help="Draw from the likeliest that have this probability together.")
    ] = None
    min_p: Annotated[
        float | None, typer.Option(help="Draw from those of at least this part of the likeliest's probability.")
    ] = None
    seed: Annotated[
        int | None, typer.Option("--seed", "-s", help="Of the draws; -1: another one each time. Default: 0.", min=-1)
    ] = None
    repetition_penalty: Annotated[
        float | None,
        typer.Option(
            "--repetition-penalty", "--repeat-penalty",
            help="By which the logits of all tokens so far are divided, negative ones multiplied.",
        ),
    ] = None  # fmt: skip
    frequency_penalty: Annotated[
        float | None, typer.Option(help="Taken from a token's logit for each time that the answer has it.")
    ] = None
    presence_penalty: Annotated[
        float | None, typer.Option(help="Taken from the logits of the tokens that the answer has.")
    ] = None
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(
            "--logit-bias", "-l", metavar="ID±NUMBER",
            help="Added to a token's logit, such as 15043-2.5, or 15043-inf, which forbids it; may be repeated.",
        ),
    ] = None  # fmt: skip
    json_schema: Annotated[
        str | None, typer.Option("--json-schema", "-j", help="A JSON schema that the answer must have.")
    ] = None
    json_schema_file: Annotated[
        Path | None, typer.Option("--json-schema-file", "-jf", help="A file with such a schema.")
    ] = None
    grammar: Annotated[
        str | None, typer.Option(help="A grammar that the answer must follow, in llama.cpp's GBNF, or Lark.")
    ] = None
    grammar_file: Annotated[Path | None, typer.Option(help="A file with such a grammar.")] = None

    def settings(self) -> dict[str, Any]:
        """The arguments of `LanguageModel.generate`. Raises: RlxError for those that have no effect, since there is no
        temperature, and for files that cannot be read."""
        given = {"--top-k": self.top_k, "--top-p": self.top_p, "--min-p": self.min_p, "--seed": self.seed}
        idle = [name for name, value in given.items() if value is not None]
        if idle and not self.temperature:
            verb = "has" if len(idle) == 1 else "have"
            raise RlxError(f"{', '.join(idle)} {verb} no effect without a temperature: the likeliest token is taken "
                           "each time; give --temperature 0.8, or leave them out")  # fmt: skip
        penalties = {"repetition_penalty": self.repetition_penalty, "frequency_penalty": self.frequency_penalty,
                     "presence_penalty": self.presence_penalty}  # fmt: skip
        seed = self.seed or 0
        if seed < 0:
            import secrets

            seed = secrets.randbits(32)
            print(f"rlx: seed {seed}", file=sys.stderr)
        return {
            "temperature": self.temperature, "top_k": self.top_k or None, "top_p": self.top_p, "min_p": self.min_p,
            "seed": seed, "logit_bias": _biases(self.logit_bias or ()),
            "json_schema": _text_or_file("--json-schema", self.json_schema, self.json_schema_file),
            "grammar": _text_or_file("--grammar", self.grammar, self.grammar_file),
            **{name: value for name, value in penalties.items() if value is not None},
        }  # fmt: skip


def _biases(texts: Any) -> dict[int, float]:
    """Numbers by ids of tokens. Raises: RlxError."""
    result: dict[int, float] = {}
    for text in texts:
        found = _BIAS.fullmatch(text.strip())
        if found is None:
            raise RlxError(f"--logit-bias {text}: expected the id of a token and a number with its sign, such as "
                           "15043-2.5 or 15043+1")  # fmt: skip
        if int(found[1]) in result:
            raise RlxError(f"--logit-bias {text}: token {int(found[1])} has a bias already")
        result[int(found[1])] = float(found[2])
    return result


def _text_or_file(option: str, text: str | None, file: Path | None) -> str | None:
    if file is None:
        if text is not None and (Path(text).suffix in (".json", ".gbnf", ".lark") or text[:1] == "@"):
            raise RlxError(f"{option} {text}: expected the text itself; {option}-file FILE reads it from a file")
        return text
    if text is not None:
        raise RlxError(f"{option} and {option}-file both say what the answer is; give one of them")
    return text_of(file)


def text_of(file: Path) -> str:
    """The text of a file. Raises: RlxError."""
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise RlxError(f"{file}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise RlxError(f"{file}: is not UTF-8 text: {error.reason} at byte {error.start}; iconv -t UTF-8 converts it"
                       ) from error  # fmt: skip


class Guessing(Record, slots=False):
    """How several tokens are taken at once."""

    lookup: Annotated[bool, typer.Option("--lookup", help="Guess from the text; sooner if it repeats.")] = False
    draft: Annotated[
        Path | None,
        typer.Option("--draft", "--model-draft", "-md", help="A smaller model of the same vocabulary, to guess."),
    ] = None
    guesses: Annotated[
        int,
        typer.Option(
            "--guesses", "--draft-max", help="How many tokens --lookup or --draft guess at once.", min=1, max=32
        ),
    ] = 7
