"""The file that the outcomes of `python -m rlx.conformance` are kept in, by what they depend on."""

from __future__ import annotations

from rlx.backends.cpu.machine import Machine
from rlx.conformance.__main__ import digest
from rlx.runtime import Session


def test_outcomes_of_other_kernels_of_the_cpu_have_a_file_of_their_own() -> None:
    """Else a run limited by RLX_CPU_FEATURES would find all cases done already, and test nothing."""
    info = Session("cpu").info
    least = frozenset({"avx2", "fma", "f16c"})
    machines = [None, Machine("x86_64", least), Machine("x86_64", least | {"avx512f"}), Machine("aarch64", least)]
    assert len({digest(info, machine) for machine in machines}) == len(machines)
    assert digest(info, machines[1]) == digest(info, Machine("x86_64", least))
