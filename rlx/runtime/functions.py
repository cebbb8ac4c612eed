"""Function: a loaded model as a function of its weights, inside of traced functions and outside."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from rlx.dtypes import DType, as_dtype
from rlx.errors import DTypeError
from rlx.ir import Graph, Tensor
from rlx.runtime.jit import jit, tracing
from rlx.runtime.trees import as_leaves, taken


class Function(ABC):
    """A model as a function. In a traced function (of `jit`, `grad`, `checkpoint`) a call adds nodes to its program; on
    arrays it compiles a program for their shapes, on the best device, as `jit` does."""

    def __init__(self, name: str) -> None:
        self.name = name

        def model(*args: Any, **kwargs: Any) -> Any:
            return self.apply(*args, **kwargs)

        self._jitted = jit(model)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if tracing() or any(isinstance(leaf, Tensor) for leaf in taken((args, kwargs))[1]):
            return self.apply(*args, **kwargs)
        return self._jitted(*args, **kwargs)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @abstractmethod
    def apply(self, *args: Any, **kwargs: Any) -> Any:
        """The call within a traced function."""


def tensor_of(g: Graph, value: Any) -> Tensor:
    """A value as a tensor of the graph."""
    return as_leaves(g, [value])[0]


def is_integer(value: Any) -> bool:
    """Whether an array or tensor holds integers."""
    dtype = getattr(value, "dtype", None)
    return (as_dtype(dtype) if dtype is not None else as_dtype(np.asarray(value).dtype)).is_int


def type_of(value: Any) -> str:
    """The dtype and shape of an array or tensor, for messages."""
    return f"{getattr(value, 'dtype', type(value).__name__)}{list(np.shape(value))}"


def float_dtype(what: str, dtype: Any) -> DType:
    """The dtype. Raises: DTypeError unless it is f32, f64, f16 or bf16."""
    kind = as_dtype(dtype)
    if not kind.is_float:
        raise DTypeError(f"trainable: {what} is {dtype}; expected f32, f64, f16 or bf16")
    return kind
