"""Language models whose layers are on several devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
from typer.testing import CliRunner

from rlx import Session
from rlx.backends.cpu.choice import usable
from rlx.cli.app import app
from rlx.cli.generate import show_stats
from rlx.errors import DTypeError, OutOfDeviceMemory, RlxError, ShapeError
from rlx.formats.huggingface import ModelFolder
from rlx.models import load
from rlx.models.language.model import load_folder
from tests.models.language import test_adapters, tiny

CONFIG: dict[str, Any] = {**tiny.GEMMA, "num_hidden_layers": 3}  # whose embeddings the first and the last part have


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_language_model(tmp_path_factory.mktemp("split") / "m", CONFIG, text=True)


def same_tokens(split: Any) -> None:
    """Greedy tokens by prompts in chunks and steps, guesses, and two sequences at once, beside float64's."""
    want = tiny.greedy(CONFIG, tiny.TOKENS[:19], 6)
    assert list(split.tokens(tiny.TOKENS[:19], 6)) == want
    assert list(split.tokens(tiny.TOKENS[:19], 6, lookup=True)) == want
    batch = split.batch(2)
    numbers = [batch.add(tiny.TOKENS[:19], 6), batch.add(tiny.TOKENS[:5], 4)]
    made: dict[int, list[int]] = {number: [] for number in numbers}
    while batch.free < 2:
        for token in batch.step(3):
            made[token.sequence].append(token.token)
    assert list(made.values()) == [want, tiny.greedy(CONFIG, tiny.TOKENS[:5], 4)]
    batch.close()


@pytest.mark.parametrize("engine", ["numpy", pytest.param("compiled", marks=pytest.mark.late)])
def test_layers_in_two_sessions_of_the_cpu(
    engine: Literal["numpy", "compiled"], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = [(Session("cpu", engine="numpy"), 2), (Session("cpu", engine=engine), None)]
    with load_folder(ModelFolder(folder), parts[0][0], context=40, split=parts) as model:
        same_tokens(model)
        show_stats(model)
    first, second = capsys.readouterr().err.splitlines()[:2]
    assert first.startswith("device: cpu (2 layers), ") and second.startswith("device: cpu (1 layer), ")
    assert "llvmlite" not in first and ("llvmlite" in second) == usable(engine)


def test_shorter_runs_over_a_prompt_of_a_split_model(folder: Path) -> None:
    sessions = Session("cpu", engine="numpy"), Session("cpu", engine="numpy")
    split = [(sessions[0], 2), (sessions[1], None)]
    with load_folder(ModelFolder(folder), sessions[0], context=40, split=split, prefill_chunk=16) as model:
        assert model.decoder.sizes == (16,)
        same_tokens(model)


@pytest.mark.vulkan
@pytest.mark.late
def test_layers_on_the_cpu_and_a_gpu(folder: Path) -> None:
    with load(folder, layers_on="cpu=1,vulkan", context=40) as model:
        assert repr(model).endswith("on cpu (1 layer), vulkan:0 (2 layers), 3 layers of 24, context 40)")
        same_tokens(model)
        drawn = list(model.generate("ab", 5, temperature=0.7, seed=3))
    with load(folder, "cpu", context=40) as model:
        assert drawn == list(model.generate("ab", 5, temperature=0.7, seed=3))


def test_an_adapter_of_a_split_model(folder: Path, tmp_path: Path) -> None:
    """Its matrices are where the layers of their products are."""
    arrays = test_adapters.matrices(CONFIG, test_adapters.LARGE, 3, "x")
    adapter = test_adapters.write(tmp_path / "x", arrays, test_adapters.LARGE)
    made = []
    sessions = [(Session("cpu"), None)], [(Session("cpu"), 1), (Session("cpu"), None)]
    for split in sessions:
        with load_folder(ModelFolder(folder), split[0][0], context=40, split=split) as model:
            model.load_adapter("x", adapter)
            made.append([list(model.tokens(tiny.TOKENS, 6, adapter=name)) for name in ("x", None)])
    assert made[0] == made[1] and made[0][0] != made[0][1]


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ("cpu=x", DTypeError, "is no device with a number"),
        ("", DTypeError, "is no device"),
        (7, DTypeError, "expected a text"),
        ({"cpu": True}, DTypeError, "a device and a number"),
        ("cpu=0", ShapeError, "1 or more"),
        ("cpu=1,cpu", ShapeError, "each device once"),
        ("cpu=2", ShapeError, "3 layers"),
        ("cpu=4", ShapeError, "3 layers"),
        ("nothere=4", RlxError, "nothere"),
    ],
)
def test_what_cannot_be_split_is_refused(given: Any, error: type[Exception], match: str, folder: Path) -> None:
    with pytest.raises(error, match=match):
        load(folder, layers_on=given)


def test_a_device_beside_layers_on_is_refused(folder: Path) -> None:
    with pytest.raises(DTypeError, match="give one of them"):
        load(folder, "cpu", layers_on="cpu")


@pytest.mark.vulkan
def test_an_engine_is_of_the_cpus_layers(folder: Path) -> None:
    with load(folder, layers_on="cpu=1,vulkan", engine="numpy", context=40) as model:
        assert [part.session.options.engine for part in model.decoder.stages] == ["numpy", None]
    with pytest.raises(RlxError, match="layers_on leaves no layer"):
        load(folder, layers_on="vulkan", engine="numpy")
    for opens in (lambda: load(folder, "vulkan", engine="numpy"), lambda: Session("vulkan", engine="compiled")):
        with pytest.raises(RlxError, match="chooses the kernels of the CPU, and the session is on vulkan:0"):
            opens()


def test_as_many_layers_as_fit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices of which the first has room for the embeddings and a layer, then for none."""
    from rlx.backends.cpu.device import CpuDevice

    sessions = [Session("cpu", engine="numpy"), Session("cpu", engine="compiled")]
    with load(folder, "cpu", context=40) as model:
        r = model.decoder.room(40)
        # One device has the matrix of embeddings and outputs once, each of two its own.
        assert r.need(range(3))[0] == model.decoder.source.nbytes
        assert r.need(range(1))[0] + r.need(range(1, 3))[0] == model.decoder.source.nbytes + r.both + r.tables
        assert r.both == 60 * 24 * 4
    free = {"bytes": sum(r.need(range(1)))}
    monkeypatch.setattr(CpuDevice, "free_bytes", lambda self: free["bytes"])
    assert r.fitting(0, free["bytes"]) == 1 and r.fitting(0, free["bytes"] - 1) == 0
    made = r.split([("a", None), ("b", None)], [free["bytes"], 1 << 30])
    assert made == [range(1), range(1, 3)]
    assert r.split([("a", None), ("b", 2)], [1 << 30, 1 << 30]) == made
    with pytest.raises(OutOfDeviceMemory, match="no layer fits; leave the device out"):
        r.split([("a", None), ("b", None)], [1000, 1 << 30])
    with pytest.raises(OutOfDeviceMemory, match=r"m needs .* cpu has .* free"):
        load(folder, "cpu", context=40)
    with pytest.raises(OutOfDeviceMemory, match=r"layers 0 to 1 of .* 1 of these layers would fit: layers_on='cpu=1,"):
        load_folder(ModelFolder(folder), sessions[0], context=40, split=[(sessions[0], 2), (sessions[1], 1)])


def test_the_command_splits(folder: Path) -> None:
    made = CliRunner().invoke(
        app, ["generate", str(folder), "-p", "ab", "-n", "3", "--layers-on", "cpu=3", "--stats"]
    )
    assert made.exit_code == 0 and "MB of keys and values on cpu" in made.stderr
