"""Cases of grouped_matmul, its gradient and lora_matmul."""

from __future__ import annotations

from collections.abc import Iterator

from rlx.conformance.case import Case, InputSpec
from rlx.conformance.cases.shapes import FLOATS, label
from rlx.conformance.tolerances import NORM
from rlx.dtypes import DType, bf16, f16, f32, i32
from rlx.ops.matmul import ACTIVATIONS

# (rows, experts, k, n). Sizes drawn as "positive" are 1 to 19, as "ties" -2 to 2, as "normal" -100 to 100: groups that
# are empty, that are cut by the rows, and rows after the last group all occur.
_SIZES = (
    (1, 1, 1, 1), (7, 3, 5, 4), (40, 4, 16, 12), (64, 1, 32, 64), (65, 7, 33, 66), (128, 16, 8, 24), (0, 3, 4, 5),
    (5, 2, 0, 3), (6, 2, 3, 0), (150, 5, 40, 130), (33, 40, 7, 9), (64, 8, 64, 64),
)  # fmt: skip
_DRAWN = ("positive", "ties", "normal", "zeros")


def _grouped(
    size: tuple[int, int, int, int],
    dtypes: tuple[DType, DType] = (f32, f32),
    drawn: str = "positive",
    transpose: bool = False,
    domain: str = "normal",
    seed: int = 0,
) -> Case:
    rows, experts, k, n = size
    inputs = (
        InputSpec((rows, k), dtypes[0], domain),
        InputSpec((experts, n, k) if transpose else (experts, k, n), dtypes[1], domain),
        InputSpec((experts,), i32, drawn, seed),
    )
    name = f"{dtypes[0]}-{dtypes[1]}-{label(size)}{'T' if transpose else ''}-{drawn}-{domain}-{seed}"
    return Case("grouped_matmul", name, inputs, {"transpose_w": transpose}, NORM)


def _grad(
    size: tuple[int, int, int, int],
    dtypes: tuple[DType, DType] = (f32, f32),
    drawn: str = "positive",
    domain: str = "normal",
    seed: int = 0,
) -> Case:
    rows, experts, k, n = size
    inputs = (
        InputSpec((rows, k), dtypes[0], domain),
        InputSpec((rows, n), dtypes[1], domain),
        InputSpec((experts,), i32, drawn, seed),
    )
    name = f"{dtypes[0]}-{dtypes[1]}-{label(size)}-{drawn}-{domain}-{seed}"
    return Case("grouped_matmul_grad", name, inputs, {}, NORM)


def _lora(
    x: tuple[int, ...],
    n: int,
    r: int,
    dtypes: tuple[DType, DType] = (f32, f32),
    bias: bool = False,
    activation: str | None = None,
    scale: float = 0.5,
    domain: str = "normal",
) -> Case:
    k = x[-1]
    inputs = [InputSpec(x, dtypes[0], domain), InputSpec((k, n), dtypes[1], domain)]
    inputs += [InputSpec((k, r), dtypes[1], domain), InputSpec((r, n), dtypes[1], domain)]
    if bias:
        inputs.append(InputSpec((n,), dtypes[1], domain))
    name = f"{dtypes[0]}-{dtypes[1]}-{label(x)}-{n}-rank{r}{'-bias' if bias else ''}-{activation}-{scale}-{domain}"
    return Case("lora_matmul", name, tuple(inputs), {"scale": scale, "activation": activation}, NORM)


def _all() -> Iterator[Case]:
    pairs = [(a, b) for a in FLOATS for b in FLOATS]
    for size in _SIZES:
        for drawn in _DRAWN[:2]:
            yield _grouped(size, drawn=drawn)
            yield _grad(size, drawn=drawn)
        yield _grouped(size, transpose=True)
    for drawn in _DRAWN:
        for seed in (1, 2):
            yield _grouped((70, 6, 12, 20), drawn=drawn, seed=seed, transpose=seed == 2)
            yield _grad((70, 6, 12, 20), drawn=drawn, seed=seed)
    for dtypes in pairs:
        yield _grouped((40, 4, 40, 33), dtypes)
        yield _grouped((40, 4, 64, 32), dtypes, transpose=True)
        yield _grad((40, 4, 17, 24), dtypes)
    for dtype in (f32, f16, bf16):
        for domain in ("holes", "ties", "zeros"):
            yield _grouped((33, 3, 20, 17), (dtype, dtype), domain=domain)
            yield _grad((33, 3, 20, 17), (dtype, dtype), domain=domain)
    for x, n, r in (
        ((1, 1), 1, 1), ((1, 64), 48, 4), ((3, 5), 7, 2), ((33, 40), 65, 8), ((2, 5, 16), 24, 3), ((64, 64), 64, 16),
        ((0, 4), 5, 2), ((4, 0), 5, 2), ((4, 5), 0, 2), ((4, 5), 6, 0), ((20, 130), 31, 1), ((16, 384), 96, 8),
    ):  # fmt: skip
        yield _lora(x, n, r)
        yield _lora(x, n, r, bias=True, activation="gelu", scale=1.0)
    for activation in ACTIVATIONS:
        yield _lora((9, 24), 20, 4, activation=activation, scale=2.0)
    for dtypes in pairs:
        yield _lora((17, 40), 33, 4, dtypes, bias=True)
        yield _lora((40, 64), 32, 8, dtypes, activation="silu")
    for domain in ("holes", "ties", "zeros"):
        yield _lora((9, 20), 17, 3, domain=domain, bias=True)
    yield _lora((5, 6), 7, 2, scale=0.0)
    yield _lora((5, 6), 7, 2, scale=-3.0)


def cases() -> list[Case]:
    return list(_all())
