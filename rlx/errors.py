"""The errors rlx raises. Every message names what failed, what was given, what was expected, and what to do."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from errno import ENOENT
from itertools import islice


def meant(name: object, known: Iterable[object]) -> str:
    """ (did you mean 'softmax'?) for a name that is nearly one of those known, else nothing."""
    from difflib import get_close_matches  # only an error needs it

    names = {str(k): k for k in known}
    near = get_close_matches(str(name), names, 1) or get_close_matches(str(name).lower(), names, 1)
    return f" (did you mean {names[near[0]]!r}?)" if near else ""


def near_path(path: str) -> str:
    """ (did you mean 'model.onnx'?) for a path that is nearly that of a file beside it; for the address of a download
    that there must be a file; else nothing."""
    from difflib import get_close_matches

    if re.match(r"[a-z][a-z0-9+]+:/", path):
        return "; this is an address, and a file or folder of this machine is expected: download it first"
    if path == "-":
        return "; standard input is not read here: give a file"
    folder, name = os.path.split(path)
    stem, suffix = os.path.splitext(name)
    try:
        with os.scandir(folder or ".") as entries:
            names = sorted(entry.name for entry in islice(entries, 1000))
    except OSError:
        return ""
    alike = [n for n in names if os.path.splitext(n)[0] == name]  # the name without its suffix
    stems = {os.path.splitext(n)[0]: n for n in names if os.path.splitext(n)[1] == suffix}
    alike += [stems[s] for s in get_close_matches(stem, stems, 1, 0.75)]
    return f" (did you mean {os.path.join(folder, alike[0])!r}?)" if alike else ""


class RlxError(Exception):
    """Base of every error that rlx raises on purpose."""


class ShapeError(RlxError, ValueError):
    """Shapes, ranks, axes or attribute values that do not fit an op, an input or a parameter."""


class DTypeError(RlxError, TypeError):
    """A dtype that an op, a device or a call does not take."""


class UnsupportedOp(RlxError):
    """An op, or an op with these dtypes or attributes, that a backend or a format cannot run."""


class GraphError(RlxError):
    """A graph that is not well formed: unknown or duplicate names, cycles, values of another graph."""


class TracedValueError(GraphError, TypeError):
    """A tensor of a graph used as if its value were known: as a condition, a number, an array or a sequence."""


class LinAlgError(RlxError, ValueError):
    """A matrix whose values an op of rlx.linalg cannot take: singular, not positive definite, or not finite where its
    algorithm does not end. The message says which matrix of a batch."""


class StepLimitExceeded(RlxError):
    """A while_loop still running after its `max_steps` steps, or an ONNX model that takes more steps than allowed."""


class CapacityExceeded(RlxError):
    """A run that had more to hold than its program was built for, or an index outside of a cache; the message says
    how much is needed."""


class ModelFormatError(RlxError):
    """A model file or folder that is damaged, contradicts itself, or lacks a part."""


class DataError(RlxError):
    """Data to train or run on that cannot be read, or lacks what is needed; the message names the file, and the line or
    row."""


class _Missing(FileNotFoundError):
    """What the errors of missing files share: Python's `errno` and `filename`, and a message of rlx."""

    def __init__(self, message: str, path: object = None) -> None:
        super().__init__(message + ("" if path is None else near_path(str(path))))
        self.errno, self.filename = ENOENT, None if path is None else str(path)

    def __str__(self) -> str:
        return str(self.args[0])


class FileMissing(_Missing, ModelFormatError):
    """A model's file or folder that is not there; a FileNotFoundError too, with its `filename`."""


class DataMissing(_Missing, DataError):
    """A file of data to train or run on that is not there; a FileNotFoundError too."""


class ProgramMismatch(ModelFormatError):
    """A saved program of another version of rlx, another device or driver, or other settings; compile it here."""


class CheckpointError(RlxError):
    """A checkpoint of a training run that cannot be written or read, or is one of another model or optimizer."""


class NotFinite(RlxError, ArithmeticError):
    """A step of training whose loss or gradients are NaN or infinite. `step` is its number; the message names the first
    node that made such a value. The run is as it was before that step."""

    step: int = 0


class RanksDisagree(RlxError):
    """Ranks of a mesh that run different programs, or have other models, versions, seeds or shapes; the message says
    which rank has what, and the first difference."""


class RankLost(RlxError):
    """A rank of a mesh that ended, or did not arrive within the mesh's timeout; the message says which."""


class ArenaError(RlxError):
    """An access to device memory that does not fit its slot; nothing was changed."""


class DeviceUnavailable(RlxError):
    """A device that is missing or cannot be used; the message gives the reason."""


class OutOfDeviceMemory(RlxError, MemoryError):
    """The device cannot hold the program; the message gives needed and free memory, and the largest tensors."""


class ByteLimitExceeded(OutOfDeviceMemory):
    """A program that needs more bytes than its budget allows: an ONNX model's, with the node that does, or
    rlx.checkpoint's, with what could be reached."""


class DeviceLost(RlxError):
    """The device stopped answering; its sessions cannot be used any more, but a new one can be made."""


class EnvironmentWarning(UserWarning):
    """An environment variable that begins as those of rlx do and is none of them."""


class TuningWarning(UserWarning):
    """A table of measured choices that cannot be followed; the message says why, and what to do."""


class ModelWarning(UserWarning):
    """A model file that departs from its format; the message says how it is taken. `strict` makes it an error."""
