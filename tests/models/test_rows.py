"""Texts of different lengths in rows of tokens: which share a row, and that none changes another's numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.models.rows import runs_of, size_of
from tests.models.sentence_folders import write
from tests.models.tiny import write_model

SOME = np.random.default_rng(0)
LENGTHS = {
    "sentences": np.clip(SOME.gamma(3.2, 4.2, 1000), 3, 128).astype(int).tolist(),
    "any": SOME.integers(0, 513, 200).tolist(),
    "short": SOME.integers(0, 4, 300).tolist(),
    "long": SOME.integers(400, 513, 20).tolist(),
    "one": [17],
    "none": [],
}


@pytest.mark.parametrize("name", LENGTHS)
@pytest.mark.parametrize(("most", "at_once"), [(32, 1024), (5, 8192), (1, 1024)])
def test_rows(name: str, most: int, at_once: int) -> None:
    lengths, longest = LENGTHS[name], 512
    runs = list(runs_of(lengths, longest, most, at_once, share=True))
    assert sorted(i for run in runs for i in run.texts()) == list(range(len(lengths)))
    for run in runs:
        assert 1 <= len(run.rows) <= most and (len(run.rows) == 1 or len(run.rows) * run.length <= at_once)
        assert run.length <= longest and all(1 <= len(row) <= max(run.slots, 1) for row in run.rows)
        assert all(sum(lengths[i] for i in row) <= run.length for row in run.rows)
    if name == "sentences":  # the last row alone has padding, to a multiple of 8
        assert sum(len(run.rows) * run.length for run in runs) - sum(lengths) < 8
    if name in ("sentences", "any"):
        assert sum(len(run.rows) * run.length for run in runs) <= 1.02 * sum(lengths)
        assert len({(len(run.rows), run.length, run.slots) for run in runs}) <= 24


def test_rows_of_one_text() -> None:
    runs = list(runs_of([3, 40, 9, 8, 512], 512, 8, 1024, share=False))
    assert [(run.length, run.slots, run.rows) for run in runs] == [
        (8, 0, [[0], [3]]), (16, 0, [[2]]), (40, 0, [[1]]), (512, 0, [[4]])
    ]  # fmt: skip


def test_sizes_of_rows() -> None:
    assert [size_of(n, 512) for n in (0, 1, 8, 9, 64, 65, 129, 257, 500, 512)] == [
        8, 8, 8, 16, 64, 72, 144, 288, 512, 512
    ]  # fmt: skip
    assert size_of(39, 40) == 40 and size_of(33, 37) == 37
    assert all(n <= size_of(n, 1 << 20) <= max(n + 7, 1.125 * n) for n in range(1, 5000))


def test_a_text_without_numbers_changes_no_other(tmp_path: Path) -> None:
    """A word whose vector is NaN stands in one text of a row."""
    with rlx.models.load(write_model(tmp_path), "cpu", engine="numpy") as encoder:
        texts = ["a dog", "the cat", "the river"]
        before = encoder.encode(texts)
        name = "embeddings.word_embeddings.weight"
        table = encoder.file_weights()[name].copy()
        assert len(exes := encoder.executables()) == 1 and "text" in exes[0].graph.inputs
        table[encoder.tokens("cat")[1]] = np.nan
        encoder.weights.set(name, table)
        after = encoder.encode(texts)
        assert np.isnan(after[1]).all()
        np.testing.assert_allclose(after[[0, 2]], before[[0, 2]], atol=1e-6)


@pytest.mark.parametrize("name", ["max", "weightedmean", "lasttoken", "prompt left out", "mean_sqrt_len_tokens"])
def test_an_empty_text_in_a_row(name: str, tmp_path: Path) -> None:
    with rlx.models.load(write(tmp_path, name), "cpu", engine="numpy") as encoder:
        tokens: Any = [np.arange(n, dtype=np.int32) + 3 for n in (2, 0, 5)]
        left_out = [1, 0, 5] if name == "prompt left out" else ()
        together = encoder.encode_ids(tokens, left_out=left_out)
        alone = encoder.encode_ids(tokens, left_out=left_out, batch_size=1)
    np.testing.assert_allclose(together, alone, atol=2e-6)
