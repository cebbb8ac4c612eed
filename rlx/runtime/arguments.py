"""The arguments of a traced function: arrays and numbers, which each call gives, and values built in."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from enum import Enum
from types import (
    BuiltinMethodType,
    ClassMethodDescriptorType,
    EllipsisType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    NoneType,
    NotImplementedType,
    WrapperDescriptorType,
)
from typing import Any

import numpy as np

from rlx.driver.device import HOST
from rlx.driver.registry import info_of
from rlx.errors import DeviceUnavailable, GraphError
from rlx.ir import Tensor
from rlx.ir.values import as_array, is_foreign, is_foreign_type
from rlx.ops.pytree import Children, Kind, Static, children_of, flatten, is_array, rebuilt
from rlx.packed import PackedArray
from rlx.records import Record
from rlx.runtime.array import Array
from rlx.runtime.exchange import adopted

StaticNums = int | Sequence[int]
StaticNames = str | Sequence[str]
# Types whose objects hold no data that a program could depend on: comparing them by identity is safe.
_CODE = (
    type, FunctionType, MethodDescriptorType, WrapperDescriptorType, ClassMethodDescriptorType, ModuleType, np.ufunc,
    NoneType, EllipsisType, NotImplementedType,
)  # fmt: skip
# What to write for a static value of a type that has no hash.
_HASHED: dict[type, str] = {
    list: "tuple(…) of it", set: "frozenset(…) of it", dict: "tuple(sorted(….items())), or a frozen dataclass",
    bytearray: "bytes(…) of it",
    np.ndarray: "it as an argument that is not static: arrays may be, as they are or in tuples, lists and dicts",
}  # fmt: skip
_BOUND = (MethodType, BuiltinMethodType, MethodWrapperType)


def is_python_number(value: Any) -> bool:
    """Whether it is traced as a number: a Python int or float that is neither a bool nor a member of an enum."""
    kind: Any = type(value)
    return _is_number_type(kind)


@functools.lru_cache(1024)
def _is_number_type(kind: Any) -> bool:
    return issubclass(kind, int | float) and not issubclass(kind, bool | Enum | np.generic)


def is_any_array(value: Any) -> bool:
    """Whether it is an array of any library, or a tensor."""
    return is_array(value) or is_foreign(value)


def _is_leaf(value: Any) -> bool:
    kind: Any = type(value)
    return _is_leaf_type(kind)


@functools.lru_cache(1024)
def _is_leaf_type(kind: Any) -> bool:
    arrays = np.ndarray | np.generic | Tensor | PackedArray
    return _is_number_type(kind) or issubclass(kind, arrays) or is_foreign_type(kind)


def _is_array_leaf(value: Any) -> bool:
    """Whether it is an array. The numbers of a method's object are built in: most of them are sizes and settings."""
    return _is_leaf(value) and not is_python_number(value)


def _parts_of(value: Any, leaf: Callable[[Any], bool]) -> Children | None:
    """The children of a container, or the attributes of an object; None for leaves, functions and rlx's objects."""
    result = children_of(value, leaf)
    if result is not None or not hasattr(value, "__dict__") or isinstance(value, _CODE + _BOUND + (Enum,)):
        return result
    library = type(value).__module__.partition(".")[0]
    if library in ("rlx", "builtins", "logging", "threading") or hasattr(value, "__wrapped__"):
        return None
    names = tuple(sorted(vars(value)))
    return tuple(vars(value)[n] for n in names), (names, ()), names, rebuilt


def _identity_key(value: Any) -> Hashable:
    return static_key(value, identity=True)


class NotBuiltIn(Exception):
    """A value that cannot be built into a program: `value` has no hash, or is compared by `identity`."""

    def __init__(self, value: Any, identity: bool) -> None:
        super().__init__(value)
        self.value = value
        self.identity = identity


def static_key(value: Any, identity: bool = False) -> Hashable:
    """A key of a value built into a program, equal for equal type and content, at any depth.

    With `identity` the user has promised that objects compared by identity never change. Raises: NotBuiltIn.
    """
    kind = type(value)
    if kind in (str, bool, int, NoneType):
        return (kind, value)
    if isinstance(value, float | complex | np.inexact):  # 0.0 equals -0.0, and NaN equals nothing
        return (kind, repr(value))
    if isinstance(value, tuple):
        return (kind, tuple(static_key(v, identity) for v in value))
    if isinstance(value, frozenset):
        return (kind, frozenset(static_key(v, identity) for v in value))
    if isinstance(value, slice):
        return (kind, static_key((value.start, value.stop, value.step), identity))
    if isinstance(value, functools.partial):
        parts = (value.func, value.args, tuple(sorted(value.keywords.items())))
        return (kind, static_key(parts, identity))
    if isinstance(value, _BOUND) and not isinstance(value.__self__, ModuleType | None):
        return (kind, value.__name__, static_key(value.__self__, identity))
    of: Any = kind
    params = getattr(kind, "__dataclass_params__", None)
    if params is not None and params.frozen and of.__hash__ is not object.__hash__:
        from dataclasses import fields  # they are imported where a user has a dataclass

        return (kind, tuple(static_key(getattr(value, f.name), identity) for f in fields(value)))
    code = isinstance(value, _CODE) or (callable(value) and hasattr(value, "__wrapped__"))
    try:
        number = hash(value)
    except TypeError:
        raise NotBuiltIn(value, identity=False) from None
    # The hash is of the object's identity, not its content: Python's default, or one that a class spells out.
    if number in (object.__hash__(value), id(value)) and not code and not identity:
        raise NotBuiltIn(value, identity=True)
    return (kind, value)


class Call(Record, frozen=False, eq=False):
    """The arguments of one call as a pytree: its leaves, and its structure.

    `leaves` are arrays, tensors and numbers, and `origins` the position or name of each leaf's argument; `skeleton`
    is the structure with the static values."""

    skeleton: Any
    leaves: list[Any]
    origins: list[int | str]

    def key(self) -> Hashable:
        """A key that is equal for calls that can use the same program."""
        return (self.skeleton, tuple(type(a) if is_python_number(a) else (a.shape, _dtype(a)) for a in self.leaves))


def _dtype(leaf: Any) -> Any:
    """The dtype by which programs are told apart: an Array of the device runs the program of a NumPy array."""
    return leaf.dtype.np if isinstance(leaf, Array) and not leaf.dtype.is_packed else leaf.dtype


class Parameters:
    """The parameters of a function, and which are static. Raises: GraphError for unknown static ones."""

    def __init__(
        self, what: str, function: Callable[..., Any], nums: StaticNums, names: StaticNames, device: str = "cpu"
    ) -> None:
        self._device = device
        self.method = False  # whether the first argument is the object whose method the function is
        self.name = getattr(function, "__name__", type(function).__name__)  # a functools.partial has none
        self.nums = set(_items(what, "static_argnums", nums, int))
        self.names = set(_items(what, "static_argnames", names, str))
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):  # some built-in functions have no signature
            self.positional: list[str] = []
            self.known: set[str] | None = None  # the names of parameters, None where any may be
            return
        self.positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        n, kinds = len(self.positional), {p.kind for p in parameters}
        self.nums = {i + n if i < 0 else i for i in self.nums}
        known = {p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
        self.known = None if inspect.Parameter.VAR_KEYWORD in kinds else known
        wrong: list[Any] = [] if inspect.Parameter.VAR_KEYWORD in kinds else sorted(self.names - known)
        if inspect.Parameter.VAR_POSITIONAL not in kinds:
            wrong += [i for i in sorted(self.nums) if not 0 <= i < n]
        if wrong:
            raise GraphError(f"{what}: {self.name} has no argument {wrong[0]!r} to be static; it has {sorted(known)}")
        self.names |= {self.positional[i] for i in self.nums if 0 <= i < n}
        self.nums |= {i for i, name in enumerate(self.positional) if name in self.names}

    @functools.cached_property
    def _memory(self) -> int:
        """DLPack's kind of the device's memory; the host's if there is no such device, for which the session raises."""
        try:
            return info_of(self._device).dlpack
        except DeviceUnavailable:
            return HOST

    def take_apart(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        """Flattens a call's arguments. Arrays of other libraries become NumPy arrays; Arrays, and arrays in the
        memory of the CUDA device that the function runs on, stay where they are.

        Raises: GraphError for a value that cannot be built in, DTypeError for an array that cannot be read."""
        call = Call(None, [], [])
        positional = tuple(self._argument(call, i, a, i in self.nums) for i, a in enumerate(args))
        named = tuple((k, self._argument(call, k, kwargs[k], k in self.names)) for k in sorted(kwargs))
        call.skeleton = ("tuple", (("tuple", positional), ("dict", named)))
        return call

    def _argument(self, call: Call, at: int | str, value: Any, static: bool) -> Any:
        start = len(call.leaves)
        try:
            if static:
                return ("static", Static(static_key(value, identity=True), value))
            if at == 0 and self.method:
                skeleton = flatten(value, call.leaves, _is_array_leaf, _identity_key, children=_parts_of)
            else:
                skeleton = flatten(value, call.leaves, _is_leaf, static_key)
        except NotBuiltIn as refused:
            raise self._refusal(at, refused) from None
        for i in range(start, len(call.leaves)):
            call.origins.append(at)
            leaf = call.leaves[i] = adopted(call.leaves[i], self._memory)
            if not is_python_number(leaf) and not is_array(leaf) and not isinstance(leaf, Array):
                call.leaves[i] = as_array(leaf, f"{self.name}: {self.label(at)[0]}")
        return skeleton

    def argument(self, at: int | str) -> str:
        """The name of an argument given by position or name."""
        return self.positional[at] if isinstance(at, int) and at < len(self.positional) else str(at)

    def input_names(self, call: Call) -> list[str]:
        """The name of each leaf of a call as an input of a program: the argument's name, then the keys and positions
        that lead to the leaf, as in "params.w.0"."""
        positional, named = call.skeleton[1]
        parts = [(self.positional[i] if i < len(self.positional) else f"x{i}", s) for i, s in enumerate(positional[1])]
        paths = [name for argument, part in (*parts, *named[1]) for name in leaf_names(part, str(argument))]
        names: dict[str, None] = {}
        for name in paths:
            while name in names:  # keys may contain dots too
                name += "_"
            names[name] = None
        return list(names)

    def label(self, at: int | str) -> tuple[str, str]:
        """The name of an argument in errors, and the option that makes it static."""
        if isinstance(at, int) and at >= len(self.positional):
            return f"argument {at}", f"static_argnums={at}"
        name = self.positional[at] if isinstance(at, int) else at
        return f"argument {name!r}", f'static_argnames="{name}"'

    def _refusal(self, at: int | str, refused: NotBuiltIn) -> GraphError:
        label, static = self.label(at)
        kind = type(refused.value).__name__
        if refused.identity:
            return GraphError(
                f"{self.name}: {label} is or holds a {kind}, which is compared by identity, so that a change inside "
                "would go unnoticed; pass its arrays as arguments (in tuples, lists or dicts), or write "
                f"{static} if it never changes"
            )
        instead = _HASHED.get(type(refused.value), "a frozen dataclass, or numbers, strings and tuples")
        return GraphError(
            f"{self.name}: a static argument cannot be hashed: a {kind} in {label}; write {instead}"
        )


def leaf_names(skeleton: Any, name: str) -> Iterator[str]:
    """The names of a skeleton's leaves, in order."""
    kind, *rest = skeleton
    if kind == "leaf":
        yield name
    elif kind != "static":
        names = kind.names if isinstance(kind, Kind) else None
        parts = rest[0] if kind == "dict" else zip(names, rest[0], strict=True) if names else enumerate(rest[0])
        for key, part in parts:
            yield from leaf_names(part, f"{name}.{key}")


def _items(what: str, option: str, listed: Any, kind: type) -> list[Any]:
    items = [listed] if isinstance(listed, int | str) else listed
    if not isinstance(items, Sequence | set | frozenset) or any(type(i) is not kind for i in items):
        expected = "names" if kind is str else "places"
        raise GraphError(f"{what}: {option} is {listed!r}; expected {expected}, one or several")
    return list(items)
