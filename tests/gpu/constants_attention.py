"""The constants with which tests compile attention's kernels."""

from __future__ import annotations

_ALL = ((4, 1, 0, 1), (16, 8, 1, 0), (1, 15, 2, 1))
CONSTANTS: dict[str, tuple[tuple[int, ...], ...]] = {
    "attention": _ALL,
    "attention_decode": ((8, 8, 0, 1, 4, 1), (4, 15, 2, 0, 8, 0), (16, 1, 1, 1, 1, 1)),
    "attention_combine": ((),),
    "attention_mma": (
        (8, 1, 0, 1, 2, 64, 0, 1),
        (4, 15, 1, 0, 1, 64, 1, 1),
        (16, 2, 2, 1, 1, 32, 0, 1),
        (16, 8, 2, 1, 1, 32, 1, 1),
        (8, 3, 0, 1, 2, 64, 2, 1),
        (4, 12, 2, 0, 1, 64, 2, 1),
    ),
    "attention_dq": _ALL,
    "attention_dkv": _ALL,
}
