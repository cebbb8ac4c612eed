"""The server of a Whisper model: sounds in forms, as OpenAI's API takes them, to text."""

from __future__ import annotations

import asyncio
import io
import json
import math
import time
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import numpy.typing as npt
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from rlx.models import Transcriber
from rlx.models.speech.audio import read_wav
from rlx.models.speech.transcriber import Segment
from rlx.records import Record
from rlx.serve import protocol
from rlx.serve.app import Events, Service
from rlx.serve.limits import Limits
from rlx.serve.metrics import Metrics
from rlx.serve.multipart import parts
from rlx.serve.protocol import Fields, Refused
from rlx.serve.turns import Turns

FORMATS = ("json", "text", "srt", "verbose_json", "vtt")
_ONLY = "the model writes down what it hears, and answers no texts; /v1/audio/transcriptions takes sounds"
_NEUTRAL: dict[str, tuple[Any, ...]] = {"prompt": ("",), "temperature": ("0", "0.0"), "chunking_strategy": ()}


class Sound(Record):
    """A request to transcribe a sound: samples at the model's rate."""

    samples: npt.NDArray[np.float32]
    language: str | None
    task: str
    format: str
    stream: bool

    @property
    def timed(self) -> bool:
        """Whether the answer has the times of segments."""
        return self.format in ("srt", "verbose_json", "vtt")


class TranscriberService(Service):
    """What the routes share for a model of speech. Requests take turns, 30 s of sound at a time."""

    def __init__(self, model: Transcriber, name: str, *, limits: Limits, key: str | None = None) -> None:
        self.transcriber, self.name, self.limits = model, name, limits
        model.tokenizer.encode("")  # raises for a folder without one
        self.names = (name,)
        self.key = None if key is None else key.encode()
        self.metrics = Metrics()
        self.engine: Any = Turns(limits.waiting, self.metrics, "rlx_sounds_waiting", "Sounds that wait or are heard.")
        self.created = int(time.time())
        self._threads = asyncio.Semaphore(4)

    async def completions(self, request: Request) -> Response:
        raise Refused(400, _ONLY, "model")

    chat = responses = response = embeddings = rerank = completions

    async def models(self, request: Request) -> Response:
        return self.listed(request, self.transcriber.prompts.most, False)

    async def transcriptions(self, request: Request) -> Response:
        content = await self.content(request, "multipart/form-data", self.limits.sound_bytes)
        translates = request.url.path.endswith("/translations")
        kind = request.headers["content-type"]
        sound = await self.in_thread(self._asked, content, kind, "translate" if translates else "transcribe")
        if sound.stream:
            return Events(self, self._told(sound), lambda: None)

        heard: list[str | None] = []

        async def all_of() -> list[Segment]:
            return [segment async for segment in self._segments(sound, heard)]

        return self._whole(sound, await self.attended(request.receive, all_of()), heard)

    def _asked(self, content: bytes, kind: str, task: str) -> Sound:
        """Raises: Refused, RlxError."""
        held: dict[str, Any] = {}
        file, granularities = None, []
        for part in parts(content, kind):
            if part.name == "file" and part.file is not None:
                file, name = part.content, part.file[:80] or "file"
            elif part.name in ("timestamp_granularities[]", "include[]"):
                granularities.append((part.name, part.content.decode("utf-8", "replace")))
            else:
                held[part.name] = part.content.decode("utf-8", "replace")
        if file is None:
            raise Refused(400, "file is missing; expected a part of the form with a file name", "file")
        for what, value in granularities:
            if (what, value) != ("timestamp_granularities[]", "segment"):
                raise Refused(400, f"{what[:-2]} is {value[:40]!r}; only segments have times here, and there are no "
                              "logarithms", what[:-2], "unsupported")  # fmt: skip
        fields = Fields(held, neutral=_NEUTRAL)
        protocol.check_model(fields, self.names)
        language = None if task == "translate" else fields.text("language") or None
        format = fields.choice("response_format", FORMATS, "json")
        stream = task == "transcribe" and fields.choice("stream", ("true", "false", "1", "0"), "false") in ("true", "1")
        fields.done()
        if stream and format not in ("json", "text"):
            raise Refused(400, f"a stream has no {format}; leave response_format out", "response_format")
        if granularities and format != "verbose_json":
            raise Refused(400, "timestamp_granularities go with response_format verbose_json",
                          "timestamp_granularities")  # fmt: skip
        model = self.transcriber
        with protocol.named("language"):
            asked = None if language is None else model.prompts.language(language)
            if model.prompts.languages:
                model.prompts.prompt(asked or 0, task, False)
            elif task == "translate":
                model.prompts.prompt(None, task, False)
        with protocol.named("file"):
            samples = read_wav(name, model.mel.rate, io.BytesIO(file))
        return Sound(samples, language, task, format, stream)

    async def _segments(self, sound: Sound, heard: list[str | None]) -> AsyncIterator[Segment]:
        """The segments of a sound, after each chunk is transcribed; the language's code is appended to `heard`. Raises:
        Refused."""
        model = self.transcriber
        chunks = model.hear((sound.samples, model.mel.rate), heard, language=sound.language, task=sound.task,
                            timestamps=sound.timed)  # fmt: skip
        chunk = await self.engine.turn(next, chunks, None)
        while chunk is not None:
            for segment in chunk:
                yield segment
            chunk = await self.engine.turn(next, chunks, None, again=True)

    async def _told(self, sound: Sound) -> AsyncIterator[str]:
        def event(kind: str, **more: Any) -> str:
            return f"data: {json.dumps({'type': kind, **more})}\n\n"

        text = ""
        try:
            async for segment in self._segments(sound, []):
                delta = segment.text if text else segment.text.lstrip()
                text += delta
                yield event("transcript.text.delta", delta=delta)
        except Refused as error:  # the status has been sent
            yield f"data: {json.dumps(error.body)}\n\n"
            return
        yield event("transcript.text.done", text=text.rstrip())

    def _whole(self, sound: Sound, segments: list[Segment], heard: list[str | None]) -> Response:
        text = "".join(segment.text for segment in segments).strip()
        seconds = len(sound.samples) / self.transcriber.mel.rate
        usage = {"type": "duration", "seconds": math.ceil(seconds)}
        if sound.format == "json":
            return JSONResponse({"text": text, "usage": usage})
        if sound.format == "verbose_json":
            rows = [{"id": i, "start": one.start, "end": one.end, "text": one.text} for i, one in enumerate(segments)]
            return JSONResponse({"task": sound.task, "language": heard[-1] if heard else None,
                                 "duration": round(seconds, 2), "text": text, "segments": rows,
                                 "usage": usage})  # fmt: skip
        if sound.format == "text":
            return PlainTextResponse(text + "\n")
        point = "," if sound.format == "srt" else "."
        blocks = ["WEBVTT\n"] if sound.format == "vtt" else []
        for i, one in enumerate(segments):
            number = f"{i + 1}\n" if sound.format == "srt" else ""
            blocks.append(f"{number}{_clock(one.start, point)} --> {_clock(one.end, point)}\n{one.text.strip()}\n")
        return PlainTextResponse("\n".join(blocks))


def _clock(seconds: float, point: str) -> str:
    """Hours, minutes, seconds and thousandths."""
    whole, thousandths = divmod(round(seconds * 1000), 1000)
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}{point}{thousandths:03}"
