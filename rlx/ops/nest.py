"""Nested containers of tensors: taken apart into a list of leaves and a skeleton, and put together again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.errors import GraphError
from rlx.ir import Tensor

MAX_DEPTH = 100  # containers in containers; Python's own limit is some hundred more, whoever calls


def flatten(value: Any, leaves: list[Any], numbers: bool = False, depth: int = 0) -> Any:
    """Appends the arrays of nested tuples, lists and dicts to `leaves`; returns a hashable skeleton of the rest.

    With `numbers`, Python's numbers are leaves too. Named tuples stay what they are. `depth` counts the containers
    around. Raises: GraphError for containers nested too deep.
    """
    if depth > MAX_DEPTH:
        kind = type(value).__name__
        raise GraphError(f"containers are nested more than {MAX_DEPTH} deep; does a {kind} hold itself?")
    if isinstance(value, np.ndarray | np.generic | Tensor) or (
        numbers and isinstance(value, bool | int | float)
    ):
        leaves.append(value)
        return ("leaf", len(leaves) - 1)
    if isinstance(value, tuple | list):
        named = isinstance(value, tuple) and hasattr(value, "_fields")
        made = type(value) if named else "tuple" if isinstance(value, tuple) else "list"
        return (made, tuple(flatten(v, leaves, numbers, depth + 1) for v in value))
    if isinstance(value, dict):
        return ("dict", tuple((k, flatten(v, leaves, numbers, depth + 1)) for k, v in _sorted(value)))
    sign = repr(value) if isinstance(value, float | complex) else ""  # 0.0 equals -0.0
    return ("static", type(value).__name__, value, sign)


def _sorted(value: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """The items in one order, whatever the order in which they came."""
    try:
        return sorted(value.items(), key=lambda item: item[0])
    except TypeError:  # keys that do not compare with each other
        return sorted(value.items(), key=lambda item: (type(item[0]).__name__, repr(item[0])))


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
    if kind == "list":
        return items
    return tuple(items) if kind == "tuple" else kind(*items)  # a named tuple's class
