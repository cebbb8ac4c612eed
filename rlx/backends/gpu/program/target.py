"""Target: what lowering needs to know of a device. A backend makes one for each device that it opens; the rules see
nothing else of the device, so that a new backend has to bring only its Target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rlx.backends.gpu.program.candidates import Choose, cheapest
from rlx.backends.gpu.program.steps import Gemm, Language
from rlx.driver import Limits
from rlx.dtypes import DType, bf16, f16
from rlx.ir import Node

UNITS = 132  # multiprocessors of the device on which costs were measured: assumed where a driver reports no number
AddsBias = Callable[[Gemm], bool]
Collects = Callable[[Node], bool]


def adds_any_bias(step: Gemm) -> bool:
    """The default for `adds_bias`: the library can add any bias."""
    return True


@dataclass(frozen=True, slots=True)
class GemmLibrary:
    """The vendor's library of products, which runs `Gemm` steps.

    `adds_bias` says whether the library can add the bias of a step itself; `activations` are those that it can apply
    after a bias. `precisions` are the session precisions at which it may take f32 operands: at the others it would
    round them differently from the kernels.
    """

    adds_bias: AddsBias = adds_any_bias
    activations: frozenset[str] = frozenset({"relu"})
    precisions: frozenset[str] = frozenset({"f32", "tf32", "f16"})


@dataclass(frozen=True, slots=True)
class MatrixUnits:
    """Instructions by which a subgroup of 32 threads multiplies 16 x 16 matrices of 16-bit floats into one of f32.

    `types`: the 16-bit types, none where there are no such instructions. `opaque`: which elements a thread holds is
    unspecified, so values between two products go through shared memory. `overlapped`: loads overlap with the
    instructions. `warpgroups`: there are also instructions for four subgroups together, which read operands from shared
    memory (wgmma). `tf32`: there are also instructions for matrices of f32 rounded to 11 bits.
    """

    types: frozenset[DType] = frozenset()
    opaque: bool = True
    overlapped: bool = False
    warpgroups: bool = False
    tf32: bool = False


def matrix_types(features: frozenset[str], limits: Limits) -> frozenset[DType]:
    """The 16-bit types for which a device with these features has matrices of the shape that the kernels use."""
    if "coopmat" not in features or limits.subgroup != 32:
        return frozenset()
    return frozenset({f16, bf16} if "bf16_coopmat" in features else {f16})


@dataclass(frozen=True, slots=True)
class Target:
    """The properties of a device. The defaults are those of a device without anything special.

    `features`: the feature names of `DeviceInfo` for what kernels may store and compute; once a device is open, this is
    the only place to read them. `units`: the multiprocessors over which workgroups are distributed. `library`: None
    where every product is a kernel of rlx. `software`: a CPU runs the kernels, where communication between threads is
    expensive and large tiles gain nothing. `packs`: reading four neighbouring elements at once is faster than one by
    one. `long_prologue`: an elementwise kernel has so many instructions before its first pack that a thread should take
    several packs. `batches`: equal elementwise launches become one (`batches.py`). `language`: the language of users'
    kernels that the device takes. `choose` takes one of the candidates for a product or an attention; a tuner replaces
    it.
    """

    features: frozenset[str] = frozenset()
    limits: Limits = field(default_factory=Limits)
    units: int = UNITS
    library: GemmLibrary | None = None
    matrices: MatrixUnits = field(default_factory=MatrixUnits)
    software: bool = False
    packs: bool = True
    long_prologue: bool = False
    language: Language = Language.SPIRV
    batches: bool = True
    choose: Choose = cheapest
    collects: Collects | None = None

    @property
    def shared_bytes(self) -> int:
        """The bytes of shared memory that a workgroup may have at most."""
        return max(self.limits.shared_bytes, self.limits.dynamic_shared_bytes)
