"""SPIR-V modules as lists of instructions: read, change, write. Follows the Khronos SPIR-V specification, version 1.5.

The module does only what rlx needs: it decorates float arithmetic so that no driver fuses it, and declares how floats
behave; `spirv_template` builds new modules from a compiled one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from rlx.errors import UnsupportedOp

MAGIC = 0x07230203


class Op:
    """Opcodes by name (section 3.49 of the specification)."""

    Name, MemberName, String, ExtInstImport, ExtInst = 5, 6, 7, 11, 12
    Source, SourceContinued, SourceExtension, ModuleProcessed = 3, 2, 4, 330
    MemoryModel, EntryPoint, ExecutionMode, Capability, Extension = 14, 15, 16, 17, 10
    TypeVoid, TypeBool, TypeInt, TypeFloat, TypeVector, TypeArray, TypeRuntimeArray = 19, 20, 21, 22, 23, 28, 29
    TypeStruct, TypePointer, TypeFunction, TypeForwardPointer = 30, 32, 33, 39
    ConstantTrue, ConstantFalse, Constant, Function, FunctionEnd, FunctionCall = 41, 42, 43, 54, 56, 57
    Variable, Load, Store, AccessChain, Decorate, MemberDecorate = 59, 61, 62, 65, 71, 72
    VectorShuffle, CompositeConstruct, CompositeExtract, CompositeInsert = 79, 80, 81, 82
    IAdd, ISub, IMul, UDiv, ULessThan, IEqual = 128, 130, 132, 134, 176, 170
    FAdd, FSub, FMul, VectorTimesScalar, Dot = 129, 131, 133, 142, 148
    VectorTimesMatrix, MatrixTimesVector, MatrixTimesMatrix, MatrixTimesScalar = 144, 145, 146, 143
    Bitcast, Select, BitwiseOr, BitwiseAnd = 124, 169, 197, 199
    Phi, LoopMerge, SelectionMerge, Label, Branch, BranchConditional = 245, 246, 247, 248, 249, 250
    Return, ReturnValue, Unreachable = 253, 254, 255


NO_CONTRACTION = 42
# Name of a feature -> capability and execution mode.
_FLOAT_MODES = {"float_controls": (4466, 4461), "denorm_preserve": (4464, 4459), "rte": (4467, 4462)}
_FLOAT64 = 10
CAPABILITIES = {
    1: "Shader", 9: "Float16", 10: "Float64", 11: "Int64", 22: "Int16", 39: "Int8", 61: "GroupNonUniform",
    63: "GroupNonUniformArithmetic", 65: "GroupNonUniformShuffle", 66: "GroupNonUniformShuffleRelative",
    4433: "StorageBuffer16BitAccess", 4448: "StorageBuffer8BitAccess", 4464: "DenormPreserve",
    4466: "SignedZeroInfNanPreserve", 4467: "RoundingModeRTE",
    5347: "PhysicalStorageBufferAddresses", 6022: "CooperativeMatrixKHR",
}  # fmt: skip
_CONTRACTED = frozenset(
    {
        Op.FAdd,
        Op.FSub,
        Op.FMul,
        Op.VectorTimesScalar,
        Op.Dot,
        Op.VectorTimesMatrix,
        Op.MatrixTimesVector,
        Op.MatrixTimesMatrix,
        Op.MatrixTimesScalar,
    }
)


@dataclass(slots=True)
class Inst:
    """One instruction: its opcode and the words after the first."""

    op: int
    words: list[int]

    def encode(self) -> list[int]:
        return [(len(self.words) + 1) << 16 | self.op, *self.words]


@dataclass(slots=True)
class Module:
    """A module in the order of the specification's logical layout: version, id bound, instructions."""

    version: int
    generator: int
    bound: int
    insts: list[Inst]

    @staticmethod
    def parse(data: bytes) -> Module:
        """Reads a module. Raises: UnsupportedOp for bytes that are no little-endian SPIR-V."""
        words = words_of(data)
        return Module(words[1], words[2], words[3], list(instructions(words)))

    def encode(self) -> bytes:
        """The module's bytes, little-endian."""
        head = np.array([MAGIC, self.version, self.generator, self.bound, 0], dtype="<u4").tobytes()
        return head + _encoded(self.insts)

    def names(self) -> dict[str, int]:
        """Ids by the name that the compiler recorded; of equal names the first."""
        result: dict[str, int] = {}
        for inst in self.insts:
            if inst.op == Op.Name:
                result.setdefault(text_of(inst.words[1:]), inst.words[0])
        return result

    def capabilities(self) -> list[str]:
        """The capabilities declared, by the specification's names (a number where this table lacks the name)."""
        return [CAPABILITIES.get(i.words[0], str(i.words[0])) for i in self.insts if i.op == Op.Capability]


def words_of(data: bytes) -> list[int]:
    """A module's words. Raises: UnsupportedOp for bytes that are no little-endian SPIR-V."""
    if len(data) < 20 or len(data) % 4:
        raise UnsupportedOp(f"SPIR-V module: {len(data)} bytes; expected a multiple of 4, at least 20")
    words: list[int] = np.frombuffer(data, dtype="<u4").tolist()
    if words[0] != MAGIC:
        raise UnsupportedOp(f"SPIR-V module: first word {words[0]:#x}, expected {MAGIC:#x}")
    return words


def instructions(words: list[int]) -> Iterator[Inst]:
    """A module's instructions, one after another. Raises: UnsupportedOp for one that extends past the module's end."""
    at = 5
    while at < len(words):
        count = words[at] >> 16
        if count == 0 or at + count > len(words):
            raise UnsupportedOp(f"SPIR-V module: instruction at word {at} of {len(words)} is {count} words long")
        yield Inst(words[at] & 0xFFFF, words[at + 1 : at + count])
        at += count


def text_of(words: Iterable[int]) -> str:
    """A literal string, up to its terminating zero byte."""
    return b"".join(w.to_bytes(4, "little") for w in words).split(b"\0", 1)[0].decode()


def no_contraction(module: Module) -> Module:
    """Decorates every float addition and multiplication with NoContraction, as `-fmad=false` does for CUDA.

    After: results are rounded operation by operation; only an explicit fma() fuses.
    """
    done = {i.words[0] for i in module.insts if i.op == Op.Decorate and i.words[1] == NO_CONTRACTION}
    want = [i.words[1] for i in module.insts if i.op in _CONTRACTED and i.words[1] not in done]
    last = max(k for k, i in enumerate(module.insts) if i.op in (Op.Decorate, Op.MemberDecorate, Op.ExecutionMode))
    module.insts[last + 1 : last + 1] = [Inst(Op.Decorate, [id_, NO_CONTRACTION]) for id_ in want]
    return module


def float_modes(data: bytes, features: frozenset[str]) -> bytes:
    """The module with execution modes for 32-bit floats, as far as the device has the features: NaN, infinity and -0
    are preserved ("float_controls"), subnormals are kept ("denorm_preserve"), results round to nearest even ("rte"). A
    module that uses f64 gets the same for it, by the features named with the suffix "_f64"."""
    declared: set[int] = set()
    entry, first_mode = 0, 20
    for inst in instructions(words_of(data)):  # capabilities and the entry point precede the first execution mode
        if inst.op == Op.ExecutionMode:
            break
        if inst.op == Op.Capability:
            declared.add(inst.words[0])
        elif inst.op == Op.EntryPoint:
            entry = inst.words[1]
        first_mode += 4 * (len(inst.words) + 1)
    wanted = [pair for word, pair in _FLOAT_MODES.items() if word in features and pair[0] not in declared]
    if not wanted:
        return data
    modes = [Inst(Op.ExecutionMode, [entry, mode, 32]) for _, mode in wanted]
    if _FLOAT64 in declared:
        offered = {pair for word, pair in _FLOAT_MODES.items() if f"{word}_f64" in features}
        modes += [Inst(Op.ExecutionMode, [entry, pair[1], 64]) for pair in wanted if pair in offered]
    capabilities = _encoded([Inst(Op.Capability, [capability]) for capability, _ in wanted])
    return data[:20] + capabilities + data[20:first_mode] + _encoded(modes) + data[first_mode:]


def _encoded(insts: Iterable[Inst]) -> bytes:
    return np.array([word for inst in insts for word in inst.encode()], dtype="<u4").tobytes()
