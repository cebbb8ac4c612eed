"""Which mesh and rank a thread works for."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlx.ranks.mesh import Mesh


class Place(threading.local):
    """The mesh that this thread works within, its rank, and what the programs of its ranks are known by where they
    differ: a text, which takes the place of their graphs."""

    mesh: Mesh | None = None
    rank = 0
    card: str | None = None
    around: Any = None  # mesh and rank, and these again, of the blocks around


PLACE = Place()
