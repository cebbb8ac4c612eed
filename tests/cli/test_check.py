"""`rlx check`: agreement is status 0; a planted fault is found, and the node that has it is named."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlx import devices as rlx_devices
from rlx.backends.cpu.host.kernels import BINDERS, bind_reference, binder_of
from rlx.runtime import CompiledGraph, Weights
from tests.cli.conftest import Rlx


def plant(monkeypatch: pytest.MonkeyPatch, op: str, spoil: Any) -> None:
    """Makes the CPU's kernel of an op spoil its result the second time it is used in a program."""
    real = binder_of(op) or bind_reference
    seen = []

    def bind(node: Any, ins: Sequence[Any], outs: Sequence[Any], ctx: Any) -> list[Any]:
        seen.append(node)
        steps = real(node, ins, outs, ctx)
        return [*steps, lambda: spoil(outs[0])] if len(seen) == 2 else steps

    monkeypatch.setitem(BINDERS, op, bind)


def scale(array: Any) -> None:
    array *= np.float32(1.001)


def one_nan(array: Any) -> None:
    array.reshape(-1)[3] = np.nan


def rows(out: str) -> dict[str, list[str]]:
    """The table's rows by device: name, nodes, on the host, worst nmse, largest error, of the node, verdict."""
    lines = out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("device "))
    cells = (re.split(r"  +", line) for line in lines[at + 1 :] if not re.match(r"  |\S+: ", line))
    return {row[0]: row[1:] for row in cells}


@pytest.mark.sample(vulkan=1)
def test_a_device_that_agrees(rlx: Rlx, tiny: Path, device: str) -> None:
    ran = rlx("check", tiny, "--device", device)
    assert ran.status == 0 and ran.err == "", ran
    ((name, row),) = rows(ran.out).items()
    assert name.startswith(device) and int(row[1]) > 9 and row[2] == "0" and row[-1] == "ok"
    assert 0 < float(row[3]) <= 1e-11 and 0 < float(row[4]) <= 1e-5


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.sample(vulkan=1)
def test_half_precision_is_held_to_the_rounded_weights(rlx: Rlx, tiny: Path, device: str, dtype: str) -> None:
    ran = rlx("check", tiny, "--device", device, "--dtype", dtype)
    assert ran.status == 0 and [row[-1] for row in rows(ran.out).values()] == ["ok"], ran


def test_all_devices_but_software_drivers_are_the_default(rlx: Rlx, tiny: Path) -> None:
    ran = rlx("check", tiny)
    assert ran.status == 0
    found = rlx_devices()
    assert list(rows(ran.out)) == [info.id for info in found if info.kind != "software"]
    for info in found:
        said = f"rlx: {info.id} ({info.name}) is a software driver: left out; --device {info.id} takes it in\n"
        assert (said in ran.err) == (info.kind == "software")


def test_verbose_prints_every_node(rlx: Rlx, tiny: Path) -> None:
    out = rlx("check", tiny, "--device", "cpu", "-v").out
    lines = out.splitlines()
    assert len(lines) == int(rows(out)["cpu"][1]) + 2
    assert all(line.startswith("  ok  nmse ") for line in lines[:-2])


@pytest.mark.parametrize("op", ["attention", "add_layer_norm", "matmul"])
def test_a_kernel_that_is_off_by_a_thousandth(
    rlx: Rlx, tiny: Path, monkeypatch: pytest.MonkeyPatch, op: str
) -> None:
    plant(monkeypatch, op, scale)
    ran = rlx("check", tiny, "--device", "cpu", "-v")
    assert ran.status == 1
    nodes = [line for line in ran.out.splitlines() if re.match(r"  (ok |BAD)", line)]
    first_bad = next(i for i, line in enumerate(nodes) if "BAD" in line)
    # The second node of that op, and none before it.
    assert f" = {op}(" in nodes[first_bad]
    assert sum(f" = {op}(" in line for line in nodes[:first_bad]) == 1
    assert re.fullmatch(r"FAIL: \d+ stray", rows(ran.out)["cpu"][-1])
    said = ran.out[ran.out.index("cpu: the first node that strays") :]
    assert said.splitlines()[1].strip() in nodes[first_bad]
    assert "so the error is its own" in said
    found = re.search(r"nmse (\S+) \(at most 1e-11\)", said)
    assert found and 0.9e-6 <= float(found[1]) <= 1.1e-6, "a thousandth, squared"


def test_a_single_nan(rlx: Rlx, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "add_layer_norm", one_nan)
    ran = rlx("check", tiny, "--device", "cpu")
    assert ran.status == 1 and "NaN or infinity in other places than the reference" in ran.out


def test_a_value_that_is_read_back_wrong(rlx: Rlx, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any device: one element of one tensor."""
    real = CompiledGraph.value

    def value(self: CompiledGraph, tensor: Any) -> Any:
        array = real(self, tensor)
        if tensor.node.op.name == "gather":
            array = array.copy()
            array.reshape(-1)[-1] += np.float32(0.01)
        return array

    monkeypatch.setattr(CompiledGraph, "value", value)
    ran = rlx("check", tiny, "--device", "cpu")
    assert ran.status == 1 and re.search(r"first node that strays: .*\n.* = gather\(", ran.out)


def test_a_weight_that_the_device_garbles(rlx: Rlx, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference is computed from the file, not from what the device gives back."""
    real = Weights.set

    def garble(self: Weights, name: str, data: Any, dtype: Any = None) -> None:
        wrong = np.array(data)
        wrong.reshape(-1)[0] += np.float32(0.5 if name.endswith("0.intermediate.dense.bias") else 0)
        real(self, name, wrong, dtype)

    monkeypatch.setattr(Weights, "set", garble)
    ran = rlx("check", tiny, "--device", "cpu")
    assert ran.status == 1 and re.search(r"first node that strays: .*\n.* = matmul\(", ran.out)


def test_errors(rlx: Rlx, tiny: Path, tmp_path: Path) -> None:
    ran = rlx("check", tmp_path)
    assert ran.status == 2 and "no config.json" in ran.err and ran.out == ""
    ran = rlx("check", tiny, "--device", "tpu")
    assert ran.status == 2 and ran.err.startswith("rlx: device 'tpu'") and ran.err.count("\n") == 1
    ran = rlx("check", tiny, "--device", "tpu", "--device", "cpu")
    assert ran.status == 2 and "rlx: tpu: device 'tpu'" in ran.err and rows(ran.out)["cpu"][-1] == "ok", (
        "the others still run"
    )
