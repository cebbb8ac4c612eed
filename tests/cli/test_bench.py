"""`rlx bench`: a row a device, ONNX Runtime beside them, the figures as JSON. No time is judged."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from rlx import Graph, Session
from rlx.cli import contenders
from rlx.cli.bench import measure
from rlx.cli.contenders import Contender, difference
from rlx.driver.registry import find_device
from tests.cli.conftest import Rlx
from tests.models.language.tiny import LLAMA, write_language_model
from tests.onnx.models import model, node
from tests.outside import outside

FAST = ("--runs", "7", "--warmup", "1")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    w = np.random.default_rng(3).standard_normal((8, 8)).astype(np.float32)
    proto = model([node("MatMul", "x w", "y")], {"x": ["n", 8]}, {"y": ["n", 8]}, {"w": w})
    onnx.save(proto, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_a_device_and_the_figures(
    rlx: Rlx, file: Path, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contenders, "has_onnxruntime", lambda: False)
    ran = rlx(
        "bench", file, "--device", device, *FAST, "--dim", "n=4", "--threads", "1", "--json", tmp_path / "f"
    )
    assert (
        ran.status == 0
        and ran.err == "onnxruntime is not installed: nothing beside; pip install onnxruntime\n"
    )
    lines = ran.out.splitlines()
    assert lines[1].startswith("input x: float32 [4, 8]")
    assert lines[2].startswith("precision f32; 1 CPU threads; 7 runs of each in 5 turns, 1 to warm up")
    assert f"numpy {np.__version__}" in lines[3]
    titles = ["device", "first ms", "min ms", "p50 ms", "p90 ms", "p99 ms"]
    assert re.split("  +", lines[-2].strip()) == titles and lines[-1].startswith(device)
    figures = json.loads((tmp_path / "f").read_text())
    assert figures["runs"] == 7 and figures["inputs"] == {"x": lines[1].removeprefix("input x: ")}
    (row,) = figures["results"]
    assert 0 < row["min_ms"] <= row["p50_ms"] <= row["p90_ms"] <= row["p99_ms"]


def test_a_profile_has_each_step_and_a_trace(rlx: Rlx, file: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    ran = rlx("bench", file, "--device", "cpu", "--dim", "n=4", "--threads", "1", "--profile", trace)
    assert ran.status == 0 and "matmul" in ran.out and "GFLOP/s" in ran.out and str(trace) in ran.out
    assert any(e.get("cat") == "device" for e in json.loads(trace.read_text())["traceEvents"])
    refused = rlx("bench", file, "--profile", trace, "--runs", "3", "--json", trace)
    assert refused.status and "leave out --runs, --json" in refused.err
    (tmp_path / "folder").mkdir()
    for place in (tmp_path / "folder", tmp_path / "none" / "trace.json"):
        refused = rlx("bench", file, "--device", "cpu", "--dim", "n=4", "--profile", place)
        assert refused.status and "cannot be written" in refused.err and not refused.out  # before anything runs


@pytest.mark.judged
def test_onnxruntime_beside(rlx: Rlx, file: Path, tmp_path: Path) -> None:
    outside("onnxruntime")
    ran = rlx("bench", file, "--device", "cpu", *FAST, "--dim", "n=4", "--json", tmp_path / "f")
    assert ran.status == 0 and ran.err == ""
    ours, theirs = json.loads((tmp_path / "f").read_text())["results"]
    assert (ours["device"], theirs["device"]) == ("cpu", "onnxruntime")
    assert ours["of_onnxruntime"] == pytest.approx(ours["p50_ms"] / theirs["p50_ms"])
    assert ours["difference"] < 1e-5 and theirs["of_onnxruntime"] == 1
    assert " × " in ran.out.splitlines()[-2] + " "


@pytest.mark.judged
def test_what_onnxruntime_refuses_is_measured_without_it(
    rlx: Rlx, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnxruntime = outside("onnxruntime")

    def refuse(*args: object, **kwargs: object) -> None:
        raise onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented("no such kernel\nand more")

    monkeypatch.setattr(onnxruntime, "InferenceSession", refuse)
    ran = rlx("bench", file, "--device", "cpu", *FAST, "--dim", "n=4")
    assert ran.status == 0 and ran.err == "rlx: not beside it: onnxruntime: no such kernel\n"
    assert "\ncpu " in ran.out


@pytest.mark.sample(vulkan=0)
def test_a_sentence_encoder(rlx: Rlx, tiny: Path, device: str) -> None:
    ran = rlx("bench", tiny, "--device", device, *FAST, "--dim", "batch=2", "--dim", "sequence=8")
    assert ran.status == 0, ran
    assert "input ids: int32 [2, 8]" in ran.out and ran.out.splitlines()[-1].startswith(device)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--dim", "n=2"), "has no dimensions ['n']"),
        (("--dim", "sequence=9999"), "at most"),
        (("--input", "a=b"), "ONNX"),
    ],
)
def test_of_an_encoder_only_batch_and_sequence(
    rlx: Rlx, tiny: Path, arguments: tuple[str, ...], text: str
) -> None:
    ran = rlx("bench", tiny, "--device", "cpu", *arguments)
    assert ran.status == 2 and text in ran.err and ran.out == ""


def test_a_device_that_is_not_there(rlx: Rlx, file: Path) -> None:
    ran = rlx("bench", file, "--device", "tpu", "--dim", "n=4")
    assert ran.status == 2 and ran.out == "" and ran.err.startswith("rlx: device 'tpu'")
    ran = rlx("bench", file, "--device", "tpu", "--device", "cpu", *FAST)
    assert ran.status == 2 and "rlx: tpu: device 'tpu'" in ran.err and "\ncpu " in ran.out


def test_contenders_take_turns_and_each_run_counts_once() -> None:
    order: list[str] = []
    made = [Contender(n, "", lambda n=n: order.append(n) or {}) for n in "ab"]  # type: ignore[misc,func-returns-value]
    measure(made, runs=7, warmup=2)
    assert [len(c.times) for c in made] == [7, 7]
    turns = "".join(order)[4:]
    assert order[:4] == ["a", "a", "b", "b"]
    assert turns == "aaabbb" * 2 + "aabb" * 3  # a run that is not measured begins each turn


def test_difference_is_relative_to_the_largest_value() -> None:
    a, b = {"y": np.array([1.0, 99.0])}, {"y": np.array([1.0, 100.0])}
    assert difference(a, b) == pytest.approx(0.01)
    assert difference(a, {"y": np.ones(3)}) == np.inf
    odd = {"y": np.array([np.nan, np.inf, 2.0])}
    assert difference(odd, odd) == 0
    for other in ([np.nan, np.inf, np.nan], [0, np.inf, 2.0], [np.nan, -np.inf, 2.0], [np.nan, 9.0, 2.0]):
        assert difference(odd, {"y": np.array(other)}) == np.inf
    assert difference({"s": np.array(["text"])}, {"s": np.array(["text"])}) is None


@pytest.mark.late("vulkan")
def test_a_language_models_speeds(rlx: Rlx, tmp_path: Path, device: str) -> None:
    folder = write_language_model(tmp_path / "m", LLAMA)
    ran = rlx("bench", "-m", folder, "--device", device, "-p", 20, "-n", 6, "-r", 3, "--json", tmp_path / "f")
    assert ran.status == 0, ran
    titles, *rows = [re.split("  +", line.strip()) for line in ran.out.splitlines()[3:]]
    assert titles == ["device", "test", "tokens a second", "of"] and [row[1] for row in rows] == ["pp20", "tg6"]
    figures = json.loads((tmp_path / "f").read_text())
    for row, shown, tokens in zip(figures["results"], rows, (20, 6), strict=True):
        assert row["device"] == shown[0] == find_device(device).id and row["tokens"] == tokens
        rates = tokens / np.array(row["seconds"])
        assert len(rates) == 3 and abs(float(shown[2].replace(",", "")) - rates.mean()) <= 0.006
        assert abs(float(shown[3].removeprefix("± ").replace(",", "")) - rates.std(ddof=1)) <= 0.006


def test_what_a_language_models_bench_refuses(rlx: Rlx, file: Path, tmp_path: Path) -> None:
    folder = write_language_model(tmp_path / "m", LLAMA)
    for arguments, words in (
        ((folder, "--dim", "a=3"), "is a language model, for which --dim means nothing"),
        ((file, "-n", 3), "is no language model, for which --answer-tokens means nothing"),
        ((folder,), "was made for 64 tokens, fewer than the 512 to measure; give -p 64 -n 63"),
        ((folder, "-p", 0, "-n", 0), "leave nothing to measure"),
        ((tmp_path / "none.gguf",), "none.gguf does not exist"),
        ((), "no model"),
    ):
        ran = rlx("bench", *arguments, "--device", "cpu")
        assert ran.status == 2 and words in ran.err, ran


def test_a_saved_program(rlx: Rlx, tmp_path: Path) -> None:
    graph = Graph("twice")
    graph.output("y", graph.input("x", (3, 4)) * 2)
    with Session("cpu").compile(graph) as program:
        program.save(tmp_path / "m.rlx")
    ran = rlx("bench", tmp_path / "m.rlx", *FAST, "--json", tmp_path / "f")
    assert ran.status == 0 and "input x: float32 [3, 4]" in ran.out, ran
    (row,) = json.loads((tmp_path / "f").read_text())["results"]
    assert row["device"] == "cpu" and row["runs"] == 7
    ran = rlx("bench", tmp_path / "m.rlx", "--dim", "n=3")
    assert ran.status == 2 and "is a saved program" in ran.err and "--dim" in ran.err
