"""Conformance of the ops of random numbers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from rlx.conformance.case import Case, InputSpec
from rlx.conformance.random_rules import Made, Rule, rule
from rlx.conformance.record import Conformance
from rlx.conformance.shapes import PAIRS, SHAPES, label
from rlx.conformance.tolerances import BITS
from rlx.dtypes import i32
from rlx.ir import Attrs, apply
from rlx.ops.random import draws
from rlx.ops.random.bits import WORDS

if TYPE_CHECKING:
    from rlx.conformance.random_graphs import Builder

Shape = tuple[int, ...]


def _case(op: str, shapes: tuple[Shape, ...], attrs: Attrs, domain: str = "any", words: str = "") -> Case:
    specs = tuple(InputSpec(shape, i32, domain) for shape in shapes)
    name = "-".join((*(label(shape) for shape in shapes), domain)) + words
    return Case(op, name, specs, attrs, BITS)


def _threefry() -> Iterator[Case]:
    for (a, b), word in zip(PAIRS * 2, itertools.cycle(WORDS), strict=False):
        yield _case("threefry", (a, (), b, ()), {"word": word}, words=f"-{word}")
        yield _case("threefry", (a, a, b, b), {"word": word}, words=f"-{word}")
    for word in WORDS:
        yield _case("threefry", ((17, 1), (17, 1), (1, 17), (1, 17)), {"word": word}, "special", f"-{word}")
        yield _case("threefry", ((), (), (1,), (1021,)), {"word": word}, "normal", f"-{word}")


def _random_bits() -> Iterator[Case]:
    words = itertools.cycle(WORDS)
    # The last shapes exceed what a thread, a workgroup and a block on the CPU compute at once.
    for shape in (*SHAPES, (2, 1021), (70001,), (3, 50000)):
        for axes in sorted({0, len(shape) // 2, len(shape)}):
            lead = shape[: len(shape) - axes]
            keys, word = (*lead, *(1,) * axes), next(words)
            attrs = {"shape": shape, "axes": axes, "word": word, "stream": axes % 2}
            more = f"-{axes}of{label(shape)}-{word}"
            yield _case("random_bits", (keys, keys, ()), attrs, words=more)
            yield _case("random_bits", ((), (), keys), attrs, "special" if keys else "any", more)


def _both_words() -> Iterator[Case]:
    for shape in ((2,), (1, 2), (33, 2), (0, 2), (3, 5, 2), (2, 3, 7, 2), (40001, 2)):
        for axes in sorted({1, len(shape)}):
            keys = (*shape[: len(shape) - axes], *(1,) * axes)
            attrs = {"shape": shape, "axes": axes, "word": "both", "stream": 0}
            yield _case("random_bits", (keys, keys, ()), attrs, words=f"-{axes}of{label(shape)}-both")
            offsets = (*shape[:-1], 1) if axes == 1 else ()
            yield _case("random_bits", ((), (), offsets), attrs, "special", f"-{axes}of{label(shape)}-both")


def _multiply_high() -> Iterator[Case]:
    for pair in PAIRS:
        yield _case("multiply_high", pair, {})
        yield _case("multiply_high", pair, {}, "normal")
    yield _case("multiply_high", ((17, 1), (1, 17)), {}, "special")


def _gumbel() -> Iterator[Case]:
    for shape in SHAPES:
        yield _case("gumbel", (shape,), {})
        yield _case("gumbel", (shape,), {}, "special")
    yield _case("gumbel", ((70001,),), {})
    yield _case("gumbel", ((70001,),), {}, "normal")


def _of_words(op: str, n: int, word: bool = False) -> Rule:
    """A rule that adds the op on random words, which may have any bits; `word`: with that attribute."""

    def add(b: Builder) -> Made:
        attrs = {"word": b.choose(tuple(WORDS))} if word else {}
        return (apply(op, *(_draw(b, (3, 5))[0] for _ in range(n)), **attrs),)

    return rule(op, rough=True)(add)


def _draw(b: Builder, shape: Shape) -> Made:
    axes = b.below(len(shape) + 1)
    keys = [b.leaf((*shape[: len(shape) - axes], *(1,) * axes), i32) for _ in range(2)]
    offset = b.graph.constant(np.int32(b.below(100)))
    attrs = {"shape": shape, "axes": axes, "word": b.choose(tuple(WORDS)), "stream": b.below(2)}
    return (apply("random_bits", *keys, offset, **attrs),)


@rule("random_bits", rough=True)
def _bits(b: Builder) -> Made:
    if b.chance(0.7):
        return _draw(b, b.shape())
    keys = draws.split(b.leaf((2,), i32), 1 + b.below(5))
    return keys, draws.fold_in(keys, b.below(9))


OPS = (
    Conformance("threefry", (_threefry,), (_of_words("threefry", 4, word=True),)),
    Conformance("random_bits", (_random_bits, _both_words), (_bits,)),
    Conformance("multiply_high", (_multiply_high,), (_of_words("multiply_high", 2),)),
    Conformance("gumbel", (_gumbel,), (_of_words("gumbel", 1),)),
)
