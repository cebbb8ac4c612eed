"""Judges and gradient cases of frames and their sum."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.ops.signal.frames import frame, overlap_add
from tests.ops.gradient_cases import Gradients
from tests.ops.judging import Judge, with_torch


def _frame(x: np.ndarray, *, length: int, hop: int) -> np.ndarray:
    return np.lib.stride_tricks.sliding_window_view(x, length, axis=-1)[..., ::hop, :]


def _overlap_add(torch: Any, x: Any, *, hop: int, size: int) -> Any:
    """torch's fold, of images of one row. It knows no frames beyond the first that do not overlap or touch `size`."""
    count, length = x.shape[-2:]
    made = torch.zeros(*x.shape[:-2], size, dtype=x.dtype)
    if x.numel():
        used = (count - 1) * hop + length
        columns = x.reshape(-1, count, length).transpose(1, 2)
        made[..., :used] = torch.nn.functional.fold(columns, (1, used), (1, length), stride=(1, hop)).reshape(
            *x.shape[:-2], used
        )
    return made


JUDGES: dict[str, Judge] = {
    "numpy.lib.stride_tricks.sliding_window_view": _frame,
    "torch.nn.functional.fold": with_torch(_overlap_add),
}
GRADIENTS: Gradients = {
    "frame": [
        (lambda x: frame(x, 4, 2), [(2, 11)], None),
        (lambda x: frame(x, 3, 5), [(12,)], None),
        (lambda x: frame(x, 3, 1, axis=0), [(5, 2)], None),
    ],
    "overlap_add": [
        (lambda x: overlap_add(x, 2), [(2, 3, 4)], None),
        (lambda x: overlap_add(x, 5, size=15), [(2, 3)], None),
        (lambda x: overlap_add(x, 1, axis=1), [(3, 4, 2)], None),
    ],
}
