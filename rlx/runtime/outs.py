"""Out: where the results of a run are left."""

from __future__ import annotations

from typing import Literal

from rlx.errors import GraphError

Out = Literal["host", "device"]


def check_out(what: str, out: object) -> None:
    """Raises: GraphError unless `out` is "host" or "device"."""
    if out not in ("host", "device"):
        raise GraphError(
            f'{what}: out {out!r} is neither "host" (NumPy arrays) nor "device" (rlx.Arrays that stay there)'
        )
