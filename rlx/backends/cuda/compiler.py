"""The kernels of one device: compiled by NVRTC on first use, cached on disk, and loaded once."""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from rlx.backends.cuda.api import Api
from rlx.backends.cuda.nvrtc import nvrtc
from rlx.backends.cuda.processes import Processes
from rlx.backends.cuda.sources import SHARED_SYMBOL, Source, kernel_source
from rlx.backends.gpu.program.steps import Kernel
from rlx.driver.closing import Resources
from rlx.host.diskcache import DiskCache, key_of
from rlx.host.processors import available_threads
from rlx.host.progress import report
from rlx.host.threads import Threads

_log = logging.getLogger(__name__)

CACHE_ENV = "RLX_CUDA_PTX_CACHE"
AT_ONCE = 16  # kernels compiled concurrently, each in a process that needs about 100 MB
FEW = 3  # as many kernels as this process's threads compile before others have started
# CUfunction_attribute (driver API).
_ATTRIBUTE_REGISTERS = 4
_ATTRIBUTE_MAX_DYNAMIC_SHARED = 8


@dataclass(frozen=True, slots=True)
class Loaded:
    """A kernel on the device: its function handle, the shape of its blocks, bytes of dynamic shared memory."""

    function: int
    block: tuple[int, int, int]
    shared_bytes: int


def kernel_cache() -> DiskCache:
    """The cache that RLX_CUDA_PTX_CACHE chooses: a folder, "off", or unset for rlx's own cache folder."""
    return DiskCache("cuda", os.environ.get(CACHE_ENV) or None)


class Compiler:
    """Compiles and loads the kernels of one device.

    Requires: the device is current in the calling thread, which captures no graph, since a capture allows no loading
    of modules. Any number of threads may call.
    """

    def __init__(self, api: Api, capability: int, driver: str, cache: DiskCache | None = None) -> None:
        self._driver_api = api.driver
        self._runtime = api.runtime
        self._nvrtc = nvrtc(api.major)
        self._archs = self._nvrtc.archs()
        self._capability = capability
        self._driver = driver
        self.cache = kernel_cache() if cache is None else cache
        self._lock = threading.Lock()
        self._loaded: dict[Kernel, Loaded] = {}
        self._held = Resources()
        self.compiled = 0
        self.from_disk = 0

    def get(self, kernel: Kernel) -> Loaded:
        """The kernel, compiled and loaded. Raises: RlxError with NVRTC's log."""
        with self._lock:
            if kernel not in self._loaded:
                self._add([kernel])
            return self._loaded[kernel]

    def get_all(self, kernels: Iterable[Kernel]) -> None:
        """Compiles several kernels at a time, and loads them. Raises: as `get`."""
        with self._lock:
            self._add([kernel for kernel in dict.fromkeys(kernels) if kernel not in self._loaded])

    def _add(self, kernels: Sequence[Kernel]) -> None:
        sources = [kernel_source(kernel) for kernel in kernels]
        for kernel, source, code in zip(kernels, sources, self._codes(sources), strict=True):
            self._loaded[kernel] = self._load(source, code)

    def provide(self, kernel: Kernel, source: Source) -> Loaded:
        """Compiles and loads the given source in place of the kernel's own."""
        with self._lock:
            result = self._loaded[kernel] = self._load(source, self._codes([source])[0])
            return result

    def codes(self, kernels: Iterable[Kernel]) -> dict[bytes, bytes]:
        """The kernels' machine code, by the hash of each one's cache key."""
        with self._lock:
            sources = [kernel_source(kernel) for kernel in kernels]
            keys = [key_of(self._key(source)) for source in sources]
            return dict(zip(keys, self._codes(sources), strict=True))

    def close(self) -> None:
        """Unloads every kernel. Idempotent."""
        self._loaded.clear()
        self._held.close()

    def _key(self, source: Source) -> tuple[str, ...]:
        arch = source.arch(self._capability, self._archs)
        return (*source.key(self._nvrtc.identity, arch, self._nvrtc.include), self._driver)

    def _codes(self, sources: Sequence[Source]) -> list[bytes]:
        """Machine code, from the cache or compiled."""
        keys = [self._key(source) for source in sources]
        codes = [self.cache.get(key) for key in keys]
        missing = [i for i, code in enumerate(codes) if code is None]
        self.from_disk += len(codes) - len(missing)
        count = min(AT_ONCE, len(missing), available_threads())
        apart: AbstractContextManager[Processes | None] = nullcontext()
        if count > 1 and len(missing) > FEW:
            apart = self._nvrtc.processes()
        with apart as processes, Threads(count) as threads:
            compiled = threads.map(lambda i: self._compiled(sources[i], keys[i], processes), missing)
            for done, (i, code) in enumerate(zip(missing, compiled, strict=True)):
                report("kernels", done, len(missing))
                codes[i] = code
                self.compiled += 1
        return [code for code in codes if code is not None]

    def _compiled(self, source: Source, key: tuple[str, ...], processes: Processes | None) -> bytes:
        arch = source.arch(self._capability, self._archs)
        _log.debug("compiling %s for %s", source.name, arch)
        code = self._nvrtc.compile(source.text, source.name, source.options, dict(source.headers), arch, processes)
        self.cache.put(key, code)  # the disk may take longer than the compiler: each thread waits for its own record
        return code

    def _load(self, source: Source, code: bytes) -> Loaded:
        driver = self._driver_api
        resources = Resources()
        with resources.unwound():
            module = driver.moduleLoadData(code)
            resources.callback(driver.moduleUnload, module)
            function = driver.moduleGetFunction(module, source.entry)
            # CUDA loads modules lazily. This call loads it now; otherwise its first launch would, during a capture.
            driver.funcGetAttribute(_ATTRIBUTE_REGISTERS, function)
            shared = 0
            if source.dynamic_shared:
                shared = self._word(driver.moduleGetGlobal(module, SHARED_SYMBOL))
                driver.funcSetAttribute(function, _ATTRIBUTE_MAX_DYNAMIC_SHARED, shared)
        self._held.push(resources)
        return Loaded(function, source.block, shared)

    def _word(self, address: int) -> int:
        runtime = self._runtime
        word = ctypes.c_uint32()
        runtime.memcpy(ctypes.addressof(word), address, 4, runtime.memcpyDeviceToHost)
        return word.value
