"""cumsum and cumprod. Floats are accumulated in f64; `extended` handles partial results beyond its range."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from rlx.backends.cpu.context import Array, BindContext, Step
from rlx.backends.cpu.host.kernels import cpu_kernel
from rlx.backends.cpu.host.reduce import UFUNCS
from rlx.ir import Node
from rlx.ops import extended


@cpu_kernel("cumsum", "cumprod")
def bind_scan(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    ufunc = UFUNCS[node.op.joins]
    axis, x, out = node.attrs["axis"], ins[0], outs[0]
    dtype = np.dtype(np.float64) if out.dtype.kind in "fV" else out.dtype
    steps: list[Step] = []
    if x.dtype != dtype:
        wide = ctx.scratch(x.shape, dtype)
        steps.append(partial(np.copyto, wide, x, "unsafe"))
        x = wide
    made = out if out.dtype == dtype else ctx.scratch(out.shape, dtype)
    source, target = (np.moveaxis(a, axis, 0) for a in (x, made))
    if node.attrs["reverse"]:
        source, target = source[::-1], target[::-1]
    if node.attrs["exclusive"]:
        steps.append(partial(np.copyto, target[:1], np.asarray(ufunc.identity, dtype)))
        source, target = source[:-1], target[1:]
    if target.size and dtype.kind == "f":
        steps.append(partial(_running, _RUNNING[node.op.joins, out.dtype == dtype], source, target))
    elif target.size:
        steps.append(partial(ufunc.accumulate, source, 0, None, target))
    if made is not out:
        steps.append(partial(np.copyto, out, made, "unsafe"))
    return steps


# Keyed by the primitive that combines two elements, and by whether the result is f64: an accumulator of f64 is then no
# wider than it.
_RUNNING: dict[tuple[str | None, bool], Callable[[Array, int], Array]] = {
    ("add", False): np.add.accumulate, ("add", True): extended.running_total,
    ("mul", False): extended.narrow_running_product, ("mul", True): extended.running_product,
}  # fmt: skip


def _running(accumulate: Callable[[Array, int], Array], source: Array, target: Array) -> None:
    np.copyto(target, accumulate(source, 0))
