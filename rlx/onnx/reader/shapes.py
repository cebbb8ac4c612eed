"""The input shapes that onnx's operator specifications require, and the check of a node's inputs against them.

Builders check what depends on attributes; these are the rules for the inputs alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rlx.errors import ModelFormatError
from rlx.onnx.reader.call import AnyValue, Value
from rlx.onnx.reader.lenient import departs
from rlx.records import Record

Shape = tuple[int, ...]
_LOSS = "{0}=N C *D; {1}=N *D; {2}=C"
_WEIGHT = "w=M *K; w_scale= | M; w_zero_point= | M; x_scale=; x_zero_point=; y_scale=; y_zero_point=; B=M"

# Each operator's inputs by name. A dimension is a number, a name, which has one length in all inputs, a difference such
# as K-1, or `*D`, any number of dimensions; an empty shape is a scalar. `|` separates alternatives; those after `~` are
# not in the specification but accepted by ONNX Runtime. `=x` is the shape of input x. Of several lines the first one
# whose first input fits applies.
SHAPES: dict[str, str | tuple[str | tuple[str, ...], ...]] = {
    "AffineGrid": "size=S",
    "Attention": (
        (
            "Q=B H L E; K=B G T E; V=B G T W; past_key=B G P E; past_value=B G P W; nonpad_kv_seqlen=B",
            "Q=B L E; K=B T F; V=B T W; past_key=B G P C; past_value=B G P U; nonpad_kv_seqlen=B",
        ),
    ),
    "BlackmanWindow": "size=",
    "CausalConvWithState": "input=B C L; weight=C 1 K; bias=C; past_state=B C K-1",
    "CenterCropPad": "shape=S",
    "Clip": "min=; max=",
    "Col2Im": "input=N C L; image_shape=S; block_shape=S",
    "Compress": "condition=N ~ *",
    "ConstantOfShape": "input=S",
    "ConvInteger": _WEIGHT,
    "CumProd": "axis=",
    "CumSum": "axis=",
    "DFT": "dft_length= ~ 1 1; axis= ~ 1 1",
    "DeformConv": "W=M *K; B=M",
    "DequantizeLinear": "x_zero_point==x_scale",
    "Dropout": "ratio=; training_mode=",
    "Expand": "shape=S",
    "FlexAttention": "Q=B H L E; K=B G T E; V=B G T W",
    "GroupNormalization": "scale=S; bias=S",
    "HammingWindow": "size=",
    "HannWindow": "size=",
    "InstanceNormalization": "input=N C *D; scale=C; B=C",
    "LRN": "X=N C D *R ~ N C",
    "LinearAttention": "query=B T Q; key=B T K; value=B T V; past_state=B H D E; decay=B T G; beta=B T J",
    "MatMulInteger": (
        (
            "A=M K; a_zero_point= | M | M 1",
            "A=*P M K; a_zero_point= | *P M 1",
            "A=K; a_zero_point=",
        ),
        (
            "B=K N; b_zero_point= | N | 1 N",
            "B=*P K N; b_zero_point= | *P 1 N",
            "B=K; b_zero_point=",
        ),
    ),
    "MaxUnpool": "X=*X; I=*X; output_shape=S",
    "MelWeightMatrix": "num_mel_bins=; dft_length=; sample_rate=; lower_edge_hertz=; upper_edge_hertz=",
    "NegativeLogLikelihoodLoss": _LOSS.format("input", "target", "weight"),
    "NonMaxSuppression": "max_output_boxes_per_class= ~ 1 1; iou_threshold= ~ 1 1; score_threshold= ~ 1 1",
    "OneHot": "depth= | 1; values=2",
    "Pad": "pads=P ~ 1 P; constant_value=; axes=A",
    "QLinearConv": _WEIGHT,
    "QLinearMatMul": (
        (
            "a=M K; a_scale= | M | M 1; a_zero_point==a_scale",
            "a=*P M K; a_scale= | *P M 1; a_zero_point==a_scale",
            "a=K; a_scale=; a_zero_point=",
        ),
        (
            "b=K N; b_scale= | N | 1 N; b_zero_point==b_scale",
            "b=*P K N; b_scale= | *P 1 N; b_zero_point==b_scale",
            "b=K; b_scale=; b_zero_point=",
        ),
        "y_zero_point==y_scale",
    ),
    "QuantizeLinear": "y_zero_point==y_scale",
    "Range": "start=; limit=; delta=",
    "Reshape": "shape=S",
    "Resize": "roi=R ~ *; scales=S ~ *; sizes=S",
    "RoiAlign": "X=N C H W; rois=R 4; batch_indices=R",
    "RotaryEmbedding": (
        (
            "X=B H S E; sin_cache==cos_cache; position_ids=B S",
            "X=B S E; sin_cache==cos_cache; position_ids=B S",
        ),
    ),
    "STFT": "frame_step= ~ 1 1; window=W; frame_length= ~ 1 1",
    "Scatter": "indices=*I; updates=*I",
    "ScatterElements": "indices=*I; updates=*I",
    "SequenceAt": "position=",
    "SequenceErase": "position=",
    "SequenceInsert": "position= ~ 1 1",
    "Slice": "starts=S; ends=S; axes=S; steps=S",
    "SoftmaxCrossEntropyLoss": _LOSS.format("scores", "labels", "weights"),
    "Split": "split=S",
    "SplitToSequence": "split= | S ~ *",
    "Squeeze": "axes=A",
    "TensorScatter": "write_indices=B",
    "TfIdfVectorizer": "X=C | N C",
    "Tile": "repeats=R",
    "TopK": "K=1",
    "Trilu": "k=",
    "Unsqueeze": "axes=A",
    "Upsample": "scales=S ~ *",
    **{
        f"Reduce{name}": "axes=A"
        for name in "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare".split()
    },
    **dict.fromkeys(("Adagrad", "Adam", "Momentum"), "T="),
}


class Rule(Record):
    """The allowed shapes of one input: the specification's alternatives, further ones of ONNX Runtime, or another
    input's shape."""

    name: str
    text: str
    allowed: tuple[tuple[str, ...], ...]
    beside: tuple[tuple[str, ...], ...]
    like: str


def _rule(part: str) -> Rule:
    name, _, said = part.strip().partition("=")
    if said.startswith("="):
        return Rule(name, "", (), (), said[1:])
    text, _, more = said.partition("~")
    beside = tuple(tuple(a.split()) for a in more.split("|")) if more else ()
    return Rule(name, text.strip(), tuple(tuple(a.split()) for a in text.split("|")), beside, "")


def _parsed(said: str | tuple[str | tuple[str, ...], ...]) -> list[list[list[Rule]]]:
    groups = (said,) if isinstance(said, str) else said
    lines = [(group,) if isinstance(group, str) else group for group in groups]
    return [[[_rule(part) for part in line.split(";")] for line in group] for group in lines]


_RULES = {kind: _parsed(said) for kind, said in SHAPES.items()}


def check_shapes(schema: Any, inputs: Sequence[AnyValue | None], where: str, strict: bool) -> None:
    """Checks the shapes of a node's inputs against its operator's specification. A scalar and a vector of one element
    are interchangeable unless `strict`; shapes that only ONNX Runtime accepts give a warning.

    Raises: ModelFormatError."""
    groups = _RULES.get(schema.name)
    if groups is None or schema.domain not in ("", "ai.onnx.preview", "ai.onnx.preview.training"):
        return
    shapes = {
        formal.name: (i, value.tensor.shape)
        for i, (formal, value) in enumerate(zip(schema.inputs, inputs, strict=False))
        if isinstance(value, Value)
    }
    for lines in groups:
        rules = lines[0]
        if len(lines) > 1:
            first = shapes.get(rules[0].name)
            rules = next((r for r in lines if first is None or _fits(r[0].allowed, first[1], {})), rules)
        bound: dict[str, int | Shape] = {}
        for rule in rules:
            if rule.name in shapes:
                _check(rule, *shapes[rule.name], shapes, bound, where, strict)


def _check(
    rule: Rule, i: int, shape: Shape, shapes: Mapping[str, tuple[int, Shape]], bound: dict[str, int | Shape],
    where: str, strict: bool,
) -> None:  # fmt: skip
    if rule.like:
        if rule.like not in shapes:
            return
        wanted = shapes[rule.like][1]
        said, good = f"the shape of {rule.like}, {wanted}", shape == wanted
        one = {shape, wanted} == {(), (1,)}
    else:
        said, good = _said(rule, bound), _fits(rule.allowed, shape, bound)
        other = {(): (1,), (1,): ()}.get(shape)
        one = other is not None and _fits(rule.allowed, other, bound)
    if good or (one and not strict):
        return
    message = f"{where}: input {i} ({rule.name}) is {shape}; expected {said}, as the operator's text says"
    if _fits(rule.beside, shape, bound):
        departs(message, "takes its elements in order", strict)
    else:
        raise ModelFormatError(message)


def _said(rule: Rule, bound: Mapping[str, int | Shape]) -> str:
    """The alternatives in words, with the lengths that other inputs have fixed."""
    forms = ["a scalar" if not dims else f"({', '.join(dims)}{',' * (len(dims) == 1)})" for dims in rule.allowed]
    known = {n: bound[n] for dims in rule.allowed for n in map(_name, dims) if n in bound}
    lengths = ", ".join(f"{n} = {v}" for n, v in known.items())
    return " or ".join(forms) + (f" with {lengths}" if lengths else "")


def _name(token: str) -> str:
    return re.split("-", token)[0]


def _fits(alternatives: Iterable[tuple[str, ...]], shape: Shape, bound: dict[str, int | Shape]) -> bool:
    """Whether a shape is one of the alternatives, whose names it then binds."""
    for dims in alternatives:
        match = _matched(dims, shape, bound)
        if match is not None:
            bound.update(match)
            return True
    return False


def _matched(
    dims: tuple[str, ...], shape: Shape, bound: Mapping[str, int | Shape]
) -> dict[str, int | Shape] | None:
    """The lengths of the names that are not bound, or None where the shape is another."""
    result: dict[str, int | Shape] = dict(bound)
    star = next((k for k, token in enumerate(dims) if token.startswith("*")), None)
    if star is None:
        pairs = list(zip(dims, shape, strict=False))
        if len(dims) != len(shape):
            return None
    else:
        behind = len(dims) - star - 1
        if len(shape) < star + behind:
            return None
        end = len(shape) - behind
        token, middle = dims[star], tuple(shape[star:end])
        if token != "*" and result.setdefault(token, middle) != middle:
            return None
        pairs = [*zip(dims[:star], shape, strict=False), *zip(dims[star + 1 :], shape[end:], strict=True)]
    for token, n in pairs:
        name, _, less = token.partition("-")
        length = n + int(less or 0)
        if (int(name) if name.isdigit() else result.setdefault(name, length)) != length:
            return None
    return result
