"""The Target of a Vulkan device."""

from __future__ import annotations

from rlx.backends.gpu.program.target import MatrixUnits, Target, matrix_types
from rlx.driver import Limits


def vulkan_target(features: frozenset[str], limits: Limits, software: bool) -> Target:
    """What a device of these features and limits has; no query of Vulkan's own tells how many units."""
    return Target(
        features=features,
        limits=limits,
        matrices=MatrixUnits(matrix_types(features, limits)),
        software=software,
        packs=not software,  # they make pipelines slower to compile, and runs no faster
        long_prologue=True,
    )
