"""Ranks: programs that work together, each on its device, and how they meet: in memory, or by MPI."""

from typing import TYPE_CHECKING

from rlx.lazy import by_need as _by_need

if TYPE_CHECKING:
    from rlx.ranks.mesh import Mesh as Mesh

_by_need(__name__, {"Mesh": "rlx.ranks.mesh"})
