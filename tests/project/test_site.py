"""The site's own pages: every public name is on one of the reference, with a text; links lead to files that exist."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

import rlx
from rlx.cli.commands import COMMANDS


@pytest.fixture(scope="module")
def reference(repo: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", repo / "docs/site/reference.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_public_name_is_on_a_page_with_a_text(reference: ModuleType) -> None:
    names = [f"rlx.{name}" for name in (*rlx.__all__, "load_program") if name != "errors"]
    for module in (rlx.fft, rlx.linalg, rlx.signal, rlx.random, rlx.splats, rlx.onnx, rlx.tree):
        names += [f"{module.__name__}.{name}" for name in module.__all__]
    for module in (rlx.nn, rlx.optim):
        own = {n for n, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__}
        names += [f"{module.__name__}.{n}" for n in own if n[0] != "_"]
    names += ["rlx.models.load", "rlx.models.LanguageModel", "rlx.errors.ShapeError", "rlx.errors.RlxError"]
    shown = {name: reference.entry(name, value) for page in reference.pages() for name, value in page[3].items()}
    intro = next(page[2] for page in reference.pages())
    missing = [n for n in names if n not in shown and f"`{n.removeprefix('rlx.')}`" not in intro]
    assert missing == [] and len(shown) > 600
    assert [name for name, text in shown.items() if not text.split("\n")[1].strip("`")] == []


def test_every_command_and_option_is_on_the_page(reference: ModuleType) -> None:
    page = reference.commands()
    assert {f"## rlx {name}" for name in COMMANDS} <= {*page.split("\n")}
    assert "| `--temperature`" in page and page.count("\n| `--device`") > 8
    assert re.search(r"^\| `--guesses`, `--draft-max` \| .* Default: `7`\. \|$", page, re.M)


def test_a_docstring_as_markdown(reference: ModuleType) -> None:
    text = "Sums a_b*c<d.\n\nShape: x's. Dtype: `f32*`. Raises: none.\n\n>>> f(1)\n>>> g(2)"
    assert reference.markdown(text) == (
        "Sums a\\_b\\*c\\<d.\n\n**Shape**: x's. \n\n**Dtype**: `f32*`. \n\n**Raises**: none.\n\n"
        "```pycon\n>>> f(1)\n>>> g(2)\n```"
    )


def test_a_signature_is_what_is_written(reference: ModuleType) -> None:
    def f(x: rlx.Tensor, *rest: int, axis: int | None = None, name: str = "a", of: type = int) -> list[int]:
        return [x.ndim, *rest]

    assert reference.signature(f) == (
        "(x: rlx.Tensor, *rest: int, axis: int | None = None, name: str = 'a', of: type = int) -> list[int]"
    )


def test_links_lead_to_files(reference: ModuleType, repo: Path) -> None:
    wrong = []
    for page in [*(repo / "docs").rglob("*.md"), *repo.glob("*.md")]:
        if "generated" in page.parts:
            continue
        for place in re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)[^)]*\)", page.read_text("utf-8")):
            if not place.startswith("generated/") and not (page.parent / place).exists():
                wrong.append(f"{page.relative_to(repo)}: {place}")
    assert wrong == []


@pytest.mark.parametrize(
    ("source", "there"), [("https://x.y/z", "[c](https://x.y/z/blob/HEAD/examples/lora.py#L1)"), ("", "c")]
)
def test_links_that_leave_the_site_are_addresses(
    reference: ModuleType, repo: Path, monkeypatch: pytest.MonkeyPatch, source: str, there: str
) -> None:
    monkeypatch.setattr(reference, "SOURCE", source)
    text = "[a](arrays.md#x) [b](../CONTRIBUTING.md) [c](../examples/lora.py#L1) [d](https://e.f) [g](#h) [i](flow.svg)"
    text += " `f[0]()`"
    assert reference.rewritten(text, repo / "docs") == (
        f"[a](/arrays.md#x) [b](/generated/contributing.md) {there} [d](https://e.f) [g](#h) [i](/flow.svg) `f[0]()`"
    )


def test_pictures_are_small_and_shown(repo: Path) -> None:
    pictures = [*(repo / "docs/pictures").iterdir()]
    page = (repo / "docs/gallery.md").read_text("utf-8")
    assert len(pictures) >= 4
    assert [p.name for p in pictures if p.stat().st_size > 100 * 1024 or f"pictures/{p.name}" not in page] == []


def test_the_changelog_is_of_its_format(repo: Path) -> None:
    """Keep a Changelog 1.1: versions, the newest first, with these headings."""
    text = (repo / "CHANGELOG.md").read_text("utf-8")
    assert re.findall(r"^## (.*)$", text, re.M)[0] == "[Unreleased]"
    headings = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert {*re.findall(r"^### (.*)$", text, re.M)} <= headings
