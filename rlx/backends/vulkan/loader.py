"""The Vulkan loader of this system, and the C declarations by which its functions are called.

The package `vulkan` brings the declarations. Its own module of Python wrappers is not loaded: it takes long, and knows
fewer names of the loader.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from rlx.errors import DeviceUnavailable


class Binding(NamedTuple):
    """The binding's cffi pair: `ffi` makes and reads C data, `lib` has the loader's functions and the constants."""

    ffi: Any
    lib: Any


def library_names(platform: str = sys.platform) -> list[str]:
    """What the loader may be called on a platform, best first. A name without a folder is searched by the system.

    macOS has no Vulkan of its own: the SDK and Homebrew install a loader in folders that the system does not search,
    and MoltenVK, which carries Vulkan over to Metal, can be called without a loader.
    """
    if platform == "win32":
        return ["vulkan-1.dll"]
    if platform != "darwin":
        return ["libvulkan.so.1", "libvulkan.so"]
    folders = ["", *_sdk(), "/usr/local/lib", "/opt/homebrew/lib"]
    names = ("libvulkan.1.dylib", "libvulkan.dylib", "libMoltenVK.dylib")
    return [os.path.join(folder, name) for name in names for folder in folders]


def _sdk() -> Iterator[str]:
    if sdk := os.environ.get("VULKAN_SDK"):
        yield os.path.join(sdk, "lib")


def _advice(platform: str) -> str:
    if platform == "win32":
        return "install the GPU vendor's driver, which brings it"
    if platform == "darwin":
        return "install MoltenVK and a loader: brew install molten-vk vulkan-loader"
    return "install libvulkan1, and a driver: the GPU vendor's or mesa-vulkan-drivers"


@cache
def binding() -> Binding:
    """The loaded library. Raises: DeviceUnavailable without the package or without a Vulkan loader."""
    try:
        ffi = _declarations()
    except ImportError as error:
        raise DeviceUnavailable(
            f"the Python package vulkan cannot be imported ({error}); pip install vulkan"
        ) from error
    names = library_names()
    for name in names:
        try:
            return Binding(ffi, ffi.dlopen(name))
        except OSError:
            continue
    raise DeviceUnavailable(f"no Vulkan loader ({names[0]}) on this machine; {_advice(sys.platform)}")


def _declarations() -> Any:
    """The `ffi` of the package, from its file: importing the package would run its wrappers."""
    package = importlib.util.find_spec("vulkan")
    places = package.submodule_search_locations if package is not None else None
    files = [file for place in places or () if (file := Path(place) / "_vulkancache.py").is_file()]
    if not files:
        raise ImportError("it is not installed")
    spec = importlib.util.spec_from_file_location("vulkan._vulkancache", files[0])
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.ffi
