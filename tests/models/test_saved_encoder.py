"""Encoders saved as ONNX: the embeddings of ONNX Runtime, and of rlx after loading, are those of rlx."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import rlx
from tests.outside import outside

pytestmark = pytest.mark.judged
SENTENCES = [
    "a",
    "The cat sits on the mat.",
    "Tensor programs run on any device, and give the same answer there.",
]


def _check(folder: Path, file: Path, dtype: str | None = None) -> None:
    ort = outside("onnxruntime")
    with rlx.models.load(folder, device="cpu", dtype=dtype) as model:
        for _, feeds, (batch, length) in model.batches(SENTENCES, 4):
            compiled = model.compiled(batch, length)
            expected = compiled.run(feeds)["embedding"]
            rlx.onnx.save(compiled, file)
            onnx.checker.check_model(str(file), full_check=True)
            options = ort.SessionOptions()
            options.intra_op_num_threads = options.inter_op_num_threads = 1
            session = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
            assert {i.name: i.shape for i in session.get_inputs()} == {
                k: list(v.shape) for k, v in feeds.items()
            }
            np.testing.assert_allclose(session.run(["embedding"], feeds)[0], expected, rtol=0, atol=1e-6)
            with rlx.onnx.load(file) as again:
                found = again.run(feeds, device="cpu")["embedding"]
                fused = again.programs[-1].graph.program
            assert sum(n.op.name == "attention" for n in fused.nodes) == model.config.num_hidden_layers
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [None, "bf16"])
def test_tiny(tiny: Path, tmp_path: Path, dtype: str | None) -> None:
    _check(tiny, tmp_path / "tiny.onnx", dtype)


def test_minilm(minilm: Path, tmp_path: Path) -> None:
    _check(minilm, tmp_path / "minilm.onnx")
