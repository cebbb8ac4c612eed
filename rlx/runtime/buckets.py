"""Buckets: one padded program for each bucket of lengths, and what it costs."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rlx.errors import GraphError, UnsupportedOp
from rlx.host.locks import renewed
from rlx.ir import Graph, TensorType
from rlx.records import Record
from rlx.runtime.array import Array
from rlx.runtime.array import array as make_array
from rlx.runtime.compiled import CompiledGraph
from rlx.runtime.dims import Dim, Otherwise
from rlx.runtime.launch import Launch
from rlx.runtime.outs import Out
from rlx.runtime.report import Report

KEPT = 4096  # sets of lengths whose graphs have been compared with their program; the least recently used goes first
KEPT_EXACT = (
    64  # programs of one length each, where a bucket cannot be padded; the least recently used goes first
)
KEPT_WITNESSES = 64  # sets of lengths of one bucket that its program failed to fit and was rebuilt with

if TYPE_CHECKING:
    from rlx.passes.lengths import Fit, Padded

T = TypeVar("T")
Lengths = tuple[int, ...]


class _Bucket(Record, frozen=False):
    """A compiled program and the lengths it serves. `program` is None if it serves exactly one set of lengths."""

    sizes: Lengths
    program: Padded | None
    compiled: CompiledGraph
    reason: str = ""
    runs: int = 0
    asked: int = 0
    ran: int = 0


def _padded(array: Array, shape: tuple[int, ...]) -> Any:
    """The Array padded with zeros to a shape, if in row-major order all padding follows its elements; otherwise an
    unpadded NumPy array, which the host pads."""
    if array.shape == shape:
        return array
    if len(array.shape) != len(shape) or not _is_prefix(shape, array.shape):
        return array.numpy()
    buffer = array.device.acquire(max(TensorType(shape, array.dtype).nbytes, 1))
    if array.nbytes:
        buffer.copy_from(array._held(), array._offset, 0, array.nbytes)
    result = Array(array.device, buffer, shape, array.dtype)
    result._unread = array._unread
    return result


def _cut(array: Array, fit: Fit, name: str) -> Array:
    """The result without its padding: in the same memory if it is a prefix of the padded one, else copied by the
    host."""
    axes = fit.outputs[name]
    sizes, true = zip(*(f for axis in axes for f in axis), strict=True) if any(axes) else ((), ())
    if sizes == true:
        return array
    if _is_prefix(sizes, true):
        shape = tuple(math.prod(n for _, n in axis) for axis in axes)
        return Array(array.device, array._held(), shape, array.dtype, array._offset)
    return make_array(fit.cut({name: array.numpy()})[name], device=array.device)


def _is_prefix(sizes: tuple[int, ...], true: tuple[int, ...]) -> bool:
    """Whether the first `true` elements along each axis are a row-major prefix of an array of shape `sizes`: only one
    axis is longer, and those before it have one element."""
    longer = [k for k, (size, n) in enumerate(zip(sizes, true, strict=True)) if size != n]
    return len(longer) == 1 and math.prod(sizes[: longer[0]]) == 1


class FittedProgram:
    """A bucket's program for given lengths; it runs like a `CompiledGraph` made for exactly these lengths."""

    def __init__(self, bucket: _Bucket, lengths: Lengths, fit: Fit | None) -> None:
        self.bucket = bucket
        self._fit = fit
        self._asked = math.prod(lengths)
        self._ran = self._asked if fit is None else math.prod(bucket.sizes)

    @property
    def compiled(self) -> CompiledGraph:
        """The bucket's program."""
        return self.bucket.compiled

    def run(self, inputs: Mapping[str, Any] | None = None, out: Out = "host") -> dict[str, Any]:
        """Runs on arrays of the true lengths, as `CompiledGraph.run`.

        rlx.Arrays are padded and cut on the device where all padding follows their elements, as for a first axis, and
        through the host otherwise."""
        fit, bucket = self._fit, self.bucket
        arrays: dict[str, Any] = dict(inputs or {})
        if fit is not None:
            shapes = fit.inputs
            arrays = fit.pad({n: _padded(a, shapes[n]) if isinstance(a, Array) else a for n, a in arrays.items()})
        outputs = bucket.compiled.run(arrays, out)
        bucket.runs += 1
        bucket.asked += self._asked
        bucket.ran += self._ran
        if fit is None or out == "host":
            return outputs if fit is None else fit.cut(outputs)
        return {n: _cut(a, fit, n) for n, a in outputs.items()}

    def launch(self, inputs: Mapping[str, Any] | None = None) -> Launch[dict[str, Any]]:
        """Raises GraphError: results of varying lengths are cut after the run."""
        raise GraphError("launch: results of lengths that vary are cut once they are there; leave out dims, or run it")

    def report(self) -> Report:
        return self.compiled.report()

    def close(self) -> None:
        """Does nothing: the program serves other lengths too, and `Buckets.close` closes it."""


class BucketReport(Record, repr=False):
    """One program: the sizes that its arrays are padded to, how often it ran, and at what cost.

    `asked` sums the lengths of the calls over all runs (the product of the lengths if there are several dimensions),
    `ran` the padded lengths that were computed; `masks` names the nodes whose operands are masked. `exact` says why a
    program serves only one length, and is "" for a padded program."""

    sizes: dict[str, int]
    runs: int
    asked: int
    ran: int
    masks: tuple[str, ...]
    exact: str

    def __str__(self) -> str:
        sizes = ", ".join(f"{n} {size}" for n, size in self.sizes.items())
        more = self.ran / self.asked - 1 if self.asked else 0.0
        how = (
            f"exact: {self.exact}" if self.exact else f"{len(self.masks)} masks" if self.masks else "no mask"
        )
        return (
            f"  {sizes:24} {self.runs:6} runs  {self.asked:8} asked  {self.ran:8} run  (+{more:.0%})  {how}"
        )

    __repr__ = __str__


class LengthReport(Record, repr=False):
    """The programs that ran calls of varying lengths, in the order in which they were compiled."""

    name: str
    programs: tuple[BucketReport, ...]

    @property
    def asked(self) -> int:
        return sum(p.asked for p in self.programs)

    @property
    def ran(self) -> int:
        return sum(p.ran for p in self.programs)

    def __str__(self) -> str:
        runs = sum(p.runs for p in self.programs)
        more = f" (+{self.ran / self.asked - 1:.0%})" if self.asked else ""
        head = f"{self.name}: {len(self.programs)} programs, {runs} runs, {self.asked} asked, {self.ran} run{more}"
        return "\n".join([head, *map(str, self.programs)])

    __repr__ = __str__


class Buckets(Generic[T]):
    """The programs of one function or model, by bucket. `T` is what a caller traces along with a graph.

    `otherwise` says what happens where a bucket cannot be padded: "error", or "exact": one program for each length.
    Above `kept` programs, the oldest is dropped. Any thread may ask for a program; they are made one at a time."""

    def __init__(
        self, name: str, dims: tuple[Dim, ...], otherwise: Otherwise = "error", kept: int | None = None
    ) -> None:
        if otherwise not in ("error", "exact"):
            raise GraphError(f'{name}: otherwise is {otherwise!r}; expected "error" or "exact"')
        self.name = name
        self.dims = dims
        self.otherwise = otherwise
        self._kept = kept
        self._buckets: dict[Hashable, _Bucket] = {}
        self._reasons: dict[Hashable, str] = {}
        self._exact: OrderedDict[tuple[Hashable, Lengths], None] = OrderedDict()
        # The lengths for which a bucket's program was built: when it is rebuilt, it must serve them too.
        self._witnesses: dict[Hashable, list[Lengths]] = {}
        self._fits: OrderedDict[Hashable, tuple[FittedProgram, T]] = OrderedDict()
        self._lock = renewed(self, "_lock", threading.RLock)

    def program(
        self,
        key: Hashable,
        lengths: Lengths,
        build: Callable[[Lengths], tuple[Graph, T]],
        compile: Callable[[Graph, T], CompiledGraph],
    ) -> tuple[FittedProgram, T]:
        """The program for a call, and what `build` gave beside its graph.

        `build` traces at given lengths, `compile` compiles a graph with what was traced beside it; `key` is whatever
        else the program depends on. Raises: UnsupportedOp where an op cannot run in buckets; what `build` raises."""
        with self._lock:
            if (key, lengths) not in self._fits:
                self._fits[key, lengths] = self._fitted(key, lengths, build, compile)
                if len(self._fits) > KEPT:
                    self._fits.popitem(last=False)
                while self._kept is not None and len(self._buckets) > self._kept:
                    self._forget(self._buckets.pop(next(iter(self._buckets))))
            self._fits.move_to_end((key, lengths))
            if (key, lengths) in self._exact:
                self._exact.move_to_end((key, lengths))
            return self._fits[key, lengths]

    def _fitted(
        self,
        key: Hashable,
        lengths: Lengths,
        build: Callable[[Lengths], tuple[Graph, T]],
        compile: Callable[[Graph, T], CompiledGraph],
    ) -> tuple[FittedProgram, T]:
        from rlx.passes.lengths import Refused, Unlike  # imported with the first program, not by `import rlx`

        graph, more = build(lengths)
        sizes = tuple(d.bucket(n) for d, n in zip(self.dims, lengths, strict=True))
        if all(d.least(size) == size for d, size in zip(self.dims, sizes, strict=True)):
            bucket = self._compiled(key, sizes, lambda: _Bucket(sizes, None, compile(graph, more)))
            return FittedProgram(bucket, lengths, None), more
        old = self._buckets.get((key, sizes))
        if old is not None and old.program is not None:
            try:
                return FittedProgram(old, lengths, old.program.fit(graph)), more
            except Unlike:
                pass  # a value that was equal in all graphs so far depends on the length: rebuild with this graph too
        reason = self._reasons.get((key, sizes), "")
        if not reason:
            try:
                return self._padded(key, sizes, lengths, graph, build, compile), more
            except (Refused, Unlike) as refused:
                reason = str(refused)
                if isinstance(refused, Refused):
                    self._reasons[key, sizes] = reason
        if self.otherwise == "error":
            least = self._named(tuple(d.least(size) for d, size in zip(self.dims, sizes, strict=True)))
            raise UnsupportedOp(
                f"{self.name}: lengths {self._named(lengths)} cannot run in the bucket {self._named(sizes)}: {reason} "
                f"(its one program serves all lengths from {least} on); "
                'mask the values in the function, leave the dimension out of dims, or give otherwise="exact", which '
                "compiles a program for each length"
            )
        bucket = self._compiled(
            (key, "exact"), lengths, lambda: _Bucket(lengths, None, compile(graph, more), reason)
        )
        self._exact[key, lengths] = None
        if len(self._exact) > KEPT_EXACT:
            (oldest, its), _ = self._exact.popitem(last=False)
            del self._buckets[(oldest, "exact"), its]
            self._fits.pop((oldest, its), None)
        return FittedProgram(bucket, lengths, None), more

    def _compiled(self, key: Hashable, sizes: Lengths, make: Callable[[], _Bucket]) -> _Bucket:
        if (key, sizes) not in self._buckets:
            self._buckets[key, sizes] = make()
        return self._buckets[key, sizes]

    def _padded(
        self,
        key: Hashable,
        sizes: Lengths,
        lengths: Lengths,
        graph: Graph,
        build: Callable[[Lengths], tuple[Graph, T]],
        compile: Callable[[Graph, T], CompiledGraph],
    ) -> FittedProgram:
        """The bucket's program, for these lengths. It is built by comparing graphs: of the bucket's size, its least
        lengths, the lengths for which it was built before, and the lengths of this call.

        Raises: Refused, Unlike."""
        from rlx.passes.lengths import padded

        source, more = self._traced(sizes, build)
        least = tuple(d.least(size) for d, size in zip(self.dims, sizes, strict=True))
        witnesses = self._witnesses.get((key, sizes), [])
        probes = dict.fromkeys([*_probes(least, sizes), *witnesses])
        others = [self._traced(n, build)[0] for n in probes if n not in (lengths, sizes)]
        if lengths != sizes:
            others.append(graph)
        program = padded(source, others)
        fit = program.fit(graph)
        bucket = _Bucket(sizes, program, compile(program.graph, more))
        old = self._buckets.get((key, sizes))
        if old is not None:
            bucket.runs, bucket.asked, bucket.ran = old.runs, old.asked, old.ran
            self._forget(old)
        self._buckets[key, sizes] = bucket
        self._witnesses[key, sizes] = [*(n for n in witnesses if n != lengths), lengths][-KEPT_WITNESSES:]
        return FittedProgram(bucket, lengths, fit)

    def _forget(self, bucket: _Bucket) -> None:
        """Drops the fitted programs of a bucket. Runs in progress keep the bucket's program until they end."""
        for at in [at for at, (fitted, _) in self._fits.items() if fitted.bucket is bucket]:
            del self._fits[at]

    def _traced(self, lengths: Lengths, build: Callable[[Lengths], tuple[Graph, T]]) -> tuple[Graph, T]:
        """The graph at lengths that the call did not have. Raises: Refused if tracing the function at them fails."""
        from rlx.passes.lengths import Refused

        try:
            return build(lengths)
        except Exception as error:
            raise Refused(
                f"its program is made from the function at {self._named(lengths)} too, where this fails with "
                f"{type(error).__name__}: {error}. Every argument that has the length belongs into dims, and `min` and "
                "`buckets` of rlx.Dim say which lengths there are"
            ) from error

    def _named(self, lengths: Lengths) -> str:
        return ", ".join(f"{d.name} {n}" for d, n in zip(self.dims, lengths, strict=True))

    def report(self) -> LengthReport:
        """The programs compiled so far."""
        with self._lock:
            rows = [
                BucketReport(
                    {d.name: n for d, n in zip(self.dims, b.sizes, strict=True)},
                    b.runs,
                    b.asked,
                    b.ran,
                    tuple(b.program.masks) if b.program else (),
                    b.reason,
                )
                for b in self._buckets.values()
            ]
        return LengthReport(self.name, tuple(rows))

    def close(self) -> None:
        """Closes the programs; they are compiled anew when next needed."""
        with self._lock:
            for bucket in self._buckets.values():
                bucket.compiled.close()
            self._buckets.clear()
            self._fits.clear()
            self._exact.clear()


def _probes(least: Lengths, sizes: Lengths) -> list[Lengths]:
    """Sets of lengths whose graphs show which axes are padded: all dimensions at their least length, and, if there are
    several, each in turn at its least length with the others at full size."""
    alone = [
        tuple(a if i == k else b for i, (a, b) in enumerate(zip(least, sizes, strict=True)))
        for k in range(len(sizes))
    ]
    return [least, *(alone if len(sizes) > 1 else [])]


def shapes_at(shape: tuple[int, ...], axes: Mapping[int, Dim], lengths: Mapping[str, int]) -> tuple[int, ...]:
    """The shape with its varying axes set to these lengths."""
    numbers = {k % len(shape): lengths[d.name] for k, d in axes.items()}
    return tuple(numbers.get(k, n) for k, n in enumerate(shape))
