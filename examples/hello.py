"""The README's example: a graph, a session, a run; then the same with jit."""

import numpy as np

import rlx

g = rlx.Graph("hello")
x = g.input("x", (1, 4))
w = g.param("w", (4, 2))
g.output("y", rlx.gelu(x @ w))

exe = rlx.Session(device="auto").compile(g)  # or "cpu", "vulkan", "vulkan:1", "cuda:0"
exe.set_param("w", np.full((4, 2), 0.5, np.float32))
print(exe.run({"x": np.ones((1, 4), np.float32)})["y"])


@rlx.jit(device="cpu")  # traced once for each set of shapes and dtypes
def layer(x, w, b):
    return rlx.gelu(x @ w + b)


print(layer(np.ones((1, 4), np.float32), np.ones((4, 2), np.float32), np.zeros(2, np.float32)))
