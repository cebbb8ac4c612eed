"""Ranks: programs that work together, each on its device, and how they meet: in memory, or by MPI."""

from rlx.ranks.mesh import PLACE as PLACE
from rlx.ranks.mesh import Mesh as Mesh
