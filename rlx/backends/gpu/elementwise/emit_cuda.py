"""Tree kernels as CUDA C++: the text that NVRTC compiles."""

from __future__ import annotations

from rlx.backends.gpu.elementwise.tree import (
    THROUGH_META,
    Class,
    Const,
    Index,
    Load,
    Program,
    double_bits,
    lanes,
    literal_bits,
    program,
)
from rlx.backends.gpu.program.steps import TreeKernel, TreeOperand

TYPES: dict[Class, str] = {"f": "float", "d": "double", "i": "int", "l": "rlx_i64", "b": "bool"}
_IN_FLIGHT = 4  # elements a thread loads before it stores the first, where packs cannot be used


def emit_cuda(kernel: TreeKernel) -> str:
    """CUDA source of a tree kernel, entry point `tree`, 256 threads a block.

    Requires: the headers prims.h, prims64.h and storage.h of this folder; `-fmad=false -prec-div=true
    -prec-sqrt=true -ftz=false`.
    """
    return _Writer(kernel).text()


class _Writer:
    def __init__(self, kernel: TreeKernel) -> None:
        self.kernel = kernel
        self.program: Program = program(kernel)
        self.lanes = lanes(kernel)
        names = [f"x{i}" for i in range(len(kernel.inputs))] + [f"y{i}" for i in range(len(kernel.outputs))]
        self.operands = list(zip(names, (*kernel.inputs, *kernel.outputs), strict=True))
        self.strided = [(name, o) for name, o in self.operands if o.access in THROUGH_META]
        self.loads = [v for v in self.program.values if isinstance(v, Load)]
        self.counts = any(isinstance(v, Index) for v in self.program.values)

    def text(self) -> str:
        prims = "prims64.h" if self.program.wide else "prims.h"
        lines = [f'#include "{name}"' for name in (prims, "odd.h", "storage.h", "bodies/begin.h")]
        lines += ["", *self.body(), ""]
        if self.strided:
            lines += [*self.offsets(), ""]
        params = ["const int* meta"] if self.strided else []
        pointers = [f"const raw_{o.storage}* x{i}" for i, o in enumerate(self.kernel.inputs)]
        pointers += [f"raw_{o.storage}* y{i}" for i, o in enumerate(self.kernel.outputs)]
        params += ["const rlx_u64* table"] if self.kernel.batched else pointers
        lines.append('extern "C" __global__ void __launch_bounds__(256)')
        lines.append(f"tree({', '.join([*params, 'const uint n'])}) {{")
        lines.append("    BEGIN;")
        lines.append("    const uint first = (blockIdx.x + blockIdx.y * gridDim.x) * 256u + threadIdx.x;")
        lines.append("    const uint step = gridDim.x * gridDim.y * 256u;")
        if self.kernel.batched:
            lines += self.look_up(pointers)
        for i, o in enumerate(self.kernel.inputs):
            if o.access == "scalar":
                lines.append(f"    const raw_{o.storage} s{i} = x{i}[0];")
        if self.strided:
            lines.append("    Meta shape;")
            lines.append("    read_meta(meta, shape);")
        if self.kernel.packed:
            lines += self.pack_loop("n")
        else:
            lines += self.packs() if not self.strided else []
            lines += self.singles()
        return "\n".join([*lines, "}", ""])

    @staticmethod
    def look_up(pointers: list[str]) -> list[str]:
        """Loads the operands' pointers from the block's row of the table. The compiler knows that pointer parameters
        refer to global memory; for an address loaded from memory it has to be told."""
        lines = [f"    const rlx_u64* row = table + blockIdx.z * {len(pointers)}u;"]
        for k, pointer in enumerate(pointers):
            kind, name = pointer.rsplit(" ", 1)
            lines.append(f"    {kind} {name} = reinterpret_cast<{kind}>(row[{k}]);")
            lines.append(f"    __builtin_assume(__isGlobal({name}));")
        return lines

    # -- the tree: raw values in, raw values out

    def body(self) -> list[str]:
        params = [f"const raw_{v.storage} a{v.operand}" for v in self.loads]
        params += [f"raw_{s.storage}& b{s.operand}" for s in self.program.stores]
        params += ["const uint place"] if self.counts else []
        lines = [f"static __device__ __forceinline__ void body({', '.join(params)}) {{"]
        for i, v in enumerate(self.program.values):
            if isinstance(v, Load):
                text = f"v_{v.storage}(a{v.operand})"
            elif isinstance(v, Const):
                text = literal(v)
            elif isinstance(v, Index):
                text = "int(place)"
            else:
                text = f"{v.name}({', '.join(f't{a}' for a in v.args)})"
            lines.append(f"    const {TYPES[v.cls]} t{i} = {text};")
        lines += [f"    b{s.operand} = r_{s.storage}(t{s.value});" for s in self.program.stores]
        return [*lines, "}"]

    # -- flat operands: packs of neighbouring elements

    def packs(self) -> list[str]:
        flat = [name for name, o in self.operands if o.access == "flat"]
        lines = ["    uint done = 0u;", f"    if ({' && '.join(f'packed<{self.lanes}>({name})' for name in flat)}) {{"]
        lines.append(f"        const uint packs = n / {self.lanes}u;")
        lines += self.pack_loop("packs")
        return [*lines, f"        done = packs * {self.lanes}u;", "    }"]

    def pack_loop(self, end: str) -> list[str]:
        lines = [f"        for (rlx_u64 q = first; q < {end}; q += step) {{"]
        if self.strided:
            lines += ["            Offsets at;", "            locate(shape, uint(q), at);"]
        for name, o in self.operands:
            where = f"at.{name}" if o.access in THROUGH_META else "uint(q)"
            if o.access == "repeated":
                lines.append(f"            const raw_{o.storage} s{name[1:]} = {name}[{where}];")
            elif o.access == "doubled":
                load = f"load_pack<{self.lanes // 2}>({name}, uint({where}))"
                lines.append(f"            const Pack<raw_{o.storage}, {self.lanes // 2}> p{name} = {load};")
            elif o.access != "scalar":
                load = f" = load_pack<{self.lanes}>({name}, uint({where}))" if name[0] == "x" else ""
                lines.append(f"            Pack<raw_{o.storage}, {self.lanes}> p{name}{load};")
        place = f"uint(q) * {self.lanes}u + uint(k)"
        lines.append("#pragma unroll")
        lines.append(
            f"            for (int k = 0; k < {self.lanes}; ++k) body({self.arguments('.at[k]', place)});"
        )
        for i, o in enumerate(self.kernel.outputs):
            where = f"at.y{i}" if o.access in THROUGH_META else "q"
            lines.append(f"            store_pack<{self.lanes}>(y{i}, uint({where}), py{i});")
        return [*lines, "        }"]

    # -- any operands: several elements in flight

    def singles(self) -> list[str]:
        start = "first" if self.strided else "done + first"
        lines = [f"    for (rlx_u64 i = {start}; i < n; i += rlx_u64(step) * {_IN_FLIGHT}u) {{"]
        for name, o in self.operands:
            if o.access != "scalar":
                lines.append(f"        raw_{o.storage} p{name}[{_IN_FLIGHT}];")
        if self.strided:
            lines.append(f"        Offsets at[{_IN_FLIGHT}];")
        lines += ["#pragma unroll", f"        for (int k = 0; k < {_IN_FLIGHT}; ++k) {{"]
        lines.append("            const rlx_u64 j = i + rlx_u64(step) * uint(k);")
        lines.append("            const uint e = j < n ? uint(j) : n - 1u;")
        if self.strided:
            lines.append("            locate(shape, e, at[k]);")
        for i, o in enumerate(self.kernel.inputs):
            if o.access != "scalar":
                lines.append(f"            px{i}[k] = x{i}[{self.index(f'x{i}', o)}];")
        lines += ["        }", "#pragma unroll", f"        for (int k = 0; k < {_IN_FLIGHT}; ++k) {{"]
        lines.append("            const rlx_u64 j = i + rlx_u64(step) * uint(k);")
        lines.append("            const uint e = uint(j);")
        lines.append("            if (j >= n) continue;")
        lines.append(f"            body({self.arguments('[k]', 'e')});")
        for i, o in enumerate(self.kernel.outputs):
            lines.append(f"            y{i}[{self.index(f'y{i}', o)}] = py{i}[k];")
        return [*lines, "        }", "    }"]

    def index(self, name: str, operand: TreeOperand) -> str:
        return f"at[k].{name}" if operand.access == "strided" else ("e" if operand.access == "flat" else "0")

    def arguments(self, element: str, place: str) -> str:
        names = []
        for v in self.loads:
            access = self.kernel.inputs[v.operand].access
            lane = ".at[k / 2]" if access == "doubled" else element
            names.append(f"s{v.operand}" if access in ("scalar", "repeated") else f"px{v.operand}{lane}")
        names += [f"py{s.operand}{element}" for s in self.program.stores]
        return ", ".join([*names, place] if self.counts else names)

    def offsets(self) -> list[str]:
        """Device code that reads the meta block into registers and computes each strided operand's offset for a linear
        index."""
        rank, lines = self.kernel.rank, ["struct Meta {", f"    uint dims[{self.kernel.rank}];"]
        lines += [f"    int {name}[{rank + 1}];" for name, _ in self.strided]
        lines += ["};", "struct Offsets {", *(f"    int {name};" for name, _ in self.strided), "};"]
        lines += ["static __device__ __forceinline__ void read_meta(const int* meta, Meta& m) {", "#pragma unroll"]
        lines.append(f"    for (int d = 0; d < {rank}; ++d) m.dims[d] = uint(meta[d]);")
        for k, (name, _) in enumerate(self.strided):
            at = rank + k * (rank + 1)
            lines += ["#pragma unroll", f"    for (int d = 0; d <= {rank}; ++d) m.{name}[d] = meta[{at} + d];"]
        lines += ["}", "static __device__ __forceinline__ void locate(const Meta& m, uint i, Offsets& o) {"]
        lines += [f"    o.{name} = m.{name}[0];" for name, _ in self.strided]
        for d in reversed(range(rank)):
            if d:
                lines.append(f"    const uint q{d} = i / m.dims[{d}];")
                lines.append(f"    const int c{d} = int(i - q{d} * m.dims[{d}]);")
                lines.append(f"    i = q{d};")
            else:
                lines.append("    const int c0 = int(i);")
            lines += [f"    o.{name} += c{d} * m.{name}[{d + 1}];" for name, _ in self.strided]
        return [*lines, "}"]


def literal(const: Const) -> str:
    """A constant by its bits, so that the compiler rounds nothing."""
    if const.cls == "f":
        return f"RLX_FLOAT({literal_bits(float(const.value)):#010x}u)"
    if const.cls == "d":
        return f"RLX_DOUBLE({double_bits(float(const.value)):#018x}ULL)"
    if const.cls == "i":
        return f"int({int(const.value) & 0xFFFFFFFF:#x}u)"
    if const.cls == "l":
        return f"rlx_i64({int(const.value) & 0xFFFFFFFFFFFFFFFF:#x}ULL)"
    return "true" if const.value else "false"
