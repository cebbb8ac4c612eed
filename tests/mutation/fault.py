"""The record of a planted fault: one wrong text in the sources, and the cases and tests that should notice it."""

from __future__ import annotations

from dataclasses import dataclass

from rlx.conformance.case import Case, cases_of

VULKAN, CUDA = "vulkan", "cuda"
ENGINE, NUMPY, CPU = "compiled", "numpy", "cpu"
# The folders that faults of the CPU stand in: those of its engine, of NumPy's kernels, and of what both run.
ROOTS = {ENGINE: ("rlx/backends/cpu", "rlx/backends/device_code"), NUMPY: ("rlx/backends/cpu/host",), CPU: ("rlx",)}


@dataclass(frozen=True, slots=True)
class Fault:
    """`old` becomes `new` wherever it occurs in the files that match `file`, and the cases of `ops` should notice.

    `where` is what runs them: a Vulkan device, the CUDA sources run by the host, or the CPU with its compiled engine,
    with NumPy, or with each of them. The pattern is of files below rlx/backends/device_code, or below shaders for
    GLSL alone; for the CPU below ROOTS. `only` keeps the cases whose id holds one of its texts: compiling for CUDA's
    host takes long. `tests` of the CPU are pytest's names of those that should notice where no case does. `narrow`
    gives the device grids of three groups along X, so that small cases fold into Y. `unseen` says why no case can
    notice: such a fault counts as missed all the same. `needs` names a feature of the processor without which a fault
    of the engine is not planted."""

    name: str
    file: str
    old: str
    new: str
    ops: tuple[str, ...]
    where: str = VULKAN
    only: tuple[str, ...] = ()
    narrow: bool = False
    unseen: str = ""
    tests: tuple[str, ...] = ()
    needs: str = ""


def cases_for(fault: Fault) -> list[Case]:
    """The cases that should notice, in order."""
    found = [c for op in fault.ops for c in cases_of(op)]
    return [c for c in found if not fault.only or any(text in c.id for text in fault.only)]
