"""Wrong keywords are answered with those there are and the nearest; a memory plan says what it is."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx

SPLATS = rlx.splats.Splats(*(np.ones(s, np.float32) for s in ((1, 3), (1, 3), (1, 4), (1,), (1, 1, 3))))
CAMERA = rlx.splats.Camera.look_at((0, 0, 0), (0, 0, 5), width=4, height=4)


def graph() -> rlx.Graph:
    g = rlx.Graph("one")
    g.output("y", rlx.exp(g.input("x", (3,))))
    return g


@pytest.mark.parametrize(
    "call, what, wrong, meant",
    [
        (lambda: rlx.jit(devise="cpu"), "jit", "devise", "device"),  # type: ignore[call-overload]
        (lambda: rlx.jit(rlx.exp, static_argname="x"), "jit", "static_argname", "static_argnames"),
        (lambda: rlx.grad(rlx.sum, argnum=1), "grad", "argnum", "argnums"),  # type: ignore[call-arg]
        (lambda: rlx.Session("cpu", thread=1), "Session", "thread", "threads"),  # type: ignore[call-arg]
        (lambda: rlx.Session("cpu").compile(graph(), weight=None), "Session.compile", "weight", "weights"),  # type: ignore[call-arg]
        (lambda: rlx.vmap(rlx.sum, in_dims=1), "vmap", "in_dims", "in_axes"),  # type: ignore[call-arg]
        (lambda: rlx.models.load("folder", contxt=8), "load", "contxt", "context"),  # type: ignore[call-arg]
    ],
)
def test_a_wrong_keyword_is_answered_with_the_right_one(
    call: Callable[[], Any], what: str, wrong: str, meant: str
) -> None:
    said = re.escape(f"{what}: there is no argument {wrong!r} (did you mean {meant!r}?); it takes ")
    with pytest.raises(TypeError, match=said):
        call()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: rlx.models.load("m", n_ctx=4), "(did you mean 'context'?)"),  # type: ignore[call-arg]
        (lambda: rlx.models.load("m", n_batch=4), "(did you mean 'prefill_chunk'?)"),  # type: ignore[call-arg]
        (lambda: rlx.models.load("m", flash_attn=True), "no matrix of all scores"),  # type: ignore[call-arg]
        (lambda: rlx.models.load("m", lora_path="a"), "(model.load_adapter(name, folder), then"),  # type: ignore[call-arg]
        (lambda: rlx.models.load("m", load_in_4bit=True), "(`rlx convert FOLDER --to Q4_K_M"),  # type: ignore[call-arg]
        (lambda: rlx.onnx.load("m", device="cpu"), "(run and compile of what it gives take it)"),  # type: ignore[call-arg]
        (lambda: rlx.onnx.save(rlx.exp, "m", (1.0,)), "by name it takes weights, args, opset"),  # type: ignore[call-arg]
        (lambda: rlx.optim.adamw(lr=1.0), "(did you mean 'learning_rate'?)"),  # type: ignore[call-arg]
        (lambda: rlx.splats.write_ply("p", SPLATS), "(did you mean *: the 5 arrays of Splats, each an argument?)"),  # type: ignore[call-arg]
        (lambda: rlx.splats.render(*SPLATS, CAMERA), "(did you mean **: what Camera holds, by name?)"),  # type: ignore[call-arg]
        (lambda: rlx.splats.render(*SPLATS, **CAMERA, near_plane=1), "(did you mean 'near'?)"),  # type: ignore[call-arg]
        (lambda: rlx.zeros(3, device="vulkan"), "(rlx.array(x, device=\"vulkan\") puts an array on a device"),  # type: ignore[call-arg]
        (lambda: rlx.signal.istft(rlx.signal.stft(np.ones(300, np.float32))), "of several in a tuple give one"),  # type: ignore[arg-type]
        (lambda: rlx.zeros(3, 4), "a shape is one tuple"),  # type: ignore[arg-type]
        (lambda: rlx.Session("cpu").__enter__(), "with rlx.Session(device).compile(graph) as program"),
    ],
)
def test_what_other_libraries_would_take_says_what_is(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(TypeError, match=re.escape(said)):
        call()


def test_functions_that_check_keywords_keep_their_face() -> None:
    assert [*inspect.signature(rlx.Session).parameters][:2] == ["device", "precision"]
    assert "static_argnums" in inspect.signature(rlx.jit).parameters and (rlx.jit.__doc__ or "").startswith("Compiles")


def test_a_memory_plan_is_one_line() -> None:
    with rlx.Session("cpu").compile(graph()) as exe:
        said = repr(exe.plan)
    assert re.fullmatch(r"MemoryPlan\('reuse': 2 tensors, \d in another's slot; bytes: arena0 [\d,]+, .*\)", said)
