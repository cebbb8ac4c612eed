"""`rlx serve`: a language model for clients of OpenAI's API."""

from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from rlx.cli.generate import Model, chosen_model
from rlx.cli.groups import spread
from rlx.cli.language import Loading, ModelName
from rlx.errors import RlxError
from rlx.host.progress import drawn

_MISSING = 'serve needs the packages of `rlx[serve]`: pip install "rlx[serve]" ({} is missing)'


@spread
def serve(
    model: Model = None,
    *,
    file: ModelName = None,
    host: Annotated[str, typer.Option(help="The address to listen on; others than loopback need a key.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.", min=0, max=65535)] = 8080,
    name: Annotated[
        str | None, typer.Option("--name", "--alias", "-a", help="What clients call the model. Default: of its file.")
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(help="A file with the key that clients must send. Default: RLX_API_KEY, if set.")
    ] = None,
    slots: Annotated[
        int, typer.Option("--slots", "--parallel", "-np", help="How many sequences run at once.", min=2, max=1024)
    ] = 8,
    pages: Annotated[
        int | None, typer.Option(help="Keep keys and values in so many shared pages of 64 tokens.", min=2)
    ] = None,
    lookup: Annotated[bool, typer.Option("--lookup", help="Guess from each text; sooner if it repeats.")] = False,
    loading: Loading,
    adapter: Annotated[
        list[str] | None,
        typer.Option(help="NAME=FOLDER of a LoRA adapter, which requests choose as their model; may be repeated."),
    ] = None,
    pooling: Annotated[
        str | None, typer.Option(help='Of embeddings: "mean", "cls" or "last". Default: as the file says, else last.')
    ] = None,
    max_prompt: Annotated[int | None, typer.Option(help="Tokens of a prompt. Default: the context.", min=1)] = None,
    max_body: Annotated[
        int | None, typer.Option(help="Bytes of a request. Default: 1 MiB, 25 MiB with a sound.", min=1024)
    ] = None,
    max_connections: Annotated[int, typer.Option(help="Connections at once.", min=1)] = 256,
    max_waiting: Annotated[int, typer.Option(help="Sequences that wait for a slot.", min=0)] = 64,
    seconds: Annotated[float, typer.Option(help="How long an answer may take.", min=1)] = 600.0,
) -> None:
    """Serve a model over HTTP, as clients of OpenAI's API expect: completions, chat, responses, embeddings, and what is
    said in sounds by Whisper's.

    Requests are batched as they come. A page to try it is at the address that the command prints; /metrics has counts
    for Prometheus. Ctrl-C ends it once running answers have had some seconds to end.
    """
    _outlive_pipes()
    from rlx.models import LanguageModel, SentenceEncoder, Transcriber
    from rlx.models.language.reading import POOLINGS

    try:
        from rlx.serve.app import Service
        from rlx.serve.encoder import EncoderService
        from rlx.serve.http import bound, serve
        from rlx.serve.limits import Limits
        from rlx.serve.sounds import TranscriberService
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("rlx"):
            raise
        raise RlxError(_MISSING.format(error.name)) from error
    key = _key(api_key_file)
    kind = next((known for known in POOLINGS if known == pooling), None)
    if pooling is not None and kind is None:
        raise RlxError(f"serve: --pooling {pooling!r} is none of {', '.join(POOLINGS)}")
    adapters = _adapters(adapter or [])
    sizes = {} if max_body is None else {"body_bytes": max_body, "sound_bytes": max_body}
    limits = Limits(
        **sizes, prompt_tokens=max_prompt, connections=max_connections, waiting=max_waiting,
        request_seconds=seconds,
    )  # fmt: skip
    path = chosen_model("serve", model, file)
    with bound(host, port, key) as listening, loading.load(path, all_kinds=True) as made:
        called = name or _called(path)
        if not isinstance(made, LanguageModel):
            what = "an encoder" if isinstance(made, SentenceEncoder) else "a model of speech"
            if any(given is not None for given in (pooling, loading.context, loading.cache, pages)):
                raise RlxError("serve: --pooling, --context, --cache and --pages are for language models; this is "
                               f"{what}")  # fmt: skip
            if adapters or lookup:
                raise RlxError(f"serve: --adapter and --lookup are for language models; this is {what}")
        if isinstance(made, Transcriber):
            service: Service = TranscriberService(made, called, limits=limits, key=key)
            device_name, room = made.session.info.id, "sounds in WAV"
        elif isinstance(made, SentenceEncoder):
            service = EncoderService(made, called, limits=limits, key=key)
            device_name, room = made.session.info.id, f"texts of {made.max_length} tokens"
        else:
            for one, folder in adapters.items():
                made.load_adapter(one, folder)
            service = Service(made, called, slots=slots, limits=limits, key=key, pooling=kind, pages=pages,
                              lookup=lookup)  # fmt: skip
            with drawn("before the first request"):
                service.engine.batch.prepare()
            device_name, room = made.decoder.where, f"{slots} slots of {made.context} tokens"
            room += "" if pages is None else f" in {pages} pages"
        where, taken = listening.getsockname()[:2]
        shown = f"[{where}]" if ":" in where else where

        def ready() -> None:
            gc.collect()
            gc.freeze()  # objects made so far are kept: a collection then looks only at those that requests made
            what = f"{', '.join(service.names)} on {device_name}, {room}"
            print(f"rlx: serving {what} at http://{shown}:{taken}", file=sys.stderr, flush=True)

        serve(service, listening, ready)


def _outlive_pipes() -> None:
    """From now on to the end of the process, neither a client that has left nor a reader of the output that has exited
    ends it."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    sys.stdout, sys.stderr = _Output(sys.stdout), _Output(sys.stderr)


class _Output:
    """A standard stream. What it cannot write is lost; once its reader has exited, all of it goes nowhere."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            self._stream.write(text)
        except OSError as error:
            self._lose(error)
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._lose(error)

    def _lose(self, error: OSError) -> None:
        if isinstance(error, BrokenPipeError):  # else writing what the stream still holds fails again at the end
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


def _called(model: Path) -> str:
    """The model's default name: a file's name without its ending, or a folder's whole name, which may have dots
    (Llama-3.2-1B). Links are not followed."""
    return os.path.basename(os.path.abspath(model)) if model.is_dir() else model.stem


def _adapters(given: list[str]) -> dict[str, Path]:
    """The folders of adapters by their names. Raises: RlxError for what names none, and for a name given twice."""
    result: dict[str, Path] = {}
    for one in given:
        name, _, folder = one.partition("=")
        if not name or not folder:
            raise RlxError(f"serve: --adapter {one!r} is no NAME=FOLDER; give a name for requests and a PEFT folder")
        if name in result:
            raise RlxError(f"serve: two adapters have the name {name!r}")
        result[name] = Path(folder)
    return result


def _key(file: Path | None) -> str | None:
    if file is None:
        return os.environ.get("RLX_API_KEY") or None
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise RlxError(f"serve: the key in {file} cannot be read: {error}") from error
