"""What saved programs record of rlx's version and of the device that they were made for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlx.driver import Device

VERSION = "0.1.0"


def described(device: Device) -> dict[str, Any]:
    """The properties of a device that a program depends on: all except its number."""
    info = device.info
    said = {"backend": info.backend, "name": info.name, "driver": info.driver, "kind": info.kind}
    limits = {name: list(v) if isinstance(v, tuple) else v for name, v in device.limits._asdict().items()}
    return {
        **said,
        "features": sorted(info.features),
        "subnormals": info.preserves_subnormals,
        "limits": limits,
    }
