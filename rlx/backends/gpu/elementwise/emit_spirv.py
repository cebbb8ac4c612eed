"""Tree kernels as SPIR-V: a new main calls functions of the template `tree.spv`; functions not called are dropped.

The template holds every function of prims.h (`tree64.spv`, for trees that compute in f64, those of prims64.h too) and
the loads and stores of types.glsl, compiled ahead by glslang. This module writes only main: a loop over the elements,
nearly all of it OpFunctionCall. No compiler is needed at run time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from rlx.backends.gpu.elementwise.spirv import Module, Op, float_modes
from rlx.backends.gpu.elementwise.spirv_template import PUSH_CONSTANT, Builder, Template
from rlx.backends.gpu.elementwise.tree import (
    THROUGH_META,
    WIDE_PACK,
    Call,
    Class,
    Const,
    Index,
    Load,
    Program,
    double_bits,
    heavy,
    lanes,
    literal_bits,
    program,
)
from rlx.backends.gpu.modules import modules
from rlx.backends.gpu.program.steps import TreeKernel, TreeOperand

# Scalar functions, and the template's functions that do the same for four lanes in fewer instructions.
_BY_FOURS = {"p_round_bf16": "round4_bf16", "p_round_f16": "round4_f16"}


@cache
def template(wide: bool = False, fused: bool = False) -> Template:
    """The shipped template: that of f64 (`wide`), that of devices with the feature "fused_fma" (`fused`), or the common
    one. Each is read once."""
    name = "tree64" if wide else "tree_fused" if fused else "tree"
    return Template(Module.parse(modules().read(name)))


def emit_spirv(kernel: TreeKernel, features: frozenset[str], packs: bool = True) -> bytes:
    """The SPIR-V module of a tree kernel, entry point `main`, 256 threads a workgroup, for Vulkan 1.2.

    The push constants hold the arguments, in the kernel's order: addresses of 8 bytes, then u32 n. A batched kernel is
    given one table instead, from which it reads the addresses of its operands. The module declares the IEEE behaviour
    that the features offer. `packs` adds a loop over packs of 4 or 8 neighbouring elements, for wider memory accesses:
    a software device gains nothing by it and takes long to compile it.
    """
    code = program(kernel)
    main = _Main(kernel, code, template(code.wide, "fused_fma" in features).start())
    main.write(packs)
    return float_modes(main.b.module().encode(), features)


class _Main:
    def __init__(self, kernel: TreeKernel, code: Program, builder: Builder) -> None:
        self.kernel = kernel
        self.b = builder
        self.program = code
        self.lanes = lanes(kernel)
        self.operands: list[TreeOperand] = [*kernel.inputs, *kernel.outputs]
        self.strided = [k for k, o in enumerate(self.operands) if o.access in THROUGH_META]
        self.uint_t = builder.declare(Op.TypeInt, 32, 0)
        self.bool_t = builder.declare(Op.TypeBool)
        self.pointers: list[int] = []
        self.scalars: dict[int, int] = {}
        self.dims: list[int] = []
        self.strides: dict[int, list[int]] = {}  # operand -> first element, then strides
        self.consts: dict[int, int] = {}
        self.counts = [k for k, v in enumerate(code.values) if isinstance(v, Index)]

    def write(self, packs: bool) -> None:
        b, n_in = self.b, len(self.kernel.inputs)
        self.label(b.new())
        n = self.arguments()
        first, step = b.call("first_index"), b.call("index_step")
        for k, o in enumerate(self.kernel.inputs):
            if o.access == "scalar":
                self.scalars[k] = b.call(f"load_{o.storage}", self.pointers[k], b.uint(0))
        for i, v in enumerate(self.program.values):
            if isinstance(v, Const):
                self.consts[i] = self.constant(v)
        if self.kernel.packed:
            self.loop(first, n, step, lambda q: self.pack(q, n_in))
            b.emit(Op.Return)
            return
        if packs and not self.strided and not heavy(self.kernel.trees):
            count = self.packs(n)
            self.loop(first, count, step, lambda q: self.pack(q, n_in))
            done = b.make(Op.IMul, self.uint_t, count, b.uint(self.lanes))
            first = b.make(Op.IAdd, self.uint_t, done, first)
        self.loop(first, n, step, lambda i: self.element(i, n_in))
        b.emit(Op.Return)

    def label(self, id_: int) -> int:
        self.b.emit(Op.Label, id_)
        return id_

    def arguments(self) -> int:
        """Reads the push constants (and the meta block). Returns n."""
        b = self.b
        words_t = b.named_pointer("ptr_u32")
        of_operands = [b.named_pointer(f"ptr_{o.storage}") for o in self.operands]
        kinds = [words_t] if self.strided else []
        kinds += [words_t] if self.kernel.batched else of_operands
        block = b.push_constants([*kinds, self.uint_t], [8 * k for k in range(len(kinds) + 1)])
        values = []
        for k, kind in enumerate([*kinds, self.uint_t]):
            place = b.make(
                Op.AccessChain, b.declare(Op.TypePointer, PUSH_CONSTANT, kind), block, b.uint(k)
            )
            values.append(b.make(Op.Load, kind, place))
        if self.strided:
            meta, rank = values.pop(0), self.kernel.rank
            words = [b.call("word", meta, b.uint(k)) for k in range(rank + len(self.strided) * (rank + 1))]
            self.dims = words[:rank]
            for k, operand in enumerate(self.strided):
                at = rank + k * (rank + 1)
                self.strides[operand] = words[at : at + rank + 1]
        n = values.pop()
        self.pointers = self.looked_up(values[0], of_operands) if self.kernel.batched else values
        return n

    def looked_up(self, table: int, kinds: list[int]) -> list[int]:
        """Loads the operands' pointers, which have these types, from the workgroup's row of the table."""
        b = self.b
        first = b.make(Op.IMul, self.uint_t, b.call("set_index"), b.uint(len(kinds)))
        at = [b.make(Op.IAdd, self.uint_t, first, b.uint(k)) for k in range(len(kinds))]
        return [b.make(Op.Bitcast, kind, b.call("address", table, i)) for kind, i in zip(kinds, at, strict=True)]

    def loop(self, start: int, end: int, step: int, body: Callable[[int], None]) -> int:
        """for (i = start; i < end; i += step) body(i). Returns the final i, at which the loop ended."""
        b = self.b
        entry = next(inst.words[0] for inst in reversed(b.code) if inst.op == Op.Label)
        head, test, inside, after, done = (b.new() for _ in range(5))
        i, following = b.new(), b.new()
        b.emit(Op.Branch, head)
        self.label(head)
        b.emit(Op.Phi, self.uint_t, i, start, entry, following, after)
        b.emit(Op.LoopMerge, done, after, 0)
        b.emit(Op.Branch, test)
        self.label(test)
        b.emit(Op.BranchConditional, b.make(Op.ULessThan, self.bool_t, i, end), inside, done)
        self.label(inside)
        body(i)
        b.emit(Op.Branch, after)
        self.label(after)
        b.emit(Op.IAdd, self.uint_t, following, i, step)
        b.emit(Op.Branch, head)
        self.label(done)
        return i

    def packs(self, n: int) -> int:
        """The number of packs of neighbouring elements; 0 if a pointer is not aligned to a pack."""
        b = self.b
        low = b.uint(0)
        for pointer, o in zip(self.pointers, self.operands, strict=True):
            if o.access == "flat":
                pair = b.make(Op.Bitcast, b.declare(Op.TypeVector, self.uint_t, 2), pointer)
                word = b.make(Op.CompositeExtract, self.uint_t, pair, 0)
                mask = b.uint(min(self.lanes * o.storage.itemsize, 16) - 1)
                low = b.make(Op.BitwiseOr, self.uint_t, low, b.make(Op.BitwiseAnd, self.uint_t, word, mask))
        aligned = b.make(Op.IEqual, self.bool_t, low, b.uint(0))
        whole = b.make(Op.UDiv, self.uint_t, n, b.uint(self.lanes))
        return b.make(Op.Select, self.uint_t, aligned, whole, b.uint(0))

    def pack(self, q: int, n_in: int) -> None:
        """Pack q: loads of all its elements, the tree for each, and stores of all."""
        b = self.b
        at = self.places(q)
        wide = self.lanes == WIDE_PACK
        loaded: dict[int, list[int]] = {}  # four elements at a time
        narrow: dict[int, tuple[int, ...]] = {}  # fewer elements than lanes
        for k, v in enumerate(self.program.values):
            if isinstance(v, Load) and v.operand not in self.scalars:
                access, pointer, place = self.operands[v.operand].access, self.pointers[v.operand], at[v.operand]
                if access == "repeated":
                    narrow[k] = (b.call(f"load_{v.storage}", pointer, place),)
                elif access == "doubled":
                    first = b.make(Op.IMul, self.uint_t, place, b.uint(2))
                    places = (first, b.make(Op.IAdd, self.uint_t, first, b.uint(1)))
                    narrow[k] = tuple(b.call(f"load_{v.storage}", pointer, p) for p in places)
                elif wide:
                    words = b.call(f"load8_{v.storage}", pointer, place)
                    loaded[k] = [b.call(f"{half}_{v.storage}", words) for half in ("low4", "high4")]
                else:
                    loaded[k] = [b.call(f"load4_{v.storage}", pointer, place)]
        lane_values: list[dict[int, int]] = []
        for lane in range(self.lanes):
            values = {k: few[lane * len(few) // self.lanes] for k, few in narrow.items()}
            for k in self.counts:
                place = b.make(Op.IMul, self.uint_t, q, b.uint(self.lanes))
                values[k] = self.signed(b.make(Op.IAdd, self.uint_t, place, b.uint(lane)))
            for k, fours in loaded.items():
                kind = self.type_of(self.program.values[k].cls)
                values[k] = b.make(Op.CompositeExtract, kind, fours[lane // 4], lane % 4)
            lane_values.append(values)
        self.compute(lane_values)
        for s in self.program.stores:
            pointer, place = self.pointers[n_in + s.operand], at[n_in + s.operand]
            b.call(f"store{self.lanes}_{s.storage}", pointer, place, *self.fours(lane_values, s.value))

    def fours(self, lanes: list[dict[int, int]], k: int) -> list[int]:
        """Value k of every lane, as vectors of four lanes."""
        kind = self.b.declare(Op.TypeVector, self.type_of(self.program.values[k].cls), 4)
        values = [lane[k] for lane in lanes]
        return [
            self.b.make(Op.CompositeConstruct, kind, *values[i : i + 4]) for i in range(0, len(values), 4)
        ]

    def element(self, i: int, n_in: int) -> None:
        """Element i: loads, the tree, stores."""
        at = self.places(i)
        loaded = {
            k: self.b.call(f"load_{v.storage}", self.pointers[v.operand], at[v.operand])
            for k, v in enumerate(self.program.values)
            if isinstance(v, Load) and v.operand not in self.scalars
        }
        loaded.update((k, self.signed(i)) for k in self.counts)
        self.compute([loaded])
        for s in self.program.stores:
            target = n_in + s.operand
            self.b.call(f"store_{s.storage}", self.pointers[target], at[target], loaded[s.value])

    def compute(self, lanes: list[dict[int, int]]) -> None:
        """Adds all values of the program to those loaded: lane by lane, except functions that take four lanes at a
        time."""
        start = 0
        for k, v in enumerate(self.program.values):
            if len(lanes) > 1 and isinstance(v, Call) and v.name in _BY_FOURS:
                self.scalar(lanes, start, k)
                kind, start = self.type_of(v.cls), k + 1
                vectors = [self.b.call(_BY_FOURS[v.name], four) for four in self.fours(lanes, v.args[0])]
                for i, lane in enumerate(lanes):
                    lane[k] = self.b.make(Op.CompositeExtract, kind, vectors[i // 4], i % 4)
        self.scalar(lanes, start, len(self.program.values))

    def scalar(self, lanes: list[dict[int, int]], start: int, end: int) -> None:
        """Computes values `start` to `end`, one lane after another."""
        for values in lanes:
            for k, v in enumerate(self.program.values[start:end], start):
                if isinstance(v, Const):
                    values[k] = self.consts[k]
                elif isinstance(v, Load | Index):
                    values.setdefault(k, self.scalars.get(v.operand, 0) if isinstance(v, Load) else 0)
                else:
                    values[k] = self.b.call(v.name, *(values[a] for a in v.args))

    def signed(self, value: int) -> int:
        return self.b.make(Op.Bitcast, self.type_of("i"), value)

    def type_of(self, cls: Class) -> int:
        if cls == "b":
            return self.bool_t
        if cls in ("f", "d"):
            return self.b.declare(Op.TypeFloat, 32 if cls == "f" else 64)
        return self.b.declare(Op.TypeInt, 64 if cls == "l" else 32, 1)

    def places(self, i: int) -> list[int]:
        """Each operand's element offset at linear index i."""
        b = self.b
        at = [b.uint(0) if o.access == "scalar" else i for o in self.operands]
        if not self.strided:
            return at
        for operand in self.strided:
            at[operand] = self.strides[operand][0]
        left = i
        for d in reversed(range(self.kernel.rank)):
            coordinate = left
            if d:
                quotient = b.make(Op.UDiv, self.uint_t, left, self.dims[d])
                whole = b.make(Op.IMul, self.uint_t, quotient, self.dims[d])
                coordinate, left = b.make(Op.ISub, self.uint_t, left, whole), quotient
            for operand in self.strided:
                part = b.make(Op.IMul, self.uint_t, coordinate, self.strides[operand][d + 1])
                at[operand] = b.make(Op.IAdd, self.uint_t, at[operand], part)
        return at

    def constant(self, const: Const) -> int:
        b = self.b
        if const.cls == "b":
            return b.declare(Op.ConstantTrue if const.value else Op.ConstantFalse, self.bool_t, typed=True)
        if const.cls == "f":
            kind = b.declare(Op.TypeFloat, 32)
            return b.declare(Op.Constant, kind, literal_bits(float(const.value)), typed=True)
        if const.cls == "i":
            value = int(const.value)
            return b.declare(Op.Constant, b.declare(Op.TypeInt, 32, 1), value & 0xFFFFFFFF, typed=True)
        value = double_bits(float(const.value)) if const.cls == "d" else int(const.value)
        words = (value & 0xFFFFFFFF, value >> 32 & 0xFFFFFFFF)
        kind = b.declare(Op.TypeFloat, 64) if const.cls == "d" else b.declare(Op.TypeInt, 64, 1)
        return b.declare(Op.Constant, kind, *words, typed=True)
