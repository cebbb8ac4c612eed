"""Chat templates: messages to the text that a model was trained on, by the Jinja2 template of its files.

A template is a program from a stranger. It runs in Jinja2's sandbox, in a process of its own with little memory and
time (`chat_worker`), which is started once and used for all templates until one makes it end.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from rlx.errors import DTypeError, ModelFormatError, RlxError
from rlx.formats.files import plain, shown
from rlx.formats.tokenizer.language import MAX_TEMPLATE, LanguageTokenizer
from rlx.host.locks import renewed

PATIENCE = (
    20.0  # wall-clock seconds for one second of processor time, on a busy machine
)
LEAST_JINJA = (3, 1, 6)  # older sandboxes have known holes
_SECRET = "RLX_API_KEY"  # the server's key, which templates must not see
MAX_INPUT = 64_000_000  # characters of messages and tools
_REASONING = (
    "reasoning_content",
    "thinking",
    "reasoning",
)  # keys under which messages hold their reasoning


class ChatTemplate:
    """A template, and the special tokens that it may use; `where` is its file, for error messages.

    Raises: ModelFormatError for a template of more than a million bytes."""

    def __init__(self, template: str, tokens: Mapping[str, str], where: object = "the chat template") -> None:
        if len(template.encode(errors="replace")) > MAX_TEMPLATE:
            raise ModelFormatError(f"{where}: its chat template takes more than {MAX_TEMPLATE:,} bytes")
        self.template, self.tokens, self.where = template, dict(tokens), where

    @staticmethod
    def of(tokenizer: LanguageTokenizer) -> ChatTemplate:
        """The template of a model's tokenizer. Raises: RlxError for a model without one, ModelFormatError."""
        if tokenizer.chat_template is None:
            raise RlxError(f"{tokenizer.file}: the model has no chat template; generate goes on from a text")
        special = tokenizer.special
        ids = {
            "bos": special.bos,
            "eos": special.eos,
            "unk": special.unk,
            "sep": special.sep,
            "pad": special.pad,
        }
        tokens = {f"{name}_token": tokenizer.token(i) for name, i in ids.items() if i is not None}
        return ChatTemplate(tokenizer.chat_template, tokens, tokenizer.file)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        now: datetime | None = None,
        **more: Any,
    ) -> str:
        """The text of messages, up to where the answer begins. `tools` are JSON schemas, `more` further arguments of
        this template; `now` is the current time for the template. Encode the text with `special=False,
        parse_special=True`.

        Raises: DTypeError for values that are not JSON, RlxError if the template rejects these messages or Jinja2 is
        not installed, ModelFormatError for a template that is invalid or exceeds the limits on time, memory or
        output."""
        for message in messages:
            if not isinstance(message, Mapping):
                raise DTypeError(
                    f"chat: a message is {shown(message)}, expected an object with role and content"
                )
        context = {
            **self.tokens,
            **more,
            "messages": [self._as_taken(_with_reasoning(message)) for message in messages],
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
        }
        request = {"template": self.template, "context": context, "now": now and now.isoformat()}
        try:
            line = json.dumps(request)
        except (TypeError, ValueError, RecursionError) as error:
            raise DTypeError(f"chat: messages and tools must be JSON: {error}") from None
        if len(line) > MAX_INPUT:
            raise DTypeError(f"chat: {len(line):,} characters of messages; at most {MAX_INPUT:,} are taken")
        found = _PROCESS.ask(line)
        if "text" in found:
            return found["text"]
        what = plain(found["error"], 500)
        if found["kind"] == "refused":
            raise RlxError(f"{self.where}: the chat template does not take these messages: {what}")
        raise ModelFormatError(
            f"{self.where}: the chat template {'fails: ' if found['kind'] == 'error' else ''}{what}"
        )


    def _as_taken(self, message: dict[str, Any]) -> dict[str, Any]:
        """The message, with its text as a list of one part if the template reads only such lists."""
        text = message.get("content")
        if not isinstance(text, str) or not _takes_parts(self.template, tuple(self.tokens.items())):
            return message
        return {**message, "content": [{"type": "text", "text": text}]}


@lru_cache(maxsize=8)
def _takes_parts(template: str, tokens: tuple[tuple[str, str], ...]) -> bool:
    """Whether a template writes a message only if its content is a list of parts, as templates of models for images and
    texts may."""
    word = "rlxprobe"

    def writes(content: Any) -> bool:
        context = {**dict(tokens), "messages": [{"role": "user", "content": content}], "add_generation_prompt": True}
        return word in _PROCESS.ask(json.dumps({"template": template, "context": context, "now": None})).get("text", "")

    return not writes(word) and writes([{"type": "text", "text": word}])


def _with_reasoning(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with its reasoning under every key that templates read."""
    found = next((message[key] for key in _REASONING if message.get(key) is not None), None)
    return dict(message) if found is None else {"thinking": found, **message, "reasoning_content": found}


class _Process:
    """The process that renders; started when first needed, and again after it has ended."""

    def __init__(self) -> None:
        self._lock = renewed(self, "_lock", threading.Lock)
        self._process: subprocess.Popen[str] | None = None
        self._owner = 0  # the id of the process that owns the pipes: a forked child must not use them

    def ask(self, line: str) -> dict[str, str]:
        with self._lock, _pipes_survived():
            if self._process is None or self._owner != os.getpid() or self._process.poll() is not None:
                self._start()
            result = None
            try:
                result = self._exchange(line)
            finally:  # also after Ctrl-C: the pending answer would be read as that of the next request
                if result is None:
                    self._stop()
            if result is None:
                return {"kind": "limit", "error": "takes more than a second, or more memory than it may"}
            return result

    def _start(self) -> None:
        if importlib.util.find_spec("jinja2") is None:
            raise RlxError('chat templates need the package `jinja2`: pip install "rlx[hf]"')
        self._stop()
        worker = Path(__file__).with_name("chat_worker.py")
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-X", "utf8", str(worker)],
            stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, encoding="utf-8",
            env={name: value for name, value in os.environ.items() if name != _SECRET},
        )  # fmt: skip
        self._owner = os.getpid()
        ready = self._exchange(None)
        version = tuple(int(n) for n in (ready or {}).get("ready", "").split(".")[:3] if n.isdecimal())
        if version < LEAST_JINJA:
            self._stop()
            came = f"is {'.'.join(map(str, version))}" if version else "could not be started"
            raise RlxError(f"chat templates need jinja2 of version 3.1.6 at least; the one installed {came}")

    def _exchange(self, line: str | None) -> dict[str, str] | None:
        """Sends a line and returns the answer; None if the process has ended or had to be killed."""
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        clock = threading.Timer(PATIENCE, process.kill)
        clock.daemon = True
        clock.start()
        try:
            if line is not None:
                process.stdin.write(f"{line}\n")
                process.stdin.flush()
            found = process.stdout.readline()
            answer: dict[str, str] | None = json.loads(found) if found.endswith("\n") else None
            return answer
        except OSError:  # the process ended during the write
            return None
        finally:
            clock.cancel()

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:  # buffered data can no longer be written
                    continue

    def close(self) -> None:
        """Ends the process."""
        with self._lock, _pipes_survived():
            self._stop()


@contextmanager
def _pipes_survived() -> Iterator[None]:
    """In this context a write to a process that has ended raises an error, also in programs that SIGPIPE would end,
    such as commands."""
    if not hasattr(signal, "pthread_sigmask") or signal.getsignal(signal.SIGPIPE) != signal.SIG_DFL:
        yield
        return
    pipe = {signal.SIGPIPE}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, pipe)
    try:
        yield
    finally:
        if pipe & signal.sigpending():
            signal.sigwait(pipe)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_PROCESS = _Process()
atexit.register(_PROCESS.close)
