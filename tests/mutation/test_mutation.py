"""Faults planted in the kernels are noticed by the conformance cases: a few here, all of them with `make mutation`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rlx.backends.cpu import choice
from rlx.conformance.guarded import guarded_faults
from rlx.driver.registry import open_device
from tests.devices import device_here
from tests.full import some
from tests.gpu import cuda_host
from tests.mutation.__main__ import places, plant
from tests.mutation.cpu_faults import CPU_FAULTS, CPU_SAMPLE
from tests.mutation.fault import CPU, CUDA, ENGINE, NUMPY, VULKAN, Fault, cases_for
from tests.mutation.faults import FAULTS, SAMPLE
from tests.mutation.on_cpu import ROOT, asked, copied, planted_in
from tests.mutation.planting import narrow_grids, planted_copy, planted_modules, through_cuda

_BY_NAME = {f.name: f for f in (*FAULTS, *CPU_FAULTS)}


def _need(fault: Fault) -> None:
    if fault.where == CUDA:
        if cuda_host.compiler() is None:
            pytest.skip("no C++ compiler here")
        return
    if shutil.which("glslangValidator") is None and shutil.which("glslang") is None:
        pytest.skip("no GLSL compiler here")
    device_here("vulkan")


@pytest.mark.vulkan
@pytest.mark.parametrize("name", SAMPLE)
@pytest.mark.late
def test_a_planted_fault_is_noticed(name: str) -> None:
    _need(_BY_NAME[name])
    assert plant(_BY_NAME[name])


@pytest.mark.skipif(choice.why_not() is not None, reason=f"no compiled engine: {choice.why_not()}")
@pytest.mark.parametrize("name", CPU_SAMPLE)
@pytest.mark.late
def test_a_planted_fault_of_the_cpu_is_noticed(name: str) -> None:
    fault = _BY_NAME[name]
    assert all(plant(fault, where) for where in places(fault))


@pytest.mark.skipif(choice.why_not() is not None, reason=f"no compiled engine: {choice.why_not()}")
@pytest.mark.late
def test_a_copy_without_a_fault_passes(tmp_path: Path) -> None:
    copied(tmp_path)
    fault = _BY_NAME["engine, dynamic slice: starts clamped one too far"]
    for engine in (ENGINE, NUMPY):
        assert asked(fault, engine, tmp_path) == ""


@pytest.mark.vulkan
def test_sources_without_a_fault_pass(tmp_path: Path) -> None:
    """What notices the faults is quiet about sources that were copied and compiled the same way."""
    fault = Fault("none", "half.h", "p_f16_bits", "p_f16_bits", ("softmax", "gather", "cast"))
    _need(fault)
    device = open_device("vulkan")
    changed = planted_copy(fault, tmp_path)
    with planted_modules(tmp_path, changed), narrow_grids(device):
        for case in some(cases_for(fault)[::12], 8):
            assert guarded_faults(device, case) == ""


@pytest.mark.skipif(cuda_host.compiler() is None, reason="no C++ compiler here")
def test_cuda_sources_without_a_fault_pass() -> None:
    fault = Fault("none", "half.h", "", "", ("sum",), CUDA, ("sum-f32-",))
    for case in cases_for(fault)[:12]:
        assert through_cuda(case) == ""


@pytest.mark.late
def test_every_fault_can_still_be_planted(tmp_path: Path) -> None:
    """A kernel that was rewritten needs its faults rewritten."""
    assert len(FAULTS) >= 20 and len(_BY_NAME) == len(FAULTS) + len(CPU_FAULTS)
    assert {*SAMPLE, *CPU_SAMPLE} <= set(_BY_NAME)
    for number, fault in enumerate(FAULTS):
        assert fault.old != fault.new
        assert cases_for(fault), fault.name
        planted_copy(fault, tmp_path / str(number))
    for fault in CPU_FAULTS:
        assert fault.old != fault.new
        assert fault.tests or cases_for(fault), fault.name
        planted_in(fault, ROOT, tmp_path)
    assert {f.where for f in _BY_NAME.values()} == {VULKAN, CUDA, ENGINE, NUMPY, CPU}
