"""The steps both GPUs run: Launch, Gemm, Copy, HostCall, ControlCall. Lowering makes them, a device records them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from rlx.dtypes import DType
from rlx.ir import Expr, Node


@dataclass(frozen=True, slots=True)
class Ref:
    """A byte range of a segment: what a pointer argument refers to, and the range that is checked for hazards.

    The pointer's value is the segment's address + `offset`; the step touches no byte outside offset..offset+nbytes.
    """

    segment: str
    offset: int
    nbytes: int

    @property
    def end(self) -> int:
        return self.offset + self.nbytes

    def overlaps(self, other: Ref) -> bool:
        return self.segment == other.segment and self.offset < other.end and other.offset < self.end


@dataclass(frozen=True, slots=True)
class FileKernel:
    """A declared kernel (`kernel.py`) with its variant and constants chosen.

    `defines` are compile-time words (NAME, value): on CUDA `-DNAME=value`, on Vulkan they select a precompiled module,
    `<stem>[-value…].spv`. `constants` are integers in the declaration's order: on Vulkan specialization constants 0, 1,
    …, on CUDA macros of the declared names.
    """

    stem: str
    defines: tuple[tuple[str, str], ...] = ()
    constants: tuple[int, ...] = ()


Access = Literal["flat", "scalar", "strided", "repeated", "doubled"]


@dataclass(frozen=True, slots=True)
class TreeOperand:
    """How a tree kernel accesses one of its tensors. `storage` is its dtype. `access` is "flat" (element i of the
    output's row-major order), "scalar" (always element 0) or "strided" (through the meta block). In packed kernels it
    may also be, through the meta block too, "repeated" (one element for a whole pack) or "doubled" (two elements for a
    pack, each for two neighbours)."""

    storage: DType
    access: Access


@dataclass(frozen=True, slots=True)
class TreeKernel:
    """A kernel generated from elementwise expressions; equal TreeKernels share one compiled kernel.

    Arguments, in order: the meta pointer (only when an operand is strided), input pointers, output pointers, u32 n.
    Meta block, i32: `rank` dims (row-major iteration space, collapsed), then for each strided operand, inputs first,
    the index of its first element and `rank` element strides (0 where broadcast, negative where reversed): a pointer is
    the start of the bytes touched, so a reversed operand does not start at index 0.

    A `packed` kernel works on packs of four neighbours along the innermost dimension: n and that dimension count packs,
    and so do the indices and strides of strided operands; those of repeated operands count elements, and those of
    doubled operands count pairs. Every address is aligned to a pack or pair (16 bytes at most).

    `short`: f32 inputs are intermediate values of a result that is rounded to 16 bits, so full f32 precision is not
    needed.

    A `batched` kernel computes the same trees for several sets of operands of one layout; workgroups (x, y, z) compute
    set z. Instead of operand pointers it takes one pointer to a table of 8-byte addresses: the inputs and outputs of
    set 0, then those of set 1, and so on.
    """

    trees: tuple[Expr, ...]
    inputs: tuple[TreeOperand, ...]
    outputs: tuple[TreeOperand, ...]
    rank: int  # 0 when no operand is strided
    packed: bool = False
    short: bool = False
    batched: bool = False


class Language(Enum):
    """The language in which a device takes kernels that users bring."""

    CUDA = "CUDA C++"
    SPIRV = "SPIR-V"


@dataclass(frozen=True, slots=True)
class SourceKernel:
    """A kernel that the user brings: `cuda`, text with `extern "C" __global__ void <name>(…)`; `spirv`, a module whose
    entry point is "main"; `threads` in a workgroup. Arguments: pointers, then ints as u32 and floats as f32."""

    name: str
    cuda: str | None
    spirv: bytes | None
    threads: int


Kernel = FileKernel | TreeKernel | SourceKernel
Arg = Ref | int | float


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch: `groups` workgroups; `args` as the kernel declares them, pointers first. `reads` and `writes`
    are the byte ranges touched (a Ref both read and written stands in both). For a batched kernel, `reads` is its
    table, then equally many ranges for each set of operands; `writes` has equally many for each set."""

    kernel: Kernel
    groups: tuple[int, int, int]
    args: tuple[Arg, ...]
    reads: tuple[Ref, ...]
    writes: tuple[Ref, ...]
    label: str = ""

    @property
    def sets(self) -> list[tuple[tuple[Ref, ...], tuple[Ref, ...]]]:
        """The byte ranges read and written by each set of operands; the sets are unordered. A kernel that is not
        batched has one set."""
        if not (isinstance(self.kernel, TreeKernel) and self.kernel.batched):
            return [(self.reads, self.writes)]
        count = self.groups[2]
        read, written = (len(self.reads) - 1) // count, len(self.writes) // count
        return [
            (self.reads[1 + k * read : 1 + (k + 1) * read], self.writes[k * written : (k + 1) * written])
            for k in range(count)
        ]


@dataclass(frozen=True, slots=True)
class Gemm:
    """Row-major C[m,n] = op(A) op(B), `batch` times, through the vendor's library (CUDA only; Vulkan launches).

    Strides between batch members are in elements; 0 repeats an operand. `precision` is "f32", "tf32", "f16" or "bf16".
    `bias`, n elements of C's dtype, is added before C is rounded; `relu` follows it.
    """

    a: Ref
    b: Ref
    c: Ref
    m: int
    n: int
    k: int
    a_dtype: DType
    b_dtype: DType
    c_dtype: DType
    transpose_a: bool
    transpose_b: bool
    batch: int
    stride_a: int
    stride_b: int
    stride_c: int
    precision: str
    label: str = ""
    bias: Ref | None = None
    stride_bias: int = 0
    relu: bool = False

    @property
    def reads(self) -> tuple[Ref, ...]:
        return (self.a, self.b) if self.bias is None else (self.a, self.b, self.bias)

    @property
    def writes(self) -> tuple[Ref, ...]:
        return (self.c,)


@dataclass(frozen=True, slots=True)
class Copy:
    """Copies source to target (equal sizes, not overlapping) on the device."""

    source: Ref
    target: Ref
    label: str = ""

    @property
    def reads(self) -> tuple[Ref, ...]:
        return (self.source,)

    @property
    def writes(self) -> tuple[Ref, ...]:
        return (self.target,)


@dataclass(frozen=True, slots=True)
class HostCall:
    """Runs a node with the CPU backend's kernel: only `reads` are copied to the host, and only `writes` back."""

    node: Node
    reads: tuple[Ref, ...]
    writes: tuple[Ref, ...]
    label: str = ""


@dataclass(frozen=True, slots=True)
class ControlCall:
    """Runs the bodies of a cond, while_loop or scan, each an executable of its own: the step list is cut here."""

    node: Node
    reads: tuple[Ref, ...]
    writes: tuple[Ref, ...]
    label: str = ""


@dataclass(frozen=True, slots=True)
class Collective:
    """Runs a node that waits for other ranks through the device's library (CUDA's NCCL); `dtype` is the dtype in
    memory."""

    node: Node
    dtype: DType
    reads: tuple[Ref, ...]
    writes: tuple[Ref, ...]
    label: str = ""


Step = Launch | Gemm | Copy | HostCall | ControlCall | Collective
