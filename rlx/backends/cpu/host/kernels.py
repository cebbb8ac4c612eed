"""The registry of CPU kernels: op name → binder."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence

import numpy as np

from rlx import ops as ops  # registers the ops: `load_kernels` finds the kernels by their families
from rlx.backends.cpu import host
from rlx.backends.cpu.context import Array, BindContext, Step
from rlx.errors import DTypeError, ShapeError
from rlx.ir import REGISTRY, Node

# (node, input arrays, output arrays, context) -> the calls that compute the outputs: bound once, run many times.
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


def load_kernels() -> None:
    """Imports the binders of every op family, which register themselves. A family's binders are the module of its name
    in this folder, or all modules of the subfolder of its name."""
    families = {op.family for op in REGISTRY.values()}
    for module in pkgutil.walk_packages(host.__path__, f"{host.__name__}."):
        if module.name.split(".")[len(host.__name__.split("."))] in families:
            importlib.import_module(module.name)


def bind_reference(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    """Runs the op's NumPy reference and copies its result. It allocates, so only ops without a kernel use it.

    The step raises ShapeError or DTypeError where a user's function returns something else than its `infer` declares.
    """
    reference, attrs = node.op.reference, dict(node.attrs)

    def call() -> None:
        result = reference(*ins, **attrs)
        arrays = result if isinstance(result, tuple) else (result,)
        if len(arrays) != len(outs):
            raise ShapeError(
                f"{node.name}: its NumPy function gave {len(arrays)} arrays; infer gave {len(outs)} types"
            )
        for i, (out, value) in enumerate(zip(outs, map(np.asarray, arrays), strict=True)):
            if value.shape != out.shape:
                raise ShapeError(
                    f"{node.name}: output {i} of its NumPy function has shape {value.shape}; infer gave {out.shape}"
                )
            if value.dtype.kind in "OSUc" or (value.dtype.kind == "f" and out.dtype.kind in "iub"):
                raise DTypeError(
                    f"{node.name}: output {i} of its NumPy function is {value.dtype}; infer gave {out.dtype}"
                )
            out[...] = value

    return [call]
