"""Nodes of every operator that takes or gives integers, with the ends of each type's range among their numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, defs, helper, numpy_helper

from rlx.onnx.reader.elements import CODES, integer_range

WIDE = [np.dtype(f"{s}int{n}") for n in (8, 16, 32, 64) for s in ("", "u")]
NARROW = [np.dtype(getattr(ml_dtypes, n)) for n in ("int4", "uint4", "int2", "uint2")]
SMALL = {"x": (2, 6)}  # the shape in which most operators read the ends
Array = np.ndarray


@dataclass(frozen=True)
class Case:
    """One node: `feeds` are its inputs, of which those in `fixed` are constants of the model."""

    kind: str
    dtype: np.dtype
    what: str
    feeds: dict[str, Array | None]
    attributes: dict[str, Any]
    fixed: tuple[str, ...] = ()
    outputs: int = 1
    opset: int = 28
    crashes: bool = (
        False  # whether ONNX Runtime's process may end by a trap of the processor, as on least / -1
    )
    after: str = ""  # an operator through which the result goes, for results that are no tensors

    @property
    def name(self) -> str:
        return f"{self.kind} {self.dtype} {self.what}".strip()

    def proto(self, constants: bool = False) -> onnx.ModelProto:
        """The model; with `constants` nothing is fed, so that everything is computed while building."""
        there = {n: a for n, a in self.feeds.items() if a is not None}
        outs = [f"y{i}" for i in range(self.outputs)]
        names = [n if n in there else "" for n in self.feeds]
        nodes = [helper.make_node(self.kind, names, outs, **self.attributes)]
        if self.after:
            nodes = [
                helper.make_node(self.kind, names, ["s"], **self.attributes),
                helper.make_node(self.after, ["s"], outs, **({"axis": 0} if "Concat" in self.after else {})),
            ]
        held = [n for n in there if constants or n in self.fixed]
        infos = [
            helper.make_tensor_value_info(n, CODES[a.dtype], list(a.shape))
            for n, a in there.items() if n not in held
        ]  # fmt: skip
        graph = helper.make_graph(
            nodes, "g", infos, [onnx.ValueInfoProto(name=o) for o in outs],
            [numpy_helper.from_array(there[n], n) for n in held],
        )  # fmt: skip
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=10)

    def fed(self) -> dict[str, Array]:
        return {n: a for n, a in self.feeds.items() if a is not None and n not in self.fixed}


def ends(dtype: np.dtype, count: int = 12) -> Array:
    """The ends of the range and of its halves, what f32 and f64 cannot hold, and small numbers: 12, or the first."""
    low, high = integer_range(dtype) or (0, 0)
    exact = {8: 100, 16: 257, 32: (1 << 24) + 1, 64: (1 << 53) + 1}.get(8 * dtype.itemsize, 2)
    exact = exact if high >= exact else 1
    half = high // 2 + 1
    found = [
        high,
        low,
        1,
        exact,
        half,
        low + 1,
        high - 1,
        0,
        3 if high > 3 else 1,
        half - 1,
        -1 if low else 2,
        7 if high > 7 else 1,
    ]
    return np.array(found[:count], np.int64 if low else np.uint64).astype(dtype)


def _capped(values: list[int], d: np.dtype) -> Array:
    """Numbers that may be beyond the type, of which each becomes its greatest."""
    return np.array([min(v, (integer_range(d) or (0, 0))[1]) for v in values], np.uint64).astype(d)


def takes(kind: str, formal: int = 0, opset: int = 28) -> list[np.dtype]:
    """The integer types that an input of the operator may have."""
    schema = defs.get_schema(kind, opset, "")
    name = schema.inputs[formal].type_str
    allowed = next((c.allowed_type_strs for c in schema.type_constraints if c.type_param_str == name), [name])
    return [d for d in (*WIDE, *NARROW) if f"tensor({d})" in allowed]


def gives(kind: str, formal: int = 0) -> list[np.dtype]:
    schema = defs.get_schema(kind, 28, "")
    name = schema.outputs[formal].type_str
    allowed = next((c.allowed_type_strs for c in schema.type_constraints if c.type_param_str == name), [name])
    return [d for d in (*WIDE, *NARROW) if f"tensor({d})" in allowed]


Cases = Iterator[Case]
_i64 = np.int64


def _pairs(dtype: np.dtype) -> tuple[Array, Array]:
    """Every pair of the ends."""
    e = ends(dtype)
    return np.repeat(e, len(e)), np.tile(e, len(e))


def unary() -> Cases:
    for kind in ("Abs", "Neg", "Sign", "BitwiseNot", "Relu", "Identity", "NonZero", "Size", "Shape"):
        for d in takes(kind):
            yield Case(kind, d, "", {"x": ends(d)}, {})
    for d in takes("Shrink"):
        for lambd, bias in ((0.5, 0.0), (1.0, 1.0), (2.5, 1.5), (0.0, -2.0)):
            yield Case(
                "Shrink", d, f"lambd {lambd} bias {bias}", {"x": ends(d)}, {"lambd": lambd, "bias": bias}
            )
    for d in takes("Clip"):
        e = ends(d)
        for low, high in product((None, e[1], e[4], e[8]), (None, e[0], e[3], e[6])):
            yield Case(
                "Clip",
                d,
                f"{low} {high}",
                {"x": e, "low": _scalar(low, d), "high": _scalar(high, d)},
                {},
                opset=13,
            )


def _scalar(v: Any, d: np.dtype) -> Array | None:
    return None if v is None else np.asarray(v, d)


def binary() -> Cases:
    for kind in (
        "Add", "Sub", "Mul", "Max", "Min", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Equal", "Less", "LessOrEqual",
        "Greater", "GreaterOrEqual",
    ):  # fmt: skip
        for d in takes(kind):
            a, b = _pairs(d)
            yield Case(kind, d, "", {"a": a, "b": b}, {})
    for kind, options in (("Div", [{}]), ("Mod", [{}, {"fmod": 1}])):
        for d in takes(kind):
            a, b = _pairs(d)
            some = b != 0
            low = integer_range(d)[0]  # type: ignore[index]
            trap = (a.astype(object) == low) & (b.astype(object) == -1) & some
            for attributes in options:
                what = f"fmod {attributes.get('fmod', 0)}" if kind == "Mod" else ""
                yield Case(kind, d, what, {"a": a[some & ~trap], "b": b[some & ~trap]}, attributes)
                if trap.any():
                    yield Case(
                        kind,
                        d,
                        f"{what} least by -1".strip(),
                        {"a": a[trap], "b": b[trap]},
                        attributes,
                        crashes=True,
                    )
    for d, by in product(takes("Pow"), [*takes("Pow", 1), np.dtype("float32"), np.dtype("float64")]):
        bases = ends(d)
        exponents = np.array([0, 1, 2, 3, 5], by)
        if by.kind == "f":
            exponents = np.array([0, 1, 2, 3], by)
        a, b = np.repeat(bases, len(exponents)), np.tile(exponents, len(bases))
        fits = np.array([_fits(int(x) ** int(y), d) for x, y in zip(a, b, strict=True)])
        yield Case("Pow", d, f"by {by} in range", {"a": a[fits], "b": b[fits]}, {})
        if by.kind != "f":
            yield Case("Pow", d, f"by {by} beyond", {"a": a[~fits], "b": b[~fits]}, {})
    for by in takes("Pow", 1):
        yield Case(
            "Pow",
            by,
            "float base",
            {"a": np.array([2, 0.5, -1, 1], np.float32), "b": ends(by, 4)[[0, 2, 3, 0]]},
            {},
        )
        yield Case(
            "Pow", by, "double base", {"a": np.array([2, 0.5, -1, 1]), "b": ends(by, 4)[[0, 2, 3, 0]]}, {}
        )
    for d in takes("PRelu"):
        a, b = _pairs(d)
        yield Case("PRelu", d, "", {"a": a, "b": b}, {})
    for d in takes("BitShift"):
        bits = 8 * d.itemsize
        places = np.array([0, 1, bits // 2, bits - 1], d)
        beyond = _capped([bits, bits + 1, 2 * bits, 1 << 64], d)
        e = ends(d)
        sets = [("in range", places), ("beyond", beyond)]
        if integer_range(d)[0]:  # type: ignore[index]
            sets.append(("negative", np.array([-1, -bits, integer_range(d)[0]]).astype(d)))  # type: ignore[index]
        for direction, (what, by) in product(("LEFT", "RIGHT"), sets):
            a, b = np.repeat(e, len(by)), np.tile(by, len(e))
            yield Case("BitShift", d, f"{direction} {what}", {"a": a, "b": b}, {"direction": direction})


def _fits(v: int, d: np.dtype) -> bool:
    low, high = integer_range(d) or (0, 0)
    return low <= v <= high


def reductions() -> Cases:
    for kind in (
        "ReduceSum", "ReduceMean", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum",
        "ReduceLogSumExp", "ReduceMax", "ReduceMin",
    ):  # fmt: skip
        versions = [28, 17] if kind not in ("ReduceSum",) else [28, 12]
        for opset in versions:
            for d in takes(kind, 0, opset):
                e = ends(d)
                _, high = integer_range(d) or (0, 0)
                sets = {
                    "small": np.array([[1, 2], [3, 3], [2, 5]]).astype(d),
                    "the same twice": np.stack([e[3], e[3]]).reshape(1, 2)
                    if high > 127
                    else e[:1].reshape(1, 1),
                    "one each": e.reshape(12, 1),
                    "two each": e.reshape(6, 2),
                    "six each": e.reshape(2, 6),
                }
                for what, x in sets.items():
                    new = opset == 28
                    feeds: dict[str, Array | None] = {"x": x}
                    if new:
                        feeds["axes"] = np.array([1])
                    yield Case(kind, d, what + ("" if new else f" opset {opset}"), feeds, {} if new else {"axes": [1]},
                               ("axes",) if new else (), opset=opset)  # fmt: skip
    for kind in ("ArgMax", "ArgMin"):
        for d, last in product(takes(kind), (0, 1)):
            yield Case(
                kind, d, f"last {last}", {"x": ends(d).reshape(2, 6)}, {"axis": 1, "select_last_index": last}
            )
    for d, largest in product(takes("TopK"), (0, 1)):
        yield Case(
            "TopK",
            d,
            f"largest {largest}",
            {"x": ends(d), "k": np.array([5])},
            {"largest": largest},
            ("k",),
            2,
            24,
        )
    for kind in ("CumSum", "CumProd"):
        for d, exclusive, back in product(takes(kind), (0, 1), (0, 1)):
            yield Case(kind, d, f"exclusive {exclusive} reverse {back}", {"x": ends(d), "axis": np.array(0)},
                       {"exclusive": exclusive, "reverse": back}, ("axis",))  # fmt: skip


def products() -> Cases:
    for kind in ("MatMul", "Gemm"):
        for d in takes(kind):
            a, b = ends(d).reshape(3, 4), ends(d).reshape(4, 3)
            yield Case(kind, d, "", {"a": a, "b": b}, {})
    for d in takes("Gemm"):
        a, b = ends(d).reshape(3, 4), ends(d).reshape(4, 3)
        yield Case("Gemm", d, "bias", {"a": a, "b": b, "c": ends(d, 3)}, {})
        for alpha, beta in ((2.0, 3.0), (0.5, 0.5), (1.0, 0.0), (-1.0, 1.0)):
            small = np.array([[1, 2], [3, 5]]).astype(d)
            yield Case("Gemm", d, f"alpha {alpha} beta {beta}", {"a": small, "b": small, "c": small},
                       {"alpha": alpha, "beta": beta})  # fmt: skip
        yield Case("Gemm", d, "alpha 2 ends", {"a": a, "b": b, "c": ends(d, 3)}, {"alpha": 2.0, "beta": 1.0})
    for d in takes("Einsum"):
        a, b = ends(d).reshape(3, 4), ends(d).reshape(4, 3)
        for equation in ("ij,jk->ik", "ij,jk->", "ij,jk->ijk"):
            yield Case("Einsum", d, equation, {"a": a, "b": b}, {"equation": equation})
        yield Case("Einsum", d, "one operand", {"a": a}, {"equation": "ij->i"})
    for a, b in product(takes("MatMulInteger"), takes("MatMulInteger", 1)):
        yield Case("MatMulInteger", a, f"by {b}", {"a": ends(a).reshape(3, 4), "b": ends(b).reshape(4, 3),
                   "az": ends(a, 2)[1], "bz": ends(b, 1)[0]}, {})  # fmt: skip
        image = np.resize(ends(a), (1, 2, 3, 3))
        kernel = np.resize(ends(b), (2, 2, 2, 2))
        yield Case(
            "ConvInteger",
            a,
            f"by {b}",
            {"x": image, "w": kernel, "xz": ends(a, 1)[0], "wz": ends(b, 2)[1]},
            {},
        )
        scale = np.float32(0.25)
        yield Case("QLinearMatMul", a, f"by {b}", {
            "a": ends(a).reshape(3, 4), "as": scale, "az": ends(a, 2)[1], "b": ends(b).reshape(4, 3), "bs": scale,
            "bz": ends(b, 1)[0], "ys": np.float32(64), "yz": np.array(5, a)}, {})  # fmt: skip
        yield Case("QLinearConv", a, f"by {b}", {
            "x": image, "xs": scale, "xz": ends(a, 1)[0], "w": kernel, "ws": scale, "wz": np.array(0, b),
            "ys": np.float32(64), "yz": np.array(5, a)}, {})  # fmt: skip


def movement() -> Cases:
    def every(kind: str) -> Iterator[tuple[np.dtype, Array]]:
        for d in takes(kind):
            yield d, ends(d)

    for kind, feeds, attributes, outputs in (
        ("Reshape", {"shape": np.array([2, 6])}, {}, 1),
        ("Flatten", {}, {"axis": 0}, 1),
        ("Squeeze", {}, {}, 1),
        ("Unsqueeze", {"axes": np.array([0])}, {}, 1),
        ("Tile", {"repeats": np.array([2])}, {}, 1),
        ("Expand", {"shape": np.array([2, 12])}, {}, 1),
        (
            "Slice",
            {
                "starts": np.array([-1]),
                "ends": np.array([-99]),
                "axes": np.array([0]),
                "steps": np.array([-5]),
            },
            {},
            1,
        ),
        ("Split", {"split": np.array([5, 7])}, {}, 2),
        ("Compress", {"keep": np.arange(12) % 3 == 0}, {}, 1),
        ("Unique", {}, {}, 4),
        ("Gather", {"indices": np.array([0, -12, 11])}, {}, 1),
        ("GatherElements", {"indices": np.array([0, -12, 11])}, {}, 1),
        ("GatherND", {"indices": np.array([[0], [-12]])}, {}, 1),
    ):
        for d, e in every(kind):
            yield Case(kind, d, "", {"x": e, **feeds}, attributes, tuple(feeds), outputs)
    for d, e in every("Transpose"):
        yield Case("Transpose", d, "", {"x": e.reshape(2, 6)}, {})
    for d, e in every("Trilu"):
        yield Case("Trilu", d, "", {"x": e.reshape(2, 6)}, {"upper": 0})
    for d, e in every("Concat"):
        yield Case("Concat", d, "", {"x": e, "y": e}, {"axis": 0})
    for kind in ("DepthToSpace", "SpaceToDepth"):
        for d, e in every(kind):
            shape = (1, 4, 1, 3) if kind == "DepthToSpace" else (1, 1, 2, 6)
            yield Case(kind, d, "", {"x": e.reshape(shape)}, {"blocksize": 2})
    for d, e in every("ReverseSequence"):
        yield Case("ReverseSequence", d, "", {"x": e.reshape(6, 2), "n": np.array([6, 2])}, {})
    for d, e in every("Pad"):
        for mode in ("constant", "edge", "reflect", "wrap"):
            fill = e[0] if mode == "constant" else None
            yield Case("Pad", d, mode, {"x": e, "pads": np.array([2, 3]), "value": fill},
                       {"mode": mode}, ("pads",))  # fmt: skip
    for d, e in every("CenterCropPad"):
        yield Case("CenterCropPad", d, "", {"x": e, "shape": np.array([15])}, {}, ("shape",))
    for d in takes("Where", 1):
        e = ends(d)
        yield Case("Where", d, "", {"c": np.arange(12) % 2 == 0, "x": e, "y": e[::-1].copy()}, {})
    for kind in ("ScatterElements", "ScatterND"):
        for (d, e), reduction in product(every(kind), ("none", "add", "mul", "max", "min")):
            places = np.array([0, 1, 2, 1, 11, 0])
            places = places if kind == "ScatterElements" else places[:, None]
            yield Case(
                kind,
                d,
                reduction,
                {"x": e, "i": places, "u": e[[6, 0, 1, 2, 3, 4]]},
                {"reduction": reduction},
                opset=18,
            )
    for d in takes("Scatter", opset=9):
        yield Case("Scatter", d, "", {"x": ends(d), "i": np.array([0, 3]), "u": ends(d, 2)}, {}, opset=9)
    for d, kind in product(takes("Gather", 1), ("Gather", "GatherElements")):
        yield Case(kind, d, "indices", {"x": np.arange(5.0), "i": np.array([0, 4, -1, -5], d)}, {})
    for d in takes("OneHot"):
        e = ends(d)
        for axis in (-1, 0):
            yield Case(
                "OneHot",
                d,
                f"indices axis {axis}",
                {"i": e, "depth": np.array(4), "v": np.float32([2, 3])},
                {"axis": axis},
                ("depth",),
            )
    for d in takes("OneHot", 1):
        yield Case("OneHot", d, "depth", {"i": np.array([0, 1, -1, 5]),
                   "depth": np.array([1 if integer_range(d)[1] < 3 else 3], d),  # type: ignore[index]
                   "v": np.float32([2, 3])}, {}, ("depth",))  # fmt: skip
    for d in takes("OneHot", 2):
        yield Case(
            "OneHot",
            d,
            "values",
            {"i": np.array([0, 1, -1, 5]), "depth": np.array(3), "v": ends(d, 2)},
            {},
            ("depth",),
        )
    for d in takes("EyeLike"):
        yield Case("EyeLike", d, "", {"x": ends(d).reshape(3, 4)}, {"k": 1})
        yield Case("EyeLike", d, "dtype", {"x": np.zeros((3, 4), np.float32)}, {"k": 1, "dtype": CODES[d]})
    for d in takes("ConstantOfShape") and gives("ConstantOfShape"):
        yield Case(
            "ConstantOfShape",
            d,
            "",
            {"n": np.array([3])},
            {"value": numpy_helper.from_array(ends(d, 1))},
            ("n",),
        )
    for d in gives("Constant"):
        yield Case("Constant", d, "", {}, {"value": numpy_helper.from_array(ends(d))})
    for d in takes("Range"):
        low, high = integer_range(d) or (0, 0)
        for start, limit, step in (
            (low, low + 9, 4),
            (high - 9, high, 4),
            (high, high - 9, -4),
            (low, high, high // 3 + 1),
        ):
            yield Case("Range", d, f"{start} {limit} {step}", {"a": np.array(start, d), "b": np.array(limit, d),
                       "c": np.array(step, d)}, {}, ("a", "b", "c"))  # fmt: skip
    for d in takes("Tile", 1):
        yield Case("Tile", d, "repeats", {"x": np.arange(3.0), "n": np.array([2], d)}, {}, ("n",))


def images() -> Cases:
    for d in takes("Resize"):
        x = ends(d).reshape(1, 1, 3, 4)
        for mode in ("nearest", "linear", "cubic"):
            yield Case(
                "Resize",
                d,
                mode,
                {"x": x, "roi": None, "s": np.float32([1, 1, 2, 2])},
                {"mode": mode},
                ("s",),
            )
        yield (
            Case(
                "Resize",
                d,
                "linear of small",
                {"x": (x & np.array(63, d)), "roi": None, "s": np.float32([1, 1, 2, 2])},
                {"mode": "linear"},
                ("s",),
            )
            if d.itemsize
            else None
        )
        yield Case("Resize", d, "antialias", {"x": x, "roi": None, "s": np.float32([1, 1, 0.5, 0.5])},
                   {"mode": "linear", "antialias": 1}, ("s",))  # fmt: skip
        boxes = {"roi": np.float32([0, 0, 0, 0, 1, 1, 1, 1]), "s": np.float32([1, 1, 2, 2])}
        yield Case("Resize", d, "crop", {"x": x, **boxes},
                   {"mode": "nearest", "coordinate_transformation_mode": "tf_crop_and_resize"},
                   ("roi", "s"))  # fmt: skip
    for d in takes("Upsample", opset=9):
        x = ends(d).reshape(1, 1, 3, 4)
        for mode in ("nearest", "linear"):
            yield Case(
                "Upsample", d, mode, {"x": x, "s": np.float32([1, 1, 2, 2])}, {"mode": mode}, ("s",), opset=9
            )
    for d in takes("GridSample"):
        x = ends(d).reshape(1, 1, 3, 4)
        grid = np.float32([[-1, -1], [1, 1], [0.3, -0.2], [-1.5, 0]]).reshape(1, 2, 2, 2)
        for mode in ("nearest", "linear", "cubic"):
            yield Case("GridSample", d, mode, {"x": x, "grid": grid}, {"mode": mode, "align_corners": 1})
    for d in takes("Col2Im"):
        x = np.resize(ends(d), (1, 4, 4))
        yield Case(
            "Col2Im",
            d,
            "",
            {"x": x, "shape": np.array([3, 3]), "block": np.array([2, 2])},
            {},
            ("shape", "block"),
        )
    for d in takes("MaxPool"):
        x = ends(d).reshape(1, 1, 3, 4)
        for outputs in (1, 2):
            for pads in ([0] * 4, [1] * 4):
                yield Case(
                    "MaxPool",
                    d,
                    f"{outputs} outputs pads {pads[0]}",
                    {"x": x},
                    {"kernel_shape": [2, 2], "pads": pads},
                    (),
                    outputs,
                )
    yield Case("MaxUnpool", np.dtype("int64"), "indices", {"x": np.arange(1, 4, dtype=np.float32).reshape(1, 1, 3),
               "i": np.array([0, 3, 5]).reshape(1, 1, 3)}, {"kernel_shape": [2], "strides": [2]})  # fmt: skip


FLOAT_ENDS = [0.0, -0.0, 0.5, -0.5, 1.5, -1.5, 2.5, 100.7, -100.7, 126.0, 127.0, 200.0, 255.0, 32767.0, 65535.0,
              2.0**24, 2.0**31 - 128, 2.0**31, 2.0**32 - 256, 2.0**53, 2.0**62, 2.0**63, 2.0**63 + 2.0**40,
              1.5 * 2.0**63,
              2.0**64 - 2.0**40, -(2.0**31), -(2.0**63)]  # fmt: skip


def casts() -> Cases:
    floats = [np.dtype(n) for n in ("float16", "float32", "float64")] + [np.dtype(ml_dtypes.bfloat16)]
    for d, to in product((*WIDE, *NARROW), (*WIDE, *NARROW, *floats, np.dtype(bool))):
        if d != to and not (to in floats[-1:] or (to in floats and 8 * d.itemsize > 32 and to.itemsize < 4)):
            yield Case("Cast", d, f"to {to}", {"x": ends(d)}, {"to": CODES[to]}, opset=25)
            yield Case("CastLike", d, f"to {to}", {"x": ends(d), "like": np.zeros(1, to)}, {}, opset=25)
    for d, to in product(floats, (*WIDE, *NARROW)):
        low, high = integer_range(to) or (0, 0)
        with np.errstate(all="ignore"):
            x = np.array(FLOAT_ENDS).astype(d)
        whole = np.trunc(x.astype(np.float64))
        fits = np.array([low <= v <= high for v in map(_whole, whole)])
        yield Case("Cast", to, f"from {d}", {"x": x[fits]}, {"to": CODES[to]}, opset=25)
    for d, to in product(takes("BitCast"), (*takes("BitCast"), *floats)):
        if d.itemsize == to.itemsize and d != to and d not in NARROW and to not in NARROW:
            yield Case("BitCast", d, f"to {to}", {"x": ends(d)}, {"to": CODES[to]})


def _whole(v: float) -> float | int:
    return int(v) if np.isfinite(v) else v


def quantization() -> Cases:
    for d in [t for t in (*WIDE, *NARROW) if t in takes("DequantizeLinear")]:
        scale = np.float32(0.1)
        yield Case(
            "DequantizeLinear",
            d,
            "",
            {"x": ends(d), "s": scale, "z": np.array(1 if d.itemsize < 4 else 0, d)},
            {},
            opset=25,
        )
        if d.itemsize < 4:
            yield Case(
                "DequantizeLinear", d, "ends", {"x": ends(d), "s": scale, "z": ends(d, 2)[1]}, {}, opset=25
            )
        else:
            yield Case("DequantizeLinear", d, "no zero point", {"x": ends(d), "s": scale}, {}, opset=25)
    x = np.float32([0, 0.5, 1.5, -0.5, 1e9, -1e9, 127.5, 32767.5, 3, -9])
    for d in takes("QuantizeLinear", 2):
        yield Case("QuantizeLinear", d, "", {"x": x, "s": np.float32(1), "z": np.array(1, d)}, {}, opset=25)
        yield Case(
            "QuantizeLinear", d, "ends", {"x": x, "s": np.float32(2), "z": ends(d, 2)[1]}, {}, opset=25
        )
    yield Case(
        "QuantizeLinear",
        np.dtype("int32"),
        "of int32",
        {"x": ends(np.dtype("int32")), "s": np.float32(2**25), "z": np.array(0, np.int8)},
        {},
        opset=25,
    )
    yield Case(
        "DynamicQuantizeLinear", np.dtype("uint8"), "", {"x": np.float32([0, 2, -3, 255, 1.5])}, {}, (), 3
    )


def others() -> Cases:
    for kind in ("HannWindow", "HammingWindow", "BlackmanWindow"):
        for d in gives(kind):
            yield Case(kind, d, "gives", {"n": np.array(5)}, {"output_datatype": CODES[d]}, ("n",))
        for d in takes(kind):
            yield Case(kind, d, "takes", {"n": np.array(5, d)}, {}, ("n",))
    for d in gives("MelWeightMatrix"):
        yield Case("MelWeightMatrix", d, "gives", {"a": np.array(4), "b": np.array(16), "c": np.array(8000),
                   "d": np.float32(0),
                   "e": np.float32(4000)}, {"output_datatype": CODES[d]}, ("a", "b", "c", "d", "e"))  # fmt: skip
    for d in takes("SequenceConstruct"):
        yield Case("SequenceConstruct", d, "", {"x": ends(d), "y": ends(d)}, {}, after="ConcatFromSequence")
    for d in takes("SplitToSequence"):
        yield Case(
            "SplitToSequence",
            d,
            "",
            {"x": ends(d), "n": np.array([5, 7])},
            {},
            ("n",),
            after="ConcatFromSequence",
        )
    for d in takes("Optional"):
        if d not in NARROW:
            yield Case("Optional", d, "", {"x": ends(d)}, {}, after="OptionalGetElement")
    for d in takes("TfIdfVectorizer"):
        yield Case("TfIdfVectorizer", d, "", {"x": ends(d)}, {
            "mode": "TF", "min_gram_length": 1, "max_gram_length": 1, "max_skip_count": 0, "ngram_counts": [0],
            "ngram_indexes": [0, 1, 2], "pool_int64s": [int(v) for v in ends(d, 3)]})  # fmt: skip
    for kind, d in product(
        ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"), takes("NegativeLogLikelihoodLoss", 1)
    ):
        yield Case(kind, d, "ignored", {"x": np.log(np.float32([[0.2, 0.8], [0.5, 0.5], [0.1, 0.9]])),
                   "t": np.array([0, 1, int(np.iinfo(d).min)], d)}, {"ignore_index": int(np.iinfo(d).min)})  # fmt: skip
    for d in takes("Attention", 3):
        q = np.linspace(-1, 1, 8, dtype=np.float32).reshape(1, 1, 4, 2)
        mask = np.array([[0, 1, 2, 3]] * 4).astype(d)
        yield Case("Attention", d, "mask", {"q": q, "k": q, "v": q, "m": mask}, {})
    for d in gives("Bernoulli"):
        yield Case("Bernoulli", d, "certain", {"x": np.float32([0, 1, 1, 0])}, {"dtype": CODES[d]})


FAMILIES: list[Callable[[], Cases]] = [
    unary, binary, reductions, products, movement, images, casts, quantization, others,
]  # fmt: skip


def cases() -> Iterator[Case]:
    """Every case; its types are those that the operator's schema allows."""
    for family in FAMILIES:
        yield from (c for c in family() if c is not None)


__all__ = ["Case", "TensorProto", "cases", "ends"]
