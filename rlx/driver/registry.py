"""The registry of backends and devices: the entry point group `rlx.backends`, and the device that a name means."""

from __future__ import annotations

import importlib
import os
import re
from functools import cache
from typing import cast

from rlx.driver.device import Backend, Device, DeviceInfo
from rlx.errors import DeviceUnavailable, meant
from rlx.host.background import importing
from rlx.host.environment import warn_unknown_variables

GROUP = "rlx.backends"
# These are known without installed metadata; "auto" prefers them in this order.
_BUILTIN = {
    "cuda": "rlx.backends.cuda:backend",
    "vulkan": "rlx.backends.vulkan:backend",
    "cpu": "rlx.backends.cpu:backend",
}

# Other words that people use for GPUs, each with the words found in the names of such GPUs and their drivers.
_MAKERS = {
    **dict.fromkeys(("amd", "radeon", "rocm", "hip"), ("amd", "radeon", "radv")),
    **dict.fromkeys(("intel", "arc"), ("intel",)),
    **dict.fromkeys(("nvidia", "geforce"), ("nvidia", "geforce")),
}
# Other device names that people try, and what to write instead.
_OTHERS = {
    **dict.fromkeys(("metal", "mps", "apple", "coreml"), 'GPUs of Apple run by MoltenVK, as "vulkan"'),
    **dict.fromkeys(("opencl", "sycl", "oneapi", "xpu", "directml", "dml", "dx", "webgpu", "wgpu", "opengl", "vk",
                     "qualcomm", "adreno", "mali", "powervr", "moltenvk"),
                    'GPUs of every maker run as "vulkan"'),
    **dict.fromkeys(("zluda", "navi", "rdna", "cdna", "rx"), 'GPUs of AMD are "amd", or "vulkan" and a number; through '
                    "CUDA rlx runs NVIDIA's alone"),
    **dict.fromkeys(("npu", "tpu", "xdna", "qnn", "openvino"), "rlx runs on CPUs and on GPUs"),
    **dict.fromkeys(("lavapipe", "swiftshader", "software"),
                    'software drivers of Vulkan are among "vulkan" and a number'),
    **dict.fromkeys(("none", "host", "x86"), 'the processor is "cpu"'),
    **dict.fromkeys(("radv", "amdvlk", "amdgpu", "gfx"), 'GPUs of AMD are "amd", or "vulkan" and a number'),
    **dict.fromkeys(("igpu", "dgpu"), "`rlx devices` lists the GPUs, each with its id"),
    "gpu": 'did you mean "auto", which takes a GPU where there is one?',
    "all": "one name means one device; `rlx check`, `bench` and `inspect` take all that are no software drivers where "
    "none is named",
}  # fmt: skip


@cache
def _entry_points() -> dict[str, str]:
    """Name -> "module:attribute" of every installed backend, the built-in ones first."""
    from importlib.metadata import entry_points  # here, since it takes longer than the rest of rlx.driver

    return _BUILTIN | {e.name: e.value for e in entry_points(group=GROUP) if e.name not in _BUILTIN}


@cache
def backend_names() -> tuple[str, ...]:
    """Every backend's name, the built-in ones first."""
    return tuple(_entry_points())


@cache
def load_backend(name: str) -> Backend:
    """The backend of that name. Raises: DeviceUnavailable if there is none or it cannot be imported."""
    targets = _BUILTIN if name in _BUILTIN else _entry_points()
    if name not in targets:
        raise DeviceUnavailable(f"there is no backend {name!r}; there are {', '.join(sorted(targets))}")
    module, _, attribute = targets[name].partition(":")
    try:
        return cast(Backend, getattr(importlib.import_module(module), attribute))
    except ImportError as error:
        raise DeviceUnavailable(f"backend {name}: {error}") from error


def probe_all() -> tuple[list[DeviceInfo], dict[str, str]]:
    """All devices, best first, and the reason for each backend that has none."""
    infos_of_all: list[DeviceInfo] = []
    reasons: dict[str, str] = {}
    for name in backend_names():
        try:
            infos = load_backend(name).probe()
        except DeviceUnavailable as error:
            reasons[name] = str(error)
            continue
        if not infos:
            reasons[name] = f"no {name} device found"
        infos_of_all += infos
    return infos_of_all, reasons


def devices() -> list[DeviceInfo]:
    """The devices of this machine, from every backend."""
    return probe_all()[0]


def hardware() -> tuple[list[str], list[str]]:
    """The ids of all devices but software drivers, which may take minutes for what others do in a second; and a line of
    text for each device left out."""
    infos = devices()
    left_out = [
        f"{i.id} ({i.name}) is a software driver: left out; --device {i.id} takes it in"
        for i in infos
        if i.kind == "software"
    ]
    return [i.id for i in infos if i.kind != "software"], left_out


def choose_auto() -> DeviceInfo:
    """The device that "auto" means; the environment variable RLX_DEVICE overrides it.

    It is CUDA, then a hardware Vulkan device (discrete first), then the CPU; never a software Vulkan driver."""
    asked = os.environ.get("RLX_DEVICE", "auto")
    if asked != "auto":
        try:
            return find_device(asked)
        except DeviceUnavailable as error:
            raise DeviceUnavailable(f"RLX_DEVICE: {error}") from None
    kinds = ("discrete", "integrated", "virtual", "cpu")
    for backend in backend_names():
        try:
            infos = load_backend(backend).probe()
        except DeviceUnavailable:
            continue  # `rlx devices` shows the reason
        usable = sorted((i for i in infos if i.kind in kinds), key=lambda i: kinds.index(i.kind))
        if usable:
            return usable[0]
    raise DeviceUnavailable("no device at all: the CPU backend is missing from this installation")


def find_device(name: str) -> DeviceInfo:
    """The device that a name such as "cpu", "vulkan", "cuda:1" or "auto" means.

    Raises: DeviceUnavailable with the reason and the available devices.
    """
    if name == "auto":
        return choose_auto()
    if not isinstance(name, str):
        raise DeviceUnavailable(
            f'a device is named by a string, "cpu" or the id of one of rlx.devices(), not by a {type(name).__name__}'
            + (f"; give its id, {name.id!r}" if isinstance(name, DeviceInfo) else "")
        )
    backend, _, number = name.partition(":")
    if backend.lower() in _MAKERS and (not number or number.isdecimal()):
        return _of_maker(name, _MAKERS[backend.lower()], int(number or 0))
    if (backend not in _BUILTIN and backend not in backend_names()) or (number and not number.isdecimal()):
        raise DeviceUnavailable(
            f'device {name!r} is not understood{_instead_of(name)}; give "auto", "cpu", "vulkan", "cuda" or one with a '
            'number, "cuda:1" (rlx.devices() lists them, each with its id)'
        )
    infos = load_backend(backend).probe()
    if not infos:
        raise DeviceUnavailable(
            f"device {name!r}: no {backend} device found; `rlx devices` shows what there is"
        )
    if not number:
        return min(infos, key=lambda i: i.kind == "software")
    for info in infos:
        if info.index == int(number):
            return info
    raise DeviceUnavailable(f"device {name!r}: there is only {', '.join(i.id for i in infos)}")


def _instead_of(name: str) -> str:
    """A hint in parentheses what to write instead of a name that means no device; "" if there is none."""
    backend = name.partition(":")[0].lower()
    if said := _OTHERS.get(backend) or _OTHERS.get(backend.rstrip("0123456789_")):
        return f" ({said})"
    if name.endswith((".onnx", ".gguf", ".rlx")):
        load = {"onnx": "rlx.onnx.load", "gguf": "rlx.models.load"}.get(name.rpartition(".")[2], "rlx.load_program")
        return f" ({load} takes the path of a file)"
    if numbered := re.fullmatch(r"(vulkan|cuda)_?(\d+)", name.lower()):  # as llama.cpp numbers them
        return f' (did you mean "{numbered[1]}:{numbered[2]}"?)'
    if len(name) > 3 and (called := [i.id for i in devices() if name.lower() in f"{i.name} {i.driver}".lower()]):
        return f' (did you mean "{called[0]}"?)'
    if "," in name:
        return " (one name means one device; commands that take several have a --device for each)"
    if name.isdecimal():
        return f' (a number follows a backend, as in "vulkan:{name}")'
    return meant(name, ("auto", *backend_names(), *_MAKERS))


def in_turns(name: str, place: int) -> str:
    """The id of the device for program number `place` among several on this machine: for a name without a number, the
    backend's devices in turn. Raises: DeviceUnavailable as `find_device`."""
    first = find_device(name)
    if ":" in name or (name == "auto" and ":" in os.environ.get("RLX_DEVICE", "")):
        return first.id
    alike = [d.id for d in load_backend(first.backend).probe() if d.kind == first.kind]
    return alike[place % len(alike)]


def _of_maker(name: str, words: tuple[str, ...], number: int) -> DeviceInfo:
    """The GPU of that number among those whose names have one of the words: its CUDA device if there is one, else its
    Vulkan device. Raises: DeviceUnavailable."""
    infos, reasons = probe_all()
    gpus = [i for i in infos if i.kind in ("discrete", "integrated", "virtual")]
    named = [i for i in gpus if any(word in f"{i.name} {i.driver}".lower() for word in words)]
    if len(named) <= number:
        seen = gpus or [i for i in infos if i.kind == "software"]
        here = ", ".join(f"{i.id} ({i.name})" for i in seen) or "no GPU"
        if seen and not gpus:
            here = f"no GPU but the software driver {here}"
        backends = backend_names() if "nvidia" in words else [n for n in backend_names() if n != "cuda"]
        why = "".join(f"; {backend}: {reasons[backend]}" for backend in backends if backend in reasons)
        raise DeviceUnavailable(f"device {name!r}: rlx finds {here} here{why}; `rlx doctor` says what to install")
    return named[number]


def _needed(name: str) -> tuple[str, ...]:
    """The modules that programs on a device need; they can be imported while its driver starts."""
    backend = name.partition(":")[0] if isinstance(name, str) else ""
    return getattr(load_backend(backend), "needed", ()) if backend in _BUILTIN else ()


# The resolved names of opened devices, cached since listing the devices of a driver takes milliseconds.
_opened: dict[str, tuple[str, int]] = {}


def open_device(name: str = "auto") -> Device:
    """Opens the device of that name; the same object each time. Raises: DeviceUnavailable."""
    device = _already_open(name)
    if device is not None:
        return device
    warn_unknown_variables()
    with importing(_needed(name)):
        info = find_device(name)
        device = load_backend(info.backend).open(info.index)
    _opened[_asked(name)] = info.backend, info.index
    return device


def info_of(name: str) -> DeviceInfo:
    """As `find_device`, without asking drivers again where the device is open. Raises: DeviceUnavailable."""
    device = _already_open(name)
    return find_device(name) if device is None else device.info


def _already_open(name: str) -> Device | None:
    known = _opened.get(_asked(name)) if isinstance(name, str) else None
    return None if known is None else load_backend(known[0]).opened(known[1])


def _asked(name: str) -> str:
    """The key of a name: for "auto" it includes the value of RLX_DEVICE."""
    return f"auto {os.environ.get('RLX_DEVICE', '')}" if name == "auto" else name
