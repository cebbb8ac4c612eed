"""The primitive "index", the number of an element, under every way in which a tree kernel walks over its operands."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from rlx.backends.cuda.nvrtc import BASE_OPTIONS, available, compile_ptx_only
from rlx.backends.cuda.sources import kernel_source
from rlx.backends.gpu.elementwise import strided
from rlx.backends.gpu.elementwise.strided import View, launch_tree
from rlx.backends.gpu.program.lowering import Lowering
from rlx.backends.gpu.program.steps import Launch, Ref, TreeKernel
from rlx.backends.gpu.program.target import Target
from rlx.driver import Limits, MemoryPlan
from rlx.dtypes import as_dtype, f16, f32, i32
from rlx.ir import Expr, Graph
from rlx.ir import expr as ex
from tests.gpu import lowered
from tests.gpu.lowered import Array, kernel_of, run

importlib.import_module("rlx.backends.gpu.rules.elementwise")
INDEX = Expr("index", (), i32)
# Shapes of the inputs and of the whole, and how the kernel reads the inputs of packs, None where it takes no packs.
WALKS: list[tuple[Any, tuple[tuple[int, ...], ...], tuple[int, ...], list[str] | None]] = [
    (np.float32, ((37,),), (37,), None),
    (np.float32, ((4099,), ()), (4099,), None),
    (np.float16, ((2, 515),), (2, 515), None),
    (np.float32, ((5, 1), (7,)), (5, 7), None),
    (np.float32, ((5, 1), (8,)), (5, 8), ["repeated", "strided"]),
    (np.float16, ((3, 1, 1), (6, 16)), (3, 6, 16), ["repeated", "strided"]),
    (np.float32, ((3, 4, 1), (3, 4, 2)), (3, 4, 2), ["doubled", "flat"]),
]


@pytest.fixture(autouse=True)
def hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lowering as for hardware, with packs of neighbouring elements."""
    monkeypatch.setattr(lowered, "SOFTWARE", False)


def counted(
    dtype: Any, shapes: tuple[tuple[int, ...], ...], shape: tuple[int, ...]
) -> tuple[list[Array], dict[str, Any]]:
    """Small numbers, and the attributes of a tree that adds them to the number of the element."""
    inputs = [(np.arange(int(np.prod(s))).reshape(s) % 16).astype(dtype) for s in shapes]
    tree = ex.cast(INDEX, f32)
    for k in range(len(inputs)):
        tree = tree + ex.cast(ex.arg(k, as_dtype(dtype)), f32)
    out = f16 if dtype is np.float16 else i32  # f16 has the numbers to 2048
    return inputs, {"trees": (ex.cast(tree, out),), "shape": shape}


@pytest.mark.vulkan
@pytest.mark.parametrize(
    "dtype, shapes, shape, packs", WALKS, ids=lambda v: None if isinstance(v, type) else str(v)
)
def test_elements_are_counted_in_row_major_order(dtype: Any, shapes: Any, shape: Any, packs: Any) -> None:
    inputs, attrs = counted(dtype, shapes, shape)
    kernel = kernel_of(inputs, attrs)
    assert kernel.packed == (packs is not None)
    assert packs is None or [o.access for o in kernel.inputs] == packs
    want = np.arange(np.prod(shape)).reshape(shape) + sum(x.astype(np.int64) for x in inputs)
    np.testing.assert_array_equal(run("fused", *inputs, **attrs), want)


@pytest.mark.skipif(not available(), reason="no NVRTC")
def test_the_cuda_text_compiles_and_counts() -> None:
    for dtype, shapes, shape, packs in WALKS:
        source = kernel_source(kernel_of(*counted(dtype, shapes, shape)))
        lanes = 8 if dtype is np.float16 and not packs else 4
        flat = all(len(s) in (0, len(shape)) for s in shapes) and not packs
        assert (f"uint(q) * {lanes}u + uint(k));" in source.text) == bool(packs or flat)
        assert (", e);" in source.text) == (packs is None)
        options = source.options[len(BASE_OPTIONS) :]
        assert compile_ptx_only(
            source.text, options, "compute_90", name=source.name, headers=dict(source.headers)
        )


def test_launches_in_parts_go_on_counting() -> None:
    """An operand that spans more than 31 bits of elements divides the launch; each part starts where it does."""
    target = Target(frozenset({"8bit_storage"}), Limits(max_groups=(2**31 - 1, 65535, 65535)))
    lowering, apart = Lowering(Graph("big"), MemoryPlan("bump"), target, "f32"), strided.MAX_INDEX
    views = [View(Ref("a", 0, 16 * apart), i32, (apart, 1)), View(Ref("b", 0, 96), i32, (6, 1))]
    launch_tree(lowering, (ex.call("add", INDEX, ex.arg(0, i32)),), (4, 6), views[:1], views[1:])
    starts, written = [], []
    for step in lowering.steps:
        assert isinstance(step, Launch) and isinstance(step.kernel, TreeKernel)
        starts.append(sum(int(e.value or 0) for e in ex.linearize(step.kernel.trees) if e.prim == "lit"))
        written.append(step.writes[0].offset)
    assert starts == [0, 6, 12, 18] and written == [0, 24, 48, 72]
