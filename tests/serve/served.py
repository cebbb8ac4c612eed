"""A tiny model behind a server in this process, and plain clients of it."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlx.models import LanguageModel, SentenceEncoder, Transcriber, load
from rlx.serve import http as serving
from rlx.serve.app import Service
from rlx.serve.encoder import EncoderService
from rlx.serve.limits import Limits
from rlx.serve.sounds import TranscriberService
from tests.models.language import tiny

CONFIG = {**tiny.LLAMA, "vocab_size": 140, "max_position_embeddings": 512}
TEMPLATE = """{% for t in tools or [] %}<tool_call>{{ t.function.name }}
{% endfor %}{% for m in messages %}{% if m.content == "odd" %}{{ raise_exception("an odd message") }}{% endif -%}
{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}
{% endfor %}assistant: """
TEXT, CHAT, VECTORS = "/v1/completions", "/v1/chat/completions", "/v1/embeddings"
GREEDY: dict[str, Any] = {"model": "tiny", "temperature": 0}
HELLO = [{"role": "user", "content": "hello"}]
PROMPT = {**GREEDY, "prompt": "a", "max_tokens": 1}
TALK = {**GREEDY, "messages": HELLO, "max_tokens": 1}


def write_model(folder: Path) -> Path:
    tiny.write_language_model(folder, CONFIG, text=True)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


class Served:
    """A server on a free port of this machine."""

    def __init__(
        self, folder: Path, limits: Limits | None = None, slots: int = 3, context: int = 200,
        adapters: Mapping[str, Path] | None = None, **more: Any,
    ) -> None:  # fmt: skip
        self.model: LanguageModel = load(folder, "cpu", context=context)
        for name, path in (adapters or {}).items():
            self.model.load_adapter(name, path)
        if isinstance(self.model, Transcriber):
            self.service: Service = TranscriberService(self.model, "tiny", limits=limits or Limits(), **more)
        elif isinstance(self.model, SentenceEncoder):
            self.service = EncoderService(self.model, "tiny", limits=limits or Limits(), **more)
        else:
            self.service = Service(self.model, "tiny", slots=slots, limits=limits or Limits(), **more)
        listening = serving.bound("127.0.0.1", 0, None)
        self.port: int = listening.getsockname()[1]
        self.error: BaseException | None = None
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(listening, ready))
        self._thread.start()
        assert ready.wait(60)

    def _run(self, listening: socket.socket, ready: threading.Event) -> None:
        try:
            with listening:
                serving.serve(self.service, listening, ready.set, lambda server: setattr(self, "server", server))
        except BaseException as error:  # noqa: BLE001 - a test looks at it
            self.error = error

    def close(self) -> None:
        self.server.should_exit = True  # type: ignore[attr-defined]
        self._thread.join(60)
        self.model.close()

    def join(self) -> None:
        self._thread.join(60)

    def ask(self, path: str, body: Any = None, method: str = "", **headers: str) -> tuple[int, Any]:
        """The status, and what came as JSON, or as text where it is none."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None:
            given = {"Content-Type": "application/json", **given}
        try:
            connection.request(method or ("GET" if body is None else "POST"), path, sent, given)
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        kind = response.getheader("content-type", "")
        return response.status, json.loads(text) if kind == "application/json" else text

    def events(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The objects of a stream, which ends as it should."""
        status, text = self.ask(path, {**body, "stream": True})
        assert status == 200, text
        parts = [part.removeprefix("data: ") for part in text.split("\n\n")]
        assert parts[-2:] == ["[DONE]", ""]
        return [json.loads(part) for part in parts[:-2]]

    def begun(self, body: dict[str, Any], path: str = "/v1/completions") -> socket.socket:
        """A connection whose stream has begun."""
        made, held = self.sent({**body, "stream": True}, path), b""
        while b"data: " not in held:
            part = made.recv(65536)
            assert part, held
            held += part
        return made

    def sent(self, body: dict[str, Any], path: str = "/v1/completions") -> socket.socket:
        """A connection on which a request was sent."""
        return self.connected(path, "Content-Type: application/json\r\n", json.dumps(body).encode())

    def connected(self, path: str, headers: str, body: bytes) -> socket.socket:
        """A connection on which a request of these bytes was sent."""
        made = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
        made.sendall(head.encode() + body)
        return made

    def metrics(self) -> dict[str, float]:
        lines = (line.split() for line in self.ask("/metrics")[1].splitlines() if line[0] != "#")
        return {name: float(value) for name, value in lines}

    def until(self, reached: Callable[[dict[str, float]], bool]) -> None:
        """Asks for the metrics until something is so."""
        end = time.monotonic() + 60
        while not reached(now := self.metrics()):
            assert time.monotonic() < end, now


@contextmanager
def served(folder: Path, **settings: Any) -> Iterator[Served]:
    made = Served(folder, **settings)
    try:
        yield made
    finally:
        made.close()
