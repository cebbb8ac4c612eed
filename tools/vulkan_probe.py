"""Tells by its exit status whether this machine has a Vulkan device, using only the standard library.

Exit status: 0 the loader finds a device, 3 there is no Vulkan loader, 4 there is a loader but no device. A driver
manifest on disk proves little (images contain those of absent GPUs), so the loader is asked for its devices.
"""

from __future__ import annotations

import ctypes
import sys

NO_LOADER, NO_DEVICE = 3, 4


class InstanceCreateInfo(ctypes.Structure):
    """VkInstanceCreateInfo; sType 1, everything else zero."""

    _fields_ = (
        ("sType", ctypes.c_uint32),
        ("pNext", ctypes.c_void_p),
        ("flags", ctypes.c_uint32),
        ("pApplicationInfo", ctypes.c_void_p),
        ("enabledLayerCount", ctypes.c_uint32),
        ("ppEnabledLayerNames", ctypes.c_void_p),
        ("enabledExtensionCount", ctypes.c_uint32),
        ("ppEnabledExtensionNames", ctypes.c_void_p),
    )


def probe() -> int:
    """The exit status described above."""
    try:
        vk = ctypes.CDLL("libvulkan.so.1")
    except OSError:
        return NO_LOADER
    info = InstanceCreateInfo(sType=1)
    instance = ctypes.c_void_p()
    if vk.vkCreateInstance(ctypes.byref(info), None, ctypes.byref(instance)) != 0:
        return NO_DEVICE
    count = ctypes.c_uint32(0)
    status = vk.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), None)
    vk.vkDestroyInstance(instance, None)
    return 0 if status == 0 and count.value > 0 else NO_DEVICE


if __name__ == "__main__":
    sys.exit(probe())
