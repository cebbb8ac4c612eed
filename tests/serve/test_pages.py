"""A server whose sequences share pages."""

from __future__ import annotations

from pathlib import Path

from tests.serve.served import served, write_model

ASKED = {"model": "tiny", "prompt": list(range(3, 133)), "max_tokens": 20, "temperature": 0}


def test_pages_are_shared_and_counted(tmp_path: Path) -> None:
    folder, texts = write_model(tmp_path / "m"), []
    for more in ({}, {"pages": 6}):
        with served(folder, **more) as server:
            texts += [server.ask("/v1/completions", ASKED)[1]["choices"][0]["text"] for _ in range(2)]
            found = server.metrics()
            if more:
                assert (found["rlx_pages"], found["rlx_pages_free"], found["rlx_tokens_shared"]) == (5, 5, 128)
            else:
                assert "rlx_pages" not in found and found["rlx_tokens_shared"] == 128
    assert len(set(texts)) == 1
