#!/usr/bin/env bash
# Claim: in JAX 0.10.2 on an x86 CPU lax.top_k puts a NaN that the program computed (0/0, inf - inf, log(-1), sqrt(-1))
#   behind all numbers and one that was written as nan before them: the greatest of [0/0, 1, 2, 3] is 3.
# A good guess says: a NaN is the greatest for all of sort, max, argmax and top_k, or at least the same for each NaN;
#   jnp.sort puts both at the end, and max and argmax choose both.
# What is so: sort makes all NaNs one before it compares and top_k does not, so that its order is that of the bits, in
#   which a NaN with a sign is below -inf. The processor gives NaNs of its own a sign; a constant has none. In the same
#   order 0 is above -0, which argsort takes for equal.
# Why it matters to a tensor runtime: a broken score is the first choice or none, by where it came from, and experts or
#   tokens that are chosen by JAX cannot judge those of a runtime for which NaNs are alike.
set -euo pipefail
if [[ $(uname -m) != x86_64 ]]; then
    echo "other processors give NaNs other signs: not run"
    exit 0
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PY'
import sys

import jax
import jax.numpy as jnp
import numpy as np

print("jax", jax.__version__)
x = jnp.arange(4, dtype=jnp.float32)
made = {
    "nan": (x.at[0].set(jnp.nan), [0, 3, 2, 1]),
    "0/0": (x.at[0].set(x[0] / x[0]), [3, 2, 1, 0]),
    "inf - inf": (x.at[0].set(jnp.inf * x[1] - jnp.inf * x[2]), [3, 2, 1, 0]),
    "log(-1)": (x.at[0].set(jnp.log(-x[1])), [3, 2, 1, 0]),
    "sqrt(-1)": (x.at[0].set(jnp.sqrt(-x[1])), [3, 2, 1, 0]),
}
same = True
for name, (y, seen) in made.items():
    values, order = jax.lax.top_k(y, 4)
    ascending = jnp.argsort(y).tolist()
    greatest = jnp.max(y)
    print(f"{name}, 1, 2, 3: top_k {values} of places {order}; argsort {ascending}, max {greatest} at {jnp.argmax(y)}")
    same &= order.tolist() == seen and ascending == [1, 2, 3, 0]
    same &= int(jnp.argmax(y)) == 0 and bool(jnp.isnan(greatest))
zeros = jnp.array([-0.0, 0.0, -0.0, 0.0], jnp.float32)
order = jax.lax.top_k(zeros, 4)[1].tolist(), jnp.argsort(zeros, descending=True).tolist()
print(f"-0, 0, -0, 0: top_k's places {order[0]}, argsort's {order[1]}")
same &= order[0] == [1, 3, 0, 2] and np.all(np.signbit(zeros) == [True, False] * 2)
sys.exit(0 if same else "the behaviour has changed")
PY
