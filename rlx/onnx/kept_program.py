"""A GPU's program of an ONNX file in the disk cache: a saved program without weights, which are read from the ONNX
file, and scaled where a normalization is folded in."""

from __future__ import annotations

import marshal
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.driver.device import Bytes
from rlx.host.diskcache import Part
from rlx.host.sources import stamp
from rlx.ir import TensorType, bodies
from rlx.onnx.channel_scales import F64, scaled
from rlx.runtime.kept import PASSES
from rlx.runtime.session import Session
from rlx.runtime.version import described

if TYPE_CHECKING:
    from rlx.runtime.compiled import CompiledGraph

_MOST_BYTES = 1 << 24  # limit on the weights in a record: those that are not in the file as they are
_NAME = "weight "  # the prefix of initializers' names in a program


def key_of(session: Session) -> list[Part] | None:
    """What a program depends on besides the file and the types of its inputs; None for a session whose programs are not
    kept."""
    options = session.options
    if options.timed or options.debug or session.room.limit is not None or session.stream is not None:
        return None
    said = repr((sorted(described(session.device).items()), sorted((options.choices or {}).items())))
    return [stamp("backends", *PASSES), options.precision, session.fallback, said]


def record_of(
    compiled: CompiledGraph, outputs: Sequence[str], initializers: Mapping[str, Any],
    places: Mapping[str, tuple[int, int]], scales: Mapping[str, F64],
) -> bytes | None:  # fmt: skip
    """The program, and for each weight its offset in the file (`places` are those of initializers) and the scales of
    its channels, if any (`scales`, as `put_together` gives them), or else its bytes.
    None for a program with states, control flow or packed weights, or with too many weights that are not in the
    file."""
    from rlx.runtime.saved.program import raw_of

    graph, weights = compiled.graph, dict[str, Any]()
    if graph.states or any(bodies(node) for node in compiled.program.nodes):
        return None
    left = _MOST_BYTES
    for name, t in graph.params.items():
        if t.dtype.is_packed or compiled.weights.dtypes()[name] != t.dtype:
            return None
        raw, label = raw_of(compiled.weights.get(name)), name.removeprefix(_NAME)
        source, by = label.partition("\n")[0], scales.get(label)
        begun, nbytes = places.get(source, (0, -1))
        if nbytes == raw.nbytes:
            value = initializers[source]
            if np.array_equal(raw, raw_of(value if by is None else scaled(value, by))):
                weights[name] = begun, b"" if by is None else by.tobytes()
                continue
        left -= raw.nbytes
        if left < 0:
            return None
        weights[name] = raw.tobytes()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.rlx"
        compiled.save(path, weights=False)
        return marshal.dumps((path.read_bytes(), weights, list(outputs)))


class KeptProgram:
    """A program from the cache; `run` takes arrays in the order of `inputs`."""

    def __init__(self, record: bytes, content: bytes, session: Session) -> None:
        """Raises: whatever a damaged record leads to."""
        from rlx.runtime.saved.load import opened
        from rlx.runtime.saved.program import load, raw_of

        program, weights, self._outputs = marshal.loads(record)

        def raw(name: str, t: TensorType) -> Bytes:
            held = weights[name]
            if isinstance(held, bytes):
                return np.frombuffer(held, np.uint8)
            begun, by = held
            own = np.frombuffer(content, np.uint8, t.nbytes, begun)
            return raw_of(scaled(own.view(t.dtype.np).reshape(t.shape), np.frombuffer(by))) if by else own

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "program.rlx"
            path.write_bytes(program)
            with opened(path) as file:
                self._program = load(file, session, None, None, trusted=True, left_out=raw)
        self.inputs = list(self._program.graph.inputs)

    def run(self, arrays: Sequence[Any]) -> dict[str, Any]:
        """The model's outputs."""
        results = self._program.run(dict(zip(self.inputs, arrays, strict=True)))
        return {name: results[name] for name in self._outputs}

    def close(self) -> None:
        self._program.close()
        self._program.weights.close()
