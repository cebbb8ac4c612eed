"""Constants to compile the kernel of pad with: the mode and the number of axes."""

from __future__ import annotations

CONSTANTS: dict[str, tuple[tuple[int, ...], ...]] = {"pad": ((0, 1), (1, 4), (2, 3))}
