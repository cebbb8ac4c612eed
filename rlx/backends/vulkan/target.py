"""The Target of a Vulkan device."""

from __future__ import annotations

from rlx.backends.gpu.program.target import MatrixUnits, Target, matrix_types
from rlx.driver import Limits


def vulkan_target(features: frozenset[str], limits: Limits, software: bool) -> Target:
    """The Target of a device with these features and limits; `units` is the default, as Vulkan has no query for it."""
    return Target(
        features=features,
        limits=limits,
        matrices=MatrixUnits(matrix_types(features, limits)),
        software=software,
        packs=not software,  # packs make pipelines of a software driver slower to compile, and run no faster
        long_prologue=True,
    )
