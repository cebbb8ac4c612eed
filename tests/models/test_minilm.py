"""The real MiniLM beside `transformers` in float64. Skipped where its folder is not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.conformance.embeddings import reference_embeddings
from tests.models.variants import MINILM_PLACES, MINILM_SENTENCES


# `make demo` runs the model on every device.
@pytest.mark.parametrize(
    "device",
    ["cpu", pytest.param("vulkan", marks=pytest.mark.full), pytest.param("cuda", marks=pytest.mark.cuda)],
    indirect=True,
)
def test_embeddings(device: str, minilm: Path, golden: dict[str, Any]) -> None:
    with rlx.models.load(minilm, device) as encoder:
        got = encoder.encode(MINILM_SENTENCES)
        assert encoder.max_length == 256
        assert [d for exe in encoder.executables() for d in exe.report().host_nodes] == []
        assert all(exe.plan.overhead <= 1.01 for exe in encoder.executables())
    assert got.shape == (3, 384)
    assert np.allclose(np.sum(got.astype(np.float64) ** 2, 1), 1, atol=1e-6)
    assert np.max(np.abs(got[:, MINILM_PLACES] - np.array(golden["minilm"]))) <= 1e-6


@pytest.mark.full
def test_the_reference_itself(minilm: Path, golden: dict[str, Any]) -> None:
    with rlx.models.load(minilm, "cpu") as encoder:
        exact = reference_embeddings(encoder, MINILM_SENTENCES)
    assert np.max(np.abs(exact[:, MINILM_PLACES] - np.array(golden["minilm"]))) < 1e-13
