"""`rlx devices`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rlx.cli.devices import short_reason
from rlx.driver.registry import probe_all
from rlx.errors import EnvironmentWarning
from rlx.host.environment import KNOWN, warn_unknown_variables
from tests.cli.conftest import Rlx


def test_every_device_has_a_whole_row_and_every_missing_backend_a_reason(
    rlx: Rlx, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")  # no line may be cut or wrapped
    found, reasons = probe_all()
    ran = rlx("devices")
    assert ran.status == 0 and ran.err == ""
    lines = ran.out.splitlines()
    assert lines[0].split() == ["device", "name", "kind", "memory", "free", "driver"]
    for info, line in zip(found, lines[1:], strict=False):
        assert (
            line.startswith(info.id)
            and info.name in line
            and info.kind in line
            and line.endswith(info.driver)
        )
    assert sum(" * " in line for line in lines[1 : 1 + len(found)]) == 1
    for backend in reasons:
        assert sum(line.startswith(f"{backend}: not available: ") for line in lines) == 1
    assert len(lines) == 4 + len(found) + len(reasons)
    assert lines[-1].startswith("ranks: threads meet in memory; ") and "MPI" in lines[-1]
    assert lines[2 + len(found)].startswith(("cpu: kernels compiled by llvmlite", "cpu: NumPy runs programs: "))


def test_a_wrong_rlx_device_does_not_hide_the_list(rlx: Rlx, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_DEVICE", "cuda:99")
    ran = rlx("devices")
    assert ran.status == 0
    assert 'device="auto" finds none: ' in ran.out and "\ncpu " in ran.out


def test_what_is_missing_has_its_reason(rlx: Rlx, monkeypatch: pytest.MonkeyPatch) -> None:
    from rlx.driver import registry
    from rlx.errors import DeviceUnavailable

    class Absent:
        name = "cuda"

        def probe(self) -> list[object]:
            raise DeviceUnavailable("CUDA: the driver is too old: need 525, have 470; install a newer one")

    real = registry.load_backend
    monkeypatch.setattr(registry, "load_backend", lambda name: Absent() if name == "cuda" else real(name))
    ran = rlx("devices")
    assert (
        "\ncuda: not available: the driver is too old: need 525, have 470; install a newer one\n" in ran.out
    )


@pytest.mark.parametrize(
    ("reason", "short"),
    [
        ("CUDA: no driver", "no driver"),
        ("backend cuda: cannot load libcuda: gone", "cannot load libcuda: gone"),
        ("no cuda device found", "no cuda device found"),
        ("libcuda: gone", "libcuda: gone"),
    ],
)
def test_the_backend_is_not_named_twice(reason: str, short: str) -> None:
    assert short_reason("cuda", reason) == short


def test_a_variable_that_is_none_is_named(rlx: Rlx, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_DEVISE", "cpu")
    monkeypatch.setenv("RLX_TEST_ANYTHING", "1")
    ran = rlx("devices")
    assert ran.status == 0 and ran.err.count("RLX_") == 2, ran
    assert "RLX_DEVISE is none of rlx's and changes nothing (did you mean 'RLX_DEVICE'?)" in ran.err
    with pytest.warns(EnvironmentWarning, match="RLX_DEVISE"):
        warn_unknown_variables()


def test_every_variable_is_explained() -> None:
    page = (Path(__file__).parents[2] / "docs/env.md").read_text()
    rows = set(re.findall(r"^\| `(RLX_[A-Z_]+)` \|", page, re.MULTILINE))
    assert {name for name in rows if not name.startswith(("RLX_TEST_", "RLX_REQUIRE_"))} == KNOWN
