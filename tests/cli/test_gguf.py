"""`rlx convert`, and `rlx inspect` of a GGUF file and of a folder."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from rlx.formats import gguf, safetensors
from rlx.formats.gguf import to_folder, writer
from tests.cli.conftest import Rlx
from tests.formats.gguf.test_convert import LLAMA, folder
from tests.formats.test_quantized import gptq
from tests.models.gguf_encoders import write as write_encoder
from tests.models.language.tiny import write_language_model, write_mamba
from tests.models.speech.tiny import write_model as write_whisper
from tests.models.tiny import write_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder(tmp_path / "a", LLAMA, text=True)
    return tmp_path / "a"


def test_a_folder_becomes_a_file_that_is_shown(rlx: Rlx, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    ran = rlx("convert", model, "--to", "Q8_0", "-o", file)
    assert ran.status == 0 and ran.err == "" and ran.out == f"{file}: {file.stat().st_size:,} bytes\n"
    kept = file.read_bytes()
    ran = rlx("convert", model, "--to", "Q4_K", "-o", file)
    assert ran.status == 2 and "exists already; --force replaces it" in ran.err and file.read_bytes() == kept
    ran = rlx("convert", model, "--to", "Q4_K", "-o", file, "--force")
    assert ran.status == 0 and ran.err.count("\n") == 2 and "more are Q8_0: rows of 64 are no blocks of 256" in ran.err
    assert rlx("convert", model, "-o", tmp_path, "--force").status == 2 and [file] == [*tmp_path.glob("*.gguf")]
    rlx("convert", model, "--to", "Q8_0", "-o", file, "--force")
    ran = rlx("inspect", file, "--nodes", "--device", "cpu")
    assert ran.status == 0
    for words in (
        "GGUF of version 3", "general.architecture: 'llama'", "llama.block_count: 2", "Q8_0", "(300 in all)",
        "blk.1.ffn_down.weight", "64x96", "keys and values in f32", "fits",
    ):  # fmt: skip
        assert words in ran.out, words
    assert "with 128 tokens" in ran.out and "with 4,096 tokens" not in ran.out, "more than the model was made for"
    assert max(map(len, ran.out.splitlines())) < 300


def test_a_quantized_folder_is_shown_as_it_is_read(rlx: Rlx, tmp_path: Path) -> None:
    arrays, quantized, _ = gptq()
    safetensors.save(tmp_path / "model.safetensors", arrays)
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "quantization_config": quantized}))
    lines = rlx("inspect", tmp_path, "--device", "cpu").out.splitlines()
    at = lines.index("the quantized weights as rlx reads them:")
    assert any(line.startswith("I32 ") for line in lines[:at]) and lines[at + 2].startswith("INT4_ZP_128")


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_input_that_is_no_utf_8(rlx: Rlx, command: str, model: Path) -> None:
    prompt = ("-p", "-") if command == "generate" else ()
    ran = rlx(command, model, "--device", "cpu", "-n", 1, *prompt, stdin=b"abc\xff\n")
    assert ran.status == 2 and "is not UTF-8 text from character 3 on" in ran.err and ran.err.count("\n") == 1, ran


def test_back_to_a_folder(rlx: Rlx, model: Path, tmp_path: Path) -> None:
    assert rlx("convert", model, "-o", tmp_path / "m.gguf").status == 0
    assert rlx("convert", tmp_path / "m.gguf", "--to", "BF16", "-o", tmp_path / "b").status == 0
    assert {p.name for p in (tmp_path / "b").iterdir()} == {
        "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"
    }  # fmt: skip
    again = rlx("convert", tmp_path / "m.gguf", "-o", tmp_path / "b")
    assert again.status == 2 and "exists already" in again.err


def test_a_folder_is_shown(rlx: Rlx, model: Path, tmp_path: Path) -> None:
    ran = rlx("inspect", model, "--nodes", "--device", "cpu")
    assert ran.status == 0 and ran.err == ""
    for words in (
        "bytes of weights in 1 file, ", "model_type: 'llama'", "num_hidden_layers: 2", "beside them: tokenizer.json",
        "model.layers.1.mlp.down_proj.weight", "64x96", "keys and values in f32", "with 128 tokens", "fits",
    ):  # fmt: skip
        assert words in ran.out, words
    held = rlx("inspect", model, "--device", "cpu").out.splitlines()
    rlx("convert", model, "-o", tmp_path / "m.gguf")
    assert rlx("inspect", tmp_path / "m.gguf", "--device", "cpu").out.splitlines()[-3] == held[-3], "the same bytes"
    asked = rlx("inspect", model, "--device", "cpu", "--context", 40).out
    assert "with 40 tokens" in asked and "with 128" not in asked
    more = rlx("inspect", model, "--device", "cpu", "--context", 4000).out
    assert "4,000 tokens are more than the 128 that the model was made for" in more and "with 128 tokens" in more
    config = json.loads((model / "config.json").read_text())
    for changed, words in (
        ({"num_hidden_layers": 1}, "the weights do not fit the settings"),
        ({"model_type": "nonsense"}, "rlx does not run it: "),
        ({"quantization_config": {"quant_method": "nonsense"}}, "rlx does not run it: "),
    ):
        (model / "config.json").write_text(json.dumps({**config, **changed}))
        ran = rlx("inspect", model, "--device", "cpu")
        assert ran.status == 0 and words in ran.out.splitlines()[-1], ran
    (tmp_path / "mamba").mkdir()
    others = write_model(tmp_path / "bert"), write_whisper(tmp_path / "whisper"), write_mamba(tmp_path / "mamba")
    for path in others:
        ran = rlx("inspect", path, "--device", "cpu")
        assert ran.status == 0 and ran.out.splitlines()[-1].endswith("fits") and "keys" not in ran.out


def test_mistakes(rlx: Rlx, model: Path, tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUF\1\0\0\0")
    bert, whisper = write_model(tmp_path / "bert"), write_whisper(tmp_path / "whisper")
    write_encoder(tmp_path / "bert.gguf", "bert")
    for name in ("config.json", "model.onnx"):
        (tmp_path / "exported").mkdir(exist_ok=True)
        (tmp_path / "exported" / name).write_text("{}")
    (tmp_path / "e.gguf").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe.gguf")
    for arguments, words in (
        (("convert", model, "--to", "Q9_K", "-o", tmp_path / "m.gguf"), "not with 'Q9_K'"),
        (("convert", model, "-o", tmp_path / "none" / "m.gguf"), "no such folder"),
        (("convert", tmp_path / "none", "-o", tmp_path / "b"), "none does not exist; give a Hugging Face folder"),
        (("convert", model / "model.safetensors", "-o", tmp_path / "b"), "or the folder of config.json"),
        (("convert", bert, "-o", tmp_path / "m.gguf"), "a sentence encoder, which `rlx embed` takes as it is"),
        (("convert", tmp_path / "bert.gguf", "-o", tmp_path / "b"), "a sentence encoder, which `rlx embed` takes"),
        (("convert", whisper, "-o", tmp_path / "m.gguf"), "a Whisper model, which `rlx transcribe` takes"),
        (("inspect", tmp_path / "x.gguf"), "version 1"),
        (("inspect", tmp_path / "e.gguf"), "it is empty"),
        (("inspect", tmp_path / "pipe.gguf"), "is not a regular file"),
        (("convert", tmp_path / "pipe.gguf", "-o", tmp_path / "b"), "is no GGUF file"),
        (("inspect", model / "config.json"), "it is JSON; give the model's own file, or the folder"),
        (("bench", tmp_path / "x.gguf"), "version 1"),
        (("inspect", tmp_path / "x.gguf", "--strict"), "no --strict"),
        (("inspect", tmp_path / "x.gguf", "--max-steps", 0), "no --max-steps"),
        (("inspect", tmp_path / "bert.gguf", "--context", 40), "--context is for language models"),
        (("inspect", tmp_path / "none.onnx", "--context", 40), "does not exist"),
        (("inspect", model, "--dim", "a=1"), "a Hugging Face folder, which holds no graph: it takes no --dim"),
        (("inspect", tmp_path / "exported"), "give that file, "),
        (("inspect", model, "--device", "cpu:9"), "there is only cpu"),
        (("run", model), "a Hugging Face folder without an ONNX file"),
        (("transcribe", whisper, tmp_path), "is no file; give a WAV file"),
        (("embed", whisper, "-"), "`rlx transcribe` takes it"),
        (("embed", model, "-"), "standard input: no sentences to embed"),
        (("check", model, "--device", "cpu"), "expected 'bert'"),
        (("generate", tmp_path / "none.gguf", "-p", "a"), "give a GGUF file"),
    ):
        ran = rlx(*arguments)
        assert ran.status == 2 and words in ran.err and ran.err.count("\n") == 1, ran


def test_files_that_are_no_onnx_models_are_named_without_that_package(
    rlx: Rlx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rlx.onnx", None)  # importing it fails
    for content, words in ((b"GGUF", "it is a GGUF file"), (b"\n{}", "it is JSON"), (b"\x08\x0c", "rlx.onnx")):
        (tmp_path / "m").write_bytes(content)
        ran = rlx("run", tmp_path / "m")
        assert ran.status == 2 and words in ran.err


@pytest.mark.parametrize(
    ("stop", "status", "said"),
    [(KeyboardInterrupt(), 130, "interrupted"), (OSError(28, "No space left on device"), 2, "No space left on device")],
)
def test_what_is_stopped_leaves_nothing(
    stop: BaseException, status: int, said: str, rlx: Rlx, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rlx("convert", model, "-o", tmp_path / "m.gguf").status == 0
    before = sorted(tmp_path.iterdir())

    def ended(stage: str, done: int, of: int) -> None:
        if done == 3:
            raise stop

    for module in (writer, to_folder):
        monkeypatch.setattr(module, "report", ended)
    for arguments in ((model, "--to", "Q8_0", "-o", tmp_path / "n.gguf"), (tmp_path / "m.gguf", "-o", tmp_path / "n")):
        ran = rlx("convert", *arguments)
        assert ran.status == status and said in ran.err and ran.err.count("\n") == 1, ran
        assert sorted(tmp_path.iterdir()) == before


def test_a_conversion_that_is_stopped_leaves_nothing(rlx: Rlx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder(tmp_path / "a", LLAMA)
    left = tmp_path / ".m.gguf.0123456789ab.tmp"
    left.write_bytes(b"half")
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(writer, "_content", lambda tensor: signal.raise_signal(signal.SIGTERM))
    ran = rlx("convert", tmp_path / "a", "-o", tmp_path / "m.gguf")
    assert ran.status == 143 and "SIGTERM: stopped; nothing is written" in ran.err
    assert f"{left} was left by a conversion that was killed" in ran.err
    assert signal.getsignal(signal.SIGTERM) == before and len(list(tmp_path.iterdir())) == 2


def test_lines_without_tokens_are_named(rlx: Rlx, tmp_path: Path) -> None:
    model = write_language_model(tmp_path / "m", text=True)
    assert rlx("convert", model, "-o", tmp_path / "m.gguf").status == 0
    ran = rlx("embed", tmp_path / "m.gguf", stdin=b"a\n\nb\n")
    assert ran.status == 2 and "standard input: line 2 has no tokens" in ran.err
    assert "no sentences to embed" in rlx("embed", tmp_path / "m.gguf", "-").err


def test_a_file_of_another_architecture_or_without_a_part_fits_nowhere(rlx: Rlx, model: Path, tmp_path: Path) -> None:
    rlx("convert", model, "-o", tmp_path / "m.gguf")
    with gguf.read(tmp_path / "m.gguf") as file:
        tensors = {name: t.read() for name, t in file.tensors.items()}
        other = {**file.metadata, "general.architecture": "rwkv7"}
        gguf.write(tmp_path / "a.gguf", other, tensors)
        tensors.pop("blk.1.ffn_down.weight")
        gguf.write(tmp_path / "b.gguf", file.metadata, tensors)
    for name, words in (("a", "general.architecture is 'rwkv7'"), ("b", "layers.1.mlp.down_proj.weight")):
        ran = rlx("inspect", tmp_path / f"{name}.gguf", "--device", "cpu")
        last = ran.out.splitlines()[-1]
        assert ran.status == 0 and last.startswith("rlx does not run it: ") and words in last, ran
        assert "fits" not in ran.out
