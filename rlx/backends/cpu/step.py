"""What a binder of the engine returns, EngineStep; what it is given, EngineContext; and the registry of binders.

    @engine("relu")
    def bind_relu(node, ins, outs, ctx): -> list[EngineStep] | None

None, or an exception of type `Declined` with the reason, leaves the node to NumPy.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Literal

from rlx.backends.cpu.compile import KernelSpec
from rlx.backends.cpu.context import Array
from rlx.backends.cpu.ir import Words
from rlx.backends.cpu.machine import Machine
from rlx.backends.cpu.weights import PackedWeights
from rlx.driver.device import Bytes
from rlx.driver.device import address as address
from rlx.ir import Expr, Node, Op, Tensor
from rlx.records import Record, field


class EngineStep(Record, frozen=False):
    """One kernel over its work items.

    `words` are its arguments, as `spec.args` packs them. `items` are independent of each other, and a thread takes at
    least `grain` of them at once; `cost_ns` is about how long one takes, by which a step decides whether more than one
    thread is worth waking. `prepare` is called before the first run, and again when a weight has changed. `keep` holds
    what the addresses point to, and what `prepare` reads: a packed weight that no step keeps may exist in its packed
    form alone. `name` is what the report says (the spec's class). """

    spec: KernelSpec
    words: Words
    items: int
    grain: int = 1
    keep: tuple[object, ...] = ()
    prepare: Callable[[], object] | None = None
    name: str = ""
    cost_ns: float = 1000.0


class Declined(Exception):
    """Raised by a binder that leaves a node to NumPy; its text is the reason."""


class Epilogue(Record):
    """An elementwise node that follows a product and is its only reader, to be the product's epilogue: its tree, in
    which argument 0 is the product, the arrays of the other arguments, and the array of its own result."""

    tree: Expr
    operands: tuple[Array, ...]
    out: Array


class EngineContext(Record, frozen=False):
    """The machine, the number of threads, and memory that lives as long as the program.

    `is_fixed` says whether a tensor is a weight or a constant, which may change only between runs, after which
    `prepare` is called again. `batch_invariant`: all rows of the node are to be summed in one order, whatever their
    number. `epilogue`: what a binder registered with `takes_epilogue` must compute too, or decline. `weights` packs the
    weights that products read in another order."""

    machine: Machine
    threads: int
    acquire: Callable[[int], Bytes]
    is_fixed: Callable[[Tensor], bool]
    weights: PackedWeights
    batch_invariant: bool = False
    epilogue: Epilogue | None = None
    _free: list[Bytes] = field(default_factory=list)
    _lent: list[Bytes] = field(default_factory=list)

    def borrow(self, nbytes: int) -> Bytes:
        """Scratch memory for the steps of one node within a run; the steps of other nodes reuse it."""
        fitting = [b for b in self._free if len(b) >= nbytes]
        block = min(fitting, key=len) if fitting else self.acquire(nbytes)
        if fitting:
            self._free = [b for b in self._free if b is not block]
        self._lent.append(block)
        return block[:nbytes]

    def next_node(self) -> None:
        """Takes back the memory that was borrowed."""
        self._free += self._lent
        self._lent = []


# The modules of this folder that have binders, each with its ops: a program imports the modules of its own ops. Where
# several modules name an op, the first is asked first. "*" stands for all elementwise ops without a binder of their
# own, "rows" for ops with a row program, asked after their own binders.
MODULES = {
    "attention.bind": "attention packed_attention paged_attention",
    "attention.grad": "attention_grad",
    "attention.step": "attention_step",
    "conv.bind": "conv",
    "conv.grad_weight": "conv_grad_weight",
    "conv.integer": "integer_conv",
    "conv.transposed": "conv_transpose conv_grad_input",
    "cumulative": "cumsum cumprod",
    "elementwise": "*",
    "fft": "fft rfft irfft",
    "finite": "all_finite",
    "gemm.matmul": "matmul",
    "grid_sample": "grid_sample",
    "group_norm_grad": "group_norm_grad",
    "grouped.bind": "grouped_packed_matmul grouped_packed_matmul_int8 grouped_matmul",
    "grouped.grad": "grouped_matmul_grad",
    "index": "gather gather_elements one_hot dynamic_slice dynamic_update_slice",
    "integer_matmul": "integer_matmul",
    "movement": "reshape transpose expand slice concat pad",
    "norm": "group_norm",
    "order": "argmax argmin",
    "packed.bind": "packed_matmul",
    "packed.bytes": "packed_matmul_int8",
    "packed.dequantize": "dequantize",
    "pool_grad": "max_pool_grad",
    "pooling": "max_pool avg_pool",
    "prod": "prod",
    "reduce": "sum mean max min",
    "resize": "resize",
    "rope": "rope",
    "row_programs": "rows",
    "scans.causal_conv": "causal_conv",
    "scans.delta_rule": "gated_delta_rule",
    "scans.delta_rule_grad": "gated_delta_rule_grad",
    "scans.selective": "selective_scan",
    "scans.selective_grad": "selective_scan_grad",
    "scatter": "scatter scatter_elements",
    "signal": "frame windowed_frames segment_spectra",
    "sorting": "sort argsort top_k",
}
Images = Literal["makes", "follows"]
EngineBinder = Callable[[Node, Sequence[Array], Sequence[Array], EngineContext], "list[EngineStep] | None"]
ENGINE_BINDERS: dict[str, list[EngineBinder]] = {}
TAKES_EPILOGUE: set[EngineBinder] = set()
IMAGES: dict[EngineBinder, Images] = {}


def engine(
    *names: str, takes_epilogue: bool = False, images: Images | None = None
) -> Callable[[EngineBinder], EngineBinder]:
    """Registers a binder of the engine for these ops, which `MODULES` lists under its module's name; of several for one
    op the first that does not decline is taken. `images` says of a binder of images whose channels lie last whether it
    "makes" them, or "follows" the order of its inputs."""

    def add(binder: EngineBinder) -> EngineBinder:
        if takes_epilogue:
            TAKES_EPILOGUE.add(binder)
        if images is not None:
            IMAGES[binder] = images
        for name in names:
            ENGINE_BINDERS.setdefault(name, []).append(binder)
        return binder

    return add


def binders_of(op: Op) -> Sequence[EngineBinder]:
    """The binders of an op, in the order in which they are asked; their modules are imported."""
    own = _binders(op.name)
    if op.rows is not None:
        return [*own, *_binders("rows")]
    return own or (_binders("*") if op.elementwise else ())


def _binders(name: str) -> Sequence[EngineBinder]:
    for module in _modules().get(name, ()):
        importlib.import_module(f"{__package__}.{module}")
    return ENGINE_BINDERS.get(name, ())


@cache
def _modules() -> dict[str, list[str]]:
    """The modules that have binders of an op, by its name."""
    found: dict[str, list[str]] = {}
    for module, names in MODULES.items():
        for name in names.split():
            found.setdefault(name, []).append(module)
    return found


def load_binders() -> None:
    """Imports all modules that have binders."""
    for name in _modules():
        _binders(name)
