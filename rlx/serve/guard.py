"""Guard: checks who may use the server, writes errors in the API's JSON, and counts requests."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from rlx.errors import meant
from rlx.serve.protocol import Refused

Receive: TypeAlias = Callable[[], Awaitable[Any]]
Send: TypeAlias = Callable[[Any], Awaitable[None]]
_OPEN = {"/", "/health"}  # routes that need no key
_ALWAYS = [(b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]
# Paths of llama.cpp's and Ollama's servers, each with this server's equivalent.
_ELSEWHERE = {
    "/completion": "/v1/completions", "/api/generate": "/v1/completions", "/api/chat": "/v1/chat/completions",
    "/embedding": "/v1/embeddings", "/api/embed": "/v1/embeddings", "/rerank": "/v1/rerank",
    "/reranking": "/v1/rerank", "/v1/reranking": "/v1/rerank", "/api/tags": "/v1/models", "/slots": "/metrics",
    "/healthz": "/health", "/ping": "/health", "/ready": "/health", "/generate": "/v1/completions",
    "/v1/chat": "/v1/chat/completions", "/v1/score": "/v1/rerank", "/api/show": "/v1/models",
}  # fmt: skip
# Paths of OpenAI's API that this server lacks, each with what to do instead.
_ABSENT = {
    "/v1/messages": "Anthropic's API is not spoken here; /v1/chat/completions, as in OpenAI's API, answers talks",
    "/v1/complete": "Anthropic's API is not spoken here; /v1/completions, as in OpenAI's API, goes on with a text",
    "/v1/audio/speech": "nothing here speaks; /v1/audio/transcriptions writes down what a Whisper model hears",
    "/v1/images/generations": "nothing here makes pictures", "/v1/moderations": "nothing here judges texts",
    "/v1/files": "nothing is kept here but responses", "/v1/batches": "docs/bulk.md has work of many texts",
    "/v1/realtime": "answers are streams of events, with stream: true",
    "/v1/fine_tuning": "rlx finetune, in a shell, makes adapters",
    "/v1/tokenize": "usage counts the tokens of each answer",
    "/tokenize": "model.tokenize(text) in Python gives token ids; usage counts them in each answer",
    "/detokenize": "model.tokenizer.decode(ids) in Python gives a text",
    "/apply-template": "/v1/chat/completions applies the model's own template",
    "/infill": "/v1/completions goes on with a prompt that has the model's own marks for it",
    "/props": "/v1/models tells the model and its context", "/docs": "docs/serving.md lists what is answered",
    "/openapi.json": "docs/serving.md lists what is answered",
    "/lora-adapters": "rlx serve --adapter NAME=FOLDER loads one, and a request's model names it",
}  # fmt: skip
_LOOPBACK = re.compile(r"(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d{1,5})?", re.IGNORECASE)


class Left(Exception):
    """The client disconnected before its answer was complete."""


class Guard:
    """Wraps all routes: checks hosts and keys, formats refusals, and counts requests.

    Without a key only requests to a loopback name are accepted, and from web pages only from this server's own: else a
    page of another site, in a browser on this machine, could use the model through a domain name that resolves to this
    machine (DNS rebinding)."""

    def __init__(self, app: Any, service: Any, routes: frozenset[str]) -> None:
        self.app, self.service, self.routes = app, service, routes

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path, metrics = scope["path"], self.service.metrics
        scope["app"] = self  # the router then raises an error for an unknown path
        status = 0

        async def counted(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message["headers"], *_ALWAYS]}
            await send(message)

        try:
            try:
                self._check(scope, path)
                await self.app(scope, receive, counted)
            except Refused as error:
                if not status:
                    await refusal(error)(scope, receive, counted)
            except asyncio.CancelledError:  # the time for running answers is over
                if not status:
                    await refusal(Refused(503, "the server is stopping"))(scope, receive, counted)
            except HTTPException as error:
                allowed = (error.headers or {}).get("Allow", "")
                instead = f"; send a {' or '.join(_asked(allowed))}" if allowed else self._instead(path)
                message = f"{scope['method'][:20]} {path[:80]}: {error.detail}{instead}"
                response = refusal(Refused(error.status_code, message))
                if allowed:
                    response.headers["allow"] = allowed
                await response(scope, receive, counted)
            except Left:
                metrics.left += 1
                status = status or 499
            except Exception as error:  # noqa: BLE001 - one request must not end the others
                print(f"rlx: {path[:80]}: {type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
                if not status:
                    await refusal(Refused(500, "an error inside of the server"))(scope, receive, counted)
        finally:
            name = path if path in self.routes else "other"
            metrics.requests[name, status] += 1

    def _instead(self, path: str) -> str:
        """What to request instead of an unknown path."""
        for known, what in _ABSENT.items():
            if path == known or path.startswith(f"{known}/"):
                return f"; {what}"
        if (short := path.rstrip("/")) in self.routes:
            return f"; without the last / it is {short}"
        if (other := _ELSEWHERE.get(path, f"/v1{path}")) in self.routes:
            return f"; {other} has it here"
        names = [route for route in self.routes if "{" not in route]
        parts = {name.removeprefix("/v1/"): name for name in names if name.startswith("/v1/")}
        near = meant(path.strip("/").removeprefix("v1/"), parts)
        for short, name in parts.items():
            near = near.replace(f"{short!r}", f"{name!r}")
        return near or f"; this server has {', '.join(sorted(names))}"

    def _check(self, scope: Any, path: str) -> None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        origin = headers.get(b"origin")
        key = self.service.key
        if origin is not None and origin.decode("latin-1").partition("://")[2].lower() != host.lower():
            raise Refused(403, "requests of pages of other sites are not taken")
        if key is None:
            if not _LOOPBACK.fullmatch(host):
                raise Refused(403, f"the host {host[:80]!r} is not this machine's own name")
            return
        if path in _OPEN:
            return
        kind, _, token = headers.get(b"authorization", b"").partition(b" ")
        if kind.lower() != b"bearer" or not hmac.compare_digest(_digest(token.strip()), _digest(key)):
            raise Refused(401, "send the server's API key: Authorization: Bearer KEY", code="invalid_api_key")


def _asked(allowed: str) -> list[str]:
    """The methods of an Allow header, without HEAD, which nobody means."""
    return sorted({name.strip() for name in allowed.split(",")} - {"HEAD"})


def _digest(key: bytes) -> bytes:
    """A digest, so that comparing keys takes the same time for any length."""
    return hashlib.sha256(key).digest()


def refusal(error: Refused) -> Response:
    """The response that says why a request is refused."""
    more = {429: {"retry-after": "1"}, 401: {"www-authenticate": "Bearer"}}.get(error.status, {})
    more |= {"x-should-retry": "false"} if error.again else {}
    return JSONResponse(error.body, error.status, more)
