"""The commands of the README and of the pages run as printed, on tiny models of the names that they have there; each
that would take long is told when to end, and what cannot run here is listed with the reason. Blocks with a server and
those of mpiexec run in a shell."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
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
from tests.models.speech import tiny as speech
from tests.outside import outside

# Commands that these words stand in are not run here: what they need is not here, or they end when they are told to.
ELSEWHERE = {
    "-ngl": "a GPU: tests/cli/test_habits.py",
    "serve": "runs until it is stopped: docs/serving.md's, below", "pull": "asks the Hub: tests/cli/test_pull.py",
    "--install-completion": "changes the user's shell", "big.gguf": "two GPUs", "cuda": "a GPU",
    "whisper-small": "tests/models/speech", "tuned.rlx": "a GPU: tests/cli/test_tune.py",
    "minilm": "make demo's download", "better/model": "the same", "embeddings.gguf": "tests/cli/test_embed.py",
    "--ray": "needs Ray: tests/bulk",
}  # fmt: skip
# Lines that are no command of rlx and do not run here.
OTHERS = {
    "make": "the tests themselves, and a download", "python examples/train_language.py": "trains for minutes",
    "mpiexec": "docs/ranks.md's, below", "python examples/bulk": "needs Ray: tests/bulk",
}  # fmt: skip
# The pages whose commands run in this process, and how many at least; the tutorials' run in test_pages.py.
PAGES = {
    "README.md": 15, "docs/language.md": 9, "docs/texts.md": 5, "docs/finetuning.md": 6, "docs/tuning.md": 2,
    "docs/ranks.md": 1, "docs/bulk.md": 0,
}  # fmt: skip
# Fences of other languages, which do not run as they stand.
PARTS = {
    ("docs/bulk.md", "py"): "needs Ray: tests/bulk",
    ("docs/servers.md", "bash"): "needs GPUs and HAProxy: tests/serve/test_proxy.py",
    ("docs/design.md", "py"): "a registration, a protocol and a call out of rlx itself",
    ("docs/tutorials/write-an-op.md", "cuda"): "needs a GPU: a part of examples/custom_op.py, as tested below",
}  # fmt: skip
# What goes on for its time unless it is told how long.
LONG = {"bench": ["--seconds", "1"], "selftest": ["--seconds", "2"], "check": ["--seconds", "5"],
        "generate": ["-n", "4"], "tune": ["--seconds", "1"]}  # fmt: skip
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
    speech.write_model(made / "whisper-folder", {**speech.GENERATION, "max_length": 10})
    speech.write_wav(made / "talk.wav", speech.sound(1.4))
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


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)


def run_in_a_shell(text: str, folder: Path, env: dict[str, str], seconds: float = 60.0) -> str:
    """What bash prints for the text, where rlx and python are this test's; no process of it is left."""
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    for name, call in (("rlx", "-m rlx "), ("python", "")):
        (tools / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {call}"$@"\n')
        (tools / name).chmod(0o755)
    path = f"{tools}:{Path(sys.executable).parent}:{env['PATH']}"  # an mpiexec beside Python is a wheel's
    env = {**env, "PATH": path, "RLX_DEVICE": "cpu", "RLX_CPU": "numpy"}
    with (folder / "said").open("w+", encoding="utf-8") as said:
        shell = subprocess.Popen(
            ["bash", "-euc", text], cwd=folder, env=env, stdout=said, stderr=said, start_new_session=True
        )
        try:
            ended = shell.wait(seconds)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
        said.seek(0)
        text_said = said.read()
    assert ended == 0, f"{text}{text_said}"
    return text_said


def test_the_commands_of_every_page_are_known(repo: Path) -> None:
    pages = {"README.md", *(str(p.relative_to(repo)) for p in (repo / "docs").glob("*.md"))}
    assert {page for page in pages if blocks(repo / page)} == {*PAGES, "docs/serving.md"}
    for page in PAGES:
        for block in blocks(repo / page):
            other = re.sub(r"^for .*?^done", "rlx", block.replace("\\\n", " "), flags=re.M | re.S)
            for line in other.splitlines():
                assert line.startswith(("rlx ", *OTHERS)), f"{page}: {line} neither runs nor is listed"


def test_every_other_fence_is_listed(repo: Path) -> None:
    found = {}
    written = [path for path in (repo / "docs").rglob("*.md") if "generated" not in path.parts]  # by `make docs`
    for path in [repo / "README.md", *written]:
        for language, text in re.findall(r"^ *```(\w+)\n(.*?)^ *```", path.read_text("utf-8"), re.M | re.S):
            found[str(path.relative_to(repo)), language] = text
    assert {fence for fence in found if fence[1] not in ("python", "sh")} == {*PARTS}
    assert found["docs/tutorials/write-an-op.md", "cuda"] in (repo / "examples/custom_op.py").read_text("utf-8")


@pytest.mark.late
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_run(
    repo: Path, folder: Path, page: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(shutil.copytree(folder, tmp_path / "here"))
    if page == "docs/ranks.md":  # docs/language.md's commands make one of this name
        shutil.copy("model.gguf", "small.gguf")
    if page == "docs/tuning.md":  # no other test follows what is measured here
        monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("RLX_DEVICE", "cpu")
    monkeypatch.setenv("RLX_CPU", "numpy")
    wrong, ran = [], 0
    for block in blocks(repo / page):
        for loop in re.findall(r"^for .*?^done[^\n]*", block, re.M | re.S):
            subprocess.run(["bash", "-euc", loop], check=True)
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
    assert ran >= PAGES[page]


@pytest.mark.late
@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here")
def test_the_servers_of_the_page_answer(repo: Path, folder: Path, tmp_path: Path, clean_env: dict[str, str]) -> None:
    """Each block as pasted but for the port: the server starts, curl's requests have status 200, the server ends."""
    pytest.importorskip("starlette", reason="needs rlx[serve]")
    pytest.importorskip("uvicorn", reason="needs rlx[serve]")
    here = shutil.copytree(folder, tmp_path / "here")
    (here / ".curlrc").write_text('silent\nshow-error\nfail-with-body\nwrite-out = "\\nstatus %{http_code}\\n"\n')
    env = {**clean_env, "PYTHONPATH": str(repo), "CURL_HOME": str(here), "no_proxy": "127.0.0.1"}
    texts = [text for text in blocks(repo / "docs/serving.md") if not ELSEWHERE.keys() & {*text.split()} - {"serve"}]
    assert len(texts) == 4
    for text in texts:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        own = text.replace(":8080", f":{port}").replace("rlx serve", f"rlx serve --port {port}")
        said = run_in_a_shell(f"{own}wait $!", here, env)
        assert said.count("status 200") == text.count("curl ") == 2, said
        assert "rlx: stopping" in said


@pytest.mark.late
@pytest.mark.judged
def test_the_ranks_of_the_page_run(repo: Path, folder: Path, tmp_path: Path, clean_env: dict[str, str]) -> None:
    """Its train.py as the page describes it; what needs two GPUs is left out."""
    outside("mpi4py")
    here = shutil.copytree(folder, tmp_path / "here")
    page = (repo / "docs/ranks.md").read_text("utf-8")
    (program,) = [p for p in re.findall(r"^```python\n(.*?)^```", page, re.M | re.S) if "def train(" in p]
    (called,) = re.findall(r"# in train.py under mpiexec: (.*)", program)
    (here / "train.py").write_text(f"import numpy as np\n{program[: program.index('print(')]}print({called})\n")
    lines = re.findall(r"^mpiexec .*", "\n".join(blocks(repo / "docs/ranks.md")), re.M)
    run = [line for line in lines if not ELSEWHERE.keys() & {*line.split()}]
    assert len(run) == 2 and len(lines) == 3
    env = {**clean_env, "PYTHONPATH": str(repo), "OMP_NUM_THREADS": "1"}
    first, second = run_in_a_shell(run[0], here, env).split()
    assert first == second and float(first) > 0
    run_in_a_shell(run[1].replace("FOLDER", "tiny-pages"), here, env)
    assert (here / "adapter/adapter_model.safetensors").exists()
