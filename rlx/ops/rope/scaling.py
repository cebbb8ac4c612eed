"""How rotary position embeddings are scaled beyond the length that a model was trained on: linear, dynamic,
proportional, Llama 3, YaRN, LongRoPE."""

from __future__ import annotations

from rlx.records import Record, field


class LinearScaling(Record):
    """Positions divided by `factor` (Chen et al., 2023)."""

    factor: float


class DynamicScaling(Record):
    """Dynamic NTK scaling: for tables longer than `original_length` the base grows by
    (factor · length / original_length − factor + 1) ^ (width / (width − 2)); shorter ones are plain."""

    factor: float
    original_length: int


class ProportionalScaling(Record):
    """The first `part` of the pairs rotate with their frequencies divided by `factor`; the others are not rotated."""

    part: float
    factor: float = 1.0


class Llama3Scaling(Record):
    """The scaling of Llama 3 (Dubey et al., 2024), by the turns that a frequency makes within the original length.

    At most `low_freq_factor` turns: the frequency is divided by `factor`; at least `high_freq_factor`: it is kept;
    between them it is interpolated.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_length: int


class YarnScaling(Record):
    """The scaling of YaRN (Peng et al., 2023), by the turns that a frequency makes within the original length.

    Fewer than `beta_slow` turns: the frequency is divided by `factor`; more than `beta_fast`: it is kept; between them
    it is interpolated. The tables are multiplied by `attention_factor`: by default s(1), or s(mscale) /
    s(mscale_all_dim) where both are given, with s(m) = 0.1·m·ln(factor) + 1, and 1 for a factor up to 1.
    """

    factor: float
    original_length: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


class LongRopeScaling(Record):
    """The scaling of LongRoPE (Ding et al., 2024): each frequency is divided by its own factor, one of `short` for
    tables up to the original length, one of `long` for longer ones. The tables are multiplied by `attention_factor`: by
    default by √(1 + ln(factor) / ln(original_length)), and 1 for a factor up to 1."""

    factor: float
    original_length: int
    short: tuple[float, ...] = field(repr=False)
    long: tuple[float, ...] = field(repr=False)
    attention_factor: float | None = None


Scaling = (
    LinearScaling | DynamicScaling | ProportionalScaling | Llama3Scaling | YarnScaling | LongRopeScaling
)
