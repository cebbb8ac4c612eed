"""Nested containers of tensors: taken apart into a list of leaves and a skeleton, and put together again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.ir import Tensor


def flatten(value: Any, leaves: list[Any], numbers: bool = False) -> Any:
    """Appends the arrays of nested tuples, lists and dicts to `leaves`; returns a hashable skeleton of the rest.

    With `numbers`, Python's numbers are leaves too.
    """
    if isinstance(value, np.ndarray | np.generic | Tensor) or (
        numbers and isinstance(value, bool | int | float)
    ):
        leaves.append(value)
        return ("leaf", len(leaves) - 1)
    if isinstance(value, tuple | list):
        return (type(value).__name__, tuple(flatten(v, leaves, numbers) for v in value))
    if isinstance(value, dict):
        return ("dict", tuple((k, flatten(v, leaves, numbers)) for k, v in sorted(value.items())))
    return ("static", type(value).__name__, value)


def unflatten(skeleton: Any, leaves: Sequence[Any]) -> Any:
    """The value that `flatten` took apart, with other leaves."""
    kind = skeleton[0]
    if kind == "leaf":
        return leaves[skeleton[1]]
    if kind == "static":
        return skeleton[2]
    if kind == "dict":
        return {k: unflatten(v, leaves) for k, v in skeleton[1]}
    items = [unflatten(v, leaves) for v in skeleton[1]]
    return tuple(items) if kind == "tuple" else items
