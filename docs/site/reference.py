"""The pages of the site that nothing else holds: every public name from its docstring, and the repository's own pages.

`docs/conf.py` calls `write`; the folder that it fills, `docs/generated`, is not tracked. Docstrings are plain text with
code between backticks, so they become Markdown, in which MyST's directives describe Python's names.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tools"))

from repository import UNKNOWN, linked, repository  # noqa: E402 - of that folder

DOCS = ROOT / "docs"
SOURCE = repository()
MODULES = ("fft", "linalg", "signal", "random", "nn", "optim", "tree", "splats", "onnx", "models", "bulk", "errors")
# Pages of the repository that stand outside docs/, and their names in the site.
OWN = {"CONTRIBUTING.md": "contributing", "SECURITY.md": "security", "CHANGELOG.md": "changelog"}
# Families of functions: the title of a page, and the beginnings of the modules under rlx/ops that it shows. What none
# names is on the last page.
FAMILIES = {
    "Elementwise": ("elementwise", "composed.aliases", "complex_numbers"),
    "Creating arrays, dtypes": ("creation", "composed.types"),
    "Shapes, indices": ("movement", "index", "pad", "scatter", "composed.arranging", "composed.selecting"),
    "Reductions, order, statistics": (
        "reduce", "cumulative", "order", "softmax", "composed.statistics", "composed.calculus",
    ),
    "Products": ("matmul", "einsum", "grouped", "integer_matmul", "composed.products"),
    "Packed weights": ("quantized", "packed_linear", "packed_attention"),
    "Networks": ("norm", "conv", "pool", "resize", "grid_sample", "loss", "recurrent", "scans"),
    "Attention, positions": ("attention", "paged_attention", "rope"),
    "Loops, branches": ("control", "loops"),
    "Ranks": ("collectives",),
    "Other functions": ("",),
}  # fmt: skip
_REFERENCE = """Every public name, from its docstring: what it is, then shapes, dtypes, the gradient, how it is
computed, and the errors that it raises. The search of this site knows each name; what NumPy, JAX and SciPy call it is
on [a page of its own](/names.md). The command line has [one too](/generated/commands.md)."""
_LABEL = re.compile(
    r"(?:^|(?<=[.;)] )|(?<=\n))(Shape|Dtype|Gradient|Numerics|Raises|Requires|After|Returns): ", re.M
)
_CODE = re.compile(r"(`+)(.+?)\1", re.S)
_LINK = re.compile(r"(\]\()(?!https?:|#)([^)#\s]*)(#[^)\s]*)?\)")


def say_unknown() -> None:
    """Says on standard error what is left out while the repository's address is not known."""
    if not SOURCE:
        print(f"docs: {UNKNOWN}", file=sys.stderr)


def public(name: str) -> dict[str, Any]:
    """The public names of a module of rlx ("" is rlx itself) and their values, modules left out."""
    module = importlib.import_module(f"rlx.{name}" if name else "rlx")
    later = {n for n in getattr(module, "_places", ()) if not n.startswith("_")}
    own = {n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__ and n[0] != "_"}
    names = set(getattr(module, "__all__", own)) | later
    values = {n: getattr(module, n) for n in sorted(names)}
    return {n: v for n, v in values.items() if not isinstance(v, ModuleType)}


def family(value: Any) -> str:
    """The title of the page on which a function of `rlx` stands, or "" for what is no op."""
    code = getattr(inspect.unwrap(value), "__code__", None)
    place = Path(code.co_filename) if code else None
    if place is None or getattr(value, "__module__", "") not in ("rlx.ops", "rlx.ops.composed.types"):
        return ""
    home = ".".join(place.relative_to(ROOT / "rlx/ops").with_suffix("").parts)
    return next(title for title, starts in FAMILIES.items() if home.startswith(starts))


def markdown(text: str) -> str:
    """A docstring as Markdown: examples become blocks of code, labels such as `Shape:` begin a line."""
    parts: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        head, mark, example = paragraph.partition(">>> ")
        if mark and (not head or head.endswith("\n")):
            parts += [_prose(head)] if head.strip() else []
            parts.append(f"```pycon\n{mark}{example}\n```")
        else:
            parts.append(_prose(paragraph))
    return "\n\n".join(parts)


def _prose(text: str) -> str:
    out, at = [], 0
    for code in _CODE.finditer(text):
        out += [re.sub(r"([*_<\[\]$|\\])", r"\\\1", text[at : code.start()]), code[0]]
        at = code.end()
    out.append(re.sub(r"([*_<\[\]$|\\])", r"\\\1", text[at:]))
    lines = re.sub(r"^([#>+])", r"\\\1", "".join(out), flags=re.M)
    return _LABEL.sub(lambda m: f"\n\n**{m[1]}**: ", lines).strip()


def signature(value: Any) -> str:
    """The parameters as they are written, and what comes back; "" where there are none to name."""
    try:
        own = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    parameters = [
        p.replace(annotation=_plain(p.annotation), default=_plain(p.default, True)) for p in own.parameters.values()
    ]
    return str(own.replace(parameters=parameters, return_annotation=_plain(own.return_annotation)))


class _Text:
    """What `inspect` prints as the text itself."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _plain(value: Any, is_default: bool = False) -> Any:
    """An annotation or a default as it is written: the text of annotations, dots for what has no literal."""
    if value is inspect.Parameter.empty:
        return value
    text = value if isinstance(value, str) and not is_default else repr(value)
    return _Text(getattr(value, "__name__", "...") if text.startswith("<") else text)


def entry(name: str, value: Any, fence: int = 6) -> str:
    """The directive of a public name: of a class with its methods and properties that have docstrings."""
    ticks = "`" * fence
    text = markdown(inspect.getdoc(value) or "")
    if not isinstance(value, type):
        kind, call = ("function", signature(value)) if callable(value) else ("data", "")
        return f"{ticks}{{py:{kind}}} {name}{call}\n{text}\n{ticks}\n"
    kind = "exception" if issubclass(value, BaseException) else "class"
    inner = "" if kind == "exception" else "\n".join(_members(value, fence - 1))
    call = "" if kind == "exception" or enum.Enum in value.__mro__ else signature(value).partition(" -> ")[0]
    return f"{ticks}{{py:{kind}}} {name}{call}\n{text}\n\n{inner}{ticks}\n"


def _members(owner: type, fence: int) -> Iterator[str]:
    ticks = "`" * fence
    for name in sorted(n for n in dir(owner) if not n.startswith("_")):
        value = inspect.getattr_static(owner, name)
        text = inspect.getdoc(value)
        home = next((k for k in owner.__mro__ if name in vars(k)), object)
        if not text or not home.__module__.startswith("rlx"):
            continue
        if isinstance(value, property | cached_property):
            yield f"{ticks}{{py:property}} {name}\n{markdown(text)}\n{ticks}\n"
        elif isinstance(value, classmethod | staticmethod) or callable(value):
            call = getattr(owner, name)
            parameters = re.sub(r"^\(self(, )?", "(", signature(call)) or "()"
            yield f"{ticks}{{py:method}} {name}{parameters}\n{markdown(text)}\n{ticks}\n"


def pages() -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """(file, title, introduction, names with their values) of each page of the reference."""
    top = public("")
    by_family: dict[str, dict[str, Any]] = {}
    for name, value in top.items():
        by_family.setdefault(family(value), {})[f"rlx.{name}"] = value
    dtypes = {n: v for n, v in by_family.pop("").items() if type(v).__name__ != "DType"}
    names = ", ".join(f"`{n}`" for n in sorted(n for n, v in top.items() if type(v).__name__ == "DType"))
    yield "rlx", "Programs, arrays, derivatives", f"The dtypes, by NumPy's names too: {names}.", dtypes
    for title in FAMILIES:
        if title in by_family:
            stem = "functions-" + re.sub(r"\W+", "-", title.lower())
            yield stem, title, "Functions of arrays, in a program and outside.", by_family[title]
    for module in MODULES:
        intro = markdown(inspect.getdoc(importlib.import_module(f"rlx.{module}")) or "")
        yield module, f"rlx.{module}", intro, {f"rlx.{module}.{n}": v for n, v in public(module).items()}


def commands() -> str:
    """The page of the command line: each command, its arguments and options, from what `--help` shows."""
    from typer.main import get_command

    from rlx.cli.app import app
    from rlx.cli.commands import COMMANDS

    group: Any = get_command(app)
    parts = ["# Commands", "What `rlx COMMAND --help` shows too."]
    for name in COMMANDS:
        command = group.get_command(None, name)
        parts += [f"## rlx {name}", markdown(command.help or "")]
        rows = [_option(p) for p in command.params if not p.hidden and getattr(p, "help", "")]
        if rows:
            parts.append("\n".join(["| | |", "|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def _option(parameter: Any) -> str:
    """A row of a table: the names of an option, or of an argument, and what it is for."""
    is_option = parameter.opts[0].startswith("-")
    names = [*parameter.opts, *parameter.secondary_opts] if is_option else [parameter.metavar or parameter.name.upper()]
    default = parameter.default
    shown = is_option and parameter.show_default is not False and not callable(default)
    shown = shown and default not in (None, False, True, (), [])
    text = _prose(parameter.help).replace("\n", " ") + (f" Default: `{default}`." if shown else "")
    return f"| {', '.join(f'`{n}`' for n in names)} | {text} |"


def rewritten(text: str, folder: Path) -> str:
    """A page whose links work in the site, from those that work beside the file, in `folder`."""

    def address(match: re.Match[str]) -> str:
        path = (folder / match[2]).resolve()
        if not match[2] or match[2].startswith("/") or not path.is_relative_to(ROOT):
            return match[0]
        name = path.relative_to(ROOT).as_posix()
        if path.is_relative_to(DOCS) and path.is_file():
            place = f"/{path.relative_to(DOCS).as_posix()}"
        elif name in OWN:
            place = f"/generated/{OWN[name]}.md"
        else:
            return match[0]
        return f"{match[1]}{place}{match[3] or ''})"

    return linked(_LINK.sub(address, text), folder.relative_to(ROOT).as_posix(), SOURCE)


def write(folder: Path = DOCS / "generated") -> None:
    """Writes all pages anew; one that has not changed keeps its time, so that Sphinx does not read it again."""
    texts = {f"{name}.md": rewritten((ROOT / file).read_text("utf-8"), ROOT) for file, name in OWN.items()}
    listed, texts["commands.md"] = [], commands()
    for stem, title, intro, names in pages():
        listed.append(f"api/{stem}")
        own = "\n".join(entry(name, value) for name, value in names.items())
        texts[f"api/{stem}.md"] = f"# {title}\n\n{intro}\n\n{own}"
    toc = "\n".join(listed)
    texts["reference.md"] = f"# Reference\n\n{_REFERENCE}\n\n```{{toctree}}\n:maxdepth: 1\n\n{toc}\n```\n"
    for file in folder.rglob("*.md"):
        if file.relative_to(folder).as_posix() not in texts:
            file.unlink()
    for name, text in texts.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.is_file() or file.read_text("utf-8") != text:
            file.write_text(text, encoding="utf-8")
