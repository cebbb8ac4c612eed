"""Kernels from IR to addresses: compiled by llvmlite into position-independent machine code, and linked here."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cache
from typing import Any, Protocol

from rlx.backends.cpu.engine.code_memory import map_code
from rlx.backends.cpu.engine.elf import link
from rlx.backends.cpu.engine.machine import Machine

SYMBOL = "kernel"  # the function that each module defines


class KernelSpec(Protocol):
    """What a kernel is specialized for: hashable, equal where the machine code is, with a `repr` that names it all."""

    def ir(self) -> str:
        """The LLVM module with the function `kernel` (`ir.Kernel("kernel")`)."""
        ...


_lock = threading.Lock()
_addresses: dict[tuple[KernelSpec, Machine], int] = {}


def addresses(specs: Sequence[KernelSpec], machine: Machine) -> list[int]:
    """The address of each kernel, compiled for the machine where it is not in memory yet. They stay for the process."""
    with _lock:
        missing = [s for s in dict.fromkeys(specs) if (s, machine) not in _addresses]
        if missing:
            images = [machine_code(s.ir(), machine) for s in missing]
            for spec, place in zip(missing, map_code(images), strict=True):
                _addresses[spec, machine] = place
        return [_addresses[s, machine] for s in specs]


def machine_code(text: str, machine: Machine) -> bytes:
    """The position-independent image of a module; its function `kernel` is at the image's start."""
    binding, target = _target(machine)
    module = binding.parse_assembly(text)
    module.verify()
    module.triple = machine.triple
    tuning = binding.create_pipeline_tuning_options(speed_level=2)
    tuning.loop_vectorization = tuning.slp_vectorization = tuning.loop_unrolling = False
    builder = binding.create_pass_builder(target, tuning)
    builder.getModulePassManager().run(module, builder)
    return link(target.emit_object(module), SYMBOL)


@cache
def _target(machine: Machine) -> tuple[Any, Any]:
    import llvmlite.binding as binding  # where it is used: what the cache holds needs no compiler

    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    binding.initialize_native_asmparser()  # for the system calls of `runner`
    generic = "x86-64" if machine.arch == "x86_64" else "generic"
    target = binding.Target.from_triple(machine.triple)
    made = target.create_target_machine(
        cpu=generic, features=machine.llvm_features, opt=3, reloc="pic", codemodel="small"
    )
    return binding, made
