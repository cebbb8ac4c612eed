"""`/v1/audio/transcriptions` and `/v1/audio/translations`: what the model writes down, in each format, and forms."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs rlx[serve]")
pytest.importorskip("uvicorn", reason="needs rlx[serve]")

from typer.testing import CliRunner

from rlx.cli.app import app
from rlx.serve import multipart
from rlx.serve.limits import Limits
from rlx.serve.protocol import Refused
from tests.models.speech import tiny
from tests.outside import outside
from tests.serve.served import CHAT, GREEDY, HELLO, Served, served

HEARD, TRANSLATED = "/v1/audio/transcriptions", "/v1/audio/translations"


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_model(tmp_path_factory.mktemp("heard") / "whisper", {**tiny.GENERATION, "max_length": 10})


@pytest.fixture(scope="module")
def wav(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_wav(tmp_path_factory.mktemp("sounds") / "x.wav", tiny.sound(1.4))


@pytest.fixture(scope="module")
def heard(whisper: Path) -> Iterator[Served]:
    with served(whisper) as made:
        yield made


def form(parts: list[tuple[str, str | None, bytes]], boundary: str = "b0undary", end: str = "--") -> bytes:
    made = b""
    for name, file, content in parts:
        more = "" if file is None else f'; filename="{file}"\r\nContent-Type: audio/wav'
        made += f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode()
        made += content + b"\r\n"
    return made + f"--{boundary}{end}\r\n".encode()


def ask(server: Served, sound: bytes | None, path: str = HEARD, **fields: str) -> tuple[int, Any]:
    members: list[tuple[str, str | None, bytes]] = [("model", None, b"tiny")]
    members += [(name.replace("__", "[]"), None, value.encode()) for name, value in fields.items()]
    members += [] if sound is None else [("file", "x.wav", sound)]
    return server.ask(path, form(members), Content_Type="multipart/form-data; boundary=b0undary")


def test_each_format_tells_what_the_model_hears(heard: Served, wav: Path) -> None:
    model, sound = heard.model, wav.read_bytes()
    plain = model.transcribe(wav, language="en")
    usage = {"type": "duration", "seconds": 2}
    assert ask(heard, sound, language="en") == (200, {"text": plain.text, "usage": usage})
    assert ask(heard, sound) == (200, {"text": model.transcribe(wav).text, "usage": usage})
    assert ask(heard, sound, language="en", response_format="text") == (200, plain.text + "\n")
    timed = model.transcribe(wav, language="en", timestamps=True)
    assert timed.segments
    status, told = ask(heard, sound, language="en", response_format="verbose_json", timestamp_granularities__="segment")
    assert (status, told["text"], told["language"], told["duration"]) == (200, timed.text, "en", 1.4)
    assert [(s["id"], s["start"], s["end"], s["text"]) for s in told["segments"]] == [
        (i, s.start, s.end, s.text) for i, s in enumerate(timed.segments)
    ]
    first = timed.segments[0]
    lines = ask(heard, sound, language="en", response_format="srt")[1].split("\n")
    assert lines[0] == "1" and lines[1] == f"{_clock(first.start)} --> {_clock(first.end)}".replace(".", ",")
    assert lines[2] == first.text.strip() and not lines[3]
    lines = ask(heard, sound, language="en", response_format="vtt")[1].split("\n")
    assert lines[:2] == ["WEBVTT", ""] and lines[2] == f"{_clock(first.start)} --> {_clock(first.end)}"
    translated = model.transcribe(wav, task="translate")
    assert ask(heard, sound, TRANSLATED) == (200, {"text": translated.text, "usage": usage})


def _clock(seconds: float) -> str:
    return f"00:00:{seconds:06.3f}"


def test_a_stream_tells_segments_as_they_are_heard(heard: Served, wav: Path) -> None:
    status, text = ask(heard, wav.read_bytes(), language="en", stream="true")
    events = [json.loads(part.removeprefix("data: ")) for part in text.split("\n\n")[:-1]]
    want = heard.model.transcribe(wav, language="en")
    assert status == 200 and events[-1] == {"type": "transcript.text.done", "text": want.text}
    assert {event["type"] for event in events[:-1]} == {"transcript.text.delta"}
    assert len(events) == len(want.segments) + 1
    assert "".join(event["delta"] for event in events[:-1]).rstrip() == want.text


def test_requests_take_turns_by_chunks_and_clients_leave(heard: Served, wav: Path) -> None:
    """Two sounds at once are heard in turns, and one whose client leaves takes none any more."""
    gate, order, model = threading.Semaphore(0), list[int](), heard.model
    listen = model._listen

    def listened(features: Any) -> None:
        assert gate.acquire(timeout=60)
        order.append(threading.get_ident())
        listen(features)

    model._listen = listened  # type: ignore[method-assign]
    try:
        found: list[Any] = []
        threads = [threading.Thread(target=lambda: found.append(ask(heard, wav.read_bytes(), language="en")))
                   for _ in range(2)]  # fmt: skip
        for n, thread in enumerate(threads):
            thread.start()
            heard.until(lambda now, n=n: now["rlx_sounds_waiting"] == n + 1)  # type: ignore[misc]
        for _ in range(20):
            gate.release()
        for thread in threads:
            thread.join(60)
        assert found[0] == found[1] and found[0][0] == 200
        begun = len(order)
        while gate.acquire(blocking=False):
            pass
        body = form([("model", None, b"tiny"), ("file", "x.wav", wav.read_bytes())])
        head = "Content-Type: multipart/form-data; boundary=b0undary\r\n"
        with heard.connected(HEARD, head, body):
            heard.until(lambda now: now["rlx_sounds_waiting"] == 1)
        heard.until(lambda now: now["rlx_clients_left_total"] >= 1)
        for _ in range(20):
            gate.release()
        heard.until(lambda now: now["rlx_sounds_waiting"] == 0)
        assert len(order) == begun + 1  # the chunk that was begun
    finally:
        model._listen = listen  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"language": "xx"}, "no language 'xx'"), ({"response_format": "xml"}, "response_format is"),
        ({"prompt": "names"}, "prompt is not there yet"), ({"temperature": "0.4"}, "temperature is not there yet"),
        ({"stream": "yes"}, "stream is"), ({"stream": "true", "response_format": "srt"}, "a stream has no srt"),
        ({"timestamp_granularities__": "word", "response_format": "verbose_json"}, "only segments have times"),
        ({"timestamp_granularities__": "segment"}, "go with response_format verbose_json"),
        ({"include__": "logprobs"}, "include is"), ({"unknown": "1"}, "unknown is not known"),
    ],
)  # fmt: skip
def test_what_is_refused_is_named(fields: dict[str, str], said: str, heard: Served, wav: Path) -> None:
    status, answer = ask(heard, wav.read_bytes(), **fields)
    assert status == 400 and said in answer["error"]["message"], answer


def test_bodies_that_are_no_sounds_are_refused(heard: Served, wav: Path, server: Served) -> None:
    for sound, said in ((None, "file is missing"), (b"ID3\4 mp3", "no WAV file of integer samples"),
                        (wav.read_bytes()[:3000], "cut off"), (b"", "no WAV file")):  # fmt: skip
        status, answer = ask(heard, sound)
        assert status == 400 and said in answer["error"]["message"], answer
    kind = "multipart/form-data; boundary=b0undary"
    status, answer = heard.ask(HEARD, form([("file", "x.wav", b"")]), Content_Type=kind)
    assert status == 400 and "no WAV file" in answer["error"]["message"]
    assert heard.ask(HEARD, {"model": "tiny"})[0] == 415
    status, answer = heard.ask(CHAT, {**GREEDY, "messages": HELLO})
    assert status == 400 and "takes sounds" in answer["error"]["message"]
    status, answer = ask(server, wav.read_bytes())
    assert status == 400 and "hears nothing" in answer["error"]["message"]


def test_sounds_have_a_limit_of_their_own(whisper: Path, wav: Path) -> None:
    with served(whisper, limits=Limits(sound_bytes=20_000)) as server:
        status, answer = ask(server, wav.read_bytes())
        assert status == 413 and "20,000 bytes" in answer["error"]["message"]


@pytest.mark.parametrize(
    "content", [b"", b"\r\n", b"\r\n--b0undary", b"--b0undary--", b"\r\n\r\n--b\r\n", b"\xff\r\r\n\n"]
)
@pytest.mark.parametrize("quoted", [False, True])
def test_any_bytes_pass_through_a_form(content: bytes, quoted: bool) -> None:
    """All but the boundary itself on a line of its own, which ends a part."""
    boundary = "-- b0undary 2 " if quoted else "b0undary2"
    kind = f'multipart/form-data; charset=utf-8; boundary="{boundary}"' if quoted else f"x/y; boundary={boundary}"
    body = form([("a", None, content), ("file", "ä b.wav", content * 2)], boundary)
    made = multipart.parts(body, kind)
    assert [(part.name, part.file, part.content) for part in made] == [
        ("a", None, content), ("file", "ä b.wav", content * 2),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "kind", "said"),
    [
        (b"", "multipart/form-data", "no boundary"), (b"", "multipart/form-data; boundary=", "no boundary"),
        (b"", "multipart/form-data; boundary=b", "ends too early"),
        (form([("a", None, b"1")], "b", ""), "multipart/form-data; boundary=b", "ends too early"),
        (form([("a", None, b"1")], "b"), "multipart/form-data; boundary=c", "another boundary"),
        (b"--b\r\nContent-Disposition: form-data\r\n\r\n1\r\n--b--", "x/y; boundary=b", "with a name"),
        (b"--b\r\nContent-Disposition: file; name=a\r\n\r\n1\r\n--b--", "x/y; boundary=b", "with a name"),
        (b"--b\r\n\r\n1\r\n--b--", "x/y; boundary=b", "no headers|with a name"),
        (b"--b\r\nA: " + b"x" * 9000 + b"\r\n\r\n1\r\n--b--", "x/y; boundary=b", "8,192"),
        (form([("a", None, b"")] * 65, "b"), "x/y; boundary=b", "more than 64 parts"),
        (b"--b\r\nContent-Disposition: form-data; name=a\r\nContent-Transfer-Encoding: base64\r\n\r\n1\r\n--b--",
         "x/y; boundary=b", "as they are"),
    ],
)  # fmt: skip
def test_damaged_forms_are_refused(body: bytes, kind: str, said: str) -> None:
    with pytest.raises(Refused, match=said):
        multipart.parts(body, kind)


def test_the_command_refuses_what_is_of_language_models(whisper: Path) -> None:
    for option in (["--pages", "9"], ["--pooling", "mean"], ["--adapter", "a=b"]):
        ran = CliRunner().invoke(app, ["serve", str(whisper), "--device", "cpu", "--port", "0", *option])
        assert "for language models; this is a model of speech" in str(ran.exception)


@pytest.mark.judged
def test_the_client_of_openai_sends_sounds(heard: Served, wav: Path) -> None:
    openai = outside("openai")
    want = heard.model.transcribe(wav, language="en")
    with openai.OpenAI(base_url=f"http://127.0.0.1:{heard.port}/v1", api_key="none", max_retries=0) as client:
        hear = client.audio.transcriptions.create
        with wav.open("rb") as file:
            assert hear(model="tiny", file=file, language="en").text == want.text
        assert hear(model="tiny", file=wav, language="en", response_format="text") == want.text + "\n"
        told = hear(model="tiny", file=wav, language="en", response_format="verbose_json",
                    timestamp_granularities=["segment"])  # fmt: skip
        timed = heard.model.transcribe(wav, language="en", timestamps=True)
        assert [segment.text for segment in told.segments] == [segment.text for segment in timed.segments]
        events = list(hear(model="tiny", file=wav, language="en", stream=True))
        assert events[-1].text == want.text and events[0].type == "transcript.text.delta"
        with pytest.warns(DeprecationWarning, match="deprecated"):
            made = client.audio.translations.create(model="tiny", file=("ä.wav", wav.read_bytes()))
        assert made.text == heard.model.transcribe(wav, task="translate").text
        with pytest.raises(openai.BadRequestError, match="no language 'xx'"):
            hear(model="tiny", file=wav, language="xx")
