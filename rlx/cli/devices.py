"""`rlx devices`: the devices of this machine, and why others are missing."""

from __future__ import annotations

from importlib.metadata import version

from rlx.cli.table import format_table
from rlx.driver.registry import choose_auto, probe_all
from rlx.errors import DeviceUnavailable, RlxError

_TITLES = ("device", "name", "kind", "memory", "free", "driver")


def devices() -> None:
    """List the devices of this machine, and for each backend without one the reason."""
    found, reasons = probe_all()
    try:
        auto, note = choose_auto().id, '* is what device="auto" uses'
    except DeviceUnavailable as error:  # RLX_DEVICE names a device that is missing
        auto, note = "", f'device="auto" finds none: {error}'
    rows = [
        (
            info.id + (" *" if info.id == auto else ""),
            info.name,
            info.kind,
            _gib(info.memory_bytes),
            _gib(info.free_bytes()),
            info.driver,
        )
        for info in found
    ]
    for line in format_table(_TITLES, rows, right={"memory", "free"}):
        print(line)
    print(note)
    print(f"cpu: {_who_runs()}")
    for backend, reason in reasons.items():
        print(f"{backend}: not available: {short_reason(backend, reason)}")


def _who_runs() -> str:
    """Whether programs on the CPU have compiled kernels, and why not."""
    from rlx.backends.cpu.engine.choice import usable, why_not

    try:
        if usable(None):
            return f"kernels compiled by llvmlite {version('llvmlite')}"
        return f"NumPy runs programs: {why_not() or 'the environment asks for it (RLX_CPU)'}"
    except RlxError as error:
        return str(error)


def _gib(nbytes: int | None) -> str:
    return "unknown" if nbytes is None else f"{nbytes / 2**30:.1f} GiB"


def short_reason(backend: str, reason: str) -> str:
    """The reason without the backend's name before it, which the line already shows."""
    name, colon, rest = reason.partition(": ")
    return rest if colon and name.lower().removeprefix("backend ") == backend else reason
