"""The tiles of x86's matrix unit (AMX) without the unit: its instructions in a kernel's text become functions of LLVM
IR that do what Intel's manual says of them. Tiles are 16 rows of 64 bytes, which is how all kernels configure them.

Products of bf16 are added in pairs of sums, of the terms with even and with odd numbers; factors, products and sums
below 2^-126 are 0. Products of bytes are exact.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from rlx.backends.cpu.code_memory import map_code
from rlx.backends.cpu.compile import KernelSpec, machine_code
from rlx.backends.cpu.machine import Machine
from rlx.records import replace

_CALL = re.compile(r"call void @llvm\.x86\.(ldtilecfg|tile\w+|tdpbf16ps|tdpbssd)\((.*)\)")
_DECLARED = re.compile(r"declare void @llvm\.x86\.(ldt|tile|tdp)")
_ROWS = """start: br label %rows
rows:
%m = phi i64 [ 0, %start ], [ %m1, %added ]
%offset = mul i64 %m, 64
%ca = mul i64 %c, 1024
%cat = add i64 %ca, %offset
%to = getelementptr i8, ptr %tiles, i64 %cat
%aa = mul i64 %a, 1024
%aat = add i64 %aa, %offset
"""
_DONE = """%m1 = add i64 %m, 1
%again = icmp slt i64 %m1, 16
br i1 %again, label %rows, label %done
done: ret void
}
"""
_FUNCTIONS = """
define internal <16 x float> @normal(<16 x float> %x) noinline #0 {
%bits = bitcast <16 x float> %x to <16 x i32>
%exponent = and <16 x i32> %bits, splat (i32 2139095040)
%small = icmp eq <16 x i32> %exponent, zeroinitializer
%sign = and <16 x i32> %bits, splat (i32 -2147483648)
%kept = select <16 x i1> %small, <16 x i32> %sign, <16 x i32> %bits
%result = bitcast <16 x i32> %kept to <16 x float>
ret <16 x float> %result
}
define internal void @tilezero(ptr %tiles, i64 %t) noinline #0 {
%at = mul i64 %t, 1024
%to = getelementptr i8, ptr %tiles, i64 %at
store <256 x i32> zeroinitializer, ptr %to, align 64
ret void
}
define internal void @tdpbf16ps(ptr %tiles, i64 %c, i64 %a, i64 %b) noinline #0 {
ROWSbr label %words
words:
%n = phi i64 [ 0, %rows ], [ %n1, %words ]
%even = phi <16 x float> [ zeroinitializer, %rows ], [ %even1, %words ]
%odd = phi <16 x float> [ zeroinitializer, %rows ], [ %odd1, %words ]
%word = mul i64 %n, 4
%awt = add i64 %aat, %word
%ap = getelementptr i8, ptr %tiles, i64 %awt
%x = load i32, ptr %ap, align 4
%x0 = insertelement <16 x i32> poison, i32 %x, i32 0
%xs = shufflevector <16 x i32> %x0, <16 x i32> poison, <16 x i32> zeroinitializer
%bb = mul i64 %b, 1024
%bo = mul i64 %n, 64
%bat = add i64 %bb, %bo
%bp = getelementptr i8, ptr %tiles, i64 %bat
%y = load <16 x i32>, ptr %bp, align 64
%xl = shl <16 x i32> %xs, splat (i32 16)
%yl = shl <16 x i32> %y, splat (i32 16)
%xh = and <16 x i32> %xs, splat (i32 -65536)
%yh = and <16 x i32> %y, splat (i32 -65536)
%xlf = bitcast <16 x i32> %xl to <16 x float>
%ylf = bitcast <16 x i32> %yl to <16 x float>
%xhf = bitcast <16 x i32> %xh to <16 x float>
%yhf = bitcast <16 x i32> %yh to <16 x float>
%xln = call <16 x float> @normal(<16 x float> %xlf)
%yln = call <16 x float> @normal(<16 x float> %ylf)
%xhn = call <16 x float> @normal(<16 x float> %xhf)
%yhn = call <16 x float> @normal(<16 x float> %yhf)
%e = call <16 x float> @llvm.fma.v16f32(<16 x float> %xln, <16 x float> %yln, <16 x float> %even)
%o = call <16 x float> @llvm.fma.v16f32(<16 x float> %xhn, <16 x float> %yhn, <16 x float> %odd)
%even1 = call <16 x float> @normal(<16 x float> %e)
%odd1 = call <16 x float> @normal(<16 x float> %o)
%n1 = add i64 %n, 1
%more = icmp slt i64 %n1, 16
br i1 %more, label %words, label %added
added:
%both = fadd <16 x float> %even1, %odd1
%sum = call <16 x float> @normal(<16 x float> %both)
%held = load <16 x float>, ptr %to, align 64
%total = fadd <16 x float> %held, %sum
%kept = call <16 x float> @normal(<16 x float> %total)
store <16 x float> %kept, ptr %to, align 64
DONEdefine internal void @tdpbssd(ptr %tiles, i64 %c, i64 %a, i64 %b) noinline #0 {
ROWS%held = load <16 x i32>, ptr %to, align 64
br label %bytes
bytes:
%n = phi i64 [ 0, %rows ], [ %n1, %bytes ]
%sum = phi <16 x i32> [ %held, %rows ], [ %sum1, %bytes ]
%byte = add i64 %aat, %n
%ap = getelementptr i8, ptr %tiles, i64 %byte
%x8 = load i8, ptr %ap
%x = sext i8 %x8 to i32
%x0 = insertelement <16 x i32> poison, i32 %x, i32 0
%xs = shufflevector <16 x i32> %x0, <16 x i32> poison, <16 x i32> zeroinitializer
%word = lshr i64 %n, 2
%bb = mul i64 %b, 1024
%bo = mul i64 %word, 64
%bat = add i64 %bb, %bo
%bp = getelementptr i8, ptr %tiles, i64 %bat
%four = load <16 x i32>, ptr %bp, align 64
%place = and i64 %n, 3
%above = sub i64 3, %place
%wide = shl i64 %above, 3
%left = trunc i64 %wide to i32
%l0 = insertelement <16 x i32> poison, i32 %left, i32 0
%ls = shufflevector <16 x i32> %l0, <16 x i32> poison, <16 x i32> zeroinitializer
%high = shl <16 x i32> %four, %ls
%y = ashr <16 x i32> %high, splat (i32 24)
%product = mul <16 x i32> %xs, %y
%sum1 = add <16 x i32> %sum, %product
%n1 = add i64 %n, 1
%more = icmp slt i64 %n1, 64
br i1 %more, label %bytes, label %added
added:
store <16 x i32> %sum1, ptr %to, align 64
DONE""".replace("ROWS", _ROWS).replace("DONE", _DONE)

_MOVE = """
define internal void @NAME(ptr %tiles, i64 %t, ptr %base, i64 %apart) noinline #0 {
start: br label %head
head:
%r = phi i64 [ 0, %start ], [ %next, %head ]
%place = mul i64 %t, 1024
%offset = mul i64 %r, 64
%at = add i64 %place, %offset
%tile = getelementptr i8, ptr %tiles, i64 %at
%line = mul i64 %r, %apart
%memory = getelementptr i8, ptr %base, i64 %line
%row = load <16 x i32>, ptr %FROM, align 1
store <16 x i32> %row, ptr %TO, align 1
%next = add i64 %r, 1
%more = icmp slt i64 %next, 16
br i1 %more, label %head, label %done
done: ret void
}
"""
_MOVES = {"tileloadd64": ("memory", "tile"), "tilestored64": ("tile", "memory")}


def emulated(text: str) -> str:
    """A kernel's text without the matrix unit's instructions."""
    if "llvm.x86.tile" not in text:
        return text

    def call(found: re.Match[str]) -> str:
        name, args = found[1], found[2].replace("i8 ", "i64 ")
        return "" if name in ("ldtilecfg", "tilerelease") else f"call void @{name}(ptr %tiles, {args})"

    lines = [line for line in text.splitlines() if not _DECLARED.match(line)]
    body = "\n".join(lines)
    body = _CALL.sub(call, body).replace("start:", "start:\n%tiles = alloca [8192 x i8], align 64", 1)
    fma = "declare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)"
    moves = [
        _MOVE.replace("NAME", name).replace("%FROM", f"%{source}").replace("%TO", f"%{target}")
        for name, (source, target) in _MOVES.items()
    ]
    return "\n".join([body if fma in body else f"{fma}\n{body}", _FUNCTIONS, *moves])


@cache
def _address(spec: KernelSpec, machine: Machine) -> int:
    (place,) = map_code([machine_code(emulated(spec.ir()), machine.without("amx-tile"))])
    return place


def emulated_addresses(specs: Sequence[KernelSpec], machine: Machine) -> list[int]:
    """As `compile.addresses`, for a machine that need not have the unit."""
    return [_address(spec, machine) for spec in specs]  # type: ignore[arg-type]  # specs are frozen


def with_unit(machine: Machine) -> Machine:
    """The machine as if it had the unit."""
    return replace(machine, features=machine.features | {"amx-tile", "amx-bf16", "amx-int8"})
