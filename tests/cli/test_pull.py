"""`rlx pull`, from a server that stands in for the Hugging Face Hub."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from tests.cli.conftest import Rlx

COMMIT, OLD = "c" * 40, "d" * 40
CONTENT = {
    "config.json": b'{"model_type": "bert"}', "model.safetensors": b"weights", "tokenizer.json": b"{}",
    "1_Pooling/config.json": b"{}", "vocab.txt": b"a\nb\n", "chat_template.jinja": b"{{ x }}",
    "pytorch_model.bin": b"\x80pickle", "modeling_own.py": b"import os", "onnx/model.onnx": b"graph", "README.md": b"#",
}  # fmt: skip
HELD = {"own/model": CONTENT, "own/pickles": {"config.json": b"{}", "pytorch_model.bin": b"\x80"},
        "own/ggufs": {"a-Q4_K_M.gguf": b"GGUF", "b-Q8_0.gguf": b"GGUF"}}  # fmt: skip


class Hub(BaseHTTPRequestHandler):
    """The Hub's answers about the models above; `asked` are the paths of files that were downloaded."""

    asked: ClassVar[list[str]] = []

    def do_HEAD(self) -> None:
        self.answer(False)

    def do_GET(self) -> None:
        self.answer(True)

    def answer(self, body: bool) -> None:
        path = self.path.partition("?")[0].strip("/")
        name = next((known for known in HELD if f"{known}/" in f"{path}/"), None)
        status, content, headers = 404, b"{}", {"X-Error-Code": "RepoNotFound"}
        if name is not None and path.startswith("api/models/"):
            commit = OLD if path.endswith((OLD, "v1")) else COMMIT
            info = {"id": name, "sha": commit, "siblings": [{"rfilename": f} for f in HELD[name]]}
            status, content, headers = 200, json.dumps(info).encode(), {"Content-Type": "application/json"}
        elif name is not None and path.startswith(f"{name}/resolve/"):
            commit, _, file = path.removeprefix(f"{name}/resolve/").partition("/")
            if file in HELD[name]:
                status, content = 200, HELD[name][file]
                headers = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": commit}
                if body:
                    self.asked.append(f"{commit[0]} {file}")
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[Hub]]:
    pytest.importorskip("huggingface_hub", reason="pip install huggingface_hub")
    from huggingface_hub import constants

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    Hub.asked.clear()
    try:
        yield Hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def files(folder: Path) -> set[str]:
    held = (p.relative_to(folder) for p in folder.rglob("*") if p.is_file())
    return {str(p) for p in held if not str(p).startswith(".cache")}


def test_the_files_that_rlx_reads_at_a_pinned_commit(rlx: Rlx, hub: type[Hub], tmp_path: Path) -> None:
    ran = rlx("pull", "own/model", "--out", tmp_path / "m")
    assert ran.status == 0, ran
    assert ran.out.splitlines()[0] == f"own/model at {COMMIT}: 6 files" and ran.out.splitlines()[-1].endswith("/m")
    wanted = {"config.json", "model.safetensors", "tokenizer.json", "1_Pooling/config.json", "vocab.txt",
              "chat_template.jinja"}  # fmt: skip
    assert files(tmp_path / "m") == wanted
    assert {line[2:] for line in hub.asked} == wanted and all(line[0] == "c" for line in hub.asked)
    assert (tmp_path / "m" / "model.safetensors").read_bytes() == b"weights"
    hub.asked.clear()
    assert rlx("pull", "own/model", "--revision", "v1", "--out", tmp_path / "old").status == 0
    assert hub.asked and all(line[0] == "d" for line in hub.asked), "the commit that v1 is, not its name"


def test_one_gguf_file(rlx: Rlx, hub: type[Hub], tmp_path: Path) -> None:
    ran = rlx("pull", "own/ggufs", "--file", "b-Q8_0.gguf", "-o", tmp_path / "g")
    assert ran.status == 0 and files(tmp_path / "g") == {"b-Q8_0.gguf"}, ran


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("own/pickles",), "has no safetensors, but pytorch_model.bin, which rlx does not read"),
        (("own/ggufs",), "--file takes one: a-Q4_K_M.gguf, b-Q8_0.gguf"),
        (("own/model", "--file", "modeling_own.py"), "has no modeling_own.py that rlx reads"),
        (("own/none",), "own/none: "),
        (("../etc",), "is no model's name; expected owner/name"),
    ],
)
def test_what_is_refused(
    rlx: Rlx, hub: type[Hub], tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    ran = rlx("pull", *arguments, "--out", tmp_path / "m")
    assert ran.status == 2 and words in ran.err and ran.err.count("\n") == 1 and not hub.asked, ran


def test_a_hub_that_is_not_reached(rlx: Rlx, hub: type[Hub], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.socket() as closed:  # bound, and not listening
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{closed.getsockname()[1]}")
        ran = rlx("pull", "own/model", "--out", tmp_path / "m")
    assert ran.status == 2 and ran.err.count("\n") == 1, ran
    assert "is not reached from here: a folder copied from another machine does as well" in ran.err


def test_without_the_package(rlx: Rlx, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    ran = rlx("pull", "own/model")
    assert ran.status == 2 and "pip install huggingface_hub" in ran.err
