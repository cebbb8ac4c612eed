#!/usr/bin/env bash
# Claim: with jax_enable_x64, optax 0.2.8's linear_schedule and exponential_decay give float32 rates for an int32 count,
#   where cosine_decay_schedule gives float64; and MultiSteps averages float64 gradients in float32. The updates are
#   float64 arrays that hold the rounded numbers.
# A good guess says: where JAX computes in float64 and parameters, gradients and updates are float64, rates and means are
#   too; or every schedule is in float32.
# What is so: polynomial and exponential schedules divide the int32 count by an int, which JAX makes float32 also under
#   x64, while the cosine multiplies it by a float, which JAX makes float64; MultiSteps' accumulator_dtype is float32
#   unless told.
# Why it matters to a tensor runtime: optimizers are judged beside optax over many steps at 1e-12. With such a schedule
#   or accumulation the two differ from the ninth digit on, though no dtype that one sees is float32.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q --disable-pip-version-check optax==0.2.8 jax==0.10.2 jaxlib==0.10.2
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PY'
import sys

import jax

jax.config.update("jax_enable_x64", True)
import jax.numpy as jnp
import optax

print("optax", optax.__version__, "jax", jax.__version__)
count = jnp.asarray(7, jnp.int32)
rates = {
    "linear_schedule": (optax.linear_schedule(0.1, 0.0, 100), "float32"),
    "exponential_decay": (optax.exponential_decay(0.1, 10, 0.9), "float32"),
    "cosine_decay_schedule": (optax.cosine_decay_schedule(0.1, 100), "float64"),
}
same = True
for name, (schedule, expected) in rates.items():
    rate = schedule(count)
    print(f"{name}: {rate.dtype} {float(rate)!r}")
    same &= str(rate.dtype) == expected

gradient = jnp.full(3, 1 / 3)
params = jnp.ones(3)
optimizer = optax.sgd(optax.linear_schedule(0.1, 0.0, 100))
state = optimizer.init(params)
for _ in range(8):
    update, state = optimizer.update(jnp.ones(3), state, params)
print(f"sgd with linear_schedule, step 8: {update.dtype} {float(update[0])!r}, in float64 {-0.1 * 0.93!r}")
same &= str(update.dtype) == "float64" and abs(float(update[0]) + 0.093) > 1e-10

steps = optax.MultiSteps(optax.sgd(1.0), 2)
state = steps.init(params)
for _ in range(2):
    update, state = steps.update(gradient, state, params)
print(f"MultiSteps of two gradients of 1/3: {update.dtype} {float(update[0])!r}, in float64 {-1 / 3!r}")
same &= str(update.dtype) == "float64" and abs(float(update[0]) + 1 / 3) > 1e-10
sys.exit(0 if same else "this behaviour has changed")
PY
