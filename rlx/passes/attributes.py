"""Attributes as hashable keys, by which nodes are compared and results computed for a node are cached."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from typing import Any

import numpy as np

from rlx.dtypes import DType
from rlx.ir import Attrs, Expr, Graph


def attrs_key(attrs: Attrs) -> Hashable:
    """Attributes as a key: equal keys mean equal bits (0.0 and -0.0 differ, and so do 1, 1.0 and True)."""
    return tuple((name, _value_key(attrs[name])) for name in sorted(attrs))


def _value_key(value: Any) -> Hashable:
    if isinstance(value, np.ndarray):
        raw = np.ascontiguousarray(value)
        digest = hashlib.blake2b(raw.reshape(-1).view(np.uint8).data, digest_size=16).digest() if raw.size else b""
        return "array", value.dtype, value.shape, digest
    if isinstance(value, tuple | list):
        return tuple(_value_key(v) for v in value)
    if value is None or isinstance(value, DType | Expr | Graph):  # a body equals only itself
        return value
    return type(value), repr(value)
