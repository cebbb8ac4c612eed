"""The routes of the server: requests to sequences of the engine, their text to JSON or to events as they are made."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route, Router

from rlx.errors import RlxError
from rlx.models.language.batch import Scores
from rlx.models.language.decoder import Sampling
from rlx.models.language.grammar import GrammarConstraint, Grammars
from rlx.models.language.model import LanguageModel
from rlx.models.language.reading import Pooled
from rlx.models.language.shaping import Penalties
from rlx.models.language.text import StopTexts
from rlx.serve import protocol, responses
from rlx.serve.answers import Answer, Piece, pieces
from rlx.serve.engine import Busy, Engine
from rlx.serve.guard import Guard, Left, Receive, Send
from rlx.serve.limits import Limits
from rlx.serve.metrics import Metrics
from rlx.serve.protocol import Chat, Completion, Refused, Settings, busy
from rlx.serve.shapes import CHAT, TEXT, Shape
from rlx.serve.tools import ToolText, format_of

T = TypeVar("T")
EVENT_SECONDS = 0.0003  # the event loop's time for one event of a stream, during which the model's thread may wait


class Service:
    """What the routes share: a model and its engine, the name by which clients call it, and what they may ask for."""

    def __init__(
        self, model: LanguageModel, name: str, *, slots: int, limits: Limits, key: str | None = None,
        pooling: Pooled | None = None, pages: int | None = None, lookup: bool = False,
    ) -> None:  # fmt: skip
        self.model, self.name, self.limits = model, name, limits
        self.pooling = None if model.reading.rows is not None else pooling or model.pooling
        self.names = (name, *model.adapters)
        if name in model.adapters:
            raise RlxError(f"{name!r} is the name of the model and of an adapter; give one of them another name")
        self.tokenizer = model.tokenizer
        self.key = None if key is None else key.encode()
        self.metrics = Metrics()
        self.engine = Engine(model, slots, limits.waiting, self.metrics, pages=pages, lookup=lookup)
        self.talks = responses.Talks(limits.responses, limits.response_bytes)
        self.created = int(time.time())
        self.most = min(limits.prompt_tokens or model.context, model.context)
        # A request for more sequences than can run and wait together could never be accepted.
        self.choices = min(limits.choices, slots + limits.waiting)
        self._grammars: Grammars | None = None
        self._making = threading.Lock()
        self._threads = asyncio.Semaphore(4)  # templates and tokenizers run in threads, not to block the event loop

    async def in_thread(self, function: Callable[..., T], *args: Any) -> T:
        """Runs a slow function in a thread. Returns: its result. Raises: Refused for its errors, which the request
        caused."""
        async with self._threads:
            try:
                return await asyncio.to_thread(function, *args)
            except RlxError as error:
                raise Refused(400, " ".join(str(error).split())[:1000]) from error

    def grammars(self) -> Grammars:
        with self._making:
            if self._grammars is None:
                self._grammars = Grammars(self.tokenizer, self.model.config.vocabulary)
            return self._grammars

    # -- requests to sequences

    def _ids(self, prompt: str | list[int], param: str) -> Any:
        """A prompt's tokens. Raises: Refused."""
        with protocol.named(param):
            return self._checked(self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt, param)

    def _text(self, ids: list[int]) -> str:
        """The text of tokens; ids of padding rows beyond the vocabulary have no text."""
        stream = self.tokenizer.stream(special=True)
        return "".join([*(stream.push(i) for i in ids if i in stream.vocabulary.tokens), stream.end()])

    def _checked(self, ids: list[int], param: str) -> Any:
        if len(ids) > self.most:
            raise protocol.too_long(len(ids), self.most, param)
        if not ids:
            raise Refused(400, f"{param} has no tokens", param)
        return self.model.decoder.check_ids(ids)

    def _constraint(self, asked: Completion | Chat) -> GrammarConstraint | None:
        """The grammar of the answers, where the request needs one. Raises: Refused, RlxError."""
        response = asked.response
        if isinstance(asked, Chat) and asked.tool is not None:
            format = format_of(self.tokenizer.chat_template)
            if format is None:
                why = "the model's chat template teaches no format of tool calls that this server knows"
                raise Refused(400, f'{why}; tool_choice may be "auto" or "none"', "tool_choice", "unsupported")
            tools = [tool for tool in asked.tools if asked.tool in ("", tool["function"]["name"])]
            return self.grammars().lark(format.grammar(tools, self.tokenizer, self.grammars().lark_json))
        if response.kind == "text":
            return None
        schema = {"type": "object"} if response.kind == "json_object" else response.schema
        return self.grammars().json_schema(schema)

    def prepared(self, asked: Completion | Chat, address: str = "") -> tuple[list[Answer], int]:
        """The sequences of a request, and how many tokens its prompts have. Raises: Refused, RlxError."""
        tools: list[dict[str, Any]] = []
        if isinstance(asked, Chat):
            tools = asked.tools
            template, more = self.tokenizer.chat_template or "", dict(asked.template or {})
            if asked.effort is not None:
                more["reasoning_effort"] = asked.effort
            if asked.effort is not None and not re.search(r"\breasoning_effort\b", template):
                raise Refused(400, "reasoning_effort is not read by the model's chat template; leave it out",
                              "reasoning_effort", "unsupported")  # fmt: skip
            with protocol.named("messages"):
                prompts = [self._checked(self.model.chat_ids(asked.messages, tools or None, more), "messages")]
        else:
            prompts = [self._ids(prompt, "prompt") for prompt in asked.prompts]
        with protocol.named("tools" if isinstance(asked, Chat) and asked.tool is not None else "response_format"):
            constraint = self._constraint(asked)
        settings, vocabulary = asked.settings, self.model.config.vocabulary
        if odd := [token for token in settings.bias or () if token >= vocabulary]:
            what = f"logit_bias has the token {odd[0]}; expected ids from 0 to {vocabulary - 1}"
            raise Refused(400, what, "logit_bias")
        format = format_of(self.tokenizer.chat_template) if tools else None
        names = frozenset(tool["function"]["name"] for tool in tools)
        adapter = None if asked.model == self.name else asked.model
        answers: list[Answer] = []
        for prompt in prompts:
            for choice in range(settings.choices):
                tool_text = None if format is None else ToolText(format, names)
                penalties = None
                if settings.penalized:
                    penalties = Penalties(vocabulary, settings.repetition, settings.presence,
                                          settings.frequency, settings.bias)  # fmt: skip
                answers.append(
                    Answer(
                        prompt, settings.max_tokens, _sampling(settings, choice), self.tokenizer.special.ends,
                        None if constraint is None else constraint.copy(), adapter,
                        penalties, settings.logprobs is not None, client=(address, settings.user),
                        priority=settings.priority, index=len(answers), engine=self.engine,
                        logprobs=settings.logprobs,
                        stream=self.tokenizer.stream(special=format is not None and format.special),
                        stops=StopTexts(settings.stop), tools=tool_text,
                        single=isinstance(asked, Chat) and asked.single,
                        named=isinstance(asked, Chat) and bool(asked.tool),
                    )
                )  # fmt: skip
        return answers, sum(len(prompt) for prompt in prompts)

    # -- routes

    async def completions(self, request: Request) -> Response:
        body = await self.body(request)
        asked = protocol.completion(body, self.names, self.model.context, self.choices)
        return await self._answered(request, asked, TEXT)

    async def chat(self, request: Request) -> Response:
        body = await self.body(request)
        asked = protocol.chat(body, self.names, self.model.context, self.choices)
        if self.tokenizer.chat_template is None:
            raise Refused(400, "the model has no chat template; /v1/completions takes a prompt", "messages")
        return await self._answered(request, asked, CHAT)

    async def responses(self, request: Request) -> Response:
        body = await self.body(request)
        turn = responses.turn(body, self.names, self.model.context, self.talks)
        if self.tokenizer.chat_template is None:
            raise Refused(400, "the model has no chat template; /v1/completions takes a prompt", "input")
        try:
            answers, count = await self.in_thread(self.prepared, turn.chat, _address(request))
        except Refused as error:
            raise responses.renamed(error) from None
        wake, told = asyncio.Event(), responses.Told(turn)
        answers[0].begin(wake, "")

        def keep(response: dict[str, Any]) -> None:
            if turn.stored:
                self.talks.keep(response, told.messages)

        self._ask(answers)
        if turn.chat.settings.stream:
            coming = pieces(answers, wake, self._pause)
            events = responses.events(told, coming, lambda: _usage(count, answers), keep)
            return Events(self, events, lambda: self._cancel(answers))
        try:
            (piece,) = await self.attended(request.receive, _gathered(answers, wake, self._pause))
        finally:
            self._cancel(answers)
        for _ in told.push(piece):  # builds the response; its events are not sent
            pass
        response = told.whole(piece.reason, _usage(count, answers))
        keep(response)
        return JSONResponse(response)

    async def response(self, request: Request) -> Response:
        """Gives a stored response, or deletes it for DELETE."""
        id = request.path_params["id"]
        if request.method == "DELETE":
            self.talks.forget(id)
            return JSONResponse({"id": id, "object": "response", "deleted": True})
        return JSONResponse(self.talks.get(id).response)

    async def _answered(self, request: Request, asked: Completion | Chat, shape: Shape) -> Response:
        answers, count = await self.in_thread(self.prepared, asked, _address(request))
        head = {
            "id": f"{shape.prefix}-{secrets.token_hex(12)}", "object": shape.object, "created": int(time.time()),
            "model": asked.model,
        }  # fmt: skip
        wake = asyncio.Event()
        scores: list[list[Scores]] | None = None
        if isinstance(asked, Completion) and asked.echo and asked.settings.logprobs is not None:
            scores = await self.attended(request.receive, self._scores(answers[:: asked.settings.choices]))
        for answer in answers:
            text, stream, place = "", None, answer.index // asked.settings.choices
            if isinstance(asked, Completion) and asked.echo:
                prompt = asked.prompts[place]
                said = isinstance(prompt, str)
                text = prompt if isinstance(prompt, str) else self._text(prompt)
                stream = self.tokenizer.stream(special=not said, begins=said)
            answer.begin(wake, text, None if scores is None else scores[place], stream)
        if asked.settings.max_tokens != 0:
            self._ask(answers)
        if asked.settings.stream:
            head["object"] = shape.chunk
            events = self._events(answers, wake, head, shape, count, asked.settings.usage)
            return Events(self, events, lambda: self._cancel(answers))
        try:
            pieces = await self.attended(request.receive, _gathered(answers, wake, self._pause))
        finally:
            self._cancel(answers)
        choices = [shape.whole(piece) for piece in pieces]
        return JSONResponse({**head, "choices": choices, "usage": _usage(count, answers)})

    async def _scores(self, answers: list[Answer]) -> list[list[Scores]]:
        """The scores of the answers' prompt tokens, from the second token on. Raises: Refused."""
        result = []
        for answer in answers:
            try:
                scores = await self.engine.score(answer.ids, answer.adapter)
            except Busy:
                raise busy(self.limits.waiting) from None
            except RlxError as error:
                raise Refused(503, str(error)) from error
            result.append(scores)
        return result

    def _pause(self) -> float:
        """Seconds between two events of a stream: with many streams one event holds the text of several steps."""
        return EVENT_SECONDS * self.engine.running

    def _ask(self, answers: list[Answer]) -> None:
        try:
            self.engine.ask(answers)
        except Busy:
            raise busy(self.limits.waiting) from None
        except RlxError as error:
            raise Refused(503, str(error)) from error

    def _cancel(self, answers: list[Answer]) -> None:
        for answer in answers:
            self.engine.cancel(answer)

    async def _events(
        self, answers: list[Answer], wake: asyncio.Event, head: dict[str, Any], shape: Shape, count: int, usage: bool
    ) -> AsyncIterator[str]:
        """The events of a stream. Frequent events are assembled from parts that are serialized once."""
        begin = json.dumps(head)[:-1] + ', "choices": ['
        try:
            for answer in answers:
                if first := shape.first(answer.index):
                    yield f"data: {begin}{json.dumps(first)}]}}\n\n"
            async for piece in pieces(answers, wake, self._pause):
                if piece.text:
                    yield f"data: {begin}{shape.part(piece)}]}}\n\n"
                if piece.reason is not None:
                    yield f"data: {begin}{json.dumps(shape.last(piece))}]}}\n\n"
            if usage:
                yield f"data: {begin}], \"usage\": {json.dumps(_usage(count, answers))}}}\n\n"
            yield "data: [DONE]\n\n"
        except Refused as error:  # the status has been sent
            yield f"data: {json.dumps(error.body)}\n\n"

    async def embeddings(self, request: Request) -> Response:
        body, width = await self.body(request), self.model.config.width
        if self.pooling is None:
            raise Refused(400, "the model is a reranker, which has no embeddings", "model")
        asked = protocol.embeddings(body, self.names, self.model.context, self.limits.inputs, width)
        rows = [await self.in_thread(self._ids, text, "input") for text in asked.inputs]
        vectors = await self.attended(request.receive, self._vectors(rows))
        return self.embedded(asked, rows, [cut(vector, asked.dimensions, True) for vector in vectors])

    async def rerank(self, request: Request) -> Response:
        body, model = await self.body(request), self.model
        if self.pooling is not None:
            raise Refused(400, "the model is no reranker, whose scores order documents", "model")
        asked = protocol.rerank(body, self.names, self.limits.inputs)

        def prompts() -> list[Any]:
            made = (model.reading.prompt(self.tokenizer, asked.query, text, model.where) for text in asked.documents)
            return [self._checked(ids, "documents") for ids in made]

        rows = await self.in_thread(prompts)
        scores = await self.attended(request.receive, self._read(rows, self.engine.rank))
        return self.ranked(asked, scores, sum(map(len, rows)))

    def ranked(self, asked: protocol.Rerank, scores: list[float], tokens: int) -> Response:
        """The answer to a rerank request, best document first; `tokens` is how many tokens the prompts have."""
        order = sorted(range(len(scores)), key=lambda i: -scores[i])[: asked.top]
        results = [
            {"index": i, "relevance_score": float(scores[i]),
             **({"document": {"text": asked.documents[i]}} if asked.texts else {})}
            for i in order
        ]  # fmt: skip
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        id = f"rerank-{secrets.token_hex(12)}"
        return JSONResponse({"id": id, "object": "list", "model": self.name, "results": results, "usage": usage})

    def embedded(self, asked: protocol.Embeddings, rows: list[Any], vectors: list[Any]) -> Response:
        """The answer to a request for embeddings."""
        data = [
            {"object": "embedding", "index": i,
             "embedding": base64.b64encode(v.tobytes()).decode() if asked.base64 else v.tolist()}
            for i, v in enumerate(vectors)
        ]  # fmt: skip
        count = sum(map(len, rows))
        usage = {"prompt_tokens": count, "total_tokens": count}
        return JSONResponse({"object": "list", "data": data, "model": self.name, "usage": usage})

    async def _vectors(self, rows: list[Any]) -> list[Any]:
        return await self._read(rows, lambda ids: self.engine.embed(ids, self.pooling or "last"))

    async def _read(self, rows: list[Any], compute: Callable[[Any], Any]) -> list[Any]:
        """The engine's result (`compute`) for each prompt. Raises: Refused."""
        result = []
        for ids in rows:
            try:
                result.append(await compute(ids))
            except Busy:
                raise busy(self.limits.waiting) from None
            except RlxError as error:
                raise Refused(503, str(error)) from error
        return result

    async def transcriptions(self, request: Request) -> Response:
        raise Refused(400, "the model hears nothing; a folder of Whisper's is served for sounds", "model")

    async def models(self, request: Request) -> Response:
        return self.listed(request, self.model.context, self.tokenizer.chat_template is not None)

    def listed(self, request: Request, context: int, chat: bool) -> Response:
        """The answer to a request for the list of models (the model itself and its adapters), or for one of them."""
        models: dict[str, Any] = {
            name: {"id": name, "object": "model", "created": self.created, "owned_by": "rlx",
                   "context_length": context, "chat": chat, **({} if name == self.name else {"parent": self.name})}
            for name in self.names
        }  # fmt: skip
        asked = request.path_params.get("name")
        if asked is None:
            return JSONResponse({"object": "list", "data": [*models.values()]})
        if asked not in models:
            known = ", ".join(map(repr, models))
            raise Refused(404, f"the model {asked[:80]!r} is not here; this server has {known}", "model",
                          "model_not_found")  # fmt: skip
        return JSONResponse(models[asked])

    async def health(self, request: Request) -> Response:
        failure = self.engine.failure
        return JSONResponse({"status": "ok"} if failure is None else {"status": "failed"}, 503 if failure else 200)

    async def measured(self, request: Request) -> Response:
        return PlainTextResponse(self.metrics.text(), media_type="text/plain; version=0.0.4")

    # -- bodies and clients

    async def body(self, request: Request) -> dict[str, Any]:
        """The JSON object of a request. Raises: Refused, Left."""
        content = await self.content(request, "application/json", self.limits.body_bytes)
        if len(content) > 1 << 16:
            return await self.in_thread(protocol.parsed, content)
        return protocol.parsed(content)

    async def content(self, request: Request, expected: str, most: int) -> bytes:
        """The bytes of a request's body. Raises: Refused, Left."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != expected:
            raise Refused(415, f"the body is {kind[:60] or 'of no type'}; send it with Content-Type: {expected}")
        length = request.headers.get("content-length", "0")
        too_large = Refused(413, f"the body has more than the {most:,} bytes that this server takes")
        if not length.isdecimal() or len(length) > 18 or int(length) > most:
            raise too_large
        content = bytearray()
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                async for part in request.stream():
                    content += part
                    if len(content) > most:
                        raise too_large
        except TimeoutError:
            raise Refused(408, f"the body took more than {self.limits.body_seconds:g} s") from None
        except ClientDisconnect:
            raise Left from None
        return bytes(content)

    async def attended(self, receive: Receive, work: Coroutine[Any, Any, T]) -> T:
        """Awaits `work`, and cancels it if the client disconnects or it takes too long. Raises: Left, Refused."""
        task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED, timeout=self.limits.request_seconds)
            if task.done():
                return task.result()
            if gone.done():
                raise Left
            raise Refused(504, f"the answer took more than {self.limits.request_seconds:g} s")
        finally:
            for one in (task, gone):
                one.cancel()
            await asyncio.gather(task, gone, return_exceptions=True)


class Events(Response):  # type: ignore[misc,unused-ignore]
    """Server-sent events (WHATWG HTML, section 9.2), until the client disconnects or reads nothing for too long."""

    def __init__(self, service: Service, events: AsyncIterator[str], end: Callable[[], None]) -> None:
        super().__init__(headers={"x-accel-buffering": "no"}, media_type="text/event-stream; charset=utf-8")
        del self.headers["content-length"]
        self._service, self._events, self._end = service, events, end

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._service.attended(receive, self._sent(send))
        except Refused as error:  # the answer took too long
            last = f"data: {json.dumps(error.body)}\n\n".encode()
            await send({"type": "http.response.body", "body": last, "more_body": False})
        finally:
            self._end()

    async def _sent(self, send: Send) -> None:
        try:
            async for event in self._events:
                async with asyncio.timeout(self._service.limits.send_seconds):
                    await send({"type": "http.response.body", "body": event.encode(), "more_body": True})
        except (TimeoutError, OSError):
            raise Left from None
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def cut(vector: Any, dimensions: int | None, unit: bool) -> Any:
    """The first `dimensions` numbers of a vector, if asked for; if `unit`, rescaled to norm 1."""
    if dimensions is None:
        return vector
    kept = np.asarray(vector[:dimensions], np.float32)
    size = float(np.linalg.norm(kept.astype(np.float64))) if unit else 1.0
    return (kept / max(size, 1e-12)).astype(np.float32)


def _sampling(settings: Settings, choice: int) -> Sampling:
    if settings.temperature == 0:
        return Sampling()
    seed = (settings.seed + choice) % (1 << 64)
    return Sampling(settings.temperature, settings.top_k, settings.top_p, seed, settings.min_p)


async def _gathered(answers: list[Answer], wake: asyncio.Event, pause: Callable[[], float]) -> list[Piece]:
    whole = [Piece(answer.index, "") for answer in answers]
    async for piece in pieces(answers, wake, pause):
        one = whole[piece.index]
        one.text += piece.text
        one.reason, one.calls = piece.reason, piece.calls
        one.scored = piece.scored if one.scored is None else [*one.scored, *(piece.scored or [])]
    return whole


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


def _usage(prompt: int, answers: list[Answer]) -> dict[str, Any]:
    generated = sum(answer.count for answer in answers)
    cached = {id(answer.ids): answer.shared for answer in reversed(answers)}  # the first choice's, by prompt
    return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated,
            "prompt_tokens_details": {"cached_tokens": sum(cached.values())}}  # fmt: skip


def page() -> tuple[str, str]:
    """The page at /, and the policy that allows its own script and style alone (CSP level 3)."""
    text = (Path(__file__).parent / "page.html").read_text(encoding="utf-8")
    parts = {}
    for tag in ("script", "style"):
        inner = text.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
        parts[tag] = base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()
    policy = "; ".join(
        ["default-src 'none'", *(f"{tag}-src 'sha256-{digest}'" for tag, digest in parts.items()), "connect-src 'self'",
         "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"]
    )  # fmt: skip
    return text, policy


def make_app(service: Service) -> Guard:
    """The ASGI application. Its lifespan starts the engine and ends it."""
    text, policy = page()

    async def front(request: Request) -> Response:
        return HTMLResponse(text, headers={"content-security-policy": policy, "referrer-policy": "no-referrer"})

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        service.engine.start()
        yield
        await asyncio.to_thread(service.engine.close)

    routes: Mapping[str, tuple[str, Any]] = {
        "/": ("GET", front),
        "/health": ("GET", service.health),
        "/metrics": ("GET", service.measured),
        "/v1/models": ("GET", service.models),
        "/v1/models/{name:path}": ("GET", service.models),
        "/v1/completions": ("POST", service.completions),
        "/v1/chat/completions": ("POST", service.chat),
        "/v1/responses": ("POST", service.responses),
        "/v1/responses/{id}": ("GET DELETE", service.response),
        "/v1/audio/transcriptions": ("POST", service.transcriptions),
        "/v1/audio/translations": ("POST", service.transcriptions),
        "/v1/embeddings": ("POST", service.embeddings),
        "/v1/rerank": ("POST", service.rerank),
        "/v2/rerank": ("POST", service.rerank),
    }
    listed = [Route(path, endpoint, methods=method.split()) for path, (method, endpoint) in routes.items()]
    # The bare router, since Starlette's own error handlers would answer before `Guard` sees the errors.
    app = Router(listed, lifespan=lifespan, redirect_slashes=False)
    return Guard(app, service, frozenset(routes))
