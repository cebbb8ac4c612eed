"""Generated elementwise kernels compile: every primitive on every dtype it takes, every way to reach an operand."""

from __future__ import annotations

import re
from typing import Literal

import pytest

from rlx.backends.cuda.nvrtc import BASE_OPTIONS
from rlx.backends.cuda.sources import kernel_source
from rlx.backends.gpu.elementwise.tree import Call, program
from rlx.backends.gpu.program.steps import TreeKernel, TreeOperand
from rlx.dtypes import DType, bf16, bool_, f16, f32, i8, i32, i64, u8
from rlx.ir import Expr
from rlx.ir.expr import PREDICATES, PRIMS, WORDS, arg, call, cast, lit
from tests.cuda.compiled import UNOPTIMIZED, compiled

DTYPES = (f32, f16, bf16, i32, i64, u8, i8, bool_)
FLOAT_PRIMS = set(PRIMS) - WORDS - {"and", "or", "xor", "shl", "shr", "not", "index"}


def ptx_of(kernel: TreeKernel, *options: str) -> str:
    source = kernel_source(kernel)
    assert source.options == BASE_OPTIONS and source.block == (256, 1, 1)
    return compiled(source, "compute_80", *options).decode("ascii", "replace")


def flat(*dtypes: DType) -> tuple[TreeOperand, ...]:
    return tuple(TreeOperand(d, "flat") for d in dtypes)


def tree_of(prim: str, dtype: DType) -> Expr:
    if prim == "cast":
        return cast(arg(0, dtype), i32 if dtype is not i32 else f32)
    if prim == "select":
        return call("select", call("lt", arg(0, dtype), arg(1, dtype)), arg(0, dtype), arg(1, dtype))
    return call(prim, *(arg(i % 2, dtype) for i in range(PRIMS[prim])))


def taken(dtype: DType) -> dict[str, Expr]:
    """The primitives that prims.h has for this dtype's class."""
    found = {}
    for prim in sorted(set(PRIMS) - {"index"}):
        tree = tree_of(prim, dtype)
        kernel = TreeKernel((tree,), flat(dtype, dtype), flat(tree.dtype), 0)
        there = " ".join(text for _, text in kernel_source(kernel).headers)
        calls = [v.name for v in program(kernel).values if isinstance(v, Call)]
        # Those of i and l are written once, with the class pasted on.
        names = [rf"{n}|{n[:-1]}##s" if n.endswith(("_i", "_l")) else n for n in calls]
        if all(re.search(rf"\b({n})\(", there) for n in names):
            found[prim] = tree
    return found


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_primitive_of_a_dtype(dtype: DType) -> None:
    trees = taken(dtype)
    if dtype.is_float:
        assert set(trees) >= FLOAT_PRIMS
    assert set(trees) >= {"add", "eq", "select", "cast"} or dtype is bool_
    outputs = flat(*(tree.dtype for tree in trees.values()))
    ptx = ptx_of(TreeKernel(tuple(trees.values()), flat(dtype, dtype), outputs, 0), UNOPTIMIZED)
    assert ".entry tree(" in ptx
    assert all(
        bool(tree.dtype is bool_) == (prim in PREDICATES)
        for prim, tree in trees.items()
        if dtype is not bool_
    )


@pytest.mark.parametrize("source", DTYPES, ids=str)
def test_every_cast(source: DType) -> None:
    targets = [d for d in DTYPES if d is not source]
    trees = tuple(cast(arg(0, source), d) for d in targets)
    ptx_of(TreeKernel(trees, flat(source), flat(*targets), 0), UNOPTIMIZED)


@pytest.mark.parametrize("rank", [1, 3, 6])
@pytest.mark.parametrize("access", ["flat", "scalar", "strided"])
def test_access(access: Literal["flat", "scalar", "strided"], rank: int) -> None:
    operands = (TreeOperand(f16, "strided"), TreeOperand(f32, access))
    tree = call("add", cast(arg(0, f16), f32), arg(1, f32))
    ptx = ptx_of(TreeKernel((tree,), operands, flat(f32), rank))
    entry = ptx[ptx.index(".entry tree(") :]
    params = entry[: entry.index(")")].count(".param")
    assert params == 5, "meta, two inputs, one output, n"


def test_products_are_not_contracted_in_trees() -> None:
    x = [arg(i, f32) for i in range(3)]
    ptx = ptx_of(TreeKernel((x[0] * x[1] + x[2],), flat(f32, f32, f32), flat(f32), 0))
    assert "fma.rn.f32" not in ptx and "mul" in ptx


def test_literals_that_are_hard_to_print() -> None:
    x = arg(0, f32)
    values = (float("inf"), float("-inf"), float("nan"), -0.0, 1e-45, 3.4028235e38)
    trees = tuple(call("add", x, lit(v, f32)) for v in values)
    ints = (call("add", arg(1, i64), lit(-(2**63), i64)), call("add", arg(2, i32), lit(-(2**31), i32)))
    ptx_of(TreeKernel(trees + ints, flat(f32, i64, i32), flat(*[f32] * len(trees), i64, i32), 0))
