"""The commands, each in a module of its own, which is imported when the command is asked for."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import cast

# In the order of the help, each with its module.
COMMANDS = {
    "devices": "devices", "doctor": "doctor", "embed": "embed", "rerank": "rerank", "classify": "classify",
    "generate": "generate", "chat": "generate", "serve": "serve", "transcribe": "transcribe", "finetune": "finetune",
    "run": "run", "inspect": "inspect", "convert": "convert", "check": "check", "bench": "bench", "tune": "tune",
    "perplexity": "perplexity", "selftest": "selftest", "pull": "pull",
    "view": "view",
}  # fmt: skip


def function_of(command: str) -> Callable[..., None]:
    """The function of a command."""
    return cast(Callable[..., None], getattr(import_module(f"rlx.cli.{COMMANDS[command]}"), command))


def own_version() -> str:
    """rlx's version; where it runs from its sources, without an installation, the folder that they are in."""
    from importlib.metadata import PackageNotFoundError, version  # its import takes longer than this module's

    try:
        return version("rlx")
    except PackageNotFoundError:
        return f"not installed, from {Path(__file__).parents[2]}"
