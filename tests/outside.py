"""Libraries from outside that judge rlx in tests: torch, ONNX Runtime, transformers, gguf; `make judges` adds them."""

from __future__ import annotations

from typing import Any

import pytest


def outside(name: str) -> Any:
    """The module. Where it is not installed the test skips, which fails where every judge is required (conftest.py);
    such a test is marked `judged`."""
    return pytest.importorskip(name, reason=f"judged by {name}, which `make judges` installs")
