"""`rlx run` and `rlx inspect` on a small ONNX model."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest

from tests.cli.conftest import Rlx
from tests.onnx.models import I64, model, node


@pytest.fixture
def file(tmp_path: Path) -> Path:
    nodes = [node("Gemm", "x w", "h"), node("Relu", "h", "r"), node("Gather", "r i", "y")]
    proto = model(
        nodes, {"x": ["n", 4], "i": (["k"], I64)}, {"y": ["k", 3]}, {"w": np.ones((4, 3), np.float32)}
    )
    onnx.save(proto, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_run_with_files(rlx: Rlx, file: Path, tmp_path: Path, device: str) -> None:
    np.save(tmp_path / "x.npy", np.arange(8, dtype=np.float32).reshape(2, 4))
    np.save(tmp_path / "i.npy", np.array([1, 0, 1]))
    ran = rlx(
        "run", file, "--device", device, "--input", f"x={tmp_path / 'x.npy'}", "--input", f"i={tmp_path / 'i.npy'}",
        "--out", tmp_path / "out",
    )  # fmt: skip
    assert (ran.status, ran.err) == (0, "")
    assert ran.out == "y: float32 [3, 3], 6 to 22, mean 16.6667\n"
    assert np.load(tmp_path / "out" / "y.npy").tolist() == [[22] * 3, [6] * 3, [22] * 3]


def test_run_with_random_inputs_is_seeded(rlx: Rlx, file: Path) -> None:
    first, again, other = (
        rlx("run", file, "--dim", "n=10", "--dim", "k=2", "--seed", s, "--device", "cpu") for s in (1, 1, 2)
    )
    assert (
        first.status == 0
        and "input x: random, float32 [10, 4]" in first.err
        and "y: float32 [2, 3]" in first.out
    )
    assert first == again and first.out != other.out


@pytest.mark.parametrize(
    "arguments, text",
    [
        (("--dim", "q=2"), "no dimensions ['q']; its inputs have ['k', 'n']"),
        (("--dim", "n=-2"), "expected symbol=length"),
        (("--input", "x"), "expected name=file.npy"),
        (("--input", "x=absent.npy"), "cannot be read"),
    ],
)
def test_run_with_bad_arguments(rlx: Rlx, file: Path, arguments: tuple[str, ...], text: str) -> None:
    ran = rlx("run", file, *arguments)
    assert ran.status == 2 and text in ran.err and ran.out == ""


def test_run_of_no_model(rlx: Rlx, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"nothing of the kind")
    ran = rlx("run", tmp_path / "m.onnx")
    assert ran.status == 2 and "is not an ONNX file" in ran.err


def test_inspect(rlx: Rlx, file: Path, tmp_path: Path, device: str) -> None:
    ran = rlx("inspect", file, "--device", device, "--memory", tmp_path / "plan.svg")
    assert ran.status == 0 and ran.err == ""
    lines = ran.out.splitlines()
    assert lines[:5] == [
        "input x: float32 [n, 4]", "input i: int64 [k]", "output y: float32 [k, 3]", "weights: 1, 48 bytes",
        "operators: 3: 1 Gather, 1 Gemm, 1 Relu",
    ]  # fmt: skip
    assert lines[5].split() == ["device", "nodes", "native", "alias", "decomposed", "host", "arena", "bytes"]
    assert lines[6].startswith(device) and len(lines) == 7
    drawn = ElementTree.parse(tmp_path / "plan.svg").getroot()
    assert len([e for e in drawn.iter() if e.tag.endswith("title")]) >= 2
