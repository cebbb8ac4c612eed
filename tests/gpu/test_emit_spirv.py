"""Tree kernels as SPIR-V: the modules are valid, declare only capabilities that they use, and compute the right
numbers on a device."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import scipy.special

from rlx.backends.gpu.elementwise.emit_spirv import emit_spirv, template
from rlx.backends.gpu.elementwise.spirv import Module, Op
from rlx.backends.gpu.elementwise.tree import DEFINED, RAW16
from rlx.backends.gpu.program.steps import TreeKernel, TreeOperand
from rlx.dtypes import DType, as_dtype, bf16, bool_, f16, f32, f64, i8, i32, i64, u8
from rlx.errors import UnsupportedOp
from rlx.ir import Expr, expr
from tests.gpu.host_prims import ulps
from tests.gpu.lowered import float_words, host

Array = npt.NDArray[Any]
PLAIN = frozenset[str]()
X, Y = expr.arg(0, f32), expr.arg(1, f32)


def kernel(
    tree: Expr, inputs: list[DType], access: str = "flat", out: DType | None = None, rank: int = 0
) -> TreeKernel:
    operands = tuple(TreeOperand(d, access) for d in inputs)  # type: ignore[arg-type]
    return TreeKernel((tree,), operands, (TreeOperand(out or tree.dtype, "flat"),), rank)


def evaluate(
    tree: Expr, *arrays: Array, packs: bool = False, out: DType | None = None, groups: int = 3
) -> Array:
    """The tree over equally long arrays, on the device."""
    made = kernel(tree, [as_dtype(a.dtype) for a in arrays], out=out)
    result = np.zeros(arrays[0].shape, (out or tree.dtype).np)
    host().run(emit_spirv(made, float_words(), packs), (groups, 1, 1), [*arrays, result, result.size])
    return result


def capabilities(code: bytes) -> set[str]:
    return set(Module.parse(code).capabilities()) - {"Shader", "PhysicalStorageBufferAddresses"}


# -- modules


def test_the_template_has_every_primitive_of_every_class() -> None:
    for cls, prims in DEFINED.items():
        for wide in (False, True):
            have = template(wide).callable
            assert ({f"p_{p}_{cls}" for p in prims} <= set(have)) == (wide or cls != "d")


@pytest.mark.parametrize("packs", [False, True])
def test_modules_are_valid_and_ask_for_what_they_use(tmp_path: Path, packs: bool) -> None:
    cases = [
        (kernel(expr.call("exp", X) + Y, [f32, f32]), set()),
        (kernel(expr.cast(expr.arg(0, f16), f32), [f16]), {"StorageBuffer16BitAccess"}),
        (kernel(expr.arg(0, u8), [u8]), {"StorageBuffer8BitAccess"}),
        (kernel(expr.call("lt", X, Y), [f32, f32]), {"StorageBuffer8BitAccess"}),
        (kernel(expr.call("mod", expr.arg(0, i64), expr.lit(-(2**63), i64)), [i64]), {"Int64"}),
        (kernel(expr.arg(0, f64) + 0.1, [f64]), {"Float64"}),
        (kernel(expr.cast(expr.call("exp", expr.arg(0, f64)), f32), [f64]), {"Float64", "Int64"}),
        (kernel(expr.call("select", expr.arg(0, bool_), expr.arg(1, bf16), 0.0), [bool_, bf16], "strided", rank=4),
         {"StorageBuffer8BitAccess", "StorageBuffer16BitAccess"}),
    ]  # fmt: skip
    for made, wanted in cases:
        code = emit_spirv(made, PLAIN, packs)
        assert capabilities(code) == wanted
        if shutil.which("spirv-val"):
            path = tmp_path / "tree.spv"
            path.write_bytes(code)
            subprocess.run(
                ["spirv-val", "--target-env", "vulkan1.2", "--scalar-block-layout", str(path)], check=True
            )


def test_float_behaviour_is_declared_where_the_device_has_it() -> None:
    made = kernel(X + Y, [f32, f32])
    assert capabilities(emit_spirv(made, frozenset({"float_controls"}))) == {"SignedZeroInfNanPreserve"}
    assert capabilities(emit_spirv(made, frozenset({"denorm_preserve", "rte"}))) == {
        "DenormPreserve",
        "RoundingModeRTE",
    }
    assert capabilities(emit_spirv(made, frozenset({"i64", "f16"}))) == set()
    # The modes of each width are declared separately.
    words = frozenset({"float_controls", "float_controls_f64", "rte"})
    for dtype, widths in ((f32, [(4461, 32), (4462, 32)]), (f64, [(4461, 32), (4462, 32), (4461, 64)])):
        module = Module.parse(emit_spirv(kernel(expr.arg(0, dtype) + 1.0, [dtype]), words))
        modes = [tuple(i.words[1:]) for i in module.insts if i.op == Op.ExecutionMode]
        assert [m for m in modes if m[0] in (4459, 4461, 4462)] == widths


def test_what_is_not_called_is_not_there() -> None:
    small = emit_spirv(kernel(X + Y, [f32, f32]), PLAIN)
    large = emit_spirv(kernel(expr.call("sin", X) + Y, [f32, f32]), PLAIN)
    assert len(small) < 8_000 < len(large) < 30_000


def test_equal_subtrees_are_computed_once() -> None:
    e = expr.call("exp", X)
    once = emit_spirv(kernel(e + Y, [f32, f32]), PLAIN, False)
    twice = emit_spirv(kernel((e + Y) * expr.call("exp", X), [f32, f32]), PLAIN, False)
    assert len(twice) - len(once) < 400


def test_a_primitive_without_a_function_is_refused() -> None:
    with pytest.raises(UnsupportedOp, match="p_neg_b"):
        emit_spirv(kernel(expr.call("neg", expr.arg(0, bool_)), [bool_]), PLAIN)


# -- numbers on a device


def floats(seed: int, n: int = 20_001) -> npt.NDArray[np.float32]:
    """Random bit patterns without subnormals (devices may flush them), common values, and specials."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 1 << 32, n // 2, dtype=np.uint32).view(np.float32)
    wide = (rng.uniform(-1, 1, n - n // 2) * 10.0 ** rng.uniform(-4, 4, n - n // 2)).astype(np.float32)
    x = np.concatenate(
        [bits, wide, np.array([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 2, 3e38, 88.7], np.float32)]
    )
    x[(np.abs(x) < 1.2e-38) & (x != 0)] = 1
    return x


@pytest.mark.vulkan
@pytest.mark.parametrize(
    "name, oracle, limit",
    [
        ("sqrt", np.sqrt, 0.5),
        ("rsqrt", lambda x: 1 / np.sqrt(x), 1.5),
        ("recip", lambda x: 1 / x, 0.5),
        ("exp", np.exp, 1.2),
        ("expm1", np.expm1, 1.3),
        ("log", np.log, 1),
        ("log1p", np.log1p, 1),
        ("sin", np.sin, 1),
        ("cos", np.cos, 1),
        ("tan", np.tan, 1),
        ("asin", np.arcsin, 1),
        ("acos", np.arccos, 1),
        ("atan", np.arctan, 1),
        ("sinh", np.sinh, 1),
        ("cosh", np.cosh, 1),
        ("tanh", np.tanh, 1.2),
        ("erf", scipy.special.erf, 1.5),
        ("floor", np.floor, 0),
        ("ceil", np.ceil, 0),
        ("round", np.rint, 0),
        ("trunc", np.trunc, 0),
        ("neg", np.negative, 0),
        ("abs", np.abs, 0),
        ("sign", np.sign, 0),
        ("div", np.divide, 0.5),
        ("pow", np.power, 1),
        ("atan2", np.arctan2, 1),
        ("mul", np.multiply, 0.5),
        ("add", np.add, 0.5),
        ("sub", np.subtract, 0.5),
        ("max", np.maximum, 0),
        ("min", np.minimum, 0),
        ("fmod", np.fmod, 0),
    ],
)
def test_float_primitives(name: str, oracle: Any, limit: float) -> None:
    args = [floats(k) for k in range(expr.PRIMS[name])]
    if len(args) == 2:
        args[1] = np.random.default_rng(9).permutation(args[1])
        args[1][-10:] = args[1][-10:][::-1]
    got = evaluate(expr.call(name, *(expr.arg(k, f32) for k in range(len(args)))), *args)
    with np.errstate(all="ignore"):
        want = oracle(*(a.astype(np.float64) for a in args))
    error = np.where((np.abs(want) < 1.18e-38) & (want != 0), 0, ulps(got, want))
    worst = int(np.argmax(error))
    assert error[worst] <= limit, (name, [a[worst] for a in args], got[worst], want[worst], error[worst])


@pytest.mark.vulkan
def test_comparisons_and_predicates_know_nan() -> None:
    x, y = (
        v.ravel() for v in np.meshgrid(*[np.array([0, -0.0, 1, -2, np.inf, -np.inf, np.nan], np.float32)] * 2)
    )
    for name, oracle in (
        ("eq", np.equal),
        ("ne", np.not_equal),
        ("lt", np.less),
        ("le", np.less_equal),
        ("gt", np.greater),
        ("ge", np.greater_equal),
    ):
        np.testing.assert_array_equal(evaluate(expr.call(name, X, Y), x, y), oracle(x, y), err_msg=name)
    np.testing.assert_array_equal(evaluate(expr.call("isnan", X), x), np.isnan(x))
    np.testing.assert_array_equal(evaluate(expr.call("isinf", X), x), np.isinf(x))
    np.testing.assert_array_equal(evaluate(expr.call("max", X, Y), x, y), np.maximum(x, y))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(evaluate(expr.call("mod", X, Y), x, y), np.mod(x, y))


@pytest.mark.vulkan
@pytest.mark.parametrize("dtype", [i32, i64, i8, u8], ids=str)
def test_integers_wrap_in_their_own_width(dtype: DType) -> None:
    info = np.iinfo(dtype.np)
    rng = np.random.default_rng(3)
    x = np.concatenate(
        [rng.integers(info.min, info.max, 500, dtype.np, True), np.array([info.min, info.max, 0], dtype.np)]
    )
    y = np.concatenate(
        [rng.integers(info.min, info.max, 500, dtype.np, True), np.array([info.max, info.max, 1], dtype.np)]
    )
    y[y == 0] = 3
    a, b = expr.arg(0, dtype), expr.arg(1, dtype)
    for name, oracle in (
        ("add", np.add),
        ("sub", np.subtract),
        ("mul", np.multiply),
        ("mod", np.mod),
        ("max", np.maximum),
        ("and", np.bitwise_and),
        ("or", np.bitwise_or),
        ("xor", np.bitwise_xor),
    ):
        np.testing.assert_array_equal(evaluate(expr.call(name, a, b), x, y), oracle(x, y), err_msg=name)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(evaluate(expr.call("neg", a), x), np.negative(x))
        np.testing.assert_array_equal(evaluate(expr.call("abs", a), x), np.abs(x))
    zero = np.zeros_like(x)
    np.testing.assert_array_equal(evaluate(expr.call("div", a, b), x, zero), zero)


CASTS = [f32, f64, f16, bf16, i32, i64, i8, u8, bool_]


@pytest.mark.vulkan
@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.parametrize("source", CASTS, ids=str)
@pytest.mark.sample(vulkan=9)
def test_casts_between_all_dtypes(source: DType, packs: bool) -> None:
    rng = np.random.default_rng(4)
    if source.is_float:
        x = np.concatenate(
            [
                rng.normal(0, 90, 600),
                rng.normal(0, 1, 93),
                [0, -0.0, np.inf, -np.inf, np.nan, 3e9, -3e9, 1e19],
            ]
        )
        with np.errstate(all="ignore"):
            x = x.astype(np.float32).astype(source.np)
    elif source.kind == "b":
        x = rng.integers(0, 2, 701).astype(bool)
    else:
        info = np.iinfo(source.np)
        x = np.concatenate(
            [
                rng.integers(info.min, info.max, 699, source.np, True),
                np.array([info.min, info.max], source.np),
            ]
        )
    for target in CASTS:
        with np.errstate(all="ignore"):
            if target.kind == "b":
                want = x != 0
            elif source.is_float and target.is_int:
                low, high = (int(v) for v in (np.iinfo(target.np).min, np.iinfo(target.np).max))
                wide = x.astype(np.float64)
                want = np.array(
                    [0 if np.isnan(v) else low if v <= low else high if v >= high else int(v) for v in wide],
                    target.np,
                )
            else:
                want = x.astype(target.np)
        got = evaluate(expr.cast(expr.arg(0, source), target), x, packs=packs)
        np.testing.assert_array_equal(
            got.astype(np.float64), want.astype(np.float64), err_msg=f"{source} to {target}"
        )


@pytest.mark.vulkan
@pytest.mark.parametrize("n", [1, 3, 4, 255, 256, 257, 1023, 1024, 1025, 4099])
def test_every_element_once_whatever_the_length(n: int) -> None:
    x = np.arange(n, dtype=np.float32)
    for packs in (False, True):
        for groups in (1, 2, 5):
            np.testing.assert_array_equal(evaluate(X + 1.0, x, packs=packs, groups=groups), x + 1)


@pytest.mark.vulkan
def test_pointers_that_are_not_aligned_to_packs() -> None:
    whole = np.arange(1001, dtype=np.float32)
    out = np.zeros(1000, np.float32)
    code = emit_spirv(kernel(-X, [f32]), float_words(), True)
    host().run(code, (2, 1, 1), [(whole, 4), out, 1000])
    np.testing.assert_array_equal(out, -whole[1:])


@pytest.mark.vulkan
def test_several_outputs_and_scalars() -> None:
    x = np.random.default_rng(5).normal(size=777).astype(np.float32)
    scale = np.array([3.5], ml_dtypes.bfloat16)
    half, mask = np.zeros(777, np.float16), np.zeros(777, np.bool_)
    trees = (expr.cast(X * expr.cast(expr.arg(1, bf16), f32), f16), expr.call("gt", X, 0.25))
    for packs in (False, True):
        made = TreeKernel(trees, (TreeOperand(f32, "flat"), TreeOperand(bf16, "scalar")),
                          (TreeOperand(f16, "flat"), TreeOperand(bool_, "flat")), 0)  # fmt: skip
        host().run(emit_spirv(made, float_words(), packs), (2, 1, 1), [x, scale, half, mask, 777])
        np.testing.assert_array_equal(half, (x * np.float32(3.5)).astype(np.float16))
        np.testing.assert_array_equal(mask, x > 0.25)


@pytest.mark.vulkan
def test_strides_broadcast_reverse_and_scatter() -> None:
    x = np.arange(4 * 5 * 6, dtype=np.int32).reshape(4, 5, 6)
    row = np.arange(6, dtype=np.int32) * 1000
    out = np.full((4, 5, 6), -1, np.int32)
    tree = expr.arg(0, i32) + expr.arg(1, i32)
    made = TreeKernel((tree,), (TreeOperand(i32, "strided"),) * 2, (TreeOperand(i32, "strided"),), 3)
    # x reversed along its first axis, the row broadcast, the result written transposed as (6, 4, 5)
    meta = np.array([4, 5, 6, 90, -30, 6, 1, 0, 0, 0, 1, 0, 5, 1, 20], np.int32)
    for packs in (False, True):
        host().run(emit_spirv(made, float_words(), packs), (1, 1, 1), [meta, x, row, out, out.size])
        np.testing.assert_array_equal(out.reshape(6, 4, 5), np.transpose(x[::-1] + row, (2, 0, 1)))


@pytest.mark.vulkan
@pytest.mark.parametrize("packs", [False, True])
def test_sixteen_bits_move_unchanged(packs: bool) -> None:
    x = np.arange(1 << 16, dtype=np.uint16)
    out = np.zeros_like(x)
    made = TreeKernel((expr.arg(0, RAW16),), (TreeOperand(RAW16, "flat"),), (TreeOperand(RAW16, "flat"),), 0)
    host().run(emit_spirv(made, float_words(), packs), (8, 1, 1), [x, out, x.size])
    np.testing.assert_array_equal(out, x)
    for dtype in (f16, bf16):  # as floats they keep all bits except the payload of NaN
        half = evaluate(expr.arg(0, dtype), x.view(dtype.np), packs=packs)
        number = ~np.isnan(x.view(dtype.np).astype(np.float32))
        np.testing.assert_array_equal(half.view(np.uint16)[number], x[number])


@pytest.mark.vulkan
def test_small_dtypes_stored_wide() -> None:
    x = np.array([0, 1, 2.5, 300, -3], np.float32)
    wide = evaluate(expr.cast(X, u8), x, out=f32)
    np.testing.assert_array_equal(wide, [0, 1, 2, 255, 0])
    half = evaluate(expr.cast(X, bf16), np.float32([1.001, 257]), out=f32)
    np.testing.assert_array_equal(
        half, np.float32([1.001, 257]).astype(ml_dtypes.bfloat16).astype(np.float32)
    )
    made = TreeKernel(
        (expr.call("not", expr.arg(0, bool_)),), (TreeOperand(f32, "flat"),), (TreeOperand(f32, "flat"),), 0
    )
    out = np.zeros(2, np.float32)
    host().run(emit_spirv(made, float_words()), (1, 1, 1), [np.float32([0, 1]), out, 2])
    np.testing.assert_array_equal(out, [1, 0])
