"""Weights that come near: a product that is followed by kernels which leave the memory idle, such as a step of
attention over a short cache, ends with bringing what the products after those read into the device's cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rlx.backends.gpu.program.kernel import KERNELS, KernelDecl
from rlx.backends.gpu.program.steps import Arg, FileKernel, Launch, Ref, Step

PIECE = 4096  # bytes that are brought at once
NEAR = 12 << 20  # bytes of the next weight, brought from its beginning
# Of the weight after it every so-many-th piece, so that while it is read the cache and the memory work side by side.
FAR, EVERY = 24 << 20, 4


def bring_near(steps: Sequence[Step]) -> list[Step]:
    """The same steps, with the arguments `near` and `far` set of those kernels that have them."""
    found = list(steps)
    for i, step in enumerate(steps):
        if not isinstance(step, Launch) or "near" not in _names(step):
            continue
        after = i + 1
        while after < len(steps) and (decl := _decl(steps[after])) is not None and decl.idle:
            after += 1
        near = _read_once(steps[after]) if i + 1 < after < len(steps) else None
        if near is None:
            continue
        far = _read_once(steps[after + 1]) if after + 1 < len(steps) else None
        found[i] = _bringing(step, near, far)
    return found


def _bringing(step: Launch, near: Ref, far: Ref | None) -> Launch:
    pieces = far.nbytes // PIECE if far is not None else 0
    every = max(EVERY, -(-pieces * PIECE // FAR))
    values: dict[str, Arg] = {
        "near": near, "near_count": min(near.nbytes, NEAR) // PIECE, "far": far or near, "far_count": pieces // every,
        "far_step": every * PIECE,
    }  # fmt: skip
    args = tuple(values.get(name, arg) for name, arg in zip(_names(step), step.args, strict=True))
    more = tuple(ref for ref in (near, far) if ref is not None and ref not in step.reads)
    return replace(step, args=args, reads=(*step.reads, *more))


def _decl(step: Step) -> KernelDecl | None:
    if isinstance(step, Launch) and isinstance(step.kernel, FileKernel):
        return KERNELS[step.kernel.stem]
    return None


def _names(step: Launch) -> tuple[str, ...]:
    decl = _decl(step)
    return () if decl is None else tuple(arg.name for arg in decl.args)


def _read_once(step: Step) -> Ref | None:
    """What the step reads once and whole, by its declaration."""
    decl = _decl(step)
    if decl is None or not decl.once:
        return None
    assert isinstance(step, Launch)
    ref = step.args[_names(step).index(decl.once)]
    assert isinstance(ref, Ref)
    return ref
