"""Which mesh and rank a thread works for."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlx.ranks.mesh import Mesh


class Place(threading.local):
    """The mesh that this thread works within and its rank. `card` is a text that identifies the ranks' programs in
    place of their graphs, where these differ between ranks. `spoils`: states may be written before the collectives that
    are traced now; losing a rank then voids them."""

    mesh: Mesh | None = None
    rank = 0
    card: str | None = None
    spoils = False
    around: Any = None  # (mesh, rank, around) of the enclosing `with` block


PLACE = Place()
