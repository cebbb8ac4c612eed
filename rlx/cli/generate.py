"""`rlx generate` and `rlx chat`: text from a language model, as it is made."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from rlx.cli.devices import full_name
from rlx.cli.groups import spread
from rlx.cli.language import Drawing, Guessing, Loading, ModelName, text_of
from rlx.errors import RlxError, meant
from rlx.host.progress import drawn

_LARGE = 64 << 20  # bytes of weights a token
_ANSWER = 256  # tokens of a context that a talk leaves free for an answer

Model = Annotated[
    Path | None,
    typer.Argument(help="A Hugging Face folder with a language model, or a GGUF file.", show_default=False),
]
MaxTokens = Annotated[
    int | None,
    typer.Option(
        "--max-tokens", "--n-predict", "--predict", "-n",
        help="How many tokens at most; -1: as many as the context takes, which is the default.",
        min=-1,
    ),
]  # fmt: skip
AdapterFolder = Annotated[
    Path | None, typer.Option("--adapter", "--lora", help="A LoRA adapter: PEFT's folder, or llama.cpp's .gguf.")
]
Show = Annotated[bool, typer.Option("--stats", help="Print counts and speeds at the end, on standard error.")]


@spread
def generate(
    model: Model = None,
    text: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="The text to go on from.", show_default=False)
    ] = None,
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", help="The text to go on from; - reads standard input.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", help="A file with that text, - standard input, less a line break at its end."),
    ] = None,
    *,
    name: ModelName = None,
    max_tokens: MaxTokens = None,
    drawing: Drawing,
    stop: Annotated[list[str] | None, typer.Option(help="A text before which to end; may be repeated.")] = None,
    loading: Loading,
    guessing: Guessing,
    adapter: AdapterFolder = None,
    stats: Show = False,
) -> None:
    """Go on from a prompt with a language model, and print the text as it is made.

    Without --temperature the text is the same on every device.
    """
    if name is not None and model is not None and text is None:  # then the first word is the prompt
        model, text = None, str(model)
    path = chosen_model("generate", model, name)
    begun = _prompt(text, prompt, file)
    most, settings = _most(max_tokens), drawing.settings()
    with loading.load(path) as made, loading.load_draft(guessing.draft) as drafting:
        named = _with_adapter(made, adapter)
        _print(made.generate(begun, most, **settings, stop=stop or (), lookup=guessing.lookup, draft=drafting,
                             guesses=guessing.guesses, adapter=named))  # fmt: skip
        if most is not None:
            _say_full(made)
        if stats:
            show_stats(made)


@spread
def chat(
    model: Model = None,
    *,
    name: ModelName = None,
    system: Annotated[
        str | None, typer.Option("--system", "--system-prompt", "-sys", help="What the model is told before the talk.")
    ] = None,
    max_tokens: MaxTokens = None,
    drawing: Drawing,
    loading: Loading,
    guessing: Guessing,
    adapter: AdapterFolder = None,
    stats: Show = False,
) -> None:
    """Talk with a language model, a line at a time, by the model's own chat template; end with Ctrl-D or /exit.

    /help lists what else there is beside lines for the model.
    """
    from rlx.formats.tokenizer.chat import ChatTemplate

    path = chosen_model("chat", model, name)
    most, settings = _most(max_tokens), drawing.settings()
    begun: list[dict[str, str]] = [] if system is None else [{"role": "system", "content": system}]
    messages = begun[:]
    with loading.load(path) as made, loading.load_draft(guessing.draft) as drafting:
        ChatTemplate.of(made.tokenizer)  # a model without a template is refused before the first question
        if made.decoder.ranks is not None and made.decoder.ranks.team is None:
            raise RlxError("chat: lines come to one process alone, not to all that mpiexec started; without mpiexec "
                           "--tensor-parallel takes devices of one process")  # fmt: skip
        named = _with_adapter(made, adapter)
        if sys.stdin.isatty():
            print("end with Ctrl-D or /exit; /help lists what else there is", file=sys.stderr)
        while True:
            if sys.stdin.isatty():
                print("> ", end="", file=sys.stderr, flush=True)
            line = sys.stdin.readline()
            said = _command(line)
            if not line or said == "exit":
                return
            if said == "clear":
                messages = begun[:]
            elif said == "stats":
                show_stats(made)
            if said is not None:
                continue
            messages.append({"role": "user", "content": _checked(line.rstrip("\r\n"), "the line")})
            ids = _room(made, messages, most)
            if ids is None:
                messages.pop()
                continue
            pieces = made.generate(ids, most, **settings, lookup=guessing.lookup, draft=drafting,
                                   guesses=guessing.guesses, adapter=named)  # fmt: skip
            messages.append({"role": "assistant", "content": _print(pieces, len(messages) > 2)})
            _say_full(made)
            if stats:
                show_stats(made)


_COMMANDS = {
    "help": "lists these",
    "exit": "ends the talk, as Ctrl-D does; so do /quit and /bye",
    "clear": "forgets the talk and begins anew; so does /new",
    "stats": "prints counts and speeds of the last answer",
}
_ALSO = {"quit": "exit", "bye": "exit", "new": "clear", "?": "help"}


def _command(line: str) -> str | None:
    """Which of the talk's own commands a line is: one word that begins with a slash. None for a line to the model;
    "help" also for a word that is none, about which it says so."""
    word = line.strip()
    if line[:1] != "/" or not word[1:] or not (word[1:].isalpha() or word == "/?"):
        return None
    asked = _ALSO.get(word[1:].lower(), word[1:].lower())
    if asked not in _COMMANDS:
        print(f"rlx: there is no {word}{meant(asked, _COMMANDS)}; a space before it says it to the model",
              file=sys.stderr)  # fmt: skip
        return "help"
    if asked == "help":
        for known, what in _COMMANDS.items():
            print(f"/{known:<6} {what}", file=sys.stderr)
    return asked


def chosen_model(command: str, word: Path | None, option: Path | None) -> Path:
    """The model that a command's first word or --model names. Raises: RlxError for none, and for two."""
    if word is not None and option is not None:
        raise RlxError(f"{command}: the model is {word}, and by --model {option}; give one of them")
    model = word if option is None else option
    if model is None:
        raise RlxError(f"{command}: no model; give a GGUF file or a Hugging Face folder: rlx {command} model.gguf")
    return model


def _prompt(text: str | None, prompt: str | None, file: Path | None) -> str:
    """The prompt, which one of the three gives. Raises: RlxError."""
    asked = {"the second word": text, "--prompt": prompt, "--file": file}
    given = [what for what, value in asked.items() if value is not None]
    if len(given) > 1:
        raise RlxError(f"generate: {' and '.join(given)} both give a prompt; leave one out")
    if not given:
        raise RlxError('generate: no prompt; give it as the second word, by -p "Once upon a time", or as a file by -f, '
                       "where - reads standard input (rlx chat talks with a model)")  # fmt: skip
    if file is not None:
        whole = _read() if str(file) == "-" else text_of(file)
        return whole[:-1] if whole.endswith("\n") else whole
    words = prompt if text is None else text
    assert words is not None
    return _read() if prompt == "-" else _checked(words, given[0])


def _read() -> str:
    """What standard input gives."""
    if sys.stdin.isatty():
        print("reading the prompt from the terminal; end with Ctrl-D", file=sys.stderr)
    return _checked(sys.stdin.read(), "standard input")


def _most(max_tokens: int | None) -> int | None:
    return None if max_tokens == -1 else max_tokens


def _checked(text: str, what: str) -> str:
    """The text. Raises: RlxError where Python has read bytes that are no UTF-8, as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        where = f"{what} is not UTF-8 text from character {error.start} on"
        raise RlxError(f"{where}; iconv -t UTF-8 converts it") from None
    return text


def show_stats(model: Any) -> None:
    """Counts and speeds, after each device, its layers where there are several, and what runs its kernels; then how
    much of the device's bandwidth the reading of large weights takes, which is measured first."""
    from rlx.cli.bandwidth import read_bandwidth
    from rlx.models.language.stats import named_bytes

    stages, ranks = model.decoder.stages, model.decoder.ranks
    for i, stage in enumerate(stages):
        info, engine = stage.session.info, stage.session.options.engine
        where = stage.where if stages[1:] else info.id
        if ranks is not None:
            where = f"{info.id} (rank {ranks.meeting.own[i]} of {ranks.meeting.mesh.size})"
        print(f"device: {where}, {full_name(info, engine)}", file=sys.stderr)
    if ranks is not None:
        print(f"sums: in {ranks.meeting.sums}, behind each block", file=sys.stderr)
    print(model.stats, file=sys.stderr)
    stats = model.stats
    # The bandwidth says nothing where guessing yields several tokens for one reading of the weights, nor for small
    # weights, which stay in processors' caches.
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
    """The tokens of the messages. Drops the oldest turns if they leave no room for an answer; None, with a message, if
    the last line alone is too long."""
    room = min(_ANSWER, model.context // 4) if max_tokens is None else min(max_tokens, model.context // 2)
    first = 1 if messages[0]["role"] == "system" else 0
    if (least := len(model.chat_ids([*messages[:first], messages[-1]]))) > model.context:
        what = f"this line makes {least:,} tokens, more than the context of {model.context:,}"
        print(f"rlx: {what}; shorten it, or begin anew with a larger --context", file=sys.stderr)
        return None
    dropped = 0
    while len(ids := model.chat_ids(messages)) > model.context - room and len(messages) > first + 1:
        del messages[first : first + 2]  # the oldest question and its answer
        dropped += 1
    if dropped:
        turns = "turn is" if dropped == 1 else f"{dropped} turns are"
        print(f"rlx: the context of {model.context:,} tokens is full: the oldest {turns} forgotten", file=sys.stderr)
    return list(ids)


def _with_adapter(model: Any, folder: Path | None) -> str | None:
    """Loads an adapter, if one is given, and returns its name."""
    if folder is None:
        return None
    model.load_adapter("given", folder)
    return "given"


def _print(pieces: Iterator[str], prepared: bool = False) -> str:
    """Prints the pieces as they come, and returns the text. Unless the model's programs are `prepared`, progress is
    shown until the first piece."""
    text = ""
    with nullcontext() if prepared else drawn("before the first token"):
        piece = next(pieces, None)
    while piece is not None:
        print(piece, end="", flush=True)
        text += piece
        piece = next(pieces, None)
    print()
    return text
