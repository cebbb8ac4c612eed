"""The scalar functions of `backends/device_code` printed as LLVM IR over vectors: one definition for every device.

Those headers are written in a small part of C++ and GLSL, which this module reads: functions of numbers and of pairs
of floats, `const` declarations, assignments, `if`, `while`, `return`. A function is printed in place, for all lanes at
once: both sides of a choice are computed and selected; a long side, and a loop, is left out where no lane takes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from rlx.backends.cpu.ir import F32, F64, I1, I32, I64, Kernel, Type, Value, Variable
from rlx.backends.cpu.lookup import looked_up
from rlx.records import Record, field

_TOKEN = re.compile(
    r"//[^\n]*|/\*.*?\*/|\\\n|(?P<line>\n)|(?P<word>[A-Za-z_]\w*)"
    r"|(?P<number>0[xX][0-9a-fA-F]+[uU]?|(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?[fFuU]?)"
    r"|(?P<sign>##|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^~!<>=?:;,.(){}\[\]#])|\"[^\"]*\"|\s",
    re.S,
)
# Features that the headers (math32.h) ask for and that are present here: fused multiply-add, correctly rounded division
# and roots.
_DEFINED = {"RLX_EXACT_FMA", "RLX_EXACT_FMA64", "RLX_EXACT_DIV", "RLX_FUSED"}
_HEADERS = (
    "half.h", "math32.h", "hyper32.h", "random32.h", "trig32.h", "prims.h", "odd.h", "math64.h", "hyper64.h",
    "trig64.h", "prims64.h",
)  # fmt: skip
_TYPES: dict[str, tuple[Type, bool]] = {  # the LLVM type, and whether it is signed
    "float": (F32, True), "double": (F64, True), "int": (I32, True), "uint": (I32, False), "rlx_i64": (I64, True),
    "rlx_u64": (I64, False), "bool": (I1, False), "RLX_F2": (F32, True), "RLX_D2": (F64, True),
}  # fmt: skip
_LONG_BLOCK_NODES = 8  # a block of so many nodes is worth a branch that skips it where no lane takes it

Tree = tuple[Any, ...]


class Function(Record):
    """A function of the headers: its parameters' C types and names, and its statements. `outs` are its output
    parameters."""

    name: str
    gives: str
    params: tuple[tuple[str, str, bool], ...]
    body: tuple[Tree, ...]


class Headers(Record, frozen=False):
    """What the headers define: function texts, macros, tables."""

    texts: dict[str, list[str]] = field(default_factory=dict)
    macros: dict[str, tuple[list[str] | None, list[str]]] = field(default_factory=dict)
    tables: dict[str, tuple[str, list[Tree]]] = field(default_factory=dict)
    parsed: dict[str, Function] = field(default_factory=dict)

    def function(self, name: str) -> Function:
        if name not in self.parsed:
            self.parsed[name] = _Parser(list(self.expand(self.texts[name]))).function()
        return self.parsed[name]

    def expand(self, tokens: list[str]) -> Iterator[str]:
        """The tokens with macros replaced."""
        at = 0
        while at < len(tokens):
            word = tokens[at]
            at += 1
            if word not in self.macros:
                yield word
                continue
            params, body = self.macros[word]
            if params is not None:
                if at >= len(tokens) or tokens[at] != "(":
                    yield word
                    continue
                arguments, at = _arguments(tokens, at)
                named = dict(zip(params, arguments, strict=True))
                body = [t for b in body for t in named.get(b, [b])]
            yield from self.expand(_pasted(body))


def _arguments(tokens: list[str], at: int) -> tuple[list[list[str]], int]:
    """The comma-separated tokens in the parentheses that open at `at`, and the place behind them."""
    arguments: list[list[str]] = [[]]
    depth = 0
    while True:
        t = tokens[at]
        at += 1
        depth += (t == "(") - (t == ")")
        if depth == 0:
            return arguments, at
        if t == "," and depth == 1:
            arguments.append([])
        elif not (t == "(" and depth == 1):
            arguments[-1].append(t)


def _pasted(tokens: list[str]) -> list[str]:
    result: list[str] = []
    for t in tokens:
        if result and result[-1] == "##":
            result[-2:] = [result[-2] + t]
        else:
            result.append(t)
    return result


def _tokens(text: str) -> list[str]:
    """The text's tokens; the end of a line is one too, so that directives can be told from code."""
    return [m.group() for m in _TOKEN.finditer(text) if m.lastgroup]


@cache
def headers() -> Headers:
    """The headers, read once, when the first kernel that needs them is printed, with the functions of
    `quick32.h` and `quick64.h` before those of the same names."""
    folder = Path(__file__).parents[1] / "device_code"
    result = Headers()
    for name in _HEADERS:
        _read((folder / name).read_text(), result)
    quick = Headers(macros=dict(result.macros))
    for name in ("quick32.h", "quick64.h"):
        _read((folder / name).read_text(), quick)
    result.texts |= {f"{name}_any": result.texts[name] for name in quick.texts if name in result.texts}
    result.texts |= quick.texts
    result.tables |= quick.tables
    return result


def _read(text: str, into: Headers) -> None:
    code: list[str] = []
    taken: list[bool] = []
    lines: list[list[str]] = []
    line: list[str] = []
    for token in _tokens(text):
        if token == "\n":
            lines.append(line)
            line = []
        else:
            line.append(token)
    for line in lines:
        if line[:1] != ["#"]:
            if all(taken):
                code += line
            continue
        word, rest = line[1], line[2:]
        if word in ("ifdef", "ifndef"):
            known = rest[0] in into.macros or rest[0] in _DEFINED
            taken.append(known == (word == "ifdef"))
        elif word == "if":  # it asks for language features, which do not exist here
            taken.append(False)
        elif word == "else":
            taken[-1] = not taken[-1]
        elif word == "endif":
            taken.pop()
        elif word == "define" and all(taken) and rest[0] not in _DEFINED:
            name, body = rest[0], rest[1:]
            # Tokens do not show whether a parenthesis follows the name without a space, as a parameter list does. So an
            # object-like macro whose text begins with one would be misread; there is none.
            if body[:1] == ["("]:
                params, at = _arguments(body, 0)
                into.macros[name] = ([g[0] for g in params], body[at:])
            else:
                into.macros[name] = (None, body)
    _split(code, into)


def _split(code: list[str], into: Headers) -> None:
    """Adds functions, tables and calls of macros that define functions to `into`."""
    at = 0
    while at < len(code):
        word = code[at]
        if word in into.macros:
            _, end = _arguments(code, at + 1)
            expanded = list(into.expand(code[at:end]))
            _split(expanded, into)
            at = end
            continue
        if word == "RLX_TABLE":
            end = code.index(";", at)
            parser = _Parser(list(into.expand(code[at + 1 : end + 1])))
            kind, name, values = parser.table()
            into.tables[name] = (kind, values)
            at = end + 1
            continue
        assert word == "RLX_FN", f"device_code: {word}"
        end = code.index("{", at)
        depth = 0
        while True:
            depth += (code[end] == "{") - (code[end] == "}")
            end += 1
            if depth == 0:
                break
        into.texts[code[at + 2]] = code[at + 1 : end]
        at = end


_LEVELS = (
    ("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", ">", "<=", ">="), ("<<", ">>"), ("+", "-"),
    ("*", "/", "%"),
)  # fmt: skip


class _Parser:
    """Recursive descent over the tokens of one function."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens, self.at = tokens, 0

    def next(self, wanted: str | None = None) -> str:
        t = self.tokens[self.at]
        assert wanted is None or t == wanted, f"device_code: {t!r} where {wanted!r} is expected"
        self.at += 1
        return t

    def peek(self, ahead: int = 0) -> str:
        return self.tokens[self.at + ahead] if self.at + ahead < len(self.tokens) else ""

    def take(self, word: str) -> bool:
        if self.peek() == word:
            self.at += 1
            return True
        return False

    def table(self) -> tuple[str, str, list[Tree]]:
        kind, name = self.next(), self.next()
        self.next("[")
        self.expression()
        for t in ("]", "=", "{"):
            self.next(t)
        values = [self.expression()]
        while self.take(","):
            values.append(self.expression())
        return kind, name, values

    def function(self) -> Function:
        gives, name = self.next(), self.next()
        self.next("(")
        params: list[tuple[str, str, bool]] = []
        while not self.take(")"):
            self.take(",")
            self.take("const")
            if self.take("RLX_OUT"):
                self.next("(")
                kind = self.next()
                self.next(")")
                params.append((kind, self.next(), True))
            else:
                params.append((self.next(), self.next(), False))
        return Function(name, gives, tuple(params), self.block())

    def block(self) -> tuple[Tree, ...]:
        if not self.take("{"):
            return tuple(self.statement())
        statements: list[Tree] = []
        while not self.take("}"):
            statements += self.statement()
        return tuple(statements)

    def statement(self) -> list[Tree]:
        if self.take("if"):
            self.next("(")
            condition = self.expression()
            self.next(")")
            then = self.block()
            return [("if", condition, then, self.block() if self.take("else") else ())]
        if self.take("while"):
            self.next("(")
            condition = self.expression()
            self.next(")")
            return [("while", condition, self.block())]
        if self.take("for"):
            return self.unrolled()
        if self.take("return"):
            value = self.expression()
            self.next(";")
            return [("return", value)]
        self.take("const")
        result: list[Tree] = []
        if self.peek() in _TYPES and self.peek(1) not in ("(",):
            kind = self.next()
            while True:
                name = self.next()
                result.append(("declare", kind, name, self.expression() if self.take("=") else None))
                if not self.take(","):
                    break
        else:
            name = self.next()
            self.next("=")
            result.append(("assign", name, self.expression()))
        self.next(";")
        return result

    def unrolled(self) -> list[Tree]:
        """A loop `for (int i = 0; i < 3; i++)` with constant bounds, unrolled into copies of its body."""
        self.next("(")
        (start,) = self.statement()
        stop = self.expression()
        for t in (";", stop[1][1], "+", "+", ")"):
            self.next(t)
        body = self.block()
        numbers = range(int(start[3][1]), int(stop[2][1]))
        return [s for i in numbers for s in (("declare", start[1], start[2], ("number", str(i))), *body)]

    def expression(self) -> Tree:
        condition = self.binary(0)
        if self.take("?"):
            a = self.expression()
            self.next(":")
            return ("?", condition, a, self.expression())
        return condition

    def binary(self, level: int) -> Tree:
        if level == len(_LEVELS):
            return self.unary()
        left = self.binary(level + 1)
        while self.peek() in _LEVELS[level]:
            sign = self.next()
            left = (sign, left, self.binary(level + 1))
        return left

    def unary(self) -> Tree:
        if self.peek() in ("-", "!", "~"):
            return ("unary", self.next(), self.unary())
        return self.postfix()

    def postfix(self) -> Tree:
        t = self.next()
        result: Tree
        if t == "(":
            result = self.expression()
            self.next(")")
        elif t[0].isdigit() or t[0] == ".":
            result = ("number", t)
        elif self.peek() == "(":
            self.next("(")
            args: list[Tree] = []
            while not self.take(")"):
                self.take(",")
                args.append(self.expression())
            result = ("call", t, tuple(args))
        else:
            result = ("name", t)
        while True:
            if self.take("."):
                result = ("member", result, self.next())
            elif self.take("["):
                result = ("element", result, self.expression())
                self.next("]")
            else:
                return result


def _weight(tree: Any) -> int:
    """A rough cost of a tree: its number of operations, where a call counts as several."""
    if not isinstance(tree, tuple):
        return 0
    own = _LONG_BLOCK_NODES if tree and tree[0] in ("call", "while") and str(tree[1]) not in _TYPES else bool(tree)
    return own + sum(_weight(t) for t in tree)


def _assigned(tree: Any) -> set[str]:
    if not isinstance(tree, tuple):
        return set()
    names = {tree[1]} if tree[:1] == ("assign",) else set()
    if tree[:1] == ("call",):  # an output argument
        names |= {a[1] for a in tree[2] if a[:1] == ("name",)}
    return names.union(*(_assigned(t) for t in tree)) if tree else names


class Held(Record):
    """A value of C: its C type, and one IR value, or two for a pair."""

    kind: str
    parts: tuple[Value, ...]

    @property
    def one(self) -> Value:
        return self.parts[0]


def apply(k: Kernel, name: str, *args: Value) -> Value:
    """The function `name` of the headers, such as "p_exp_f" or "m_erf", on vectors of equally many lanes."""
    lanes = max(a.type.lanes for a in args)
    operands = [k.splat(a, lanes) if a.type.lanes < lanes else a for a in args]
    function = headers().function(name)
    held = [Held(kind, (a,)) for (kind, _, _), a in zip(function.params, operands, strict=True)]
    return _Printer(k, lanes).run(function, held)[0].one


class _Printer:
    """Prints the functions of the headers into a kernel."""

    def __init__(self, k: Kernel, lanes: int) -> None:
        self.k, self.lanes, self.headers = k, lanes, headers()

    def run(self, function: Function, args: Sequence[Held]) -> tuple[Held, dict[str, Held]]:
        """The function's result, and what its `RLX_OUT` parameters hold."""
        frame = _Frame(self, function)
        for (_, name, out), arg in zip(function.params, args, strict=True):
            if not out or arg.parts:
                frame.names[name] = arg
        frame.block(function.body, None)
        assert frame.result is not None, function.name
        outs = {name: frame.names[name] for _, name, out in function.params if out}
        return frame.result, outs

    def type(self, kind: str) -> Type:
        return _TYPES[kind][0].of(self.lanes)


_Going = Value | None | bool  # the active lanes: a mask, None for all, False for none


class _Frame:
    """One call of a function: its names, its result, the statements in order."""

    def __init__(self, printer: _Printer, function: Function) -> None:
        self.p, self.k, self.function = printer, printer.k, function
        self.names: dict[str, Held] = {}
        self.kinds: dict[str, str] = {name: kind for kind, name, _ in function.params}
        self.result: Held | None = None

    # -- statements

    def block(self, statements: Sequence[Tree], going: _Going) -> _Going:
        """Prints the statements for the active lanes `going`; returns the lanes that reach the end."""
        outside = set(self.kinds)
        end = self.statements(statements, going)
        for n in set(self.kinds) - outside:
            del self.kinds[n]
            self.names.pop(n, None)
        return end

    def statements(self, statements: Sequence[Tree], going: _Going) -> _Going:
        for n, s in enumerate(statements):
            if going is False:
                break
            if s[0] == "declare":
                self.kinds[s[2]] = s[1]
                if s[3] is not None:
                    self.names[s[2]] = self.as_kind(self.value(s[3]), s[1])
                else:
                    self.names.pop(s[2], None)
            elif s[0] == "assign":
                self.assign(s[1], self.value(s[2]), going)
            elif s[0] == "return":
                self.give(self.as_kind(self.value(s[1]), self.function.gives), going)
                going = False
            elif s[0] == "while":
                self.loop(s[1], s[2], going)
            else:
                long = _weight(s[2]) >= _LONG_BLOCK_NODES
                before = going
                going = self.choose(s, going)
                rest = tuple(statements[n + 1 :])
                # After a long block that always returns, no lane at all may be left for the rest.
                if long and isinstance(going, Value) and going is not before and _weight(rest) >= _LONG_BLOCK_NODES:
                    return self.where_any(rest, going)
        return going

    def choose(self, s: Tree, going: _Going) -> _Going:
        _, condition, then, other = s
        holds = self.as_kind(self.value(condition), "bool").one
        ends: list[_Going] = []
        for body, mask in ((then, holds), (other, ~holds)):
            mine = mask if not isinstance(going, Value) else going & mask
            if not body:
                ends.append(mine)
            elif _weight(body) >= _LONG_BLOCK_NODES:
                ends.append(self.where_any(body, mine))
            else:
                ends.append(self.block(body, mine))
        a, b = ends
        if not _returns(then) and not _returns(other):
            return going
        if a is False or b is False:
            return b if a is False else a
        assert isinstance(a, Value) and isinstance(b, Value)
        return a | b

    def where_any(self, body: Sequence[Tree], mask: Value) -> _Going:
        """The body in a branch that is skipped where the mask is empty; values that it assigns go through variables."""
        k = self.k
        outer = sorted(n for n in _assigned(tuple(body)) if n in self.kinds)
        held = {n: self.variables(n) for n in outer}
        returns = _returns(body)
        result = self.result_variables() if returns else None
        left = k.variable(mask) if returns else None
        with k.when(k.any(mask)):
            end = self.block(body, mask)
            for n, places in held.items():
                if n in self.names:
                    for place, part in zip(places, self.names[n].parts, strict=True):
                        place.value = part
            if result is not None and self.result is not None:
                for place, part in zip(result, self.result.parts, strict=True):
                    place.value = part
            if left is not None:
                left.value = (
                    k.const(mask.type, False) if end is False else end if isinstance(end, Value) else mask
                )
        for n, places in held.items():
            self.names[n] = Held(self.kinds[n], tuple(p.value for p in places))
        if result is not None:
            self.result = Held(self.function.gives, tuple(p.value for p in result))
        return mask if left is None else left.value

    def loop(self, condition: Tree, body: Sequence[Tree], going: _Going) -> None:
        k = self.k
        held = {n: self.variables(n) for n in sorted(_assigned(tuple(body))) if n in self.kinds}
        with k.repeat() as again:
            for n, places in held.items():
                self.names[n] = Held(self.kinds[n], tuple(p.value for p in places))
            holds = self.as_kind(self.value(condition), "bool").one
            mine = holds if not isinstance(going, Value) else going & holds
            again.whilst(k.any(mine))
            self.block(body, mine)
            for n, places in held.items():
                for place, part in zip(places, self.names[n].parts, strict=True):
                    place.value = part
        for n, places in held.items():
            self.names[n] = Held(self.kinds[n], tuple(p.value for p in places))

    def variables(self, name: str) -> list[Variable]:
        kind = self.kinds[name]
        if name in self.names:
            return [self.k.variable(p) for p in self.names[name].parts]
        pairs = 2 if kind.endswith("2") else 1
        return [self.k.variable(0, self.p.type(kind)) for _ in range(pairs)]

    def result_variables(self) -> list[Variable]:
        if self.result is not None:
            return [self.k.variable(p) for p in self.result.parts]
        kind = self.function.gives
        return [self.k.variable(0, self.p.type(kind)) for _ in range(2 if kind.endswith("2") else 1)]

    def assign(self, name: str, value: Held, going: _Going) -> None:
        value = self.as_kind(value, self.kinds[name])
        old = self.names.get(name)
        self.names[name] = self.chosen(going, value, old) if isinstance(going, Value) and old else value

    def give(self, value: Held, going: _Going) -> None:
        old = self.result
        self.result = self.chosen(going, value, old) if isinstance(going, Value) and old else value

    def chosen(self, mask: Value, a: Held, b: Held) -> Held:
        parts = (self.k.select(mask, x, y) for x, y in zip(a.parts, b.parts, strict=True))
        return Held(a.kind, tuple(parts))

    # -- expressions

    def const(self, kind: str, number: float) -> Held:
        return Held(kind, (self.k.const(self.p.type(kind), number),))

    def value(self, e: Tree) -> Held:
        what = e[0]
        if what == "number":
            return self.number(e[1])
        if what == "name":
            if e[1] in ("true", "false"):
                return self.const("bool", e[1] == "true")
            return self.names[e[1]]
        if what == "member":
            pair = self.value(e[1])
            return Held("double" if pair.kind == "RLX_D2" else "float", (pair.parts["xy".index(e[2])],))
        if what == "element":
            return self.element(e[1][1], self.value(e[2]).one)
        if what == "?":
            condition = self.as_kind(self.value(e[1]), "bool").one
            a, b = self.alike(self.value(e[2]), self.value(e[3]))
            return self.chosen(condition, a, b)
        if what == "call":
            return self.call(e[1], e[2])
        if what == "unary":
            return self.unary(e[1], self.value(e[2]))
        return self.two(what, self.value(e[1]), self.value(e[2]))

    def number(self, text: str) -> Held:
        if text[:2] in ("0x", "0X"):
            held = int(text.rstrip("uU"), 16)
            return self.const("uint" if text[-1] in "uU" or held >> 31 else "int", held)
        if "." in text or "e" in text:
            kind = "float" if text[-1] in "fF" else "double"
            return self.const(kind, float(text.rstrip("fF")))
        return self.const("uint" if text[-1] in "uU" else "int", int(text.rstrip("uU")))

    def element(self, table: str, index: Value) -> Held:
        """An entry of a table of constants, chosen by selects, since a kernel has no data section."""
        kind, values = self.p.headers.tables[table]
        if len(values) == 16 and _TYPES[kind][0].is_float:
            numbers = [-float(v[2][1].rstrip("f")) if v[0] == "unary" else float(v[1].rstrip("f")) for v in values]
            at = self.k.cast("trunc", index, I32) if index.type.bits == 64 else index
            return Held(kind, (looked_up(self.k, self.k.lanes(_TYPES[kind][0], numbers), at),))
        value = self.as_kind(self.value(values[0]), kind).one
        for n, v in enumerate(values[1:], 1):
            value = self.k.select(self.k.cmp("eq", index, n), self.as_kind(self.value(v), kind).one, value)
        return Held(kind, (value,))

    def unary(self, sign: str, a: Held) -> Held:
        if sign == "!":
            return Held("bool", (~self.as_kind(a, "bool").one,))
        return Held(a.kind, (~a.one if sign == "~" else -a.one,))

    def alike(self, a: Held, b: Held) -> tuple[Held, Held]:
        """Both converted to the wider of their types, as in C."""
        if a.kind == b.kind:
            return a, b
        order = ("bool", "int", "uint", "rlx_i64", "rlx_u64", "float", "double")
        kind = max(a.kind, b.kind, key=order.index)
        return self.as_kind(a, kind), self.as_kind(b, kind)

    def two(self, sign: str, a: Held, b: Held) -> Held:
        k = self.k
        if sign in ("&&", "||"):
            x, y = self.as_kind(a, "bool").one, self.as_kind(b, "bool").one
            return Held("bool", (x & y if sign == "&&" else x | y,))
        if sign in ("<<", ">>"):
            by = self.as_kind(b, a.kind).one
            how = "shl" if sign == "<<" else "ashr" if _TYPES[a.kind][1] else "lshr"
            return Held(a.kind, (k.binary(how, a.one, by),))
        a, b = self.alike(a, b)
        type, signed = _TYPES[a.kind]
        if sign in _COMPARED:
            word = _COMPARED[sign]
            if type.is_float:
                how = "une" if word == "ne" else f"o{word}"
            elif word in ("eq", "ne"):
                how = word
            else:
                how = f"{'s' if signed else 'u'}{word}"
            return Held("bool", (k.cmp(how, a.one, b.one),))
        if sign in ("/", "%") and not type.is_float:
            # Inactive lanes may hold 0, and an integer division by 0 would trap.
            divisor = k.select(k.cmp("eq", b.one, 0), k.const(b.one.type, 1), b.one)
            how = f"{'s' if signed else 'u'}{'div' if sign == '/' else 'rem'}"
            return Held(a.kind, (k.binary(how, a.one, divisor),))
        how = {"+": "add", "-": "sub", "*": "mul", "/": "div", "&": "and", "|": "or", "^": "xor"}[sign]
        return Held(a.kind, (k.binary(f"f{how}" if type.is_float else how, a.one, b.one),))

    def as_kind(self, a: Held, kind: str) -> Held:
        """A C conversion."""
        if a.kind == kind or kind.endswith("2"):
            return a
        k, (old, signed), (new, to_signed) = self.k, _TYPES[a.kind], _TYPES[kind]
        x = a.one
        if kind == "bool":
            return Held(kind, (k.cmp("une" if old.is_float else "ne", x, 0),))
        if old.is_float and new.is_float:
            return Held(kind, (k.cast("fpext" if new.bits > old.bits else "fptrunc", x, new),))
        if old.is_float:
            return Held(kind, (k.cast("fptosi" if to_signed else "fptoui", x, new),))
        if new.is_float:
            return Held(kind, (k.cast("sitofp" if signed else "uitofp", x, new),))
        if new.bits == old.bits:
            return Held(kind, a.parts)
        how = "trunc" if new.bits < old.bits else "sext" if signed else "zext"
        return Held(kind, (k.cast(how, x, new),))

    def call(self, name: str, args: Sequence[Tree]) -> Held:
        if name in _TYPES:
            return self.as_kind(self.value(args[0]), name)
        if name in _BUILTIN:
            return _BUILTIN[name](self, *(self.value(a) for a in args))
        function = self.p.headers.function(name)
        operands: list[Held] = []
        for (kind, _, out), a in zip(function.params, args, strict=True):
            if out:
                operands.append(self.names.get(a[1], Held(kind, ())))
            else:
                operands.append(self.as_kind(self.value(a), kind))
        result, outs = self.p.run(function, operands)
        for (_, inner, out), a in zip(function.params, args, strict=True):
            if out:
                self.names[a[1]] = outs[inner]
        return result


def _returns(body: Any) -> bool:
    """Whether a return is somewhere in these statements."""
    return any(s[0] == "return" or (s[0] == "if" and (_returns(s[2]) or _returns(s[3]))) for s in body)


_COMPARED = {"==": "eq", "!=": "ne", "<": "lt", ">": "gt", "<=": "le", ">=": "ge"}


def _intrinsic(name: str) -> Callable[..., Held]:
    return lambda f, a: Held(a.kind, (f.k.unary(name, a.one),))


def _reread(kind: str) -> Callable[..., Held]:
    return lambda f, a: Held(kind, (f.k.bits(a.one, _TYPES[kind][0]),))


def _of_bits(kind: str) -> Callable[..., Held]:
    return lambda f, a: Held(kind, (f.k.fence(f.k.bits(a.one, _TYPES[kind][0])),))


def _mad(f: _Frame, a: Held, b: Held, c: Held) -> Held:
    return Held(a.kind, (f.k.fma(a.one, b.one, c.one),))


def _pair(kind: str) -> Callable[..., Held]:
    return lambda f, a, b: Held(kind, (a.one, b.one))


def _high(f: _Frame, a: Held, b: Held) -> Held:
    """The upper half of a product of 32-bit numbers."""
    x, y = (f.k.cast("zext", v.one, I64) for v in (a, b))
    return Held("uint", (f.k.cast("trunc", (x * y) >> 32, I32),))


def _top_bit(f: _Frame, a: Held) -> Held:
    kind = a.one.type
    zeros = f.k.call(f"llvm.ctlz.{kind.suffix}", kind, a.one, "i1 false")
    return Held("int", (31 - zeros,))


def _half_value(f: _Frame, a: Held) -> Held:
    from rlx.backends.cpu.ir import F16, I16

    return Held("float", (f.k.cast("fpext", f.k.bits(f.k.cast("trunc", a.one, I16), F16), F32),))


def _wide_number(f: _Frame, high: Held, low: Held) -> Held:
    a, b = (f.k.cast("zext", v.one, I64) for v in (high, low))
    return Held("rlx_u64", ((a << 32) | b,))


def _wide_float(f: _Frame, high: Held, low: Held) -> Held:
    return Held("double", (f.k.bits(_wide_number(f, high, low).one, F64),))


_BUILTIN: dict[str, Callable[..., Held]] = {
    "RLX_BITS": _reread("uint"), "RLX_FLOAT": _of_bits("float"), "RLX_DBITS": _reread("rlx_u64"),
    "RLX_DOUBLE": _of_bits("double"),
    "RLX_D": lambda f, a: f.as_kind(a, "double"), "RLX_I64": lambda f, a: f.as_kind(a, "rlx_i64"),
    "RLX_D64": _wide_float, "RLX_U64": _wide_number,
    "RLX_FLOOR": _intrinsic("floor"), "RLX_CEIL": _intrinsic("ceil"), "RLX_TRUNC": _intrinsic("trunc"),
    "RLX_ROUND": _intrinsic("roundeven"), "RLX_ABS": _intrinsic("fabs"), "RLX_SQRT": _intrinsic("sqrt"),
    "RLX_DFLOOR": _intrinsic("floor"), "RLX_DCEIL": _intrinsic("ceil"), "RLX_DTRUNC": _intrinsic("trunc"),
    "RLX_DROUND": _intrinsic("roundeven"), "RLX_DABS": _intrinsic("fabs"), "RLX_DSQRT": _intrinsic("sqrt"),
    "RLX_MAD": _mad, "RLX_EXACT_FMA": _mad, "RLX_MAD64": _mad, "RLX_EXACT_FMA64": _mad,
    "RLX_MAKE_F2": _pair("RLX_F2"), "RLX_MAKE_D2": _pair("RLX_D2"), "RLX_UMULHI": _high, "RLX_MSB": _top_bit,
    "RLX_HALF_VALUE": _half_value,
    "RLX_QUICK_RECIP": lambda f, a: Held(a.kind, (1.0 / a.one,)),
}  # fmt: skip
