"""`rlx serve`: the texts of the model, refusals with their reason, clients that leave, limits, and an end in order."""

from __future__ import annotations

import base64
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette", reason="needs rlx[serve]")
pytest.importorskip("uvicorn", reason="needs rlx[serve]")

from typer.testing import CliRunner

from rlx.cli.app import app
from rlx.cli.serve import _called
from rlx.errors import RlxError
from rlx.serve import http as serving
from rlx.serve.limits import Limits
from tests.models.language.test_adapters import LARGE, matrices, write
from tests.serve.served import CHAT, CONFIG, GREEDY, HELLO, PROMPT, TALK, TEXT, VECTORS, Served, served

LONG = {**GREEDY, "prompt": "hello", "max_tokens": 190}


def idle(now: dict[str, float]) -> bool:
    return now["rlx_sequences_running"] + now["rlx_sequences_waiting"] == 0


def test_requests_at_once_get_the_texts_of_the_model(server: Served) -> None:
    """More requests than slots, some streamed: each is what the model alone makes of its prompt."""
    prompts = ["hello", "a", "some words that are more", "xyz", "the", "model", "b c"]
    want = ["".join(server.model.generate(prompt, 30)) for prompt in prompts]

    def one(i: int) -> str:
        body = {**GREEDY, "prompt": prompts[i], "max_tokens": 30}
        if i % 2:
            return "".join(e["choices"][0]["text"] for e in server.events(TEXT, body))
        status, found = server.ask(TEXT, body)
        assert status == 200 and found["object"] == "text_completion"
        assert found["usage"]["completion_tokens"] <= 30
        return str(found["choices"][0]["text"])

    with ThreadPoolExecutor(len(prompts)) as pool:
        assert list(pool.map(one, range(len(prompts)))) == want
    ids = server.model.tokenize("hello")
    status, found = server.ask(TEXT, {**GREEDY, "prompt": [ids, prompts[1]], "max_tokens": 30})
    assert status == 200 and [c["text"] for c in found["choices"]] == want[:2]
    assert found["usage"]["prompt_tokens"] == len(ids) + 1


def test_a_chat_is_by_the_template_and_may_be_streamed(server: Served) -> None:
    parts = [{"type": "text", "text": text} for text in ("be ", "kind")]
    messages = [{"role": "developer", "content": parts}, *HELLO]
    plain = [{"role": "system", "content": "be kind"}, *HELLO]
    want = "".join(server.model.chat(plain, 12))
    body = {**GREEDY, "messages": messages, "max_completion_tokens": 12, "user": "me"}
    status, found = server.ask(CHAT, body)
    choice = found["choices"][0]
    assert status == 200 and choice["message"]["content"] == want and choice["finish_reason"] in ("length", "stop")
    events = server.events(CHAT, {**body, "stream_options": {"include_usage": True}})
    deltas = [e["choices"][0]["delta"] for e in events[:-1]]
    assert deltas[0]["role"] == "assistant" and "".join(d.get("content", "") for d in deltas) == want
    assert events[-2]["choices"][0]["finish_reason"] == choice["finish_reason"]
    assert events[-1]["usage"] == found["usage"] and events[-1]["choices"] == []


def test_stop_texts_seeds_and_choices(server: Served) -> None:
    whole = "".join(server.model.generate("hello", 40))
    stop = next(whole[i : i + 2] for i in range(3, 20) if whole.find(whole[i : i + 2]) == i)
    body = {**GREEDY, "prompt": "hello", "max_tokens": 40}
    choice = server.ask(TEXT, {**body, "stop": ["benchmarks@", stop]})[1]["choices"][0]
    assert choice["text"] == whole[: whole.index(stop)] and choice["finish_reason"] == "stop"
    drawn = {"model": "tiny", "prompt": "hello", "max_tokens": 12, "seed": 5, "n": 3}
    first, again = (server.ask(TEXT, drawn)[1]["choices"] for _ in range(2))
    assert first == again and len({choice["text"] for choice in first}) == 3
    events = server.events(TEXT, drawn)
    texts = ["".join(e["choices"][0]["text"] for e in events if e["choices"][0]["index"] == i) for i in range(3)]
    assert texts == [choice["text"] for choice in first]
    other = server.ask(TEXT, {**drawn, "seed": -5, "n": 1})[1]["choices"][0]["text"]
    assert other not in texts


def test_logarithms_of_probabilities_go_with_their_texts(server: Served) -> None:
    """Beside each token that is not behind a stop text, whole and in the parts of a stream; in float64 the same."""
    body = {**GREEDY, "prompt": "q", "max_tokens": 12}
    ids = server.model.tokenize("q")
    tokens = list(server.model.tokens(ids, 12))
    logits = server.model.logits(ids + tokens)[len(ids) - 1 : -1].astype(np.float64)
    logits -= logits.max(1, keepdims=True)
    want = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    text = server.model.tokenizer.decode(tokens)
    for stop in ([], [text[5:7]]):
        (whole,) = server.ask(TEXT, {**body, "logprobs": 2, "stop": stop})[1]["choices"]
        told = whole["logprobs"]
        assert "".join(told["tokens"]) == whole["text"] == (text if not stop else text[: text.find(stop[0])])
        count = len(told["tokens"])
        assert told["token_logprobs"] == pytest.approx([want[i, t] for i, t in enumerate(tokens[:count])], abs=1e-5)
        assert told["text_offset"] == [len("".join(told["tokens"][:i])) for i in range(count)]
        assert [sorted(one.values()) for one in told["top_logprobs"]] == [
            pytest.approx(sorted(row)[-2:], abs=1e-5) for row in want[:count]
        ]
        events = [e["choices"][0] for e in server.events(TEXT, {**body, "logprobs": 2, "stop": stop})]
        parts = [event["logprobs"] for event in events]
        assert {name: [v for part in parts for v in (part or {}).get(name, [])] for name in told} == told
    talk = {**GREEDY, "messages": HELLO, "max_tokens": 5, "logprobs": True, "top_logprobs": 3}
    (said,) = server.ask(CHAT, {**talk, "n": 1})[1]["choices"]
    entries = said["logprobs"]["content"]
    vocabulary = server.model.tokenizer.vocabulary
    answer = server.model.tokens(server.model.chat_ids(HELLO), 5)
    assert [bytes(one["bytes"]) for one in entries] == vocabulary.contents(answer)
    assert all(one == {**one, **one["top_logprobs"][0]} and len(one["top_logprobs"]) == 3 for one in entries)
    streamed = [e["choices"][0] for e in server.events(CHAT, talk)]
    assert [one for e in streamed for one in (e.get("logprobs") or {}).get("content", [])] == entries
    assert "logprobs" in said and server.ask(CHAT, {**TALK})[1]["choices"][0]["logprobs"] is None


def test_a_limit_on_the_likeliest_is_taken(server: Served) -> None:
    body = {"model": "tiny", "prompt": "hello", "max_tokens": 9, "temperature": 1.9, "seed": 4}
    texts = [server.ask(TEXT, {**body, "top_k": k})[1]["choices"][0]["text"] for k in (1, 10**9, -1)]
    assert texts[0] == "".join(server.model.generate("hello", 9))
    assert texts[0] != texts[1] == texts[2] == server.ask(TEXT, body)[1]["choices"][0]["text"]


def test_an_adapter_is_chosen_by_the_models_name(folder: Path, tmp_path: Path) -> None:
    adapter = write(tmp_path / "law", matrices(CONFIG, LARGE, 3, "x"), LARGE)
    with served(folder, adapters={"law": adapter}) as server:
        body = {**PROMPT, "prompt": "hello", "max_tokens": 20}
        want = ["".join(server.model.generate("hello", 20, adapter=name)) for name in (None, "law")]
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda name: server.ask(TEXT, {**body, "model": name})[1], ["tiny", "law"] * 2))
        assert [one["choices"][0]["text"] for one in found] == want * 2 and want[0] != want[1]
        assert [one["model"] for one in found] == ["tiny", "law"] * 2
        listed = server.ask("/v1/models")[1]["data"]
        assert [(one["id"], one.get("parent")) for one in listed] == [("tiny", None), ("law", "tiny")]
        assert server.ask("/v1/models/law")[1]["id"] == "law"
        status, refused = server.ask(TEXT, {name: value for name, value in body.items() if name != "model"})
        assert status == 400 and "model is missing; this server has 'tiny', 'law'" in refused["error"]["message"]
        status, refused = server.ask(TEXT, {**body, "model": "lawyer"})
        assert status == 404 and "this server has 'tiny', 'law'" in refused["error"]["message"]
        status, refused = server.ask(VECTORS, {"model": "law", "input": "a"})
        assert status == 400 and "made by the model alone, 'tiny'" in refused["error"]["message"]


def test_embeddings_are_the_models(server: Served) -> None:
    texts = ["hello", "some words that are more"]
    want = [server.model.embed(text) for text in texts]
    status, found = server.ask(VECTORS, {"model": "tiny", "input": texts})
    assert status == 200 and found["usage"]["prompt_tokens"] == sum(len(server.model.tokenize(t)) for t in texts)
    np.testing.assert_allclose([row["embedding"] for row in found["data"]], want, atol=1e-6)
    body = {"model": "tiny", "input": server.model.tokenize("hello"), "encoding_format": "base64"}
    raw = base64.b64decode(server.ask(VECTORS, body)[1]["data"][0]["embedding"])
    np.testing.assert_allclose(np.frombuffer(raw, np.float32), want[0], atol=1e-6)


def test_answers_keep_to_a_schema(server: Served) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "yy"]}, "b": {"type": "boolean"}},
              "required": ["a", "b"], "additionalProperties": False}  # fmt: skip
    format = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema, "strict": True}}
    for body in (GREEDY, {"model": "tiny", "seed": 2}):
        status, found = server.ask(CHAT, {**body, "messages": HELLO, "response_format": format, "max_tokens": 140})
        choice = found["choices"][0]
        assert status == 200 and choice["finish_reason"] == "stop"
        made = json.loads(choice["message"]["content"])
        assert made["a"] in ("x", "yy") and isinstance(made["b"], bool) and len(made) == 2
    events = server.events(TEXT, {**GREEDY, "prompt": "a", "response_format": {"type": "json_object"}, "max_tokens": 9})
    assert "".join(e["choices"][0]["text"] for e in events).lstrip().startswith("{")


def test_a_required_tool_is_called(server: Served) -> None:
    parameters = {"type": "object", "properties": {"x": {"enum": [3, 4]}}, "required": ["x"],
                  "additionalProperties": False}  # fmt: skip
    tools = [{"type": "function", "function": {"name": name, "parameters": parameters}} for name in ("f", "g")]
    body = {**GREEDY, "messages": HELLO, "tools": tools, "max_tokens": 120}
    for choice, names in (("required", ("f", "g")), ({"type": "function", "function": {"name": "g"}}, ("g",))):
        status, found = server.ask(CHAT, {**body, "tool_choice": choice})
        assert status == 200, found
        made = found["choices"][0]
        assert made["finish_reason"] == ("tool_calls" if choice == "required" else "stop"), made
        (call,) = made["message"]["tool_calls"]
        assert call["type"] == "function" and call["function"]["name"] in names
        assert json.loads(call["function"]["arguments"])["x"] in (3, 4) and made["message"]["content"] is None
    streamed = server.events(CHAT, {**body, "tool_choice": "required"})
    deltas = [e["choices"][0]["delta"] for e in streamed]
    assert not any(delta.get("content") for delta in deltas)
    assert deltas[-1]["tool_calls"][0]["index"] == 0 and streamed[-1]["choices"][0]["finish_reason"] == "tool_calls"
    answer = {"role": "assistant", "content": None, "tool_calls": [{**call, "id": "c1"}]}
    result = {"role": "tool", "content": "7", "tool_call_id": "c1"}
    assert server.ask(CHAT, {**body, "messages": [*HELLO, answer, result], "max_tokens": 3})[0] == 200


def test_a_client_that_leaves_frees_its_place(server: Served) -> None:
    """More clients than there are slots, of which each goes in another way; then all slots can be taken at once."""
    before = server.metrics()
    for turn in range(6):
        client = server.begun(LONG)
        if turn % 2:  # a reset instead of an orderly end
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        client.close()
    server.until(idle)
    now = server.metrics()
    name = "rlx_generated_tokens_total"
    assert now["rlx_clients_left_total"] - before["rlx_clients_left_total"] == 6
    assert now[name] - before[name] < 6 * 190 / 2 and now["rlx_slots"] == 3 and server.service.engine.batch.free == 3


def test_what_runs_does_not_wait_for_a_long_prompt(folder: Path) -> None:
    """A sequence steps with each part in which another's prompt is taken in."""
    with served(folder, slots=2) as server:
        batch, parts = server.service.engine.batch, list[float]()
        step, server.service.engine.part = batch.step, 16

        def stepped(most: int = 1, beside: int = 0) -> Any:
            before, first = batch.prompted, batch.steps
            made = step(most, beside)
            if (count := batch.steps - first) and batch.prompted > before:
                parts.extend([(batch.prompted - before) / count] * count)
            return made

        batch.step = stepped  # type: ignore[method-assign]
        client = server.begun({**LONG, "prompt": "a"})
        assert server.ask(TEXT, {**GREEDY, "prompt": "b" * 100, "max_tokens": 2})[0] == 200
        client.close()
    assert len(parts) > 5 and max(parts) <= 17 and sum(parts) > 90


def test_limits_hold(folder: Path) -> None:
    limits = Limits(body_bytes=2000, connections=6, waiting=1, header_seconds=0.5, body_seconds=1.5, prompt_tokens=50)
    with served(folder, limits=limits, slots=2) as server:
        assert server.ask(TEXT, {**PROMPT, "prompt": "a" * 51})[1]["error"]["code"] == "context_length_exceeded"
        assert server.ask(TEXT, {**PROMPT, "user": "a" * 3000})[0] == 413

        def chunks() -> Any:
            yield from (b"x" * 1000 for _ in range(5))

        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        connection.request("POST", TEXT, chunks(), {"Content-Type": "application/json"}, encode_chunked=True)
        assert connection.getresponse().status == 413
        connection.close()
        slow = socket.create_connection(("127.0.0.1", server.port), timeout=30)
        slow.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n")
        assert slow.recv(1) == b""  # closed, since its headers do not come
        slow.close()
        slow = socket.create_connection(("127.0.0.1", server.port), timeout=30)
        slow.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
        slow.sendall(b"Content-Length: 9\r\n\r\n{")
        assert b" 408 " in slow.recv(100)
        slow.close()
        step = server.service.engine.batch.step
        held = threading.Event()
        server.service.engine.batch.step = lambda *given: step(*given) if held.wait(0.01) else []  # type: ignore[method-assign]
        running = [server_begun(server) for _ in range(2)]
        waiting = server_begun(server)
        server.until(lambda now: now["rlx_sequences_running"] + now["rlx_sequences_waiting"] == 3)
        status, found = server.ask(TEXT, PROMPT)
        assert status == 429 and found["error"]["type"] == "rate_limit_error"
        more = [socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in range(4)]
        replies = b"".join(one.recv(1000) for one in more[3:])
        assert b"503 Service Unavailable" in replies and b"too many connections" in replies
        held.set()
        for one in (*running, waiting, *more):
            one.close()
        server.until(idle)


def server_begun(server: Served) -> socket.socket:
    """A connection whose request has been sent."""
    data = json.dumps({**LONG, "prompt": "a"}).encode()
    made = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    made.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return made


def test_where_none_may_wait(folder: Path) -> None:
    """Texts are embedded where nothing else is at work, and more choices than slots are refused for good."""
    with served(folder, limits=Limits(waiting=0), slots=2) as server:
        assert server.ask(VECTORS, {"model": "tiny", "input": ["a", "b"]})[0] == 200
        status, found = server.ask(TEXT, {**PROMPT, "n": 3})
        assert status == 400 and "n is 3; expected an integer from 1 to 2" in found["error"]["message"]
        assert server.ask(TEXT, {**PROMPT, "n": 2})[0] == 200


def test_a_client_that_reads_nothing_is_left(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it does not take lies in the server, which ends the connection all the same."""
    bound = serving.bound

    def narrow(*given: Any) -> socket.socket:
        made = bound(*given)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        return made

    monkeypatch.setattr(serving, "bound", narrow)
    with served(folder, limits=Limits(header_seconds=0.2), slots=2) as server, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        data = json.dumps({"model": "tiny", "input": ["a"] * 200}).encode()
        head = f"POST {VECTORS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        client.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        name = f'rlx_requests_total{{route="{VECTORS}",status="200"}}'
        server.until(lambda now: now.get(name, 0) == 1)
        connections = server.server.server_state.connections  # type: ignore[attr-defined]
        server.until(lambda now: client.getsockname() not in [tuple(one.client) for one in {*connections}])


def test_a_server_that_is_ended_at_once_leaves_no_thread(folder: Path) -> None:
    before = {*threading.enumerate()}
    with served(folder) as server:
        client = server.begun(LONG)
        server.server.should_exit = server.server.force_exit = True  # type: ignore[attr-defined]
        server.join()
        client.close()
        assert server.error is None
        assert "rlx-engine" not in [thread.name for thread in {*threading.enumerate()} - before]


def test_an_answer_may_take_so_long(folder: Path) -> None:
    with served(folder, limits=Limits(request_seconds=0.2), slots=2) as server:
        server.service.engine.batch.step = lambda *_: time.sleep(0.01) or []  # type: ignore[method-assign]
        status, found = server.ask(TEXT, LONG)
        assert status == 504 and found["error"]["type"] == "server_error"
        status, text = server.ask(TEXT, {**LONG, "stream": True})
        assert status == 200 and "took more than 0.2 s" in text


def test_a_key_is_asked_for(folder: Path) -> None:
    key = "k" * 20
    with served(folder, key=key) as server:
        for given in ("", "Bearer wrong", f"Basic {key}", key):
            status, found = server.ask("/v1/models", Authorization=given)
            assert status == 401 and found["error"]["code"] == "invalid_api_key"
        assert server.ask("/metrics")[0] == 401
        assert server.ask("/health")[0] == server.ask("/")[0] == 200
        assert server.ask("/v1/models", Authorization=f"Bearer {key}", Host="model.example")[0] == 200
    for host in ("0.0.0.0", "::", "192.168.1.1", "example.org"):
        with pytest.raises(RlxError, match="needs an API key"):
            serving.bound(host, 0, None)
    with pytest.raises(RlxError, match="less than 16"):
        serving.bound("127.0.0.1", 0, "short")
    with serving.bound("127.0.0.1", 0, None) as taken, pytest.raises(RlxError, match="in use; give another --port"):
        serving.bound("127.0.0.1", taken.getsockname()[1], None)


def test_a_model_that_fails_ends_the_server(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with served(folder) as server:

        def fails(*given: Any) -> Any:
            raise RuntimeError("the device is gone")

        server.service.engine.batch.step = fails  # type: ignore[method-assign]
        status, found = server.ask(TEXT, PROMPT)
        assert status == 500 and "the device is gone" in found["error"]["message"]
        server.join()
        assert isinstance(server.error, RlxError) and "the device is gone" in str(server.error)


def test_the_page_may_run_its_own_script_alone(server: Served) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("GET", "/")
    response = connection.getresponse()
    text, policy = response.read().decode(), response.getheader("content-security-policy", "")
    connection.close()
    assert policy.startswith("default-src 'none'; script-src 'sha256-") and "unsafe" not in policy
    assert "http://" not in text and "https://" not in text and "src=" not in text and "onclick" not in text


def test_the_command_refuses_with_a_way_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RLX_API_KEY", raising=False)

    def refused(*more: str) -> str:
        return str(CliRunner().invoke(app, ["serve", str(folder), *more]).exception)

    assert "set RLX_API_KEY, or give --api-key-file" in refused("--host", "0.0.0.0")
    assert "cannot be read" in refused("--api-key-file", str(folder / "none"))
    assert "is none of" in refused("--pooling", "max")
    assert "'law' is no NAME=FOLDER" in refused("--adapter", "law")
    assert "two adapters have the name 'x'" in refused("--adapter", "x=a", "--adapter", "x=b")
    monkeypatch.delitem(sys.modules, "rlx.serve.http")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert 'pip install "rlx[serve]" (uvicorn is missing)' in refused()


def test_the_name_of_a_model_is_that_of_its_file_or_folder(tmp_path: Path) -> None:
    for name in ("Llama-3.2-1B", "x.gguf"):
        (tmp_path / name).mkdir()
        assert _called(tmp_path / name) == name  # folders
    assert _called(tmp_path / "tiny-3.2-q4_k.gguf") == "tiny-3.2-q4_k"
    (tmp_path / "mine").symlink_to(tmp_path / "x.gguf", target_is_directory=True)
    assert _called(tmp_path / "mine") == "mine" and _called(tmp_path / "mine" / "..") == tmp_path.name


def test_the_command_serves_and_ends_at_a_signal(folder: Path, repo: Path) -> None:
    command = [sys.executable, "-m", "rlx", "serve", str(folder), "--device", "cpu", "--port", "0", "--context", "200"]
    path = os.pathsep.join([str(repo), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "RLX_CPU": "numpy", "PYTHONPATH": path}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env)
    assert process.stderr is not None
    line = process.stderr.readline()
    assert "8 slots of 200 tokens" in line, line + process.stderr.read()
    remote = Served.__new__(Served)
    remote.port = int(line.rsplit(":", 1)[1])
    assert remote.ask("/v1/models")[1]["data"][0]["id"] == folder.name
    client = remote.begun({**LONG, "model": folder.name, "max_tokens": 60})
    process.send_signal(signal.SIGTERM)
    held = b""
    while part := client.recv(65536):
        held += part
    client.close()
    assert process.wait(60) == 0 and b"data: [DONE]" in held
    assert process.stderr.read().splitlines()[0].startswith("rlx: stopping")
    process.stderr.close()
