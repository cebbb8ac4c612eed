"""The commands, each in a module of its own, which is imported when the command is asked for."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
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
