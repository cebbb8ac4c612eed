"""Draft: an ONNX graph while it is written: names, nodes, constants."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from onnx import NodeProto, TensorProto, helper

from rlx.dtypes import DType, as_dtype, bool_, f32, i32, i64
from rlx.ir import TensorType

Array = npt.NDArray[Any]
CODES: dict[str, int] = {
    "f64": TensorProto.DOUBLE, "f32": TensorProto.FLOAT, "f16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16,
    "i64": TensorProto.INT64, "i32": TensorProto.INT32, "i8": TensorProto.INT8, "u8": TensorProto.UINT8,
    "bool": TensorProto.BOOL, "u32": TensorProto.UINT32, "u64": TensorProto.UINT64,
    "i16": TensorProto.INT16, "u16": TensorProto.UINT16,
}  # fmt: skip


class Value(NamedTuple):
    """A named tensor of the graph."""

    name: str
    dtype: DType


class Draft:
    """The nodes written so far, in order, and the constants that they read; `label` names the rlx node being
    written."""

    def __init__(self, opset: int, reserved: Iterable[str]) -> None:
        self.opset = opset
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, Array] = {}
        self.label = ""
        self._names = set(reserved)
        self._numbers: dict[str, int] = {}
        self._held: dict[tuple[Any, ...], Value] = {}
        self._casts: dict[tuple[str, str], Value] = {}

    def inner(self) -> Draft:
        """A draft for a graph inside a node: it may read every name of this one, and stores its constants here."""
        draft = Draft(self.opset, ())
        draft.constants, draft.label, draft._names = self.constants, self.label, self._names
        draft._numbers, draft._held = self._numbers, self._held
        return draft

    def name(self, hint: str) -> str:
        """A name that is not used yet."""
        name = hint
        while name in self._names:
            self._numbers[hint] = self._numbers.get(hint, 0) + 1
            name = f"{hint}_{self._numbers[hint]}"
        self._names.add(name)
        return name

    def op(self, kind: str, *inputs: Value | None, dtype: DType | None = None, **attributes: Any) -> Value:
        """Writes a node of one output, by default of the first input's dtype."""
        first = next(v for v in inputs if v is not None) if dtype is None else None
        result_dtype = dtype if dtype is not None else first.dtype if first is not None else f32
        return self.ops(kind, inputs, (result_dtype,), **attributes)[0]

    def ops(
        self, kind: str, inputs: Sequence[Value | None], dtypes: Sequence[DType], **attributes: Any
    ) -> list[Value]:
        """Writes a node; None stands for an input that is left out."""
        results = [Value(self.name(self.label or kind), d) for d in dtypes]
        names = ["" if v is None else v.name for v in inputs]
        self.nodes.append(
            helper.make_node(kind, names, [v.name for v in results], f"{results[0].name}.{kind}", **attributes)
        )
        return results

    def const(self, value: npt.ArrayLike, dtype: DType | None = None) -> Value:
        """A constant; equal ones are kept once."""
        array = np.asarray(value, None if dtype is None else dtype.np)
        kind = dtype if dtype is not None else as_dtype(array.dtype)
        key = (kind.name, array.shape, array.tobytes())
        if key not in self._held:
            name = self.name("constant")
            self.constants[name] = array
            self._held[key] = Value(name, kind)
        return self._held[key]

    def ints(self, values: Iterable[int]) -> Value:
        """A vector of i64: shapes, axes, starts."""
        return self.const(np.asarray(list(values), np.int64))

    def cast(self, v: Value, dtype: DType) -> Value:
        """The value converted by ONNX's own rules: only for conversions whose results are the same in rlx."""
        if v.dtype == dtype:
            return v
        key = (v.name, dtype.name)
        if key not in self._casts:
            self._casts[key] = self.op("Cast", v, dtype=dtype, to=CODES[dtype.name])
        return self._casts[key]

    def wide(self, v: Value) -> Value:
        """The value in the dtype of computation: f16 and bf16 as f32; u8, i8 and bool as i32."""
        if v.dtype.is_half:
            return self.cast(v, f32)
        return self.cast(v, i32) if not v.dtype.is_float and v.dtype not in (i32, i64) else v

    def narrow(self, v: Value, dtype: DType) -> Value:
        """A value that was computed in a wider dtype, as `dtype`: floats are rounded, integers keep their low bits."""
        return self.cast(v, dtype)

    def reshape(self, v: Value, shape: Sequence[int]) -> Value:
        return self.op("Reshape", v, self.ints(shape), allowzero=1)

    def transpose(self, v: Value, perm: Sequence[int]) -> Value:
        return v if list(perm) == list(range(len(perm))) else self.op("Transpose", v, perm=list(perm))

    def where(self, condition: Value, a: Value, b: Value) -> Value:
        """a where the condition holds, else b. Bools are selected by logic: ONNX Runtime has no Where for them."""
        if a.dtype != bool_:
            return self.op("Where", condition, a, b, dtype=a.dtype)
        return self.op("Or", self.op("And", condition, a), self.op("And", self.op("Not", condition), b))

    def compare(self, kind: str, a: Value, b: Value) -> Value:
        return self.op(kind, a, b, dtype=bool_)

    def like(self, number: float, v: Value) -> Value:
        """A scalar constant in the dtype of a value."""
        return self.const(number, v.dtype)

    def finish(self, results: dict[str, Value]) -> None:
        """Gives results their names: the result of a node is renamed; an input, or a value named already, is copied."""
        produced = {o for n in self.nodes for o in n.output}
        renamed: dict[str, str] = {}
        for name, v in results.items():
            if v.name in produced and v.name not in renamed:
                renamed[v.name] = name
            else:
                self.nodes.append(helper.make_node("Identity", [v.name], [name], f"{name}.Identity"))
        _rename(self.nodes, renamed)


def _rename(nodes: Iterable[NodeProto], renamed: dict[str, str]) -> None:
    for node in nodes:
        node.input[:] = [renamed.get(n, n) for n in node.input]
        node.output[:] = [renamed.get(n, n) for n in node.output]
        for attribute in node.attribute:
            _rename(attribute.g.node, renamed)


def info(name: str, t: TensorType) -> Any:
    """The ValueInfoProto of an input or output."""
    return helper.make_tensor_value_info(name, CODES[t.dtype.name], t.shape)
