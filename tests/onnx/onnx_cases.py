"""onnx's own cases, kept between runs: onnx computes them anew each time, which takes ten seconds."""

from __future__ import annotations

import pickle
from functools import cache
from typing import Any

import numpy as np
import onnx

from rlx.formats.onnx import suite
from tests.kept import kept


@cache
def onnx_cases() -> tuple[Any, ...]:
    """Every case of the installed onnx."""
    key = ("cases", onnx.__version__, np.__version__)
    made = kept("onnx").get(key)
    if made is not None:
        return tuple(pickle.loads(made))
    cases = tuple(suite.cases())
    kept("onnx").put(key, pickle.dumps(cases))
    return cases
