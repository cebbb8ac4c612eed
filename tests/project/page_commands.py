"""The fenced commands of the README and of the pages, how each runs in a test, and the files that they name."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

import rlx
from rlx.formats.gguf.convert import folder_to_gguf
from tests.finetune.tiny import write_base, write_lines
from tests.models import gguf_encoders, sentence_folders, task_folders
from tests.models.speech import tiny as speech

# Commands that these words stand in run nowhere as they stand.
ELSEWHERE = {
    "pull": "asks the Hub: tests/cli/test_pull.py", "--install-completion": "changes the user's shell",
    "--ray": "needs Ray: tests/bulk",
}  # fmt: skip
# What goes on for its time unless it is told how long; the first times of kernels that a GPU compiles are part of them.
SHORT = {"bench": ["--seconds", "1"], "selftest": ["--seconds", "2"], "check": ["--seconds", "5"],
         "generate": ["-n", "4"], "tune": ["--seconds", "1"]}  # fmt: skip
LONGER = {**SHORT, "bench": ["--seconds", "15"], "check": ["--seconds", "15"], "tune": ["--seconds", "5"]}
OUT_OF_TIME = {"selftest": 3}
TALKS = [{"messages": [{"role": "user", "content": f"Say {n}"}, {"role": "assistant", "content": f"It is {n}."}]}
         for n in range(9)]  # fmt: skip


@dataclass(frozen=True)
class Fence:
    page: str
    line: int  # of its first command
    language: str
    text: str

    def commands(self) -> list[tuple[int, str]]:
        """Each line of the shell, with what continues it, by its number in the page."""
        found, text = [], ""
        for number, line in enumerate(self.text.splitlines(), self.line):
            text += line.removesuffix("\\")
            if not line.endswith("\\"):
                found.append((number, text))
                text = ""
        return found


def fences(repo: Path, page: str) -> list[Fence]:
    text = (repo / page).read_text("utf-8")
    return [
        Fence(page, text.count("\n", 0, found.start(2)) + 1, found[1], found[2])
        for found in re.finditer(r"^```(\w+)\n(.*?)^```", text, re.M | re.S)
    ]


def blocks(repo: Path, page: str) -> list[str]:
    return [fence.text for fence in fences(repo, page) if fence.language == "sh"]


def gpus(command: str) -> int:
    """How many GPUs of NVIDIA it needs."""
    words = shlex.split(command, comments=True)
    first = max((int(number or 0) for number in re.findall(r"\bcuda\b:?(\d*)", " ".join(words))), default=-1)
    if "--tensor-parallel" in words and "cpu" not in words:
        return max(first, 0) + int(words[words.index("--tensor-parallel") + 1])
    if "--simulate-ranks" in words and "--link" not in words:  # whose link is measured over two
        return first + 2
    return first + 1


def prepared(command: str, times: Mapping[str, list[str]] = SHORT) -> list[str]:
    """Its words as they run on the files below, within seconds."""
    words = shlex.split(command, comments=True)
    own = "tiny-pages" if {"generate", "finetune", "--simulate-ranks"} & {*words} else "sentences"
    here = {"FOLDER": own, "sequence=128": "sequence=32"}  # the tiny encoder takes 40 tokens
    more = times.get(words[1], []) if "--forget" not in words else []
    words = [here.get(word, word) for word in words]
    end = words.index("<") if "<" in words else len(words)
    return words[:end] + more + words[end:]


def write_program(path: Path, device: str) -> None:
    graph = rlx.Graph("model")
    graph.output("y", rlx.softmax(graph.input("x", (8, 4)) @ np.ones((4, 32), np.float32)))
    with rlx.Session(device).compile(graph) as program:
        program.save(path)


def write_files(folder: Path, repo: Path, device: str = "cpu") -> None:
    """Every file that the pages' commands name; the saved program is one of the device."""
    write_base(folder / "tiny-pages", max_position_embeddings=4096)
    for name, dtype in (("tiny-pages-q4_k.gguf", "q8_0"), ("model.gguf", None)):
        folder_to_gguf(folder / "tiny-pages", folder / name, dtype)
    write_base(folder / "big", num_hidden_layers=24)  # more layers than the pages place on a device
    folder_to_gguf(folder / "big", folder / "big.gguf", None)
    gguf_encoders.write(folder / "embeddings.gguf", "bert")
    for name in ("sentences", "minilm"):
        sentence_folders.write(folder / name, "mean")
    for name, kind in (("splade", "splade"), ("colbert", "late interaction"), ("reranker", "cross-encoder"),
                       ("classifier", "cross-encoder of three labels"), ("entities", "labels of tokens")):  # fmt: skip
        task_folders.write(folder / name, kind)
    languages = {"<|en|>": speech.ENGLISH, "<|de|>": speech.FRENCH}
    for name in ("whisper-folder", "whisper-small"):
        speech.write_model(folder / name, {**speech.GENERATION, "max_length": 10, "lang_to_id": languages})
    speech.write_wav(folder / "talk.wav", speech.sound(1.4))
    (folder / "examples").mkdir()
    for name in ("examples/sentences.txt", "sentences.txt"):
        shutil.copy(repo / "examples/sentences.txt", folder / name)
    for name in ("prompt.txt", "text.txt"):
        (folder / name).write_text("hello " * 300 if name == "text.txt" else "hello")
    write_lines(folder / "talks.jsonl", TALKS)
    write_lines(folder / "pairs.jsonl", [{"anchor": f"the cat {n}", "positive": f"a cat {n}"} for n in range(32)])
    write_program(folder / "model.rlx", device)
    np.save(folder / "x.npy", np.ones((8, 4), np.float32))
    kinds = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", 4]) for name in "xy"]
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([node], "g", kinds[:1], kinds[1:])), folder / "model.onnx")


def write_ranks(folder: Path, repo: Path) -> None:
    """docs/ranks.md's train.py as the page describes it, and its file of a name that other pages' commands make."""
    shutil.copy(folder / "model.gguf", folder / "small.gguf")
    page = (repo / "docs/ranks.md").read_text("utf-8")
    (program,) = [f.text for f in fences(repo, "docs/ranks.md") if f.language == "python" and "def train(" in f.text]
    (called,) = re.findall(r"# in train.py under mpiexec: (.*)", page)
    (folder / "train.py").write_text(f"import numpy as np\n{program[: program.index('print(')]}print({called})\n")


def path(env: Mapping[str, str]) -> str:
    """Where commands are found: an mpiexec beside Python is a wheel's."""
    return f"{Path(sys.executable).parent}:{env['PATH']}"


def run_in_a_shell(text: str, folder: Path, env: dict[str, str], seconds: float = 60.0) -> tuple[int, str]:
    """The status and what bash prints for the text, where rlx and python are this test's; no process of it is left."""
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    for name, call in (("rlx", "-m rlx "), ("python", "")):
        (tools / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {call}"$@"\n')
        (tools / name).chmod(0o755)
    with (folder / "said").open("w+", encoding="utf-8") as said:
        shell = subprocess.Popen(
            ["bash", "-euc", text], cwd=folder, env={**env, "PATH": f"{tools}:{path(env)}"}, stdout=said, stderr=said,
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            ended = shell.wait(seconds)
        except subprocess.TimeoutExpired:
            ended = -1
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
        said.seek(0)
        return ended, said.read()


def on_its_own_port(text: str, port: int) -> str:
    text = re.sub(r" --port \d+", "", text)
    return text.replace(":8080", f":{port}").replace("rlx serve", f"rlx serve --port {port}")


def until_it_answers(command: str) -> str:
    """Of a command that serves until it is stopped: that it starts, answers and ends."""
    ask = "curl --retry 60 --retry-delay 1 --retry-connrefused http://127.0.0.1:8080/health"
    return f"{command} &\n{ask}\nkill $!\nwait $!"
