"""`python -m tests.cuda.faults fake|real PART [all]`: a program's life in which each CUDA call fails in turn.

PART is "whole" (from opening the device to closing it), "beside" (beside another program) or "lost" (the call ends the
context, which only "fake" tries). "fake" needs no GPU: its runtime keeps memory and handles on the host, its libraries
compile and compute nothing. After each fault: the error was typed, or an interrupt, or the work was done; a program
beside it runs on, or is told at once that the device is lost; every object that was made is given back, the device's
too once it is closed; the same life again succeeds. The calls and faults are printed as JSON.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

import rlx
from rlx.backends.cuda import api, backend, blas, device, libraries, nvrtc, recorder
from rlx.errors import DeviceLost, DeviceUnavailable, OutOfDeviceMemory, RlxError
from tests import faults
from tests.cuda.unreal import Library, Raised, Runtime
from tests.faults import BEFORE, Injector, Result, X, each_fault, life, program
from tests.full import full

# A call that makes an object, and the call that frees the object.
MAKES = {
    "malloc": "memory", "hostAlloc": "host memory", "streamCreateWithPriority": "stream",
    "eventCreateWithFlags": "event",
    "graphInstantiate": "recorded run", "streamEndCapture": "graph", "moduleLoadData": "module",
    "cublasCreate_v2": "cuBLAS", "nvrtcCreateProgram": "program", "cublasLtMatmulDescCreate": "description",
    "cublasLtMatrixLayoutCreate": "layout", "cublasLtMatmulPreferenceCreate": "preference",
}  # fmt: skip
FREES = {
    "free": "memory", "freeHost": "host memory", "streamDestroy": "stream", "eventDestroy": "event",
    "graphExecDestroy": "recorded run", "graphDestroy": "graph", "moduleUnload": "module",
    "cublasDestroy_v2": "cuBLAS", "nvrtcDestroyProgram": "program", "cublasLtMatmulDescDestroy": "description",
    "cublasLtMatrixLayoutDestroy": "layout", "cublasLtMatmulPreferenceDestroy": "preference",
}  # fmt: skip
MOST = 2  # calls of a function that fail: a life makes some 450, a hundred of which make the device current
FULL, LOST, INVALID = 2, 700, 1
# Statuses of the libraries, which are returned and not raised: no memory, and a failure inside.
LIBRARY_FULL, LIBRARY_FAILED = 10_003, 10_014
NVRTC_FULL, NVRTC_FAILED = 20_001, 20_011


class Driver(Injector):
    """Counts the calls of the runtime, the driver and the libraries, and keeps the objects that are not freed yet."""

    def __init__(self, errors: tuple[Callable[[int], Exception], ...]) -> None:
        super().__init__()
        self.errors = errors
        self.live: Counter[str] = Counter()
        self.lost = False

    def watched(self, real: Any, error: Callable[[int], Exception] | None) -> Watched:
        return Watched(self, real, error)


class Watched:
    """A module or library whose calls are counted and may fail: by raising `error`, or by the status returned."""

    def __init__(self, driver: Driver, real: Any, error: Callable[[int], Exception] | None) -> None:
        self._driver, self._real, self._error = driver, real, error

    def __getitem__(self, name: str) -> Any:
        """A function whose address alone is asked for."""
        return self._real[name]

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._real, name)
        if not callable(real) or isinstance(real, type) or name == "nvrtcGetErrorString":
            return real
        driver, error = self._driver, self._error

        def call(*args: Any) -> Any:
            if driver.lost and error is not None:
                raise error(LOST)
            result = driver.reached(name)
            if name in FREES:  # whether or not the driver takes it: nothing more can be done
                driver.live[FREES[name]] -= 1
            if result == BEFORE:
                raise KeyboardInterrupt
            if result is not None:
                assert isinstance(result, int)
                if error is None:
                    return result % 10_000
                driver.lost |= result == LOST
                raise error(result)
            made = real(*args)
            if name in MAKES and (error is not None or made == 0):
                driver.live[MAKES[name]] += 1
            return made

        setattr(self, name, call)
        return call


def installed(fake: bool) -> Driver:
    """Installs a counting driver, which all later calls in this process go through."""
    if fake:
        runtime: Any = Runtime()
        module, raises, open_library = runtime, (Raised, Raised), Library
        loaded = api.Api(runtime, runtime, (Raised,), 13, os.getpid())
    else:
        loaded = api.load()
        runtime, module, open_library = loaded.runtime, loaded.driver, libraries.load_library
        raises = (runtime.CUDARuntimeError, module.CUDADriverError)
    driver = Driver(raises)
    watched = api.Api(
        driver.watched(runtime, raises[0]),
        driver.watched(module, raises[1]),
        loaded.errors,
        loaded.major,
        os.getpid(),
    )
    libs: dict[str, Watched] = {}

    def load_library(name: str, major: int) -> Any:
        if name not in libs:
            libs[name] = driver.watched(open_library(name, major), None)
        return libs[name]

    device.load = lambda: watched
    for each in (device, blas, recorder, nvrtc):
        each.load_library = load_library  # type: ignore[attr-defined]
    return driver


def expected(result: Result) -> Any:
    if result == BEFORE:
        return KeyboardInterrupt
    if result in (FULL, LIBRARY_FULL, NVRTC_FULL):
        return (
            OutOfDeviceMemory,
            DeviceUnavailable,
        )  # where devices are counted, whatever fails is why there is none
    return (DeviceLost, DeviceUnavailable) if result == LOST else RlxError


def ways(name: str) -> tuple[Result, ...]:
    if name.startswith("cublasLt") and name.endswith("Destroy"):
        return (LIBRARY_FAILED,)  # a finalizer calls it, which hands no interrupt on
    if name.startswith("cublas"):
        return LIBRARY_FULL, LIBRARY_FAILED, BEFORE
    if name.startswith("nvrtc"):
        return NVRTC_FULL, NVRTC_FAILED, BEFORE
    return FULL, INVALID, BEFORE


def larger() -> rlx.Graph:
    """The program, and products with and without a bias."""
    g = program()
    rng = np.random.default_rng(0)
    a, b, c = (g.constant(rng.standard_normal(n).astype(np.float32)) for n in ((32, 64), (64, 128), (128,)))
    g.output("m", rlx.relu((a * rlx.sum(g.inputs["x"])) @ b + c))
    return g


def closed(driver: Driver) -> None:
    """Closes the device, and checks that every object was freed."""
    opened = backend._opened.pop(0, None)
    backend._infos.clear()
    if opened is not None:
        try:
            opened.close()
        except DeviceLost:
            assert driver.lost
    gc.collect()
    nvrtc.nvrtc.cache_clear()
    if driver.lost:  # with the context all is gone; here begins, as it were, another process
        driver.lost = False
        driver.live.clear()
    assert not any(driver.live.values()), driver.live


def whole_part(driver: Driver) -> Counter[str]:
    """Each call from opening the device to closing it."""

    def work() -> None:
        session = rlx.Session("cuda:0")
        life(session, larger)
        life(rlx.Session("cuda:0", timings=True))
        session.device.close()

    work()  # fills the cache of kernels: every later life makes the same calls
    return each_fault(driver, work, ways, expected, lambda: closed(driver), MOST)


def beside_part(driver: Driver) -> Counter[str]:
    """Each call of a life beside another session's program on the same device."""
    session, other = rlx.Session("cuda:0"), rlx.Session("cuda:0")
    beside = other.compile(larger())
    beside.set_param("w", faults.W)

    def left() -> dict[str, int]:
        gc.collect()
        session.device.sweep()
        session.device._pool.trim()
        # The device keeps events for later marks: as many as were in use at a time, which an error may prolong.
        return {kind: n for kind, n in driver.live.items() if n and kind != "event"}

    life(session, larger)
    faults.run(beside, np.zeros(6))
    before = left()

    def after() -> None:
        assert left() == before, (left(), before)
        beside.set_state("s", np.zeros(6, np.float32))
        faults.run(beside, np.zeros(6))
        left()

    made = each_fault(driver, lambda: life(session, larger), ways, expected, after, MOST)
    beside.close()
    beside.weights.close()
    beside.state.close()
    closed(driver)
    return made


def lost_part(driver: Driver) -> Counter[str]:
    """Makes each call end the context, which another session's program must be told."""

    def work() -> None:
        session = rlx.Session("cuda:0")
        with rlx.Session("cuda:0").compile(larger()) as beside:
            beside.set_param("w", faults.W)
            beside.prepare()
            try:
                life(session, larger)
            except DeviceLost:
                for use in (lambda: beside.run({"x": X}), lambda: beside.get_state("s"), beside.clone):
                    try:
                        use()
                    except DeviceLost:
                        continue
                    raise AssertionError("the other session was not told") from None
                raise

    def results(name: str) -> tuple[Result, ...]:
        return () if name.startswith(("cublas", "nvrtc")) else (LOST,)

    return each_fault(driver, work, results, expected, lambda: closed(driver), MOST if full() else 1)


PARTS = {"whole": whole_part, "beside": beside_part, "lost": lost_part}


def main() -> None:
    os.environ["RLX_CUDA_PTX_CACHE"] = (
        "off" if sys.argv[1] == "fake" else os.environ.get("RLX_CUDA_PTX_CACHE", "")
    )
    driver = installed(sys.argv[1] == "fake")
    if sys.argv[1] == "fake":  # which computes nothing
        np.testing.assert_allclose = lambda *args, **kwargs: None
    gc.freeze()  # so that collecting after each fault walks over what came later, not over the modules
    made = PARTS[sys.argv[2]](driver)
    with suppress(RlxError):
        closed(driver)
    print(json.dumps(made))


if __name__ == "__main__":
    main()
