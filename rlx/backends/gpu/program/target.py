"""Target: what a device has, as far as lowering asks. A backend makes one for each device that it opens; the rules see
nothing else of the device, so that another backend enters with a Target of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rlx.backends.gpu.program.candidates import Choose, cheapest
from rlx.backends.gpu.program.steps import Gemm
from rlx.driver import Limits
from rlx.dtypes import DType, bf16, f16

UNITS = 132  # multiprocessors of the device on which costs were measured: taken where a driver tells no number
AddsBias = Callable[[Gemm], bool]


def adds_any_bias(step: Gemm) -> bool:
    """The answer where no library is asked."""
    return True


@dataclass(frozen=True, slots=True)
class GemmLibrary:
    """The vendor's library of products, which runs `Gemm` steps.

    `adds_bias` says of a step with a bias whether the library makes both at once; `activations` are those it applies
    behind a bias. `precisions` are those of a session at which it may be given f32 operands: at the others it rounds
    otherwise than the kernels do.
    """

    adds_bias: AddsBias = adds_any_bias
    activations: frozenset[str] = frozenset({"relu"})
    precisions: frozenset[str] = frozenset({"f32", "tf32", "f16"})


@dataclass(frozen=True, slots=True)
class MatrixUnits:
    """Instructions by which a subgroup of 32 threads multiplies 16 x 16 matrices of halves into one of f32.

    `types`: the halves, none where there are no such instructions. `opaque`: which elements a thread holds is not
    known, so that what stands between two products goes through shared memory. `overlapped`: loads go on meanwhile.
    `warpgroups`: there are also instructions of four subgroups, which read shared memory themselves (wgmma).
    """

    types: frozenset[DType] = frozenset()
    opaque: bool = True
    overlapped: bool = False
    warpgroups: bool = False


def matrix_types(features: frozenset[str], limits: Limits) -> frozenset[DType]:
    """The halves that a device with these features multiplies in the shape that the kernels are written for."""
    if "coopmat" not in features or limits.subgroup != 32:
        return frozenset()
    return frozenset({f16, bf16} if "bf16_coopmat" in features else {f16})


@dataclass(frozen=True, slots=True)
class Target:
    """What a device has. The defaults are those of a device without anything special.

    `features`: the words of `DeviceInfo`: what kernels may store and compute. `units`: the multiprocessors among which
    workgroups are dealt. `library`: None where every product is a kernel. `software`: a processor runs the kernels,
    for which what threads pass to one another is dear, and large tiles gain nothing. `packs`: reading four
    neighbours at once is faster than one by one. `long_prologue`: so much stands before the first pack of an
    elementwise kernel that a thread had better take several. `choose` takes one of the candidates for a product or an
    attention; a tuner has its own.
    """

    features: frozenset[str] = frozenset()
    limits: Limits = field(default_factory=Limits)
    units: int = UNITS
    library: GemmLibrary | None = None
    matrices: MatrixUnits = field(default_factory=MatrixUnits)
    software: bool = False
    packs: bool = True
    long_prologue: bool = False
    choose: Choose = cheapest

    @property
    def shared_bytes(self) -> int:
        """The most shared memory that a workgroup may ask for."""
        return max(self.limits.shared_bytes, self.limits.dynamic_shared_bytes)
