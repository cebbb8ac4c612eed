"""`rlx tune`: what it prints, keeps and refuses. What decides is in tests/runtime/test_tuning.py."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlx.ir import Graph
from rlx.ops import conv
from rlx.runtime.saved.load import load_program
from rlx.runtime.session import Session
from rlx.runtime.tuning import search, table
from tests.cli.conftest import Rlx
from tests.devices import or_skip
from tests.models.language.tiny import write_language_model
from tests.models.tiny import write_model
from tests.runtime.test_tuning import TILES, X, chosen, clock, halves, network

PROBLEM = "conv rows=3 columns=16 terms=18 products=1 size=48 dtype=f32"


@pytest.fixture
def timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Times that are written down, and a cache that holds tables alone."""
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(search, "node_times", clock(4.0))
    monkeypatch.setattr(search, "run_times", halves)
    with or_skip():
        Session("vulkan")
    return tmp_path


@pytest.fixture
def saved(timed: Path) -> Path:
    path = timed / "model.rlx"
    with network(Session("vulkan")) as program:
        program.save(path)
    return path


def test_what_is_the_fastest_is_shown_and_kept(rlx: Rlx, saved: Path) -> None:
    better = saved.with_name("better.rlx")
    status, out, err = rlx("tune", saved, "--device", "vulkan", "--seconds", 600, "--out", better)
    assert (status, err) == (0, "")
    row = next(line for line in out.splitlines() if line.startswith(PROBLEM))
    assert re.search(rf" 1 +10\.0 +4\.0 +2\.50 ×  {TILES}$", row)
    assert "1 candidates measured, 0 left for want of time; a run takes 0.100 ms by the rules, 0.050 ms" in out
    with load_program(better) as program, load_program(saved) as before, network(Session("vulkan")) as anew:
        assert [chosen(p) for p in (program, before, anew)] == [TILES, "direct", TILES]
    (kept,) = (saved.parent / "cache" / "tuning").iterdir()
    assert f"kept in {kept}" in out and f"{better} follows it" in out
    assert rlx("tune", "--forget", "--device", "vulkan") == (0, f"removed {kept}\n", "")
    assert rlx("tune", "--forget", "--device", "vulkan").out == "nothing was measured on vulkan\n"


def test_where_a_run_gains_nothing_nothing_is_kept(
    rlx: Rlx, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "run_times", lambda a, b, feeds: (50.0, 100.0))
    out = rlx("tune", saved, "--device", "vulkan").out
    assert "a run is not faster by it: the rules choose as before" in out and "kept" not in out
    assert table.choices_for(Session("vulkan").device) is None


@pytest.mark.parametrize(
    "arguments, why",
    [
        ((), "tune: give a model"),
        (("none.onnx",), "none.onnx does not exist"),
        (("model.rlx", "--precision", "bf16"), "it takes no --precision"),
        (("text.txt", "--out", "a.rlx"), "--out writes one saved program anew"),
        (("model.rlx", "--out", "a", "--device", "vulkan", "--device", "cpu"), "--out writes one saved program anew"),
        (("model.rlx", "--out", "none/a.rlx"), "a.rlx: cannot be written: there is no such folder"),
        (("text.txt", "--device", "vulkan"), "is not"),
    ],
)  # fmt: skip
def test_what_it_cannot_do_is_said(
    rlx: Rlx, saved: Path, monkeypatch: pytest.MonkeyPatch, arguments: Any, why: str
) -> None:
    monkeypatch.chdir(saved.parent)
    Path("text.txt").write_text("no model")
    status, _, err = rlx("tune", *arguments)
    assert status == 2 and why in err


def test_what_is_the_fastest_no_more_is_followed_no_more(
    rlx: Rlx, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    better = saved.with_name("better.rlx")
    rlx("tune", saved, "--device", "vulkan", "--seconds", 600, "--out", better)
    rlx("tune", saved, "--device", "vulkan", "--seconds", 0.001)  # nothing is measured again
    assert table.choices_for(Session("vulkan").device)
    monkeypatch.setattr(search, "node_times", clock(20.0))
    rlx("tune", better, "--device", "vulkan", "--seconds", 600, "--out", better)
    assert table.choices_for(Session("vulkan").device) is None
    with load_program(better) as program:
        assert chosen(program) == "direct"


@pytest.mark.parametrize("where, why", [("off", "RLX_CACHE_DIR is off"), ("file", "tuning: cannot be written")])
def test_nothing_is_measured_where_it_could_not_be_kept(
    rlx: Rlx, saved: Path, monkeypatch: pytest.MonkeyPatch, where: str, why: str
) -> None:
    file = saved.with_name("file")
    file.touch()
    monkeypatch.setenv("RLX_CACHE_DIR", "off" if where == "off" else str(file))
    status, out, err = rlx("tune", saved, "--device", "vulkan")
    assert (status, out) == (2, "") and why in err


@pytest.mark.late
@pytest.mark.parametrize("kind", ["encoder", "language", "onnx"])
def test_each_kind_of_model_is_measured(rlx: Rlx, timed: Path, kind: str) -> None:
    model = timed / "model"
    if kind == "onnx":
        pytest.importorskip("onnx")
        from rlx import onnx

        model, graph = timed / "model.onnx", Graph("network")
        graph.output("y", conv(graph.input("x", X.shape), graph.constant(np.ones((3, 2, 3, 3), np.float32)), pads=1))
        onnx.save(graph, model)
    else:
        model.mkdir()
        (write_model if kind == "encoder" else write_language_model)(model)
    status, out, _ = rlx("tune", model, "--device", "vulkan", "--seconds", 1)
    assert status == 0 and "candidates measured" in out and "rules µs" in out
