"""`python tests/runtime/optax_steps.py`, with optax 0.2.8 and jax 0.10.2: writes what optax's Lion and Muon make of a
small network's parameters in 100 steps, and its schedules' values, for tests/runtime/test_optim.py."""

import json
from pathlib import Path

import numpy as np

STEPS = 100


def problem() -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Parameters, inputs and targets of a network of two layers."""
    rng = np.random.default_rng(0)
    params = {"w": rng.standard_normal((4, 6)), "b": rng.standard_normal(6), "t": rng.standard_normal((6, 3))}
    return params, rng.standard_normal((8, 4)), rng.standard_normal((8, 3))


def main() -> None:
    import jax

    jax.config.update("jax_enable_x64", True)
    import jax.numpy as jnp
    import optax

    params, x, y = problem()
    params = {k: jnp.asarray(v) for k, v in params.items()}

    def loss(p: dict) -> jax.Array:
        return jnp.mean((jnp.tanh(x @ p["w"] + p["b"]) @ p["t"] - y) ** 2)

    optimizers = {
        "lion": optax.lion(1e-2, weight_decay=0.1),
        "muon": optax.contrib.muon(1e-2, weight_decay=0.1),
        # optax's schedules and MultiSteps round to float32, also where JAX computes in float64.
        "clipped adamw": optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(1e-2)),
    }
    found: dict[str, dict] = {"versions": {"optax": optax.__version__, "jax": jax.__version__}}
    for name, opt in optimizers.items():
        p, state = params, opt.init(params)

        @jax.jit
        def step(p: dict, state: object, opt: object = opt) -> tuple:
            updates, state = opt.update(jax.grad(loss)(p), state, p)
            return optax.apply_updates(p, updates), state

        for _ in range(STEPS):
            p, state = step(p, state)
        found[name] = {k: np.asarray(v).tolist() for k, v in p.items()}
    Path(__file__).with_name("optax_steps.json").write_text(json.dumps(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
