"""The convolutions at the end of a graph, whose channels are compared with each other, are summed in one order.

Classes come out of such a convolution, and what follows asks which is the largest: softmax, argmax, top-k. A BLAS sums
the rows of a product in orders that depend on where a row falls in its blocks (OpenBLAS's AVX2 kernels, by twelves), so
two equal filters may differ in the last bit, and with large numbers a softmax makes a one and a zero of that. Inside a
network the next product adds such differences up with everything else; there the fastest call is taken.
"""

from __future__ import annotations

from rlx.ir import Graph

# Calls of this many rows are the same call each, and OpenBLAS's kernels sum the rows of one alike: for x86 of every
# age this was tried; at 12 and 16 rows it is not so. They take up to twice the time of one call for all rows.
_ROWS = 8


def last_convolutions(graph: Graph) -> frozenset[int]:
    """The outputs (ids) of convolutions whose results no product takes up, directly or through other ops."""
    taken: set[int] = set()  # tensors that a product takes up
    last: set[int] = set()
    for node in reversed(graph.nodes):
        summing = node.op.contracts
        if summing and not any(t.id in taken for t in node.outputs) and node.op.name == "conv":
            last.add(node.output.id)
        if summing or any(t.id in taken for t in node.outputs):
            taken.update(t.id for t in node.inputs)
    return frozenset(last)


def rows_alike(n: int) -> list[slice]:
    """Calls for the n rows of a product that sum every row in the same order. The last may overlap the one before."""
    if n < _ROWS:
        return [slice(i, i + 1) for i in range(n)]
    starts = [*range(0, n - _ROWS + 1, _ROWS), *([n - _ROWS] if n % _ROWS else [])]
    return [slice(i, i + _ROWS) for i in starts]
