"""What the kernels of attention share: their arguments, and constants."""

from __future__ import annotations

from rlx.backends.cpu.ir import I8, Type, floats, pointers, sizes
from rlx.backends.cpu.rowwise import STORED

# Distances are in elements. `q_offsets`, `y_offsets` and `mask_offsets` are of each row of a head, `places` the number
# of a row's query less that of all queries, `least` and `most` the extremes of these in a block.
ARGS = (
    pointers(
        "q", "k", "v", "y", "mask", "lengths", "q_offsets", "y_offsets", "mask_offsets", "places", "least", "most",
    ) + sizes(
        "heads", "blocks", "group", "n_k", "rows", "window", "q_batch", "q_head", "k_batch", "k_head", "k_row",
        "v_batch", "v_head", "v_row", "y_batch", "y_head", "mask_batch", "mask_head", "mask_key", "length_stride",
    ) + floats("scale", "cap")
)  # fmt: skip
SCALES = pointers("k_scales", "v_scales")
# Of keys and values in pages: which are whose, how many there are, and how far they lie apart.
PAGES = pointers("table") + sizes("table_row", "pages", "k_page", "v_page")
LOWEST = -3.4028234663852886e38
TINY = 1.1754943508222875e-38


def mask_type(dtype: str) -> Type:
    """How a mask's elements are loaded."""
    return I8 if dtype == "bool" else STORED[dtype]
