"""Windows, computed in float64 on the host: scipy.signal's names, parameters and values."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.errors import ShapeError
from rlx.ir import Tensor
from rlx.ir.types import is_length

F64 = npt.NDArray[np.float64]
Window = Any  # a name, a name with its parameters in a tuple, the β of a Kaiser window, or an array of one axis


def _centred(m: int) -> F64:
    """Sample indices relative to the middle."""
    return np.asarray(np.arange(m) - (m - 1) / 2, np.float64)


def _cosines(m: int, coefficients: Sequence[float]) -> F64:
    """A sum of cosines: the k-th coefficient belongs to the cosine with k whole periods."""
    angle = np.linspace(-np.pi, np.pi, m)
    return np.asarray(np.sum([a * np.cos(k * angle) for k, a in enumerate(coefficients)], axis=0))


def _triang(m: int) -> F64:
    return np.asarray(1 - 2 * np.abs(_centred(m)) / (m + m % 2))


def _bartlett(m: int) -> F64:
    return np.asarray(1 - 2 * np.abs(_centred(m)) / (m - 1))


def _barthann(m: int) -> F64:
    away = np.abs(np.arange(m) / (m - 1) - 0.5)
    return np.asarray(0.62 - 0.48 * away + 0.38 * np.cos(2 * np.pi * away))


def _bohman(m: int) -> F64:
    away = np.abs(np.linspace(-1, 1, m))
    samples = (1 - away) * np.cos(np.pi * away) + np.sin(np.pi * away) / np.pi
    samples[0] = samples[-1] = 0
    return np.asarray(samples)


def _parzen(m: int) -> F64:
    away = 2 * np.abs(_centred(m)) / m
    return np.where(away <= 0.5, 1 - 6 * away**2 * (1 - away), 2 * (1 - away) ** 3)


def _cosine(m: int) -> F64:
    return np.asarray(np.sin(np.pi / m * (np.arange(m) + 0.5)))


def _lanczos(m: int) -> F64:
    return np.asarray(np.sinc(2 * _centred(m) / (m - 1)))


def _kaiser(m: int, beta: float) -> F64:
    place = 2 * _centred(m) / (m - 1)
    return np.asarray(np.i0(beta * np.sqrt(1 - place**2)) / np.i0(beta))


def _gaussian(m: int, std: float) -> F64:
    return np.asarray(np.exp(-((_centred(m) / std) ** 2) / 2))


def _general_gaussian(m: int, p: float, sig: float) -> F64:
    return np.asarray(np.exp(-0.5 * np.abs(_centred(m) / sig) ** (2 * p)))


def _exponential(m: int, center: float | None = None, tau: float = 1.0) -> F64:
    return np.asarray(np.exp(-np.abs(np.arange(m) - ((m - 1) / 2 if center is None else center)) / tau))


def _tukey(m: int, alpha: float = 0.5) -> F64:
    if alpha <= 0:
        return np.ones(m)
    # Cosine slopes over a fraction `alpha` of the window, half of it on each side.
    inward = np.minimum((m - 1) / 2 - np.abs(_centred(m)), min(alpha, 1.0) * (m - 1) / 2)
    return np.asarray(0.5 * (1 - np.cos(2 * np.pi * inward / (min(alpha, 1.0) * (m - 1)))))


_COSINES: dict[str, tuple[float, ...]] = {
    "hann": (0.5, 0.5),
    "hamming": (0.54, 0.46),
    "blackman": (0.42, 0.5, 0.08),
    "nuttall": (0.3635819, 0.4891775, 0.1365995, 0.0106411),
    "blackmanharris": (0.35875, 0.48829, 0.14128, 0.01168),
    "flattop": (0.21557895, 0.41663158, 0.277263158, 0.083578947, 0.006947368),
}
# Each makes a symmetric window of at least two samples.
_WINDOWS: dict[str, Callable[..., F64]] = {
    "boxcar": np.ones, "triang": _triang, "bartlett": _bartlett, "barthann": _barthann, "bohman": _bohman,
    "parzen": _parzen, "cosine": _cosine, "lanczos": _lanczos, "kaiser": _kaiser, "gaussian": _gaussian,
    "general_gaussian": _general_gaussian, "exponential": _exponential, "tukey": _tukey,
    "general_cosine": _cosines, "general_hamming": lambda m, alpha: _cosines(m, (alpha, 1 - alpha)),
    **{name: lambda m, a=a: _cosines(m, a) for name, a in _COSINES.items()},
}  # fmt: skip
# The least and the largest number of parameters, of the windows that have any.
_PARAMETERS = {
    "kaiser": (1, 1), "gaussian": (1, 1), "general_gaussian": (2, 2), "exponential": (0, 2), "tukey": (0, 1),
    "general_cosine": (1, 1), "general_hamming": (1, 1),
}  # fmt: skip
_LARGEST = sys.float_info.max
_ALIASES = {"hanning": "hann", "rect": "boxcar", "rectangular": "boxcar", "triangle": "triang"}
_POSITIVE = {"gaussian": ("std",), "general_gaussian": ("p", "sig"), "exponential": ("center", "tau")}


def get_window(window: Window, n: int, fftbins: bool = True) -> F64:
    """A window of n samples, as scipy.signal.get_window: a NumPy array in float64, computed on the host.

    window: a name (boxcar, triang, bartlett, barthann, bohman, parzen, cosine, lanczos, hann, hamming, blackman,
    nuttall, blackmanharris, flattop), or a tuple of a name and parameters: ("kaiser", β), ("gaussian", std),
    ("general_gaussian", p, sig), ("exponential", center, tau), ("tukey", alpha), ("general_cosine", coefficients),
    ("general_hamming", alpha); a number is the β of a Kaiser window. fftbins: the window is one period of n samples,
    for spectra; else it is symmetric. Raises: ShapeError for a name that is not known, an n or parameters that do not
    fit.
    """
    if not is_length(n) or n < 1:
        raise ShapeError(f"get_window: n is {n!r}; expected an int ≥ 1, the number of samples")
    n = int(n)
    if isinstance(window, int | float | np.number) and not isinstance(window, bool):
        window = ("kaiser", window)
    description = window if isinstance(window, tuple) and window else (window,)
    name, parameters = description[0], description[1:]
    name = _ALIASES.get(name, name) if isinstance(name, str) else name
    if not isinstance(name, str) or name not in _WINDOWS:
        from difflib import get_close_matches  # only the error message needs it

        near = get_close_matches(name, _WINDOWS, 1) if isinstance(name, str) else []
        meant = f" (did you mean {near[0]!r}?)" if near else ""
        raise ShapeError(
            f"get_window: there is no window {window!r:.60}{meant}; expected one of {', '.join(_WINDOWS)}, or where a "
            "window is asked for an array of samples"
        )
    least, most = _PARAMETERS.get(name, (0, 0))
    if not least <= len(parameters) <= most:
        expected = str(least) if least == most else f"{least} to {most}"
        raise ShapeError(f"get_window: {window!r} has {len(parameters)} parameters; {name!r} takes {expected}")
    _check_parameters(name, parameters, fftbins)
    if n == 1:
        return np.ones(1)
    return np.asarray(_WINDOWS[name](n + 1, *parameters)[:-1] if fftbins else _WINDOWS[name](n, *parameters))


def is_number(value: object) -> bool:
    """Whether an argument is a real number that f64 holds, neither infinite nor NaN."""
    return isinstance(value, int | float | np.integer | np.floating) and bool(-_LARGEST <= value <= _LARGEST)


def _check_parameters(name: str, parameters: Sequence[Any], fftbins: bool) -> None:
    """Raises: ShapeError for a parameter that is no finite number, or one that must be positive and is not."""
    flat = list(parameters[0]) if name == "general_cosine" and np.ndim(parameters[0]) == 1 else list(parameters)
    if name == "exponential" and flat and flat[0] is None:
        del flat[0]
    elif name == "exponential" and flat and not fftbins:
        raise ShapeError("get_window: a symmetric 'exponential' has its center in the middle; give None as center")
    good = all(is_number(v) for v in flat)
    if name == "general_cosine" and (np.ndim(parameters[0]) != 1 or not flat):
        good = False
    if not good or (name in _POSITIVE and any(v <= 0 for v in flat[-2 if name == "general_gaussian" else -1 :])):
        raise ShapeError(f"get_window: {name!r} has the parameters {tuple(parameters)!r}; expected finite numbers "
                         "(of gaussian, general_gaussian and the tau of exponential above 0)")  # fmt: skip


def given_samples(window: Window) -> int | None:
    """The number of samples of a window given as an array; None for one given by name."""
    return len(window) if isinstance(window, list) or (isinstance(window, np.ndarray) and window.ndim) else None


def window_of(op: str, window: Window, nperseg: int) -> F64:
    """The window of an op's argument: made of its name, or an array of `nperseg` real samples.

    Raises: ShapeError for an array of another shape, or with complex, infinite or NaN samples, a tensor, and a name
    that is not known.
    """
    if isinstance(window, Tensor):
        raise ShapeError(f"{op}: the window is a tensor; expected a name, or its samples in a NumPy array")
    if not isinstance(window, np.ndarray | list):
        return get_window(window, nperseg)
    try:
        samples = np.asarray(window)
    except ValueError as error:
        raise ShapeError(f"{op}: the window is a list of {len(window)} parts; expected {nperseg} samples") from error
    real = samples.dtype.kind in "biuf"
    if samples.shape != (nperseg,) or not real or not np.isfinite(samples).all():
        raise ShapeError(
            f"{op}: the window is an array of {samples.dtype} of shape {samples.shape}; expected {nperseg} finite "
            "samples, real numbers"
        )
    return samples.astype(np.float64)
