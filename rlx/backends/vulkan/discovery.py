"""Finds the Vulkan devices of this machine and their features, limits and memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rlx.backends.vulkan import api
from rlx.backends.vulkan.api import Handle
from rlx.driver.device import DeviceInfo, DeviceKind, Limits
from rlx.errors import DeviceUnavailable

_KINDS: dict[int, DeviceKind] = {1: "integrated", 2: "discrete", 3: "virtual", 4: "software"}
COMPUTE_QUEUE = 2
# Memory property flags.
DEVICE_LOCAL, HOST_VISIBLE, HOST_COHERENT, HOST_CACHED = 1, 2, 4, 8

# Features that are enabled wherever a device has them: field -> the word in DeviceInfo.features, "" for none.
_CORE = {"shaderInt64": "i64", "shaderFloat64": "f64", "shaderInt16": "i16"}
_V11 = {
    "storageBuffer16BitAccess": "16bit_storage",
    "variablePointers": "",
    "variablePointersStorageBuffer": "",
}
_V12 = {
    "shaderFloat16": "f16", "shaderInt8": "i8", "storageBuffer8BitAccess": "8bit_storage",
    "scalarBlockLayout": "scalar_layout", "vulkanMemoryModel": "memory_model", "vulkanMemoryModelDeviceScope": "",
    "shaderSubgroupExtendedTypes": "", "bufferDeviceAddress": "", "hostQueryReset": "",
}  # fmt: skip
_V13 = {
    "shaderIntegerDotProduct": "intdot", "subgroupSizeControl": "", "computeFullSubgroups": "full_subgroups",
    "maintenance4": "", "shaderZeroInitializeWorkgroupMemory": "",
}  # fmt: skip
# Extensions with a feature structure: name -> (sType, number of flags). The binding declares only some of them.
_EXTENSIONS = {
    "VK_KHR_shader_integer_dot_product": (1000280000, 1),  # core in 1.3
    "VK_KHR_cooperative_matrix": (1000506000, 2),
    "VK_NV_cooperative_matrix2": (1000593000, 7),
    "VK_KHR_shader_bfloat16": (1000141000, 3),
}
EXPORT = "VK_KHR_external_memory_fd"
_PLAIN_EXTENSIONS = ("VK_EXT_memory_budget", "VK_KHR_portability_subset", EXPORT)
# VkComponentTypeKHR and VkScopeKHR
_FLOAT16, _FLOAT32, _SCOPE_SUBGROUP = 0, 1, 3
# Drivers (VkDriverId) whose fma() rounds only once, which cannot be queried: NVIDIA's.
_NVIDIA = 4
_FUSED_DRIVERS = (_NVIDIA,)
# Drivers whose unpackHalf2x16() keeps subnormal halves; the query about f16 arithmetic does not tell that.
_HALVES_DRIVERS = (_NVIDIA,)
# basic, vote, arithmetic, ballot, shuffle
_SUBGROUP_OPERATIONS = 0x1F


@dataclass(frozen=True, slots=True)
class Heap:
    """A memory heap: its size and whether it is device-local."""

    nbytes: int
    device_local: bool


@dataclass(frozen=True, slots=True)
class MemoryType:
    """A memory type: property flags and the heap it draws from."""

    flags: int
    heap: int


@dataclass(frozen=True, slots=True)
class Physical:
    """A device as the driver describes it. `identity` names device and driver for caches of compiled code;
    `timestamp_ns` is the length of a timestamp tick, 0 where the queue has none."""

    handle: Handle
    info: DeviceInfo
    limits: Limits
    api_version: int
    extensions: tuple[str, ...]
    queue_family: int
    timestamp_ns: float
    heaps: tuple[Heap, ...]
    memory_types: tuple[MemoryType, ...]
    identity: bytes


def local_heaps(physical: Physical) -> list[int]:
    """The device-local heaps, or all where there are none; the largest first."""
    heaps = physical.heaps
    local = [i for i, heap in enumerate(heaps) if heap.device_local] or list(range(len(heaps)))
    return sorted(local, key=lambda i: -heaps[i].nbytes)


def physical_devices() -> list[Physical]:
    """The devices that rlx can use, in the loader's order; `info.index` counts only these.

    Raises: DeviceUnavailable with the reason of each refused device, when none is left.
    """
    result: list[Physical] = []
    refused: list[str] = []
    for handle in api.instance().physical_devices():
        try:
            result.append(describe(handle, len(result)))
        except DeviceUnavailable as error:
            refused.append(str(error))
    if not result:
        reasons = (
            "; ".join(refused) or "no driver offers one; install the GPU vendor's, or mesa-vulkan-drivers"
        )
        raise DeviceUnavailable(f"no usable Vulkan device: {reasons}")
    return result


def describe(handle: Handle, index: int) -> Physical:
    """Reads all properties that rlx needs of a device. Raises: DeviceUnavailable with the reason it cannot be used."""
    ffi, lib = api.binding()
    v11 = api.struct("VkPhysicalDeviceVulkan11Properties", "PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES")
    v12 = api.struct("VkPhysicalDeviceVulkan12Properties", "PHYSICAL_DEVICE_VULKAN_1_2_PROPERTIES")
    v13 = api.struct("VkPhysicalDeviceVulkan13Properties", "PHYSICAL_DEVICE_VULKAN_1_3_PROPERTIES")
    plain = ffi.new("VkPhysicalDeviceProperties *")
    lib.vkGetPhysicalDeviceProperties(handle, plain)
    name = api.text(plain.deviceName)
    version = min(int(plain.apiVersion), api.instance().api_version)
    if version < api.API_1_2:
        raise DeviceUnavailable(f"{name} offers Vulkan {api.version_text(version)}; rlx needs 1.2")
    properties = api.struct("VkPhysicalDeviceProperties2", "PHYSICAL_DEVICE_PROPERTIES_2")
    api.chain(properties, v11, v12, *([v13] if version >= api.API_1_3 else []))
    lib.vkGetPhysicalDeviceProperties2(handle, properties)
    limits = properties.properties.limits

    extensions = api.device_extensions(handle)
    wanted = FeatureChain(version, extensions)
    lib.vkGetPhysicalDeviceFeatures2(handle, wanted.head)
    if not wanted.v12.bufferDeviceAddress:
        raise DeviceUnavailable(
            f"{name} has no bufferDeviceAddress, by which rlx passes all memory to kernels"
        )

    family, ticks = _queue(handle)
    if family is None:
        raise DeviceUnavailable(f"{name} has no compute queue")
    heaps, types = _memory(handle)
    kind = _KINDS.get(int(plain.deviceType), "virtual")
    features = set(wanted.words())
    features |= _property_words(v11, v12)
    features = _with_matrices(handle, features, int(v12.driverID))
    max_alloc = int(v11.maxMemoryAllocationSize)
    if version >= api.API_1_3 and v13.maxBufferSize:
        max_alloc = min(max_alloc, int(v13.maxBufferSize))
    largest = max(heap.nbytes for heap in heaps)
    driver = f"{api.text(v12.driverName)} {api.text(v12.driverInfo)}".strip()
    info = DeviceInfo(
        backend="vulkan",
        index=index,
        name=name,
        kind=kind,
        memory_bytes=max((h.nbytes for h in heaps if h.device_local), default=largest),
        driver=f"{driver}, Vulkan {api.version_text(version)}",
        features=frozenset(features),
        # Software drivers claim to preserve subnormal numbers, but tests show that they do so only in part.
        preserves_subnormals="denorm_preserve" in features and kind != "software",
        dlpack=7,
        packed="16bit_storage" not in features,
        uuid=bytes(v11.deviceUUID),
    )
    identity = bytes(plain.pipelineCacheUUID) + bytes(v11.driverUUID) + bytes(v11.deviceUUID)
    identity += f"{plain.vendorID}:{plain.deviceID}:{plain.driverVersion}:{plain.apiVersion}".encode()
    return Physical(
        handle=handle,
        info=info,
        limits=Limits(
            max_alloc_bytes=min(max_alloc, largest),
            max_groups=(
                int(limits.maxComputeWorkGroupCount[0]),
                int(limits.maxComputeWorkGroupCount[1]),
                int(limits.maxComputeWorkGroupCount[2]),
            ),
            max_group_threads=int(limits.maxComputeWorkGroupInvocations),
            shared_bytes=int(limits.maxComputeSharedMemorySize),
            subgroup=int(v11.subgroupSize),
        ),
        api_version=version,
        extensions=tuple(sorted(extensions & {*_EXTENSIONS, *_PLAIN_EXTENSIONS})),
        queue_family=family,
        timestamp_ns=float(limits.timestampPeriod) if ticks else 0.0,
        heaps=heaps,
        memory_types=types,
        identity=identity,
    )


class FeatureChain:
    """The linked feature structures that rlx knows: filled in by a query, then passed on at device creation."""

    def __init__(self, version: int, extensions: set[str] | tuple[str, ...]) -> None:
        self.core = api.struct("VkPhysicalDeviceFeatures2", "PHYSICAL_DEVICE_FEATURES_2")
        self.v11 = api.struct("VkPhysicalDeviceVulkan11Features", "PHYSICAL_DEVICE_VULKAN_1_1_FEATURES")
        self.v12 = api.struct("VkPhysicalDeviceVulkan12Features", "PHYSICAL_DEVICE_VULKAN_1_2_FEATURES")
        self.v13 = None
        links = [self.v11, self.v12]
        if version >= api.API_1_3:
            self.v13 = api.struct("VkPhysicalDeviceVulkan13Features", "PHYSICAL_DEVICE_VULKAN_1_3_FEATURES")
            links.append(self.v13)
        self.extra = {
            name: api.FlagsStruct(*_EXTENSIONS[name])
            for name in _EXTENSIONS
            # Vulkan 1.3 has integer dot products in its own structure, and forbids both structures in one chain.
            if name in extensions and not (self.v13 is not None and "integer_dot" in name)
        }
        self.head = api.chain(self.core, *links, *(item.pointer for item in self.extra.values()))

    def _fields(self) -> Iterator[tuple[Handle, str, str]]:
        for part, table in (
            (self.core.features, _CORE),
            (self.v11, _V11),
            (self.v12, _V12),
            (self.v13, _V13),
        ):
            if part is not None:
                for field, word in table.items():
                    yield part, field, word

    def words(self) -> set[str]:
        """The feature words of the features that are on in the filled chain."""
        result = {word for part, field, word in self._fields() if word and getattr(part, field)}
        extra = {name: item.values for name, item in self.extra.items()}
        if any(extra.get("VK_KHR_shader_integer_dot_product", ())):
            result.add("intdot")
        if extra.get("VK_KHR_cooperative_matrix", [False])[0]:
            result.add("coopmat")
        if all(extra.get("VK_NV_cooperative_matrix2", [False])):
            result.add("coopmat2")
        bfloat16 = extra.get("VK_KHR_shader_bfloat16", [False, False, False])
        if bfloat16[0]:
            result.add("bf16")
        if bfloat16[2]:
            result.add("bf16_coopmat")
        return result

    def keep_known(self) -> Handle:
        """Turns off the features of a filled chain that rlx does not use, and returns the chain's head.

        Robust buffer access, for one, costs speed.
        """
        ffi, _ = api.binding()
        parts = ((self.core.features, _CORE), (self.v11, _V11), (self.v12, _V12), (self.v13, _V13))
        for part, table in parts:
            if part is not None:
                kind = ffi.typeof(part)
                for field, _ in (kind.item if kind.kind == "pointer" else kind).fields:
                    if field not in ("sType", "pNext", *table):
                        setattr(part, field, 0)
        matrix = self.extra.get("VK_KHR_cooperative_matrix")
        if matrix is not None:
            matrix.flags[1] = 0  # robust buffer access
        return self.head


def _property_words(v11: Handle, v12: Handle) -> set[str]:
    features: set[str] = set()
    if v11.subgroupSupportedStages & 0x20 and v11.subgroupSupportedOperations & _SUBGROUP_OPERATIONS == 0x1F:
        features.add("subgroup")
    if v12.shaderSignedZeroInfNanPreserveFloat32:
        features.add("float_controls")
    if v12.shaderSignedZeroInfNanPreserveFloat16:
        features.add("float_controls_f16")
    if v12.shaderSignedZeroInfNanPreserveFloat64:
        features.add("float_controls_f64")
    if v12.shaderDenormPreserveFloat32:
        features.add("denorm_preserve")
    if v12.shaderDenormPreserveFloat64:
        features.add("denorm_preserve_f64")
    if v12.shaderRoundingModeRTEFloat32:
        features.add("rte")
    if int(v12.driverID) in _FUSED_DRIVERS:
        features.add("fused_fma")
    if int(v12.driverID) in _HALVES_DRIVERS:
        features.add("half_subnormals")
    if v12.shaderRoundingModeRTEFloat64:
        features.add("rte_f64")
    return features


def _with_matrices(handle: Handle, features: set[str], driver: int) -> set[str]:
    """The feature words, without those of cooperative matrices if the device lacks the shape that most kernels use, 16
    x 16 x 16 from f16 to f32. "narrow_coopmat" is added if it also has 16 x 8 x 16 and 16 x 8 x 8, and is known to
    distribute their elements evenly over 32 threads, as NVIDIA's driver does."""
    none = features - {"coopmat", "coopmat2", "bf16_coopmat"}
    if "coopmat" not in features:
        return none
    function = api.instance().function("vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR")
    start = api.struct("VkCooperativeMatrixPropertiesKHR", "COOPERATIVE_MATRIX_PROPERTIES_KHR")
    shapes = {
        (int(shape.MSize), int(shape.NSize), int(shape.KSize))
        for shape in api.listed("VkCooperativeMatrixPropertiesKHR", function, handle, item=start)
        if int(shape.AType) == int(shape.BType) == _FLOAT16
        and int(shape.CType) == int(shape.ResultType) == _FLOAT32
        and int(shape.scope) == _SCOPE_SUBGROUP
    }
    if (16, 16, 16) not in shapes:
        return none
    narrow = {(16, 8, 16), (16, 8, 8)} <= shapes and driver == _NVIDIA
    return features | {"narrow_coopmat"} if narrow else features


def _queue(handle: Handle) -> tuple[int | None, int]:
    """The first queue family with compute support, or None; and the number of valid bits of its timestamps."""
    ffi, lib = api.binding()
    count = ffi.new("uint32_t *")
    lib.vkGetPhysicalDeviceQueueFamilyProperties(handle, count, ffi.NULL)
    families = ffi.new("VkQueueFamilyProperties[]", max(int(count[0]), 1))
    lib.vkGetPhysicalDeviceQueueFamilyProperties(handle, count, families)
    for i in range(count[0]):
        if families[i].queueFlags & COMPUTE_QUEUE:
            return i, int(families[i].timestampValidBits)
    return None, 0


def _memory(handle: Handle) -> tuple[tuple[Heap, ...], tuple[MemoryType, ...]]:
    ffi, lib = api.binding()
    memory = ffi.new("VkPhysicalDeviceMemoryProperties *")
    lib.vkGetPhysicalDeviceMemoryProperties(handle, memory)
    heaps = [memory.memoryHeaps[i] for i in range(memory.memoryHeapCount)]
    types = [memory.memoryTypes[i] for i in range(memory.memoryTypeCount)]
    return (
        tuple(Heap(int(h.size), bool(h.flags & 1)) for h in heaps),
        tuple(MemoryType(int(t.propertyFlags), int(t.heapIndex)) for t in types),
    )
