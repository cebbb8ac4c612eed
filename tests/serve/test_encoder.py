"""`rlx serve` of embedding models in GGUF files."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

pytest.importorskip("starlette", reason="needs rlx[serve]")
pytest.importorskip("uvicorn", reason="needs rlx[serve]")

from rlx.serve.encoder import _Engine
from rlx.serve.metrics import Metrics
from tests.models import gguf_encoders, sentence_folders
from tests.models.language import test_reading
from tests.serve.served import served

VECTORS = "/v1/embeddings"


def _numbers(found: Any) -> Any:
    return np.array([row["embedding"] for row in found["data"]], np.float32)


def test_an_encoder_answers_requests_for_embeddings_alone(tmp_path: Path) -> None:
    gguf_encoders.write(tmp_path / "x.gguf", "bert")
    with served(tmp_path / "x.gguf") as server:
        texts = ["the cat sleeps", "stone bread"]
        status, found = server.ask(VECTORS, {"model": "tiny", "input": texts})
        assert status == 200 and found["usage"] == {"prompt_tokens": 9, "total_tokens": 9}
        assert (_numbers(found) == server.model.embed(texts)).all()
        status, found = server.ask(VECTORS, {"model": "tiny", "input": [2, 5, 7, 15, 3]})
        assert status == 200 and np.abs(_numbers(found)[0] - server.model.embed(texts[0])).max() <= 1e-6
        for path, body, message in (
            ("/v1/completions", {"prompt": "a"}, "is a sentence encoder"),
            ("/v1/chat/completions", {"messages": []}, "is a sentence encoder"),
            (VECTORS, {"input": "cat " * 60}, "62 tokens are more than the 40"),
            (VECTORS, {"input": [[48]]}, "token 48 is out of range"),
            (VECTORS, {"input": []}, "expected a text"),
            (VECTORS, {"input": "a", "dimensions": 99}, "dimensions"),
        ):
            status, found = server.ask(path, {"model": "tiny", **body})
            assert status == 400 and message in found["error"]["message"], found
        assert server.ask("/v1/models")[1]["data"][0]["context_length"] == 40
        assert server.metrics()["rlx_embeddings_waiting"] == 0


def test_prompts_by_name(tmp_path: Path) -> None:
    with served(sentence_folders.write(tmp_path / "x", "prompt left out")) as server:
        for name in ("query", "passage"):
            status, found = server.ask(VECTORS, {"model": "tiny", "input": ["dog", "the"], "prompt_name": name})
            exact = server.model.encode(["dog", "the"], prompt_name=name)
            assert status == 200 and (_numbers(found) == exact).all()
        both = ["dog", [2, 5, 3]]  # token ids are taken as they are
        found = server.ask(VECTORS, {"model": "tiny", "input": both})[1]
        exact = [server.model.encode(["dog"])[0], server.model.encode(["the"], prompt="")[0]]
        assert np.abs(_numbers(found) - exact).max() <= 1e-6
        for body in ({"input": "a", "prompt_name": "other"}, {"input": both, "prompt_name": "query"}):
            status, found = server.ask(VECTORS, {"model": "tiny", **body})
            assert status == 400 and found["error"]["param"] == "prompt_name", found


def test_a_decoder_makes_embeddings_as_its_file_says(tmp_path: Path) -> None:
    test_reading.write(tmp_path / "x.gguf", "mean")
    with served(tmp_path / "x.gguf") as server:
        found = server.ask(VECTORS, {"model": "tiny", "input": "some text"})[1]
        assert np.abs(_numbers(found)[0] - server.model.embed("some text", pooling="mean")).max() <= 1e-6


@pytest.mark.parametrize("name", ["list", "truncated", "cls"])
def test_dimensions_of_embeddings(name: str, tmp_path: Path) -> None:
    """Vectors are cut, and have length 1 again where the whole ones have."""
    with served(sentence_folders.write(tmp_path / "x", name)) as server:
        for count in (1, 9, server.model.whole_width):
            status, found = server.ask(VECTORS, {"model": "tiny", "input": ["dog", "the cat"], "dimensions": count})
            whole = server.model.encode(["dog", "the cat"], truncate_dim=server.model.whole_width)[:, :count]
            exact = whole / np.linalg.norm(whole, axis=1, keepdims=True) if server.model.unit else whole
            assert status == 200 and _numbers(found).shape == (2, count)
            assert np.abs(_numbers(found) - exact).max() <= 1e-6
        whole = _numbers(server.ask(VECTORS, {"model": "tiny", "input": "dog"})[1])[0]
        assert np.abs(whole - server.model.encode(["dog"])[0]).max() <= 1e-6
        for wrong in (0, -1, 2.0, True, server.model.whole_width + 1):
            status, found = server.ask(VECTORS, {"model": "tiny", "input": "a", "dimensions": wrong})
            assert status == 400 and found["error"]["param"] == "dimensions"


def test_dimensions_of_a_decoder(tmp_path: Path) -> None:
    test_reading.write(tmp_path / "x.gguf", "mean")
    with served(tmp_path / "x.gguf") as server:
        found = _numbers(server.ask(VECTORS, {"model": "tiny", "input": "some text", "dimensions": 5})[1])[0]
        exact = server.model.embed("some text")[:5]
        assert np.abs(found - exact / np.linalg.norm(exact)).max() <= 1e-6


def test_a_request_whose_client_leaves_keeps_its_turn_until_it_is_computed() -> None:
    """What its thread computes is not beside the next request's; one that waits gives up at once."""
    at_work, go, most = threading.Semaphore(0), threading.Event(), [0, 0]

    class Encoder:
        def encode_ids(self, rows: list[Any], *, left_out: Any) -> list[Any]:
            most[0] += 1
            most[1] = max(most)
            at_work.release()
            assert go.wait(60)
            most[0] -= 1
            return rows

    async def clients() -> None:
        engine = _Engine(cast(Any, Encoder()), 3, Metrics())
        rows = [[np.array([i], np.int32)] for i in range(3)]
        first = asyncio.ensure_future(engine.embed(rows[0]))
        await asyncio.to_thread(at_work.acquire)
        second, third = (asyncio.ensure_future(engine.embed(row)) for row in rows[1:])
        await asyncio.sleep(0)
        for one in (first, second):
            one.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        assert engine.running == 2  # the first at work, and the third
        go.set()
        assert await third == rows[2]
        await asyncio.sleep(0)
        assert engine.running == 0

    asyncio.run(clients())
    assert most[1] == 1
