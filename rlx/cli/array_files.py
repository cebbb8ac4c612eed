"""Arrays from files, for --input name=file.npy; what to do with a picture, a sound or a table in a file's place."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from rlx.errors import RlxError, meant
from rlx.formats.kinds import picture, sound
from rlx.host.files import plain

Array = npt.NDArray[Any]


def arrays_of(text: str, declared: Mapping[str, tuple[Any, Sequence[Any]]]) -> dict[str, Array]:
    """The arrays of an --input, by name: of name=file.npy, of name=file.npz, where that holds one array or one of that
    name, of file.npy for a model with one input, of file.npz, whose arrays have the names of inputs, and of numbers as
    they are, name=2.5 or name=[1,2], or texts, name=[["a"],["b"]]. `declared`: the type and the shape that the model
    says of each of its inputs; the type is None where it says none.
    Raises: RlxError.
    """
    name, equals, path = text.partition("=")
    if not equals:
        name, path = "", text
    if not path or (equals and not name):
        raise RlxError(f"--input {text}: expected name=file.npy, of the inputs {_listed(declared)}")
    if not name and not path.endswith(".npz"):
        if len(declared) != 1:
            raise RlxError(f"--input {text}: expected name=file.npy, of the inputs {_listed(declared)}")
        name = next(iter(declared))
    kind, shape = declared.get(name, (None, ()))
    what = "" if kind is None else f"; {plain(name)} is {dtype_said(kind)} {shape_said(shape)}"
    if (written := _written(text, path, name, kind, what)) is not None:
        return {name: written}
    try:
        with open(path, "rb") as file:
            start = file.read(512)
            file.seek(0)
            if not start:
                raise RlxError(f"{path} is an empty file; expected an array that NumPy's save has written{what}")
            if start.startswith(b"PK\x03\x04") and path.endswith(".npz"):
                return _held(path, name, declared, what)
            if not start.startswith(np.lib.format.MAGIC_PREFIX) and (hint := _instead(start, Path(path), kind, shape)):
                raise RlxError(f"{path} {hint}{what}")
            return {name: np.lib.format.read_array(file, allow_pickle=False)}
    except OSError as error:
        hint = ""
        if isinstance(error, FileNotFoundError) and kind is not None and kind.kind == "O":
            itself = json.dumps(np.full([1] * len(shape), path).tolist(), ensure_ascii=False)
            hint = f"; for the text itself, --input {shlex.quote(f'{name}={itself}')}{what}"
        raise RlxError(f"{path}: cannot be read: {error.strerror or error}{hint}") from error
    except (ValueError, EOFError, BadZipFile) as error:
        if "allow_pickle" in str(error):
            raise RlxError(f"{path} holds Python objects as a pickle, which rlx does not read; save numbers as such, "
                           f"and texts as an array of them: array.astype(str){what}") from error  # fmt: skip
        raise RlxError(f"{path}: is no array that NumPy's save has written: {error}") from error


def _written(text: str, value: str, name: str, kind: Any, what: str) -> Array | None:
    """The array of a number, a bool or a list of them in JSON, or of a list of texts, for an input of that type; None
    where the value is the name of a file. Raises: RlxError."""
    if Path(value).exists() or not name:
        return None
    try:
        array = np.array(json.loads(value))
    except ValueError:
        if value in ("random", "rand", "zeros", "ones"):
            raise RlxError(f"--input {text}: there is no file {value}; an input that is not given is random") from None
        if re.fullmatch(r"[\d., -]+", value):
            raise RlxError(f"--input {text}: a list stands in brackets, as in {plain(name)}=[1,2]{what}") from None
        if value.startswith("["):
            form = '[["a"],["b"]]' if kind is not None and kind.kind == "O" else "[[1,2],[3,4]]"
            raise RlxError(f"--input {text}: no list in JSON, as in {form}{what}") from None
        return None
    if kind is not None and kind.kind == "O" and array.dtype.kind == "U" and array.ndim:
        return array
    if kind is None or array.dtype.kind not in "biuf" or kind.kind not in "biuf":
        return None
    converted = array.astype(kind)
    if kind.kind != "f" and not np.array_equal(converted, array):
        raise RlxError(f"--input {text}: {kind.name} does not hold these values")
    return converted


def refuse_other_dtype(path: str, kind: Any) -> None:
    """Raises: RlxError for a file of another dtype than an input's, with a command that converts it."""
    came = np.load(path, mmap_mode="r").dtype
    if came != kind and came.kind in "biuf":
        target = str(Path(path).with_suffix(f".{kind.name}.npy"))
        code = f"import numpy as np; np.save({json.dumps(target)}, np.load({json.dumps(path)}).astype(np.{kind.name}))"
        raise RlxError(f"{path} is {came}, expected {kind.name}; python -c {shlex.quote(code)} makes {target}")


def dtype_said(kind: Any) -> str:
    """A dtype in messages; NumPy's of texts is that of any object."""
    return "string" if kind is not None and kind.kind in "OU" else str(kind)


def shape_said(shape: Sequence[Any]) -> str:
    """A shape whose lengths are numbers, symbols, or None where the file gives no length."""
    return f"[{', '.join(plain(d) if isinstance(d, str) else '?' if d is None else str(d) for d in shape)}]"


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(map(plain, names))


def _held(path: str, name: str, declared: Mapping[str, Any], what: str) -> dict[str, Array]:
    """The arrays of a .npz file for the input of that name, or for those of their own names. Raises: RlxError."""
    with np.load(path, allow_pickle=False) as held:
        names = list(held)
        if not name and len(names) == len(declared) == 1:
            name = next(iter(declared))
        if not name:
            if unknown := [n for n in names if n not in declared]:
                near = meant(unknown[0], declared)
                raise RlxError(f"{path} holds {', '.join(map(plain, names))}, and the model has no input "
                               f"{plain(unknown[0])!r}{near}; it takes {_listed(declared)}: save the arrays by these "
                               "names, or give each a file, as --input name=file.npy")  # fmt: skip
            return {n: held[n] for n in names}
        if name in names or len(names) == 1:
            return {name: held[name if name in names else names[0]]}
    target = str(Path(path).with_suffix(".npy"))
    first = json.dumps(names[0] if names else "")
    code = f"import numpy as np; np.save({json.dumps(target)}, np.load({json.dumps(path)})[{first}])"
    raise RlxError(f"{path} holds {', '.join(map(plain, names)) or 'no arrays'}, and none by the name of the input: "
                   f"python -c {shlex.quote(code)} makes {target} of one{what}")  # fmt: skip


def _instead(start: bytes, path: Path, kind: Any, shape: Sequence[Any]) -> str | None:
    """What a file is in place of NumPy's, and a command that makes one of it, for an input of that type and shape; None
    where neither is known."""
    target, source = json.dumps(str(path.with_suffix(".npy"))), json.dumps(str(path))

    def command(code: str) -> str:
        return f"python -c {shlex.quote(f'import numpy as np; {code}')} makes {path.with_suffix('.npy')}"

    if kind_of := picture(start):
        last = len(shape) == 4 and shape[3] in (1, 3)
        height, width = (shape[1:3] if last else shape[2:]) if len(shape) == 4 else (None, None)
        size = (width, height) if isinstance(width, int) and isinstance(height, int) else (224, 224)
        grey = len(shape) == 4 and shape[3 if last else 1] == 1
        whole = kind is not None and kind.kind in "iu"
        pixels = f"np.asarray(p, np.{kind.name})" if whole else "(np.asarray(p, np.float32) / 255)"
        if not whole and kind is not None and kind.name not in ("float32", "object"):
            pixels = f"{pixels}.astype(np.{kind.name})"
        axes = "[None]" if last else ".transpose(2, 0, 1)[None]"
        if grey:
            axes = "[None, :, :, None]" if last else "[None, None]"
        code = (f'from PIL import Image; p = Image.open({source}).convert("{"L" if grey else "RGB"}").resize({size}); '
                f"np.save({target}, {pixels}{axes})")  # fmt: skip
        return (f"is a {kind_of} picture, and an input is an array of numbers: the model's page says which size, order "
                f"and normalization of pixels it takes; for pixels from 0 to {255 if whole else 1}, {command(code)}"
                )  # fmt: skip
    if kind_of := sound(start):
        code = f"from scipy.io import wavfile; np.save({target}, wavfile.read({source})[1])"
        how = command(code) if kind_of == "WAV" else "ffmpeg makes a WAV file of it"
        return f"is a {kind_of} sound, and an input is an array of numbers: {how} (rlx transcribe takes sounds)"
    if start.startswith((b"PK\x03\x04", b"\x80\x02", b"\x80\x04")):
        code = f"import torch; np.save({target}, torch.load({source}, weights_only=True).numpy())"
        return f"is a pickle, which rlx does not read: for a tensor that torch has saved, {command(code)}"
    try:
        first = start.decode("utf-8").splitlines()[0]
    except (UnicodeDecodeError, IndexError):
        return None
    if kind is not None and kind.kind == "O":
        rest = ", None" * (len(shape) - 1)
        code = f"np.save({target}, np.array(open({source}).read().splitlines())[:{rest}])"
        return f"is no array that NumPy's save has written, but text: for a text in each line, {command(code)}"
    mark = next((c for c in ",;" if c in first), None)
    head = "" if _is_number(first.split(mark)[0]) else ", skiprows=1"
    number = kind.name if kind is not None and kind.kind in "iuf" else "float32"
    table = f"np.loadtxt({source}, np.{number}, delimiter={json.dumps(mark) if mark else None}{head}, ndmin=2)"
    return ("is no array that NumPy's save has written, but text: for a table of numbers, "
            f"{command(f'np.save({target}, {table})')}")  # fmt: skip


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
