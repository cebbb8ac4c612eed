"""Packs the arguments of a launch as cuLaunchKernel takes them: an array of pointers to values."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rlx.backends.cuda.tensor_map import TensorMap
from rlx.backends.gpu.program.kernel import KERNELS
from rlx.backends.gpu.program.steps import FileKernel, Launch, Ref, SourceKernel
from rlx.errors import RlxError

_KINDS: dict[str, Any] = {
    "ptr": ctypes.c_uint64,
    "u32": ctypes.c_uint32,
    "i32": ctypes.c_int32,
    "f32": ctypes.c_float,
}
_RANGES = {"u32": (0, 2**32), "i32": (-(2**31), 2**31)}


@dataclass(frozen=True, slots=True)
class PackedArgs:
    """Argument values and the array of pointers to them; both must live until the launch call returns."""

    values: tuple[Any, ...]
    array: Any

    @property
    def pointer(self) -> int:
        return ctypes.addressof(self.array)


def pack_args(launch: Launch, address_of: Callable[[Ref], int]) -> PackedArgs:
    """Packs a launch's arguments by the kernel's declaration; tree and source kernels have none, so by their types.

    Raises: RlxError for a count or kind that is not the declared one, or a value out of its kind's range.
    """
    kernel = launch.kernel
    if isinstance(kernel, FileKernel):
        kinds: list[str] = [a.kind for a in KERNELS[kernel.stem].args]
        name = kernel.stem
    else:
        kinds = ["ptr" if isinstance(a, Ref) else "f32" if isinstance(a, float) else "u32" for a in launch.args]
        name = kernel.name if isinstance(kernel, SourceKernel) else "tree"
    if len(kinds) != len(launch.args):
        raise RlxError(
            f"{launch.label}: kernel {name} takes {len(kinds)} arguments, the launch has {len(launch.args)}"
        )
    values = []
    for i, (kind, value) in enumerate(zip(kinds, launch.args, strict=True)):
        if isinstance(value, Ref) != (kind in ("ptr", "map")):
            raise RlxError(f"{launch.label}: kernel {name}: argument {i} is declared {kind}, got {value!r}")
        if isinstance(value, Ref) and kind == "map":
            values.append(TensorMap(address_of(value), *map_tile(launch, i)))
            continue
        if isinstance(value, Ref):
            values.append(_KINDS[kind](address_of(value)))
            continue
        if kind in _RANGES and not (isinstance(value, int) and _in(value, *_RANGES[kind])):
            raise RlxError(f"{launch.label}: kernel {name}: argument {i} = {value!r} is no {kind}")
        values.append(_KINDS[kind](value))
    places = (v.place if isinstance(v, TensorMap) else ctypes.addressof(v) for v in values)
    pointers = (ctypes.c_void_p * max(len(values), 1))(*places)
    return PackedArgs(tuple(values), pointers)


def map_tile(launch: Launch, i: int) -> tuple[int, int, int]:
    """The rows and columns of the matrix that argument i, a map, describes, and the rows of a tile."""
    assert isinstance(launch.kernel, FileKernel)
    decl = KERNELS[launch.kernel.stem]
    named = dict(zip((a.name for a in decl.args), launch.args, strict=True))
    tile = decl.args[i].tile
    assert tile is not None
    rows, columns, high = (named[name] for name in tile)
    assert isinstance(rows, int) and isinstance(columns, int) and isinstance(high, int)
    return rows, columns, high


def _in(value: int, low: int, high: int) -> bool:
    return low <= value < high
