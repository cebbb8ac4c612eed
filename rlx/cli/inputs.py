"""The inputs that commands give an ONNX model: files, else seeded random numbers of the declared shapes."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rlx.cli.array_files import arrays_of, dtype_said, refuse_other_dtype, shape_said
from rlx.errors import RlxError
from rlx.formats.files import beginning, plain, shown
from rlx.formats.kinds import other_kind
from rlx.host.progress import drawn
from rlx.ir.checks import checks_of
from rlx.records import replace
from rlx.runtime.checks import HostCheck

if TYPE_CHECKING:
    from rlx.onnx.model import Model, TensorInfo

LENGTHS = (8, 16, 32, 64, 128, 224, 256, 512)  # tried for open dimensions, for at most SECONDS
SECONDS = 5.0
MAX_INDICES = 4096  # Larger integer inputs are not taken for lengths or indices.
MAX_BYTES = 1 << 32  # bytes of a random input, whose shape comes from the file and the command line
Array = npt.NDArray[Any]
COMPUTED = "all operators were computed as the program was built, of constants and of the values of texts"
_WORDS = ("one", "two", "Three", "a sentence of words")


def load_model(
    file: Path, dim: Sequence[str] | None, threads: int | None = None, **limits: Any
) -> Model:
    """The model of a file, with the lengths that --dim gives; `limits` are the other arguments of rlx.onnx.load.

    Raises: RlxError; as rlx.onnx.load."""
    if file.is_dir():
        if (file / "config.json").exists() and not (file / "model.onnx").exists():
            raise RlxError(
                f"{file} is a Hugging Face folder without an ONNX file; rlx inspect shows what it holds, and rlx "
                "generate, embed or transcribe run it"
            )
        if (file / "adapter_config.json").exists():
            what = "rlx generate takes the model that it was made for, and this as --adapter"
            raise RlxError(f"{file} holds an adapter; {what}")
        within = min((*file.glob("*.onnx"), *file.glob("*.gguf")), default=file / "model.onnx")
        what = "a GGUF file" if within.suffix == ".gguf" else "an ONNX file"
        raise RlxError(f"{file} is a folder; give {what}, such as {within}")
    try:
        from rlx.onnx import load
    except ImportError as error:  # installing onnx would not help with a file of another kind
        if file.is_file() and (kind := other_kind(beginning(file))):
            raise RlxError(f"{file}: is not an ONNX file: {kind}") from error
        raise RlxError(str(error)) from error
    model = load(file, threads=threads, **limits)
    _bind(model, dims_of(dim))
    return model


def _bind(model: Model, dims: Mapping[str, int]) -> None:
    """Sets lengths of dimensions: by their symbols; those that the file gives no name by input and axis, as in x.2."""
    unnamed = [(i, axis) for i in model.inputs for axis, d in enumerate(i.shape or ()) if d is None]
    places = {_label(i, axis): (i.name, axis) for i, axis in unnamed}
    model.bind({name: length for name, length in dims.items() if name not in places})
    lengths = {places[name]: length for name, length in dims.items() if name in places}
    model.inputs = [
        i if i.shape is None else replace(i, shape=tuple(lengths.get((i.name, k), d) for k, d in enumerate(i.shape)))
        for i in model.inputs
    ]


def _label(info: TensorInfo, axis: int) -> str:
    """What --dim calls a dimension: its symbol, or input.axis where the file gives it none."""
    assert info.shape is not None
    symbol = info.shape[axis]
    return symbol if isinstance(symbol, str) else f"{info.name}.{axis}"


def dims_of(texts: Sequence[str] | None) -> dict[str, int]:
    """Symbols and lengths from name=number. Raises: RlxError."""
    found: dict[str, int] = {}
    for text in texts or ():
        name, equals, number = text.rpartition("=")
        if not (name and equals and number.isdecimal() and len(number) < 10):
            raise RlxError(f"--dim {text}: expected symbol=length, such as batch=8")
        if found.get(name, int(number)) != int(number):
            raise RlxError(f"--dim {text}: {name} is {found[name]} already")
        found[name] = int(number)
    return found


def feeds_of(model: Model, texts: Sequence[str] | None, seed: int) -> tuple[dict[str, Any], list[str]]:
    """The inputs by name, those of --input from files (for a sequence one file for each item), and the names of the
    others, which are random: normal floats, integers 0 and 1, words. Files and --dim set the lengths of dimensions; one
    that nothing sets is 1 or, where the model cannot be built with that, one of a few other lengths; a message on
    standard error says which. Raises: RlxError; as rlx.onnx.Model.run for the contents of files.
    """
    from rlx.onnx.reader.dims import bound, lengths_in

    given: dict[str, Any] = {}
    sequences = {i.name for i in model.inputs if i.around[-1:] == ("seq",)}
    declared = {i.name: (None if i.shape is None else i.dtype, i.shape or ()) for i in model.inputs}
    for text in texts or ():
        for name, array in arrays_of(text, declared).items():
            if name in sequences:
                given.setdefault(name, []).append(array)
            elif name in given:
                raise RlxError(f"--input {text}: {name} has a file already")
            else:
                given[name] = array
    for text in texts or ():
        name, _, path = text.rpartition("=")
        kind = declared.get(name or next(iter(declared), ""), (None, ()))[0]
        if path.endswith(".npy") and kind is not None and kind.kind in "biuf":
            refuse_other_dtype(path, kind)
    model.accept(given, partly=True)
    lengths: dict[str, int] = {}
    for info in model.inputs:
        if info.name in given and not info.around:
            lengths |= lengths_in(info, given[info.name].shape)
    others = [bound(i, lengths) for i in model.inputs if i.name not in given]
    free = [(i, k) for i in others for k, d in enumerate(i.shape or ()) if not isinstance(d, int)]

    def made(length: int) -> dict[str, Any]:
        """All inputs, where dimensions that nothing sets have this length; the first of each input, which is a batch as
        a rule, has the length 1."""
        rng = np.random.default_rng(seed)
        whole = {_label(i, k): length for i, k in free if k} | {_label(i, k): 1 for i, k in free if not k}
        return {**{i.name: _random(_of_length(i, whole), rng) for i in others}, **given}

    labels = list(dict.fromkeys(_label(i, k) for i, k in free))
    feeds = _that_fit(model, made, labels) if free else made(1)
    whole = [i.name for i in others if i.dtype is not None and i.dtype.kind in "iu" and not i.around]
    _draw_indices(model, feeds, [n for n in whole if feeds[n].size <= MAX_INDICES], np.random.default_rng(seed))
    return feeds, [i.name for i in others]


def _draw_indices(model: Model, feeds: dict[str, Any], names: Sequence[str], rng: np.random.Generator) -> None:
    """Redraws the named integer inputs that operators refuse, such as lengths and indices into caches, within the
    limits that the operators state. Other errors are left to the run."""
    from rlx.onnx.reader.call import OutOfRange

    for _ in names:
        try:
            with drawn():
                built = model.built(feeds)
        except OutOfRange as error:
            if error.fed is None or error.fed not in names:
                return
            old = feeds[error.fed]
            feeds[error.fed] = rng.integers(error.least, error.most + 1, old.shape).astype(old.dtype)
            continue
        except RlxError:
            return
        for what, (index, limits) in checks_of(built.graph).items():
            check = HostCheck(what, index, limits)
            own = [n for n in check.inputs() if n in names]
            if len(own) == 1:
                feeds[own[0]] = _inside(check, own[0], built.feeds | {n: feeds[n] for n in names}, rng)
        return


def _inside(check: HostCheck, name: str, feeds: Mapping[str, Any], rng: np.random.Generator) -> Any:
    """An input whose index is inside its limits, if that is the input plus something else."""
    old = feeds[name]
    index, next_ = (check.index({**feeds, name: np.full_like(old, n)}) for n in (0, 1))
    least, most, *_ = (int(n) for n in check.limits(feeds))
    if index is None or next_ is None or index.size != old.size or not (next_ - index == 1).all():
        return old
    low, high = (np.clip(end - index.reshape(old.shape), 0, np.iinfo(old.dtype).max) for end in (least, most))
    here = (old >= low) & (old <= high)
    return np.where(here | (low > high), old, rng.integers(low, np.maximum(low, high) + 1)).astype(old.dtype)


def _of_length(info: TensorInfo, lengths: Mapping[str, int]) -> TensorInfo:
    if info.shape is None:
        return info
    dims = enumerate(info.shape)
    return replace(info, shape=tuple(d if isinstance(d, int) else lengths[_label(info, k)] for k, d in dims))


def _that_fit(model: Model, made: Callable[[int], dict[str, Any]], labels: Sequence[str]) -> dict[str, Any]:
    """Inputs of the first length with which the model can be built. Raises: RlxError if there is none, with the error
    at length 1 and how to give lengths."""
    names, setting = plain(", ".join(labels)), f"--dim {plain(labels[0])}"
    feeds = made(1)
    try:
        with drawn():
            model.built(feeds)
    except RlxError as error:
        begin = time.monotonic()
        for length in LENGTHS:
            if time.monotonic() - begin > SECONDS:
                break
            try:
                other = made(length)
                model.built(other)
            except RlxError:
                continue
            print(f"dimensions taken as {length} (1 for batches): {names}; {setting}=64 sets one", file=sys.stderr)
            return other
        wanted = " ".join(f"--dim {plain(label)}=224" for label in labels)
        raise type(error)(
            f"{error}. The file leaves lengths open, which were taken as 1: {names}; others were tried and fail too. "
            f"If the model needs certain ones, give them, as in {wanted}"
        ) from error
    print(f"dimensions taken as 1: {names}; {setting}=8 sets one", file=sys.stderr)
    return feeds


def said(value: Any) -> str:
    """A summary of an array: type, shape, how many are NaN, the range of the others; for a list of each item."""
    if value is None:
        return "nothing"
    if isinstance(value, list):
        return (
            f"{len(value)} items" + "".join(f"; {said(v)}" for v in value[:4]) + ("; …" if value[4:] else "")
        )
    if isinstance(value, dict):  # a row of a ZipMap
        return shown(value)
    head = f"{dtype_said(value.dtype)} {shape_said(value.shape)}"
    if not value.size:
        return head
    if value.size == 1 and value.dtype.kind != "O":
        return f"{head} = {value.reshape(-1)[0]}"
    if value.dtype.kind not in "biufV":
        return f"{head}, first {value.reshape(-1)[0]!r:.60}"
    wide = value.astype(np.float64)
    missing = np.isnan(wide)
    if missing.any():
        head += f", {np.count_nonzero(missing):,} of {wide.size:,} NaN"
        wide = wide[~missing]
        if not wide.size:
            return head
    with np.errstate(invalid="ignore"):  # the mean of inf and -inf is NaN
        return f"{head}, {wide.min():.6g} to {wide.max():.6g}, mean {wide.mean():.6g}"


def _random(info: TensorInfo, rng: np.random.Generator) -> Any:
    name = plain(info.name)
    give = f"give --input {name}=file.npy"
    if info.dtype is None or info.shape is None:
        raise RlxError(f"input {name}: the model does not say its type and shape; {give}")
    shape = [d for d in info.shape if isinstance(d, int)]
    if math.prod(shape) * info.dtype.itemsize > MAX_BYTES:
        raise RlxError(f"input {name}: {shape} of {info.dtype} is more than {MAX_BYTES:,} bytes; {give}")
    result: Any
    if info.dtype.kind == "O":
        result = rng.choice(np.array(_WORDS, object), shape)
    elif info.dtype.kind == "b":
        result = rng.integers(0, 2, shape).astype(bool)
    elif info.dtype.kind in "iu":
        result = rng.integers(0, 2, shape).astype(info.dtype)  # valid indices even into the smallest tables
    else:
        result = rng.standard_normal(shape).astype(info.dtype)
    for word in reversed(info.around):
        result = [result, result] if word == "seq" else result
    return result
