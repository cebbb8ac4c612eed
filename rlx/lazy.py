"""Names that load when they are first used: of packages (PEP 562), and of classes whose operators are written later."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any


class UnknownName(AttributeError):
    """A name that a module does not have. What was meant is looked for when the error is shown: `hasattr` shows none. A
    traceback calls it by the name of its kind."""

    __module__, __qualname__ = "builtins", "AttributeError"

    def __init__(self, module: str, name: str) -> None:
        super().__init__(module, name)

    def __str__(self) -> str:
        module, name = self.args
        hint = import_module("rlx.host.other_names").in_place_of(module, name)
        return f"module {module!r} has no attribute {name!r}{hint}"


def unknown_in(module: str) -> Callable[[str], Any]:
    """The `__getattr__` of a module, whose errors say what was meant."""

    def __getattr__(name: str) -> Any:
        raise UnknownName(module, name)

    return __getattr__


def listed_in(module: str) -> Callable[[], list[str]]:
    """The `__dir__` of a module, which completion shows: what it defines and what `__all__` names, not what it uses."""

    def __dir__() -> list[str]:
        names = vars(sys.modules[module])
        own = {n for n, value in names.items() if n[:1] == "_" or getattr(value, "__module__", None) == module}
        return sorted({*own, *names.get("__all__", ())})

    return __dir__


class Package(ModuleType):
    """A package whose names load from the modules that `by_need` was given.

    A module of the package may be called as a function that it has (`rlx.ops.pad`). The import of a module makes it an
    attribute of its package, which would hide the function: such modules stay out, and `from rlx.ops.pad import …`
    finds them."""

    _places: Mapping[str, str]
    _made: Callable[[str, Any], Any] | None

    def __getattr__(self, name: str) -> Any:
        place = self._places.get(name)
        if place is None:
            raise UnknownName(self.__name__, name)
        module, _, attribute = place.partition(":")
        value: Any = import_module(module)
        if attribute != ".":
            value = getattr(value, attribute or name)
        if self._made is not None:
            value = self._made(name, value)
        return self.__dict__.setdefault(name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        place = self._places.get(name, ":.")
        if isinstance(value, ModuleType) and not place.endswith(":."):
            return
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*listed_in(self.__name__)(), *self._places} - {"_places", "_made"})


def by_need(
    package: str,
    places: Mapping[str, str],
    made: Callable[[str, Any], Any] | None = None,
) -> None:
    """Lets a package have these names: each with its module, with "module:attribute" where it has another name there,
    or with "module:." where it is the module. `made` is what the package has in place of a value."""
    module = sys.modules[package]
    module.__dict__.update(_places=places, _made=made)
    module.__class__ = Package


class _Attached:
    """An attribute of a class that `load` puts in this one's place."""

    __slots__ = ("_load", "_name")

    def __init__(self, name: str, load: Callable[[str], object]) -> None:
        self._name, self._load = name, load

    def __get__(self, instance: Any, owner: Any) -> Any:
        self._load(self._name)
        return getattr(owner if instance is None else instance, self._name)


def attach_later(kind: type, names: Iterable[str], load: Callable[[str], object]) -> None:
    """Gives a class operators and methods that `load`, called with the name of one, attaches when it is first used."""
    for name in names:
        setattr(kind, name, _Attached(name, load))
