"""ONNX models on any device: `load`, `Model`, an ONNX-Runtime-shaped `InferenceSession`, a `Backend` for onnx.backend;
and `save`, which writes an rlx graph as an ONNX model.

Needs the `onnx` package (`pip install rlx[onnx]`).
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if importlib.util.find_spec("onnx") is None:
    raise ImportError("reading ONNX models needs the onnx package: pip install 'rlx[onnx]'")
from rlx.onnx.installed import check as _check

if "onnx" in sys.modules:  # else the first module that needs it checks
    _check()

from rlx.lazy import by_need as _by_need
from rlx.runtime.keywords import keywords as _keywords

if TYPE_CHECKING:
    from rlx.onnx.backend import Backend as Backend
    from rlx.onnx.model import Model as Model
    from rlx.onnx.model import Program as Program
    from rlx.onnx.model import TensorInfo as TensorInfo
    from rlx.onnx.session import InferenceSession as InferenceSession
    from rlx.onnx.session import get_all_providers as get_all_providers
    from rlx.onnx.session import get_available_providers as get_available_providers
    from rlx.onnx.session import get_device as get_device
    from rlx.onnx.session import set_default_logger_severity as set_default_logger_severity
    from rlx.onnx.session.binding import IOBinding as IOBinding
    from rlx.onnx.session.binding import OrtValue as OrtValue
    from rlx.onnx.session.options import ExecutionMode as ExecutionMode
    from rlx.onnx.session.options import GraphOptimizationLevel as GraphOptimizationLevel
    from rlx.onnx.session.options import RunOptions as RunOptions
    from rlx.onnx.session.options import SessionOptions as SessionOptions
    from rlx.onnx.writer.model import save as save
    from rlx.onnx.writer.model import to_model as to_model
    from rlx.runtime.dims import Dim, Otherwise

_NAMES = {
    "backend": "Backend",
    "model": "Model Program TensorInfo",
    "session": "InferenceSession get_all_providers get_available_providers get_device set_default_logger_severity",
    "session.binding": "IOBinding OrtValue",
    "session.options": "ExecutionMode GraphOptimizationLevel RunOptions SessionOptions",
    "writer.model": "save to_model",
}
_by_need(__name__, {name: f"rlx.onnx.{module}" for module, names in _NAMES.items() for name in names.split()})


@_keywords
def load(
    source: Any,
    *,
    dims: Mapping[str, int | Dim] | None = None,
    threads: int | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    strict: bool = False,
    max_bytes: int | None = None,
    max_steps: int | None = None,
    otherwise: Otherwise = "error",
) -> Model:
    """Reads an ONNX model: a path, bytes, or an onnx.ModelProto. External data is read from the path's folder.

    `dims` binds symbolic dimensions to lengths by name; one given as `rlx.Dim("batch", max=64)` varies, and one program
    serves each bucket of its lengths, as rlx.jit's `dims` says. An operator that cannot run so is an UnsupportedOp, or
    with `otherwise="exact"` has a program for each length. `Model.lengths()` says which programs there are. `threads`
    limits the CPU's. `progress(stage, done, total)` is called during reading and every later compilation; a total of 0
    means that it is unknown.

    What ONNX Runtime takes is taken, with a ModelWarning: outputs of other shapes than the file declares, dimensions of
    one name with several lengths, attributes that an operator does not have, domains that are not imported. `strict`
    refuses them.

    `max_bytes` bounds the memory of a program beyond its inputs and weights: values computed while it is built, and its
    tensors; by default 1 GiB and 64 times the bytes of inputs and weights. `max_steps` bounds its time: a node run in a
    loop, 8 KiB written, or 2^18 multiplications of a product is a step; by default 262,144 and an eighth of these
    bytes. Building may take an eighth as many. A program that needs more raises ByteLimitExceeded, an
    OutOfDeviceMemory, or StepLimitExceeded, before the memory or time is spent.

    Warns: ModelWarning.

    Raises: ModelFormatError naming the node for a file that is damaged or contradicts itself; UnsupportedOp naming
    every operator that rlx lacks, with domain, version and node; GraphError naming the model's dimensions, for a name
    in `dims` that is none of them.
    """
    from rlx.onnx import ready  # the first model imports them

    options: dict[str, Any] = {"threads": threads, "strict": strict, "max_bytes": max_bytes, "max_steps": max_steps}
    content = None if dims or progress is not None or otherwise != "error" else ready.content_of(source)
    if content is not None:
        return ready.find(content, options) or ready.read(content, options)
    from rlx.onnx.model import Model

    return Model(source, dims=dims, progress=progress, otherwise=otherwise, **options)


__all__ = [
    "Backend", "ExecutionMode", "GraphOptimizationLevel", "IOBinding", "InferenceSession", "Model", "OrtValue",
    "Program", "RunOptions", "SessionOptions", "TensorInfo", "get_all_providers", "get_available_providers",
    "get_device", "load", "save", "set_default_logger_severity", "to_model",
]  # fmt: skip
