"""Pads logits with classes of probability 0, so that rows begin at multiples of 16 bytes, as matrix units and wide
loads need; with a vocabulary such as 50,257 they do not."""

from __future__ import annotations

from collections.abc import Collection, Container, Sequence
from typing import NamedTuple

import numpy as np

from rlx.ir import Graph, Node, Rewriter, Tensor, get_op
from rlx.passes.fusion_groups import source
from rlx.passes.rewriting import SupportOf, native_everywhere, remove_dead

_UNIT = 64  # the number of classes becomes a multiple of it
_LEAST_CLASSES, _LEAST_ROWS = 1024, 64  # below, the copy of the weights would cost more than is gained


def pad_classes(graph: Graph, support: SupportOf = native_everywhere) -> Graph:
    """Pads the classes of 16-bit logits computed by a product, if they are read only by a cross entropy over classes,
    and its gradient only by sums over rows and products.

    Weights are padded with zeros and the bias with -inf, so that the other classes' probabilities and gradients are
    exactly 0. Labels beyond the classes still count as the last of them."""
    if not any(node.op is get_op("cross_entropy") for node in graph.nodes):
        return graph
    users: dict[int, list[Node]] = {t.id: [] for t in graph.tensors()}
    for node in graph.nodes:
        for t in node.inputs:
            users[t.id].append(node)
    results = {t.id for t in graph.results()}
    chosen: dict[int, int] = {}  # id of each padded tensor -> its classes
    products: dict[int, tuple[Node, Tensor | None]] = {}  # id of the logits -> their product, and a bias added to it
    for node in graph.nodes:
        if _makes_logits(node):
            logits, bias = _biased(node, users)
            reached = None if node.output.id in results else _reached(logits, users, results, chosen)
            if reached is not None:
                chosen |= dict.fromkeys((node.output.id, *reached), logits.shape[-1])
                products[logits.id] = node, bias
    if not chosen:
        return graph
    new = _Padding(graph, chosen, products)
    for node in graph.nodes:
        new.take(node)
    padded = new.rewriter.finish()
    return remove_dead(padded, graph) if all(support(n) == "native" for n in new.added) else graph


def _makes_logits(node: Node) -> bool:
    if not node.op.contracts or node.op is not get_op("matmul") or node.attrs["activation"] is not None:
        return False
    y, weight = node.output, node.inputs[1]
    classes = y.shape[-1]
    plain = y.dtype.is_half and all(t.dtype == y.dtype for t in node.inputs) and weight.ndim == 2
    return plain and classes % 8 > 0 and classes >= _LEAST_CLASSES and y.size // classes >= _LEAST_ROWS


def _biased(product: Node, users: dict[int, list[Node]]) -> tuple[Tensor, Tensor | None]:
    """The sum of a product and a bias vector, if it is the product's only reader, and that vector; else the product."""
    logits = product.output
    readers = users[logits.id]
    if len(product.inputs) == 2 and len(readers) == 1 and readers[0].op.adds and readers[0].output.type == logits.type:
        bias = next((source(t) for t in readers[0].inputs if t is not logits), logits)
        if bias.size == logits.shape[-1] == bias.shape[-1] and bias.dtype == logits.dtype:
            return readers[0].output, bias
    return logits, product.inputs[2] if len(product.inputs) > 2 else None


def _reached(
    logits: Tensor, users: dict[int, list[Node]], results: set[int], chosen: Container[int]
) -> Collection[int] | None:
    """The ids of the logits, of their gradients, and of reshapes of these. None if a node that cannot read padded
    tensors reads one of them, if no cross entropy does, or if a product has two of them (or of the chosen tensors) as
    inputs."""
    reached, waiting, loses = {logits.id: False}, [logits], False  # whether each is a gradient
    while waiting:
        t = waiting.pop()
        if t.id in results:
            return None
        for user in users[t.id]:
            more = _of_user(user, t, reached[t.id])
            if more is None:
                return None
            loses = loses or user.op is get_op("cross_entropy")
            waiting += [x for x in more if x.id not in reached]
            reached |= {x.id: reached[t.id] or not user.op.reshapes for x in more}
    for product in (user for i in reached for user in users[i] if user.op is get_op("matmul")):
        if sum(x.id in reached or x.id in chosen for x in product.inputs) > 1:
            return None
    return reached if loses else None


def _of_user(user: Node, t: Tensor, slope: bool) -> Sequence[Tensor] | None:
    """The outputs of a reading node that are padded too; None if the node cannot read a padded tensor. `slope`: t is a
    gradient, padded with zeros. Logits are padded with -inf, and no product can sum over those."""
    classes = t.shape[-1]
    if user.op.reshapes:
        return user.outputs if user.output.shape[-1:] == (classes,) else None
    if user.op is get_op("cross_entropy") or user.op is get_op("cross_entropy_grad"):
        more = user.outputs if user.op is get_op("cross_entropy_grad") else ()
        return None if user.attrs["ignore_index"] == classes - 1 else more
    if user.op is get_op("sum"):
        return () if t.ndim - 1 not in user.attrs["axes"] else None
    if user.op is get_op("matmul"):
        a, b = user.inputs[:2]
        plain = len(user.inputs) == 2 and user.attrs["activation"] is None and a is not b
        over = _sides(user)[0 if a is t else 1].summed == -1
        fits = (b if a is t else a).ndim == 2 and (t.ndim == 2 or a is t)
        return () if plain and fits and (slope or not over) else None
    return None


class _Side(NamedTuple):
    """An operand of a product: its number, whether it is transposed, and its axis over which the product sums."""

    number: int
    turned: bool

    @property
    def summed(self) -> int:
        return -1 if self.turned == (self.number == 1) else -2


def _sides(product: Node) -> list[_Side]:
    return [_Side(i, product.attrs[name]) for i, name in enumerate(("transpose_a", "transpose_b"))]


class _Padding:
    """Makes the graph with the chosen tensors padded; `added` are the products and losses that differ."""

    def __init__(
        self, graph: Graph, chosen: dict[int, int], products: dict[int, tuple[Node, Tensor | None]]
    ) -> None:
        self.rewriter, self.chosen, self.products = Rewriter(graph), chosen, products
        self.made: dict[int, Tensor] = {}  # the padded tensors by the ids of those that they replace
        self.added: list[Node] = []
        self._weights: dict[tuple[int, int], Tensor] = {}

    def take(self, node: Node) -> None:
        new = self.rewriter
        if not any(t.id in self.chosen for t in (*node.inputs, *node.outputs)):
            new.keep(node)
        elif node.output.id in self.products:
            self._logits(*self.products[node.output.id], node.output)
        elif node.op.reshapes:
            x = self.made[node.inputs[0].id]
            shape = (*node.output.shape[:-1], x.shape[-1])
            self.made[node.output.id] = self._add(node, "reshape", (x,), {"shape": shape})
        elif node.op is get_op("matmul"):
            if node.output.id not in self.chosen:  # else a bias follows
                self._product(node)
        elif node.op is get_op("sum"):
            whole = self._add(node, "sum", (self.made[node.inputs[0].id],), node.attrs)
            new.put(node.outputs, (self._first(whole, whole.ndim - 1, node.output.shape[-1]),))
        else:
            *before, labels = node.inputs
            logits = [self.made[t.id] if t.id in self.made else new.inputs((t,))[0] for t in before]
            inputs = (*logits, self._labels(labels, node.attrs["ignore_index"], before[-1].shape[-1]))
            result = self._add(node, node.op.name, inputs, node.attrs)
            if node.output.id in self.chosen:
                self.made[node.output.id] = result
            else:
                new.put(node.outputs, (result,))

    def _logits(self, product: Node, bias: Tensor | None, logits: Tensor) -> None:
        classes = logits.shape[-1]
        a, b = self.rewriter.inputs(product.inputs[:2])
        b = self._padded(b, -3 - _sides(product)[1].summed, classes)
        inputs = (a, b, self._ends(bias, classes, b))
        self.made[logits.id] = self._add(product, "matmul", inputs, product.attrs)

    def _product(self, node: Node) -> None:
        """A product with the gradient of logits."""
        new, attrs, sides = self.rewriter, node.attrs, _sides(node)
        at = next(i for i, t in enumerate(node.inputs) if t.id in self.chosen)
        mine, other = sides[at], sides[1 - at]
        x, (y,) = self.made[node.inputs[at].id], new.inputs((node.inputs[1 - at],))
        classes = self.chosen[node.inputs[at].id]
        if mine.summed == -1:  # the sum is over classes
            y = self._padded(y, other.summed, classes)
            new.put(node.outputs, (self._add(node, "matmul", (x, y) if at == 0 else (y, x), attrs),))
            return
        # The classes are an axis of the result. They are made the first axis, as a matrix's first rows need no copy.
        turned = {**attrs, "transpose_a": True, "transpose_b": other.summed == -1}
        whole = self._add(node, "matmul", (x, y), turned)
        rows = self._first(whole, whole.ndim - 2, classes)
        if at == 1:
            rows = new.add("transpose", (rows,), {"perm": (1, 0)})[0]
        new.put(node.outputs, (rows,))

    def _padded(self, x: Tensor, axis: int, classes: int) -> Tensor:
        """x with zeros appended along an axis, for the padding classes."""
        axis %= x.ndim
        known = self._weights.get((x.id, axis))
        if known is None:
            shape = (*x.shape[:axis], -classes % _UNIT, *x.shape[axis + 1 :])
            zeros = self.rewriter.add("expand", (self._number(0.0, x),), {"shape": shape})[0]
            known = self._weights[x.id, axis] = self.rewriter.add("concat", (x, zeros), {"axis": axis})[0]
        return known

    def _ends(self, bias: Tensor | None, classes: int, like: Tensor) -> Tensor:
        """The bias, or zeros, followed by -inf for the padding classes."""
        ends = np.zeros(classes + -classes % _UNIT, like.dtype.np)
        ends[classes:] = -np.inf
        if bias is None:
            return self.rewriter.add("constant", (), {"value": ends})[0]
        never = self.rewriter.add("constant", (), {"value": ends[classes:]})[0]
        flat = self.rewriter.add("reshape", self.rewriter.inputs((bias,)), {"shape": (classes,)})[0]
        return self.rewriter.add("concat", (flat, never), {"axis": 0})[0]

    def _labels(self, labels: Tensor, ignored: int, classes: int) -> Tensor:
        """The labels, with those beyond the last class replaced by it."""
        (labels,) = self.rewriter.inputs((labels,))
        number, nearest = self._number(ignored, labels), self._number(classes - 1, labels)
        held = self.rewriter.add("minimum", (labels, nearest), {})[0]
        away = self.rewriter.add("equal", (labels, number), {})[0]
        return self.rewriter.add("where", (away, labels, held), {})[0]

    def _first(self, x: Tensor, axis: int, count: int) -> Tensor:
        stops = tuple(count if i == axis else n for i, n in enumerate(x.shape))
        attrs = {"starts": (0,) * x.ndim, "stops": stops, "steps": (1,) * x.ndim}
        return self.rewriter.add("slice", (x,), attrs)[0]

    def _number(self, value: float, like: Tensor) -> Tensor:
        return self.rewriter.add("constant", (), {"value": np.asarray(value, like.dtype.np)})[0]

    def _add(self, node: Node, op: str, inputs: Sequence[Tensor], attrs: object) -> Tensor:
        result = self.rewriter.add(op, inputs, dict(attrs), node.label)[0]  # type: ignore[call-overload]
        self.added.append(result.node)
        return result
