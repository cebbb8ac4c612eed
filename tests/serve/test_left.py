"""Clients that leave at any point of a request, and readers of the command's output that exit: the server goes on."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs rlx[serve]")
pytest.importorskip("uvicorn", reason="needs rlx[serve]")

from tests.serve.served import CHAT, GREEDY, HELLO, PROMPT, TEXT, VECTORS, Served

LONG = {**GREEDY, "prompt": "hello", "max_tokens": 150}
HELD = ("rlx_sequences_running", "rlx_sequences_waiting", "rlx_embeddings_waiting")
RESET = b"\1\0\0\0\0\0\0\0"


def _request(path: str, body: dict[str, Any] | None = None) -> bytes:
    if body is None:
        return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


REQUESTS = [
    _request("/health"), _request("/v1/models"), _request(TEXT, {**PROMPT, "temperature": -1}),
    _request(TEXT, LONG), _request(TEXT, {**LONG, "stream": True, "n": 3}),
    _request(CHAT, {**GREEDY, "messages": HELLO, "stream": True, "max_tokens": 100}),
    _request(VECTORS, {"model": "tiny", "input": ["a b c"] * 9}), _request("/nowhere"),
]  # fmt: skip


@contextmanager
def _command(folder: Path, repo: Path, err: Any, without: str = "") -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """`rlx serve`, whose standard output nobody reads, and its port; `without` are the digits of streams that are
    closed."""
    out, closed = os.pipe()
    os.close(out)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["serve", str(folder), "--device", "cpu", "--name", "tiny", "--context", "200", "--slots", "3"]
    command += ["--port", str(port), "--pages", "41"]
    path = os.pathsep.join([str(repo), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "RLX_CPU": "numpy", "PYTHONPATH": path}
    shell = ["sh", "-c", f'exec "$@"{"".join(f" {n}>&-" for n in without)}', "sh"]
    process = subprocess.Popen([*shell, sys.executable, "-m", "rlx", *command], stdout=closed, stderr=err, env=env)
    os.close(closed)
    try:
        yield process, port
    finally:
        process.kill()
        process.wait()


def _serving(log: Path, process: subprocess.Popen[bytes]) -> None:
    while "rlx: serving" not in log.read_text():
        assert process.poll() is None, log.read_text()
        select.select([], [], [], 0.02)


def _remote(port: int) -> Served:
    remote = Served.__new__(Served)
    remote.port = port
    return remote


@pytest.mark.skipif(not hasattr(signal, "SIGPIPE"), reason="needs a system with pipes that end processes")
def test_a_reset_after_the_answer_is_no_client_that_left(server: Served, capfd: pytest.CaptureFixture[str]) -> None:
    """As HAProxy ends connections to its servers."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        while not client.recv(65536).endswith(b"}"):
            pass
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    server.ask("/health")
    assert "left" not in capfd.readouterr().err


@pytest.mark.parametrize("clients", [96, pytest.param(1000, marks=pytest.mark.late)])
def test_clients_leave(clients: int, folder: Path, repo: Path, tmp_path: Path) -> None:
    """Each after another part of a request or of its answer, by an orderly end or a reset: a line of the log at most,
    and all that they had is free."""
    log = tmp_path / "log"
    with log.open("wb") as err, _command(folder, repo, err) as (process, port):
        _serving(log, process)
        remote = _remote(port)
        pages = remote.metrics()["rlx_pages_free"]
        for i in range(clients):
            request, way = REQUESTS[i % len(REQUESTS)], i // len(REQUESTS)
            sent = len(request) if way % 2 else way * 7 % len(request)
            client = socket.create_connection(("127.0.0.1", port), timeout=60)
            client.sendall(request[:sent])
            if way % 8 == 7:  # in the midst of the answer
                client.recv(20)
            if way % 4 in (1, 2):
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            client.close()
            assert process.poll() is None, (i, request[:sent], process.returncode)
        remote.until(lambda now: now["rlx_pages_free"] == pages and not any(now[name] for name in HELD))
        lines = log.read_text().splitlines()
        left = [line for line in lines if " left before the end" in line]
        assert clients / 4 < len(left) <= clients and len(lines) - len(left) == 1, lines[:3] + lines[-3:]
        assert any(line.endswith(" left before the end of '/health'") for line in left)
        assert len(remote.ask(TEXT, {**LONG, "n": 3})[1]["choices"]) == 3
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


@pytest.mark.skipif(not hasattr(signal, "SIGPIPE"), reason="needs a system with pipes that end processes")
def test_the_reader_of_the_log_exits(folder: Path, repo: Path) -> None:
    """`rlx serve … 2>&1 | head -1` goes on, as does what would have gone to the log, and ends as it should."""
    log, err = os.pipe()
    with _command(folder, repo, err) as (process, port):
        os.close(err)
        held = b""
        while not held.endswith(b"\n"):
            part = os.read(log, 1)
            assert part, held
            held += part
        os.close(log)
        assert b"rlx: serving tiny" in held
        remote = _remote(port)
        for request in REQUESTS:
            client = socket.create_connection(("127.0.0.1", port), timeout=60)
            client.sendall(request)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            client.close()
        assert remote.ask("/health") == (200, {"status": "ok"})
        assert remote.ask(TEXT, LONG)[0] == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


@pytest.mark.skipif(not hasattr(signal, "SIGPIPE"), reason="needs a system with pipes that end processes")
@pytest.mark.parametrize("closed", [*(pytest.param(n, marks=pytest.mark.late) for n in "12"), "12"])
def test_streams_that_are_closed_from_the_beginning(closed: str, folder: Path, repo: Path, tmp_path: Path) -> None:
    """`rlx serve … >&- 2>&-`, as some supervisors start it: what the log would have had is lost, and no client reads it
    as an answer."""
    log = tmp_path / "log"
    with log.open("wb") as err, _command(folder, repo, err, closed) as (process, port):
        while True:
            assert process.poll() is None, log.read_text()
            try:
                socket.create_connection(("127.0.0.1", port), timeout=60).close()
                break
            except ConnectionRefusedError:
                select.select([], [], [], 0.02)
        for request in REQUESTS:
            client = socket.create_connection(("127.0.0.1", port), timeout=60)
            client.sendall(request)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            client.close()
        assert _remote(port).ask(TEXT, LONG)[0] == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()
