"""What the README and the pages show, run on a GPU: `python -m tests.project.gpu_pages`.

Without an option it runs the commands that the tests leave out for want of a GPU; `--all` runs every other one too, and
every snippet of Python, with the device in RLX_DEVICE. A line a command or snippet: page, line, ok or why not. Models
are the tests' tiny ones, made here; nothing is downloaded. The status is 1 where one failed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import shutil
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import rlx
from tests.project import page_commands as pages
from tests.project.test_pages import NEEDS

REPO = Path(__file__).parents[2]
# What a fence of another language is a part of.
EXAMPLES = {("docs/tutorials/write-an-op.md", "cuda"): "python examples/custom_op.py"}
# Commands of pages that run as they stand, beside those of rlx.
OUTSIDE = ("mpiexec", "python examples/custom_op.py")


@dataclass(frozen=True)
class Part:
    """Commands of a page that run one after the other in a folder of their own, or snippets of Python in a process."""

    page: str
    commands: list[tuple[int, str]]
    snippets: bool = False


def named(repo: Path) -> list[str]:
    paths = [repo / "README.md", *sorted((repo / "docs").glob("*.md")), *sorted((repo / "docs/tutorials").glob("*.md"))]
    return [str(path.relative_to(repo)) for path in paths]


def parts(repo: Path, every: bool) -> list[Part]:
    """What runs: the commands that need a GPU of NVIDIA, and with `every` all else that runs anywhere."""
    found = []
    for page in named(repo):
        fences = pages.fences(repo, page)
        for fence in fences:
            if (page, fence.language) in EXAMPLES:
                found.append(Part(page, [(fence.line, EXAMPLES[page, fence.language])]))
            if fence.language != "sh" or (page.startswith("docs/tutorials") and every):
                continue
            shown = [(n, c) for n, c in fence.commands() if c.startswith(("rlx ", *OUTSIDE))]
            if any(c.startswith("curl") for _, c in fence.commands()):  # a server and its requests
                shown = [(fence.line, fence.text)]
            run = [(n, c) for n, c in shown if every or ("curl" not in c and pages.gpus(c))]
            if run:
                found.append(Part(page, run))
        if every and any(fence.language == "python" for fence in fences):
            found.append(Part(page, [], snippets=True))
    return sorted(found, key=lambda part: not any(pages.gpus(command) for _, command in part.commands))


def shown(command: str) -> str:
    return command.splitlines()[0].partition("  #")[0].strip()


def run_command(command: str, folder: Path, env: dict[str, str], present: int) -> str:
    """ok, or why it did not run or failed."""
    if "curl " in command:
        text = f"{command}wait $!"
    else:
        if other := pages.ELSEWHERE.keys() & {*shlex.split(command, comments=True)}:
            return f"not run: {pages.ELSEWHERE[other.pop()]}"
        if present < pages.gpus(command):
            return f"not run: for this many GPUs of NVIDIA: {pages.gpus(command)}, of which {present} here"
        text = re.sub(r"'<' (\S+)", r"< \1", shlex.join(pages.prepared(command, pages.LONGER)))
        if text.startswith("rlx serve"):
            text = pages.until_it_answers(text)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        text = pages.on_its_own_port(text, free.getsockname()[1])
    for tool in ("curl", "mpiexec", "openssl"):
        if re.search(rf"\b{tool}\b", text) and not shutil.which(tool, path=pages.path(env)):
            return f"not run: there is no {tool}"
    for word, packages in {"serve": ("starlette", "uvicorn"), "--json-schema": ("llguidance",)}.items():
        if missing := [name for name in packages if word in text and find_spec(name) is None]:
            return f"not run: {', '.join(missing)} not installed"
    if "vulkan" in text and not any(info.backend == "vulkan" for info in rlx.devices()):
        return "not run: there is no Vulkan device"
    began = time.perf_counter()
    status, said = pages.run_in_a_shell(text, folder, env)
    words = shlex.split(command, comments=True)
    if status in (0, pages.OUT_OF_TIME.get(words[1], 0)):
        return f"ok, {time.perf_counter() - began:.1f} s"
    lines = said.strip().splitlines() or ["nothing was printed"]
    return f"FAILED ({'out of time' if status == -1 else f'status {status}'}): {' | '.join(lines[-3:])}"


def run_snippets(page: str, folder: Path) -> Iterator[str]:
    """In this process, each after those before it; a tutorial's commands between them."""
    tutorial = page.startswith("docs/tutorials")
    if page in NEEDS:
        NEEDS[page](folder)
    elif tutorial or page == "README.md":  # which name files of the commands
        pages.write_files(folder, REPO)
    os.chdir(folder)
    names: dict[str, Any] = {}
    for fence in pages.fences(REPO, page):
        said = "ok"
        try:
            if fence.language == "python":
                with contextlib.redirect_stdout(None):
                    exec(compile(fence.text, page, "exec"), names)
            elif fence.language == "sh" and tutorial:
                status, text = pages.run_in_a_shell(fence.text, folder, dict(os.environ))
                said = "ok" if status == 0 else f"FAILED (status {status}): {text}"
            else:
                continue
        except ModuleNotFoundError as error:
            said = f"not run: {error}"
        except Exception:  # noqa: BLE001 - whatever a page's text raises is what is told
            said = f"FAILED: {' | '.join(traceback.format_exc().strip().splitlines()[-2:])}"
        yield f"{page}:{fence.line}: {said}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.project.gpu_pages", description=__doc__.partition("\n")[0])
    parser.add_argument("--all", action="store_true", help="also what needs no GPU, and the snippets of Python")
    parser.add_argument("--device", default="cuda", help="what they run on where they name no device (cuda)")
    parser.add_argument("--at-once", type=int, default=4, help="how many run at the same time")
    parser.add_argument("--snippets", metavar="PAGE", help="the snippets of one page alone")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        if options.snippets:
            failed = False
            for line in run_snippets(options.snippets, Path(made)):
                failed |= "FAILED" in line
                print(line, flush=True)
            os.chdir(REPO)
            return int(failed)
        return run(options, Path(made))


def run(options: argparse.Namespace, made: Path) -> int:
    (made / "files").mkdir()
    pages.write_files(made / "files", REPO, options.device)
    shutil.copy(REPO / "examples/custom_op.py", made / "files/examples")
    (made / "files/.curlrc").write_text("silent\nshow-error\nfail-with-body\n")
    present = sum(info.backend == "cuda" for info in rlx.devices())
    print(f"{present} GPUs of NVIDIA; what names no device runs on {options.device}", flush=True)

    def ran(number: int, part: Part) -> list[str]:
        folder = shutil.copytree(made / "files", made / f"part{number}")
        if part.page == "docs/ranks.md":
            pages.write_ranks(folder, REPO)
        cache = folder if part.page == "docs/tuning.md" else made  # no other follows what is measured there
        env = {
            **os.environ, "PYTHONPATH": f"{REPO}:{os.environ.get('PYTHONPATH', '')}".rstrip(":"),
            "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "RLX_DEVICE": options.device, "RLX_CACHE_DIR": str(cache / "cache"),
            "CURL_HOME": str(folder), "no_proxy": "127.0.0.1",
        }  # fmt: skip
        if part.snippets:
            call = f"python -m tests.project.gpu_pages --snippets {part.page}"
            status, said = pages.run_in_a_shell(call, folder, env, seconds=120)
            lines = [line for line in said.splitlines() if line.startswith(f"{part.page}:")]
            ended = status in (0, 1) and lines
            return lines if ended else [*lines, f"{part.page}: FAILED (status {status}): {said.strip()[-300:]}"]
        return [
            f"{part.page}:{line}: {shown(command)}: {run_command(command, folder, env, present)}"
            for line, command in part.commands
        ]

    failed = 0
    with ThreadPoolExecutor(options.at_once) as pool:
        for lines in pool.map(ran, *zip(*enumerate(parts(REPO, options.all)), strict=True)):
            for line in lines:
                failed += "FAILED" in line
                print(line, flush=True)
    print(f"{failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
