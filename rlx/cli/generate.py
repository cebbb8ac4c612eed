"""`rlx generate` and `rlx chat`: text from a language model, as it is made."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, cast

from rlx.cli.arguments import Argument, option
from rlx.cli.devices import full_name
from rlx.cli.options import Device
from rlx.errors import RlxError
from rlx.host.progress import drawn

_LARGE = 64 << 20  # bytes of weights a token
_ANSWER = 256  # tokens of a context that a talk leaves free for an answer

Model = Annotated[Path, Argument(help="A Hugging Face folder with a language model, or a GGUF file.")]
MaxTokens = Annotated[
    int | None,
    option("--max-tokens", "-n", help="How many tokens at most. Default: as many as the context takes.", min=0),
]
Temperature = Annotated[float, option(help="0 takes the likeliest token each time.", min=0)]
TopK = Annotated[int | None, option(help="Draw from so many of the likeliest tokens.", min=1)]
TopP = Annotated[float | None, option(help="Draw from the likeliest that have this probability together.")]
Seed = Annotated[int | None, option(help="Of the draws. Default: 0.", min=0)]
Context = Annotated[
    int | None,
    option(help="How many tokens prompt and answer may have. Default: 4096, or those of the model.", min=1),
]
Engine = Annotated[str | None, option(help='Kernels on the CPU: "numpy" or "compiled".')]
Kept = Annotated[str | None, option(help='Keep matrices as "f32", "f16" or "bf16"; packed ones stay packed.')]
Activations = Annotated[str | None, option(help='Tensors between layers: "f32", "f16" or "bf16".')]
Cache = Annotated[str | None, option(help='Keys and values: "f32", "f16", "bf16" or "q8_0".')]
PrefillChunk = Annotated[
    int | None,
    option(help="Tokens of a prompt in one run. Default: 512; 2048 on a GPU of 40 GB and more.", min=16),
]
LayersOn = Annotated[
    str | None,
    option(help='Layers on several devices, such as "cuda:0=20,cpu"; without a number as many as fit.'),
]
Lookup = Annotated[bool, option("--lookup", help="Guess from the text; sooner if it repeats.")]
DraftModel = Annotated[Path | None, option("--draft", help="A smaller model of the same vocabulary, to guess.")]
Guesses = Annotated[int, option(help="How many tokens --lookup or --draft guess at once.", min=1, max=32)]
AdapterFolder = Annotated[Path | None, option("--adapter", help="A LoRA adapter's folder, as PEFT saves it.")]
Show = Annotated[bool, option("--stats", help="Print counts and speeds at the end, on standard error.")]


def generate(
    model: Model,
    prompt: Annotated[str, option("--prompt", "-p", help="The text to go on from; - reads standard input.")],
    max_tokens: MaxTokens = None,
    temperature: Temperature = 0.0,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = None,
    stop: Annotated[list[str] | None, option(help="A text before which to end; may be repeated.")] = None,
    device: Device = "auto",
    context: Context = None,
    dtype: Kept = None,
    activations: Activations = None,
    cache: Cache = None,
    engine: Engine = None,
    layers_on: LayersOn = None,
    prefill_chunk: PrefillChunk = None,
    lookup: Lookup = False,
    draft: DraftModel = None,
    guesses: Guesses = 7,
    adapter: AdapterFolder = None,
    stats: Show = False,
) -> None:
    """Go on from a prompt with a language model, and print the text as it is made.

    Without --temperature the text is the same on every device.
    """
    drawing = _drawing(temperature, top_k, top_p, seed)
    if prompt == "-" and sys.stdin.isatty():
        print("reading the prompt from the terminal; end with Ctrl-D", file=sys.stderr)
    text = _checked(sys.stdin.read(), "standard input") if prompt == "-" else _checked(prompt, "--prompt")
    kinds = (device, context, dtype, activations, cache, engine)
    with loaded(model, *kinds, layers_on, prefill_chunk) as made, _drafting(draft, *kinds) as drafting:
        named = _with_adapter(made, adapter)
        _print(made.generate(text, max_tokens, **drawing, stop=stop or (), lookup=lookup, draft=drafting,
                             guesses=guesses, adapter=named))  # fmt: skip
        if max_tokens is not None:
            _say_full(made)
        if stats:
            show_stats(made)


def chat(
    model: Model,
    system: Annotated[str | None, option(help="What the model is told before the talk.")] = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = 0.0,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = None,
    device: Device = "auto",
    context: Context = None,
    dtype: Kept = None,
    activations: Activations = None,
    cache: Cache = None,
    engine: Engine = None,
    layers_on: LayersOn = None,
    prefill_chunk: PrefillChunk = None,
    lookup: Lookup = False,
    draft: DraftModel = None,
    guesses: Guesses = 7,
    adapter: AdapterFolder = None,
    stats: Show = False,
) -> None:
    """Talk with a language model, a line at a time, by the model's own chat template; end with Ctrl-D."""
    from rlx.formats.tokenizer.chat import ChatTemplate

    drawing = _drawing(temperature, top_k, top_p, seed)
    messages: list[dict[str, str]] = [] if system is None else [{"role": "system", "content": system}]
    kinds = (device, context, dtype, activations, cache, engine)
    with loaded(model, *kinds, layers_on, prefill_chunk) as made, _drafting(draft, *kinds) as drafting:
        ChatTemplate.of(made.tokenizer)  # a model without one is refused before anything is asked
        named = _with_adapter(made, adapter)
        while True:
            if sys.stdin.isatty():
                print("> ", end="", file=sys.stderr, flush=True)
            line = sys.stdin.readline()
            if not line:
                return
            messages.append({"role": "user", "content": _checked(line.rstrip("\r\n"), "the line")})
            ids = _room(made, messages, max_tokens)
            if ids is None:
                messages.pop()
                continue
            pieces = made.generate(
                ids, max_tokens, **drawing, lookup=lookup, draft=drafting, guesses=guesses, adapter=named
            )
            messages.append({"role": "assistant", "content": _print(pieces, len(messages) > 2)})
            _say_full(made)
            if stats:
                show_stats(made)


def _checked(text: str, what: str) -> str:
    """The text. Raises: RlxError where Python has read bytes that are no UTF-8, as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        where = f"{what} is not UTF-8 text from character {error.start} on"
        raise RlxError(f"{where}; iconv -t UTF-8 converts it") from None
    return text


def _drawing(temperature: float, top_k: int | None, top_p: float | None, seed: int | None) -> dict[str, Any]:
    """The settings of draws. Raises: RlxError for those that have no effect, since there is no temperature."""
    given = {"--top-k": top_k, "--top-p": top_p, "--seed": seed}
    idle = [name for name, value in given.items() if value is not None]
    if idle and not temperature:
        verb = "has" if len(idle) == 1 else "have"
        raise RlxError(f"{', '.join(idle)} {verb} no effect without a temperature: the likeliest token is taken each "
                       "time; give --temperature 0.8, or leave them out")  # fmt: skip
    return {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed or 0}


def show_stats(model: Any) -> None:
    """Counts and speeds, after each device, its layers where there are several, and what runs its kernels; then how
    much of the device's bandwidth the reading of large weights takes, which is measured first."""
    from rlx.cli.bandwidth import read_bandwidth
    from rlx.models.language.stats import named_bytes

    stages = model.decoder.stages
    for stage in stages:
        info, engine = stage.session.info, stage.session.options.engine
        where = stage.where if stages[1:] else info.id
        print(f"device: {where}, {full_name(info, engine)}", file=sys.stderr)
    print(model.stats, file=sys.stderr)
    stats = model.stats
    # Guesses take several tokens for one reading of the weights, and small weights stay in the caches of processors.
    if stages[1:] or stats.guessed or not stats.rate or stats.token_bytes < _LARGE:
        return
    if measured := read_bandwidth(stages[0].session):
        share = stats.rate * stats.token_bytes / measured
        print(f"bandwidth: {share:.0%} of the {named_bytes(measured)}/s at which {stats.where} reads memory",
              file=sys.stderr)  # fmt: skip


def _say_full(model: Any) -> None:
    """Says where the context has ended an answer, for which more tokens were allowed."""
    if model.stats.ended == "context":
        print(f"rlx: the answer ends here: the context of {model.context:,} tokens is full", file=sys.stderr)


def _room(model: Any, messages: list[dict[str, str]], max_tokens: int | None) -> list[int] | None:
    """The tokens of messages, of which the oldest turns go where they leave no room for an answer; None where the last
    line alone is too long."""
    room = min(_ANSWER, model.context // 4) if max_tokens is None else min(max_tokens, model.context // 2)
    first = 1 if messages[0]["role"] == "system" else 0
    if (least := len(model.chat_ids([*messages[:first], messages[-1]]))) > model.context:
        what = f"this line makes {least:,} tokens, more than the context of {model.context:,}"
        print(f"rlx: {what}; shorten it, or begin anew with a larger --context", file=sys.stderr)
        return None
    dropped = 0
    while len(ids := model.chat_ids(messages)) > model.context - room and len(messages) > first + 1:
        del messages[first : first + 2]  # a question with its answer
        dropped += 1
    if dropped:
        turns = "turn is" if dropped == 1 else f"{dropped} turns are"
        print(f"rlx: the context of {model.context:,} tokens is full: the oldest {turns} forgotten", file=sys.stderr)
    return list(ids)


def loaded(
    model: Path, device: str, context: int | None, dtype: str | None, activations: str | None, cache: str | None,
    engine: str | None = None, layers_on: str | None = None, prefill_chunk: int | None = None, encoders: bool = False,
) -> Any:  # fmt: skip
    """The language model of a command, or the sentence encoder where `encoders`. Raises: RlxError for what makes no
    text, and as `rlx.models.load`."""
    from rlx.models import LanguageModel, load

    with drawn(only="loading"):
        made = load(
            model, device, context=4096 if context is None else context, dtype=dtype, activations=activations,
            cache=cache, engine=cast(Any, engine), layers_on=layers_on, prefill_chunk=prefill_chunk,
        )  # fmt: skip
    if not isinstance(made, LanguageModel):
        from rlx.models import SentenceEncoder  # here, since few files hold one

        if encoders and isinstance(made, SentenceEncoder):
            return made
        made.close()
        if not isinstance(made, SentenceEncoder):
            raise RlxError(f"{model} holds a Whisper model, which writes what it hears; `rlx transcribe` takes it")
        raise RlxError(f"{model} holds a sentence encoder, which makes no text; `rlx embed` takes it")
    if context is not None and made.context < context:
        what = f"was made for {made.context:,} tokens, which is its context now, not {context:,}"
        print(f"rlx: {model} {what}", file=sys.stderr)
    return made


def _drafting(draft: Path | None, *kinds: Any) -> Any:
    return nullcontext() if draft is None else loaded(draft, *kinds)


def _with_adapter(model: Any, folder: Path | None) -> str | None:
    """The name of the adapter once it is loaded."""
    if folder is None:
        return None
    model.load_adapter("given", folder)
    return "given"


def _print(pieces: Iterator[str], prepared: bool = False) -> str:
    """Prints the pieces as they come; where the model's programs are not `prepared` yet, what is done before the first
    one is drawn."""
    text = ""
    with nullcontext() if prepared else drawn("before the first token"):
        piece = next(pieces, None)
    while piece is not None:
        print(piece, end="", flush=True)
        text += piece
        piece = next(pieces, None)
    print()
    return text
