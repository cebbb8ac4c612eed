"""Tree kernels as CUDA C++: every source compiles under NVRTC, for every primitive, dtype and layout."""

from __future__ import annotations

from typing import Literal

import pytest

from rlx.backends.cuda.sources import kernel_source
from rlx.backends.gpu.elementwise.emit_cuda import emit_cuda
from rlx.backends.gpu.elementwise.tree import DEFINED, RAW16, literal_bits
from rlx.backends.gpu.program.steps import TreeKernel, TreeOperand
from rlx.dtypes import DType, bf16, bool_, f16, f32, f64, i8, i32, i64, u8
from rlx.ir import Expr, expr
from tests.cuda.compiled import CHECKED, UNOPTIMIZED, compiled
from tests.full import full

OF_CLASS = {"f": f32, "d": f64, "i": i32, "l": i64, "b": bool_}
STORED = (f32, f64, f16, bf16, i32, i64, i8, u8, bool_)


def compile_tree(kernel: TreeKernel, option: str = UNOPTIMIZED if full() else CHECKED) -> str:
    """The source of a kernel, after NVRTC has compiled it."""
    source = kernel_source(kernel)
    compiled(source, "compute_90", option)
    return source.text


def operands(
    *dtypes: DType, access: Literal["flat", "scalar", "strided"] = "flat"
) -> tuple[TreeOperand, ...]:
    return tuple(TreeOperand(d, access) for d in dtypes)


@pytest.mark.parametrize("cls", OF_CLASS)
def test_every_primitive(cls: str) -> None:
    dtype = OF_CLASS[cls]
    args = [expr.arg(0, dtype), expr.arg(1, dtype)]
    trees = []
    for name in sorted(DEFINED[cls]):  # type: ignore[index]
        if name == "select":
            trees.append(expr.call(name, expr.call("eq", *args), *args))
        else:
            trees.append(expr.call(name, *(args * 2)[: expr.PRIMS[name]]))
    kernel = TreeKernel(tuple(trees), operands(dtype, dtype), operands(*(t.dtype for t in trees)), 0)
    text = compile_tree(kernel, UNOPTIMIZED)
    assert all(f"p_{name}_{cls}(" in text for name in DEFINED[cls])  # type: ignore[index]


@pytest.mark.parametrize("source", STORED, ids=str)
def test_every_cast(source: DType) -> None:
    trees = tuple(expr.cast(expr.arg(0, source), target) for target in STORED)
    compile_tree(TreeKernel(trees, operands(source), operands(*STORED), 0))


@pytest.mark.parametrize("dtype", [*STORED, RAW16], ids=str)
@pytest.mark.parametrize("rank", [1, 2, 5])
@pytest.mark.sample(4)
def test_strided_operands(dtype: DType, rank: int) -> None:
    strided = operands(dtype, access="strided")
    text = compile_tree(TreeKernel((expr.arg(0, dtype),), strided, strided, rank))
    assert "const int* meta" in text and f"c{rank - 1}" in text


def test_flat_operands_are_read_in_packs_and_scalars_once() -> None:
    tree = expr.arg(0, f32) * expr.arg(1, f32)
    kernel = TreeKernel((tree,), (TreeOperand(f32, "flat"), TreeOperand(f32, "scalar")), operands(f32), 0)
    text = compile_tree(kernel)
    assert "load_pack<4>(x0" in text and "load_pack<4>(x1" not in text and "s1 = x1[0]" in text


def test_literals_keep_every_bit() -> None:
    values: list[Expr] = [expr.lit(v, f32) for v in (0.1, -0.0, float("inf"), float("nan"), 1e300, 1e-45)]
    values += [expr.lit(-(2**31), i32), expr.lit(2**63 - 1, i64), expr.lit(True, bool_)]
    values += [expr.lit(0.1, f64), expr.lit(5e-324, f64)]
    kernel = TreeKernel(tuple(values), (), operands(*(v.dtype for v in values)), 0)
    text = compile_tree(kernel)
    for bits in ("0x3dcccccd", "0x80000000", "0x7f800000", "0x7fc00000", "0x00000001", "0x7fffffffffffffff"):
        assert bits in text
    assert "0x3fb999999999999a" in text and "0x0000000000000001" in text


def test_the_bits_of_f32_literals() -> None:
    assert [literal_bits(v) for v in (1.0, -1.0, 1e39, -1e39)] == [
        0x3F800000,
        0xBF800000,
        0x7F800000,
        0xFF800000,
    ]


def test_only_trees_of_f64_read_its_functions() -> None:
    for dtype in (f32, f64):
        text = emit_cuda(TreeKernel((-expr.arg(0, dtype),), operands(dtype), operands(dtype), 0))
        assert ("prims64.h" in text) == (dtype == f64)
