"""What a kernel finds in its parameters: the array is read back as cuLaunchKernel reads it."""

from __future__ import annotations

import ctypes
import struct

import pytest

from rlx.backends.cuda.packing import PackedArgs, pack_args
from rlx.backends.gpu.program import kernel
from rlx.backends.gpu.program.kernel import KernelDecl, floats, ints, reads, uints, writes
from rlx.backends.gpu.program.steps import Arg, FileKernel, Launch, Ref, TreeKernel, TreeOperand
from rlx.dtypes import f32
from rlx.errors import RlxError
from rlx.ir import expr


@pytest.fixture(autouse=True)
def declared(monkeypatch: pytest.MonkeyPatch) -> None:
    decl = KernelDecl("probe", (*reads(x="f32"), *writes(y="f32"), *uints("n"), *ints("s"), *floats("f")))
    monkeypatch.setitem(kernel.KERNELS, "probe", decl)


def launch(*args: Arg) -> Launch:
    return Launch(FileKernel("probe"), (1, 1, 1), args, (), (), "softmax%3")


def address(ref: Ref) -> int:
    return {"arena0": 0x7F00_0000_0000, "weights0": 0x7E00_0000_0000}[ref.segment] + ref.offset


def read(packed: PackedArgs, sizes: list[int]) -> list[bytes]:
    pointers = (ctypes.c_void_p * len(sizes)).from_address(packed.pointer)
    return [ctypes.string_at(p, n) for p, n in zip(pointers, sizes, strict=True)]


def test_values_by_declaration() -> None:
    packed = pack_args(launch(Ref("weights0", 256, 64), Ref("arena0", 512, 64), 2**32 - 1, -5, 0.1), address)
    raw = read(packed, [8, 8, 4, 4, 4])
    assert struct.unpack("<Q", raw[0])[0] == 0x7E00_0000_0100
    assert struct.unpack("<Q", raw[1])[0] == 0x7F00_0000_0200
    assert raw[2] == b"\xff\xff\xff\xff"
    assert struct.unpack("<i", raw[3])[0] == -5
    assert raw[4] == struct.pack("<f", 0.1)


def test_an_int_is_a_float_argument_s_value() -> None:
    packed = pack_args(launch(Ref("arena0", 0, 4), Ref("arena0", 4, 4), 0, 0, 3), address)
    assert read(packed, [8, 8, 4, 4, 4])[4] == struct.pack("<f", 3.0)


def test_tree_kernel_takes_pointers_then_n() -> None:
    x = expr.arg(0, f32)
    operand = TreeOperand(f32, "flat")
    kernel = TreeKernel((expr.call("neg", x),), (operand,), (operand,), 0)
    packed = pack_args(
        Launch(kernel, (1, 1, 1), (Ref("arena0", 0, 4), Ref("arena0", 4, 4), 7), (), ()), address
    )
    raw = read(packed, [8, 8, 4])
    assert struct.unpack("<I", raw[2])[0] == 7


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((Ref("arena0", 0, 4), 1), "takes 5 arguments"),
        ((Ref("arena0", 0, 4), 4, 0, 0, 0.0), "argument 1 is declared ptr"),
        ((Ref("arena0", 0, 4), Ref("arena0", 0, 4), Ref("arena0", 0, 4), 0, 0.0), "argument 2 is declared u32"),
        ((Ref("arena0", 0, 4), Ref("arena0", 0, 4), -1, 0, 0.0), "argument 2 = -1 is no u32"),
        ((Ref("arena0", 0, 4), Ref("arena0", 0, 4), 2**32, 0, 0.0), "is no u32"),
        ((Ref("arena0", 0, 4), Ref("arena0", 0, 4), 1, 2**31, 0.0), "is no i32"),
        ((Ref("arena0", 0, 4), Ref("arena0", 0, 4), 1.5, 0, 0.0), "is no u32"),
    ],
)  # fmt: skip
def test_what_does_not_fit_the_declaration_is_refused(args: tuple[Arg, ...], said: str) -> None:
    with pytest.raises(RlxError, match=f"softmax%3.*probe.*{said}"):
        pack_args(launch(*args), address)
