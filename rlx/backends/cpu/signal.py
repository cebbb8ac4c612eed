"""frame and windowed_frames, copies and products of a view of the signal whose frames overlap; segment_spectra."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from rlx.backends.cpu.context import Array
from rlx.backends.cpu.elementwise import tree_step
from rlx.backends.cpu.fft import transform_step
from rlx.backends.cpu.host.signal import frames_of
from rlx.backends.cpu.rowwise import contiguous
from rlx.backends.cpu.step import EngineContext, EngineStep, engine
from rlx.dtypes import as_dtype
from rlx.ir import Node
from rlx.ir import expr as ex

_MAX_SIGNALS = 64  # each is a step


@engine("frame", "windowed_frames")
def bind_frames(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    out = outs[0]
    seen = [frames_of(ins[0], out.shape[-2:], node.attrs["hop"]), *ins[1:]]
    args = [ex.arg(i, as_dtype(a.dtype)) for i, a in enumerate(seen)]
    tree = args[0] if len(args) == 1 else ex.call("mul", *args)
    step = tree_step([tree], seen, [out], ctx)
    return None if step is None else [step]


@engine("segment_spectra")
def bind_segment_spectra(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    """One step for each signal; a signal that segments reach beyond is first copied into a zero-padded buffer."""
    (x, window), out, attrs = ins, outs[0], node.attrs
    if x.dtype != np.float32 or not contiguous(x, window, out) or not 0 < x.size <= _MAX_SIGNALS * x.shape[-1]:
        return None
    start, count, n = attrs["start"], attrs["count"], x.shape[-1]
    signals, spectra = x.reshape(-1, n), out.reshape(-1, *out.shape[-3:])
    size = max((count - 1) * attrs["hop"] + len(window), start + n)
    steps: list[EngineStep | None] = []
    if size > n:
        memory = ctx.borrow(4 * len(signals) * size)[: 4 * len(signals) * size]
        wide, f32 = memory.view(np.float32).reshape(-1, size), as_dtype(x.dtype)
        steps.append(tree_step([ex.lit(0, f32)], [], [wide], ctx))
        steps.append(tree_step([ex.arg(0, f32)], [signals], [wide[:, start : start + n]], ctx))
        signals = wide
    borrow = cache(ctx.borrow)  # the signals' steps run one after another and share memory
    for signal, target in zip(signals, spectra, strict=True):
        steps.append(
            transform_step(
                signal, target, attrs["nfft"], count, ctx, real="in", window=window, hop=attrs["hop"], borrow=borrow
            )
        )
    known = [step for step in steps if step is not None]
    return known if len(known) == len(steps) else None
