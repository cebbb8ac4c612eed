"""scatter and scatter_elements on the CPU, by NumPy's assignment and `ufunc.at`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from rlx.backends.cpu.context import Array, BindContext, Step
from rlx.backends.cpu.host.kernels import cpu_kernel
from rlx.backends.cpu.host.rows import working
from rlx.ir import Node
from rlx.ops.numeric import join_at

_UFUNCS: dict[str, Any] = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


@cpu_kernel("scatter", "scatter_elements")
def bind_scatter(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    indices, updates = ins[:2]
    out, x = outs[0], ins[2] if len(ins) == 3 else None
    axis, n, reduction = node.attrs["axis"], node.attrs["length"], node.attrs["reduction"]
    dtype = out.dtype if reduction == "none" else working(out.dtype) if out.dtype.kind in "fV" else out.dtype
    result = out if out.dtype == dtype else ctx.scratch(out.shape, dtype)
    steps: list[Step] = [partial(np.copyto, result, np.zeros((), dtype) if x is None else x)]
    if x is not None and result is out and x.__array_interface__["data"] == out.__array_interface__["data"]:
        steps = []
    if updates.size:
        steps.append(_joined(node, indices, updates, result, axis, n, reduction))
    if result is not out:
        steps.append(partial(np.copyto, out, result, "unsafe"))
    return steps


def _joined(
    node: Node, indices: Array, updates: Array, result: Array, axis: int, n: int, reduction: str
) -> Step:
    """Applies the updates in the order of the indices: NumPy's `at` adds each, and an assignment keeps the last."""
    if node.op.name == "scatter":
        head = int(np.prod(updates.shape[:axis], dtype=np.int64))
        source = updates.reshape(head, indices.size, -1).transpose(1, 0, 2)
        target = result.reshape(head, n, -1).transpose(1, 0, 2)
        flat = indices.reshape(-1)
        others: list[Array] = []
    else:
        source, target, flat = updates, result, indices
        others = list(np.indices(indices.shape, np.intp, sparse=True))

    def run() -> None:
        wanted = flat.astype(np.int64)
        wanted += np.where(wanted < 0, n, 0)
        valid = (wanted >= 0) & (wanted < n)
        whole = bool(valid.all())
        key: Any = wanted if whole else wanted[valid]
        if others:
            places = [key if i == axis else np.broadcast_to(o, flat.shape) for i, o in enumerate(others)]
            key = tuple(p if whole or i == axis else p[valid] for i, p in enumerate(places))
        values = source if whole else source[valid]
        if reduction == "none":
            target[key] = values
        else:
            join_at(_UFUNCS[reduction], target, key, values.astype(target.dtype, copy=False))

    return run
