"""The forms of the compiled engine's kernels, each by the features of a processor that it needs.

A test parametrized by `on_machines` or `on_multipliers` runs each form that the processor has, as RLX_CPU_FEATURES
leaves it, and skips the others by name. The ids of such tests have the forms' names, so `-k amx` selects one, and a run
ends with a line that says which forms it exercised.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from rlx.backends.cpu.machine import FEATURES_ENV, Machine, this_machine

_AVX2 = frozenset({"avx2", "fma", "f16c"})
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}


@dataclass(frozen=True, slots=True)
class Form:
    """The architecture and the features that a form needs, and the features that it must not use."""

    arch: str
    needs: frozenset[str] = frozenset()
    withheld: tuple[str, ...] = ()


FORMS = {
    "amx": Form("x86_64", _AVX512 | {"amx-tile", "amx-bf16", "amx-int8"}),
    "avx512": Form("x86_64", _AVX512, ("amx-tile",)),
    "avx2": Form("x86_64", _AVX2, ("amx-tile", "avx512f")),
    "neon": Form("aarch64"),
}
# The same for products of bytes, which one instruction of VNNI multiplies.
MULTIPLIERS = {
    "avx512vnni": Form("x86_64", _AVX512 | {"avx512vnni"}, ("amx-tile",)),
    "avx512": Form("x86_64", _AVX512, ("amx-tile", "avx512vnni")),
    "avxvnni": Form("x86_64", _AVX2 | {"avxvnni"}, ("amx-tile", "avx512f")),
    "avx2": Form("x86_64", _AVX2, ("amx-tile", "avx512f", "avxvnni")),
    "neon": Form("aarch64"),
}
EVERY = FORMS | MULTIPLIERS
_NAMED = re.compile(rf"[-\[]({'|'.join(sorted(EVERY, key=len, reverse=True))})(?=[-\]])")


def lacking(form: Form) -> str | None:
    """Why the form cannot run here; None where it can."""
    found = this_machine()
    if found is None:
        return "the engine has no kernels for this processor"
    if found.arch != form.arch:
        return f"the processor is {found.arch}"
    missing = sorted(form.needs - found.features)
    asked = os.environ.get(FEATURES_ENV)
    who = "the processor has" if asked is None else f"{FEATURES_ENV} or the processor has"
    return f"{who} no {', '.join(missing)}" if missing else None


def machine_of(form: Form) -> Machine | None:
    """The processor at hand with the features of the form, or None."""
    found = this_machine()
    return found.without(*form.withheld) if found is not None and lacking(form) is None else None


def _parameters(forms: dict[str, Form]) -> list[Any]:
    """The forms of this architecture: the others would be thousands of skipped tests."""
    found = this_machine()
    parameters = []
    for name, form in forms.items():
        if found is None or form.arch == found.arch:
            marks = [pytest.mark.skip(reason=f"{name}: {why}")] if (why := lacking(form)) else []
            parameters.append(pytest.param(machine_of(form), id=name, marks=marks))
    return parameters


on_machines = pytest.mark.parametrize("machine", _parameters(FORMS))
on_multipliers = pytest.mark.parametrize("machine", _parameters(MULTIPLIERS))


def machines() -> list[Machine]:
    """The machines of FORMS that run here."""
    return [machine for form in FORMS.values() if (machine := machine_of(form)) is not None]


def form_of(nodeid: str) -> str | None:
    """The form that a test's id names."""
    if "test_engine_aarch64.py" in nodeid:
        return "neon"
    found = _NAMED.search(nodeid) if "tests/cpu/" in nodeid else None
    return found[1] if found else None


def told(ran: Iterable[str], skipped: dict[str, str]) -> str:
    """The line that a run ends with: the forms that it exercised, and why it skipped others."""
    ran, found = set(ran), this_machine()
    parts = []
    for name, form in EVERY.items():
        if name in ran:
            continue
        why = skipped.get(name) or lacking(form) or "no test of this run needs it"
        if form.arch == "aarch64" and found is not None and found.arch != form.arch:
            why += "; `make late` emulates it"
        parts.append(f"{name} ({why})")
    exercised = ", ".join(name for name in EVERY if name in ran) or "none"
    return f"CPU forms exercised: {exercised}; skipped: {', '.join(parts) or 'none'}"
