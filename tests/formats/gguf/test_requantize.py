"""GGUF files in other types, and llama.cpp's mixtures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rlx.cli.app import app
from rlx.errors import DTypeError
from rlx.formats import gguf
from rlx.formats.gguf.requantize import MIXTURES, requantize, types_in
from rlx.models import load
from rlx.packed import PackedArray
from tests.formats.gguf.mixtures import CASES, FROZEN, types_of, write
from tests.models.language import tiny

HELD = json.loads(FROZEN.read_text())["others"]


@pytest.mark.parametrize("case", CASES)
def test_the_types_of_mixtures_are_llama_cpps(case: str, tmp_path: Path) -> None:
    with gguf.read(write(tmp_path / "s.gguf", case, rows=1)) as file:
        for mixture, (most, *_) in MIXTURES.items():
            kinds = {name: kind.name for name, kind in types_in(file, mixture).items()}
            assert {name: kind for name, kind in kinds.items() if kind != most} == HELD[case][mixture]
            assert len(kinds) == sum(len(t.shape) > 1 and "gate_inp" not in t.name for t in file.tensors.values())


@pytest.mark.parametrize(("kind", "bits"), [("q4_k", 4), ("Q5_K_M", 5), ("bf16", 8)])
def test_values_are_those_of_the_source_within_the_types_steps(kind: str, bits: int, tmp_path: Path) -> None:
    source = write(tmp_path / "s.gguf", "rows of 288")
    with gguf.read(source) as file:
        notes = requantize(file, tmp_path / "o.gguf", kind)
        with gguf.read(tmp_path / "o.gguf") as other:
            assert [*other.tensors] == [*file.tensors]
            assert other.metadata["general.file_type"] == {"q4_k": 15, "Q5_K_M": 17, "bf16": 32}[kind]
            for name, t in other.tensors.items():
                held, exact = t.read(), np.asarray(file.tensors[name].read()).astype(np.float64)
                values = held.dequantize() if isinstance(held, PackedArray) else held
                error = float(((values.astype(np.float64) - exact) ** 2).sum() / (exact**2).sum())
                assert error <= (0 if t.dtype.name == "f32" else 4.0**-bits * 2), name
    assert any("are no blocks of 256" in note for note in notes) is (kind != "bf16")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder, then its file in other types; what cannot be is said in one line."""
    folder = tiny.write_language_model(tmp_path / "m", {**tiny.LLAMA, "vocab_size": 140}, text=True)

    def convert(*arguments: object) -> str:
        with pytest.raises(SystemExit) as end:
            app(["convert", *map(str, arguments)])
        assert not end.value.code
        return capsys.readouterr().err

    convert(folder, "-o", tmp_path / "a.gguf")
    assert "Q8_0 already" not in convert(tmp_path / "a.gguf", "--to", "f16", "-o", tmp_path / "b.gguf")
    convert(folder, "--to", "Q4_K_M", "-o", tmp_path / "c.gguf")
    assert types_of(tmp_path / "c.gguf")["blk.0.attn_q.weight"] == "f16"  # its rows of 24 are blocks of nothing
    assert {p.name for p in tmp_path.iterdir()} == {"m", "a.gguf", "b.gguf", "c.gguf"}
    with load(tmp_path / "a.gguf", "cpu") as one, load(tmp_path / "b.gguf", "cpu") as other:
        assert np.abs(one.logits([3, 4, 5]) - other.logits([3, 4, 5])).max() < 0.02
    with gguf.read(tmp_path / "a.gguf") as file, pytest.raises(DTypeError, match="did you mean 'Q4_K_M'"):
        requantize(file, tmp_path / "d.gguf", "q4_km")
