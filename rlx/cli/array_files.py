"""Arrays from files, for --input name=file.npy; what to do with a picture, a sound or a table in a file's place."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.errors import RlxError
from rlx.host.files import plain

_PICTURES = {
    b"\x89PNG": "PNG", b"\xff\xd8\xff": "JPEG", b"GIF8": "GIF", b"BM": "BMP", b"II*\0": "TIFF", b"MM\0*": "TIFF",
}  # fmt: skip
_SOUNDS = {b"ID3": "MP3", b"\xff\xfb": "MP3", b"OggS": "Ogg", b"fLaC": "FLAC"}


def loaded(text: str, declared: Mapping[str, tuple[Any, Sequence[Any]]] = {}) -> tuple[str, npt.NDArray[Any]]:
    """The name and the array of an --input name=file.npy; `declared`: the type and the shape that the model says of its
    inputs, for messages. Raises: RlxError."""
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise RlxError(f"--input {text}: expected name=file.npy")
    try:
        with open(path, "rb") as file:
            start = file.read(512)
            file.seek(0)
            kind, shape = declared.get(name, (None, ()))
            if not start.startswith(np.lib.format.MAGIC_PREFIX) and (hint := _instead(start, Path(path), shape)):
                what = "" if kind is None else f"; {plain(name)} is {kind} {list(shape)}"
                raise RlxError(f"{path} {hint}{what}")
            return name, np.lib.format.read_array(file, allow_pickle=False)
    except OSError as error:
        raise RlxError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, EOFError) as error:
        raise RlxError(f"{path}: is no array that NumPy's save has written: {error}") from error


def _instead(start: bytes, path: Path, shape: Sequence[Any]) -> str | None:
    """What a file is in place of NumPy's, and a command that makes one of it, for an input of that shape; None where
    neither is known."""
    target, source = str(path.with_suffix(".npy")), repr(str(path))

    def command(code: str) -> str:
        return f"python -c {shlex.quote(code)} makes {target}"

    if kind := _kind(start, _PICTURES) or ("WebP" if start[8:12] == b"WEBP" else None):
        last = len(shape) == 4 and shape[3] == 3
        height, width = (shape[1:3] if last else shape[2:]) if len(shape) == 4 else (None, None)
        size = (width, height) if isinstance(width, int) and isinstance(height, int) else (224, 224)
        code = (f"import numpy as np; from PIL import Image; p = Image.open({source}).convert('RGB').resize({size}); "
                f"np.save({target!r}, (np.asarray(p, np.float32) / 255){'' if last else '.transpose(2, 0, 1)'}[None])"
                )  # fmt: skip
        return (f"is a {kind} picture, and an input is an array of numbers: the model's page says which size, order and"
                f" normalization of pixels it takes; for pixels from 0 to 1, {command(code)}")  # fmt: skip
    if kind := "WAV" if start[8:12] == b"WAVE" else _kind(start, _SOUNDS):
        code = f"import numpy as np; from scipy.io import wavfile; np.save({target!r}, wavfile.read({source})[1])"
        how = command(code) if kind == "WAV" else "ffmpeg makes a WAV file of it"
        return f"is a {kind} sound, and an input is an array of numbers: {how} (rlx transcribe takes sounds)"
    if start.startswith(b"PK\x03\x04") and path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as several:
            names = list(several)
        code = f"import numpy as np; np.save({target!r}, np.load({source})[{names[0] if names else ''!r}])"
        held = ", ".join(map(plain, names)) or "none"
        return f"holds several arrays, {held}; an input is one of them: {command(code)}"
    if start.startswith((b"PK\x03\x04", b"\x80\x02", b"\x80\x04")):
        code = f"import numpy as np, torch; np.save({target!r}, torch.load({source}, weights_only=True).numpy())"
        return f"is a pickle, which rlx does not read: for a tensor that torch has saved, {command(code)}"
    try:
        first = start.decode("utf-8").splitlines()[0]
    except (UnicodeDecodeError, IndexError):
        return None
    comma = "," if "," in first else None
    code = f"import numpy as np; np.save({target!r}, np.loadtxt({source}, np.float32, delimiter={comma!r}, ndmin=2))"
    return f"is no array that NumPy's save has written, but text: for a table of numbers, {command(code)}"


def _kind(start: bytes, known: Mapping[bytes, str]) -> str | None:
    return next((name for magic, name in known.items() if start.startswith(magic)), None)
