"""The Vulkan API as rlx uses it.

The Python wrappers of the package `vulkan` are not used: they let nested temporaries dangle, return wrong objects in
places, and cost about 12 µs a call. All calls go through a cffi library handle (`loader`), with structures made by
`struct`, which keeps all data that a structure points to alive as long as the structure. Handles are cffi objects,
typed `Handle`.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from rlx.backends.vulkan.loader import Binding as Binding
from rlx.backends.vulkan.loader import binding as binding
from rlx.driver.closing import Resources
from rlx.errors import DeviceLost, DeviceUnavailable, OutOfDeviceMemory, RlxError

Handle = Any  # a cffi pointer to an opaque Vulkan object, or to a structure
VALIDATION_ENV = "RLX_VULKAN_VALIDATION"
_VALIDATION_LAYER = "VK_LAYER_KHRONOS_validation"
API_1_2, API_1_3 = 1 << 22 | 2 << 12, 1 << 22 | 3 << 12
TIMEOUT = 2  # VK_TIMEOUT, a success code

_DEVICE_LOST = -4
_NO_DRIVER = -9
_NOT_STARTED = -3
# Results that are no fault of the call: it may succeed once other objects are closed.
_EXHAUSTED = {
    -1: "out of host memory",
    -2: "out of device memory",
    -5: "the memory cannot be mapped into the process",
    -10: "the driver holds as many objects as it can",
    -12: "out of unfragmented memory in a pool",
    -1000069000: "out of memory in a pool",
    -1000161000: "out of unfragmented memory",
}
_UNAVAILABLE = {
    _NOT_STARTED: "the driver did not initialize",
    -6: "a layer is missing",
    -7: "an extension is missing",
    -8: "a feature is missing",
    _NO_DRIVER: "the loader found no driver; install the GPU vendor's, or mesa-vulkan-drivers for a software one",
}


class VkError(RlxError):
    """A Vulkan call failed with a result that has no typed error: a bug in rlx or in the driver."""


# Environment variables that hide the machine's drivers from the loader: those that name the only ones that it may take,
# and one that names those which it may not.
_SELECT = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_LOADER_DRIVERS_SELECT")
_HIDES = {**dict.fromkeys(_SELECT, "the only ones that it may take"),
          "VK_LOADER_DRIVERS_DISABLE": "ones that it may not take"}  # fmt: skip


def _hidden(result: int) -> str:
    """For an error after no driver, or none that started, was found: the environment variables that hide drivers."""
    named = [name for name in _HIDES if os.environ.get(name)] if result in (_NO_DRIVER, _NOT_STARTED) else []
    return "".join(f"; {name}={os.environ[name]} in the environment names {_HIDES[name]}: unset or mend it"
                   for name in named)  # fmt: skip


def check(result: int, what: str) -> int:
    """Passes success codes on. Raises: DeviceLost, OutOfDeviceMemory, DeviceUnavailable or VkError, naming `what`."""
    if result >= 0:
        return result
    if result == _DEVICE_LOST:
        raise DeviceLost(f"{what}: the Vulkan device was lost; open a new session on it")
    if result in _EXHAUSTED:
        raise OutOfDeviceMemory(
            f"{what}: {_EXHAUSTED[result]} (VkResult {result}); close executables that are not used, or use smaller "
            "shapes"
        )
    if result in _UNAVAILABLE:
        raise DeviceUnavailable(f"{what}: {_UNAVAILABLE[result]} (VkResult {result}){_hidden(result)}")
    raise VkError(f"{what} failed with VkResult {result}")


# -- structures and live objects

_kept: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()


def struct(name: str, stype: str | int | None = None, **fields: Any) -> Handle:
    """A pointer to a new zeroed `name` with its sType and fields set.

    Values may be numbers, handles, other structures (kept alive, copied where the field is by value), strings, and
    lists of strings, of numbers, of handles or of structures (which become arrays).
    """
    ffi, lib = binding()
    result = ffi.new(f"{name} *")
    kept: list[Any] = []
    if stype is not None:
        result.sType = stype if isinstance(stype, int) else getattr(lib, f"VK_STRUCTURE_TYPE_{stype}")
    kinds = dict(ffi.typeof(name).fields)
    for field, value in fields.items():
        kind = kinds[field].type
        kept.append(value)
        if isinstance(value, str):
            value = ffi.new("char[]", value.encode())
        elif isinstance(value, list):
            if value and isinstance(value[0], str):
                value = [ffi.new("char[]", word.encode()) for word in value]
                kept.append(value)
            elif kind.item.kind == "struct":
                value = [pointer[0] for pointer in value]
            value = ffi.new(ffi.getctype(kind.item, "[]"), value) if value else ffi.NULL
        elif kind.kind == "struct":
            value = value[0]
        setattr(result, field, value)
        kept.append(value)
    _kept[result] = kept
    return result


def chain(first: Handle, *rest: Handle) -> Handle:
    """Links structures through pNext in this order and keeps them alive with the first. Returns the first."""
    ffi, _ = binding()
    last = first
    for item in rest:
        last.pNext = ffi.cast("void *", item)
        last = item
    _kept.setdefault(first, []).extend(rest)
    return first


class FlagsStruct:
    """A feature structure the binding does not declare: sType, pNext and `count` 32-bit flags."""

    def __init__(self, stype: int, count: int) -> None:
        ffi, _ = binding()
        self._raw = ffi.new("uint64_t[]", 2 + (count + 1) // 2)
        self._raw[0] = stype
        self.pointer = ffi.cast("VkBaseOutStructure *", self._raw)
        self.flags = ffi.cast("uint32_t *", self._raw + 2)
        self.count = count
        _kept[self.pointer] = [self._raw]

    @property
    def values(self) -> list[bool]:
        return [bool(self.flags[i]) for i in range(self.count)]


_live: Counter[str] = Counter()
_live_lock = threading.Lock()


def live_objects() -> dict[str, int]:
    """The number of Vulkan objects created and not yet destroyed, by kind; kinds without any are left out."""
    with _live_lock:
        return {kind: count for kind, count in _live.items() if count}


def _count(kind: str, by: int) -> None:
    with _live_lock:
        _live[kind] += by


def create(kind: str, parent: Handle, info: Handle, function: str | None = None) -> Handle:
    """Creates an object by `vkCreate<kind>(parent, info)` and counts it. `destroy` destroys it."""
    ffi, lib = binding()
    name = function or f"vkCreate{kind}"
    return created(kind, parent, lambda out: getattr(lib, name)(parent, info, ffi.NULL, out), name)


def created(kind: str, parent: Handle, call: Callable[[Handle], int], what: str) -> Handle:
    """The object that `call` writes to the pointer it is given, counted. One made before an interrupt is destroyed."""
    ffi, _ = binding()
    out = ffi.new(f"Vk{kind} *")
    _count(kind, 1)
    try:
        check(call(out), what)
    except RlxError:
        _count(kind, -1)
        raise
    except BaseException:
        if out[0]:
            destroy(kind, parent, out[0])
        else:
            _count(kind, -1)
        raise
    return out[0]


def destroy(kind: str, parent: Handle, handle: Handle) -> None:
    """Destroys an object that `create` made; DeviceMemory is freed."""
    ffi, lib = binding()
    _count(kind, -1)
    if kind in ("Device", "Instance"):
        getattr(lib, f"vkDestroy{kind}")(handle, ffi.NULL)
    else:
        verb = "vkFreeMemory" if kind == "DeviceMemory" else f"vkDestroy{kind}"
        getattr(lib, verb)(parent, handle, ffi.NULL)


# -- the instance


class Instance:
    """The process's Vulkan instance. `messages` collects the messages of the validation layers when they are on."""

    def __init__(self) -> None:
        ffi, lib = binding()
        version = ffi.new("uint32_t *")
        check(lib.vkEnumerateInstanceVersion(version), "vkEnumerateInstanceVersion")
        if version[0] < API_1_2:
            raise DeviceUnavailable(
                f"the Vulkan loader is {version_text(version[0])}; rlx needs 1.2 or newer"
            )
        self.api_version = min(int(version[0]), API_1_3 | 0xFFF)
        self.messages: list[str] = []
        self.validation = os.environ.get(VALIDATION_ENV, "0") not in ("", "0")
        self.pid = os.getpid()
        self._callback: Handle = None
        layers, extensions, flags = [], [], 0
        if self.validation:
            if _VALIDATION_LAYER not in instance_layers():
                raise DeviceUnavailable(
                    f"{VALIDATION_ENV} is set and {_VALIDATION_LAYER} is not installed; install "
                    "vulkan-validationlayers or unset it"
                )
            layers.append(_VALIDATION_LAYER)
            extensions.append("VK_EXT_debug_utils")
        if "VK_KHR_portability_enumeration" in instance_extensions():  # drivers layered over another API
            extensions.append("VK_KHR_portability_enumeration")
            flags = 1
        info = struct(
            "VkInstanceCreateInfo", "INSTANCE_CREATE_INFO", flags=flags,
            pApplicationInfo=struct(
                "VkApplicationInfo", "APPLICATION_INFO",
                pApplicationName="rlx", pEngineName="rlx", apiVersion=API_1_3 if version[0] >= API_1_3 else API_1_2,
            ),
            enabledLayerCount=len(layers), ppEnabledLayerNames=layers,
            enabledExtensionCount=len(extensions), ppEnabledExtensionNames=extensions,
        )  # fmt: skip
        self._held = Resources()
        with self._held.unwound():
            call = partial(lib.vkCreateInstance, info, ffi.NULL)
            self.handle = created("Instance", ffi.NULL, call, "vkCreateInstance")
            self._held.callback(destroy, "Instance", ffi.NULL, self.handle)
            if self.validation:
                self._listen()

    def _listen(self) -> None:
        ffi, _ = binding()

        @ffi.callback("PFN_vkDebugUtilsMessengerCallbackEXT")  # type: ignore[untyped-decorator]
        def heard(severity: int, kinds: int, data: Handle, user: Handle) -> int:
            self.messages.append(ffi.string(data.pMessage).decode(errors="replace"))
            return 0

        self._callback = heard
        info = struct(
            "VkDebugUtilsMessengerCreateInfoEXT", "DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT",
            messageSeverity=0x1100, messageType=0x2, pfnUserCallback=heard,  # warnings and errors of validation
        )  # fmt: skip
        out = ffi.new("VkDebugUtilsMessengerEXT *")
        function = self.function("vkCreateDebugUtilsMessengerEXT")
        end = self.function("vkDestroyDebugUtilsMessengerEXT")
        check(function(self.handle, info, ffi.NULL, out), "vkCreateDebugUtilsMessengerEXT")
        self._held.callback(end, self.handle, out[0], ffi.NULL)

    def function(self, name: str) -> Any:
        """A function of an extension. Raises: DeviceUnavailable where the loader does not have it."""
        ffi, lib = binding()
        address = lib.vkGetInstanceProcAddr(self.handle, ffi.new("char[]", name.encode()))
        if address == ffi.NULL:
            raise DeviceUnavailable(f"the Vulkan loader has no {name}")
        return ffi.cast(f"PFN_{name}", address)

    def physical_devices(self) -> list[Handle]:
        """Every device of every driver, in the loader's order."""
        _, lib = binding()
        return list(listed("VkPhysicalDevice", lib.vkEnumeratePhysicalDevices, self.handle))

    def close(self) -> None:
        """Destroys the instance. Requires: every object made from it is destroyed."""
        self._held.close()


_instance: Instance | None = None
_instance_lock = threading.Lock()


def instance() -> Instance:
    """The process's instance, made on first use. Raises: DeviceUnavailable with the reason, also after a fork."""
    global _instance
    check_process()
    with _instance_lock:
        if _instance is None:
            _instance = Instance()
        return _instance


def close_instance() -> None:
    """Destroys the instance at the end of the process. Requires: every device is closed."""
    global _instance
    if _instance is not None and _instance.pid == os.getpid():
        _instance.close()
    _instance = None


def check_process() -> None:
    """Refuses to go on in the child of a fork, which drivers' threads and locks do not survive.

    Raises: DeviceUnavailable there.
    """
    if _instance is not None and _instance.pid != os.getpid():
        raise DeviceUnavailable(FORKED)


FORKED = (
    "Vulkan was in use before this process was forked and cannot be used in the child; start workers with "
    'multiprocessing.get_context("spawn"), or first use the device after the fork'
)


# -- queries


def listed(kind: str, function: Any, *args: Any, item: Handle = None) -> Sequence[Handle]:
    """The list from one of Vulkan's count-then-fill functions; `item` is the initial value of each element."""
    ffi, _ = binding()
    count = ffi.new("uint32_t *")
    while True:
        check(function(*args, count, ffi.NULL) or 0, str(kind))
        array = ffi.new(f"{kind}[]", max(int(count[0]), 1))
        if item is not None:
            for i in range(count[0]):
                array[i] = item[0]
        result = function(*args, count, array) or 0
        if check(result, str(kind)) != 5:  # VK_INCOMPLETE: the list grew in between
            return _Listed([array[i] for i in range(count[0])], array)


class _Listed(list[Any]):
    """A list whose elements are views of `array`; it keeps the array alive."""

    def __init__(self, items: Sequence[Any], array: Any) -> None:
        super().__init__(items)
        self.array = array


def instance_layers() -> set[str]:
    ffi, lib = binding()
    layers = listed("VkLayerProperties", lib.vkEnumerateInstanceLayerProperties)
    return {ffi.string(layer.layerName).decode() for layer in layers}


def instance_extensions() -> set[str]:
    ffi, lib = binding()
    extensions = listed("VkExtensionProperties", lib.vkEnumerateInstanceExtensionProperties, ffi.NULL)
    return {ffi.string(extension.extensionName).decode() for extension in extensions}


def device_extensions(physical: Handle) -> set[str]:
    ffi, lib = binding()
    extensions = listed("VkExtensionProperties", lib.vkEnumerateDeviceExtensionProperties, physical, ffi.NULL)
    return {ffi.string(extension.extensionName).decode() for extension in extensions}


def text(field: Handle) -> str:
    """A char array of a structure as a string."""
    return str(binding().ffi.string(field).decode(errors="replace"))


def version_text(version: int) -> str:
    return f"{version >> 22 & 0x7F}.{version >> 12 & 0x3FF}.{version & 0xFFF}"


OPAQUE_FD = 1  # VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT: a file descriptor, which CUDA imports


def can_export(physical: Handle, usage: int) -> bool:
    """Whether buffers of this usage can be in exported memory without needing a dedicated allocation each."""
    _, lib = binding()
    info = struct(
        "VkPhysicalDeviceExternalBufferInfo", "PHYSICAL_DEVICE_EXTERNAL_BUFFER_INFO",
        usage=usage, handleType=OPAQUE_FD,
    )  # fmt: skip
    properties = struct("VkExternalBufferProperties", "EXTERNAL_BUFFER_PROPERTIES")
    lib.vkGetPhysicalDeviceExternalBufferProperties(physical, info, properties)
    dedicated_only, exportable = 1, 2
    return int(properties.externalMemoryProperties.externalMemoryFeatures) & (exportable | dedicated_only) == exportable


def memory_fd(device: Handle, memory: Handle) -> int:
    """A new file descriptor of exported memory, which the caller owns."""
    ffi, lib = binding()
    address = lib.vkGetDeviceProcAddr(device, ffi.new("char[]", b"vkGetMemoryFdKHR"))
    info = struct("VkMemoryGetFdInfoKHR", "MEMORY_GET_FD_INFO_KHR", memory=memory, handleType=OPAQUE_FD)
    out = ffi.new("int *", -1)
    check(ffi.cast("PFN_vkGetMemoryFdKHR", address)(device, info, out), "vkGetMemoryFdKHR")
    return int(out[0])


def buffer_address(device: Handle, buffer: Handle) -> int:
    """A buffer's device address, by which kernels access it."""
    _, lib = binding()
    info = struct("VkBufferDeviceAddressInfo", "BUFFER_DEVICE_ADDRESS_INFO", buffer=buffer)
    return int(lib.vkGetBufferDeviceAddress(device, info))
