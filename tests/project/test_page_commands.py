"""The commands of the README and of the pages run as printed, on tiny models of the names that they have there; each
that would take long is told when to end. Those that need a GPU run by `python -m tests.project.gpu_pages`. Blocks with
a server and those of mpiexec run in a shell."""

from __future__ import annotations

import re
import shlex
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rlx.cli.app import app
from tests.outside import outside
from tests.project import gpu_pages
from tests.project.page_commands import (
    ELSEWHERE,
    OUT_OF_TIME,
    blocks,
    fences,
    gpus,
    on_its_own_port,
    prepared,
    run_in_a_shell,
    until_it_answers,
    write_files,
    write_program,
    write_ranks,
)

# Lines that are no command of rlx and do not run here.
OTHERS = {
    "make": "the tests themselves, and a download", "python examples/train_language.py": "trains for minutes",
    "mpiexec": "docs/ranks.md's, below", "python examples/bulk": "needs Ray: tests/bulk",
}  # fmt: skip
# The pages whose commands run in this process, and how many; the tutorials' run in test_pages.py.
PAGES = {
    "README.md": 25, "docs/language.md": 12, "docs/texts.md": 5, "docs/finetuning.md": 8, "docs/tuning.md": 3,
    "docs/ranks.md": 1, "docs/bulk.md": 0,
}  # fmt: skip
# Fences of other languages, which do not run as they stand.
PARTS = {
    ("docs/bulk.md", "py"): "needs Ray: tests/bulk",
    ("docs/servers.md", "bash"): "needs GPUs and HAProxy: tests/serve/test_proxy.py",
    ("docs/design.md", "py"): "a registration, a protocol and a call out of rlx itself",
    ("docs/tutorials/write-an-op.md", "cuda"): "needs a GPU: a part of examples/custom_op.py, as tested below",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, repo: Path) -> Path:
    made = tmp_path_factory.mktemp("commands")
    write_files(made, repo)
    return made


def says(text: str, folder: Path, env: dict[str, str]) -> str:
    status, said = run_in_a_shell(text, folder, {**env, "RLX_DEVICE": "cpu", "RLX_CPU": "numpy"})
    assert status == 0, f"{text}{said}"
    return said


def test_the_commands_of_every_page_are_known(repo: Path) -> None:
    pages = {"README.md", *(str(p.relative_to(repo)) for p in (repo / "docs").glob("*.md"))}
    assert {page for page in pages if blocks(repo, page)} == {*PAGES, "docs/serving.md"}
    for page in PAGES:
        for block in blocks(repo, page):
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


@pytest.mark.parametrize(
    ("command", "needed"),
    [
        ("rlx generate m.gguf --device cuda", 1), ("rlx generate m.gguf --layers-on cuda:0=20,cpu", 1),
        ("rlx generate m.gguf --layers-on cuda:0,cuda:1", 2), ("rlx serve m.gguf --tensor-parallel 2", 2),
        ("rlx serve m.gguf --device cuda:2 --tensor-parallel 2", 4), ("rlx devices  # as cuda", 0),
        ("rlx generate m.gguf --device cpu --tensor-parallel 3", 0), ("rlx tune m.onnx --device vulkan", 0),
        ("mpiexec -n 2 rlx generate m.gguf --device cuda --tensor-parallel 2", 2),
        ("rlx bench m.gguf --device cuda --simulate-ranks r.html", 2),
        ("rlx bench m.gguf --device cuda --simulate-ranks r.html --link 4:200", 1),
    ],
)  # fmt: skip
def test_a_command_says_how_many_gpus_it_needs(command: str, needed: int) -> None:
    assert gpus(command) == needed


def test_what_needs_a_gpu_has_its_turn_there(repo: Path) -> None:
    """Every command of a page that is left out below for want of a GPU."""
    there = {(part.page, line) for part in gpu_pages.parts(repo, every=False) for line, _ in part.commands}
    pages = [*PAGES, "docs/serving.md"]
    lines = {(page, n) for page in pages for f in fences(repo, page) for n, c in f.commands() if marked(f.language, c)}
    assert lines <= there and len(lines) == 10


def marked(language: str, command: str) -> bool:
    return language == "sh" and gpus(command) > 0


@pytest.mark.late
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_run(
    repo: Path, folder: Path, page: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(shutil.copytree(folder, tmp_path / "here"))
    if page == "docs/ranks.md":
        write_ranks(Path(), repo)
    if page == "docs/tuning.md":  # no other test follows what is measured here
        monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path / "cache"))
        write_program(Path("model.rlx"), "vulkan")
    monkeypatch.setenv("RLX_CPU", "numpy")
    wrong, ran = [], 0
    for fence in fences(repo, page):
        if fence.language != "sh":
            continue
        for loop in re.findall(r"^for .*?^done[^\n]*", fence.text, re.M | re.S):
            subprocess.run(["bash", "-euc", loop], check=True)
        for number, line in fence.commands():
            words: list[Any] = prepared(line)
            if words[:1] != ["rlx"] or words[1] == "serve" or gpus(line) or ELSEWHERE.keys() & {*words}:
                continue
            text = ""
            if "<" in words:
                text = Path(words[words.index("<") + 1]).read_text("utf-8")
                del words[words.index("<") : words.index("<") + 2]
            # Layers on a GPU, and what was measured there, are those of Vulkan here.
            monkeypatch.setenv("RLX_DEVICE", "vulkan" if "-ngl" in words else "cpu")
            done = CliRunner().invoke(app, words[1:], input=text)
            ran += 1
            if done.exit_code not in (0, OUT_OF_TIME.get(words[1], 0)):
                wrong.append(f"{page}:{number}: {line}: {done.exception} {done.output}")
    assert not wrong, "\n".join(wrong)
    assert ran == PAGES[page]


@pytest.mark.late
@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here")
def test_the_servers_of_the_pages_answer(repo: Path, folder: Path, tmp_path: Path, clean_env: dict[str, str]) -> None:
    """Each block as pasted but for the port: the server starts, curl's requests have status 200, the server ends."""
    pytest.importorskip("starlette", reason="needs rlx[serve]")
    pytest.importorskip("uvicorn", reason="needs rlx[serve]")
    here = shutil.copytree(folder, tmp_path / "here")
    (here / ".curlrc").write_text('silent\nshow-error\nfail-with-body\nwrite-out = "\\nstatus %{http_code}\\n"\n')
    env = {**clean_env, "PYTHONPATH": str(repo), "CURL_HOME": str(here), "no_proxy": "127.0.0.1"}
    texts = [text for text in blocks(repo, "docs/serving.md") if "kill" in text]
    assert len(texts) == 4
    # A folder's, and a file's of a decoder, are among these; a file's of an encoder is not.
    (encoder,) = re.findall(r"^rlx serve embeddings.gguf", "\n".join(blocks(repo, "docs/language.md")), re.M)
    for text in [*texts, until_it_answers(encoder)]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        own = on_its_own_port(text, port)
        said = says(own if "wait" in own else f"{own}wait $!", here, env)
        assert said.count("status 200") == text.count("curl ") == (1 if "embeddings" in text else 2), said
        assert "rlx: stopping" in said


@pytest.mark.late
@pytest.mark.judged
def test_the_ranks_of_the_page_run(repo: Path, folder: Path, tmp_path: Path, clean_env: dict[str, str]) -> None:
    """Its train.py as the page describes it; what needs two GPUs is left out."""
    outside("mpi4py")
    here = shutil.copytree(folder, tmp_path / "here")
    write_ranks(here, repo)
    lines = re.findall(r"^mpiexec .*", "\n".join(blocks(repo, "docs/ranks.md")), re.M)
    run = [shlex.join(prepared(line)) for line in lines if not gpus(line)]
    assert len(run) == 3 and len(lines) == 4
    env = {**clean_env, "PYTHONPATH": str(repo), "OMP_NUM_THREADS": "1"}
    first, second = says(run[0], here, env).split()
    assert first == second and float(first) > 0
    says(run[1], here, env)
    assert (here / "adapter/adapter_model.safetensors").exists()
    says(run[2], here, env)
    assert (here / "model/model/model.safetensors").exists()
