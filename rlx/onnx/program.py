"""Program: a model compiled for given inputs on one device; Built: the graph that is compiled."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from rlx.driver.closing import Closing
from rlx.errors import GraphError, ShapeError, UnsupportedOp, meant
from rlx.formats.files import shown
from rlx.host.progress import Listener, listening, report
from rlx.ir import Graph
from rlx.ir.checks import visible
from rlx.onnx.reader.budget import Budget, refused_memory
from rlx.onnx.reader.build import GraphBuilder
from rlx.onnx.reader.draws import Sampler
from rlx.onnx.reader.elements import STRING, Array
from rlx.onnx.reader.string_table import StringTable, as_array
from rlx.onnx.reader.structure import Structure, arrays_in, assembled, flattened
from rlx.ops.control.steps import step_budget
from rlx.packed import PackedArray
from rlx.records import Record
from rlx.runtime import CompiledGraph
from rlx.runtime.array import Array as DeviceArray
from rlx.runtime.buckets import FittedProgram
from rlx.runtime.launch import Launch
from rlx.runtime.outs import Out
from rlx.runtime.report import Report

T = TypeVar("T")


class Part(Record):
    """A part of a run: the device that ran it, of how many nodes it consists, and the seconds that it took. `compiled`
    are the seconds of compiling it, None where an earlier run's program was used again, and on the host; `first` is
    the name of its first node."""

    device: str
    nodes: int
    seconds: float
    compiled: float | None
    first: str

    def __str__(self) -> str:
        how = "run by NumPy" if self.device == "host" else "reused"
        how = how if self.compiled is None else f"compiled in {self.compiled * 1e3:,.1f} ms"
        return f"{self.device:8} {self.nodes:5} nodes {self.seconds * 1e3:9,.2f} ms  {how}, from {self.first}"


class Built(Record):
    """A model as the rlx graph that is compiled for given inputs, whatever the device. Its large constants are
    parameters, in `weights` by name; `feeds` are the graph's inputs; the values of the inputs in `fixed` are part of
    the graph. `builder` knows the outputs; `budget` limits the memory and time of a program."""

    graph: Graph
    weights: dict[str, Array | PackedArray]
    feeds: dict[str, Array]
    fixed: dict[str, Array]
    builder: GraphBuilder
    budget: Budget


class Program(Closing):
    """A model compiled for given input shapes on one device. `run` takes arrays of these shapes. A `with` block closes
    it."""

    def __init__(
        self,
        graph: CompiledGraph | None,
        inputs: Mapping[str, Structure],
        fixed: Mapping[str, Array],
        builder: GraphBuilder,
        steps: int,
        progress: Listener | None = None,
    ) -> None:
        self._runs: CompiledGraph | FittedProgram | None = graph
        self._progress = progress
        self._steps = steps  # the limit of a run: models are untrusted
        self._started = False
        self._inputs = dict(inputs)
        self._fixed = dict(fixed)
        self._outputs = dict(builder.outputs)
        self._types = dict(builder.output_types)
        self._packs = dict(builder.packs)
        self._words = builder.known.words
        self._draw = Sampler(builder.known.draws.wanted)

    def __repr__(self) -> str:
        return f"Program({self.graph!r})"

    def _repr_html_(self) -> str:
        return self.graph._repr_html_()

    @property
    def graph(self) -> CompiledGraph:
        """The compiled graph; for lengths that vary, that of the bucket."""
        assert self._runs is not None
        return self._runs if isinstance(self._runs, CompiledGraph) else self._runs.compiled

    @property
    def rounded(self) -> bool:
        """Whether a bucket's program runs, which serves other lengths too."""
        return isinstance(self._runs, FittedProgram)

    def fit(self, runs: FittedProgram) -> None:
        """Sets what a program runs whose lengths vary, once its bucket is known."""
        self._runs = runs

    def close(self) -> None:
        """Frees the program's memory, but that of a bucket; the weights stay with the model. Idempotent."""
        if self._runs is not None:
            self._runs.close()

    def report(self) -> Report:
        """How each node runs on the device: native, decomposed, host."""
        return self.graph.report()

    def save(self, path: str | os.PathLike[str], *, weights: bool = True) -> None:
        """Writes the compiled program to a file, as `CompiledGraph.save` does, for `rlx.load_program` to bring back a
        CompiledGraph whose inputs and outputs have the model's names.

        Raises: UnsupportedOp for a program with strings, sequences or random numbers of its own, which this object adds
        to its graph."""
        if not self.plain:
            said = ", ".join(map(shown, self._odd())) or "random numbers drawn for each run"
            raise UnsupportedOp(f"save: {said}: only a program of plain arrays can be saved; load the model itself")
        self.graph.save(path, weights=weights)

    @property
    def plain(self) -> bool:
        """Whether inputs and outputs are those of the graph: no strings, sequences, nor random numbers of its own."""
        outputs = self.graph.graph.outputs
        return not self._odd() and not self.draws and visible(outputs).keys() == self._outputs.keys()

    def _odd(self) -> list[str]:
        nested = [n for n, s in (*self._inputs.items(), *self._outputs.items()) if s != n]
        return nested + [n for n, dtype in self._types.items() if dtype == STRING]

    @property
    def types(self) -> dict[str, np.dtype[Any]]:
        """The types of the outputs, in the model's order."""
        return {n: self._types[n] for n in self._outputs if n in self._types}

    def part(self, seconds: float, compiled: float | None) -> Part:
        """This program as a part of a run that took so many seconds."""
        nodes = self.graph.program.nodes
        first = next((n.name for n in nodes if not n.op.leaf), "its inputs")
        return Part(self.graph.device.info.id, len(nodes), seconds, compiled, first)

    @property
    def fixed(self) -> tuple[str, ...]:
        """The inputs whose values are compiled in, since shapes depend on them."""
        return tuple(self._fixed)

    @property
    def draws(self) -> bool:
        """Whether each run draws random numbers of its own."""
        return self._draw.any

    def run(self, inputs: Mapping[str, Any] | None = None, out: Out = "host") -> dict[str, Any]:
        """Runs once. Inputs may be rlx.Arrays of the device; with `out="device"` outputs are, where rlx has their type.

        Raises: GraphError, ShapeError, DTypeError; ShapeError when an input whose value was compiled in has another
        value, or a sequence another number of items."""
        feeds, strings = self._feeds(inputs)
        with refused_memory("running the model"):
            return self._results(strings, self._run(lambda runs: runs.run(feeds, out)))

    def launch(self, inputs: Mapping[str, Any] | None = None) -> Launch[dict[str, Any]]:
        """Begins a run and returns while the device is at work, as `CompiledGraph.launch` does; results as in `run`
        with `out="device"`. It waits for results of a type that rlx does not have. Raises: as `run`."""
        feeds, strings = self._feeds(inputs)
        with refused_memory("running the model"):
            return self._run(lambda runs: runs.launch(feeds)).arranged(partial(self._results, strings))

    def _feeds(self, inputs: Mapping[str, Any] | None) -> tuple[dict[str, Any], StringTable]:
        """The graph's inputs for a run's, and the run's strings."""
        wanted = self._inputs
        for name in inputs or ():
            if name not in wanted:
                raise GraphError(f"the program has no input {name!r}; it takes {sorted(wanted)}{meant(name, wanted)}")
        arrays = {n: arrays_in(v, not isinstance(wanted[n], str)) for n, v in (inputs or {}).items()}
        feeds, nests = flattened(arrays, wanted)
        for name, nest in nests.items():
            if nest != wanted[name]:
                raise ShapeError(
                    f"input {name!r}: the program was compiled for {shown(wanted[name])}, {shown(nest)} came"
                )
        for name, value in self._fixed.items():
            if name in feeds and not np.array_equal(
                as_array(feeds.pop(name)), value, equal_nan=value.dtype.kind == "f"
            ):
                raise ShapeError(
                    f"input {name!r}: the program was compiled for its value {shown(value.tolist())}"
                )
        # The strings of a run's inputs enter a table of this run alone.
        strings = StringTable(self._words) if any(v.dtype == STRING for v in feeds.values()) else self._words
        with refused_memory("running the model"):
            return {n: strings.to_carrier(v) for n, v in feeds.items()} | self._draw(), strings

    def _results(self, strings: StringTable, results: Mapping[str, Any]) -> dict[str, Any]:
        """The model's outputs for those of the graph."""
        outputs = dict(results)
        for name, parts in self._packs.items():
            outputs |= _parted(np.asarray(outputs.pop(name)), parts)
        arrays = {
            n: a if isinstance(a := outputs[n], DeviceArray) and a.dtype.np == dtype
            else strings.from_carrier(np.asarray(a), dtype)
            for n, dtype in self._types.items()
        }  # fmt: skip
        return {n: assembled(nest, arrays.__getitem__) for n, nest in self._outputs.items()}

    def _run(self, work: Callable[[CompiledGraph | FittedProgram], T]) -> T:
        runs = self._runs
        assert runs is not None
        with step_budget(self._steps, weighed=True):
            if self._started:
                return work(runs)
            with listening(self._progress):
                report("running", 0, 1)
                result = work(runs)
                report("running", 1, 1)
            self._started = True
            return result


def _parted(array: Array, parts: Sequence[tuple[str, tuple[int, ...]]]) -> dict[str, Array]:
    """The arrays that one flat array consists of."""
    ends = np.cumsum([math.prod(shape) for _, shape in parts])
    return {
        name: part.reshape(shape) for (name, shape), part in zip(parts, np.split(array, ends[:-1]), strict=True)
    }
