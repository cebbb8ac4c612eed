"""layer_norm and rms_norm in blocks of rows, with pairwise sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from rlx.backends.cpu.context import Array, BindContext, Step
from rlx.backends.cpu.host.kernels import cpu_kernel
from rlx.backends.cpu.host.rows import by_rows, centre_rows, row_sums, row_vector, working
from rlx.ir import Node


@cpu_kernel("layer_norm", "rms_norm")
def bind_norm(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    x, out = ins[0], outs[0]
    d = x.shape[-1]
    norm, steps = row_norm(node, x, ins[1:], node.op.centres, ctx)

    def bind(given: list[Array], made: Array, thread: int) -> list[Step]:
        return norm(given[0], made, thread)

    return steps + by_rows([x.reshape(-1, d)], out.reshape(-1, d), ctx, 1.0, bind)


# (rows, result, thread) -> calls; the result may be the rows themselves
NormRows = Callable[[Array, Array, int], "list[Step]"]


def row_norm(
    node: Node, x: Array, weights: Sequence[Array], centre: bool, ctx: BindContext
) -> tuple[NormRows, list[Step]]:
    """A function that binds the norm of rows like x's, in the working dtype; and the calls that convert its weights."""
    dtype = working(x.dtype)
    steps: list[Step] = []
    vectors = []
    for v in weights:
        vector, convert = row_vector(v, dtype, ctx)
        vectors.append(vector)
        steps += convert
    gamma, beta = vectors[0], vectors[1] if len(vectors) == 2 else None
    eps, count, one = (np.asarray(v, dtype) for v in (node.attrs["eps"], x.shape[-1], 1))

    def norm(rows: Array, made: Array, thread: int) -> list[Step]:
        square = ctx.scratch(rows.shape, dtype, thread)
        column = ctx.scratch((len(rows), 1), dtype, thread)
        calls: list[Step] = []
        if centre:
            calls = centre_rows(rows, made, column, ctx, thread)
        source = made if centre else rows
        calls += [
            partial(np.multiply, source, source, square),
            row_sums(square, column),
            partial(np.divide, column, count, column),
            partial(np.add, column, eps, column),
            partial(np.sqrt, column, column),
            partial(np.divide, one, column, column),
            partial(np.multiply, source, column, made),
            partial(np.multiply, made, gamma, made),
        ]
        if beta is not None:
            calls.append(partial(np.add, made, beta, made))
        return calls

    return norm, steps
