"""Training on every device: a small network learns to tell two spirals apart, by gradient descent with momentum.

The weights are states of the graph: each run is a training step, and the new weights stay on the device. `rlx.grad`
differentiates functions of arrays; here it checks the gradient of the first weights against finite differences in
float64.
"""

from __future__ import annotations

import argparse

import numpy as np

import rlx

SHAPES = {"w1": (2, 32), "b1": (32,), "w2": (32, 32), "b2": (32,), "w3": (32, 2), "b3": (2,)}
STEPS, RATE, MOMENTUM = 120, 0.2, 0.9


def spirals(n: int = 128) -> tuple[np.ndarray, np.ndarray]:
    """n points on each of two spirals, and the number of each point's spiral."""
    t = np.linspace(0.5, 3, n)
    one = np.stack([t * np.cos(2 * t), t * np.sin(2 * t)], 1) / 3
    return np.concatenate([one, -one]).astype(np.float32), np.repeat(np.array([0, 1], np.int32), n)


def start() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {
        name: (rng.normal(0, shape[0] ** -0.5, shape) if len(shape) == 2 else np.zeros(shape)).astype(
            np.float32
        )
        for name, shape in SHAPES.items()
    }


def scores(p, x):
    h = rlx.tanh(x @ p["w1"] + p["b1"])
    h = rlx.tanh(h @ p["w2"] + p["b2"])
    return h @ p["w3"] + p["b3"]


def loss(p, x, labels):
    return rlx.mean(rlx.cross_entropy(scores(p, x), labels))


def training(points: int) -> rlx.Graph:
    """A training step: reads the weights and their velocities, and updates them."""
    g = rlx.Graph("step")
    x, labels = g.input("x", (points, 2)), g.input("labels", (points,), "i32")
    p = {name: g.state(name, shape) for name, shape in SHAPES.items()}
    error = g.output("loss", loss(p, x, labels))
    for name, slope in zip(p, rlx.gradients(error, list(p.values())), strict=True):
        velocity = g.state(f"velocity of {name}", SHAPES[name])
        faster = MOMENTUM * velocity - RATE * slope
        g.update(f"velocity of {name}", faster)
        g.update(name, p[name] + faster)
    g.output("right", rlx.mean(rlx.cast(rlx.argmax(scores(p, x), axis=-1) == labels, "f32")))
    return g


def check_gradients(x: np.ndarray, labels: np.ndarray) -> float:
    """The largest error of the gradient of w1 against central differences, relative to its largest element."""
    p = {name: array.astype(np.float64) for name, array in start().items()}
    x = x.astype(np.float64)
    slope = rlx.grad(loss, device="cpu")(p, x, labels)["w1"]
    value = rlx.jit(loss, device="cpu")
    want = np.zeros_like(slope)
    for place in np.ndindex(want.shape):
        nudge = np.zeros_like(want)
        nudge[place] = 1e-6
        above, below = (value(p | {"w1": p["w1"] + s * nudge}, x, labels) for s in (1, -1))
        want[place] = (above - below) / 2e-6
    return float(np.abs(slope - want).max() / np.abs(want).max())


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    x, labels = spirals()
    print(f"gradients and finite differences: {check_gradients(x, labels):.0e} apart")
    for info in rlx.devices():
        with rlx.Session(info.id).compile(training(len(x))) as step:
            for name, array in start().items():
                step.set_state(name, array)
            course = [step.run({"x": x, "labels": labels}) for _ in range(STEPS + 1)]
        first, last = course[0], course[-1]
        print(
            f"{info.id:>9}: loss {first['loss']:.3f}, after {STEPS} steps {last['loss']:.4f}; "
            f"{last['right']:.1%} of the points on the right spiral"
        )


if __name__ == "__main__":
    main()
