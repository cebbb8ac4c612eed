"""The Target of a CUDA device."""

from __future__ import annotations

from rlx.backends.gpu.program.target import (
    UNITS,
    AddsBias,
    GemmLibrary,
    MatrixUnits,
    Target,
    adds_any_bias,
    matrix_types,
)
from rlx.driver import Limits


def cuda_target(
    features: frozenset[str],
    limits: Limits,
    units: int = UNITS,
    adds_bias: AddsBias = adds_any_bias,
    software: bool = False,
) -> Target:
    """What a device of these features and limits has. `software`: tests run the kernels on the host."""
    return Target(
        features=features,
        limits=limits,
        units=units,
        library=GemmLibrary(adds_bias),
        # mma.sync: the places of elements are documented, and loads overlap with it.
        matrices=MatrixUnits(matrix_types(features, limits), False, True, "wgmma" in features),
        software=software,
        packs=not software,
    )
