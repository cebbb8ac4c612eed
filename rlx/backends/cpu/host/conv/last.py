"""Convolutions at the end of a graph sum all channels in the same order, since their channels are compared.

Their results are class scores, of which softmax, argmax or top-k finds the largest. A BLAS sums the rows of a GEMM in
an order that depends on where a row falls in its blocks (OpenBLAS's AVX2 kernels take twelve rows). So the results of
two equal filters may differ in the last bit, and with large numbers a softmax turns that into a one and a zero. Inside
a network such differences are lost in the sums of the next layer, so there the fastest call is taken.
"""

from __future__ import annotations

from rlx.ir import Graph

# Every call has so many rows, and within such a call OpenBLAS's kernels sum all rows in the same order: tried with
# those for x86 of every age. With 12 and 16 rows they do not. The calls take up to twice the time of one for all rows.
_ROWS = 8


def last_convolutions(graph: Graph) -> frozenset[int]:
    """Ids of the outputs of convolutions that no contraction reads, neither directly nor through other ops."""
    taken: set[int] = set()  # tensors that a contraction reads
    last: set[int] = set()
    for node in reversed(graph.nodes):
        summing = node.op.contracts
        if summing and not any(t.id in taken for t in node.outputs) and node.op.name == "conv":
            last.add(node.output.id)
        if summing or any(t.id in taken for t in node.outputs):
            taken.update(t.id for t in node.inputs)
    return frozenset(last)


def rows_alike(n: int) -> list[slice]:
    """Blocks of a GEMM's n rows, one call each, for which all rows are summed in the same order.

    The last block may overlap the one before.
    """
    if n < _ROWS:
        return [slice(i, i + 1) for i in range(n)]
    starts = [*range(0, n - _ROWS + 1, _ROWS), *([n - _ROWS] if n % _ROWS else [])]
    return [slice(i, i + _ROWS) for i in starts]
