"""onnx's operator schemas: checks of nodes against them, and the declared types of inputs and outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import AttributeProto, defs

from rlx.dtypes import as_dtype
from rlx.errors import ModelFormatError, UnsupportedOp
from rlx.formats.files import shown
from rlx.ir import TensorType
from rlx.onnx.reader.call import AnyValue, Call, Value
from rlx.onnx.reader.declared import DECLARED
from rlx.onnx.reader.elements import ELEMENTS, STRING, Array, carrier, element_name
from rlx.onnx.reader.lenient import departs
from rlx.onnx.reader.places import import_modules
from rlx.onnx.reader.read import check_text


class Schema:
    """onnx's schema of an operator, with copies of the properties that each node needs: onnx builds them anew at every
    access."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self.name, self.domain, self.since_version = raw.name, raw.domain, raw.since_version
        self.inputs, self.outputs = [_Formal(f) for f in raw.inputs], [_Formal(f) for f in raw.outputs]
        self.min_input, self.max_input = raw.min_input, raw.max_input
        self.min_output, self.max_output = raw.min_output, raw.max_output
        self.attributes: dict[str, Any] = dict(raw.attributes)
        self.kinds = {name: int(a.type.value) for name, a in self.attributes.items()}
        self.required = [name for name, a in self.attributes.items() if a.required]
        defaults = {name: a.default_value for name, a in self.attributes.items()}
        self.defaults = {n: d for n, d in defaults.items() if d.type != AttributeProto.UNDEFINED}
        self.allowed = {c.type_param_str: frozenset(c.allowed_type_strs) for c in raw.type_constraints}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)


class _Formal:
    """A formal input or output of a schema."""

    def __init__(self, raw: Any) -> None:
        self.name, self.type_str, self.is_homogeneous = raw.name, raw.type_str, raw.is_homogeneous
        self.single = raw.option.name == "Single"


class Schemas:
    """The schemas that a model asks for, each looked up once."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, int], Schema | None] = {}

    def of(self, domain: str, name: str, opset: int) -> Schema | None:
        """As `schema_of`."""
        key = domain, name, opset
        if key not in self._found:
            raw = schema_of(domain, name, opset)
            self._found[key] = None if raw is None else Schema(raw)
        return self._found[key]


def schema_of(domain: str, name: str, opset: int) -> Any | None:
    """The schema of an operator at an opset: onnx's, or the one declared with `declared`; None where there is
    neither."""
    try:
        return defs.get_schema(name, opset, domain)
    except defs.SchemaError:
        import_modules(domain, name)
        return DECLARED.get((domain, name))


def check_call(
    schema: Schema,
    node: Any,
    inputs: Sequence[AnyValue | None],
    protos: dict[str, Any],
    where: str,
    strict: bool,
    defined: bool = False,
) -> dict[str, str]:
    """Checks a node against its operator's schema: counts, attributes, types. Unknown attributes are removed from
    `protos`, with a warning unless `strict`. In a function that onnx has `defined` for an operator, types that this
    takes go, also where its nodes are of operators that do not. Returns: the type parameters, as ONNX writes types.

    Raises: ModelFormatError.
    """
    for what, count, least, most in (
        ("input", len(inputs), schema.min_input, schema.max_input),
        ("output", len(node.output), schema.min_output, schema.max_output),
    ):
        if not least <= count <= most:
            wanted = f"{least}" if least == most else f"at least {least}" if count < least else f"at most {most}"
            raise ModelFormatError(f"{where}: has {count} {what}{'' if count == 1 else 's'}; expected {wanted}")
    for name, proto in list(protos.items()):
        kind = schema.kinds.get(name)
        if kind is None:
            known = ", ".join(sorted(schema.attributes)) or "none"
            departs(
                f"{where}: version {schema.since_version} of the operator has no attribute {shown(name)}; it has "
                f"{known}", "ignores it", strict,
            )  # fmt: skip
            del protos[name]
            continue
        if kind != proto.type:
            wanted = schema.attributes[name].type.name
            raise ModelFormatError(f"{where}: attribute {name} is of kind {proto.type}, expected {wanted}")
    for name in schema.required:
        if name not in protos:
            raise ModelFormatError(f"{where}: lacks the attribute {name}")
    return _bind_types(schema, inputs, where, defined)


def _bind_types(schema: Schema, inputs: Sequence[AnyValue | None], where: str, defined: bool) -> dict[str, str]:
    allowed = schema.allowed
    bound: dict[str, str] = {}
    for i, value in enumerate(inputs):
        formal = schema.inputs[min(i, len(schema.inputs) - 1)]
        if value is None:
            if i < len(schema.inputs) and formal.single:
                raise ModelFormatError(f"{where}: input {i} ({formal.name}) is left out; it must be there")
            continue
        param, kind = formal.type_str, value.kind
        if kind not in allowed.get(param, {param}) and not defined:
            allows = ", ".join(sorted(allowed.get(param, {param})))
            raise ModelFormatError(
                f"{where}: input {i} ({formal.name}) is {kind}; version {schema.since_version} of the operator takes "
                f"{allows}"
            )
        if param in allowed and formal.is_homogeneous and bound.setdefault(param, kind) != kind:
            raise ModelFormatError(f"{where}: input {i} ({formal.name}) is {kind}; expected {bound[param]}")
    return bound


# Operators that move, select or compare strings, for which the numbers suffice, and those that read their characters.
_ON_STRINGS = frozenset(
    "Cast CastLike Compress Concat ConcatFromSequence Constant DepthToSpace Equal Expand Flatten Gather GatherElements "
    "GatherND Identity NonZero OneHot Optional OptionalGetElement OptionalHasElement Pad RegexFullMatch Reshape "
    "ReverseSequence Scatter ScatterElements ScatterND SequenceAt SequenceConstruct SequenceErase SequenceInsert "
    "SequenceLength Shape Size Slice SpaceToDepth Split SplitToSequence Squeeze StringConcat StringNormalizer "
    "StringSplit TensorScatter TfIdfVectorizer Tile Transpose Trilu Unique Unsqueeze Where".split()
)


def check_strings(call: Call, domain: str) -> None:
    """Raises: UnsupportedOp for strings in an operator that would compute with their numbers."""
    if any(isinstance(v, Value) and v.dtype == STRING for v in call.inputs) and (
        (domain == "" and call.kind not in _ON_STRINGS) or call.attrs.get("reduction", "none") != "none"
    ):
        raise call.unsupported("is not supported on strings")


# Unknown lengths as Paddle's exporters write them; ONNX lacks this form, but ONNX Runtime accepts it.
UNKNOWN = (-1, "", "?")


def declared_type(proto: Any, what: str) -> tuple[np.dtype[Any] | None, list[int | str | None] | None]:
    """The element type and dims a tensor's TypeProto declares; None where it declares none."""
    if proto.WhichOneof("value") not in ("tensor_type", None):
        kind = proto.WhichOneof("value").removesuffix("_type")
        raise UnsupportedOp(
            f"{what}: is a {kind}; only tensors, sequences and optionals are supported, and maps as outputs"
        )
    tensor = proto.tensor_type
    dtype = None
    if tensor.elem_type:
        if tensor.elem_type not in ELEMENTS:
            raise UnsupportedOp(f"{what}: element type {element_name(tensor.elem_type)} is not supported")
        dtype = ELEMENTS[tensor.elem_type]
    if not tensor.HasField("shape"):
        return dtype, None
    dims: list[int | str | None] = []
    for d in tensor.shape.dim:
        kind = d.WhichOneof("value")
        if kind == "dim_value" and d.dim_value < -1:
            raise ModelFormatError(f"{what}: is declared with dimension {d.dim_value}")
        check_text(what, d.dim_param)
        length = int(d.dim_value) if kind == "dim_value" else d.dim_param
        dims.append(None if length in UNKNOWN else length)
    return dtype, dims


def type_of(array: Array) -> TensorType:
    """The rlx type that carries an array of any ONNX element type."""
    return TensorType(tuple(array.shape), as_dtype(carrier(array.dtype)))
