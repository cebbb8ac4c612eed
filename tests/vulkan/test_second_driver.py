"""The conformance sample on a second software driver, SwiftShader, in processes of its own. It has subgroups of four,
no f64, no 64-bit integers, no storage of 8 or 16 bits, and its compiler dies of what shipped modules may not hold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rlx.backends.vulkan
from rlx.backends.gpu.elementwise.spirv import Op, words_of
from rlx.ir import REGISTRY
from tests.full import full

# By family, since ops of a family share kernels, whose compiling is what takes time.
OPS = sorted((name for name, op in REGISTRY.items() if not op.leaf), key=lambda name: (REGISTRY[name].family, name))
# Kernels that SwiftShader compiles for a quarter of a minute each, and ops that are such transforms there; those that
# it compiles for more than a second, of families that have another one here; and products of packed weights with int8.
LEFT_OUT = {"fft", "segment_power", "segment_spectra", "segment_signal", "block_convolution", "attention_dq"}
LEFT_OUT |= {"layer_norm", "rms_norm", "add_norm", "norm_grad", "packed_matmul_int8", "grouped_packed_matmul_int8"}
LEFT_OUT |= {"grouped_packed_matmul", "dequantize", "group_norm"}
if not full():  # one op of each kernel, and some of those without a kernel of their own
    kernels = {REGISTRY[name].kernel or name: name for name in OPS}
    assert kernels.keys() >= LEFT_OUT, "a kernel that no op has any more"
    OPS = sorted((name for kernel, name in kernels.items() if kernel not in LEFT_OUT), key=OPS.index)
    trees = [name for name in OPS if REGISTRY[name].family == "elementwise" and REGISTRY[name].kernel is None]
    OPS = [name for name in OPS if name not in trees or trees.index(name) % 4 == 0]
    OPS = OPS[::2] + OPS[1::2]  # two parts that take equally long
PARTS = 5 if full() else 2  # each is a process, and has its turn on one of the suite's workers
SPIRV = Path(rlx.backends.vulkan.__file__).parent / "spirv"
_STORAGE_BUFFER = 5349  # the storage class of what an address points to


@pytest.fixture
def env(repo: Path) -> dict[str, str]:
    """An environment in which SwiftShader is the only Vulkan driver."""
    described = repo / ".tools/swiftshader/vk_swiftshader_icd.json"
    if not described.exists():
        why = f"SwiftShader is not in {described.parent}; tools/system.sh swiftshader"
        if os.environ.get("RLX_REQUIRE_SWIFTSHADER", "0") not in ("", "0"):
            pytest.fail(why)
        pytest.skip(why)
    return {**os.environ, "VK_DRIVER_FILES": str(described), "VK_ICD_FILENAMES": "", "PYTHONPATH": str(repo)}


def _lines(env: dict[str, str], repo: Path, ops: list[str]) -> list[dict[str, Any]]:
    """What the process says before it ends, or dies."""
    command = [sys.executable, "-m", "tests.vulkan.second_driver", *ops]
    done = subprocess.run(command, cwd=repo, env=env, capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"status {done.returncode} after {lines[-1:]}\n{done.stderr[-2000:]}"
    return lines


@pytest.mark.vulkan
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.late
def test_the_sample_passes_on_swiftshader(part: int, env: dict[str, str], repo: Path) -> None:
    about, *lines = _lines(env, repo, OPS[part * len(OPS) // PARTS : (part + 1) * len(OPS) // PARTS])
    assert "SwiftShader" in about["device"]
    assert not about["auto"].startswith("vulkan"), "auto takes no software driver"
    cases = [{**case, **outcome} for case, outcome in zip(lines[::2], lines[1::2], strict=True)]
    assert [c for c in cases if c["status"] != "pass"] == []
    # It stores words of 32 bits, and computes in them: what has no dtype of 64 runs on the device.
    assert [c["case"] for c in cases if c["host"] and not {"f64", "i64"} & set(c["dtypes"])] == []


def test_no_module_holds_what_swiftshader_dies_of() -> None:
    """A cast of an address from one pointer type to another, and an address chosen of two: both are valid, and both
    are as short by way of two words."""
    assert [fault for module in sorted(SPIRV.glob("*.spv")) for fault in _faults(module)] == []


def _faults(module: Path) -> Iterator[str]:
    words = words_of(module.read_bytes())
    pointers: set[int] = set()
    typed: set[int] = set()
    other = (Op.TypePointer, Op.TypeForwardPointer, Op.Name, Op.Decorate)
    at = 5
    while at < len(words):  # a type precedes what has it, and an address what reads it
        op, first = words[at] & 0xFFFF, words[at + 1] if words[at] >> 16 > 1 else 0
        if op == Op.TypePointer and words[at + 2] == _STORAGE_BUFFER:
            pointers.add(first)
        elif first in pointers and op not in other:
            typed.add(words[at + 2])
            if op == Op.Bitcast and words[at + 3] in typed:
                yield f"{module.name}, word {at}: a cast of a pointer"
            elif op in (Op.Phi, Op.Select):
                yield f"{module.name}, word {at}: a pointer that is chosen"
        at += words[at] >> 16
