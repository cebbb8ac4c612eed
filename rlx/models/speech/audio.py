"""Sound for speech models: samples of a WAV file at another rate, and their log-mel spectrogram, in NumPy's float64."""

from __future__ import annotations

import math
import os
import struct
import wave
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from rlx.errors import DTypeError, FileMissing, ModelFormatError, ShapeError
from rlx.records import Record

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
RATES_HZ = (1000, 768_000)
MAX_WAV_BYTES = 4 << 30  # a WAV file's sizes have 32 bits
HOP_SAMPLES = 160  # the distance of a spectrogram's frames
_ZEROS = 24  # zero crossings of the sinc on each side: steeper than the ear of a speech model needs
_BETA = 9.0  # the Kaiser window's β: side lobes 90 dB down
_SAMPLES_AT_ONCE = 1 << 14


def read_wav(path: str | os.PathLike[str], rate: int, held: IO[bytes] | None = None) -> F32:
    """The samples of a WAV file of integers (PCM of 8, 16, 24 or 32 bits), its channels averaged, at `rate` samples a
    second: f32 (samples,), within ±1; of what is `held` open where that is given, which errors call `path`.

    Raises: ModelFormatError for a file that cannot be read, or is damaged, cut off, empty or of another kind."""
    try:
        with wave.open(os.fspath(path) if held is None else held, "rb") as file:
            channels, width, file_rate, count = file.getparams()[:4]
            if not RATES_HZ[0] <= file_rate <= RATES_HZ[1] or count * channels * width > MAX_WAV_BYTES:
                raise ModelFormatError(f"{path}: {count:,} frames of {file_rate:,} a second; expected {RATES_HZ[0]:,} "
                                       f"to {RATES_HZ[1]:,} a second, and at most {MAX_WAV_BYTES:,} bytes")  # fmt: skip
            raw = file.readframes(count)
    except OSError as error:
        why = f"{path}: cannot be read: {error.strerror or error}; give a WAV file"
        raise (FileMissing(why, path) if isinstance(error, FileNotFoundError) else ModelFormatError(why)) from error
    except (wave.Error, EOFError, RuntimeError, ValueError, struct.error) as error:  # all come of damaged chunks
        why = " ".join(str(error).split()) or "the file ends too early"
        raise ModelFormatError(f"{path}: is no WAV file of integer samples: {why}; convert it, as in "
                               "ffmpeg -i FILE -ac 1 -ar 16000 -c:a pcm_s16le OUT.wav") from error  # fmt: skip
    if len(raw) != count * channels * width:
        raise ModelFormatError(f"{path}: has {len(raw):,} bytes of samples where its header says "
                               f"{count * channels * width:,}; the file was cut off")  # fmt: skip
    if not count:
        raise ModelFormatError(f"{path}: has no samples")
    samples = _floats(raw, width, path).reshape(count, channels)
    return resampled(samples.mean(1) if channels > 1 else samples[:, 0], file_rate, rate)


def _floats(raw: bytes, width: int, path: Any) -> F32:
    """Integers of 1 (unsigned), 2, 3 or 4 bytes, scaled to -1 to 1."""
    held = np.frombuffer(raw, np.uint8)
    if width == 1:
        return (held.astype(np.float32) - 128) / np.float32(128)
    if width == 3:
        wide = np.zeros((len(held) // 3, 4), np.uint8)
        wide[:, 1:] = held.reshape(-1, 3)
        held, width = wide.reshape(-1), 4
    if width not in (2, 4):
        raise ModelFormatError(f"{path}: has samples of {8 * width} bits; expected 8, 16, 24 or 32")
    result: F32 = held.view(f"<i{width}").astype(np.float32) / np.float32(1 << (8 * width - 1))
    return result


def resampled(samples: npt.NDArray[Any], source_rate: int, rate: int) -> F32:
    """The samples of a sound at another rate, f32: a convolution with a sinc under a Kaiser window, which passes what
    is below 0.95 of half the lower rate. Beyond its ends the sound is 0. Raises: ShapeError."""
    if min(source_rate, rate) < 1:
        raise ShapeError(f"resampled: from {source_rate} samples a second to {rate}; expected 1 or more")
    if source_rate == rate:
        return samples.astype(np.float32)
    part = math.gcd(source_rate, rate)
    up, down = rate // part, source_rate // part
    cutoff = 0.95 * min(1.0, rate / source_rate)
    half = math.ceil(_ZEROS / cutoff)
    # Output i lies at i·down/up in the input: a sample's index plus one of `up` fractions, each of which has its own
    # weights.
    taps = np.arange(-half + 1, half + 1)
    apart = taps[None, :] - np.arange(up)[:, None] / up
    weights = cutoff * np.sinc(cutoff * apart) * np.i0(_BETA * np.sqrt(np.clip(1 - (apart / half) ** 2, 0, 1)))
    weights /= np.i0(_BETA)
    weights /= weights.sum(1, keepdims=True)  # so that a constant signal stays constant
    count = -(-len(samples) * up // down)
    padded = np.concatenate([np.zeros(half - 1), samples.astype(np.float64), np.zeros(half + 1)])
    result = np.empty(count, np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * half)
    for start in range(0, count, _SAMPLES_AT_ONCE):
        places = np.arange(start, min(start + _SAMPLES_AT_ONCE, count)) * down
        result[start : start + _SAMPLES_AT_ONCE] = np.einsum("ij,ij->i", windows[places // up], weights[places % up])
    return result


class LogMel(Record):
    """A log-mel spectrogram as Whisper takes it: `bands` of the mel scale below 8 kHz, frames of `window` samples every
    `hop`, of `samples` at `rate` a second."""

    bands: int
    rate: int = 16000
    window: int = 400
    hop: int = HOP_SAMPLES
    samples: int = 480_000

    def of(self, sound: npt.NDArray[Any]) -> F32:
        """The features of a sound, which silence follows up to `samples`: f32 (bands, samples / hop).

        Powers of a Hann-windowed, centred Fourier transform, summed by triangles, as log10 with a floor 8 below the
        largest, moved and scaled to about ±1. Follows Radford et al., 2022. Raises: ShapeError for a longer sound,
        DTypeError for what are no real numbers."""
        sound = np.asarray(sound)
        if sound.ndim != 1 or len(sound) > self.samples:
            raise ShapeError(f"log-mel: the sound is {sound.shape}; expected one row of at most {self.samples} samples")
        if sound.dtype.kind not in "fiu" or not np.isfinite(sound).all():
            raise DTypeError(f"log-mel: the samples are {sound.dtype}; expected finite numbers")
        padded = np.zeros(self.samples)
        padded[: len(sound)] = sound
        padded = np.pad(padded, self.window // 2, mode="reflect")
        hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(self.window) / self.window)
        frames = np.lib.stride_tricks.sliding_window_view(padded, self.window)[:: self.hop][:-1]
        power = np.abs(np.fft.rfft(frames * hann, axis=1)) ** 2
        mel = np.log10(np.maximum(power @ self.filters(), 1e-10)).T
        mel = (np.maximum(mel, mel.max() - 8.0) + 4.0) / 4.0
        return np.ascontiguousarray(mel, np.float32)

    def filters(self) -> F64:
        """The weights of each frequency in each band, (window / 2 + 1, bands): triangles on Slaney's mel scale (linear
        below 1 kHz, logarithmic above), each of area 1."""
        top = 15 + np.log(8000 / 1000) / (np.log(6.4) / 27)
        mels = np.linspace(0, top, self.bands + 2)
        points = np.where(mels < 15, mels * 200 / 3, 1000 * np.exp(np.log(6.4) / 27 * (mels - 15)))
        heights = np.linspace(0, self.rate // 2, self.window // 2 + 1)[:, None]
        low, middle, high = points[:-2], points[1:-1], points[2:]
        rise, fall = (heights - low) / (middle - low), (high - heights) / (high - middle)
        return np.asarray(np.maximum(0, np.minimum(rise, fall)) * (2 / (high - low)))
