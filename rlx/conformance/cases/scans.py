"""Conformance of the recurrences: selective scans, gated delta rules and causal convolutions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from rlx import ops
from rlx.conformance.case import Case, InputSpec
from rlx.conformance.random_rules import Made, rule
from rlx.conformance.record import Conformance
from rlx.conformance.shapes import FLOATS, label
from rlx.conformance.tolerances import NORM
from rlx.dtypes import DType, bf16, f16, f32
from rlx.ir.graph import apply_multi
from rlx.ops.numeric import working

if TYPE_CHECKING:
    from rlx.conformance.random_graphs import Builder

Names = tuple[str, ...]

_ALL = ("D", "z", "state", "bias")
# (batch, length, heads, head size, groups, states, whether A is one number a head). Lengths and channels around the
# tiles of the kernels, states that lanes cannot share evenly, and no elements.
_SCANS = (
    (1, 1, 1, 1, 1, 1, False), (2, 7, 3, 1, 1, 4, False), (1, 33, 5, 1, 1, 16, False), (2, 17, 40, 1, 2, 16, False),
    (1, 16, 129, 1, 1, 16, False), (3, 5, 6, 1, 3, 5, False), (1, 9, 4, 1, 1, 33, False), (1, 6, 2, 1, 1, 256, False),
    (2, 0, 3, 1, 1, 4, False), (0, 4, 3, 1, 1, 4, False), (2, 3, 0, 1, 1, 4, False), (1, 70, 8, 1, 1, 8, False),
    (1, 1, 1, 1, 1, 1, True), (2, 19, 2, 4, 1, 16, True), (1, 10, 4, 8, 2, 64, True), (1, 5, 3, 5, 3, 7, True),
    (2, 4, 1, 33, 1, 128, True), (1, 0, 2, 3, 1, 4, True), (1, 3, 2, 8, 1, 256, True),
)  # fmt: skip


def _scan_case(
    size: tuple[int, int, int, int, int, int, bool],
    dtype: DType = f32,
    operands: Names = (),
    softplus: bool = False,
    domain: str = "normal",
    decay: str = "unit",
) -> Case:
    """A with values of either sign up to 1, and positive steps, so that states neither vanish nor explode in a few
    steps; the domain is that of x."""
    batch, length, heads, width, groups, states, scalar = size
    inner = working(dtype)
    per = (width,) if scalar else ()
    x, rows = (batch, length, heads, *per), (batch, length, groups, states)
    of_more = {
        "D": InputSpec((heads, *per), inner),
        "z": InputSpec(x, dtype),
        "state": InputSpec((batch, heads, *per, states), inner),
        "bias": InputSpec((heads,), inner, "unit"),
    }
    inputs = (
        InputSpec(x, dtype, domain),
        InputSpec(x[:3], dtype, "normal" if softplus else "small"),
        InputSpec((heads,) if scalar else (heads, states), inner, decay),
        InputSpec(rows, dtype),
        InputSpec(rows, dtype),
        *(of_more[name] for name in operands),
    )
    flags = "".join(f"-{name}" for name in operands) + ("-softplus" if softplus else "")
    form = "heads" if scalar else "channels"
    name = f"{dtype}-{label(x)}-g{groups}-n{states}-{form}{flags}-{domain}-{decay}"
    return Case("selective_scan", name, inputs, {"operands": operands, "softplus": softplus}, NORM)


def _scans() -> Iterator[Case]:
    for i, size in enumerate(_SCANS):
        yield _scan_case(size)
        yield _scan_case(size, operands=_ALL)
        yield _scan_case(size, operands=_ALL[i % 4 : i % 4 + 2])
    for dtype in FLOATS:
        for size in ((2, 21, 6, 1, 2, 16, False), (1, 18, 2, 8, 1, 16, True)):
            for operands in ((), ("z",), ("D", "state"), _ALL):
                yield _scan_case(size, dtype, operands)
            yield _scan_case(size, dtype, _ALL, domain="zeros")
            yield _scan_case(size, dtype, ("D", "state"), domain="holes")
            yield _scan_case(size, dtype, ("bias",), softplus=True, decay="zeros")
            yield _scan_case((1, 4, 4, *size[3:]), dtype, ("z",), domain="any")
    for size in ((1, 40, 4, 1, 1, 16, False), (1, 12, 2, 4, 1, 5, True)):
        for domain in ("large", "halves", "offset"):
            yield _scan_case(size, operands=_ALL, domain=domain)


def _grads() -> Iterator[Case]:
    """The gradients of the recurrence: the inputs of scans with and without a state, and gradients of both results."""
    many = [size for size in _SCANS if size[2:4] != (1, 33)]  # the only gradient of A cancels in the others
    sizes = [*many, (2, 21, 6, 1, 2, 16, False), (1, 18, 2, 8, 1, 16, True), (1, 40, 4, 2, 2, 12, True)]
    for size in sizes:
        for operands in ((), ("state",)):
            for domain in ("normal",) if size[1] > 20 else ("normal", "zeros"):
                yield _grad_of(_scan_case(size, operands=operands, domain=domain))
    for domain in ("holes", "large", "halves"):
        yield _grad_of(_scan_case((1, 12, 4, 1, 2, 6, False), operands=("state",), domain=domain))
    # With an A for each state: the gradient of a head's single A is one sum of numbers of all magnitudes, of which the
    # largest may cancel.
    plain = _grad_of(_scan_case((1, 12, 4, 1, 2, 6, False)))
    inputs = [replace(spec, domain="wide") if i == 5 else spec for i, spec in enumerate(plain.inputs)]
    yield replace(plain, name=f"{plain.name}-x5-wide", inputs=tuple(inputs))


def _grad_of(case: Case) -> Case:
    x, _, _, rows = case.inputs[:4]
    state = (*x.shape[:1], *x.shape[2:], rows.shape[-1])
    inputs = (InputSpec(x.shape, f32), InputSpec(state, f32), *case.inputs)
    return Case("selective_scan_grad", case.name, inputs, {"operands": case.attrs["operands"]}, NORM)


_RULES = (
    # (batch, length, heads, d_v, key heads, d_k)
    (1, 1, 1, 1, 1, 1), (2, 7, 2, 3, 1, 4), (1, 20, 2, 16, 2, 16), (1, 9, 4, 33, 2, 64), (2, 5, 3, 5, 3, 7),
    (1, 17, 1, 40, 1, 128), (1, 4, 2, 8, 1, 130), (1, 3, 1, 9, 1, 256), (2, 0, 2, 3, 1, 4), (0, 4, 2, 3, 1, 4),
    (2, 3, 2, 0, 1, 4), (1, 35, 6, 2, 2, 6),
)  # fmt: skip


def _rule_case(
    size: tuple[int, int, int, int, int, int],
    dtype: DType = f32,
    operands: Names = (),
    domain: str = "normal",
    keys: str = "small",
    scale: float = 0.5,
) -> Case:
    """The rule is stable for keys of length below 1; at these sizes keys with small elements are that short."""
    batch, length, heads, values, key_heads, d = size
    inner = working(dtype)
    gate, row = (batch, length, heads), (batch, length, key_heads, d)
    of_more = {"g": InputSpec(gate, inner, "small"), "state": InputSpec((batch, heads, values, d), inner)}
    inputs = (
        InputSpec(row, dtype),
        InputSpec(row, dtype, keys),
        InputSpec((*gate, values), dtype, domain),
        InputSpec(gate, inner, "unit"),
        *(of_more[name] for name in operands),
    )
    flags = "".join(f"-{name}" for name in operands)
    name = f"{dtype}-{label((*gate, values))}-k{key_heads}x{d}{flags}-{domain}-{keys}-scale{scale}"
    return Case("gated_delta_rule", name, inputs, {"operands": operands, "scale": scale}, NORM)


def _rules() -> Iterator[Case]:
    for i, size in enumerate(_RULES):
        for operands in ((), ("g", "state"), (("g",), ("state",))[i % 2]):
            yield _rule_case(size, operands=operands)
    for dtype in FLOATS:
        for operands in ((), ("g",), ("g", "state")):
            yield _rule_case((2, 12, 4, 8, 2, 16), dtype, operands)
        yield _rule_case((1, 11, 2, 5, 1, 12), dtype, ("g", "state"), domain="holes")
        yield _rule_case((1, 3, 2, 5, 1, 6), dtype, ("g",), domain="any")
        yield _rule_case((1, 11, 2, 5, 1, 12), dtype, ("state",), domain="zeros", keys="zeros")
    for domain in ("large", "halves", "offset"):
        yield _rule_case((1, 10, 2, 6, 1, 8), operands=("g", "state"), domain=domain, scale=2.0)


def _rule_grads() -> Iterator[Case]:
    """The gradients of the rule: its inputs with and without gate and state, and gradients of both results."""
    for i, size in enumerate((*_RULES, (2, 12, 4, 8, 2, 16), (1, 40, 4, 3, 2, 12))):
        for operands in ((), ("g", "state"), (("g",), ("state",))[i % 2]):
            yield _rule_grad_of(_rule_case(size, operands=operands))
        if size[1] < 20:
            yield _rule_grad_of(_rule_case(size, operands=("g", "state"), domain="zeros"))
    for domain in ("large", "halves"):
        for scale in (0.5, 2.0):
            yield _rule_grad_of(_rule_case((1, 10, 2, 6, 1, 8), operands=("state",), domain=domain, scale=scale))


def _rule_grad_of(case: Case) -> Case:
    q, _, v = case.inputs[:3]
    state = (v.shape[0], v.shape[2], v.shape[3], q.shape[3])
    inputs = (InputSpec(v.shape, f32), InputSpec(state, f32), *case.inputs)
    return Case("gated_delta_rule_grad", case.name, inputs, case.attrs, NORM)


_CONVS = (
    # (batch, length, channels, width)
    (1, 1, 1, 2), (2, 7, 3, 4), (1, 8, 33, 4), (1, 9, 5, 8), (3, 2, 4, 5), (1, 129, 2, 3), (1, 3, 130, 8),
    (2, 0, 3, 4), (0, 4, 3, 4), (2, 5, 0, 2), (1, 65, 12, 4), (2, 1, 16, 4),
)  # fmt: skip


def _conv_case(
    size: tuple[int, int, int, int],
    dtype: DType = f32,
    operands: Names = (),
    activation: str | None = None,
    domain: str = "normal",
) -> Case:
    batch, length, channels, width = size
    of_more = {
        "bias": InputSpec((channels,), dtype),
        "state": InputSpec((batch, width - 1, channels), dtype, domain),
    }
    inputs = (
        InputSpec((batch, length, channels), dtype, domain),
        InputSpec((channels, width), dtype),
        *(of_more[name] for name in operands),
    )
    flags = "".join(f"-{name}" for name in operands)
    name = f"{dtype}-{label(size[:3])}-w{width}{flags}-{activation}-{domain}"
    return Case("causal_conv", name, inputs, {"operands": operands, "activation": activation}, NORM)


def _convs() -> Iterator[Case]:
    for i, size in enumerate(_CONVS):
        yield _conv_case(size)
        yield _conv_case(size, operands=("bias", "state"), activation="silu")
        yield _conv_case(size, operands=(("bias",), ("state",))[i % 2], activation=(None, "silu")[i // 2 % 2])
    for dtype in FLOATS:
        for width in (2, 4, 7):
            for operands in ((), ("bias", "state")):
                yield _conv_case((2, 21, 10, width), dtype, operands, "silu" if width == 4 else None)
        for domain in ("zeros", "holes", "large", "any"):
            yield _conv_case(
                (2, 11, 6, 4), dtype, ("bias", "state"), "silu" if domain == "holes" else None, domain
            )


@rule("recurrences")
def _any(b: Builder) -> Made:
    """Each of the three ops, with a few elements; states stay small since steps and keys are small."""
    dtype = b.choose((f32, f16, bf16))
    batch, length, heads, n = (1 + b.below(k) for k in (2, 6, 5, 6))
    which = b.below(3)
    if which == 0:
        x, step, z = (b.leaf((batch, length, heads), dtype) for _ in range(3))
        gain, reading = (b.leaf((batch, length, n), dtype) for _ in range(2))
        decay = -ops.abs(b.leaf((heads, n), f32))
        state = b.leaf((batch, heads, n), f32) if b.chance(0.5) else None
        more = z if b.chance(0.5) else None
        return ops.selective_scan(
            x, ops.tanh(step), decay, gain, reading, z=more, state=state, delta_softplus=b.chance(0.5)
        )
    if which == 1:
        q, k = (ops.normalize(b.leaf((batch, length, 1, n), dtype)) for _ in range(2))
        v, gate = b.leaf((batch, length, heads, 1 + b.below(4)), dtype), b.leaf((batch, length, heads), f32)
        g = -ops.abs(gate) if b.chance(0.5) else None
        return ops.gated_delta_rule(q, k, v, g, ops.sigmoid(gate))
    x, w = b.leaf((batch, length, heads), dtype), b.leaf((heads, 2 + b.below(4)), dtype)
    state = b.leaf((batch, w.shape[1] - 1, heads), dtype) if b.chance(0.5) else None
    return ops.causal_conv(x, w, state=state, activation=b.choose((None, "silu")))


@rule("recurrence_gradients")
def _scan_gradients(b: Builder) -> Made:
    batch, length, heads, n = (1 + b.below(k) for k in (2, 6, 5, 6))
    dy, x, step = (b.leaf((batch, length, heads), f32) for _ in range(3))
    gain, reading = (b.leaf((batch, length, 1, n), f32) for _ in range(2))
    d, state = (b.leaf((batch, heads, n), f32) for _ in range(2))
    decay = -ops.abs(b.leaf((heads, n), f32))
    operands = (dy, d, x, ops.tanh(step), decay, gain, reading)
    if b.chance(0.5):
        return apply_multi("selective_scan_grad", *operands, state, operands=("state",))
    return apply_multi("selective_scan_grad", *operands, operands=())


@rule("delta_rule_gradients")
def _rule_gradients(b: Builder) -> Made:
    batch, length, heads, n, size = (1 + b.below(k) for k in (2, 6, 4, 6, 4))
    do, v = (b.leaf((batch, length, heads, size), f32) for _ in range(2))
    q, k = (ops.normalize(b.leaf((batch, length, 1, n), f32)) for _ in range(2))
    beta, gate = (b.leaf((batch, length, heads), f32) for _ in range(2))
    d, state = (b.leaf((batch, heads, size, n), f32) for _ in range(2))
    operands = (do, d, q, k, v, ops.sigmoid(beta), -ops.abs(gate))
    if b.chance(0.5):
        return apply_multi("gated_delta_rule_grad", *operands, state, operands=("g", "state"), scale=0.5)
    return apply_multi("gated_delta_rule_grad", *operands, operands=("g",), scale=0.5)


_STEEP = ("offset", "the state is multiplied by exp of a thousand in each step, which leaves f32")
_LONG = "the state is multiplied by 1 - beta |k|² in each step, and leaves f32 where that is large"
OPS = (
    Conformance("selective_scan", (_scans,), (_any,), narrower={(i, "far"): _STEEP for i in (1, 2, 5, 8)}),
    Conformance(
        "selective_scan_grad", (_grads,), (_scan_gradients,),
        narrower={
            **{(i, "far"): _STEEP for i in (3, 4)},
            (3, "wide"): ("fractions", _STEEP[1]),
        },
    ),
    Conformance(
        "gated_delta_rule", (_rules,), (_any,),
        narrower={(1, "wide"): ("fractions", _LONG), (1, "far"): ("offset", _LONG), (3, "wide"): ("fractions", _LONG)},
    ),
    Conformance(
        "gated_delta_rule_grad", (_rule_grads,), (_rule_gradients,),
        narrower={(3, "wide"): ("fractions", _LONG), (3, "far"): ("offset", _LONG), (5, "wide"): ("fractions", _LONG)},
    ),
    Conformance("causal_conv", (_convs,), (_any,)),
)  # fmt: skip
