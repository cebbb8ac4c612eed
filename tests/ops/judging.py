"""Code that judges share. A judge takes a case's inputs (floats as float64, unless the op moves or compares bits) and
its attributes, and returns the outputs, one or a list.

torch is imported by the judges that need it; where it is missing they skip.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.dtypes import DType, as_dtype, promote
from rlx.ops.numeric import widened
from tests.outside import outside

Array = npt.NDArray[Any]
Judge = Callable[..., Any]


def common(*arrays: Array) -> list[Array]:
    """The arrays in the dtype in which an op of these inputs computes."""
    dtype = promote(*(as_dtype(a.dtype) for a in arrays)).np
    return [a.astype(dtype) for a in arrays]


def with_torch(run: Callable[..., Any]) -> Judge:
    """A judge that calls `run` with torch, and with the arrays as torch's tensors."""

    def judge(*arrays: Array, **attrs: Any) -> Any:
        torch = outside("torch")
        with torch.no_grad():
            return run(torch, *(torch.from_numpy(np.array(widened(a))) for a in arrays), **attrs).numpy()

    return judge


def named(name: str) -> Judge:
    """The judge whose full name an op's record gives: a function of NumPy, SciPy or torch that takes the op's inputs in
    their order, and its attributes by their names."""
    module, _, function = name.rpartition(".")
    if module.startswith("torch"):
        return with_torch(lambda torch, *xs, **attrs: getattr(outside(module), function)(*xs, **attrs))
    fn = getattr(outside(module), function)
    return lambda *arrays, **attrs: fn(*(widened(a) for a in common(*arrays)), **attrs)


def back(forward: Callable[..., Any], d: Array, *inputs: Array) -> list[Array]:
    """torch.autograd's gradients of the float inputs."""
    torch = outside("torch")
    leaves = [torch.tensor(a, requires_grad=a.dtype.kind == "f") for a in inputs]
    made = forward(torch, *leaves)
    wanted = [t for t in leaves if t.requires_grad]
    found = torch.autograd.grad(made, wanted, torch.from_numpy(np.array(d)), allow_unused=True)
    return [np.zeros(t.shape) if g is None else g.numpy() for t, g in zip(wanted, found, strict=True)]


def one_by_one(fn: Callable[..., Any], dtype: Any) -> Callable[..., Array]:
    """Applies `fn` to Python numbers, element by element."""

    def run(*arrays: Array) -> Array:
        wide = np.broadcast_arrays(*arrays)
        values = [fn(*items) for items in zip(*(w.ravel().tolist() for w in wide), strict=True)]
        return np.array(values, dtype).reshape(wide[0].shape)

    return run


def wrapped(value: int, dtype: DType) -> int:
    """An integer wrapped to the range of the dtype."""
    bits = 8 * dtype.itemsize
    value %= 1 << bits
    return value - (1 << bits) if dtype.kind == "i" and value >> (bits - 1) else value


def lanes(x: Array, axis: int) -> Iterator[tuple[tuple[Any, ...], list[Any]]]:
    """Each line along an axis, with the key that selects it."""
    others = [range(1) if i == axis else range(n) for i, n in enumerate(x.shape)]
    for at in np.ndindex(*(len(o) for o in others)):
        key = (*at[:axis], slice(None), *at[axis + 1 :])
        line = x[key]
        yield key, (line.astype(np.float64) if as_dtype(x.dtype).is_float else line).tolist()


def place(index: int, n: int) -> int | None:
    """An index counted from the front, where a negative one counts from the end; None where it is out of range."""
    index = index + n if index < 0 else index
    return index if 0 <= index < n else None


def activated(torch: Any, name: str | None, x: Any) -> Any:
    F = torch.nn.functional
    if name is None:
        return x
    if name.startswith("gelu"):
        return F.gelu(x, approximate="tanh" if name == "gelu_tanh" else "none")
    return getattr(torch if name in ("tanh", "sigmoid") else F, name)(x)


def padded(torch: Any, x: Any, pads: Any, value: float = 0.0) -> Any:
    """x padded by any (begin, end) for each axis, which torch's own functions do not accept."""
    width = [v for pair in reversed(pads) for v in pair]
    return torch.nn.functional.pad(x, width, value=value) if any(width) else x


def by_rank(torch: Any, name: str, x: Any) -> Any:
    """torch's function `name` for images of x's rank, such as conv2d."""
    return getattr(torch.nn.functional, f"{name}{x.dim() - 2}d")


def near_zero(x: Any) -> Any:
    """Each row less its first element, which changes no norm that subtracts the mean. Without this, torch loses the
    digits of rows with large means to rounding, even in float64. Gradients are those of x."""
    return x - x[..., :1].detach()
