"""Two servers behind HAProxy, by the configuration of docs/servers.md. Runs where haproxy is installed."""

from __future__ import annotations

import http.client
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.serve.served import PROMPT, TEXT, Served, served

HAPROXY = shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin") or shutil.which("haproxy")
pytestmark = [
    pytest.mark.late, pytest.mark.skipif(HAPROXY is None, reason="haproxy is not installed: apt install haproxy"),
]  # fmt: skip


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


@contextmanager
def proxy(repo: Path, folder: Path, *servers: int) -> Iterator[Served]:
    """The proxy of the page in front of these ports, ready, as something to ask."""
    text = re.findall(r"^```\n(# haproxy.cfg.*?)^```", (repo / "docs/servers.md").read_text("utf-8"), re.M | re.S)[0]
    front = Served.__new__(Served)  # to be asked as a server is, of which this process has none here
    front.port = free_port()
    for old, new in zip((8000, 8080, 8081), (front.port, *servers), strict=True):
        assert text.count(f":{old}\n") == 1
        text = text.replace(f":{old}\n", f":{new}\n")
    (folder / "haproxy.cfg").write_text(text)
    assert HAPROXY is not None
    subprocess.run([HAPROXY, "-c", "-f", folder / "haproxy.cfg"], check=True, capture_output=True)
    running = subprocess.Popen([HAPROXY, "-db", "-f", folder / "haproxy.cfg"])
    try:
        while True:
            assert running.poll() is None
            try:
                front.ask("/health")
                break
            except ConnectionRefusedError:
                continue
        yield front
    finally:
        running.kill()
        running.wait()


class Backend:
    """A server that holds each stream after its first event until it is told to go on, and can drop requests."""

    def __init__(self) -> None:
        self.asked, self.go_on, self.drops = 0, threading.Event(), False
        backend = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:  # the check of health
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def do_POST(self) -> None:
                backend.asked += 1
                self.rfile.read(int(self.headers["Content-Length"]))
                self.close_connection = True
                if backend.drops:
                    return
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.end_headers()
                self.wfile.write(b"data: first\n\n")
                assert backend.go_on.wait(60)
                self.wfile.write(b"data: last\n\n")

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def begun(port: int) -> http.client.HTTPResponse:
    """A stream whose first event has come."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/v1/completions", b"{}", {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert response.status == 200 and response.readline() == b"data: first\n"
    return response


def test_streams_are_not_buffered_and_go_to_the_server_with_the_fewest(repo: Path, tmp_path: Path) -> None:
    backends = Backend(), Backend()
    with proxy(repo, tmp_path, *(b.port for b in backends)) as front:
        streams = [begun(front.port) for _ in range(4)]  # each server waits until the first events have come
        assert [b.asked for b in backends] == [2, 2]
        for b in backends:
            b.go_on.set()
        assert all(stream.read() == b"\ndata: last\n\n" for stream in streams)
    for b in backends:
        b.close()


def test_what_a_server_had_begun_is_not_repeated_and_one_that_is_gone_is_left_out(repo: Path, tmp_path: Path) -> None:
    backends = Backend(), Backend()
    for b in backends:
        b.go_on.set()
        b.drops = True
    with proxy(repo, tmp_path, *(b.port for b in backends)) as front:
        assert front.ask(TEXT, {})[0] == 502 and sum(b.asked for b in backends) == 1
        backends[0].close()
        backends[1].drops = False
        asked = backends[1].asked
        assert [front.ask(TEXT, {})[0] for _ in range(6)] == [200] * 6 and backends[1].asked == asked + 6
    backends[1].close()


def test_two_servers_answer_as_one(repo: Path, tmp_path: Path, folder: Path, server: Served) -> None:
    with served(folder) as other, proxy(repo, tmp_path, server.port, other.port) as front:
        before = server.metrics(), other.metrics()
        expected = server.ask(TEXT, PROMPT)[1]["choices"]
        assert all(front.ask(TEXT, PROMPT)[1]["choices"] == expected for _ in range(4))
        count = 'rlx_requests_total{route="/v1/completions",status="200"}'
        after = server.metrics(), other.metrics()
        assert [a.get(count, 0) - b.get(count, 0) for a, b in zip(after, before, strict=True)] == [3, 2]
        assert front.events(TEXT, {**PROMPT, "max_tokens": 4})[-1]["choices"][0]["finish_reason"] == "length"
        other.close()
        assert all(front.ask(TEXT, PROMPT)[0] == 200 for _ in range(4))
