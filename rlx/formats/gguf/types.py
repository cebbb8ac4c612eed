"""The numbers that GGUF gives to the types of its tensors and of its metadata.

Specification: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, and `enum ggml_type` of ggml.h.
"""

from __future__ import annotations

import rlx.dtypes as dt
from rlx.dtypes import PACKED, DType

_PLAIN = {0: dt.f32, 1: dt.f16, 24: dt.i8, 26: dt.i32, 27: dt.i64, 28: dt.f64, 30: dt.bf16}
_BLOCKS = {
    2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0", 10: "q2_k", 11: "q3_k", 12: "q4_k", 13: "q5_k",
    14: "q6_k", 16: "iq2_xxs", 17: "iq2_xs", 18: "iq3_xxs", 19: "iq1_s", 20: "iq4_nl", 21: "iq3_s", 22: "iq2_s",
    23: "iq4_xs", 29: "iq1_m", 34: "tq1_0", 35: "tq2_0", 39: "mxfp4", 40: "nvfp4", 41: "q1_0",
}  # fmt: skip
TENSOR_TYPES: dict[int, DType] = {**_PLAIN, **{number: PACKED[name] for number, name in _BLOCKS.items()}}
TYPE_NUMBERS = {dtype: number for number, dtype in TENSOR_TYPES.items()}
# Types that ggml has or had, and that rlx does not read: layouts that were withdrawn or that only ggml's own products
# of activations use, and the integers of 16 bits, which no published model has.
UNREAD_TYPES = {
    4: "Q4_2 (withdrawn)", 5: "Q4_3 (withdrawn)", 9: "Q8_1", 15: "Q8_K", 25: "I16", 31: "Q4_0_4_4 (withdrawn)",
    32: "Q4_0_4_8 (withdrawn)", 33: "Q4_0_8_8 (withdrawn)", 36: "IQ4_NL_4_4 (withdrawn)",
    37: "IQ4_NL_4_8 (withdrawn)", 38: "IQ4_NL_8_8 (withdrawn)",
}  # fmt: skip

# The types of metadata: the code of `struct` for numbers.
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}
BOOL, STRING, ARRAY = 7, 8, 9


def type_name(dtype: DType) -> str:
    """The usual name of a GGUF type, such as Q4_K or F16."""
    return dtype.name.upper()
