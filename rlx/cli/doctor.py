"""`rlx doctor`: what rlx runs on here, what is missing, and the command that mends it."""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import typer

from rlx.cli.commands import own_version
from rlx.cli.devices import short_reason, software, who_runs
from rlx.cli.table import format_table
from rlx.driver import DeviceInfo
from rlx.driver.registry import choose_auto, probe_all
from rlx.errors import DeviceUnavailable, RlxError
from rlx.host.environment import unknown_variables

ROOT = Path("/")
_VENDORS = {"0x1002": "AMD", "0x8086": "Intel", "0x10de": "NVIDIA"}
# What each extra of the package brings, by the packages that it names, and who needs it.
_EXTRAS = {
    "hf": (("tokenizers", "jinja2"), "model folders, sentences and chats"),
    "mpi": (("mpi4py",), "ranks that are processes"),
    "onnx": (("onnx",), "ONNX models"),
    "ray": (("ray", "pyarrow"), "rlx.bulk and rlx embed --ray"),
    "serve": (("starlette", "uvicorn", "llguidance"), "rlx serve, JSON schemas and grammars"),
}
_INSTALL = {  # Linux's package managers install Mesa's drivers for AMD and Intel, and the loader, so
    "apt-get": "sudo apt-get install libvulkan1 mesa-vulkan-drivers",
    "dnf": "sudo dnf install vulkan-loader mesa-vulkan-drivers",
    "pacman": "sudo pacman -S vulkan-icd-loader vulkan-radeon vulkan-intel",
    "zypper": "sudo zypper install libvulkan1 libvulkan_radeon libvulkan_intel",
    "apk": "sudo apk add vulkan-loader mesa-vulkan-ati mesa-vulkan-intel",
}


class Finding(NamedTuple):
    """What was found of a part. `state`: "ok", "missing" (something here cannot be used), or "none" (not needed, or not
    asked for); `mend` is the command that changes it."""

    part: str
    state: str
    what: str
    mend: str = ""


def doctor() -> None:
    """Say what rlx runs on here: devices, drivers, packages and settings, and for what is missing the command that
    mends it. Exit status 1 where a part of this machine cannot be used."""
    found = [*_findings()]
    print("\n".join(format_table(("part", "", "what there is"), [(f.part, f.state, f.what) for f in found])))
    if commands := dict.fromkeys((f.mend, f.part) for f in found if f.mend):
        print("\nto mend or add:")
        print("\n".join(f"  {command}   # {part}" for command, part in commands))
    if any(f.state == "missing" for f in found):
        raise typer.Exit(1)


def _findings() -> Iterator[Finding]:
    system = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    yield Finding("rlx", "ok", f"{own_version()} on {system}, NumPy {version('numpy')}")
    yield _cpu()
    infos, reasons = probe_all()
    yield from _vulkan([i for i in infos if i.backend == "vulkan"], reasons.get("vulkan"))
    yield _cuda([i for i in infos if i.backend == "cuda"], reasons.get("cuda"))
    try:
        yield Finding("auto", "ok", f"{choose_auto().id} is what a program without a device takes")
    except DeviceUnavailable as error:
        yield Finding("auto", "missing", str(error), "unset RLX_DEVICE")
    for extra, (packages, why) in _EXTRAS.items():
        yield _packages(extra, packages, why)
    yield _package("huggingface_hub", "rlx pull")
    yield _cache()
    for line in unknown_variables():
        yield Finding("settings", "missing", line, f"unset {line.split()[3]}")


def _cpu() -> Finding:
    from rlx.backends.cpu.choice import usable, why_not

    try:
        if usable(None) or not (why := why_not()):
            from rlx.backends.cpu.compile import too_old

            if why := too_old():
                return Finding("cpu", "missing", f"NumPy runs programs: {why}", "pip install -U llvmlite")
            return Finding("cpu", "ok", who_runs())
    except RlxError as error:
        return Finding("cpu", "missing", str(error), "unset RLX_CPU")
    lacks = "llvmlite" in why
    return Finding("cpu", "missing" if lacks else "none", who_runs(), "pip install llvmlite" if lacks else "")


def _gpus() -> set[str]:
    """The makers of the GPUs that this machine's kernel lists."""
    seen = set()
    for file in ROOT.glob("sys/bus/pci/devices/*/vendor"):
        try:
            kind, vendor = (file.parent / "class").read_text().strip(), file.read_text().strip()
        except OSError:
            continue
        if kind.startswith("0x03") and vendor in _VENDORS:  # display controllers
            seen.add(_VENDORS[vendor])
    return seen | ({"NVIDIA"} if _nvidia() else set())


def _nvidia() -> str | None:
    """The version of NVIDIA's driver; None without it."""
    try:
        found = re.search(r"Kernel Module\D*([\d.]+)", (ROOT / "proc/driver/nvidia/version").read_text())
    except OSError:
        return None
    return found[1] if found else None


def _vulkan(infos: list[DeviceInfo], reason: str | None) -> Iterator[Finding]:
    gpus = sorted(_gpus())
    hardware = [i for i in infos if i.kind != "software"]
    for info in infos:
        yield Finding("vulkan", "ok", f"{info.id}: {info.name}, {info.kind}, {software(info)}")
    if hardware:
        return
    why = "only software drivers" if infos else short_reason("vulkan", reason or "no device found")
    if not gpus:
        yield Finding("vulkan", "none", f"{why}; this machine lists no GPU of {', '.join(sorted(_VENDORS.values()))}")
        return
    nodes = [*ROOT.glob("dev/dri/renderD*")]
    what = f"{why}, though there is a GPU of {' and of '.join(gpus)}"
    if nodes and not any(os.access(node, os.R_OK | os.W_OK) for node in nodes):
        mend = "sudo usermod -aG render $USER"
        what += f"; {nodes[0]} cannot be opened by this user (log in again after the command)"
    elif reason and "package vulkan" in reason:
        mend = "pip install vulkan"
    elif gpus == ["NVIDIA"]:
        mend = "sudo apt-get install libvulkan1" if "loader" in why and shutil.which("apt-get") else ""
        what += "; NVIDIA's driver brings its own part of Vulkan"
    else:
        mend = next((command for manager, command in _INSTALL.items() if shutil.which(manager)), "")
    yield Finding("vulkan", "missing", what, mend)


def _cuda(infos: list[DeviceInfo], reason: str | None) -> Finding:
    if infos:
        return Finding("cuda", "ok", "; ".join(f"{i.id}: {i.name}, {software(i)}" for i in infos))
    why, driver = short_reason("cuda", reason or "no device found"), _nvidia()
    if "NVIDIA" not in _gpus():
        return Finding("cuda", "none", "this machine lists no NVIDIA GPU")
    if driver is None:
        managers = {"ubuntu-drivers": "sudo ubuntu-drivers install", "apt-get": "sudo apt-get install nvidia-driver"}
        mend = next((command for manager, command in managers.items() if shutil.which(manager)), "")
        return Finding("cuda", "missing", f"an NVIDIA GPU without NVIDIA's driver, which CUDA needs; {why}", mend)
    major = int(driver.partition(".")[0])
    if major < 525:
        return Finding("cuda", "missing", f"NVIDIA's driver {driver}; CUDA 12 needs 525 or newer, 13 needs 580")
    extra = "cuda13x" if major >= 580 else "cuda12x"
    return Finding("cuda", "missing", f"NVIDIA's driver {driver}; {why}", f"pip install 'rlx[{extra}]'")


def _packages(extra: str, packages: tuple[str, ...], why: str) -> Finding:
    have = {name: _version(name) for name in packages}
    listed = ", ".join(f"{name} {number or 'missing'}" for name, number in have.items())
    if all(have.values()):
        return Finding(extra, "ok", listed)
    return Finding(extra, "none", f"{listed}: for {why}", f"pip install 'rlx[{extra}]'")


def _package(name: str, why: str) -> Finding:
    number = _version(name)
    return Finding(name, "ok", number) if number else Finding(name, "none", f"for {why}", f"pip install {name}")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cache() -> Finding:
    """Whether compiled kernels can be kept."""
    from rlx.host.diskcache import DiskCache

    folder = DiskCache("cpu").folder
    if folder is None:
        return Finding("cache", "ok", "off, as RLX_CACHE_DIR says: kernels are compiled anew in each process")
    there = next(part for part in (folder, *folder.parents) if part.exists())
    if os.access(there, os.W_OK | os.X_OK):
        return Finding("cache", "ok", f"compiled kernels are kept in {folder.parent}")
    what = f"{there} cannot be written, so that kernels are compiled anew in each process"
    return Finding("cache", "missing", what, "export RLX_CACHE_DIR=$HOME/.cache/rlx")
