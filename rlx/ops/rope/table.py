"""Tables of rotary position embeddings, computed in float64 on the host: plain, linear, dynamic,
proportional, Llama 3, YaRN, LongRoPE, two axes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from rlx.dtypes import DTypeLike, as_dtype, f32, f64
from rlx.errors import DTypeError, ShapeError, UnsupportedOp

if TYPE_CHECKING:
    from rlx.ops.rope.scaling import DynamicScaling, Llama3Scaling, LongRopeScaling, Scaling, YarnScaling

Table = tuple[npt.NDArray[Any], npt.NDArray[Any]]
F64 = npt.NDArray[np.float64]


def rope_frequencies(
    width: int, base: float = 10000.0, scaling: Scaling | None = None, length: int = 0
) -> tuple[F64, float]:
    """Radians per position for each of the width / 2 pairs, and the factor that cos and sin are multiplied by, for
    tables of so many positions, by which LongRoPE chooses its factors and dynamic scaling its base.

    Raises: ShapeError for an odd width, DTypeError for a base or a scaling outside its range.
    """
    if not isinstance(width, int) or width < 2 or width % 2:
        raise ShapeError(f"rope_frequencies: width is {width!r}; expected an even number, 2 or more")
    if not (math.isfinite(base) and base > 1):
        raise DTypeError(f"rope_frequencies: base is {base!r}; expected a number above 1")
    plain = np.asarray(float(base) ** -(np.arange(0, width, 2, dtype=np.float64) / width))
    if scaling is None:
        return plain, 1.0
    from rlx.ops.rope.scaling import (
        DynamicScaling,
        LinearScaling,
        Llama3Scaling,
        LongRopeScaling,
        ProportionalScaling,
    )

    if not (math.isfinite(scaling.factor) and scaling.factor > 0):
        raise DTypeError(f"rope_frequencies: the factor of {scaling} is not a number above 0")
    if isinstance(scaling, LinearScaling):
        return plain / scaling.factor, 1.0
    if isinstance(scaling, ProportionalScaling):
        if not 0 <= scaling.part <= 1:
            raise DTypeError(f"rope_frequencies: the part of {scaling} is not a number from 0 to 1")
        return np.where(np.arange(len(plain)) < int(scaling.part * width // 2), plain / scaling.factor, 0.0), 1.0
    if scaling.original_length < 1:
        raise DTypeError(f"rope_frequencies: the original length of {scaling} is not 1 or more")
    if isinstance(scaling, DynamicScaling):
        return _dynamic(plain, width, base, scaling, length), 1.0
    if isinstance(scaling, Llama3Scaling):
        return _llama3(plain, scaling), 1.0
    if isinstance(scaling, LongRopeScaling):
        return _longrope(plain, scaling, length)
    return _yarn(plain, width, base, scaling), _magnitude(scaling)


def _dynamic(plain: F64, width: int, base: float, s: DynamicScaling, length: int) -> F64:
    if length <= s.original_length or width == 2:
        return plain
    grown = base * (s.factor * length / s.original_length - (s.factor - 1)) ** (width / (width - 2))
    return rope_frequencies(width, grown)[0]


def _longrope(plain: F64, s: LongRopeScaling, length: int) -> tuple[F64, float]:
    for name in ("short", "long"):
        factors = np.asarray(getattr(s, name), np.float64)
        if factors.shape != plain.shape or not (np.isfinite(factors) & (factors > 0)).all():
            raise DTypeError(f"rope_frequencies: {s}: {name} is no factor above 0 for each of {len(plain)} frequencies")
    magnitude = s.attention_factor
    if magnitude is None:
        long = s.factor > 1 and s.original_length > 1
        magnitude = math.sqrt(1 + math.log(s.factor) / math.log(s.original_length)) if long else 1.0
    return plain / np.asarray(s.long if length > s.original_length else s.short), float(magnitude)


def _llama3(plain: F64, s: Llama3Scaling) -> F64:
    if not 0 < s.low_freq_factor < s.high_freq_factor:
        raise DTypeError(f"rope_frequencies: {s}: expected 0 < low_freq_factor < high_freq_factor")
    turns = s.original_length * plain / (2 * math.pi)
    keep = np.clip((turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor), 0, 1)
    return np.asarray((1 - keep) * plain / s.factor + keep * plain)


def _yarn(plain: F64, width: int, base: float, s: YarnScaling) -> F64:
    if not 0 < s.beta_slow < s.beta_fast:
        raise DTypeError(f"rope_frequencies: {s}: expected 0 < beta_slow < beta_fast")

    def pair(turns: float) -> float:
        """The (fractional) index of the pair that makes `turns` full turns within the original length."""
        return width * math.log(s.original_length / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair(s.beta_fast), pair(s.beta_slow)
    if s.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    ramp = np.clip((np.arange(width // 2) - low) / max(high - low, 0.001), 0, 1)
    return np.asarray(plain * (1 - ramp) + plain / s.factor * ramp)


def _magnitude(s: YarnScaling) -> float:
    def scale(m: float) -> float:
        return 0.1 * m * math.log(s.factor) + 1.0 if s.factor > 1 else 1.0

    if s.attention_factor is not None:
        return float(s.attention_factor)
    if s.mscale and s.mscale_all_dim:
        return scale(s.mscale) / scale(s.mscale_all_dim)
    return scale(1.0)


def rope_table(
    length: int, width: int, *, base: float = 10000.0, scaling: Scaling | None = None, dtype: DTypeLike = f32
) -> Table:
    """cos and sin of every position below `length`, for `rlx.rope`.

    Shape: two arrays (length, width / 2); `width` is the number of elements of a head that are rotated. Dtype: f32, or
    f64 for an f64 x. Numerics: angles, cosines and sines in float64, rounded once. Follows Su et al., RoFormer, 2021.
    Raises: ShapeError, DTypeError.
    """
    if not isinstance(length, int) or not 0 <= length <= 1 << 30:
        raise ShapeError(f"rope_table: length is {length!r}; expected 0 to 2^30 positions")
    frequencies, magnitude = rope_frequencies(width, base, scaling, length)
    return _table(np.outer(np.arange(length, dtype=np.float64), frequencies), magnitude, dtype)


def _table(angles: F64, magnitude: float, dtype: DTypeLike) -> Table:
    kind = as_dtype(dtype)
    if kind not in (f32, f64):
        raise DTypeError(f"rope_table: dtype is {kind}; expected f32 or f64")
    return (np.cos(angles) * magnitude).astype(kind.np), (np.sin(angles) * magnitude).astype(kind.np)


def axial_rope_table(
    rows: int,
    columns: int,
    width: int,
    *,
    base: float = 10000.0,
    order: Literal["xy", "yx"] = "xy",
    dtype: DTypeLike = f32,
) -> Table:
    """cos and sin of every position of a grid, row by row, for `rlx.rope`.

    Half of the pairs rotates with the column (x), the other half with the row (y); `order` says which half comes first.
    Shape: two arrays (rows · columns, width / 2), width a multiple of 4, of dtype f32 or f64. Follows Heo et al., 2024
    (axial frequencies).
    Raises: ShapeError, DTypeError.
    """
    if not isinstance(width, int) or width < 4 or width % 4:
        raise ShapeError(f"axial_rope_table: width is {width!r}; expected a multiple of 4, half of it for each axis")
    if rows < 0 or columns < 0:
        raise ShapeError(f"axial_rope_table: a grid of {rows} by {columns}; expected sizes of 0 or more")
    if order not in ("xy", "yx"):
        raise DTypeError(f'axial_rope_table: order is {order!r}; expected "xy" or "yx"')
    frequencies, _ = rope_frequencies(width // 2, base)
    y, x = np.divmod(np.arange(rows * columns, dtype=np.float64), max(columns, 1))
    parts = [np.outer(x, frequencies), np.outer(y, frequencies)]
    return _table(np.concatenate(parts if order == "xy" else parts[::-1], axis=1), 1.0, dtype)


def rope_scaling(config: Mapping[str, Any] | None, length: int | None = None) -> Scaling | None:
    """The scaling that `config`, the `rope_scaling` of a Hugging Face model's configuration, describes.

    `length` is the model's `max_position_embeddings`: the original length where the settings have none, always that of
    dynamic scaling, and by its ratio to the original length the factor of LongRoPE, or of YaRN where it is null.
    Raises: UnsupportedOp for a kind other than default, linear, dynamic, proportional, llama3, yarn and longrope;
    DTypeError for a missing value.
    """
    if config is None:
        return None
    kind = config.get("rope_type", config.get("type", "default"))
    if kind == "default":
        return None
    from rlx.ops.rope.scaling import (
        DynamicScaling,
        LinearScaling,
        Llama3Scaling,
        LongRopeScaling,
        ProportionalScaling,
        YarnScaling,
    )

    def number(name: str, default: float | None = None) -> float:
        value = config.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise DTypeError(f"rope_scaling: {name} of {dict(config)} is {value!r}; {kind} needs a number")
        return value

    if kind == "linear":
        return LinearScaling(number("factor"))
    if kind == "proportional":
        return ProportionalScaling(number("partial_rotary_factor", 1.0), number("factor", 1.0))
    if kind == "dynamic":
        if length is None:
            raise DTypeError("rope_scaling: dynamic needs the length that the model was made for")
        return DynamicScaling(number("factor"), length)
    if kind not in ("llama3", "yarn", "longrope", "su"):  # su: longrope's first name
        raise UnsupportedOp(
            f"rope_scaling: the kind {kind!r} is none of default, linear, dynamic, proportional, llama3, yarn, longrope"
        )
    original = int(number("original_max_position_embeddings", length))
    if original < 1:
        raise DTypeError(f"rope_scaling: original_max_position_embeddings is {original}; expected 1 or more")
    if kind == "llama3":
        return Llama3Scaling(number("factor"), number("low_freq_factor"), number("high_freq_factor"), original)
    ratio = (length or original) / original
    if kind == "yarn":
        names = ("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim")
        options = {name: number(name) for name in names if config.get(name) is not None}
        factor = ratio if "factor" in config and config["factor"] is None else number("factor")
        return YarnScaling(factor, original, truncate=bool(config.get("truncate", True)), **options)
    factor = ratio if config.get("factor") is None else number("factor")
    attention = None if config.get("attention_factor") is None else number("attention_factor")
    return LongRopeScaling(factor, original, _factors(config, "short_factor"), _factors(config, "long_factor"),
                           attention)  # fmt: skip


def _factors(config: Mapping[str, Any], name: str) -> tuple[float, ...]:
    value = config.get(name)
    numbers = isinstance(value, list) and all(isinstance(v, int | float) and not isinstance(v, bool) for v in value)
    if not numbers or value is None:
        raise DTypeError(f"rope_scaling: {name} is {value!r:.60}; longrope needs a list of numbers")
    return tuple(map(float, value))


__all__ = ["axial_rope_table", "rope_scaling", "rope_table"]
