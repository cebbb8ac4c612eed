"""The Target of a CUDA device."""

from __future__ import annotations

from rlx.backends.gpu.program.steps import Language
from rlx.backends.gpu.program.target import (
    UNITS,
    AddsBias,
    Collects,
    GemmLibrary,
    MatrixUnits,
    Target,
    adds_any_bias,
    matrix_types,
)
from rlx.driver import Limits
from rlx.dtypes import bf16


def cuda_target(
    features: frozenset[str],
    limits: Limits,
    units: int = UNITS,
    adds_bias: AddsBias = adds_any_bias,
    software: bool = False,
    collects: Collects | None = None,
) -> Target:
    """The Target of a device with these features and limits. `software`: tests compile the kernels for the host."""
    types = matrix_types(features, limits)
    return Target(
        features=features,
        language=Language.CUDA,
        limits=limits,
        units=units,
        library=GemmLibrary(adds_bias),
        # mma.sync: which elements a thread holds is documented (not opaque), and loads overlap with it. Where there are
        # matrices of bf16, there are those of tf32.
        matrices=MatrixUnits(types, False, True, "wgmma" in features, bf16 in types),
        software=software,
        packs=not software,
        collects=collects,
    )
