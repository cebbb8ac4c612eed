"""onnx's own cases, kept between runs: onnx computes them anew each time, which takes ten seconds."""

from __future__ import annotations

import inspect
import pickle
from functools import cache
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx

from rlx.onnx import suite
from tests.kept import kept


@cache
def onnx_cases() -> tuple[Any, ...]:
    """Every case of the installed onnx."""
    key = ("cases", onnx.__version__, np.__version__)
    made = kept("onnx").get(key)
    if made is not None:
        return tuple(pickle.loads(made))
    # onnx reads the source of each case for its own pages, which takes a sixth of the time.
    with patch.object(inspect, "getsource", lambda export: "@staticmethod\ndef export() -> None: ..."):
        cases = tuple(suite.cases())
    kept("onnx").put(key, pickle.dumps(cases))
    return cases
