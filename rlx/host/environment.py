"""The environment variables of rlx, which docs/env.md explains."""

from __future__ import annotations

import os
import warnings

from rlx.errors import EnvironmentWarning, meant

KNOWN = frozenset(
    "RLX_DEVICE RLX_DEBUG RLX_CPU RLX_CPU_FEATURES RLX_CACHE_DIR RLX_CACHE_BYTES RLX_API_KEY RLX_CUDA_PTX_CACHE "
    "RLX_TUNING RLX_VULKAN_CLOCK RLX_VULKAN_MEMORY RLX_VULKAN_VALIDATION RLX_RANKS_TIMEOUT".split()
)
_OF_TESTS = ("RLX_TEST_", "RLX_REQUIRE_")


def unknown_variables() -> list[str]:
    """A line for each variable that begins with RLX_ but is not one of rlx's."""
    odd = [name for name in os.environ if name.startswith("RLX_") and name not in KNOWN]
    ends = [name.removeprefix("RLX_") for name in KNOWN]  # the common prefix would make any two names look similar
    return [
        f"the environment variable {name} is none of rlx's and changes nothing"
        f"{meant(name.removeprefix('RLX_'), ends).replace(chr(39), chr(39) + 'RLX_', 1)}; docs/env.md lists them"
        for name in sorted(odd)
        if not name.startswith(_OF_TESTS)
    ]


def warn_unknown_variables() -> None:
    """Warns of each unknown variable, once in a process."""
    for line in unknown_variables():
        warnings.warn(line, EnvironmentWarning, stacklevel=1)
