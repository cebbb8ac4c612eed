"""Row programs (`rlx.ir.rows`) printed as bodies of kernels, in the language of `device_code/bodies`.

A body goes over a row in sweeps: the result of one sweep's reductions may be used by the next. For contiguous rows a
body has two versions: one holds the row in registers (`rows.h`), the other, for longer rows, reads it again in each
sweep. In a body for columns (`columns.h`) a thread goes along an axis that is not the last. An element beyond the row's
end is read as a number that is neutral for all reductions, if there is one; else reductions skip it.

Constants of the declaration switch parts of a body: HAS_<NAME> an optional input or output; RMS replaces every
subtracted mean by 0, so that one body serves two ops, such as layer_norm and rms_norm.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlx.backends.gpu.elementwise.emit_cuda import TYPES, literal
from rlx.backends.gpu.elementwise.tree import Const, class_of, heavy_prim
from rlx.backends.gpu.program.kernel import ArgDecl, KernelDecl, RowBody
from rlx.dtypes import bool_, f32, i32
from rlx.errors import UnsupportedOp
from rlx.ir import Expr, get_op
from rlx.ir.expr import linearize
from rlx.ir.rows import Place, elements_of, nan_is_summed
from rlx.ops.elementwise.prims import PRIM_FUNCTIONS

_SWEPT = {"row_max": -math.inf, "row_min": math.inf, "row_sum": 0.0, "row_mean": 0.0}  # each with its neutral element
_PART = 256  # terms that a thread adds into one accumulator: longer sums lose digits
_SUMS = ("row_sum", "row_mean")
_PARTED = "row_sum"  # means need no parts: their terms are of similar size, so sums per thread are accurate
# The primitives that replace `less_mean`: an element minus the two parts of its row's mean, computed relative to the
# row's first element.
_LESS, _FIRST, _NEAR, _REST = "less_two", "row_first", "row_near", "row_rest"
_HAS = "has"  # the constant that says whether an optional input is given


_CONSTANTS = frozenset({"lit", _HAS})
_EARLY = "QUADS <= 4u"  # then weights are loaded before the reduction's barrier, which hides the latency
_ZEROS = "VEC4(0.0f, 0.0f, 0.0f, 0.0f)"
_UNDECLARED = _CONSTANTS | _SWEPT.keys() | {_NEAR, _REST}  # values of a row that get no statement of their own


def body_text(decl: KernelDecl) -> str:
    """The body of a kernel that is declared with a row program."""
    assert decl.rows is not None
    return "\n".join((_Columns if decl.rows.columns else _Rows)(decl, decl.rows).lines())


def _lowered(trees: Sequence[Expr], places: Sequence[Place]) -> tuple[Expr, ...]:
    """The trees with each division of an element by a row value turned into a multiplication by its reciprocal, and
    each subtracted mean turned into two numbers."""
    varying = elements_of(trees, places)
    done: dict[Expr, Expr] = {}
    for e in linearize(trees):
        args = tuple(done[a] for a in e.args)
        if e.prim == "less_mean":
            near = Expr(_NEAR, (args[0], Expr(_FIRST, args, e.dtype)), e.dtype)
            done[e] = Expr(_LESS, (args[0], near, Expr(_REST, (args[0], near), e.dtype)), e.dtype)
        elif e.prim == "div" and e in varying and e.args[1] not in varying:
            root = args[1].prim == "sqrt"
            done[e] = args[0] * (Expr("rsqrt", args[1].args, e.dtype) if root else Expr("recip", args[1:], e.dtype))
        else:
            done[e] = Expr(e.prim, args, e.dtype, e.value)
    return tuple(done[t] for t in trees)


class _Body(ABC):
    """The common part of rows and columns: which sweep computes which value, and the text of scalar functions."""

    def __init__(self, decl: KernelDecl, rows: RowBody) -> None:
        self.decl, self.rows = decl, rows
        program = get_op(rows.op).rows
        assert program is not None
        pointers = [a for a in decl.args if a.kind == "ptr"]
        self.inputs: list[ArgDecl] = [a for a in pointers if a.access == "r"]
        self.outputs = [a for a in pointers if a.access == "w"]
        scalars = [a for a in decl.args if a.kind in ("i32", "f32")]
        args = [Expr("arg", (), i32 if a.element == "i32" else f32, i) for i, a in enumerate(self.inputs)]
        self.inputs += scalars
        attrs: dict[str, Any] = dict(rows.attrs) | {
            a.name: Expr("arg", (), i32 if a.kind == "i32" else f32, i + len(args)) for i, a in enumerate(scalars)
        }
        of_row: Place = "row"
        self.places = (*program.places[: len(args)], *(of_row for _ in scalars))
        trees = program.rule(args, attrs)
        if self.switch(self.inputs[len(args) - 1]):
            has, without = Expr(_HAS, (), bool_, len(args) - 1), program.rule(args[:-1], attrs)
            pairs = zip(trees, without, strict=True)
            trees = tuple(a if a == b else Expr("select", (has, a, b), a.dtype) for a, b in pairs)
        self.trees = _lowered(trees, self.places)[: len(self.outputs)]
        self.nodes = linearize(self.trees)
        self.varying = elements_of(self.trees, self.places)
        self.elements = [e for e in args if e in self.nodes and self.place(e) == "element"]
        self.weights = [e for e in args if e in self.nodes and self.place(e) == "weight"]
        self.depth: dict[Expr, int] = {}
        for e in self.nodes:
            sweeps = e.prim in _SWEPT or e.prim == _REST
            self.depth[e] = max((self.depth[a] for a in e.args), default=0) + sweeps
        self.last = max(self.depth.values())
        self.centred = "!RMS" if "RMS" in decl.constants else ""
        self.means = [e for e in self.nodes if e.prim == _REST]
        self.channels = "WEIGHTS" in decl.constants
        self.sources = self._sources()
        self.names = {e: f"v{i}" for i, e in enumerate(self.nodes)}
        self.beyond = _beyond(self.nodes, self.varying)
        self.keeps_nan = not nan_is_summed(self.trees)
        self.functions: dict[Expr, str] = {}
        self.texts: list[str] = []

    def _sources(self) -> list[Expr]:
        """The values that a sweep reads of a row: the inputs' elements or, if several inputs are used only through one
        node, that node."""
        roots = [e.args[0] for e in self.nodes if e.prim in _SWEPT or e.prim == _FIRST]
        roots += [t for t in self.trees if t in self.varying]

        def elements(e: Expr, held: Mapping[Expr, str]) -> set[Expr]:
            return {a for a in self.leaves(e, held)[0] if a in self.elements}

        several = (e for e in self.nodes if e in self.varying and len(elements(e, {})) == len(self.elements) > 1)
        return next(([e] for e in several if not any(elements(t, {e: ""}) for t in roots)), self.elements)

    def place(self, e: Expr) -> Place:
        assert isinstance(e.value, int)
        return self.places[e.value]

    def name(self, e: Expr) -> str:
        """The name of the kernel argument for an input."""
        assert isinstance(e.value, int)
        return self.inputs[e.value].name

    def switch(self, arg: ArgDecl) -> str:
        """The constant that says whether an optional argument is given; "" for arguments that always are."""
        name = f"HAS_{arg.name.upper()}"
        return name if name in self.decl.constants else ""

    def swept(self, depth: int) -> list[Expr]:
        return [e for e in self.nodes if e.prim in _SWEPT and self.depth[e] == depth + 1]

    def combine(self, e: Expr) -> str:
        if e.prim in _SUMS:
            return "sum"
        keeps_nan = self.keeps_nan or e.prim == "row_min"
        return e.prim.removeprefix("row_") + ("_or_nan" if keeps_nan else "")

    def lines(self) -> list[str]:
        decl = self.decl
        inner = list(self.body())  # it writes the functions
        kinds = [f"PTR({a.element}) {a.name}" if a.kind == "ptr" else f"const {_SCALARS[a.kind]} {a.name}"
                 for a in decl.args]  # fmt: skip
        return [
            *self.headers(), *self.parts(), *self.texts, "",
            f"RLX_FN void {decl.stem}_body({', '.join(kinds)}) {{", *(f"    {line}" for line in inner), "}",
        ]  # fmt: skip

    def parts(self) -> list[str]:
        """The parts of `row_parts.h` and `columns.h` that the body uses."""
        made = []
        for name in {self.combine(e): e for e in self.nodes if e.prim in ("row_max", "row_min")}:
            made += self.extreme(name)
        if any(e.prim in ("row_at", "row_pick") for e in self.nodes):
            made.append("ROW_INDEX")
        return made

    def share(self) -> list[str]:
        """The factor by which a mean multiplies a sum, computed while the row's loads are in flight."""
        means = any(e.prim in ("row_mean", _REST) for e in self.nodes)
        return ["const float share = p_recip_f(float(n));"] if means else []

    @abstractmethod
    def extreme(self, name: str) -> list[str]:
        ...

    @abstractmethod
    def headers(self) -> list[str]:
        ...

    @abstractmethod
    def body(self) -> Iterator[str]:
        ...

    # -- functions of elements

    def leaves(self, e: Expr, held: Mapping[Expr, str] | None = None) -> tuple[list[Expr], list[Expr], bool]:
        """The arguments of an element's function: elements, row values, and whether it takes the index within the
        row."""
        elements: list[Expr] = []
        values: list[Expr] = []
        numbered = False
        todo, seen = [e], {e}
        while todo:
            node = todo.pop()
            if node not in self.varying:
                if node.prim not in _CONSTANTS:
                    values.append(node)
                continue
            if node in (held or {}) or node.prim == "arg":
                elements.append(node)
                continue
            if node.prim == "row_at":
                numbered = True
                values.append(node.args[0])
                continue
            todo += [a for a in dict.fromkeys(reversed(node.args)) if a not in seen]
            seen.update(node.args)
        return elements, values, numbered

    def call(self, e: Expr, held: Mapping[Expr, str], four: str = "") -> str:
        """The text that computes an element; `held` has the texts of nodes already computed. `four`: compute four
        elements at once, those of this quad."""
        if e in held:
            return held[e]
        elements, values, numbered = self.leaves(e, held)
        key = Expr("function", (e, *elements), e.dtype)
        if key not in self.functions:
            self.functions[key] = name = f"e{len(self.functions)}"
            self.texts += self.function(name, e, elements, values, numbered)
        if not four and numbered:
            raise UnsupportedOp(
                f"{self.rows.op}: a printed kernel has no number of an element of columns, or of one that is picked; "
                "leave out kernel=, so that GPUs run the decomposition"
            )
        args = [*(held[a] for a in elements), *(self.value(v) for v in values), *([four, "n"] if numbered else [])]
        return f"{self.functions[key]}{'_4' if four else ''}({', '.join(args)})"

    def value(self, e: Expr) -> str:
        if e.prim == "lit":
            assert e.value is not None
            return literal(Const(class_of(e.dtype), e.value))
        if e.prim == "arg" and self.inputs[int(e.value or 0)].kind != "ptr":
            return self.name(e)
        if e.prim == _HAS:
            return self.switch(self.inputs[int(e.value or 0)])
        return self.names[e]

    def function(
        self, name: str, e: Expr, elements: Sequence[Expr], values: Sequence[Expr], numbered: bool
    ) -> list[str]:
        """A function of one element and, for rows, the same of four."""
        own = {a: f"x{i}" for i, a in enumerate(elements)} | {v: f"s{i}" for i, v in enumerate(values)}
        lines: list[str] = []
        texts = dict(own)
        users = [node.args for node in linearize([e])]
        multiplied = {node for node in linearize([e]) if node.prim == "mul" and class_of(node.dtype) == "f"}

        def text(node: Expr) -> str:
            if node not in texts:
                if node.prim == "row_at":
                    written = f"(at == row_index({own[node.args[0]]}, n))"
                elif node.prim == "add" and node.args[0] in multiplied and node.args[0] not in own:
                    written = f"FMA({', '.join(text(a) for a in (*node.args[0].args, node.args[1]))})"
                else:
                    written = self.applied(node, [text(a) for a in node.args])
                once = sum(uses.count(node) for uses in users) == 1
                texts[node] = written if once or node.prim == "lit" or node == e else f"t{len(lines)}"
                if texts[node] != written:
                    lines.append(f"const {TYPES[class_of(node.dtype)]} {texts[node]} = {written};")
            return texts[node]

        whole = text(e)
        params = [f"const float {own[a]}" for a in elements]
        shared = [f"const {TYPES[class_of(v.dtype)]} {own[v]}" for v in values]
        one = [*params, *shared, *(["const uint at", "const uint n"] if numbered else [])]
        made = [f"RLX_FN float {name}({', '.join(one)}) {{ {' '.join([*lines, f'return {whole};'])} }}"]
        if self.rows.columns:
            return made
        four = [*(f"const vec4 {own[a]}" for a in elements), *shared, *(["const uint j", "const uint n"] * numbered)]
        calls = []
        for i, c in enumerate("xyzw"):
            args = [*(f"{own[a]}.{c}" for a in elements), *(own[v] for v in values)]
            args += [f"place(j, {i}u)", "n"] if numbered else []
            calls.append(f"{name}({', '.join(args)})")
        return [*made, f"RLX_FN vec4 {name}_4({', '.join(four)}) {{ return VEC4({', '.join(calls)}); }}"]

    def applied(self, e: Expr, args: Sequence[str]) -> str:
        """The text of a primitive applied to texts."""
        if e.prim in _CONSTANTS:
            return self.value(e)
        if e.prim == "select" and e.args[0].prim == _HAS:
            return f"({args[0]} ? {args[1]} : {args[2]})"
        if e.prim == _LESS:
            less = f"(({args[0]} - {args[1]}) - {args[2]})"
            return f"({self.centred} ? {less} : {args[0]})" if self.centred else less
        if e.prim == "cast":
            source, target = class_of(e.args[0].dtype), class_of(e.dtype)
            return args[0] if source == target else f"p_cast_{source}_{target}({args[0]})"
        operator = {"add": "+", "sub": "-", "mul": "*"}.get(e.prim)
        if operator and class_of(e.dtype) == "f":
            return f"({args[0]} {operator} {args[1]})"
        if e.prim == "exp" and self.rows.short:
            return f"EXP({args[0]})"
        return f"p_{e.prim}_{class_of(e.args[-1].dtype)}({', '.join(args)})"

    # -- values of a row

    def values(self, depth: int, declared: set[Expr]) -> Iterator[str]:
        """The statements for row values that can be computed after the sweeps so far, in order; reductions have their
        own."""
        for e in self.nodes:
            if e in self.varying or e in declared or self.depth[e] > depth or e.prim in _UNDECLARED:
                continue
            declared.add(e)
            if e.prim == "arg":
                if self.value(e) == self.names[e]:
                    decl = self.inputs[int(e.value or 0)]
                    yield f"const {TYPES[class_of(e.dtype)]} {self.names[e]} = {self.of_row(decl)};"
            elif e.prim == "row_pick":
                yield f"const float {self.names[e]} = {self.picked(e)};"
            elif e.prim == _FIRST:
                one = self.first(e.args[0])
                yield f"const float {self.names[e]} = {f'{self.centred} ? {one} : 0.0f' if self.centred else one};"
            else:
                text = self.applied(e, [self.value(a) for a in e.args])
                yield f"const {TYPES[class_of(e.dtype)]} {self.names[e]} = {text};"

    @abstractmethod
    def of_row(self, decl: ArgDecl) -> str:
        ...

    def picked(self, e: Expr) -> str:
        raise UnsupportedOp(
            f"{self.rows.op}: a printed kernel picks no element from a column; leave out kernel=, so that GPUs run the "
            "decomposition"
        )

    @abstractmethod
    def first(self, e: Expr) -> str:
        """The first element of a row."""

    def mean(self, rest: Expr, value: str, macro: str, count: str) -> Iterator[str]:
        """Both parts of a mean, by a macro that takes the text of an element, or of four, as VALUE."""
        near = rest.args[1]
        name = f"VALUE{sum(text.startswith('#define VALUE') for text in self.texts)}"
        self.texts.append(f"#define {name}{value}")
        yield f"float {self.names[near]} = 0.0f, {self.names[rest]} = 0.0f;"
        names = f"{self.names[near.args[1]]}, {count}, n, len, share, {self.names[near]}, {self.names[rest]}"
        yield f"{f'if ({self.centred}) ' if self.centred else ''}{{ {macro}({name}, {names}) }}"

    def if_there(self, decl: ArgDecl, text: str) -> str:
        """A store, in a branch where the output is optional."""
        return f"if ({self.switch(decl)}) {text}" if self.switch(decl) else text

    def start(self, e: Expr) -> str:
        return "0.0f" if e.prim in _SUMS else "-INFINITE" if e.prim == "row_max" else "INFINITE"

    def sweeps(
        self, declared: set[Expr], swept: Callable[[Sequence[Expr], int], Iterator[str]],
        mean: Callable[[Expr], Iterator[str]], joined: Mapping[Expr, Expr] | None = None,
    ) -> Iterator[str]:  # fmt: skip
        """All sweeps but the writing one. `swept` prints a sweep's loop for its reductions; `mean` prints the sweeps of
        a subtracted mean. `joined`: the sums that are added up in the sweep of a greatest element, see `joined`."""
        threads = "column" if self.rows.columns else "row"
        joined = joined or {}
        for depth in range(self.last):
            reductions = [e for e in self.swept(depth) if e not in joined.values()]
            for rest in (e for e in self.means if self.depth[e] == depth + 1):
                yield from mean(rest)
            yield from (f"float {self.names[e]} = {self.start(e)};" for e in reductions)
            yield from (f"float {self.names[joined[e]]} = 0.0f;" for e in reductions if e in joined)
            if reductions:
                yield from swept(reductions, depth)
            for e in reductions:
                if e in joined:
                    best, total = self.names[e], self.names[joined[e]]
                    yield f"const float own{best} = {best};"
                    yield f"{best} = row_max({best});"
                    yield f"{total} = row_sum({total} * risen(own{best}, {best}));"
                    continue
                share = " * share" if e.prim == "row_mean" else ""
                yield f"{self.names[e]} = {threads}_{self.combine(e)}({self.names[e]}){share};"
            yield from self.values(depth + 1, declared)

    def in_parts(
        self, swept: Sequence[Expr], lines: Sequence[str], first: str, end: str, step: str, branch: bool = False,
        joined: Mapping[Expr, Expr] | None = None,
    ) -> Iterator[str]:  # fmt: skip
        """A loop over a row that accumulates long sums in parts: variable v's part in sv. With `branch`, rows of a
        single part get a separate loop, which compilers unroll better. `joined`: as in `sweeps`."""
        sums = [self.names[e] for e in swept if e.prim == _PARTED]
        rising = [(self.names[e], self.names[s]) for e, s in (joined or {}).items() if e in swept]
        loop = "for (uint j = {}; j < {}; j += {})"
        if not sums and not rising:
            yield from _block(loop.format(first, end, step), lines)
            return
        part = f"{_PART}u * {step}"

        def summed(until: str, start: str) -> Iterator[str]:
            yield from (f"    float s{v} = 0.0f;" for v in sums)
            yield from (f"    const float begun{best} = {best}; float s{v} = 0.0f;" for best, v in rising)
            yield from (f"    {x}" for x in _block(loop.format(start, until, step), lines))
            yield from (f"    {v} += s{v};" for v in sums)
            yield from (f"    {v} = {v} * risen(begun{best}, {best}) + s{v};" for best, v in rising)

        if branch:
            yield f"if ({end} <= {part}) {{"
            yield from summed(end, first)
            yield "} else"
        yield f"for (uint from = {first}; from < {end}; from += {part}) {{"
        yield f"    const uint until = {end} - from < {part} ? {end} : from + {part};"
        yield from summed("until", "from")
        yield "}"

    def written(self) -> list[tuple[ArgDecl, Expr]]:
        return list(zip(self.outputs, self.trees, strict=True))


class _Rows(_Body):
    """Rows along memory."""

    def headers(self) -> list[str]:
        names = ["channel_rows.h"] if self.channels else ["rows8.h" if self.rows.short else "rows.h"]
        names += ["row_mean.h"] if self.beyond is None and not self.channels else []
        names += ["row_parts.h"]
        names += ["half_exp.h"] if self.rows.short and any(e.prim == "exp" for e in self.nodes) else []
        return [f'#include "bodies/{name}"' for name in names]

    def parts(self) -> list[str]:
        masked = self.beyond is None and any(e.prim in ("row_max", "row_min") for e in self.nodes)
        rises = ["RISEN"] if self.joined() else []
        weights = ["RLX_GET(get_weight, W)"] if self.weights and not self.channels else []
        weights += ["RLX_GET2(get_weights, get_weight, W)"] if weights and self.rows.short else []
        return [*super().parts(), *(["MASKED"] if masked else []), *rises, *weights]

    def extreme(self, name: str) -> list[str]:
        own = [] if name == "max" else [f"ROWS_OP(row_{name}, {name}_of)"]
        return [*own, f"EXTREME4({name})"]

    def of_row(self, decl: ArgDecl) -> str:
        return f"LOAD({decl.element}, {decl.name}, at)"

    def body(self) -> Iterator[str]:
        yield "const uint row = ROW;"
        yield "const uint len = row < rows ? n : 0u;"
        yield "const uint at = row < rows ? row : 0u;"
        yield from ["const uint first = at % groups * per;"] if self.channels else []
        for i, e in enumerate(self.elements):
            yield f"PTR(T) p{i} = SKIP(T, {self.name(e)}, at, n);"
        for i, (decl, tree) in enumerate(self.written()):
            if tree in self.varying:
                yield f"PTR(T) q{i} = SKIP(T, {decl.name}, at, n);"
        declared: set[Expr] = set()
        yield from self.share()
        yield from self.values(0, declared)
        yield from _block("if (IN_REGISTERS)", list(self.held(set(declared))))
        yield from _block("else", list(self.streamed(set(declared))))

    def picked(self, e: Expr) -> str:
        at = f"row_index({self.value(e.args[1])}, n)"
        leaves = self.leaves(e.args[0])[0]
        return self.call(e.args[0], {a: f"LOAD(T, p{self.elements.index(a)}, {at})" for a in leaves})

    def first(self, e: Expr) -> str:
        return self.call(e, {a: f"LOAD(T, p{i}, 0u)" for i, a in enumerate(self.elements)})

    def other(self) -> str:
        return {None: "0.0f", 0.0: "0.0f", -math.inf: "-INFINITE", math.inf: "INFINITE"}[self.beyond]

    def reduced(self, e: Expr, at: Mapping[Expr, str], held: bool) -> str:
        """The statement that combines one more quad into a thread's reduction."""
        v, x = self.names[e], e.args[0]
        if e.prim in _SUMS:
            square = self.beyond is None and x.prim == "mul" and x.args[0] == x.args[1]
            whole = self.four(x.args[0] if square else x, at)
            if self.beyond is None:
                whole = f"{'squares' if square else 'inside'}({whole}, j, len)"
            else:
                # Groups of eight beyond the row's end are read from its start instead.
                whole = f"counted(sum4({whole}), j, len)" if held and self.rows.short else f"sum4({whole})"
            return f"{'' if held or e.prim != _PARTED else 's'}{v} += {whole};"
        quad = self.four(x, at)
        if self.beyond is None:
            quad = f"masked(j, len, {self.start(e)}, {quad})"
        return f"{v} = {self.combine(e)}_of({self.combine(e)}4({quad}), {v});"

    def joined(self) -> dict[Expr, Expr]:
        """The sums of exp(x - max) over rows, by the node of their maximum: one sweep computes both.

        Only if the values read beyond a row's end add nothing to the sum."""
        joined: dict[Expr, Expr] = {}
        sums = (e for e in self.nodes if e.prim == _PARTED and e.args[0].prim == "exp" and self.beyond == -math.inf)
        for e in sums:
            away = e.args[0].args[0]
            best = away.args[1] if away.prim == "sub" else e
            if best.prim == "row_max" and best.args[0] == away.args[0] and self.combine(best) == "max":
                joined.setdefault(best, e)
        return joined

    def risen(self, e: Expr, total: Expr | None, at: Mapping[Expr, str]) -> list[str]:
        """The statements of a reduction; for a maximum, with those of the sum that is joined to it."""
        if total is None:
            return [self.reduced(e, at, False)]
        best, v = self.names[e], self.names[total]
        lines = [f"const float last{best} = {best};", self.reduced(e, at, False)]
        lines.append(f"const float from{best} = {best} == -INFINITE ? 0.0f : {best};")
        self.names[e] = f"from{best}"
        terms = self.four(total.args[0], at)
        self.names[e] = best
        return [*lines, f"s{v} = s{v} * risen(last{best}, {best}) + sum4({terms});"]

    def held(self, declared: set[Expr]) -> Iterator[str]:
        loop = "UNROLL for (uint j = 0u; j < QUADS; j++)"
        step = "UNROLL for (uint j = 0u; j < QUADS; j += STEP)" if self.rows.short else loop
        for i in range(len(self.sources)):
            yield f"vec4 r{i}[QUADS];"
        for i, e in enumerate(self.sources):
            if self.rows.short:
                yield f"{step} get2(p{i}, j, len, {self.other()}, r{i}[j], r{i}[j + STEP - 1u]);"
            else:
                yield f"{step} r{i}[j] = {self.four(e, self.read())};"
        early = self.weights[: self.rows.early]
        for i, e in enumerate(early):
            yield f"vec4 w{i}[QUADS];"
            yield f"if ({_EARLY}) {{ {loop} w{i}[j] = {self.loaded(e)}; }}"
        arrays = {e: f"r{i}" for i, e in enumerate(self.sources)}

        def at(j: str) -> dict[Expr, str]:
            return {e: f"{array}[{j}]" for e, array in arrays.items()}

        def swept(reductions: Sequence[Expr], depth: int) -> Iterator[str]:
            lines, weights = self.weighed([e.args[0] for e in reductions])
            for kept in dict.fromkeys(kept for e in reductions for kept in self.kept(e, depth)):
                source = self.only_source(kept, arrays, depth)
                if kept not in arrays and source is not None:
                    array = arrays[source]
                    lines.append(f"{array}[j] = {self.call(kept, at('j'), 'j')};")
                    del arrays[source]
                    arrays[kept] = array
            lines += [self.reduced(e, at("j") | weights, True) for e in reductions]
            yield from _block(loop, lines)

        def mean(rest: Expr) -> Iterator[str]:
            value = f"(v, j) const vec4 v = {self.four(rest.args[0], at('j'))}"
            return self.mean(rest, value, "ROW_MEAN", "QUADS")

        yield from self.sweeps(declared, swept, mean)
        yield from self.row_outputs()
        elements = [(i, decl, tree) for i, (decl, tree) in enumerate(self.written()) if tree in self.varying]
        if not elements:
            return
        lines, weights = self.weighed([tree for _, _, tree in elements], early, self.rows.short)
        for i, decl, tree in elements:
            put = f"put(q{i}, j, len, {self.four(tree, at('j') | weights)});"
            if self.rows.short:
                next_j, second = "j + STEP - 1u", {e: f"{text}_2" for e, text in weights.items()}
                both = self.four(tree, at("j") | weights), self.four(tree, at(next_j) | second, next_j)
                put = f"put2(q{i}, j, len, {', '.join(both)});"
            lines.append(self.if_there(decl, put))
        yield from _block(step, lines)

    def read(self) -> dict[Expr, str]:
        """Each input's elements from memory."""
        return {e: f"get(p{i}, j, len, {self.other()})" for i, e in enumerate(self.elements)}

    def loaded(self, e: Expr) -> str:
        """Four weights from memory."""
        if self.channels:
            return f"weights({self.name(e)}, first, inner, j, len)"
        return f"get_weight({self.name(e)}, j, len, 0.0f)"

    def weighed(
        self, trees: Sequence[Expr], early: Sequence[Expr] = (), short: bool = False
    ) -> tuple[list[str], dict[Expr, str]]:
        """The statements that load the weights used by the trees, and the text by which each weight is then read."""
        lines, texts = [], {}
        for i, e in enumerate(self.weights):
            reads, has = sum(e in linearize([t]) for t in trees), self.switch(self.inputs[int(e.value or 0)])
            if reads:
                texts[e] = self.loaded(e)
            if reads > 1 or (reads and (has or e in early or short)):
                get = f"get_weights({self.name(e)}, j, len, 0.0f, g{i}, g{i}_2);" if short else f"g{i} = {texts[e]};"
                get = f"if ({_EARLY}) g{i} = w{i}[j]; else {get}" if e in early else get
                names = [f"g{i}", *[f"g{i}_2"] * short]
                lines.append(f"vec4 {', '.join(f'{name} = {_ZEROS}' if has else name for name in names)};")
                lines.append(f"if ({has}) {get}" if has else get)
                texts[e] = f"g{i}"
        return lines, texts

    def four(self, e: Expr, held: Mapping[Expr, str], j: str = "j") -> str:
        return self.call(e, held, j)

    def row_outputs(self) -> Iterator[str]:
        for decl, tree in self.written():
            if tree not in self.varying:
                store = f"STORE({decl.element}, {decl.name}, row, {self.value(tree)});"
                yield self.if_there(decl, f"if (LANE == 0u && row < rows) {store}")

    def kept(self, reduction: Expr, depth: int) -> list[Expr]:
        """Expensive element values of a reduction that later sweeps use too, so that they are kept."""
        later = [e.args[0] for e in self.nodes if e.prim in _SWEPT and self.depth[e] > depth + 1]
        later += [t for t in self.trees if t in self.varying]
        used = {e for tree in later for e in linearize([tree])}
        long = (e for e in linearize([reduction.args[0]]) if heavy_prim(e.prim) or e.prim == _LESS)
        return [e for e in long if e in self.varying and e in used]

    def only_source(self, e: Expr, arrays: Mapping[Expr, str], depth: int) -> Expr | None:
        """The single held element that a node is computed from, if later sweeps use that element only through the node;
        else None."""
        sources = self.leaves(e, arrays)[0]
        later = [r.args[0] for r in self.nodes if r.prim in _SWEPT and self.depth[r] > depth]
        later += [t for t in self.trees if t in self.varying]
        if len(sources) != 1 or any(sources[0] in self.leaves(t, {**arrays, e: ""})[0] for t in later):
            return None
        return sources[0]

    def streamed(self, declared: set[Expr]) -> Iterator[str]:
        yield "const uint quads = (n + 4u * LANES - 1u) / (4u * LANES);"
        loop = "for (uint j = 0u; j < quads; j++)"
        texts = {e: self.four(e, self.read()) for e in self.sources}

        def loads(trees: Sequence[Expr]) -> tuple[list[str], dict[Expr, str]]:
            """Loads each input that the trees read, into a variable if they read it more than once."""
            read = [a for t in trees for a in self.leaves(t, texts)[0]]
            lines, held = self.weighed(trees)
            for i, (e, text) in enumerate(texts.items()):
                held[e] = text
                if read.count(e) > 1:
                    lines.append(f"const vec4 x{i} = {held[e]};")
                    held[e] = f"x{i}"
            return lines, held

        joined = self.joined()

        def swept(reductions: Sequence[Expr], depth: int) -> Iterator[str]:
            sums = [joined[e] for e in reductions if e in joined]
            lines, held = loads([e.args[0] for e in (*reductions, *sums)])
            lines += [x for e in reductions for x in self.risen(e, joined.get(e), held)]
            yield from self.in_parts(reductions, lines, "0u", "quads", "1u", branch=True, joined=joined)

        def mean(rest: Expr) -> Iterator[str]:
            return self.mean(rest, f"(v, j) const vec4 v = {self.four(rest.args[0], texts)}", "ROW_MEAN", "quads")

        yield from self.sweeps(declared, swept, mean, joined)
        yield from self.row_outputs()
        elements = [(i, decl, tree) for i, (decl, tree) in enumerate(self.written()) if tree in self.varying]
        if elements:
            lines, held = loads([tree for _, _, tree in elements])
            lines += [self.if_there(decl, f"put(q{i}, j, len, {self.four(tree, held)});") for i, decl, tree in elements]
            yield from _block(loop, lines)


class _Columns(_Body):
    """Columns of (outer, n, inner)."""

    def headers(self) -> list[str]:
        names = ["columns.h", *(["column_mean.h"] if self.means else []), "row_parts.h"]
        return [f'#include "bodies/{name}"' for name in names]

    def extreme(self, name: str) -> list[str]:
        return ["COLUMN_MAX" if name == "max" else f"COLUMN_OP(column_{name}, JOIN_{name.upper()})"]

    def of_row(self, decl: ArgDecl) -> str:
        return f"LOAD({decl.element}, {decl.name}, len > 0u ? o * inner + i : 0u)"

    def first(self, e: Expr) -> str:
        return f"len > 0u ? {self.call(e, {a: f'LOAD(T, p{k}, i)' for k, a in enumerate(self.elements)})} : 0.0f"

    def body(self) -> Iterator[str]:
        yield "const uint along = THREAD / ACROSS;"
        yield "const uint blocks = (inner + ACROSS - 1u) / ACROSS;"
        yield "const uint o = GROUP / blocks, i = GROUP % blocks * ACROSS + THREAD % ACROSS;"
        yield "const uint len = o < outer && i < inner ? n : 0u;"
        for k, e in enumerate(self.elements):
            yield f"PTR(T) p{k} = SLAB(T, {self.name(e)});"
        for k, (decl, tree) in enumerate(self.written()):
            if tree in self.varying:
                yield f"PTR(T) q{k} = SLAB(T, {decl.name});"
        declared: set[Expr] = set()
        held = {e: f"LOAD(T, p{k}, j * inner + i)" for k, e in enumerate(self.elements)}
        for e in self.weights:
            one, has = f"LOAD(W, {self.name(e)}, j)", self.switch(self.inputs[int(e.value or 0)])
            held[e] = f"({has} ? {one} : 0.0f)" if has else one
        loop = "for (uint j = along; j < len; j += ALONG)"
        yield from self.share()
        yield from self.values(0, declared)

        def swept(reductions: Sequence[Expr], depth: int) -> Iterator[str]:
            lines = []
            for e in reductions:
                v, text = self.names[e], self.call(e.args[0], held)
                more = f"{'s' if e.prim == _PARTED else ''}{v} += {text};"
                lines.append(more if e.prim in _SUMS else f"{v} = {self.combine(e)}_of({text}, {v});")
            yield from self.in_parts(reductions, lines, "along", "len", "ALONG")

        def mean(rest: Expr) -> Iterator[str]:
            return self.mean(rest, f"(j) {self.call(rest.args[0], held)}", "COLUMN_MEAN", "along")

        yield from self.sweeps(declared, swept, mean)
        for k, (decl, tree) in enumerate(self.written()):
            if tree in self.varying:
                yield self.if_there(decl, f"{loop} STORE(T, q{k}, j * inner + i, {self.call(tree, held)});")
            else:
                store = f"STORE({decl.element}, {decl.name}, o * inner + i, {self.value(tree)});"
                yield self.if_there(decl, f"if (along == 0u && len > 0u) {store}")


_SCALARS = {"u32": "uint", "i32": "int", "f32": "float"}


def _block(head: str, lines: Sequence[str]) -> list[str]:
    """A loop or a condition, with braces where it has several lines."""
    return [f"{head} {lines[0]}"] if len(lines) == 1 else [f"{head} {{", *(f"    {x}" for x in lines), "}"]


def _beyond(nodes: Sequence[Expr], varying: frozenset[Expr]) -> float | None:
    """The number that, as the value of all inputs, is neutral for every reduction, whatever the row values; None if
    there is none."""
    for number in (0.0, -math.inf, math.inf):
        values: dict[Expr, Any] = {}
        with np.errstate(all="ignore"):
            for e in nodes:
                if e.prim == "arg":
                    values[e] = e.dtype.np.type(number if e in varying else 1 + int(e.value or 0))
                elif e.prim == "lit":
                    values[e] = np.asarray(e.value, e.dtype.np)
                elif e.prim in ("row_at", _HAS):
                    values[e] = np.bool_(e.prim == _HAS)
                elif e.prim == _LESS:
                    values[e] = values[e.args[0]] - values[e.args[1]] - values[e.args[2]]
                elif e.prim.startswith("row_"):
                    values[e] = e.dtype.np.type(1.5)
                elif e.prim == "cast":
                    values[e] = values[e.args[0]].astype(e.dtype.np)
                else:
                    values[e] = np.asarray(PRIM_FUNCTIONS[e.prim](*(values[a] for a in e.args)), e.dtype.np)
        if all(values[e.args[0]] == _SWEPT[e.prim] for e in nodes if e.prim in _SWEPT):
            return number
    return None
