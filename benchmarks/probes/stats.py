import rlx, sys
from rlx.backends.vulkan import api, device as dev, pipelines
EXT = "VK_KHR_pipeline_executable_properties"
_d = dev.VulkanDevice._description
def described(self):
    info = _d(self)
    ffi, lib = api.binding()
    names = list(self.physical.extensions) + [EXT]
    keep = [ffi.new("char[]", n.encode()) for n in names]
    arr = ffi.new("char *[]", keep)
    f = api.struct("VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR", 1000269000, pipelineExecutableInfo=1)
    f.pNext = ffi.cast("void *", info.pNext)
    info.pNext = ffi.cast("void *", f)
    info.enabledExtensionCount = len(names); info.ppEnabledExtensionNames = ffi.cast("const char * const *", arr)
    self._keep_stats = (info, f, arr, keep)
    return info
dev.VulkanDevice._description = described
_s = api.struct
def struct(name, *a, **k):
    if name == "VkComputePipelineCreateInfo": k["flags"] = 0x40
    return _s(name, *a, **k)
pipelines.api.struct = struct
pipelines.DiskCache = lambda *a: type("N", (), {"get": lambda s, k: None, "put": lambda s, k, v: None})()
def stats(d, pipeline):
    ffi, lib = api.binding()
    get = ffi.cast("PFN_vkGetPipelineExecutableStatisticsKHR", lib.vkGetDeviceProcAddr(d.handle, ffi.new("char[]", b"vkGetPipelineExecutableStatisticsKHR")))
    info = api.struct("VkPipelineExecutableInfoKHR", 1000269003, pipeline=pipeline, executableIndex=0)
    n = ffi.new("uint32_t *"); get(d.handle, info, n, ffi.NULL)
    out = ffi.new("VkPipelineExecutableStatisticKHR[]", n[0])
    for o in out: o.sType = 1000269004
    get(d.handle, info, n, out)
    return {ffi.string(o.name).decode(): o.value.u64 for o in out}
from rlx.backends.gpu.gemm.kernels import MATMUL_ROWS, MATMUL_SKINNY
s = rlx.Session("vulkan")
d = s.device
def show(label, kernel):
    try:
        st = stats(d, d.pipelines.get(kernel).handle)
        print(label, {k: v for k, v in st.items() if any(w in k.lower() for w in ("reg", "local", "shared", "binary", "stack"))}, flush=True)
    except Exception as e: print(label, type(e).__name__, str(e)[:100], flush=True)
for ab in ("f32_f32", "bf16_bf16"):
    for rows, aheads in (("1", (2, 4)), ("4", (1, 2, 3)), ("16", (1, 2))):
        for t in (True, False):
            for a in aheads:
                show(f"{ab[:4]} {rows:2} {'T' if t else ' '} ahead {a}", MATMUL_ROWS(AB=ab, ROWS=rows, B_TRANSPOSED=t, ACTIVATION=0, BIAS=0, A_QUADS=True, B_UNITS=True, ACROSS=8, SITES=16 if rows == "16" and ab[0] == "b" else 8, AHEAD=a))
for t in (True, False):
    for c, a in ((16, 2), (32, 2), (32, 4), (64, 2)):
        show(f"skinny {'T' if t else ' '} {c} ahead {a}", MATMUL_SKINNY(T="bf16", B_TRANSPOSED=t, ACTIVATION=0, BIAS=0, A_OCTETS=True, B_OCTETS=True, C_QUADS=True, WIDE=False, ROWS=16, COLUMNS=c, BESIDE=1, AHEAD=a))
