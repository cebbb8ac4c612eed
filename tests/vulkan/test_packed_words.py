"""Devices that store no elements of 8 or 16 bits: these lie in words, are converted by kernels, and all else is f32."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest

import rlx
from rlx.backends.gpu.program.executable import load_rules
from rlx.backends.gpu.program.lowering import runs_natively
from rlx.backends.gpu.program.target import Target
from rlx.backends.vulkan.device import VulkanDevice
from rlx.conformance.case import cases_of
from rlx.dtypes import as_dtype
from rlx.ir import REGISTRY, Graph, Node
from rlx.passes import optimize, widen
from tests.full import sampled
from tests.vulkan.second_driver import dtypes

SMALL = ("f16", "bf16", "i8", "u8", "bool")
NARROW = frozenset({"16bit_storage", "8bit_storage", "f16", "bf16", "i8", "f64", "i64"})
# What SwiftShader has that rules ask for.
TARGET = Target(frozenset({"subgroup", "float_controls", "denorm_preserve", "full_subgroups", "i16"}))
# How many cases of narrow dtypes, without f64 and i64, have a host step there, by op; of other ops none has.
MAX_HOST_CASES = {"one_hot": 9, "pad": 11}


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> rlx.Session:
    """The first Vulkan device, as if it stored and computed nothing but 32 bits."""
    made = rlx.Session("vulkan", fallback="error")
    device = made.device
    assert isinstance(device, VulkanDevice)
    monkeypatch.setattr(device, "info", dataclasses.replace(device.info, packed=True))
    monkeypatch.setattr(device, "target", dataclasses.replace(device.target, features=device.target.features - NARROW))
    return made


def _every(name: str, n: int) -> np.ndarray:
    """n values of the dtype, from all of its bit patterns in turn."""
    dtype = as_dtype(name)
    if name == "bool":
        return np.arange(n) % 3 == 0
    raw = np.arange(n).astype(np.uint16 if dtype.itemsize == 2 else np.uint8)
    return raw.view(dtype.np)


@pytest.mark.vulkan
@pytest.mark.parametrize("n", [65536, 257, 3, 1])
@pytest.mark.parametrize("name", SMALL)
def test_every_value_comes_out_of_its_word_and_back(session: rlx.Session, name: str, n: int) -> None:
    """A weight is read, and a state read and replaced: neither is an input, which the host would convert."""
    g = rlx.Graph("words")
    weight, state = g.param("w", (n,), name), g.state("s", (n,), name)
    g.output("w32", rlx.cast(weight, "f32"))
    g.output("s32", rlx.cast(state, "f32"))
    g.update("s", weight)
    given, nothing = _every(name, n), np.zeros(n, as_dtype(name).np)
    with session.compile(g) as compiled:
        compiled.set_param("w", given)
        compiled.set_state("s", nothing)
        assert compiled.report().host_nodes == []
        first = compiled.run({})
        second = compiled.run({})
        with np.errstate(invalid="ignore"):
            wanted = given.astype(np.float32)
        np.testing.assert_array_equal(first["w32"], wanted)
        np.testing.assert_array_equal(first["s32"], nothing.astype(np.float32))
        np.testing.assert_array_equal(second["s32"], wanted)
        np.testing.assert_array_equal(compiled.get_state("s").astype(np.float32), wanted)


@pytest.mark.vulkan
@pytest.mark.parametrize("name", ["f16", "bf16", "i8", "u8"])
@pytest.mark.parametrize("n", [4096, 259])
def test_arithmetic_rounds_and_wraps_as_on_the_cpu(session: rlx.Session, name: str, n: int) -> None:
    g = rlx.Graph("arithmetic")
    weight, state = g.param("w", (n,), name), g.state("s", (n,), name)
    made = weight * state + weight
    g.output("y", made)
    g.update("s", made)
    rng = np.random.default_rng(7)
    if as_dtype(name).is_float:
        values = [rng.standard_normal(n).astype(as_dtype(name).np) for _ in range(2)]
    else:
        values = [rng.integers(0, 255, n).astype(np.uint8).view(as_dtype(name).np) for _ in range(2)]
    results = []
    for each in (session, rlx.Session("cpu")):
        with each.compile(g) as compiled:
            compiled.set_param("w", values[0])
            compiled.set_state("s", values[1])
            results.append([compiled.run({})["y"] for _ in range(3)])
            assert compiled.report().host_nodes == []
    for device, cpu in zip(*results, strict=True):
        np.testing.assert_array_equal(device.view(np.uint8), cpu.view(np.uint8))


@pytest.mark.late
def test_host_steps_of_a_device_of_words_do_not_grow() -> None:
    load_rules()

    def support(node: Node) -> str:
        return "native" if node.op.leaf or runs_natively(node, TARGET) else "host"

    host: Counter[str] = Counter()
    for op in REGISTRY:
        graphs = [g for g in (case.graph() for case in cases_of(op)) if _is_narrow(g)]
        for graph in sampled(graphs, most=5):
            _, report = optimize(widen(graph, support), support=support)
            host[op] += bool(report.host)
    assert {op: n for op, n in host.items() if n > MAX_HOST_CASES.get(op, 0)} == {}


def _is_narrow(graph: Graph) -> bool:
    names = dtypes(graph)
    return bool(names & set(SMALL)) and not names & {"f64", "i64"}
