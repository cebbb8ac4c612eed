"""Copies between CUDA's and Vulkan's device of one GPU: on the GPU, through memory that both drivers see."""

from __future__ import annotations

from functools import cache
from weakref import WeakSet

from rlx.driver import Buffer, Device
from rlx.driver.device import CUDA, DeviceInfo, Exporting, Importing
from rlx.driver.registry import load_backend
from rlx.errors import DeviceUnavailable, OutOfDeviceMemory, UnsupportedOp

_refused: WeakSet[Device] = WeakSet()  # devices whose exported memory the other driver has refused


def copy_between(source: Buffer, at: int, nbytes: int, here: Device, there: Device) -> Buffer | None:
    """A copy of `nbytes` bytes of device `here`, from offset `at` on, as memory of `there`; None where these are not
    one GPU, or their drivers share no memory or have none left to share.

    One driver's memory is lent to the other's: the exporting side copies into or out of memory that both see. The host
    waits for the copy, since the two drivers know nothing of each other's queues. The memory goes back to the
    exporting device's pool once both have let go of it and their work that uses it is done."""
    if here.info.uuid != there.info.uuid or not here.info.uuid or here is there:
        return None
    try:
        if isinstance(here, Exporting) and isinstance(there, Importing) and _exports(here):
            own = here.acquire_exported(nbytes)
            seen = own.imported(there.import_memory)
            own.copy_from(source, at, 0, nbytes)
            here.mark().wait()
            return there.foreign(seen.address, nbytes, (own, seen))
        if isinstance(there, Exporting) and isinstance(here, Importing) and _exports(there):
            own = there.acquire_exported(nbytes)
            seen = own.imported(here.import_memory)
            held: list[object] = [own, seen]
            other = here.foreign(seen.address, nbytes, held)
            other.copy_from(source, at, 0, nbytes)
            here.mark().wait()
            held.clear()  # otherwise `here` would keep `own` alive until its next call, which frees foreign memory
            other.close()
            return own
    except UnsupportedOp as error:
        import logging  # not at the top: rlx is imported without it

        _refused.add(here if isinstance(here, Exporting) else there)
        said = "arrays go through the host between %s and %s: %s"
        logging.getLogger(__name__).warning(said, here.info.id, there.info.id, error)
    except OutOfDeviceMemory:
        pass  # a copy through the host may still find memory in the other device's own pool
    return None


def _exports(device: Device) -> bool:
    return device not in _refused and isinstance(device, Exporting) and device.exports


@cache
def cuda_twin(info: DeviceInfo) -> DeviceInfo | None:
    """The CUDA device that is the same GPU as a device of another API."""
    if not info.uuid or info.dlpack == CUDA:
        return None
    try:
        infos = load_backend("cuda").probe()
    except DeviceUnavailable:
        return None
    return next((one for one in infos if one.uuid == info.uuid), None)
