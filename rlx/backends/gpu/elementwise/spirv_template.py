"""A compiled SPIR-V module as a library: a new main calls its functions, and only what main reaches is kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rlx.backends.gpu.elementwise.spirv import Inst, Module, Op
from rlx.errors import UnsupportedOp

PHYSICAL_STORAGE_BUFFER = 5349
PUSH_CONSTANT = 9
_BLOCK, _OFFSET = 2, 35  # decorations

# The kinds of an opcode's operands after its result type and result: "i" is an id, "l" a literal, "*" repeats the
# preceding kind.
_NO_RESULT = {
    Op.Name: "il*", Op.MemberName: "il*", Op.Decorate: "il*", Op.MemberDecorate: "il*", Op.ExecutionMode: "il*",
    Op.Store: "iil*", Op.Branch: "i", Op.BranchConditional: "iiil*", Op.LoopMerge: "iil*", Op.SelectionMerge: "il",
    Op.Return: "", Op.ReturnValue: "i", Op.Unreachable: "", Op.FunctionEnd: "", Op.TypeForwardPointer: "il",
}  # fmt: skip
_RESULT_ONLY = {
    Op.TypeVoid: "", Op.TypeBool: "", Op.TypeInt: "ll", Op.TypeFloat: "l", Op.TypeVector: "il", Op.TypeArray: "ii",
    Op.TypeRuntimeArray: "i", Op.TypeStruct: "i*", Op.TypePointer: "li", Op.TypeFunction: "i*", Op.Label: "",
    Op.ExtInstImport: "l*",
}  # fmt: skip
_MIXED = {
    Op.Constant: "l*", Op.Load: "il*", Op.ExtInst: "ili*", Op.CompositeExtract: "il*", Op.CompositeInsert: "iil*",
    Op.VectorShuffle: "iil*", Op.Function: "li", Op.Variable: "li*",
}  # fmt: skip
# Opcodes of the arithmetic and logic sections: a result type, a result and ids.
_PLAIN_RANGES = ((1, 1), (41, 42), (44, 44), (46, 46), (55, 57), (65, 65), (77, 84), (109, 215), (245, 245))
_HEADER = frozenset(
    {Op.Capability, Op.Extension, Op.ExtInstImport, Op.MemoryModel, Op.EntryPoint, Op.ExecutionMode}
    | {Op.Source, Op.SourceContinued, Op.SourceExtension, Op.String, Op.ModuleProcessed, Op.Name, Op.MemberName}
)


def result_of(inst: Inst) -> int | None:
    """The id an instruction defines."""
    if inst.op in _NO_RESULT:
        return None
    return inst.words[0] if inst.op in _RESULT_ONLY else inst.words[1]


def ids_used(inst: Inst) -> list[int]:
    """The ids an instruction refers to, its result type included. Raises: UnsupportedOp for an unknown opcode."""
    words, used = inst.words, []
    if inst.op in _NO_RESULT:
        pattern = _NO_RESULT[inst.op]
    elif inst.op in _RESULT_ONLY:
        pattern, words = _RESULT_ONLY[inst.op], words[1:]
    elif inst.op in _MIXED or any(a <= inst.op <= b for a, b in _PLAIN_RANGES):
        pattern, used, words = _MIXED.get(inst.op, "i*"), [words[0]], words[2:]
    else:
        raise UnsupportedOp(f"SPIR-V template: opcode {inst.op} is not among those that rlx takes apart")
    for k, word in enumerate(words):
        kind = pattern[k] if k < len(pattern) and pattern[k] != "*" else pattern[-2]
        if kind == "i":
            used.append(word)
    return used


class Template:
    """A module taken apart: header, decorations, types with constants and variables, functions by name."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.names = module.names()
        self.functions: dict[int, list[Inst]] = {}
        self.globals: dict[int, Inst] = {}
        self.by_content: dict[tuple[int, ...], int] = {}
        self.decorations: list[Inst] = []
        self.order: list[Inst] = []  # types, constants and variables
        body: list[Inst] | None = None
        for inst in module.insts:
            if inst.op == Op.Function:
                body = self.functions[inst.words[1]] = []
            if body is not None:
                body.append(inst)
                body = None if inst.op == Op.FunctionEnd else body
            elif inst.op in (Op.Decorate, Op.MemberDecorate):
                self.decorations.append(inst)
            elif inst.op not in _HEADER:
                self.order.append(inst)
                result = result_of(inst)
                if result is not None:
                    self.globals[result] = inst
                    self.by_content.setdefault(content(inst), result)
        self.imports = [i for i in module.insts if i.op == Op.ExtInstImport]
        self.memory_model = next(i for i in module.insts if i.op == Op.MemoryModel)
        self.modes = [i for i in module.insts if i.op == Op.ExecutionMode]
        entry = next(i for i in module.insts if i.op == Op.EntryPoint)
        self.entry = entry.words[1]
        self.callable = {name.split("(")[0]: id_ for name, id_ in self.names.items() if id_ in self.functions}
        self._uses: dict[int, frozenset[int]] = {}

    def uses(self, function: int) -> frozenset[int]:
        """The ids a function refers to."""
        if function not in self._uses:
            self._uses[function] = frozenset(u for i in self.functions[function] for u in ids_used(i))
        return self._uses[function]

    def start(self) -> Builder:
        return Builder(self, self.module.bound)


def content(inst: Inst) -> tuple[int, ...]:
    """An instruction without its result id: equal types and constants have equal contents."""
    if inst.op in _RESULT_ONLY:
        return (inst.op, *inst.words[1:])
    return (inst.op, inst.words[0], *inst.words[2:])


@dataclass(slots=True)
class Builder:
    """A new main under construction. Methods return the id of the instruction that they add."""

    template: Template
    bound: int
    added: list[Inst] = field(default_factory=list)
    decorations: list[Inst] = field(default_factory=list)
    known: dict[tuple[int, ...], int] = field(default_factory=dict)
    code: list[Inst] = field(default_factory=list)

    def new(self) -> int:
        self.bound += 1
        return self.bound - 1

    # -- types and constants

    def declare(self, inst_op: int, *words: int, typed: bool = False) -> int:
        """Declares a type or, if `typed`, a constant whose first word is its type. Equal ones are declared once."""
        key = (inst_op, *words)
        result = self.template.by_content.get(key) or self.known.get(key)
        if result is None:
            result = self.known[key] = self.new()
            self.added.append(Inst(inst_op, [words[0], result, *words[1:]] if typed else [result, *words]))
        return result

    def uint(self, value: int) -> int:
        return self.declare(Op.Constant, self.declare(Op.TypeInt, 32, 0), value & 0xFFFFFFFF, typed=True)

    def named_pointer(self, name: str) -> int:
        """The pointer type of a buffer reference, by the reference's name in the source."""
        return self.declare(Op.TypePointer, PHYSICAL_STORAGE_BUFFER, self.template.names[name])

    def push_constants(self, members: Sequence[int], offsets: Sequence[int]) -> int:
        """The push constant block: a variable whose struct has these member types at these offsets."""
        struct = self.new()
        self.added.append(Inst(Op.TypeStruct, [struct, *members]))
        self.decorations.append(Inst(Op.Decorate, [struct, _BLOCK]))
        for k, offset in enumerate(offsets):
            self.decorations.append(Inst(Op.MemberDecorate, [struct, k, _OFFSET, offset]))
        variable = self.new()
        kind = self.declare(Op.TypePointer, PUSH_CONSTANT, struct)
        self.added.append(Inst(Op.Variable, [kind, variable, PUSH_CONSTANT]))
        return variable

    # -- instructions of main

    def emit(self, op: int, *words: int) -> None:
        self.code.append(Inst(op, list(words)))

    def make(self, op: int, kind: int, *words: int) -> int:
        result = self.new()
        self.code.append(Inst(op, [kind, result, *words]))
        return result

    def call(self, name: str, *args: int) -> int:
        """Calls a function of the template. Raises: UnsupportedOp when there is none of that name."""
        function = self.template.callable.get(name)
        if function is None:
            raise UnsupportedOp(f"tree kernel: {name} is not a function of prims.h; the op belongs on the host")
        return self.make(Op.FunctionCall, self.template.functions[function][0].words[0], function, *args)

    # -- the module

    def module(self) -> Module:
        """The finished module: main is `code`; functions, types and constants that main does not reach are dropped."""
        t = self.template
        void = self.declare(Op.TypeVoid)
        kind = self.declare(Op.TypeFunction, void)
        main = [Inst(Op.Function, [void, t.entry, 0, kind]), *self.code, Inst(Op.FunctionEnd, [])]
        functions = _reached(t, (u for i in main for u in ids_used(i)))
        alive = {u for i in main for u in ids_used(i)}
        for f in functions:
            alive |= t.uses(f)
        globals_ = {**t.globals, **{r: i for i in self.added if (r := result_of(i)) is not None}}
        queue = [u for u in alive if u in globals_]
        while queue:
            for u in ids_used(globals_[queue.pop()]):
                if u not in alive:
                    alive.add(u)
                    if u in globals_:
                        queue.append(u)
        order = [i for i in (*t.order, *self.added) if _keeps(i, alive)]
        bodies = [i for f in t.functions if f in functions for i in t.functions[f]]
        defined = alive | {r for i in bodies if (r := result_of(i)) is not None}
        decorations = [i for i in (*t.decorations, *self.decorations) if i.words[0] in defined]
        variables = [i.words[1] for i in order if i.op == Op.Variable]
        entry = Inst(Op.EntryPoint, [5, t.entry, 0x6E69616D, 0, *variables])  # GLCompute, "main"
        capabilities = [Inst(Op.Capability, [c]) for c in _capabilities(order)]
        head = [*capabilities, *t.imports, t.memory_model, entry, *t.modes]
        insts = [*head, *decorations, *order, *main, *bodies]
        return Module(t.module.version, t.module.generator, self.bound, insts)


def _reached(template: Template, start: Iterable[int]) -> set[int]:
    """The functions among `start` and all they call."""
    result: set[int] = set()
    queue = [f for f in start if f in template.functions]
    while queue:
        f = queue.pop()
        if f not in result and f != template.entry:
            result.add(f)
            queue += [u for u in template.uses(f) if u in template.functions]
    return result


def _keeps(inst: Inst, alive: set[int]) -> bool:
    result = result_of(inst)
    return (result if result is not None else inst.words[0]) in alive


def _capabilities(order: Sequence[Inst]) -> list[int]:
    """The capabilities that the types left need: f64, 64-bit integers, storage of 16 and of 8 bits."""
    widths = {i.words[1] for i in order if i.op == Op.TypeInt}
    wanted = [1, 5347]  # Shader, PhysicalStorageBufferAddresses
    wanted += [10] if any(i.words[1] == 64 for i in order if i.op == Op.TypeFloat) else []
    wanted += [11] if 64 in widths else []
    wanted += [4433] if 16 in widths else []
    wanted += [4448] if 8 in widths else []
    return wanted
