"""Schemas for operators that onnx has none for, mostly Microsoft's: declared in a line or two, kept as onnx schemas."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from onnx import defs, helper

from rlx.onnx.reader.table import MICROSOFT, Built, op

_Schema = defs.OpSchema
_Option = _Schema.FormalParameterOption
_KINDS: dict[Any, Any] = {
    int: _Schema.AttrType.INT, float: _Schema.AttrType.FLOAT, str: _Schema.AttrType.STRING,
    list[int]: _Schema.AttrType.INTS, list[float]: _Schema.AttrType.FLOATS,
    list[str]: _Schema.AttrType.STRINGS,
}  # fmt: skip
FLOATS = "float16 float double bfloat16"
DECLARED: dict[tuple[str, str], Any] = {}


def declared(
    *names: str,
    inputs: str,
    outputs: str,
    types: Mapping[str, str],
    attributes: Mapping[str, Any] | None = None,
    required: str = "",
    domain: str = MICROSOFT,
) -> Callable[[Built], Built]:
    """Declares operators of a domain; as a decorator it registers their builder.

    inputs, outputs: "name:type", separated by blanks. A suffix `?` marks an optional one, `*` any number of the last,
    `~` any number that may differ in type. A type is a parameter of `types`, which lists what it stands for, or onnx's
    name of an element type. attributes: the default of each, or where there is none int, float, str or a list of one
    of them; those that `required` names must be given.
    """
    constraints = [(name, [f"tensor({t})" for t in allowed.split()], "") for name, allowed in types.items()]
    must = required.split()
    for name in names:
        DECLARED[domain, name] = _Schema(
            name,
            domain,
            1,
            inputs=_formals(inputs, types),
            outputs=_formals(outputs, types),
            type_constraints=constraints,
            attributes=[_attribute(n, v, n in must) for n, v in (attributes or {}).items()],
        )
    return op(*names, domain=domain)


def _formals(text: str, types: Mapping[str, str]) -> Sequence[Any]:
    result = []
    for word in text.split():
        name, kind = word.rstrip("?*~").split(":")
        option = {"?": _Option.Optional, "*": _Option.Variadic, "~": _Option.Variadic}.get(
            word[-1], _Option.Single
        )
        kind = kind if kind in types else f"tensor({kind})"
        alike = word[-1] != "~"
        result.append(_Schema.FormalParameter(name, kind, param_option=option, is_homogeneous=alike))
    return result


def _attribute(name: str, default: Any, required: bool) -> Any:
    kind = None if isinstance(default, list) else _KINDS.get(default)
    if kind is not None:
        return _Schema.Attribute(name, kind, required=required)
    return _Schema.Attribute(name, helper.make_attribute(name, default))
