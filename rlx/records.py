"""Record: the base of classes that are little more than their fields, as dataclasses are, but made without their cost.

`dataclass` writes the source of six methods for each class and compiles them, bytecode or not, whenever its module is
imported: about half of the time that importing rlx's modules took. The methods of a record are closures instead, which
take microseconds; only a class of many records compiles its `__init__`. `dataclasses.fields`, `replace`, `asdict` and
`is_dataclass` take records as they take dataclasses.

    class Slot(Record):
        offset: int
        nbytes: int = 0
        names: list[str] = field(default_factory=list)

Records are frozen and have slots; `class Slot(Record, frozen=False, eq=False, repr=False, kw_only=True, slots=False)`
says otherwise. A module of records begins with `from __future__ import annotations`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, ClassVar, NoReturn, TypeVar, dataclass_transform, overload

R = TypeVar("R", bound="Record")
T = TypeVar("T")


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Any = _Missing()
_COMPILED_AT = 100  # records; a class has seldom more than a few


class Field:
    """One field of a record; see `dataclasses.field` for what its settings mean."""

    __slots__ = ("annotation", "compare", "default", "default_factory", "init", "kw_only", "metadata", "name", "repr")

    def __init__(
        self, default: Any, default_factory: Any = MISSING, init: bool = True, repr: bool = True,
        compare: bool = True, metadata: Mapping[str, Any] | None = None, kw_only: bool = False,
    ) -> None:  # fmt: skip
        self.default, self.default_factory, self.metadata = default, default_factory, metadata or {}
        self.init, self.repr, self.compare = init, repr, compare
        self.kw_only = kw_only
        self.name = self.annotation = ""

    def initial(self) -> Any:
        """The value where none is given; MISSING where one must be."""
        return self.default if self.default_factory is MISSING else self.default_factory()


@overload
def field(
    *, default: T, init: bool = ..., repr: bool = ..., compare: bool = ..., metadata: Any = ..., kw_only: bool = ...
) -> T: ...
@overload
def field(
    *, default_factory: Callable[[], T], init: bool = ..., repr: bool = ..., compare: bool = ..., metadata: Any = ...,
    kw_only: bool = ...,
) -> T: ...  # fmt: skip
@overload
def field(
    *, init: bool = ..., repr: bool = ..., compare: bool = ..., metadata: Any = ..., kw_only: bool = ...
) -> Any: ...
def field(
    *, default: Any = MISSING, default_factory: Any = MISSING, init: bool = True, repr: bool = True,
    compare: bool = True, metadata: Mapping[str, Any] | None = None, kw_only: bool = False,
) -> Any:  # fmt: skip
    """A field with settings of its own, as `dataclasses.field`."""
    return Field(default, default_factory, init, repr, compare, metadata, kw_only)


class _Lazy:
    """An attribute of record classes that is made when it is first asked for: most never are."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self._make = make

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: Any) -> Any:
        kept = owner.__dict__.get(f"_made{self._name}")
        if kept is None:
            if not owner._fields_of:
                raise AttributeError(self._name)
            kept = self._make(owner)
            type.__setattr__(owner, f"_made{self._name}", kept)
        return kept


class _RecordType(type):
    """Makes the class of a record: its annotated names become slots, and its methods closures over them."""

    _fields_of: tuple[Field, ...] = ()

    def __new__(
        meta, name: str, bases: tuple[type, ...], space: dict[str, Any], *, frozen: bool = True, eq: bool = True,
        repr: bool = True, kw_only: bool = False, slots: bool = True,
    ) -> _RecordType:  # fmt: skip
        own: list[Field] = []
        for key, annotation in space.get("__annotations__", {}).items():
            if str(annotation).startswith(("ClassVar", "typing.ClassVar")):
                continue
            value = space.pop(key, MISSING)
            one = value if isinstance(value, Field) else Field(value)
            one.name, one.annotation, one.kw_only = key, annotation, kw_only or one.kw_only
            if not slots and one.default is not MISSING:
                space[key] = one.default
            own.append(one)
        if slots and bases:
            space["__slots__"] = (*space.get("__slots__", ()), *(f.name for f in own))
        cls = super().__new__(meta, name, bases, space)
        if not bases:
            return cls
        by_name = {f.name: f for base in reversed(bases) for f in getattr(base, "_fields_of", ())}
        by_name |= {f.name: f for f in own}
        cls._fields_of = tuple(by_name.values())
        methods = _methods(cls, frozen, eq, repr, slots)
        for key, method in methods.items():
            if key not in space:
                setattr(cls, key, method)
        return cls


def _methods(cls: Any, frozen: bool, eq: bool, repr: bool, slots: bool) -> dict[str, Any]:
    """The methods of a record's class, except those that the class defines itself."""
    fields: tuple[Field, ...] = cls._fields_of
    first = [f for f in fields if f.init and not f.kw_only]
    result: dict[str, Any] = {
        "__init__": _init(cls, fields, first), "__match_args__": tuple(f.name for f in first),
    }  # fmt: skip
    if repr:
        result["__repr__"] = _repr
    if eq:
        values = _values([f.name for f in fields if f.compare])

        def __eq__(self: Any, other: object) -> Any:
            if other.__class__ is not self.__class__:
                return NotImplemented
            return values(self) == values(other)

        result["__eq__"] = __eq__
        result["__hash__"] = (lambda self: hash(values(self))) if frozen else None
    if frozen:
        result["__setattr__"], result["__delattr__"] = _refuse_set, _refuse_delete
    if slots:
        result["__getstate__"], result["__setstate__"] = _state, _set_state
    return result


def _values(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """A function that returns these attributes of an object as a tuple."""
    if not names:
        return lambda self: ()
    get: Callable[[Any], Any] = attrgetter(*names)
    return get if len(names) > 1 else lambda self: (get(self),)


def _init(cls: Any, fields: tuple[Field, ...], first: list[Field]) -> Callable[..., None]:
    """The `__init__` of a record. A class that makes many records gets one that is compiled."""
    taken = [*first, *(f for f in fields if f.init and f.kw_only)]
    later = [f for f in fields if not f.init]
    setters = [_setter(cls, f.name) for f in taken]
    count = len(first) if len(first) == len(taken) else -1
    prepares = hasattr(cls, "__post_init__")
    left = _COMPILED_AT

    def __init__(self: Any, /, *args: Any, **named: Any) -> None:
        nonlocal left
        left -= 1
        if not left:
            cls.__init__ = _compiled(cls, taken, later, prepares)
        if named or len(args) != count:
            args = _completed(type(self).__qualname__, first, taken, args, named)
        for put, value in zip(setters, args, strict=True):
            put(self, value)
        for one in later:
            if (value := one.initial()) is not MISSING:
                object.__setattr__(self, one.name, value)
        if prepares:
            self.__post_init__()

    return __init__


def _compiled(cls: Any, taken: list[Field], later: list[Field], prepares: bool) -> Any:
    """The `__init__` of `_init` as compiled source, which takes a third of the time."""
    space: dict[str, Any] = {"MISSING": MISSING}
    params, lines = [], []
    for n, one in enumerate([*taken, *later]):
        space[f"put{n}"], value = _setter(cls, one.name), one.name
        if one.default_factory is not MISSING:
            space[f"make{n}"] = one.default_factory
            value = f"make{n}()" + (f" if {one.name} is MISSING else {one.name}" if one.init else "")
        elif not one.init:
            if one.default is MISSING:
                continue
            value = f"start{n}"
        space[f"start{n}"] = one.default
        if one.init:
            params += ["*"] * (one.kw_only and "*" not in params)
            params.append(one.name if one.initial() is MISSING else f"{one.name}=start{n}")
        lines.append(f"    put{n}(self, {value})\n")
    lines += ["    self.__post_init__()\n"] * prepares or ["    pass\n"]
    exec(f"def __init__({', '.join(['self', *params])}):\n{''.join(lines)}", space)
    return space["__init__"]


def _setter(cls: Any, name: str) -> Callable[[Any, Any], None]:
    """A function that sets one attribute of a record, even of a frozen one."""
    slot: Any = getattr(cls, name, None)
    if hasattr(slot, "__set__"):
        put: Callable[[Any, Any], None] = slot.__set__
        return put
    return lambda self, value: object.__setattr__(self, name, value)


def _completed(
    cls: str, first: list[Field], taken: list[Field], args: tuple[Any, ...], named: dict[str, Any]
) -> tuple[Any, ...]:
    """The values of all fields in order, from positional and keyword arguments. Raises: TypeError as a function call
    would."""
    if len(args) > len(first):
        raise TypeError(f"{cls}() takes {len(first)} positional arguments but {len(args)} were given")
    values = list(args)
    missing = []
    for one in taken[len(args) :]:
        if one.name in named:
            values.append(named.pop(one.name))
        elif (value := one.initial()) is not MISSING:
            values.append(value)
        else:
            missing.append(one.name)
    for name in named:
        twice = any(one.name == name for one in taken)
        said = "got multiple values for argument" if twice else "got an unexpected keyword argument"
        raise TypeError(f"{cls}() {said} {name!r}")
    if missing:
        raise TypeError(f"{cls}() is missing {', '.join(map(repr, missing))}")
    return tuple(values)


def _repr(self: Any) -> str:
    values = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in self._fields_of if f.repr)
    return f"{type(self).__qualname__}({values})"


def _refuse_set(self: Any, name: str, value: object) -> NoReturn:
    from dataclasses import FrozenInstanceError  # only an error needs it

    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_delete(self: Any, name: str) -> NoReturn:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, f.name) for f in self._fields_of]


def _set_state(self: Any, state: list[Any]) -> None:
    for one, value in zip(self._fields_of, state, strict=True):
        object.__setattr__(self, one.name, value)


def _as_dataclass(cls: Any) -> Any:
    """A dataclass of the same fields, for the functions of the module `dataclasses`."""
    import dataclasses

    listed = []
    for f in cls._fields_of:
        start = {k: v for k in ("default", "default_factory") if (v := getattr(f, k)) is not MISSING}
        made: Any = dataclasses.field(
            **start, init=f.init, repr=f.repr, compare=f.compare, metadata=f.metadata, kw_only=f.kw_only
        )
        listed.append((f.name, f.annotation, made))
    return dataclasses.make_dataclass(cls.__name__, listed, frozen="__setattr__" in cls.__dict__)


def _signature(cls: Any) -> Any:
    import inspect

    kinds = inspect.Parameter
    return inspect.Signature([
        kinds(
            f.name, kinds.KEYWORD_ONLY if f.kw_only else kinds.POSITIONAL_OR_KEYWORD, annotation=f.annotation,
            default=kinds.empty if f.initial() is MISSING else f.initial(),
        )
        for f in sorted(cls._fields_of, key=lambda f: bool(f.kw_only)) if f.init
    ])  # fmt: skip


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Record(metaclass=_RecordType):
    """The base of records."""

    __slots__ = ()
    _fields_of: ClassVar[tuple[Field, ...]]
    __dataclass_fields__ = _Lazy(lambda cls: _as_dataclass(cls).__dataclass_fields__)
    __dataclass_params__ = _Lazy(lambda cls: _as_dataclass(cls).__dataclass_params__)
    __signature__ = _Lazy(_signature)


def replace(record: R, /, **changes: Any) -> R:
    """The record with other values of some fields, as `dataclasses.replace`."""
    for one in type(record)._fields_of:
        if one.init:
            changes.setdefault(one.name, getattr(record, one.name))
    return type(record)(**changes)


def names_of(record: type[Record] | Record) -> tuple[str, ...]:
    """The names of a record's fields, in order."""
    return tuple(one.name for one in record._fields_of)
