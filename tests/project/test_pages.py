"""The Python snippets of the pages run as printed, on what their names stand for."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest

import rlx
from rlx.formats.gguf.convert import folder_to_gguf
from tests.finetune.tiny import write_base
from tests.formats.gguf.test_convert import LLAMA
from tests.formats.gguf.test_convert import folder as written
from tests.models import sentence_folders, task_folders

Names = dict[str, Any]


def snippets(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)


def a_language_model(folder: Path) -> None:
    """The name of what an example of the repository trains, for a model of a few numbers."""
    written(folder / "tiny-pages", LLAMA, text=True)
    folder_to_gguf(folder / "tiny-pages", folder / "tiny-pages-q4_k.gguf", None)


def a_chat_model(folder: Path) -> None:
    """The name of what an example trains, for a tiny model with a template."""
    write_base(folder / "tiny-pages")


def text_models(folder: Path) -> None:
    """A folder of each task, around the tiny BERT."""
    sentence_folders.write(folder / "sentences", "mean")
    for name, kind in (("splade", "splade"), ("colbert", "late interaction"), ("reranker", "cross-encoder"),
                       ("classifier", "cross-encoder of three labels"), ("entities", "labels of tokens")):  # fmt: skip
        task_folders.write(folder / name, kind)


# What a page's snippets need, which its first one says; the others need nothing.
NEEDS: dict[str, Callable[[Path], object]] = {
    "docs/language.md": a_language_model, "docs/finetuning.md": a_chat_model, "docs/texts.md": text_models,
}  # fmt: skip
PAGES = (
    "docs/arrays.md", "docs/onnx.md", "docs/onnx-save.md", "docs/lengths.md", "docs/linalg.md", "docs/reports.md",
    "docs/transforms.md", "docs/design.md", "docs/nn.md", "docs/signals.md", "docs/training.md", "docs/ranks.md",
    "docs/splats.md",
    *NEEDS,
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    before = Path.cwd()
    os.chdir(tmp_path)
    yield tmp_path
    os.chdir(before)


TUTORIALS = ("run-a-model", "fine-tune", "write-an-op", "read-a-report")


@pytest.mark.late
@pytest.mark.parametrize("name", TUTORIALS)
def test_a_tutorial_runs_as_pasted(
    repo: Path, folder: Path, name: str, capsys: pytest.CaptureFixture[str], clean_env: dict[str, str]
) -> None:
    """Its Python in one process, its commands in a shell between, where the page has them."""
    if name == "fine-tune":
        write_base(folder / "tiny-pages")
    command = folder / "bin/rlx"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -W error -m rlx "$@"\n')
    command.chmod(0o755)
    env = {**clean_env, "PATH": f"{command.parent}:{clean_env['PATH']}", "PYTHONPATH": str(repo)}
    page, names = (repo / f"docs/tutorials/{name}.md").read_text("utf-8"), dict[str, Any]()
    for language, text in re.findall(r"^```(python|sh)\n(.*?)^```", page, re.M | re.S):
        if language == "python":
            exec(text, names)
        else:
            done = subprocess.run(["bash", "-euc", text], env=env, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{text}{done.stdout}{done.stderr}"
    said = capsys.readouterr().out
    for printed in re.findall(r"^prints\n\n```\n(.*?)^```", page, re.M | re.S):
        assert printed in said
    for held in names.values():
        if isinstance(held, rlx.CompiledGraph):
            held.close()


def test_every_page_with_snippets_is_known(repo: Path) -> None:
    """README's is run by test_readme.py, the one that needs torch by test_from_torch.py."""
    with_snippets = {str(p.relative_to(repo)) for p in (repo / "docs").glob("*.md") if snippets(p)}
    assert with_snippets == {*PAGES, "docs/torch.md", "docs/index.md"}
    assert snippets(repo / "docs/index.md") == snippets(repo / "README.md")[:1]
    assert {p.stem for p in (repo / "docs/tutorials").glob("*.md")} == set(TUTORIALS)


@pytest.mark.parametrize("page", PAGES)
def test_the_snippets_run(
    repo: Path, folder: Path, page: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And print what the page shows next, where it says that they print something."""
    monkeypatch.setenv("RLX_CPU", "numpy")  # reports name kernels that every installation has
    names: Names = {}
    texts = snippets(repo / page)
    assert (page in NEEDS) == texts[0].startswith("# Needs ")
    if page in NEEDS:
        NEEDS[page](folder)
    for text in texts:
        exec(text, names)
    said = capsys.readouterr().out
    for printed in re.findall(r"^prints\n\n```\n(.*?)^```", (repo / page).read_text("utf-8"), re.M | re.S):
        assert printed in said
    if (folder / "model.onnx").exists():
        onnx.checker.check_model(onnx.load(folder / "model.onnx"))
    for name in ("compiled", "program"):
        if name in names:
            names[name].close()
