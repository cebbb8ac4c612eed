"""Libraries from outside that judge rlx in tests: torch, ONNX Runtime, transformers, gguf; `make judges` adds them."""

from __future__ import annotations

from typing import Any

import pytest

running: pytest.Item | None = None  # the test that conftest.py sets up


def outside(name: str) -> Any:
    """The module. Where it is not installed the test skips, which fails where every judge is required (conftest.py).
    A test that asks without the mark `judged` fails also where the module is installed."""
    if running is not None and "judged" not in running.keywords:
        pytest.fail(f"{running.nodeid} asks for {name} and must be marked `judged`")
    return pytest.importorskip(name, reason=f"judged by {name}, which `make judges` installs")
