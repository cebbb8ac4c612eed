"""The server of a text encoder, which answers requests for embeddings, or for the order of documents, and no others."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from starlette.requests import Request
from starlette.responses import Response

from rlx.errors import RlxError, ShapeError
from rlx.models import SentenceEncoder
from rlx.serve import protocol
from rlx.serve.app import Service, cut
from rlx.serve.limits import Limits
from rlx.serve.metrics import Metrics
from rlx.serve.protocol import Refused
from rlx.serve.turns import Turns

T = TypeVar("T")
ROUTES = dict.fromkeys(("rank", "scores", "tokens"), "/v1/rerank") | {"embeddings": "/v1/embeddings"}
TEXTS_AT_ONCE = 32  # the encoder's batch size
_ONLY = "the model is a sentence encoder, which makes no text; {} takes texts"


class _Engine(Turns):
    """What a service needs of an engine. Embeddings are computed one request after the other, in a thread of their
    own."""

    def __init__(self, encoder: SentenceEncoder, waiting: int, metrics: Metrics) -> None:
        super().__init__(waiting, metrics, "rlx_embeddings_waiting", "Requests for embeddings that wait or run.")
        self.encoder = encoder

    async def embed(
        self, rows: list[npt.NDArray[np.int32]], left_out: Sequence[int] = (), dimensions: int | None = None
    ) -> list[Any]:
        """The embeddings of a request's texts. Raises: as `_in_turn`."""
        return await self._in_turn(lambda left: self._vectors(rows, left_out, dimensions, left))

    async def rank(self, query: str, documents: list[str]) -> tuple[list[float], int]:
        """The scores of a request's documents, and the tokens that they took. Raises: as `_in_turn`."""
        return await self._in_turn(lambda left: self._scores(query, documents, left))

    async def _in_turn(self, compute: Callable[[threading.Event], T]) -> T:
        """The result of `compute`, run when it is the request's turn; its event is set when the client disconnects, and
        it then stops after the current batch. Raises: as `turn`."""
        left = threading.Event()
        try:
            return await self.turn(compute, left)
        finally:
            left.set()

    def _scores(self, query: str, documents: list[str], left: threading.Event) -> tuple[list[float], int]:
        """The scores, or fewer if the client disconnects."""
        result, tokens = [0.0] * len(documents), 0
        order = sorted(range(len(documents)), key=lambda i: len(documents[i]))
        for first in range(0, len(order), TEXTS_AT_ONCE):
            if left.is_set():
                break
            batch = order[first : first + TEXTS_AT_ONCE]
            scores, count = self.encoder.ranked(query, [documents[i] for i in batch])
            tokens += count
            for i, score in zip(batch, scores.tolist(), strict=True):
                result[i] = score
        return result, tokens

    def _vectors(
        self, rows: list[npt.NDArray[np.int32]], left_out: Sequence[int], dimensions: int | None,
        left: threading.Event,
    ) -> list[Any]:
        """The embeddings, or fewer if the client disconnects. The texts of a batch have similar lengths."""
        result: list[Any] = [None] * len(rows)
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        for first in range(0, len(rows), TEXTS_AT_ONCE):
            if left.is_set():
                break
            batch = order[first : first + TEXTS_AT_ONCE]
            prompts = [left_out[i] for i in batch] if left_out else ()
            more: dict[str, Any] = {} if dimensions is None else {"truncate_dim": dimensions}
            vectors = self.encoder.encode_ids([rows[i] for i in batch], left_out=prompts, **more)
            for i, vector in zip(batch, vectors, strict=True):
                result[i] = vector
        return result


class EncoderService(Service):
    """What the routes share for a sentence encoder: embeddings are answered, completions and chat refused."""

    def __init__(self, encoder: SentenceEncoder, name: str, *, limits: Limits, key: str | None = None) -> None:
        if encoder.task not in ROUTES or (encoder.task == "scores" and len(encoder.labels) > 1):
            raise RlxError(
                f"{encoder.where} is neither for embeddings nor for the order of documents; the server has no route "
                "for it"
            )
        self.encoder, self.name, self.limits = encoder, name, limits
        self.names = (name,)
        self.key = None if key is None else key.encode()
        self.metrics = Metrics()
        self.engine: Any = _Engine(encoder, limits.waiting, self.metrics)
        self.created = int(time.time())
        self.most = min(limits.prompt_tokens or encoder.max_length, encoder.max_length)
        self._threads = asyncio.Semaphore(4)

    async def completions(self, request: Request) -> Response:
        raise Refused(400, _ONLY.format(ROUTES[self.encoder.task]), "model")

    chat = responses = response = completions

    async def embeddings(self, request: Request) -> Response:
        body, encoder = await self.body(request), self.encoder
        if encoder.task != "embeddings":
            raise Refused(400, "the model is a reranker, which has no embeddings; /v1/rerank takes documents", "model")
        asked = protocol.embeddings(
            body, (self.name,), encoder.max_length, self.limits.inputs, encoder.whole_width, tuple(encoder.prompts)
        )
        before = encoder.prompt(asked.prompt_name)  # put before texts, not before token ids
        prompted = await self.in_thread(encoder.left_out, before)
        texts = [before + text if isinstance(text, str) else text for text in asked.inputs]
        left_out = [prompted if isinstance(text, str) else 0 for text in texts]
        rows = [await self.in_thread(self._ids, text, "input") for text in texts]
        work = self._vectors(rows, left_out, asked.dimensions)
        vectors = await self.attended(request.receive, work)
        return self.embedded(asked, rows, [cut(vector, asked.dimensions, encoder.unit) for vector in vectors])

    async def rerank(self, request: Request) -> Response:
        body = await self.body(request)
        if self.encoder.task == "embeddings":
            raise Refused(400, "the model has embeddings, and no scores that order documents", "model")
        asked = protocol.rerank(body, (self.name,), self.limits.inputs)
        if self.limits.prompt_tokens is not None:
            for param, texts in (("query", [asked.query]), ("documents", asked.documents)):
                for text in texts:
                    await self.in_thread(self._fits, text, param)
        try:
            scores, tokens = await self.attended(request.receive, self.engine.rank(asked.query, asked.documents))
        except ShapeError as error:  # the query leaves a document no room
            raise Refused(400, str(error), "query", "context_length_exceeded") from error
        except RlxError as error:
            raise Refused(503, str(error)) from error
        self.metrics.prompt_tokens += tokens
        return self.ranked(asked, scores, tokens)

    def _fits(self, text: str, param: str) -> None:
        """Raises: Refused."""
        with protocol.named(param):
            count = len(self.encoder.tokens(text))
        if count > self.most:
            raise protocol.too_long(count, self.most, param)

    def _ids(self, prompt: str | list[int], param: str) -> Any:
        """A text's tokens. Raises: Refused."""
        with protocol.named(param):
            ids = self.encoder.tokens(prompt) if isinstance(prompt, str) else self.encoder.check_ids(prompt)
        if len(ids) > self.most:
            raise protocol.too_long(len(ids), self.most, param)
        if not len(ids):
            raise Refused(400, f"{param} has no tokens", param)
        return ids

    async def _vectors(
        self, rows: list[Any], left_out: Sequence[int] = (), dimensions: int | None = None
    ) -> list[Any]:
        try:
            result: list[Any] = await self.engine.embed(rows, left_out, dimensions)
        except RlxError as error:
            raise Refused(503, str(error)) from error
        for ids in rows:
            self.metrics.prompt_tokens += len(ids)
        return result

    async def models(self, request: Request) -> Response:
        return self.listed(request, self.encoder.max_length, False)

