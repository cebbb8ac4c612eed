"""Low-rank corrections of a model's products as parameters: LoRA, with rsLoRA's scale and DoRA's magnitudes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import rlx.ops as ops
from rlx.dtypes import promote
from rlx.errors import DTypeError, GraphError, ShapeError, meant
from rlx.ir import Graph, Tensor
from rlx.packed import PackedArray
from rlx.records import Record
from rlx.runtime.trees import as_leaves

MOST_RANK = 1 << 12
_ROWS = 1 << 10  # rows of a packed weight that are floats at once


class Product(Record):
    """A product of a model whose weight is a module's matrix: all of its `outputs`, or some `rows` of them. `weight` is
    the matrix's name in the file; `plain` if the file's tensor is the weight itself."""

    module: str
    outputs: int
    inputs: int
    weight: str
    rows: slice | npt.NDArray[np.int64] | None = None
    plain: bool = True


# The products that "all-linear" leaves out: the output matrix, routers of experts, Mamba products whose weights
# transformers reads without calling their modules, so that PEFT refuses or ignores corrections of them, and those of
# indexers, whose choice has no gradient.
_NOT_ADAPTED = ("lm_head", ".mlp.gate", ".mixer.dt_proj", ".mixer.out_proj",
                ".indexer.wq_b", ".indexer.wk", ".indexer.weights_proj")  # fmt: skip


class Lora(Record, slots=False):
    """How a model is adapted (Hu et al., 2021): W x becomes W x + s · B (A x) for the products of `targets`.

    s = alpha / rank, with `rslora` alpha / √rank (Kalajdzievski, 2023). With `dora` each output has a magnitude, by
    which its row of W + s · B A is divided by its length and multiplied (Liu et al., 2024); the length counts as a
    constant of the gradient. `targets` are the last parts of modules' names, or "all-linear": all products but the
    output matrix, the routers of experts and the indexers of sparse attention.
    Raises: ShapeError for a rank and an alpha out of range, DTypeError for targets that are no texts and for flags that
    are no bools.
    """

    rank: int = 8
    alpha: float = 16.0
    rslora: bool = False
    dora: bool = False
    targets: str | Sequence[str] = "all-linear"

    def __post_init__(self) -> None:
        if type(self.rank) is not int or not 1 <= self.rank <= MOST_RANK:
            raise ShapeError(f"Lora: rank is {self.rank!r}; expected an integer from 1 to {MOST_RANK:,}")
        if isinstance(self.alpha, bool) or not isinstance(self.alpha, int | float) or not 0 < self.alpha < math.inf:
            raise ShapeError(f"Lora: alpha is {self.alpha!r}; expected a number above 0")
        for name in ("rslora", "dora"):
            if not isinstance(getattr(self, name), bool):
                raise DTypeError(f"Lora: {name} is {getattr(self, name)!r}; expected True or False")
        names = [self.targets] if isinstance(self.targets, str) else self.targets
        if not names or not all(isinstance(name, str) and name for name in names):
            raise DTypeError(f"Lora: targets are {self.targets!r:.80}; expected names of modules, or 'all-linear'")

    @property
    def scale(self) -> float:
        """The factor of corrections."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)

    def modules(self, products: Mapping[str, Product], where: str) -> dict[str, tuple[int, int]]:
        """The outputs and inputs of each adapted module. Raises: GraphError for a target that matches no module."""
        every = {p.module: (p.outputs, p.inputs) for p in products.values()}
        names = [self.targets] if isinstance(self.targets, str) else list(self.targets)
        if names == ["all-linear"]:
            left = {p.module for name, p in products.items() if name.endswith(_NOT_ADAPTED)}
            if not every.keys() - left:
                raise GraphError(
                    f"{where}: none of its products is by a matrix that an adapter corrects; train all weights"
                )
            return {m: shape for m, shape in every.items() if m not in left}
        result: dict[str, tuple[int, int]] = {}
        for name in names:
            own = {m: shape for m, shape in every.items() if f".{m}".endswith(f".{name}")}
            if not own:
                last = sorted({m.rpartition(".")[2] for m in every})
                raise GraphError(
                    f"{where}: no product is of a module {name!r}{meant(name, last)}; there are {', '.join(last)}"
                )
            result |= own
        return {m: shape for m, shape in every.items() if m in result}


class Corrections:
    """The corrections of one model: its products, and what DoRA needs of the weights, the squared length of each of
    their rows."""

    def __init__(self, lora: Lora, products: Mapping[str, Product], where: str) -> None:
        self.lora, self.products = lora, products
        self.modules = lora.modules(products, where)
        self.squares: dict[str, npt.NDArray[np.float64]] = {}

    def start(
        self, rows_of: Callable[[str], npt.NDArray[Any] | PackedArray], seed: int
    ) -> dict[str, dict[str, npt.NDArray[np.float32]]]:
        """Initial parameters, which leave the model's results unchanged: A is uniform within ± 1 / √inputs, as PEFT
        draws it, B is zero, and DoRA's magnitudes are the lengths of the weights' rows, which `rows_of` gives by
        product."""
        rng = np.random.default_rng(seed)
        result: dict[str, dict[str, npt.NDArray[np.float32]]] = {}
        for module, (outputs, inputs) in self.modules.items():
            a = rng.uniform(-1, 1, (self.lora.rank, inputs)) / math.sqrt(inputs)
            result[module] = {"lora_A": a.astype(np.float32), "lora_B": np.zeros((outputs, self.lora.rank), np.float32)}
        if self.lora.dora:
            self.measure(rows_of)
            for module, values in result.items():
                values["lora_magnitude_vector"] = np.sqrt(self._whole(module)).astype(np.float32)
        return result

    def measure(self, rows_of: Callable[[str], npt.NDArray[Any] | PackedArray]) -> None:
        """Reads the lengths of the rows of the adapted weights."""
        for name, product in self.products.items():
            if product.module in self.modules:
                self.squares[name] = _squares(rows_of(name))

    def _whole(self, module: str) -> npt.NDArray[np.float64]:
        result = np.zeros(self.modules[module][0])
        for name, product in self.products.items():
            if product.module == module:
                result[slice(None) if product.rows is None else product.rows] = self.squares[name]
        return result

    def of(self, name: str, adapter: Mapping[str, Mapping[str, Tensor]]) -> Correction | None:
        """The correction of a product; None where it has none."""
        product = self.products.get(name)
        if product is None or product.module not in self.modules:
            return None
        values, rows = adapter[product.module], slice(None) if product.rows is None else product.rows
        magnitude = values["lora_magnitude_vector"][rows] if self.lora.dora else None
        return Correction(values["lora_A"], values["lora_B"][rows], self.lora.scale, magnitude, self.squares.get(name))

    def tensors(
        self, g: Graph, adapter: Mapping[str, Mapping[str, Any]], where: str
    ) -> dict[str, dict[str, Tensor]]:
        """The adapter's values as tensors of a graph. Raises: GraphError for an adapter of other modules, ShapeError
        for one of other shapes."""
        if adapter.keys() != self.modules.keys():
            odd = sorted(adapter.keys() ^ self.modules.keys())
            which = "has no" if odd[0] in self.modules else "has"
            raise GraphError(f"{where}: the adapter {which} {odd[0]!r}; expected the modules that it was made for")
        for module, (outputs, inputs) in self.modules.items():
            rank = self.lora.rank
            wanted: dict[str, tuple[int, ...]] = {"lora_A": (rank, inputs), "lora_B": (outputs, rank)}
            wanted |= {"lora_magnitude_vector": (outputs,)} if self.lora.dora else {}
            came = {name: tuple(np.shape(value)) for name, value in adapter[module].items()}
            if came != wanted:
                raise ShapeError(f"{where}: the adapter of {module!r} has {came}; expected {wanted}")
        return {m: {name: as_leaves(g, [value])[0] for name, value in own.items()} for m, own in adapter.items()}


class Correction(Record):
    """What is added to one product: A, B and their scale; with DoRA the magnitudes of the outputs, and the squared
    lengths of the weight's rows."""

    a: Tensor
    b: Tensor
    scale: float
    magnitude: Tensor | None = None
    squares: npt.NDArray[np.float64] | None = None

    def of(self, x: Tensor, product: Callable[[Tensor], Tensor], bias: Tensor | None) -> Tensor:
        """The corrected product of x, and the bias; `product` multiplies by the weight."""
        a, b = (ops.cast(t, x.dtype) for t in (self.a * self.scale, self.b))  # A is the smallest tensor to scale
        result = product(x) + ops.linear(ops.linear(x, a), b)
        if self.magnitude is not None:
            length = self._length(product, x)
            result = result * ops.cast(ops.cast(self.magnitude, length.dtype) / length, result.dtype)
        return result if bias is None else result + bias

    def _length(self, product: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """The norm of each row of W + s · B A, from the squared norms of both terms and twice their dot product: W is
        used only in a product, so that a packed one stays packed. Sums have the widest dtype."""
        assert self.squares is not None
        wide = promote(x.dtype, self.a.dtype, self.b.dtype)
        a, b = (ops.cast(ops.stop_gradient(t), wide) for t in (self.a, self.b))
        both = ops.sum(ops.cast(ops.transpose(product(ops.cast(a, x.dtype))), wide) * b, axis=1)
        own = ops.sum(ops.matmul(b, ops.matmul(a, a, transpose_b=True)) * b, axis=1)
        whole = x.graph.constant(self.squares.astype(wide.np)) + both * (2 * self.scale) + own * self.scale**2
        return ops.sqrt(ops.maximum(whole, 0.0))


def _squares(weight: npt.NDArray[Any] | PackedArray) -> npt.NDArray[np.float64]:
    """The squared length of each row."""
    result = np.empty(weight.shape[0], np.float64)
    for at in range(0, len(result), _ROWS):
        part: Any
        if isinstance(weight, PackedArray):
            data = weight.data[at : at + _ROWS]
            part = PackedArray(weight.dtype, (len(data), *weight.shape[1:]), data).dequantize()
        else:
            part = weight[at : at + _ROWS]
        result[at : at + _ROWS] = (np.asarray(part, np.float64) ** 2).sum(1)
    return result
