"""`rlx devices`: the devices of this machine, and why others are missing."""

from __future__ import annotations

from rlx.cli.table import format_table
from rlx.driver import DeviceInfo
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
            _runs(info),
        )
        for info in found
    ]
    for line in format_table(_TITLES, rows, right={"memory", "free"}):
        print(line)
    print(note)
    print(f"cpu: {who_runs()}")
    for backend, reason in reasons.items():
        print(f"{backend}: not available: {short_reason(backend, reason)}")
    print(f"ranks: {meeting(found)}")


def software(info: DeviceInfo, engine: str | None = None) -> str:
    """What runs programs on a device, with its version: a GPU's driver, or on the CPU the compiled kernels beside
    NumPy, or NumPy alone. `engine` as in `Session`."""
    from rlx.backends.cpu.choice import usable

    if info.kind == "cpu" and usable(engine):
        return f"llvmlite {_version('llvmlite')}, {info.driver}"
    return info.driver


def full_name(info: DeviceInfo, engine: str | None = None) -> str:
    """The name of a device and what runs programs there; `engine` as in `Session`."""
    runs = software(info, engine)
    return runs if info.name.split()[0] in info.driver else f"{info.name}, {runs}"


def _runs(info: DeviceInfo) -> str:
    """As `software`, but for a value of RLX_CPU that is none, which the line on the CPU says."""
    try:
        return software(info)
    except RlxError:
        return info.driver


def who_runs() -> str:
    """Whether programs on the CPU have compiled kernels, and why not."""
    from rlx.backends.cpu.choice import usable, why_not

    try:
        if usable(None):
            return f"kernels compiled by llvmlite {_version('llvmlite')}"
        return f"NumPy runs programs: {why_not() or 'the environment asks for it (RLX_CPU)'}"
    except RlxError as error:
        return str(error)


def meeting(found: list[DeviceInfo]) -> str:
    """How ranks of a mesh meet here, and why not by MPI and NCCL."""
    from rlx.ranks.mpi import why_not

    parts = [f"no MPI, {why}" if (why := why_not()) else f"MPI by mpi4py {_version('mpi4py')}"]
    if any(info.backend == "cuda" for info in found):
        from rlx.backends.cuda.nccl import why_not as without

        parts.append(f"no NCCL, so that CUDA's go through the host: {why}" if (why := without()) else "NCCL on CUDA")
    return "threads meet in memory; " + "; ".join(parts)


def _gib(nbytes: int | None) -> str:
    return "unknown" if nbytes is None else f"{nbytes / 2**30:.1f} GiB"


def short_reason(backend: str, reason: str) -> str:
    """The reason without the backend's name before it, which the line already shows."""
    name, colon, rest = reason.partition(": ")
    return rest if colon and name.lower().removeprefix("backend ") == backend else reason


def _version(package: str) -> str:
    from importlib.metadata import version  # its import takes longer than this module's

    return version(package)
