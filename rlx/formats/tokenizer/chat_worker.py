"""Renders chat templates in a process of its own, which `rlx.formats.tokenizer.chat` starts by this file's path.

A line of JSON comes in for each rendering and a line goes out. The template runs in Jinja2's sandbox. That bounds what
it can reach, but not what it takes: strings double, and tuples of tuples compare, in one call of C. So this process
has little memory and a timer that ends it, and whatever a template does ends with it. Nothing of rlx is imported here.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import jinja2.utils

MEMORY = 256 << 20  # bytes beyond what the process has when it starts
SECONDS = 1.0  # processor time of one rendering
MAX_OUTPUT = 4_000_000  # characters
MAX_POWER = 64


class TooMuch(Exception):
    """A template exceeds a limit. Not a TemplateError, which templates themselves cause."""


class Refused(Exception):
    """Raised by `raise_exception`: the template rejects these messages."""


class Generation(jinja2.ext.Extension):
    """`{% generation %}` marks what the assistant wrote, for training; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja2 declares it

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_said"), [], [], body).set_lineno(line)

    def _said(self, caller: Callable[[], str]) -> str:
        return caller()


class Namespace(jinja2.utils.Namespace):
    """Jinja2's namespace, without names that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            Namespace._check(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        Namespace._check(name)
        super().__setitem__(name, value)

    @staticmethod
    def _check(name: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a namespace cannot have the name {name!r}")


class PlainDict:
    """`dict` for templates: it can only be called, so that templates cannot reach types through it."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The sandbox with the settings and globals that `transformers` gives chat templates, and with limits on products
    and powers."""

    intercepted_binops = frozenset(("*", "**"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
        )
        self.filters["tojson"] = _tojson
        del self.globals["lipsum"]
        self.globals |= {"raise_exception": _raise, "dict": PlainDict(), "namespace": Namespace}

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and (abs(right) > MAX_POWER or abs(left) > 1 << 64):
            raise TooMuch(f"raises {left!r:.20} to the power of {right!r:.20}")
        if operator == "*":
            for one, other in ((left, right), (right, left)):
                if (
                    isinstance(one, str | list | tuple)
                    and isinstance(other, int)
                    and len(one) * other > MAX_OUTPUT
                ):
                    raise TooMuch(f"repeats {len(one):,} items {other!r:.20} times")
                if isinstance(one, int) and one.bit_length() > 1 << 12:
                    raise TooMuch(f"multiplies a number of {one.bit_length():,} bits")
        return super().call_binop(context, operator, left, right)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: Any) -> None:
    raise Refused(str(message)[:2000])


@lru_cache(maxsize=8)
def _compiled(template: str) -> jinja2.Template:
    return Environment().from_string(template)


def _rendered(template: str, context: dict[str, Any], now: str | None) -> str:
    moment = datetime.fromisoformat(now) if now else datetime.now()
    context["strftime_now"] = lambda form: moment.strftime(form)
    pieces: list[str] = []
    size = 0
    for piece in _compiled(template).generate(context):
        size += len(piece)
        if size > MAX_OUTPUT:
            raise TooMuch(f"writes more than {MAX_OUTPUT:,} characters")
        pieces.append(piece)
    return "".join(pieces)


def answer(line: str) -> dict[str, str]:
    """The answer to a request: `text`, or the message `error` and the kind of error `kind`."""
    request = json.loads(line)
    try:
        return {"text": _rendered(request["template"], request["context"], request["now"])}
    except Refused as error:
        return {"kind": "refused", "error": str(error)}
    except TooMuch as error:
        return {"kind": "limit", "error": str(error)}
    except MemoryError:
        return {"kind": "limit", "error": f"needs more than {MEMORY >> 20} MiB of memory"}
    except RecursionError:
        return {"kind": "limit", "error": "is nested, or calls itself, too deeply"}
    except OverflowError as error:
        return {"kind": "limit", "error": str(error)[:500]}
    except Exception as error:  # noqa: BLE001 - whatever else a template raises is its fault
        place = f" in line {error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""
        return {"kind": "error", "error": f"{type(error).__name__}{place}: {str(error)[:500]}"}


def _limit() -> None:
    """Limits this process's resources. Windows has no such limits; there the process that waits for the answer ends
    this one."""
    if sys.platform == "win32":
        return
    import resource

    used = 0
    try:
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
    except (OSError, ValueError):
        used = 1 << 30
    for kind, most in (
        (resource.RLIMIT_AS, used + MEMORY),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        try:
            resource.setrlimit(kind, (most, most))
        except (OSError, ValueError):  # macOS does not support this limit
            continue


def _lines() -> Iterator[str]:
    while line := sys.stdin.readline():
        yield line


def main() -> None:
    _limit()
    timed = hasattr(signal, "setitimer")
    print(json.dumps({"ready": jinja2.__version__}), flush=True)
    for line in _lines():
        if timed:
            signal.setitimer(signal.ITIMER_PROF, SECONDS)  # SIGPROF ends the process
        found = answer(line)
        if timed:
            signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
