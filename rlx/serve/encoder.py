"""The server of a sentence encoder, which answers requests for embeddings and no others."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from starlette.requests import Request
from starlette.responses import Response

from rlx.errors import RlxError
from rlx.models import SentenceEncoder
from rlx.serve import protocol
from rlx.serve.app import Service, busy
from rlx.serve.limits import Limits
from rlx.serve.metrics import Metrics
from rlx.serve.protocol import Refused

TEXTS_AT_ONCE = 32  # the encoder takes so many too
_ONLY = "the model is a sentence encoder, which makes no text; /v1/embeddings takes texts"


class _Engine:
    """What a service needs of an engine. Embeddings are computed one request after the other, in a thread of their
    own."""

    failure: str | None = None
    failed: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, encoder: SentenceEncoder, waiting: int, metrics: Metrics) -> None:
        self.encoder, self.running = encoder, 0
        self._most = waiting
        self._turn = asyncio.Lock()
        metrics.gauges |= {
            "rlx_embeddings_waiting": ("Requests for embeddings that wait or run.", lambda: self.running)
        }

    async def embed(self, rows: list[npt.NDArray[np.int32]], left_out: Sequence[int] = ()) -> list[Any]:
        """The embeddings of a request's texts. A request whose client leaves gives up its turn while it waits; one that
        is being computed keeps it until its thread has ended, with the texts of a batch. Raises: Refused where too many
        requests wait, RlxError."""
        if self.running > self._most:
            raise busy(self._most)
        self.running += 1
        try:
            await self._turn.acquire()
        except BaseException:
            self.running -= 1
            raise
        left = threading.Event()
        work = asyncio.ensure_future(asyncio.to_thread(self._vectors, rows, left_out, left))
        work.add_done_callback(self._computed)
        try:
            return await asyncio.shield(work)
        finally:
            left.set()

    def _vectors(
        self, rows: list[npt.NDArray[np.int32]], left_out: Sequence[int], left: threading.Event
    ) -> list[Any]:
        """The embeddings, or fewer once the client has left. The texts of a batch are of about one length."""
        result: list[Any] = [None] * len(rows)
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        for first in range(0, len(rows), TEXTS_AT_ONCE):
            if left.is_set():
                break
            batch = order[first : first + TEXTS_AT_ONCE]
            prompts = [left_out[i] for i in batch] if left_out else ()
            vectors = self.encoder.encode_ids([rows[i] for i in batch], left_out=prompts)
            for i, vector in zip(batch, vectors, strict=True):
                result[i] = vector
        return result

    def _computed(self, work: asyncio.Future[Any]) -> None:
        """Gives the turn to the next request."""
        self.running -= 1
        self._turn.release()
        if not work.cancelled():
            work.exception()  # nobody may be left who would ask for it

    def start(self) -> None:
        pass

    def close(self) -> None:
        pass


class EncoderService(Service):
    """What the routes share for a sentence encoder: embeddings are answered, completions and chat refused."""

    def __init__(self, encoder: SentenceEncoder, name: str, *, limits: Limits, key: str | None = None) -> None:
        if encoder.pooling == "rank":
            raise RlxError(f"{encoder.where} is a reranker, for which the server has no route; rank() gives its scores")
        self.encoder, self.name, self.limits = encoder, name, limits
        self.names = (name,)
        self.key = None if key is None else key.encode()
        self.metrics = Metrics()
        self.engine: Any = _Engine(encoder, limits.waiting, self.metrics)
        self.created = int(time.time())
        self.most = min(limits.prompt_tokens or encoder.max_length, encoder.max_length)
        self._threads = asyncio.Semaphore(4)

    async def completions(self, request: Request) -> Response:
        raise Refused(400, _ONLY, "model")

    async def chat(self, request: Request) -> Response:
        raise Refused(400, _ONLY, "model")

    async def embeddings(self, request: Request) -> Response:
        body, encoder = await self.body(request), self.encoder
        asked = protocol.embeddings(
            body, (self.name,), encoder.max_length, self.limits.inputs, encoder.width, tuple(encoder.prompts)
        )
        before = encoder.prompt(asked.prompt_name)  # stands before texts; token ids are taken as they are
        prompted = await self.in_thread(encoder.left_out, before)
        texts = [before + text if isinstance(text, str) else text for text in asked.inputs]
        left_out = [prompted if isinstance(text, str) else 0 for text in texts]
        rows = [await self.in_thread(self._ids, text, "input") for text in texts]
        return self.embedded(asked, rows, await self.attended(request.receive, self._vectors(rows, left_out)))

    def _ids(self, prompt: str | list[int], param: str) -> Any:
        """A text's tokens. Raises: Refused."""
        with protocol.named(param):
            ids = self.encoder.tokens(prompt) if isinstance(prompt, str) else self.encoder.check_ids(prompt)
        if len(ids) > self.most:
            raise protocol.too_long(len(ids), self.most, param)
        if not len(ids):
            raise Refused(400, f"{param} has no tokens", param)
        return ids

    async def _vectors(self, rows: list[Any], left_out: Sequence[int] = ()) -> list[Any]:
        try:
            result: list[Any] = await self.engine.embed(rows, left_out)
        except RlxError as error:
            raise Refused(503, str(error)) from error
        for ids in rows:
            self.metrics.prompt_tokens += len(ids)
        return result

    async def models(self, request: Request) -> Response:
        return self.listed(request, self.encoder.max_length, False)

