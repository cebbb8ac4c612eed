"""Lowering of integer products with packed weights: one launch rounds x, one multiplies it by the packed blocks."""

from __future__ import annotations

import math

from rlx.backends.gpu.gemm.packed import ROWS
from rlx.backends.gpu.gemm.packed_kernels import layout
from rlx.backends.gpu.program.casts import THREADS, fits, quads, stores
from rlx.backends.gpu.program.kernel import FLOATS, KernelDecl, declare, reads, uints, writes
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.dtypes import PACKED, f32
from rlx.ir import Node
from rlx.ops.packed_int8 import BLOCK


def _trial(name: str, align: int, across: int, grouped: bool) -> tuple[int, ...]:
    return (*layout(PACKED[name], align).values(), across, grouped)


INT8_BLOCKS = declare(
    KernelDecl(
        "int8_blocks",
        about="q (n words of four) and d (n / 8) = the integers and scales of blocks of 32 elements of x.",
        grid="a thread for each four elements",
        args=(*reads(x="T"), *writes(q="u32", d="f32"), *uints("n")),
        variants={"T": FLOATS},
        constants={"X_QUADS": False},
        trials=((False,), (True,)),
        headers=("prims",),
    )
)
PACKED_INT8 = declare(
    KernelDecl(
        "packed_int8",
        about="y (m, n) = x (m, blocks * BLOCK), integers with scales d, times the transposed packed rows of q.",
        grid="a group of 256 for each 256 / ACROSS rows of q, for each ROWS rows of x (of an expert)",
        args=(
            *reads(x="u32", d="f32", q="u32", sizes="i32"), *writes(y="T"),
            *uints("m", "n", "blocks", "pitch", "experts"),
        ),
        variants={"T": FLOATS, "ROWS": tuple(map(str, ROWS)), "DOT": ("plain", "packed")},
        constants={**layout(PACKED["q4_0"], 1), "ACROSS": 32, "GROUPED": False},
        trials=(_trial("q4_0", 1, 32, True), _trial("q6_k", 16, 8, False), _trial("int8_zp", 4, 4, False)),
        unroll=True,
        new_compiler=True,
    )
)  # fmt: skip


def _native(node: Node, features: frozenset[str]) -> bool:
    """Drivers without 16-bit storage compile this kernel for minutes, as they do packed_rows (gemm/packed.py)."""
    plain = [t for t in (*node.inputs, *node.outputs) if not t.dtype.is_packed]
    each = all(stores(t.dtype, features) for t in plain) and fits(*(t.type for t in plain))
    return each and "16bit_storage" in features


@lowers("packed_matmul_int8", "grouped_packed_matmul_int8", when=_native)
def lower_integer_product(ctx: Lowering, node: Node) -> None:
    """Quantizes the rows of x to words and scales in workspace, then launches the products once, also for experts."""
    y, (x, q, *sizes) = node.output, node.inputs
    if y.size == 0:
        return
    source, weight, kind = ctx.ref(x), ctx.ref(q), ctx.storage(x)
    n, k, m = y.shape[-1], q.shape[-1], y.size // y.shape[-1]
    whole, scales = ctx.scratch(x.size), ctx.scratch(x.size // BLOCK * f32.itemsize)
    if x.size:
        kernel = INT8_BLOCKS(T=kind.name, X_QUADS=quads(source, itemsize=kind.itemsize))
        ctx.launch(kernel, ctx.groups(math.ceil(x.size / 4 / THREADS)), [source, whole, scales, x.size // 4])
    blocks = k // q.dtype.storage.elements
    pitch = blocks * q.dtype.storage.nbytes
    align = next(a for a in (16, 4, 1) if weight.offset % a == 0 and pitch % a == 0)
    experts = q.shape[0] if sizes else 0
    each = math.ceil(m / max(experts, 1))  # rows of an expert, on average
    rows = next((r for r in ROWS if each <= r), ROWS[-1])
    # A software driver takes seconds to compile a kernel that is unrolled further.
    rows = min(rows, 4) if ctx.target.software else rows
    across = next((a for a in (4, 8, 16) if math.ceil(k / 32) <= a), 32)
    kernel = PACKED_INT8(
        T=ctx.storage(y).name, ROWS=str(rows), DOT="packed" if "intdot" in ctx.target.features else "plain",
        **layout(q.dtype, align), ACROSS=across, GROUPED=bool(sizes),
    )  # fmt: skip
    shares = math.ceil(m / rows) + (experts + 1 if sizes else 0)
    ctx.launch(
        kernel,
        ctx.groups(math.ceil(n / (THREADS // across)) * shares),
        [whole, scales, weight, ctx.ref(sizes[0]) if sizes else scales, ctx.ref(y), m, n, blocks, pitch, experts],
    )
