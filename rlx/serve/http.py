"""The HTTP server under the application: its socket, its connections' limits, and its end by a signal."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import json
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from rlx.errors import RlxError
from rlx.serve.app import Service, make_app
from rlx.serve.limits import Limits

MAX_HEADER_BYTES = 32 << 10  # a request's line and headers


def is_loopback(host: str) -> bool:
    """Whether an address can be reached only from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bound(host: str, port: int, key: str | None) -> socket.socket:
    """A listening socket; port 0 takes a free one.

    Raises: RlxError for an address that other machines can reach if there is no key, and for one that cannot be bound.
    """
    if key is None and not is_loopback(host):
        raise RlxError(
            f"serve: others than this machine reach {host}, so it needs an API key: set RLX_API_KEY, or give "
            "--api-key-file; --host 127.0.0.1 needs none"
        )
    if key is not None and (len(key) < 16 or not key.isascii() or not key.isprintable() or " " in key):
        raise RlxError("serve: the API key has less than 16 characters, or others than printable ASCII without spaces")
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        result = socket.socket(family, kind)
    except (OSError, UnicodeError) as error:
        raise RlxError(f"serve: {host} is no address of this machine: {error}") from error
    try:
        result.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        result.bind(address)
        result.listen(128)
    except OSError as error:
        result.close()
        other = "; give another --port, 0 for a free one" if error.errno in (errno.EADDRINUSE, errno.EACCES) else ""
        raise RlxError(f"serve: cannot listen on {host}, port {port}: {error.strerror or error}{other}") from error
    return result


def serve(service: Service, listening: socket.socket, ready: Callable[[], None], started: Any = None) -> None:
    """Answers requests until SIGINT or SIGTERM, or until the model fails. `ready` is called once requests are answered,
    `started` with the server, whose `should_exit` ends it too. Raises: RlxError if the model failed."""
    limits = service.limits
    config = uvicorn.Config(
        make_app(service), http=_patient(limits), ws="none", log_config=None, log_level="critical",
        access_log=False,
        proxy_headers=False, server_header=False, timeout_keep_alive=5, h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        timeout_graceful_shutdown=max(1, round(limits.grace_seconds)),
    )  # fmt: skip
    server: Any = uvicorn.Server(config)
    server.capture_signals = lambda: _signals(server, service)
    begin = server.startup

    async def startup(sockets: Any = None) -> None:
        await begin(sockets=sockets)
        ready()

    server.startup = startup
    service.engine.failed = lambda: setattr(server, "should_exit", True)
    if started is not None:
        started(server)
    writes = logging.getLogger("asyncio")
    writes.addFilter(_told)
    try:
        server.run(sockets=[listening])
    finally:
        writes.removeFilter(_told)
        service.engine.close()  # still open if a second signal ended the server at once
    if service.engine.failure is not None:
        raise RlxError(f"serve: the model has stopped: {service.engine.failure}")


def _told(record: logging.LogRecord) -> bool:
    """Whether to log a record of asyncio: not its warning for each write to a client that has disconnected."""
    return record.msg != "socket.send() raised exception."


@contextmanager
def _signals(server: Any, service: Service) -> Iterator[None]:
    """Handles signals: the first ends the server once running answers have ended or timed out, a second one at once."""

    def stop(*_: object) -> None:
        if server.should_exit:
            server.force_exit = True
            return
        server.should_exit = True
        running = service.engine.running
        what = "1 answer has" if running == 1 else f"{running} answers have"
        answers = f"; {what} {service.limits.grace_seconds:g} s to end" if running else ""
        print(f"rlx: stopping{answers}", file=sys.stderr, flush=True)

    try:
        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # only the main thread can handle signals
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _patient(limits: Limits) -> Any:
    """The factory of a connection's protocol: HTTP/1.1 with a time limit for headers, and a limit on the number of
    connections; further ones are refused at once."""

    alive: set[Any] = set()

    def build(**settings: Any) -> Any:
        if len(alive) >= limits.connections:
            return _Full()
        protocol = _Connection(alive, **settings)
        alive.add(protocol)
        seconds = limits.header_seconds
        asyncio.get_running_loop().call_later(seconds, _look, protocol, alive, seconds, None)
        return protocol

    return build


class _Connection(H11Protocol):  # type: ignore[misc,unused-ignore]
    """A client's connection; the log says if it ends before its answer."""

    def __init__(self, alive: set[Any], **settings: Any) -> None:
        super().__init__(**settings)
        self._alive, self._ended = alive, False

    def eof_received(self) -> None:
        self._ended = True
        super().eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        self._alive.discard(self)
        answering = self.cycle is not None and not self.cycle.response_complete
        super().connection_lost(error)
        # A reset after the answer is how proxies such as HAProxy end a connection that they no longer need.
        reset = isinstance(error, ConnectionResetError)
        if (error is not None and not reset) or ((reset or self._ended) and (answering or self.conn.trailing_data[0])):
            what = f" of {self.scope['path'][:80]!r}" if self.cycle is not None else ""
            print(f"rlx: {(self.client or ('a client',))[0]} left before the end{what}", file=sys.stderr, flush=True)


def _look(protocol: Any, alive: set[Any], seconds: float, seen: Any) -> None:
    """Called every `seconds`. Closes a connection that has sent no complete request since the last call. Aborts one
    that was closing already at that call, since its client does not read what was sent and would keep it open for
    ever."""
    transport, cycle = protocol.transport, protocol.cycle
    idle = cycle is None or cycle.response_complete
    closing = transport is not None and transport.is_closing()
    if protocol in alive and closing and seen is transport:
        transport.abort()
    if protocol not in alive:
        if cycle is not None and (idle or cycle.disconnected):
            protocol.cycle = None  # breaks a reference cycle, so memory is freed without the garbage collector
        return
    if idle and seen is cycle and not closing:
        transport.close()
        closing = True
    now = transport if closing else cycle if idle else protocol
    asyncio.get_running_loop().call_later(seconds, _look, protocol, alive, seconds, now)


class _Full(asyncio.Protocol):
    """A connection beyond the limit."""

    def connection_made(self, transport: Any) -> None:
        error = {"message": "too many connections", "type": "server_error", "param": None, "code": None}
        body = json.dumps({"error": error}).encode()
        head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nretry-after: 1\r\nconnection: close"
        transport.write(f"HTTP/1.1 503 Service Unavailable\r\n{head}\r\n\r\n".encode() + body)
        transport.close()
