"""What the kernels of attention share: their arguments, and constants."""

from __future__ import annotations

from rlx.backends.cpu.ir import F64, I8, Type, floats, pointers, sizes
from rlx.backends.cpu.rowwise import LOADED

# Distances are in elements. `q_offsets`, `y_offsets` and `mask_offsets` have an entry for each row of a head, `places`
# has the index of each row's query minus the number of queries, `least` and `most` their extremes in each block.
_PLACES = (
    pointers(
        "q", "k", "v", "y", "mask", "lengths", "q_offsets", "y_offsets", "mask_offsets", "places", "least", "most",
    ) + sizes(
        "heads", "blocks", "group", "n_k", "rows", "window", "q_batch", "q_head", "k_batch", "k_head", "k_row",
        "v_batch", "v_head", "v_row", "y_batch", "y_head", "mask_batch", "mask_head", "mask_key", "length_stride",
    )
)  # fmt: skip
ARGS = _PLACES + floats("scale", "cap")
ARGS_F64 = _PLACES + floats("scale", "cap", type=F64)
SCALES = pointers("k_scales", "v_scales")
# For paged keys and values: the table of pages, its row length, the number of pages, and the strides of pages.
PAGES = pointers("table") + sizes("table_row", "pages", "k_page", "v_page")
LOWEST = -3.4028234663852886e38
TINY = 1.1754943508222875e-38
LOWEST_F64 = -1.7976931348623157e308
TINY_F64 = 2.2250738585072014e-308


def mask_type(dtype: str) -> Type:
    """The type in which a mask's elements are loaded."""
    return I8 if dtype == "bool" else LOADED[dtype]
