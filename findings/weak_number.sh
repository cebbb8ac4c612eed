#!/usr/bin/env bash
# Claim: JAX 0.9.0 wraps a Python int that an array's dtype of 8 or 16 bits does not hold, also where it is only compared
#   or bounds: of uint8 arrays 0 == 256 is True, 100 < 300 is False, clip(200, 0, 300) and maximum(200, 300) are 44 and
#   200. From 2**31 on, or from 300 in jnp.array(300, uint8), the same number is an OverflowError.
# A good guess says: a number that the dtype does not hold is an error, as in jnp.array and NumPy 2's arithmetic, or is
#   compared exactly, as NumPy 2 does; a bound above all values of the dtype changes nothing.
# What is so: the number becomes an int32 first, which the range check sees, and is then cast to uint8 modulo 256.
# Why it matters to a tensor runtime: images, masks and quantized weights are uint8 and int8, and a threshold or bound
#   beyond their range is a silent wrong answer; results of such programs cannot be judged by JAX.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q --disable-pip-version-check jax==0.9.0 jaxlib==0.9.0 numpy==2.4.0
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PY'
import sys

import jax
import jax.numpy as jnp
import numpy as np

print("jax", jax.__version__, "numpy", np.__version__)
u = np.array([0, 100, 200], np.uint8)
x = jnp.asarray(u)
seen = {
    "x == 256": (x == 256, [True, False, False], u == 256),
    "x < 300": (x < 300, [True, False, False], u < 300),
    "maximum(x, 300)": (jnp.maximum(x, 300), [44, 100, 200], None),
    "clip(x, 0, 300)": (jnp.clip(x, 0, 300), [0, 44, 44], u),
    "jit: x == 256": (jax.jit(lambda a: a == 256)(x), [True, False, False], u == 256),
    "int8: x == 300": (jnp.asarray(np.array([44], np.int8)) == 300, [True], np.array([44], np.int8) == 300),
}
same = True
for what, (made, expected, exact) in seen.items():
    same &= np.asarray(made).tolist() == expected
    print(f"{what}: {np.asarray(made).tolist()}, exactly {'an error' if exact is None else exact.tolist()}")


def error(call):
    try:
        return repr(call())
    except Exception as e:
        return type(e).__name__


for what, call in (("x == 2**31", lambda: x == 2**31), ("array(300, uint8)", lambda: jnp.array(300, jnp.uint8)),
                   ("NumPy: maximum(x, 300)", lambda: np.maximum(u, 300))):
    print(f"{what}: {error(call)}")
    same &= error(call) == "OverflowError"
sys.exit(0 if same else "the behaviour has changed")
PY
