"""The commands of the README and of the pages run as printed, on tiny models of the names that they have there; each
that would take long is told when to end, and what cannot run here is listed with the reason."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

import rlx
from rlx.cli.app import app
from rlx.formats.gguf.convert import folder_to_gguf
from tests.finetune.tiny import write_base, write_lines
from tests.models import sentence_folders, task_folders

# Commands that these words stand in are not run here: what they need is not here, or they end when they are told to.
ELSEWHERE = {
    "-ngl": "a GPU: tests/cli/test_habits.py",
    "serve": "runs until it is stopped: tests/serve", "pull": "asks the Hub: tests/cli/test_pull.py",
    "--install-completion": "changes the user's shell", "big.gguf": "two GPUs", "whisper-small": "tests/models/speech",
    "minilm": "make demo's download", "better/model": "the same", "embeddings.gguf": "tests/cli/test_embed.py",
}  # fmt: skip
# What goes on for its time unless it is told how long.
LONG = {"bench": ["--seconds", "1"], "selftest": ["--seconds", "2"], "check": ["--seconds", "5"],
        "generate": ["-n", "4"]}  # fmt: skip
OUT_OF_TIME = {"selftest": 3}
TALKS = [{"messages": [{"role": "user", "content": f"Say {n}"}, {"role": "assistant", "content": f"It is {n}."}]}
         for n in range(9)]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, repo: Path) -> Path:
    """Every file that the pages name."""
    made = tmp_path_factory.mktemp("commands")
    write_base(made / "tiny-pages", max_position_embeddings=4096)
    for name, dtype in (("tiny-pages-q4_k.gguf", "q8_0"), ("model.gguf", None)):
        folder_to_gguf(made / "tiny-pages", made / name, dtype)
    sentence_folders.write(made / "sentences", "mean")
    for name, kind in (("splade", "splade"), ("colbert", "late interaction"), ("reranker", "cross-encoder"),
                       ("classifier", "cross-encoder of three labels"), ("entities", "labels of tokens")):  # fmt: skip
        task_folders.write(made / name, kind)
    (made / "examples").mkdir()
    shutil.copy(repo / "examples/sentences.txt", made / "examples")
    for name in ("prompt.txt", "text.txt"):
        (made / name).write_text("hello " * 300 if name == "text.txt" else "hello")
    write_lines(made / "talks.jsonl", TALKS)
    graph = rlx.Graph("model")
    graph.output("y", rlx.relu(graph.input("x", (8, 4))))
    with rlx.Session("cpu", engine="numpy").compile(graph) as program:
        program.save(made / "model.rlx")
    np.save(made / "x.npy", np.ones((8, 4), np.float32))
    kinds = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", 4]) for name in "xy"]
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([node], "g", kinds[:1], kinds[1:])), made / "model.onnx")
    return made


@pytest.mark.late
@pytest.mark.parametrize("page", ["README.md", "docs/language.md", "docs/texts.md", "docs/finetuning.md"])
def test_the_commands_run(
    repo: Path, folder: Path, page: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(shutil.copytree(folder, tmp_path / "here"))
    monkeypatch.setenv("RLX_DEVICE", "cpu")
    monkeypatch.setenv("RLX_CPU", "numpy")
    wrong, ran = [], 0
    for block in re.findall(r"^```sh\n(.*?)^```", (repo / page).read_text("utf-8"), re.M | re.S):
        for line in re.findall(r"^rlx .*", block.replace("\\\n", " "), re.M):
            words: list[Any] = shlex.split(line, comments=True)[1:]
            if any(word in ELSEWHERE for word in words):
                continue
            text = ""
            if "<" in words:
                text = Path(words[-1]).read_text("utf-8")
                words = words[:-2]
            own = "tiny-pages" if words[0] in ("generate", "finetune") else "sentences"
            here = {"FOLDER": own, "sequence=128": "sequence=32"}  # the tiny encoder takes 40 tokens
            words = [here.get(word, word) for word in words] + LONG.get(words[0], [])
            done = CliRunner().invoke(app, words, input=text)
            ran += 1
            if done.exit_code not in (0, OUT_OF_TIME.get(words[0], 0)):
                wrong.append(f"{line}: {done.exception} {done.output}")
    assert not wrong, "\n".join(wrong)
    assert ran > 4
