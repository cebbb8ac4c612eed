"""`rlx pull`: a model's folder from the Hugging Face Hub, at a revision that is pinned."""

from __future__ import annotations

import os
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, Any

import typer

from rlx.cli.outputs import check_name
from rlx.errors import RlxError

# What rlx reads of a folder: no pickles, no code.
FILES = ("*.safetensors", "*.json", "tokenizer.model", "*.tiktoken", "vocab.txt", "merges.txt", "*.jinja")
_MISSING = "pull needs the package `huggingface_hub`: pip install huggingface_hub"
# The names of the errors for an unreachable server in the HTTP clients that versions of huggingface_hub use.
_UNREACHED = ("ConnectError", "ConnectTimeout", "ReadTimeout")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)


def pull(
    name: Annotated[
        str, typer.Argument(help="The model's name there, such as sentence-transformers/all-MiniLM-L6-v2.")
    ],
    revision: Annotated[
        str | None, typer.Option(help="A commit, branch or tag. Default: the newest commit, which the command prints.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Into this folder. Default: the cache of huggingface_hub.")
    ] = None,
    file: Annotated[
        str | None, typer.Option("--file", help="One file of the model instead, such as model-Q4_K_M.gguf.")
    ] = None,
) -> None:
    """Download a model's folder from the Hugging Face Hub: its safetensors, JSON and tokenizer files alone.

    The folder's path is printed last. The same command with --revision and the commit brings the same files again.
    HF_ENDPOINT names another server, HF_TOKEN who asks.
    """
    if not _NAME.fullmatch(name):
        raise RlxError(f"pull: {name!r:.80} is no model's name; expected owner/name, as the Hub's page shows it")
    try:
        import huggingface_hub as hub
    except ImportError as error:
        raise RlxError(_MISSING) from error
    check_name("--out", out)
    api = hub.HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
    try:
        commit, files = _listed(api, name, revision)
        wanted = _wanted(name, files, file)
        print(f"{name} at {commit}: {len(wanted)} files", flush=True)
        paths = [Path(api.hf_hub_download(name, one, revision=commit, local_dir=out)) for one in wanted]
        made = paths[0] if file is not None else out or paths[0].parents[wanted[0].count("/")]
    except RlxError:
        raise
    except Exception as error:  # the package's errors, and those of its client of HTTP, have no base of their own
        hint = ""
        if isinstance(error, ConnectionError) or type(error).__name__ in _UNREACHED:
            where = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
            hint = f"; {where} is not reached from here: a folder copied from another machine does as well"
        raise RlxError(f"pull: {name}: {type(error).__name__}: {' '.join(str(error).split())[:300]}{hint}") from error
    print(made)


def _listed(api: Any, name: str, revision: str | None) -> tuple[str, list[str]]:
    """The commit that a revision is, and the files in it."""
    info = api.model_info(name, revision=revision)
    return str(info.sha), [entry.rfilename for entry in info.siblings]


def _wanted(name: str, files: list[str], file: str | None) -> list[str]:
    """The files to download. Raises: RlxError where there are no weights that rlx reads."""
    ggufs = [f for f in files if f.endswith(".gguf")]
    if file is not None:
        if file not in files or not (file.endswith(".gguf") or any(fnmatch(file, pattern) for pattern in FILES)):
            held = f"; it has {', '.join(ggufs[:8])}" if ggufs else ""
            raise RlxError(f"pull: {name} has no {file} that rlx reads{held}")
        return [file]
    wanted = [f for f in files if any(fnmatch(f.rpartition("/")[2], pattern) for pattern in FILES)]
    wanted = [f for f in wanted if not f.startswith(("onnx/", "openvino/", "original/"))]
    if not any(f.endswith(".safetensors") for f in wanted):
        others = sorted(f for f in files if f.endswith((".bin", ".pt", ".pth", ".h5", ".msgpack")))
        held = f"GGUF files; --file takes one: {', '.join(ggufs[:8])}" if ggufs else (
            f"{others[0]}, which rlx does not read" if others else "no weights")  # fmt: skip
        raise RlxError(f"pull: {name} has no safetensors, but {held}")
    return wanted
