"""The registry of CPU kernels: op name → binder."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlx.backends.cpu.context import Array, BindContext, Step
from rlx.ir import Node

# (node, input arrays, output arrays, context) -> the calls that compute the outputs, made once and run many times.
Binder = Callable[[Node, Sequence[Array], Sequence[Array], BindContext], "list[Step]"]

BINDERS: dict[str, Binder] = {}


def cpu_kernel(*names: str) -> Callable[[Binder], Binder]:
    """Registers a binder for these ops."""

    def add(binder: Binder) -> Binder:
        for name in names:
            if name in BINDERS:
                raise ValueError(f"two CPU kernels for op {name!r}")
            BINDERS[name] = binder
        return binder

    return add


def bind_reference(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    """The op's NumPy definition, its result copied out. It allocates: only for ops without a kernel of their own."""
    reference, attrs = node.op.reference, dict(node.attrs)

    def call() -> None:
        made = reference(*ins, **attrs)
        for out, value in zip(outs, made if isinstance(made, tuple) else (made,), strict=True):
            out[...] = value

    return [call]
