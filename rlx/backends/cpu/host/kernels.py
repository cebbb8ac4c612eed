"""The registry of CPU kernels: op name → binder."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from rlx.backends.cpu.context import Array, BindContext, Step
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Node

# (node, input arrays, output arrays, context) -> the calls that compute the outputs: bound once, run many times.
Binder = Callable[[Node, Sequence[Array], Sequence[Array], BindContext], "list[Step]"]

BINDERS: dict[str, Binder] = {}
# The modules of this folder that have binders, each with its ops: a program imports the modules of its own ops.
MODULES = {
    "attention.forward": "attention",
    "attention.grad": "attention_grad",
    "attention.step": "attention_step",
    "conv.forward": "conv im2col",
    "conv.grad": "conv_transpose conv_grad_input conv_grad_weight",
    "conv.integer": "integer_conv",
    "fft": "fft rfft irfft",
    "grid_sample": "grid_sample",
    "grouped": "grouped_matmul grouped_matmul_grad lora_matmul",
    "index": "dynamic_update_slice one_hot",
    "matmul.dense": "matmul",
    "order": "sort argsort top_k",
    "packed_attention": "packed_attention",
    "paged_attention": "paged_attention",
    "pool": "max_pool avg_pool max_pool_grad",
    "quantized": "dequantize packed_matmul grouped_packed_matmul",
    "resize": "resize",
    "rope": "rope",
    "scatter": "scatter scatter_elements",
    "signal": "overlap_add segment_power segment_spectra segment_signal block_convolution peaks",
    "splats": "splat_tiles splat_blend splat_blend_grad",
}


def cpu_kernel(*names: str) -> Callable[[Binder], Binder]:
    """Registers a binder for these ops, which `MODULES` lists under its module's name."""

    def add(binder: Binder) -> Binder:
        for name in names:
            if name in BINDERS:
                raise ValueError(f"two CPU kernels for op {name!r}")
            BINDERS[name] = binder
        return binder

    return add


def binder_of(op: str) -> Binder | None:
    """The binder of the op of that name, whose module is imported; None where it has none."""
    if op not in BINDERS and op in (modules := _modules()):
        importlib.import_module(f"{__package__}.{modules[op]}")
    return BINDERS.get(op)


@cache
def _modules() -> dict[str, str]:
    """The module that has the binder of an op, by its name."""
    return {name: module for module, names in MODULES.items() for name in names.split()}


def load_kernels() -> None:
    """Imports all modules that have binders."""
    for name in _modules():
        binder_of(name)


def bind_reference(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    """Runs the op's NumPy reference and copies its result. It allocates, so only ops without a kernel use it.

    The step raises ShapeError or DTypeError where a user's function returns something else than its `infer` declares.
    """
    reference, attrs = node.op.meets(node) if node.op.meets is not None else node.op.reference, dict(node.attrs)

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
