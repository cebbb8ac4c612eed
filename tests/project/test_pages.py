"""The Python snippets of the pages run as printed, on what their names stand for."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import rlx
from rlx.formats.gguf.convert import folder_to_gguf
from tests.finetune.tiny import write_base
from tests.formats.gguf.test_convert import LLAMA
from tests.formats.gguf.test_convert import folder as written
from tests.models import sentence_folders, task_folders
from tests.onnx.models import model, node

Names = dict[str, Any]


def snippets(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)


def a_model(folder: Path) -> Names:
    """A network of one input, of pictures; the array is a small one."""
    proto = model([node("GlobalAveragePool", "x", "y")], {"x": ["batch", 3, 224, 224]}, {"y": ["batch", 3, 1, 1]}, {})
    onnx.save(proto, folder / "model.onnx")
    return {"array": np.ones((1, 3, 224, 224), np.float32)}


def a_pool(folder: Path) -> Names:
    """A network of pictures, any number of them in a run."""
    proto = model([node("GlobalAveragePool", "x", "y")], {"x": ["batch", 3, 4, 4]}, {"y": ["batch", 3, 1, 1]}, {})
    onnx.save(proto, folder / "model.onnx")
    return {}


def a_graph(folder: Path) -> Names:
    """A graph with a weight, compiled too, and a function; what is saved last is checked by ONNX."""
    graph = rlx.Graph("page")
    graph.output("y", graph.input("x", (2, 3)) @ graph.param("w", (3, 4)))
    array = np.ones((3, 4), np.float32)
    compiled = rlx.Session(device="cpu").compile(graph)
    compiled.set_params({"w": array})
    return {"graph": graph, "array": array, "compiled": compiled, "function": lambda x: rlx.exp(x)}


def a_language_model(folder: Path) -> Names:
    """The name of what an example of the repository trains, for a model of a few numbers."""
    written(folder / "tiny-pages", LLAMA, text=True)
    folder_to_gguf(folder / "tiny-pages", folder / "tiny-pages-q4_k.gguf", None)
    return {}


def a_chat_model(folder: Path) -> Names:
    """The name of what an example trains, for a tiny model with a template."""
    write_base(folder / "tiny-pages")
    return {}


def text_models(folder: Path) -> Names:
    """A folder of each task, around the tiny BERT."""
    sentence_folders.write(folder / "sentences", "mean")
    for name, kind in (("splade", "splade"), ("colbert", "late interaction"), ("reranker", "cross-encoder"),
                       ("classifier", "cross-encoder of three labels"), ("entities", "labels of tokens")):  # fmt: skip
        task_folders.write(folder / name, kind)
    return {}


PAGES: dict[str, Callable[[Path], Names]] = {
    "docs/arrays.md": lambda folder: {}, "docs/onnx.md": a_model, "docs/onnx-save.md": a_graph,
    "docs/lengths.md": a_pool, "docs/linalg.md": lambda folder: {}, "docs/reports.md": lambda folder: {},
    "docs/language.md": a_language_model, "docs/transforms.md": lambda folder: {}, "docs/design.md": lambda folder: {},
    "docs/nn.md": lambda folder: {}, "docs/signals.md": lambda folder: {}, "docs/training.md": lambda folder: {},
    "docs/ranks.md": lambda folder: {}, "docs/finetuning.md": a_chat_model, "docs/texts.md": text_models,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    before = Path.cwd()
    os.chdir(tmp_path)
    yield tmp_path
    os.chdir(before)


def test_every_page_with_snippets_is_known(repo: Path) -> None:
    """README's is run by test_readme.py, the one that needs torch by test_from_torch.py."""
    with_snippets = {str(p.relative_to(repo)) for p in (repo / "docs").glob("*.md") if snippets(p)}
    assert with_snippets == {*PAGES, "docs/torch.md"}


@pytest.mark.parametrize("page", PAGES)
def test_the_snippets_run(
    repo: Path, folder: Path, page: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And print what the page shows next, where it says that they print something."""
    monkeypatch.setenv("RLX_CPU", "numpy")  # reports name kernels that every installation has
    names = PAGES[page](folder)
    for text in snippets(repo / page):
        exec(text.replace('"vulkan"', '"cpu"'), names)  # devices are tried elsewhere
    said = capsys.readouterr().out
    for printed in re.findall(r"^prints\n\n```\n(.*?)^```", (repo / page).read_text("utf-8"), re.M | re.S):
        assert printed in said
    if (folder / "model.onnx").exists():
        onnx.checker.check_model(onnx.load(folder / "model.onnx"))
    for name in ("compiled", "program"):
        if name in names:
            names[name].close()
